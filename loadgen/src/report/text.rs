//! A run for people: the loop, the table, what went wrong, the six numbers, the generator's own cost.

use comfy_table::{Cell, CellAlignment, Table};

use super::summary::{Latency, Setup, Summary};
use crate::units::{print_count, print_ms, significant};

/// What was run, in one sentence; an open loop is never mistaken for a closed one.
pub fn headline(setup: &Setup) -> String {
    let clients = |word| format!("{} {word}", print_count(u64::from(setup.clients)));
    let pace = match setup.rate {
        Some(rate) => {
            format!("open loop: {} requests/s due, at most {}", print_count(rate as u64), clients("under way"))
        }
        None => format!("closed loop: {}, think {}", clients("clients"), setup.think),
    };
    let values = match setup.value_bytes {
        0 => "text values".to_owned(),
        bytes => format!("{bytes}-byte values"),
    };
    let pack = match setup.pack_bytes {
        0 => "one command a frame".to_owned(),
        bytes => format!("frames of up to {} bytes", print_count(bytes)),
    };
    format!(
        "{pace}; workload {}, {} of {} keys, {values}, {} partitions; {pack}; target {}; {} s, first and last {} s \
         dropped",
        setup.workload,
        print_count(setup.entries),
        print_count(setup.universe),
        setup.partitions,
        setup.target,
        significant(setup.duration_s),
        significant(setup.trim_s),
    )
}

fn row(name: &str, requests: f64, latency: &Latency) -> Vec<Cell> {
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let columns = [latency.mean_ms, latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms];
    let mut cells = vec![Cell::new(name), right(print_count(requests as u64))];
    cells.extend(columns.map(|value| right(print_ms(value))));
    cells
}

/// The table of kinds, with all together first where there are several.
fn table(summary: &Summary) -> String {
    let window = summary.setup.duration_s - 2.0 * summary.setup.trim_s;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let head = ["latency in ms", "requests/s", "mean", "p50", "p90", "p99", "p99.9", "max"];
    table.set_header(head.iter().enumerate().map(|(i, text)| {
        Cell::new(text).set_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right })
    }));
    if summary.kinds.len() != 1 || summary.unsent > 0 {
        table.add_row(row("all", summary.throughput, &summary.latency));
    }
    for kind in &summary.kinds {
        table.add_row(row(&kind.kind, kind.requests as f64 / window.max(f64::MIN_POSITIVE), &kind.latency));
    }
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The whole report.
pub fn render(summary: &Summary) -> String {
    let mut out = headline(&summary.setup) + "\n" + &table(summary);
    out += &format!(
        "{} requests/s, {} commands/s; failed {}  busy {}  unknown {}",
        print_count(summary.throughput as u64),
        print_count(summary.commands_per_second as u64),
        summary.failed,
        summary.busy,
        summary.unknown
    );
    if summary.unsent > 0 {
        out += &format!(
            "  never sent {}: the store is slower than the rate; with their wait until the end they are in `all`, \
             whose latencies are lower bounds",
            print_count(summary.unsent)
        );
    }
    out += &format!("  (head and tail: {} dropped)\n", print_count(summary.dropped));
    if let Some(error) = &summary.first_error {
        out += &format!("first error: {error}\n");
    }
    if let Some(found) = &summary.find_max {
        let held =
            if found.held { "the best load that holds it is above" } else { "no load holds it; the last is above" };
        out += &format!("{} in {} steps: {held}\n", found.bound, found.steps.len());
    }
    match &summary.ordering {
        Some(o) => {
            out += &format!(
                "ordering: instance {} ms, {} instances/s x {} commands = {} commands/s, batch {} B, window {} of {}, \
                 flush {} ms\n",
                print_ms(o.instance_ms),
                print_count(o.instances_per_second as u64),
                significant(o.batch_commands),
                print_count(o.commands_per_second as u64),
                significant(o.batch_bytes),
                significant(o.window),
                significant(o.window_limit),
                print_ms(o.flush_ms),
            );
        }
        None => out += "ordering: no node's metrics could be read (--metrics names their admin addresses)\n",
    }
    out += &format!(
        "generator: {} us of CPU per command, {} cores\n",
        significant(summary.generator_cpu_us_per_command),
        significant(summary.generator_cores)
    );
    out
}
