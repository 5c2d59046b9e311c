//! Tuning on a real cluster in one process: settings change under load, keep to what was set, and fall back to
//! the fixed ones when it is switched off (protocol.md 9).

mod common;

use std::time::Instant;

use common::cluster::{ASK, connect, formed};
use common::{Scratch, patience, wait_until};
use coppice_client::Operation;
use coppice_client::blocking::Client;
use coppice_client::wire::{AdminReply, AdminRequest, GroupTuning, PartitionId};
use coppice_server::local::{Cluster, LocalOptions, admin};

const P1: PartitionId = PartitionId(1);

/// The metrics of the node that leads p1 and knows it.
fn metrics(cluster: &Cluster) -> Option<String> {
    let leader = cluster.leader_of(P1)?;
    Some(cluster.node(leader.0 as usize - 1).expect("it runs").metrics())
}

/// The window that the leader of p1 allows itself; none while another one takes over.
fn window(cluster: &Cluster) -> Option<u32> {
    let text = metrics(cluster)?;
    let line = text.lines().find(|line| line.starts_with("coppice_window_limit{partition=\"p1\"}"))?;
    line.split(' ').nth(1)?.parse().ok()
}

/// Puts until `done`.
#[track_caller]
fn load_until(what: &str, client: &Client, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < patience(), "under load for {:?}, and never: {what}", begun.elapsed());
        let put = |n: u64| Operation::Put { key: n.to_be_bytes().into(), value: n.to_be_bytes().into() };
        assert!(client.execute((0..2_000).map(put).collect()).into_iter().all(|result| result.is_ok()));
    }
}

/// What the cluster says of the tuning of p1, whichever node is asked, and whether it is on; none while nobody leads.
fn tuning(cluster: &Cluster, node: usize) -> Option<(bool, GroupTuning)> {
    match admin(cluster.endpoints()[node], AdminRequest::Tuning { local: false }, ASK) {
        Ok(AdminReply::Tuning(mut report)) => {
            assert!(report.groups.is_sorted_by_key(|group| group.partition), "{report:?}");
            report.groups.retain(|group| group.partition == P1);
            Some((report.on, report.groups.pop()?))
        }
        // Nobody answers for the moment.
        Ok(AdminReply::Failed(_)) | Err(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_follows_the_load_and_the_settings_and_says_why() {
    let directory = Scratch::new("tuning");
    let settings = vec![("auto_tuning".into(), "on".into())];
    let cluster = formed(&LocalOptions { settings, ..LocalOptions::new(&directory.0) });
    let client = connect(&cluster);
    // It begins with less under way than the fixed settings let be, until it has seen what links hold.
    load_until("tuning has its say", &client, || {
        tuning(&cluster, 0).is_some_and(|(_, told)| told.in_force.window_bytes_max != 1 << 20)
    });
    for node in 0..cluster.endpoints().len() {
        // A leader that has just taken over has not measured yet, and one that measures may be about to follow.
        load_until("what is advised is in force, and said", &client, || {
            let Some((on, told)) = tuning(&cluster, node) else { return false };
            let Some(account) = told.account else { return false };
            // Key and value are 16 bytes; a pack of many adds a few to each.
            assert!((16.0..32.0).contains(&account.command_bytes), "{account:?}");
            assert!(account.round_trip_ms > 0.0 && account.predicted_throughput > 0.0, "{account:?}");
            on && account.advised == told.in_force && Some(told.leader) == cluster.leader_of(P1)
        });
    }
    let set = |key: &str, value: &str| {
        wait_until(&format!("{key} is set to {value}"), patience(), || {
            let request = AdminRequest::ConfigSet { key: key.into(), value: value.into() };
            matches!(admin(cluster.endpoints()[0], request, ASK), Ok(AdminReply::Done))
        });
    };
    // What is set stays.
    set("window", "7");
    load_until("a window that was set is in force", &client, || window(&cluster) == Some(7));
    // Off: the fixed values, and the advice all the same.
    set("auto_tuning", "off");
    set("window", "16");
    load_until("the fixed window is back", &client, || window(&cluster) == Some(16));
    load_until("it is said what it would choose", &client, || {
        let Some((on, told)) = tuning(&cluster, 0) else { return false };
        !on && told.in_force.window == 16 && told.account.is_some_and(|account| account.advised.window != 16)
    });
    load_until("metrics show what is measured, predicted and chosen", &client, || {
        let Some(text) = metrics(&cluster) else { return false };
        let shown = |value: &str, kind: &str| {
            let series = format!("coppice_tuning{{partition=\"p1\",value=\"{value}\",kind=\"{kind}\"}} ");
            text.lines().any(|line| line.starts_with(&series))
        };
        shown("throughput", "predicted") && shown("throughput", "measured") && shown("window", "chosen")
    });
}
