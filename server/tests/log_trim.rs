//! A node's log is shared by its groups and goes from its oldest end on. Story: groups that write little, the directory
//! above all, were never due for a checkpoint, so the log of a busy node grew until its disk was full.

mod common;

use std::path::Path;

use common::cluster::{connect, formed};
use common::{Scratch, patience, wait_until};
use coppice_client::wire::PartitionId;
use coppice_core::replay::Replay;
use coppice_ordering::Instance;
use coppice_server::datadir::DataDir;
use coppice_server::local::LocalOptions;
use coppice_server::log::{Hooks, LogOptions};

fn log_bytes(node: &Path) -> u64 {
    let files = std::fs::read_dir(node.join("log")).unwrap().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

#[test]
fn the_log_of_a_busy_partition_goes_although_others_write_little() {
    let directory = Scratch::new("trim");
    let mut options = LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) };
    options.node.checkpoint.log_bytes = 64 << 10;
    options.node.log.segment_bytes = 64 << 10;
    let mut cluster = formed(&options);
    let client = connect(&cluster);
    // The first partition ends in the middle of all keys.
    let idle = &[0xf0, 1][..];
    client.put(idle, "idle").unwrap();
    let mut written = 0;
    while written < 3 << 20 {
        client.put("busy", &[7; 16 << 10][..]).unwrap();
        written += 16 << 10;
    }
    // Four times what is logged between two checkpoints, what comes meanwhile, and the newest segments.
    for node in ["n1", "n2", "n3"] {
        wait_until("the log goes", patience(), || {
            client.put("busy", "again").unwrap();
            log_bytes(&directory.0.join(node)) < 2 << 20
        });
    }
    // What stood alone is what a restart begins with.
    for at in 0..3 {
        cluster.stop(at);
    }
    for at in 0..3 {
        cluster.restart(at).unwrap();
    }
    let client = connect(&cluster);
    assert_eq!(client.get(idle).unwrap().output.as_deref(), Some(&b"idle"[..]));
    assert_eq!(client.get("busy").unwrap().output.as_deref(), Some(&b"again"[..]));
}

/// Seed 1113: the snapshot that a replica had installed rotted, its older checkpoint was whole, and the log between the
/// two said that a vote was decided which another ballot had overwritten.
#[test]
fn behind_an_installed_snapshot_the_log_says_that_nothing_below_it_counts() {
    let directory = Scratch::new("installed");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    options.node.log.segment_bytes = 256 << 10;
    let mut cluster = formed(&options);
    let client = connect(&cluster);
    client.put("a", "before").unwrap();
    let newest = |node: &str| {
        let names = std::fs::read_dir(directory.0.join(node).join("checkpoints/p1")).ok()?;
        names.filter_map(|name| name.ok()?.file_name().to_str()?.parse::<u64>().ok()).max()
    };
    cluster.stop(2);
    wait_until("both logs are trimmed", patience(), || {
        for n in 0..50 {
            client.put(format!("b{n}").as_bytes(), &[7; 2_000][..]).unwrap();
        }
        ["n1", "n2"].into_iter().all(|node| newest(node) >= Some(50))
    });
    assert_eq!(newest("n3"), None);
    cluster.restart(2).unwrap();
    wait_until("the third node took a snapshot", patience(), || newest("n3").is_some());
    let installed = newest("n3").map(Instance);
    // It may end between the snapshot and what is said of it: then the next start says it.
    cluster.stop(2);
    cluster.restart(2).unwrap();
    client.put("c", "behind it").unwrap();
    cluster.stop(2);
    let mut home = DataDir::open(&directory.0.join("n3")).unwrap();
    let hooks = Hooks { flushed: Box::new(|_| ()), failed: Box::new(|failure| panic!("{failure}")) };
    let opened =
        home.open_log(Replay::default(), LogOptions { disk_reserve_bytes: 0, ..LogOptions::default() }, hooks).unwrap();
    assert!(opened.replay.groups[&PartitionId(1)].trimmed >= installed, "not trimmed up to {installed:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn an_install_that_trims_nothing_is_caught() {
    let test = "behind_an_installed_snapshot_the_log_says_that_nothing_below_it_counts";
    common::assert_caught("install_trims_nothing", test);
}
