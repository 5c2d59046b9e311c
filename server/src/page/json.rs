//! What the page is told each second, as json.

use std::collections::BTreeMap;

use coppice_client::wire::TuningReport;
use coppice_core::status::live::{ClusterLive, GroupLive, NodeLive, Sample, Samples};
use serde_json::{Map, Value, json};

use crate::status_view::to_json;

/// One event: the newest status, and the samples of each node that the page does not have yet, oldest first.
pub fn event(live: &ClusterLive) -> Value {
    let nodes = live.nodes.iter().map(|(node, live)| (node.to_string(), of_node(live)));
    let remedies = live.remedies.iter().map(|remedy| json!({ "wrong": remedy.wrong, "verb": remedy.verb }));
    json!({
        "v": 1,
        "status": to_json(&live.status),
        "remedies": remedies.collect::<Vec<_>>(),
        "tuning": tuning(&live.tuning),
        "nodes": nodes.collect::<Map<_, _>>(),
    })
}

fn of_node(live: &NodeLive) -> Value {
    let groups: BTreeMap<String, Value> =
        live.groups.iter().map(|(id, group)| (id.to_string(), of_group(group))).collect();
    json!({ "admin": live.admin, "groups": groups, "samples": columns(&live.samples) })
}

fn of_group(group: &GroupLive) -> Value {
    json!({
        "window_limit": group.window_limit, "speculative_instances": group.speculative_instances,
        "rollbacks": group.rollbacks.0, "undone_commands": group.rollbacks.1, "leader_changes": group.leader_changes,
    })
}

/// Samples as columns: 600 of them name each field once.
fn columns(told: &Samples) -> Value {
    let column = |of: fn(&Sample) -> u64| told.samples.iter().map(of).collect::<Vec<_>>();
    let latencies: Vec<&[u32]> = told.samples.iter().map(|sample| &*sample.latencies).collect();
    json!({
        "newest": told.newest,
        "age_ms": told.age_ms,
        "span_ms": column(|sample| sample.span_ms.into()),
        "writes": column(|sample| sample.writes.into()),
        "reads": column(|sample| sample.reads.into()),
        "failed": column(|sample| sample.failed.into()),
        "latencies": latencies,
        "flush_us_p99": column(|sample| sample.flush_us_p99.into()),
        "hold_us_p99": column(|sample| sample.hold_us_p99.into()),
        "held": column(|sample| sample.held.into()),
        "tickets_in_flight": column(|sample| sample.tickets_in_flight.into()),
        "queries": column(|sample| sample.queries.into()),
        "undone": column(|sample| sample.undone.into()),
        "memory_bytes": column(|sample| sample.memory_bytes),
        "log_bytes": column(|sample| sample.log_bytes),
    })
}

fn tuning(report: &TuningReport) -> Value {
    let group = |group: &coppice_client::wire::GroupTuning| {
        json!({
            "partition": group.partition.to_string(), "leader": group.leader.to_string(),
            "in_force": group.in_force, "account": group.account,
        })
    };
    let silent: Vec<String> = report.silent.iter().map(ToString::to_string).collect();
    json!({ "on": report.on, "groups": report.groups.iter().map(group).collect::<Vec<_>>(), "silent": silent })
}
