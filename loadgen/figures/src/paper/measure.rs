//! Carries one point out on a cluster: clients in a closed loop, and what the nodes used up for them.

use clap::Parser;

use super::cluster::{Cluster, Ground, NodeUsage};
use super::point::{Load, Reading, Workload, name};
use coppice_loadgen::app;
use coppice_loadgen::app::args::{Cli, Command, Global};
use coppice_loadgen::report::Summary;
use coppice_loadgen::units::print_duration;

/// Connections of the clients that send one command a message; as in the paper, they do not share a packet.
const CONNECTIONS_MAX: u32 = 32;

/// Measures.
///
/// # Errors
/// In words: nothing was answered, or a node ended.
pub fn measure(cluster: &mut Cluster, load: &Load, ground: &Ground<'_>) -> Result<Reading, String> {
    cluster.set_speculation(load.speculation)?;
    let line = command_line(load, ground, &cluster.endpoints());
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| format!("{line}: {error}"))?;
    let Command::Run(args) = &cli.command else { return Err(format!("not a run: {line}")) };
    let global = Global { quiet: true, timeout: ground.global.timeout, ..cli.global.clone() };
    let before = cluster.used();
    let measured = app::measure(args, &global);
    let after = cluster.used();
    cluster.all_run(ground.site)?;
    let summary = measured.map_err(|failure| format!("{line}: {}: {}", failure.what, failure.cause))?;
    let used: Vec<NodeUsage> = before.iter().zip(&after).map(|(before, after)| between(before, after)).collect();
    Ok(reading(&summary, &used))
}

/// The run as a user would type it.
fn command_line(load: &Load, ground: &Ground<'_>, endpoints: &str) -> String {
    let Load { workload, clients, updates, cross_percent, .. } = load;
    let terms = ground.terms;
    let (word, connections) = (workload.word(), (*clients).min(CONNECTIONS_MAX));
    let how = match workload {
        // Any replica answers a query, as in the paper.
        Workload::A => format!("--any-replica --pack 0 --connections {connections} --cross-percent {cross_percent}"),
        Workload::B => format!("--pack 0 --connections {connections}"),
        // The library packs what waits into frames of up to 8 KiB.
        Workload::C => format!("--updates {updates} --pack 8k --connections 4"),
    };
    let (hold, trim) = (print_duration(terms.hold), print_duration(terms.trim));
    format!(
        "coppice-load run --workload {word} --clients {clients} --think {} --entries {} --duration {hold} \
         --trim {trim} {how} --endpoints {endpoints}",
        terms.think, terms.entries
    )
}

fn between(before: &NodeUsage, after: &NodeUsage) -> NodeUsage {
    let stage = |(word, seconds): (&String, &f64)| {
        (word.clone(), (seconds - before.stages.get(word).copied().unwrap_or(0.0)).max(0.0))
    };
    NodeUsage { cpu_s: (after.cpu_s - before.cpu_s).max(0.0), stages: after.stages.iter().map(stage).collect() }
}

/// Nodes are watched over the whole run, clients between its trimmed ends: what nodes used is taken for each request
/// of the whole run.
fn reading(summary: &Summary, used: &[NodeUsage]) -> Reading {
    let Summary { throughput, commands_per_second: commands, latency, setup, .. } = summary;
    let answered = (summary.requests + summary.dropped).max(1) as f64;
    let commands_each = if *throughput > 0.0 { commands / throughput } else { 1.0 };
    let us_per_command = |seconds: f64| 1e6 * seconds / answered / commands_each;
    // From a whole run's seconds to seconds for a second of the measured window.
    let per_second = throughput / answered;
    let all: f64 = used.iter().map(|node| node.cpu_s).sum();
    let busiest = used.iter().max_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s)).cloned().unwrap_or_default();
    let think_s = coppice_loadgen::units::Think::parse(&setup.think).map_or(0.0, |think| think.mean().as_secs_f64());
    let little = throughput * (latency.mean_ms / 1e3 + think_s) / f64::from(setup.clients.max(1));
    let mut reading = Reading::new();
    let mut note = |name: &str, value: f64| {
        if value.is_finite() {
            reading.insert(name.to_owned(), value);
        }
    };
    note(name::REQUESTS, *throughput);
    note(name::COMMANDS, *commands);
    note(name::MEAN_MS, latency.mean_ms);
    note(name::P50_MS, latency.p50_ms);
    note(name::P99_MS, latency.p99_ms);
    note(name::ERRORS, (summary.failed + summary.busy + summary.unknown) as f64);
    note(name::LITTLE, little);
    note(name::NODES_US, us_per_command(all));
    note(name::BUSIEST_US, us_per_command(busiest.cpu_s));
    note(name::PER_CORE, 1e6 / us_per_command(busiest.cpu_s));
    note(name::NODES_CORES, all * per_second);
    note(name::GENERATOR_CORES, summary.generator_cores);
    for (word, seconds) in &busiest.stages {
        note(&format!("{}{word}", name::STAGE), 100.0 * seconds * per_second);
    }
    if let Some(ordering) = &summary.ordering {
        note(name::BATCH, ordering.batch_commands);
        note(name::INSTANCE_MS, ordering.instance_ms);
        let executing = used.iter().filter_map(|node| node.stages.get("execute")).copied().fold(0.0, f64::max);
        let execute_ms = 1e3 * executing * per_second / ordering.instances_per_second;
        note(name::EXECUTE_MS, execute_ms);
        note(name::HIDEABLE, 100.0 * execute_ms.min(ordering.instance_ms) / latency.mean_ms);
    }
    reading
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use coppice_loadgen::report::Setup;
    use coppice_loadgen::report::summary::Latency;

    #[test]
    fn what_nodes_used_is_for_each_command_of_the_whole_run() {
        let setup = Setup { clients: 20, think: "0..10ms".into(), ..Setup::default() };
        let latency = Latency { mean_ms: 5.0, ..Latency::default() };
        // 2000 requests a second of 7 updates; 1000 were answered in head and tail.
        let summary = Summary {
            setup,
            requests: 4_000,
            dropped: 1_000,
            throughput: 2_000.0,
            commands_per_second: 14_000.0,
            latency,
            ..Summary::default()
        };
        let stages = BTreeMap::from([("execute".to_owned(), 0.25)]);
        let used = [NodeUsage { cpu_s: 0.35, stages }, NodeUsage { cpu_s: 0.7, stages: BTreeMap::new() }];
        let reading = reading(&summary, &used);
        let near = |name: &str, value: f64| assert!((reading[name] - value).abs() < 1e-9, "{name}: {reading:?}");
        near(name::LITTLE, 1.0);
        near(name::NODES_US, 30.0);
        near(name::BUSIEST_US, 20.0);
        near(name::PER_CORE, 50_000.0);
        near(name::NODES_CORES, 0.42);
        assert!(!reading.contains_key(name::INSTANCE_MS), "nobody measured that: {reading:?}");
    }

    #[test]
    fn nodes_that_counted_before_are_not_charged_for_it() {
        let used = |cpu_s: f64, order: f64| NodeUsage { cpu_s, stages: BTreeMap::from([("order".to_owned(), order)]) };
        let grown = between(&used(1.0, 2.0), &used(1.5, 2.25));
        assert_eq!((grown.cpu_s, grown.stages["order"]), (0.5, 0.25));
    }
}
