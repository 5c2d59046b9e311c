//! Settings of a running cluster as an operator meets them: explained, returned to their defaults; and another number
//! of replicas, planned, agreed to and watched.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::{Cluster, Said, eventually, run};

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).expect("one object")
}

#[test]
fn a_setting_is_explained_with_its_value_and_returns_to_its_default() {
    let cluster = Cluster::formed(1, "");
    assert_eq!(cluster.run(&["config", "set", "window", "7"]).code, 0);
    let said = cluster.run(&["config", "describe", "window", "-o", "table"]);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines[0], "window: instances that may be undecided", "{said:?}");
    assert_eq!(lines[1..4], ["  value    7, from: cluster", "  default  16", "  range    1 to 4096"]);
    let said = cluster.run(&["config", "unset", "window", "--dry-run", "-o", "table"]);
    assert_eq!((said.code, said.out.as_str()), (0, "plan: window = 16, was 7\n"));
    let said = cluster.run(&["config", "unset", "window", "-o", "table"]);
    assert_eq!((said.code, said.out.as_str()), (0, "ok  window = 16, its default\n"), "{said:?}");
    eventually("it is at its default", || {
        cluster.run(&["config", "get", "window", "-o", "table"]).out == "window = 16  # default\n"
    });
    let described = json(&cluster.run(&["config", "describe", "data_dir", "-o", "json"]));
    let row = &described["settings"][0];
    assert_eq!(
        (&row["of"], &row["origin"], &row["change"]),
        (&"node".into(), &"flag --data-dir".into(), &"restart".into())
    );
    assert_eq!(described["answered_by"], "n1");
    // All of them, of the cluster and of a node.
    let all = json(&cluster.run(&["config", "describe", "-o", "json"]));
    assert!(all["settings"].as_array().expect("a list").iter().all(|row| row["value"].is_string()), "{all}");
}

#[test]
fn a_name_that_the_cluster_does_not_know_is_told_apart_from_one_of_a_node() {
    let cluster = Cluster::formed(1, "");
    for words in [&["get", "windw"][..], &["describe", "windw"], &["set", "windw", "7"], &["unset", "windw"]] {
        let said = cluster.run(&[&["config"], words].concat());
        assert!(said.code == 4 && said.err.contains("did you mean `window`?"), "{said:?}");
        assert!(said.err.ends_with("try:   coppice config describe window\n"), "{said:?}");
    }
    for words in [&["set", "log.flush", "off"][..], &["unset", "log.flush"]] {
        let said = cluster.run(&[&["config"], words].concat());
        assert!(said.code == 4 && said.err.contains("`log.flush` is a setting of each node"), "{said:?}");
    }
    // What a setting means needs no node.
    let said =
        run(&["--endpoints", "127.0.0.1:1", "--timeout", "200ms", "config", "describe", "log.flush", "-o", "table"]);
    assert!(said.code == 0 && said.out.contains("  range    fdatasync, off\n"), "{said:?}");
    assert!(said.err.contains("values are left out"), "{said:?}");
}

#[test]
#[ignore = "long: replicas come and go on five nodes"]
fn replicas_come_and_go_while_clients_write() {
    let mut cluster = Cluster::formed(5, "m");
    let set = |cluster: &Cluster, count: &str| {
        let said = cluster.run(&["config", "set", "replicas", count, "--yes", "-o", "table", "--timeout", "60s"]);
        assert_eq!(said.code, 0, "{said:?}");
        said
    };
    // Nobody agreed, and a plan alone changes nothing.
    for (how, code) in [("--dry-run", 0), ("--quiet", 2)] {
        assert_eq!(cluster.run(&["config", "set", "replicas", "5", how]).code, code);
    }
    assert_eq!(cluster.run(&["config", "get", "replicas", "-o", "table"]).out, "replicas = 3  # default\n");
    let (client, ends) = (cluster.client(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            for number in 0_u64.. {
                for key in [&b"a"[..], b"z"] {
                    client.put(key, number.to_be_bytes().to_vec()).expect("a write is served");
                }
                if ends.load(Ordering::Relaxed) {
                    return number;
                }
            }
            0
        });
        let said = set(&cluster, "5");
        assert!(said.err.contains("plan: 6 replicas to come: p0 p1 p2"), "{said:?}");
        assert!(said.out.starts_with("replicas = 5, as many as each group has; map version"), "{said:?}");
        let said = set(&cluster, "3");
        assert!(
            said.err.contains("warning: each group survives the loss of 1 node afterwards, instead of 2"),
            "{said:?}"
        );
        cluster.kill(4);
        set(&cluster, "1");
        cluster.start(4, "ready");
        let said = cluster.run(&["config", "unset", "replicas", "--yes", "-o", "table", "--timeout", "60s"]);
        assert!(said.code == 0 && said.out.starts_with("replicas = 3, as many as each group has"), "{said:?}");
        ends.store(true, Ordering::Relaxed);
        assert!(writes.join().expect("no write failed") > 0);
    });
    let status = cluster.run(&["status", "-o", "table"]);
    assert!(status.out.starts_with("healthy: survives the loss of any 1 node"), "{status:?}");
    eventually("digests agree", || cluster.run(&["check", "replicas"]).code == 0);
    let said = cluster.run(&["config", "set", "replicas", "7", "--yes", "-o", "table"]);
    assert!(said.err.contains("warning: too few nodes answer and have room for 7 replicas"), "{said:?}");
    let status = cluster.run(&["status", "-o", "table"]);
    assert!(status.out.contains("warning: replicas = 7: p0 p1 p2 lack replicas"), "{status:?}");
}
