//! What operators see and do: metrics, logs, settings, leaderships, digests, files.

use crate::support::{Cluster, Said, eventually, run_at, signal};

fn parsed(said: &Said) -> serde_json::Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

fn json(said: &Said) -> serde_json::Value {
    assert_eq!(said.code, 0, "{said:?}");
    parsed(said)
}

/// The row of a partition in a status.
fn partition<'a>(status: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let rows = status["partitions"].as_array().expect("a list");
    rows.iter().find(|row| row["partition"] == name).expect("its row")
}

/// The value of one series on a page of metrics.
fn series(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn every_stage_queue_and_lag_is_measured_on_a_node_that_works() {
    let cluster = Cluster::formed(3, "");
    let client = cluster.client();
    for number in 0..200 {
        client.put(format!("k{number}").as_bytes(), &b"v"[..]).expect("done");
    }
    eventually("everything is published", || {
        let status = parsed(&cluster.run(&["status", "-o", "json"]));
        let Some(leader) = partition(&status, "p1")["leader"].as_str() else { return false };
        let index = leader.trim_start_matches('n').parse::<usize>().expect("a number") - 1;
        // Whoever has just taken over does so with a write.
        client.put(&b"k"[..], &b"v"[..]).expect("done");
        let page = cluster.page(index, "/metrics");
        let busy = ["receive", "order", "execute", "flush", "respond"]
            .iter()
            .all(|stage| series(&page, &format!("coppice_stage_busy_seconds_total{{stage=\"{stage}\"}}")) > Some(0.0));
        let followers = (1..=3).filter(|node| *node != index + 1);
        let lags = followers.clone().all(|node| {
            let labels = format!("{{partition=\"p1\",node=\"n{node}\"}}");
            series(&page, &format!("coppice_replica_lag_instances{labels}")).is_some()
                && series(&page, &format!("coppice_replica_lag_seconds{labels}")).is_some()
        });
        let queues = series(&page, "coppice_queue_depth{queue=\"connections\"}") >= Some(1.0)
            && ["mailbox", "batcher", "log", "peers", "replies", "scans", "inflight", "node_bytes"]
                .iter()
                .all(|queue| series(&page, &format!("coppice_queue_depth{{queue=\"{queue}\"}}")).is_some());
        busy && lags && queues && series(&page, "coppice_digest_mismatches_total") == Some(0.0)
    });
}

/// Commands and ranges inside one partition never meet the coordinator (papers.md D10): no letter is written for them.
#[test]
#[ignore = "long: processes that wait for each other"]
fn commands_inside_a_partition_write_no_letter() {
    let cluster = Cluster::formed(3, "g,n");
    let letters = || {
        let of = |index| {
            series(&cluster.page(index, "/metrics"), "coppice_multicast_messages_total").expect("it is counted")
        };
        (0..3).map(of).sum::<f64>()
    };
    let client = cluster.client();
    let work = |value: &'static [u8]| {
        for key in ["a", "h", "z"] {
            for number in 0..50 {
                let key = format!("{key}{number}");
                client.put(key.as_bytes(), value).expect("done");
                assert_eq!(client.get(key.as_bytes()).expect("done").output.as_deref(), Some(value));
            }
            let said = cluster.run(&["scan", &format!("{key}..{key}9")]);
            assert_eq!(said.code, 0, "{said:?}");
            assert_eq!(cluster.run(&["delete", &format!("{key}0")]).code, 0);
        }
    };
    work(b"1");
    let before = letters();
    work(b"2");
    assert_eq!(letters(), before);
    // What does cost letters is counted: a boundary is moved by a ticket.
    assert_eq!(cluster.run(&["partition", "split", "p1", "--at", "c", "--yes"]).code, 0);
    assert!(letters() > before);
}

#[test]
#[ignore = "long: processes that wait for each other"]
fn tolerated_failures_are_fresh_although_nobody_asks_for_the_status() {
    let mut cluster = Cluster::formed(3, "");
    let tolerated =
        |cluster: &Cluster, index: usize| series(&cluster.page(index, "/metrics"), "coppice_tolerated_failures");
    eventually("one may fail", || (0..3).all(|index| tolerated(&cluster, index) == Some(1.0)));
    cluster.kill(2);
    eventually("none may fail", || (0..2).all(|index| tolerated(&cluster, index) == Some(0.0)));
    cluster.kill(1);
    eventually("no quorum", || tolerated(&cluster, 0) == Some(-1.0));
    cluster.start(1, "ready");
    cluster.start(2, "ready");
    eventually("one may fail again", || (0..3).all(|index| tolerated(&cluster, index) == Some(1.0)));
}

