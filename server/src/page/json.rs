//! What the page is told each second, as json.

use std::collections::BTreeMap;

use coppice_client::wire::TuningReport;
use coppice_core::status::live::{ClusterLive, GroupLive, Moment, Moments, NodeLive};
use serde_json::{Map, Value, json};

use crate::status_view::to_json;

/// One event: the newest status, and the moments of each node that the page does not have yet, oldest first.
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
    json!({ "admin": live.admin, "groups": groups, "moments": columns(&live.moments) })
}

fn of_group(group: &GroupLive) -> Value {
    json!({
        "window_limit": group.window_limit, "speculative_instances": group.speculative_instances,
        "rollbacks": group.rollbacks.0, "undone_commands": group.rollbacks.1, "leader_changes": group.leader_changes,
    })
}

/// Moments as columns: 600 of them name each field once.
fn columns(told: &Moments) -> Value {
    let column = |of: fn(&Moment) -> u64| told.moments.iter().map(of).collect::<Vec<_>>();
    let latencies: Vec<&[u32]> = told.moments.iter().map(|moment| &*moment.latencies).collect();
    json!({
        "newest": told.newest,
        "age_ms": told.age_ms,
        "span_ms": column(|moment| moment.span_ms.into()),
        "writes": column(|moment| moment.writes.into()),
        "reads": column(|moment| moment.reads.into()),
        "failed": column(|moment| moment.failed.into()),
        "latencies": latencies,
        "flush_us_p99": column(|moment| moment.flush_us_p99.into()),
        "hold_us_p99": column(|moment| moment.hold_us_p99.into()),
        "held": column(|moment| moment.held.into()),
        "tickets_in_flight": column(|moment| moment.tickets_in_flight.into()),
        "queries": column(|moment| moment.queries.into()),
        "undone": column(|moment| moment.undone.into()),
        "memory_bytes": column(|moment| moment.memory_bytes),
        "log_bytes": column(|moment| moment.log_bytes),
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
