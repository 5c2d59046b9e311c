//! The comparison for people, as text and as markdown, and for programs.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::json;

use super::job::{Job, Measurement};
use super::{Column, Comparison};
use coppice_loadgen::units::{print_count, significant};

/// One row: a number of a job.
struct Figure {
    job: Job,
    unit: &'static str,
    of: fn(&Measurement) -> f64,
    /// Whether a larger number is the better one.
    more_is_better: bool,
}

const PER_SECOND: (&str, fn(&Measurement) -> f64) = ("per second", |measured| measured.per_second);
const P50: (&str, fn(&Measurement) -> f64) = ("p50 ms", |measured| measured.p50_ms);
const P99: (&str, fn(&Measurement) -> f64) = ("p99 ms", |measured| measured.p99_ms);

fn figures() -> impl Iterator<Item = Figure> {
    Job::ALL.into_iter().flat_map(|job| {
        let numbers = if job == Job::UnloadedPut { [P50, P99] } else { [PER_SECOND, P99] };
        numbers.map(|(unit, of)| Figure { job, unit, of, more_is_better: unit == PER_SECOND.0 })
    })
}

impl Figure {
    fn value(&self, column: &Column) -> Option<f64> {
        column.jobs.get(&self.job).map(self.of)
    }

    /// How many times as good the first column is as this one.
    fn ratio(&self, first: &Column, column: &Column) -> Option<f64> {
        let (ours, theirs) = (self.value(first)?, self.value(column)?);
        let (more, less) = if self.more_is_better { (ours, theirs) } else { (theirs, ours) };
        (less > 0.0).then(|| more / less)
    }

    fn print(&self, value: f64) -> String {
        if self.more_is_better { print_count(value.round() as u64) } else { significant(value) }
    }
}

/// How a table looks.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Text,
    Markdown,
}

/// For a terminal.
pub fn text(comparison: &Comparison) -> String {
    render(comparison, Style::Text)
}

/// For a page.
pub fn markdown(comparison: &Comparison) -> String {
    render(comparison, Style::Markdown)
}

/// One compact object, with the ratios that the tables show.
pub fn json(comparison: &Comparison) -> String {
    let first = &comparison.stores[0];
    let ratios = comparison.stores[1..].iter().map(|column| {
        let rows = figures().filter_map(|figure| {
            let ratio = figure.ratio(first, column)?;
            Some(json!({"job": figure.job, "of": figure.unit, "ratio": (ratio * 1e3).round() / 1e3}))
        });
        json!({"to": column.name, "ratios": rows.collect::<Vec<_>>()})
    });
    let mut object = serde_json::to_value(comparison).expect("numbers and texts are always JSON");
    object["ratios"] = ratios.collect();
    object.to_string()
}

fn render(comparison: &Comparison, style: Style) -> String {
    let Comparison { machine, .. } = comparison;
    let mut out = format!(
        "{}\n\n{} keys of 8 bytes with 8-byte values, {} s a job, one store after the other.\n{}, data on {}, \
         Linux {}, commit {}.\n\n",
        if style == Style::Markdown { format!("`{}`", comparison.command) } else { comparison.command.clone() },
        print_count(comparison.entries),
        significant(comparison.duration_s),
        machine.cpu,
        comparison.data_disk,
        machine.kernel,
        machine.commit,
    );
    out += &stores(comparison, style);
    out += "\nx: how many times as good Coppice is, as high a rate or as short a time; below 1 it is behind\n\n";
    out += &measured(comparison, style);
    out += "\nUnequal, as far as we know:\n";
    if style == Style::Markdown {
        out.push('\n');
    }
    out += "- all: the generators run on the same processors as the servers\n";
    if ["tmpfs", "ramfs"].iter().any(|kind| comparison.data_disk.starts_with(kind)) {
        out += "- all: the data is in memory, where a flush costs nothing (--dir on a disk)\n";
    }
    for column in comparison.stores.iter().filter(|column| !column.jobs.is_empty()) {
        column.notes.iter().for_each(|note| out += &format!("- {}: {note}\n", column.name));
        if column.entries != comparison.entries {
            out += &format!("- {}: it was loaded with {} keys\n", column.name, print_count(column.entries));
        }
    }
    out += "\nCommands:\n";
    let (before, behind) = if style == Style::Markdown { ("\n```sh\n", "```\n") } else { ("", "") };
    out += before;
    for line in comparison.stores.iter().flat_map(|column| &column.commands) {
        out += &format!("{}{line}\n", if style == Style::Text { "  " } else { "" });
    }
    out + behind
}

