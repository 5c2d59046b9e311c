//! A copy of a data directory comes back in the place of the directory: a node that forgot what it promised. The copies
//! here were taken while the node was stopped, one life before: all that the node counts is as it was then.

use std::path::Path;

use crate::support::{Cluster, eventually, signal};

fn copy(from: &Path, to: &Path) {
    _ = std::fs::remove_dir_all(to);
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(copied.success());
}

/// Stops a node, copies its directory, and starts it again.
fn copied_while_stopped(cluster: &mut Cluster, index: usize) {
    cluster.stop(index);
    copy(&cluster.data_dir(index), &cluster.scratch.path("copy"));
    cluster.start(index, "ready");
    cluster.healthy();
}

/// The copy takes the place of the directory of a node that is stopped.
fn put_back(cluster: &Cluster, index: usize) {
    copy(&cluster.scratch.path("copy"), &cluster.data_dir(index));
}

/// The node hears that it is a copy, says so with the command that comes next, and goes on saying so.
#[track_caller]
fn finds_out(cluster: &Cluster, index: usize) {
    let next = format!("coppice node replace n{} 127.0.0.1:{}", index + 1, cluster.peer_port(index));
    eventually("the node says that it is a copy", || {
        cluster.log(index).lines().any(|line| line.contains("copy of its data directory") && line.contains(&next))
    });
    let status = cluster.page(index, "/status");
    assert!(status.contains("takes part in nothing") && status.contains(&next), "{status}");
}

fn answers(cluster: &Cluster, key: &str, value: &str) -> bool {
    let said = cluster.run(&["get", key, "--timeout", "2s"]);
    assert!(said.code != 0 || said.out == value, "{key} is {said:?}, not {value}");
    said.code == 0
}

#[test]
#[ignore = "long: several starts"]
fn px12_a_copy_put_back_one_start_later_takes_part_in_nothing() {
    let mut cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["put", "a", "before"]).code, 0);
    copied_while_stopped(&mut cluster, 2);
    for number in 0..20 {
        assert_eq!(cluster.run(&["put", "a", &number.to_string()]).code, 0);
    }
    cluster.stop(2);
    put_back(&cluster, 2);
    cluster.start(2, "ready");
    finds_out(&cluster, 2);
    eventually("the others say so too", || cluster.run_at(0, &["status"]).out.contains("n3 is not let in"));
    assert!(answers(&cluster, "a", "19"));
    // With one node more away it is no part of a quorum.
    cluster.kill(1);
    assert_ne!(cluster.run(&["put", "b", "1", "--timeout", "2s"]).code, 0);
    cluster.start(1, "ready");
    eventually("the two others go on", || answers(&cluster, "a", "19"));
}

/// It was told once: later it says so by itself, where nobody is left to tell.
#[test]
fn px12_a_copy_that_was_told_takes_part_in_nothing_when_it_starts_again() {
    let mut cluster = Cluster::formed(3, "");
    copied_while_stopped(&mut cluster, 2);
    cluster.stop(2);
    put_back(&cluster, 2);
    cluster.start(2, "ready");
    finds_out(&cluster, 2);
    for index in 0..3 {
        cluster.kill(index);
    }
    cluster.start(2, "ready");
    eventually("it knows", || cluster.page(2, "/status").contains("takes part in nothing"));
}

/// Every process that met the real node has ended since: what they wrote down tells.
#[test]
fn px12_a_copy_is_known_by_nodes_that_all_restarted_meanwhile() {
    let mut cluster = Cluster::formed(3, "");
    copied_while_stopped(&mut cluster, 2);
    assert_eq!(cluster.run(&["put", "a", "after"]).code, 0);
    for index in 0..3 {
        cluster.stop(index);
    }
    put_back(&cluster, 2);
    for index in [2, 0, 1] {
        cluster.start(index, "ready");
    }
    finds_out(&cluster, 2);
    eventually("the two others go on", || answers(&cluster, "a", "after"));
}

/// n1 and n2 answer for writes while n3 stands still; then n1 is dead, n2 is a copy, and n3 goes on.
#[test]
#[ignore = "long: several lives"]
fn px12_writes_that_a_copy_has_forgotten_are_not_lost() {
    let mut cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["put", "w0", "before"]).code, 0);
    copied_while_stopped(&mut cluster, 1);
    signal(cluster.pid(2), "STOP");
    for number in 1..=5 {
        let key = format!("w{number}");
        eventually("the write is answered", || cluster.run(&["put", &key, "kept", "--timeout", "5s"]).code == 0);
    }
    cluster.kill(1);
    cluster.kill(0);
    put_back(&cluster, 1);
    cluster.start(1, "ready");
    signal(cluster.pid(2), "CONT");
    finds_out(&cluster, 1);
    assert_ne!(cluster.run(&["put", "x", "1", "--timeout", "2s"]).code, 0, "a copy is a part of a quorum");
    cluster.start(0, "ready");
    for number in 1..=5 {
        let key = format!("w{number}");
        eventually("the write is there", || answers(&cluster, &key, "kept"));
    }
}
