//! The autopilot on a real cluster in one process: settings change under load, keep to what was set, and fall back to
//! the fixed ones when it is switched off (ordering.md 9).

use std::time::{Duration, Instant};

use coppice_client::Operation;
use coppice_client::blocking::Client;
use coppice_client::wire::{AdminRequest, PartitionId};
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

fn load_until(client: &Client, cluster: &Cluster, wanted: impl Fn(u32) -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let put = |n: u64| Operation::Put { key: n.to_be_bytes().into(), value: n.to_be_bytes().into() };
        assert!(client.execute((0..2_000).map(put).collect()).into_iter().all(|result| result.is_ok()));
        if wanted(window(cluster)) {
            return true;
        }
    }
    false
}

#[test]
fn a_window_follows_the_load_and_the_settings() {
    let directory = Directory::new("autopilot");
    let settings = vec![("autopilot".into(), "on".into())];
    let cluster = Cluster::start_local(&LocalOptions { settings, ..LocalOptions::new(&directory.0) }).unwrap();
    let client = Client::connect(cluster.endpoints().iter().map(ToString::to_string)).unwrap();
    // On one machine hardly anything is ever on its way: a window of 16 is more than the model asks for.
    assert!(load_until(&client, &cluster, |window| window != 16), "nothing was tuned in 20 s");
    let set = |key: &str, value: &str| {
        let request = AdminRequest::ConfigSet { key: key.into(), value: value.into() };
        admin(cluster.endpoints()[0], request, Duration::from_secs(5)).unwrap();
    };
    // What is set stays.
    set("window", "7");
    assert!(load_until(&client, &cluster, |window| window == 7), "a window that was set is not kept");
    // Off: the fixed values.
    set("autopilot", "off");
    set("window", "16");
    assert!(load_until(&client, &cluster, |window| window == 16), "the fixed window is not back");
}