#[test]
fn a_clean_start_logs_at_most_ten_lines() {
    let mut cluster = Cluster::formed(3, "g,n,t");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    // What a busy machine makes a node do while it starts slowly is no part of the start.
    let meanwhile = ["this node leads", "a node is", "slow flush", "slow request"];
    let of_start = |line: &&str| !meanwhile.iter().any(|what| line.contains(what));
    for index in 0..3 {
        let lines = cluster.log(index).lines().filter(of_start).count();
        assert!(lines <= 10, "forming: {}", cluster.log(index));
        assert!(cluster.stop(index).success());
        let before = cluster.log(index).lines().count();
        cluster.start(index, "ready");
        cluster.healthy();
        let log = cluster.log(index);
        let started: Vec<&str> = log.lines().skip(before).filter(of_start).collect();
        assert!(started.len() <= 10, "restarting: {started:#?}");
    }
}

#[test]
fn a_replica_that_stands_still_shows_how_long_it_is_behind() {
    let cluster = Cluster::formed(3, "");
    eventually("n1 leads", || cluster.run(&["leader", "transfer", "p1", "n1"]).code == 0);
    let client = cluster.client();
    // None while nobody leads.
    let lag = || -> Option<(u64, bool)> {
        let status = parsed(&cluster.run(&["status", "-o", "json"]));
        let replicas = partition(&status, "p1")["replicas"].as_array().expect("a list");
        let n3 = replicas.iter().find(|row| row["node"] == "n3").expect("n3");
        Some((n3["lag_ms"].as_u64()?, n3["up"] == true))
    };
    signal(cluster.pid(2), "STOP");
    eventually("the lag grows", || {
        client.put(&b"a"[..], &b"1"[..]).expect("two of three serve");
        lag().is_some_and(|(ms, _)| ms > 500)
    });
    signal(cluster.pid(2), "CONT");
    eventually("it catches up", || lag() == Some((0, true)));
}

#[test]
fn a_cluster_setting_is_changed_on_all_nodes_and_wrong_ones_are_refused() {
    let cluster = Cluster::formed(3, "");
    let rows = json(&cluster.run(&["config", "get", "window", "-o", "json"]));
    assert_eq!(rows["settings"][0]["origin"], "default", "{rows}");
    let said = cluster.run(&["config", "set", "window", "7", "-o", "table"]);
    assert_eq!((said.code, said.out.as_str()), (0, "ok  window = 7\n"), "{said:?}");
    for index in 0..3 {
        eventually("every node uses it", || {
            let rows = json(&cluster.run_at(index, &["config", "get", "window", "-o", "json"]));
            rows["settings"][0]["value"] == "7" && rows["settings"][0]["origin"] == "cluster"
        });
    }
    eventually("the core uses it", || {
        let page = cluster.page(0, "/metrics");
        series(&page, "coppice_window_limit{partition=\"p1\"}") == Some(7.0)
    });
    for (key, value, code) in
        [("windoww", "7", 4), ("window", "many", 2), ("election_timeout", "1ms", 2), ("sessions_max", "1", 2)]
    {
        let said = cluster.run(&["config", "set", key, value]);
        assert_eq!(said.code, code, "{said:?}");
        assert_eq!(said.err.lines().count(), 4, "{}", said.err);
    }
    let said = cluster.run(&["config", "get", "windoww"]);
    assert_eq!(said.code, 4, "{said:?}");
    assert!(said.err.contains("did you mean `window`?"), "{}", said.err);
}

#[test]
fn fewer_sessions_are_the_same_ones_on_a_node_that_restarts() {
    let mut cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["config", "set", "sessions_max", "4"]).code, 0);
    // Each program is a session.
    let writes = |cluster: &Cluster| (0..8).for_each(|_| assert_eq!(cluster.run(&["put", "a", "1"]).code, 0));
    writes(&cluster);
    cluster.kill(1);
    writes(&cluster);
    cluster.start(1, "ready");
    cluster.healthy();
    writes(&cluster);
    eventually("digests agree", || cluster.run(&["check", "replicas"]).code == 0);
    for index in 0..3 {
        assert!(!cluster.log(index).contains("replicas differ"), "{}", cluster.log(index));
    }
}

#[test]
fn a_leadership_goes_where_it_is_sent_and_every_node_is_asked_the_same() {
    let cluster = Cluster::formed(3, "m");
    for index in 0..3 {
        let to = format!("n{}", (index + 1) % 3 + 1);
        // On a busy machine the new leader may be late, then the old one goes on; or it is lost again at once.
        eventually("the leader is where it was sent", || {
            let said = cluster.run_at(index, &["leader", "transfer", "p2", &to, "-o", "json"]);
            if [3, 6].contains(&said.code) {
                return false;
            }
            let done = json(&said);
            assert_eq!((&done["done"], &done["to"]), (&true.into(), &to.as_str().into()), "{done}");
            let status = parsed(&cluster.run(&["status", "-o", "json"]));
            partition(&status, "p2")["leader"] == to.as_str()
        });
    }
    let said = cluster.run(&["leader", "transfer", "p9", "n1"]);
    assert_eq!(said.code, 4, "{said:?}");
    let said = cluster.run(&["leader", "transfer", "p2", "n9"]);
    assert_eq!(said.code, 4, "{said:?}");
    let planned = cluster.run(&["leader", "transfer", "p2", "n1", "--dry-run", "-o", "table"]);
    assert!(planned.out.starts_with("plan: p2 would go from n"), "{planned:?}");
}