/// What the stores are.
fn stores(comparison: &Comparison, style: Style) -> String {
    let mut table = table(style);
    table.set_header(["store", "version", "processes", "a put is answered after"]);
    for column in &comparison.stores {
        let last = match (&column.missing, &column.failed) {
            (Some(missing), _) => missing.clone(),
            (None, Some(failed)) => format!("failed: {failed}"),
            (None, None) => column.durability.clone(),
        };
        table.add_row([column.name, &column.version, &column.cluster, &last]);
    }
    lines(&table)
}

/// What was measured.
fn measured(comparison: &Comparison, style: Style) -> String {
    let (first, others) = comparison.stores.split_first().expect("Coppice is always there");
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let mut table = table(style);
    let mut head = vec![Cell::new("job"), Cell::new(""), right(first.name.to_owned())];
    for column in others {
        head.extend([right(column.name.to_owned()), right("x".to_owned())]);
    }
    table.set_header(head);
    let mut job = None;
    for figure in figures() {
        let title = if job.replace(figure.job) == Some(figure.job) { "" } else { figure.job.title() };
        let number = |column| right(figure.value(column).map_or("-".to_owned(), |value| figure.print(value)));
        let mut row = vec![Cell::new(title), Cell::new(figure.unit), number(first)];
        for column in others {
            row.extend([number(column), right(figure.ratio(first, column).map_or("-".to_owned(), significant))]);
        }
        table.add_row(row);
    }
    lines(&table)
}

fn table(style: Style) -> Table {
    let mut table = Table::new();
    table.load_style(if style == Style::Markdown { presets::ASCII_MARKDOWN } else { presets::NOTHING });
    table
}

fn lines(table: &Table) -> String {
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_loadgen::machine::Machine;

    fn measured(per_second: f64, ms: f64) -> Measurement {
        Measurement { per_second, p50_ms: ms, p99_ms: ms * 2.0, errors: 0, command: String::new() }
    }

    fn comparison() -> Comparison {
        let column = |name, per_second, ms| Column {
            version: "1.2".to_owned(),
            entries: 1_000_000,
            jobs: Job::ALL.into_iter().map(|job| (job, measured(per_second, ms))).collect(),
            ..Column::new(name)
        };
        let mut redis = column("redis", 600_000.0, 0.5);
        redis.jobs.remove(&Job::Ranges);
        redis.entries = 500_000;
        redis.notes.push("no order".to_owned());
        Comparison {
            v: 1,
            command: "coppice-figures versus all".to_owned(),
            machine: Machine::read(),
            data_disk: "tmpfs on tmpfs".to_owned(),
            entries: 1_000_000,
            duration_s: 5.0,
            key_bytes: 8,
            value_bytes: 8,
            stores: vec![
                column("coppice", 300_000.0, 1.0),
                Column { missing: Some("not installed: apt install etcd-server".into()), ..Column::new("etcd") },
                redis,
            ],
        }
    }

    fn row(text: &str, title: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.contains(title)).unwrap_or_else(|| panic!("no {title} in {text}"));
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn ratios_say_how_many_times_as_good_coppice_is() {
        let text = text(&comparison());
        assert_eq!(
            row(&text, "packed"),
            ["puts, 1000 clients, packed", "per second", "300 000", "-", "-", "600 000", "0.500"]
        );
        assert_eq!(row(&text, "put, 1 client"), ["put, 1 client", "p50 ms", "1.00", "-", "-", "0.500", "0.500"]);
        assert_eq!(
            row(&text, "ranges of"),
            ["ranges of 1000 keys, 64 clients", "per second", "300 000", "-", "-", "-", "-"]
        );
    }

    #[test]
    fn what_is_missing_and_what_is_unequal_is_said() {
        for text in [text(&comparison()), markdown(&comparison())] {
            for part in
                ["apt install etcd-server", "- redis: no order", "in memory", "redis: it was loaded with 500 000"]
            {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }

    #[test]
    fn programs_get_the_ratios_too() {
        let object: serde_json::Value = serde_json::from_str(&json(&comparison())).unwrap();
        assert_eq!(object["stores"][0]["jobs"]["packed_puts"]["per_second"], 300_000.0);
        assert_eq!(object["ratios"][0]["ratios"].as_array().unwrap().len(), 0);
        assert_eq!(object["ratios"][1]["ratios"][0]["ratio"], 0.5);
    }
}
