//! The autopilot on a real cluster in one process: settings change under load, keep to what was set, and fall back to
//! the fixed ones when it is switched off (ordering.md 9).

use std::time::{Duration, Instant};

use coppice_client::Operation;
use coppice_client::blocking::Client;
use coppice_client::wire::{AdminReply, AdminRequest, GroupTuning, PartitionId};
use coppice_server::local::{Cluster, LocalOptions, admin};

struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("coppice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The window that the leader of p1 allows itself.
fn window(cluster: &Cluster) -> u32 {
    let leader = cluster.leader_of(PartitionId(1)).expect("a leader");
    let node = cluster.node(leader.0 as usize - 1).expect("it runs");
    let text = node.metrics();
    let line = text.lines().find(|line| line.starts_with("coppice_window_limit{partition=\"p1\"}")).expect("a line");
    line.split(' ').nth(1).and_then(|value| value.parse().ok()).expect("a number")
}

/// Puts until `done`, for 20 s at most; whether it was.
fn load_until(client: &Client, done: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let put = |n: u64| Operation::Put { key: n.to_be_bytes().into(), value: n.to_be_bytes().into() };
        assert!(client.execute((0..2_000).map(put).collect()).into_iter().all(|result| result.is_ok()));
        if done() {
            return true;
        }
    }
    false
}

/// What the cluster says of the tuning of p1, whichever node is asked, and whether it is on.
fn tuning(cluster: &Cluster, node: usize) -> (bool, GroupTuning) {
    let request = AdminRequest::Tuning { local: false };
    match admin(cluster.endpoints()[node], request, Duration::from_secs(5)) {
        Ok(AdminReply::Tuning(mut report)) => {
            assert!(report.groups.is_sorted_by_key(|group| group.partition), "{report:?}");
            report.groups.retain(|group| group.partition == PartitionId(1));
            (report.on, report.groups.pop().expect("p1 is led"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_follows_the_load_and_the_settings_and_says_why() {
    let directory = Directory::new("autopilot");
    let settings = vec![("autopilot".into(), "on".into())];
    let cluster = Cluster::start_local(&LocalOptions { settings, ..LocalOptions::new(&directory.0) }).unwrap();
    let client = Client::connect(cluster.endpoints().iter().map(ToString::to_string)).unwrap();
    // On one machine hardly anything is ever on its way: a window of 16 is more than the model asks for.
    assert!(load_until(&client, || window(&cluster) != 16), "nothing was tuned in 20 s");
    for node in 0..cluster.endpoints().len() {
        let (on, told) = tuning(&cluster, node);
        let account = told.account.expect("it has measured enough to choose");
        assert_eq!((on, Some(told.leader)), (true, cluster.leader_of(PartitionId(1))));
        assert_eq!(account.advised, told.in_force, "what is advised is in force");
        // Key and value are 16 bytes; a pack of many adds a few to each.
        assert!((16.0..32.0).contains(&account.command_bytes), "{account:?}");
        assert!(account.round_trip_ms > 0.0 && account.predicted_throughput > 0.0, "{account:?}");
    }
    let set = |key: &str, value: &str| {
        let request = AdminRequest::ConfigSet { key: key.into(), value: value.into() };
        admin(cluster.endpoints()[0], request, Duration::from_secs(5)).unwrap();
    };
    // What is set stays.
    set("window", "7");
    assert!(load_until(&client, || window(&cluster) == 7), "a window that was set is not kept");
    // Off: the fixed values, and the advice all the same.
    set("autopilot", "off");
    set("window", "16");
    assert!(load_until(&client, || window(&cluster) == 16), "the fixed window is not back");
    let advises = || tuning(&cluster, 0).1.account.is_some_and(|account| account.advised.window != 16);
    assert!(load_until(&client, advises), "what it would choose is not said");
    let (on, told) = tuning(&cluster, 0);
    assert_eq!((on, told.in_force.window), (false, 16));
    let node = cluster.node(told.leader.0 as usize - 1).expect("it runs");
    let text = node.metrics();
    let shown = |value: &str, kind: &str| {
        let series = format!("coppice_autopilot{{partition=\"p1\",value=\"{value}\",kind=\"{kind}\"}} ");
        text.lines().any(|line| line.starts_with(&series))
    };
    assert!(shown("throughput", "predicted") && shown("throughput", "measured") && shown("window", "chosen"), "{text}");
}