#[test]
fn equal_replicas_are_verified_and_an_absent_one_is_named() {
    let mut cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    eventually("digests agree", || {
        let said = cluster.run(&["check", "replicas", "-o", "json"]);
        let agreed = |rows: &Vec<serde_json::Value>| rows.iter().any(|row| row["partition"] == "p1");
        said.code == 0 && parsed(&said)["agreed"].as_array().is_some_and(agreed)
    });
    cluster.kill(1);
    eventually("the one that is missing is named", || {
        let said = cluster.run(&["check", "replicas", "-o", "table"]);
        assert_ne!(said.code, 0, "{said:?}");
        said.code == 1 && said.err.contains("p1  no digest of n2")
    });
}

#[test]
fn the_files_of_a_stopped_node_can_be_read_and_stay_as_they_are() {
    let settings = ["--checkpoint-log-bytes=64KiB", "--log-disk-reserve=0"];
    let mut cluster = Cluster::formed_with(1, "m", &settings);
    let client = cluster.client();
    let dir = cluster.data_dir(0);
    // One that is being written has another name, and does not count.
    let is_whole = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
    let has_checkpoint = || {
        let entries = std::fs::read_dir(dir.join("checkpoints/p2"));
        entries.is_ok_and(|entries| entries.flatten().any(|entry| is_whole(&entry.file_name())))
    };
    eventually("a checkpoint is there", || {
        for number in 0..100 {
            client.put(format!("z{number}").as_bytes(), vec![b'v'; 2_000].as_slice()).expect("done");
        }
        has_checkpoint()
    });
    client.put(&b"apple"[..], &b"red"[..]).expect("done");
    assert!(cluster.stop(0).success());
    let sums = || {
        let script = format!("find {} -type f ! -name LOCK | sort | xargs md5sum", dir.display());
        std::process::Command::new("sh").args(["-c", &script]).output().expect("it runs").stdout
    };
    let before = sums();
    let path = dir.display().to_string();
    let said = crate::support::run(&["inspect", "log", &path, "--partition", "p1"]);
    assert_eq!(said.code, 0, "{said:?}");
    let lines: Vec<serde_json::Value> =
        said.out.lines().map(|line| serde_json::from_str(line).expect("json lines")).collect();
    assert!(lines.iter().all(|line| line["p"] == "p1"));
    let put = lines.iter().filter(|line| line["kind"] == "accept").find_map(|line| {
        let commands = line["batch"].as_array()?;
        commands.iter().find(|command| command["op"] == "put").cloned()
    });
    let put = put.expect("the write is in the log");
    assert_eq!((&put["k"], &put["v"]), (&"apple".into(), &"red".into()), "{put}");
    let said = crate::support::run(&["inspect", "checkpoint", &path]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("\"p\":\"p2\"") && !said.out.contains("\"ok\":false"), "{}", said.out);
    assert!(before == sums(), "something was changed");
    let said = crate::support::run(&["inspect", "log", "/nonexistent"]);
    assert_eq!((said.code, said.err.lines().count()), (2, 4), "{said:?}");
    cluster.start(0, "ready");
    assert_eq!(cluster.run(&["get", "apple"]).out, "red");
}

#[test]
fn sighup_rereads_the_log_level() {
    let mut cluster = Cluster::stopped(1, &[]);
    let file = cluster.scratch.path("node.toml");
    std::fs::write(&file, "log_level = \"info\"\n").expect("a file");
    let ours = cluster.command(0);
    let words: Vec<_> = ours.get_args().map(|word| if word == "/dev/null" { file.as_os_str() } else { word }).collect();
    let mut command = crate::support::program();
    command.args(words);
    cluster.start_as(0, command, "waiting for init");
    cluster.form("");
    std::fs::write(&file, "log_level = \"debug\"\n").expect("a file");
    signal(cluster.pid(0), "HUP");
    eventually("it is said", || {
        cluster.log(0).lines().any(|line| line.contains("settings reread") && line.contains("debug"))
    });
}

