//! A node of another cluster serves at the address of a node of this one: addresses are used again, and ports have
//! defaults. The clusters have different shapes, so that whatever passes from one to the other shows.

use std::process::Command;

use crate::support::{Cluster, eventually, program};

/// A cluster of one node and nine partitions, with a map of a higher version than that of any cluster just formed.
fn stranger() -> Cluster {
    let cluster = Cluster::formed(1, "b,d,f,h");
    for number in 0..40 {
        assert_eq!(cluster.run(&["put", &format!("k{number:02}"), "foreign"]).code, 0);
        assert_eq!(cluster.run(&["put", &format!("a{number:02}"), "foreign"]).code, 0);
    }
    for boundary in ["y", "w", "t", "m"] {
        assert_eq!(cluster.run(&["partition", "split", "p5", "--at", boundary, "--yes"]).code, 0);
    }
    cluster
}

/// Starts the first node of `stranger`, which is down, at the ports of a node of `cluster` that is down too.
fn take_place(cluster: &mut Cluster, index: usize, stranger: &Cluster) {
    let local = |port: u16| format!("127.0.0.1:{port}");
    let (native, peer) = (cluster.native_port(index), cluster.peer_port(index));
    let mut command: Command = program();
    command.args(["serve", "--config", "/dev/null", "--log-format", "pretty"]);
    command.args(["--end-with", &std::process::id().to_string(), "--data-dir"]).arg(stranger.data_dir(0));
    command.args(["--seeds", &local(peer), "--listen-native", &local(native), "--listen-peer", &local(peer)]);
    command.args(["--listen-admin", &local(cluster.admin_port(index)), "--listen-resp", "off"]);
    cluster.start_as(index, command, "ready");
}

fn puts(cluster: &Cluster, value: &str) {
    for key in ["a00", "a1", "k00", "k1", "z"] {
        assert_eq!(cluster.run_at(1, &["put", key, value]).code, 0);
    }
}

fn holds(cluster: &Cluster, index: usize, value: &str) {
    for key in ["a00", "a1", "k00", "k1", "z"] {
        let said = cluster.run_at(index, &["get", key]);
        assert_eq!((said.code, said.out.as_str()), (0, value), "{key} at n{}: {}", index + 1, said.err);
    }
    assert_eq!(cluster.run_at(index, &["get", "k07"]).code, 4, "a key that only the other cluster has");
}

/// A learner once took its first snapshot from whoever answered at a voter's address, and became a voter with it: what
/// was answered before was gone.
#[test]
#[ignore = "long: processes that wait for each other"]
fn a_snapshot_of_another_cluster_is_never_taken() {
    let mut stranger = stranger();
    let mut cluster = Cluster::formed_beside(3, 1, "m");
    puts(&cluster, "ours");
    assert!(stranger.stop(0).success());
    cluster.kill(0);
    take_place(&mut cluster, 0, &stranger);
    let waiting = format!("127.0.0.1:{}", cluster.peer_port(3));
    eventually("the dead node is replaced", || {
        let said = cluster.run_at(1, &["node", "replace", "n1", &waiting, "--yes"]);
        assert!([0, 3, 6].contains(&said.code), "{said:?}");
        said.code == 0
    });
    eventually("the replacement votes", || cluster.run_at(1, &["status"]).code == 0);
    assert_eq!(cluster.run_at(1, &["check", "replicas"]).code, 0, "all replicas are equal");
    // With it two of three.
    cluster.kill(1);
    eventually("two of three serve", || cluster.run_at(2, &["get", "a00", "--timeout", "5s"]).code == 0);
    holds(&cluster, 3, "ours");
    assert!(cluster.log(0).contains("you belong to cluster"), "the stranger says whom it refuses");
}

/// A node without the directory once asked whoever answered at another one's address for a newer map, adopted it within
/// seconds, and removed its replicas.
#[test]
#[ignore = "long: processes that wait for each other"]
fn a_map_of_another_cluster_is_never_adopted() {
    let mut stranger = stranger();
    let mut cluster = Cluster::formed(4, "e,m,t");
    puts(&cluster, "ours");
    assert!(stranger.stop(0).success());
    cluster.kill(2);
    take_place(&mut cluster, 2, &stranger);
    // The fourth has no replica of the directory, and asks the others in turn.
    let asked = || cluster.log(2).lines().filter(|line| line.contains("you belong to cluster")).count();
    eventually("the stranger was asked by all others, again and again", || asked() >= 3);
    for index in [0, 1, 3] {
        let status = cluster.run_at(index, &["status", "-o", "json"]).out;
        let status: serde_json::Value = serde_json::from_str(&status).expect("json");
        assert_eq!(status["partitions"].as_array().map(Vec::len), Some(5), "n{}: {status}", index + 1);
        holds(&cluster, index, "ours");
    }
}
