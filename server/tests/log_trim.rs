//! A node's log is shared by its groups and goes from its oldest end on. Story: groups that write little, the directory
//! above all, were never due for a checkpoint, so the log of a busy node grew until its disk was full.

mod common;

use std::path::Path;

use coppice_server::local::LocalOptions;

use common::cluster::{connect, formed};
use common::{Scratch, patience, wait_until};

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
    while written < 8 << 20 {
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