#[test]
fn a_slow_request_logs_the_time_of_each_stage() {
    let cluster = Cluster::formed_with(1, "", &["--slow-request=0s"]);
    assert_eq!(cluster.run(&["put", "secret-key", "1"]).code, 0);
    let is_wanted = |line: &&str| line.contains("slow request") && line.contains("op=put");
    // The answer may be quicker than the log.
    eventually("it is logged", || cluster.log(0).lines().any(|line| is_wanted(&line)));
    let log = cluster.log(0);
    let line = log.lines().find(is_wanted).expect("a line");
    for stage in
        ["took_ms=", "proposed_ms=", "executed_ms=", "decided_ms=", "released_ms=", "instance=", "partition=p1"]
    {
        assert!(line.contains(stage), "{stage} in {line}");
    }
    assert!(!log.contains("secret"), "no key is logged");
}

#[test]
fn scans_beyond_the_nodes_limit_wait_and_come_whole() {
    let cluster = Cluster::formed_with(1, "", &["--limits-scan-bytes=1B"]);
    let client = cluster.client();
    for number in 0..40 {
        client.put(format!("k{number:02}").as_bytes(), vec![b'v'; 100_000].as_slice()).expect("done");
    }
    let scans: Vec<_> = (0..4)
        .map(|_| {
            let endpoints = cluster.endpoints();
            std::thread::spawn(move || run_at(&endpoints, &["scan", "..", "--keys-only"], b""))
        })
        .collect();
    let values = cluster.run(&["scan", ".."]);
    assert_eq!((values.code, values.out.lines().count()), (0, 40), "{}", values.err);
    assert!(values.out.len() > 4_000_000);
    for scan in scans {
        let said = scan.join().expect("it ends");
        assert_eq!((said.code, said.out.lines().count()), (0, 40), "{}", said.err);
    }
}

#[test]
fn more_partitions_than_a_node_may_hold_are_refused() {
    let mut cluster = Cluster::stopped(1, &["--limits-partitions=3"]);
    cluster.start(0, "waiting for init");
    let said = cluster.run(&["init", "--partitions", "4"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("limits.partitions allows 3"), "{}", said.err);
    assert_eq!(cluster.run(&["init", "--partitions", "3"]).code, 0);
    cluster.healthy();
}

/// A setting that was said to be certainly not set was set as soon as the paused nodes went on; and a node was asked
/// for in vain for 30 s.
#[test]
#[ignore = "long: processes that wait for each other"]
fn without_a_quorum_a_change_is_unknown_if_it_was_sent_and_refused_if_it_was_not() {
    let cluster = Cluster::formed(3, "");
    for index in [1, 2] {
        crate::support::signal(cluster.pid(index), "STOP");
    }
    let said = cluster.run_at(0, &["config", "set", "window", "21", "--timeout", "1s"]);
    assert_eq!(said.code, 6, "{said:?}");
    assert!(said.err.starts_with("error: config set: outcome unknown: "), "{said:?}");
    for words in [&["node", "add", "127.0.0.1:1", "--yes"][..], &["partition", "split", "--to", "n2", "--yes"]] {
        let said = cluster.run_at(0, &[words, &["--timeout", "5s"]].concat());
        assert_eq!(said.code, 3, "{words:?}: {said:?}");
    }
    for index in [1, 2] {
        crate::support::signal(cluster.pid(index), "CONT");
    }
}

/// `partition split --to` on a node that does not exist failed, and had cut a partition.
#[test]
fn partitions_are_not_cut_for_a_node_that_does_not_exist() {
    let cluster = Cluster::formed(1, "");
    for key in ["a", "b", "c", "d"] {
        assert_eq!(cluster.run(&["put", key, "1"]).code, 0);
    }
    let partitions = || parsed(&cluster.run(&["status", "-o", "json"]))["partitions"].as_array().map(Vec::len);
    let before = partitions();
    let said = cluster.run(&["partition", "split", "--to", "n9", "--yes"]);
    assert!(said.code == 4 && said.err.contains("there is no node n9"), "{said:?}");
    assert_eq!(partitions(), before);
    let said = cluster.run(&["partition", "split", "--to", "n1", "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(partitions(), before.map(|count| count + 1));
}

/// The request was known to every node, and no command sent it.
#[test]
fn one_node_can_be_made_to_say_more() {
    let mut cluster = Cluster::formed(3, "");
    let said = cluster.run_at(2, &["node", "log-level", "n2", "info,coppice_server::net=debug", "-o", "table"]);
    assert_eq!((said.code, said.out.trim()), (0, "ok  n2 logs info,coppice_server::net=debug until it restarts"));
    cluster.kill(0);
    eventually("the link is lost loudly", || cluster.log(1).contains("DEBUG"));
    assert!(!cluster.log(2).contains("DEBUG"), "{}", cluster.log(2));
    for (words, code) in [(["n9", "debug"], 4), (["n2", "loud"], 2), (["x", "debug"], 2)] {
        let said = cluster.run_at(1, &[&["node", "log-level"], &words[..]].concat());
        assert_eq!(said.code, code, "{said:?}");
    }
}
