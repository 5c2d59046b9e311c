//! A rolling upgrade from the version before, back, and again, under load; then the feature level, from which there is
//! no way back. `COPPICE_BEFORE` names the program of the version before (`.ci/run upgrade` builds it).

use std::process::{Command, Stdio};

use crate::common::cluster::Writer;
use crate::support::{Cluster, Said, eventually, program};

/// The other program, told the same.
fn before(command: &Command) -> Command {
    let path = std::env::var_os("COPPICE_BEFORE").expect("COPPICE_BEFORE names the program of the version before");
    let mut other = Command::new(path);
    other.args(command.get_args()).env_remove("COPPICE_BEFORE");
    other
}

fn start_before(cluster: &mut Cluster, index: usize, word: &str) {
    let command = before(&cluster.command(index));
    cluster.start_as(index, command, word);
}

/// Runs a verb of the version before to its end.
fn run_before(cluster: &Cluster, words: &[&str]) -> Said {
    let mut command = program();
    command.args(["--endpoints", &cluster.endpoints(), "--timeout", "20s"]).args(words);
    let output = before(&command).stdin(Stdio::null()).output().expect("the program starts");
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// What a node's directory says that may open it.
fn format_of(cluster: &Cluster, index: usize) -> String {
    std::fs::read_to_string(cluster.data_dir(index).join("VERSION")).expect("it has one")
}

fn feature_level(cluster: &Cluster) -> String {
    let said = cluster.run(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&said.out).expect("a status");
    status["feature_level"].to_string()
}

/// Restarts nodes one by one as `start` does it, while `writer` writes.
fn roll(cluster: &mut Cluster, writer: &Writer, nodes: &[usize], start: impl Fn(&mut Cluster, usize)) {
    for &index in nodes {
        writer.goes_on(50);
        assert!(cluster.stop(index).success(), "{}", cluster.log(index));
        writer.goes_on(50);
        start(cluster, index);
        cluster.healthy();
    }
    writer.goes_on(200);
}

#[test]
#[ignore = "long: an upgrade of three nodes, by the program of the version before"]
fn a_rolling_upgrade_loses_nothing_and_there_is_a_way_back_until_the_level_is_raised() {
    let mut cluster = Cluster::stopped(4, &[]);
    cluster.set_seeds(3);
    (0..3).for_each(|index| start_before(&mut cluster, index, "waiting for init"));
    cluster.form("4,8,c");
    assert_eq!(feature_level(&cluster), "1");
    let writer = Writer::of(cluster.client());
    let own = |cluster: &mut Cluster, index: usize| cluster.start(index, "ready");
    let old = |cluster: &mut Cluster, index: usize| start_before(cluster, index, "ready");

    // Forward with one node, which may lead, be asked for a range and change the map; and with the next one.
    roll(&mut cluster, &writer, &[0, 1], own);
    for words in [&["leader", "transfer", "p1", "n1"], &["leader", "transfer", "p2", "n3"]] {
        eventually("leaders move between versions", || cluster.run(words).code == 0);
    }
    eventually("a partition is split", || cluster.run(&["partition", "split", "--at", "e", "--yes"]).code == 0);
    assert_eq!(cluster.run(&["scan", "..", "--count"]).code, 0);
    assert_eq!(run_before(&cluster, &["scan", "..", "--count"]).code, 0, "an older client");
    // Nobody can be left behind.
    let refused = cluster.run(&["config", "set", "feature_level", "2", "--yes"]);
    assert!(refused.code != 0 && refused.err.contains("n3"), "{refused:?}");
    // Back with one of them, and forward with all.
    roll(&mut cluster, &writer, &[1], old);
    roll(&mut cluster, &writer, &[1, 2], own);
    assert_eq!(feature_level(&cluster), "1");
    assert!((0..3).all(|index| format_of(&cluster, index) == "coppice data directory 2\n"));

    eventually("the level is raised", || {
        let said = cluster.run(&["config", "set", "feature_level", "2", "--yes"]);
        println!("{said:?}");
        said.code == 0
    });
    assert_eq!(feature_level(&cluster), "2");
    assert!((0..3).all(|index| format_of(&cluster, index) == "coppice data directory 3\n"));
    let lowered = cluster.run(&["config", "set", "feature_level", "1", "--yes"]);
    assert!(lowered.code != 0 && lowered.err.contains("at least 2"), "{lowered:?}");
    // An older program refuses the directory, and leaves it as it is.
    writer.goes_on(50);
    assert!(cluster.stop(1).success(), "{}", cluster.log(1));
    let mut older = before(&cluster.command(1));
    let refused = older.stdin(Stdio::null()).output().expect("the program starts");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("coppice data directory 3"), "{text}");
    own(&mut cluster, 1);
    // Nor does it become a new node.
    start_before(&mut cluster, 3, "waiting for init");
    let address = format!("127.0.0.1:{}", cluster.peer_port(3));
    let refused = cluster.run(&["node", "add", &address, "--yes"]);
    assert!(refused.code != 0 && refused.err.contains("protocol"), "{refused:?}");
    cluster.kill(3);
    // What was written by whichever version is there, on all replicas, also after a crash of all.
    writer.goes_on(200);
    assert_eq!(run_before(&cluster, &["get", "nokey"]).code, 4, "an older client");
    let longest = writer.check_with(&cluster.client());
    println!("no write waited longer than {longest:?}");
    (0..3).for_each(|index| cluster.kill(index));
    (0..3).for_each(|index| own(&mut cluster, index));
    cluster.healthy();
    // Digests are compared where instances come to this number.
    assert_eq!(cluster.run(&["config", "set", "digest_interval", "10"]).code, 0);
    eventually("the replicas agree", || {
        let wrote = ["a", "5", "9", "d", "f"].iter().all(|key| cluster.run(&["put", key, "again"]).code == 0);
        let said = cluster.run(&["check", "replicas"]);
        println!("{said:?}");
        wrote && said.code == 0
    });
}
