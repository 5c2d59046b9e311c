//! Nodes as processes: forming, dying, coming back, and what is refused.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{Cluster, Scratch, eventually, lives, patience, program, run, signal};

#[test]
fn a_cluster_is_formed_once() {
    let cluster = Cluster::waiting(3);
    let said = cluster.run(&["status"]);
    assert_eq!(said.code, 3, "{said:?}");
    eventually("it is said what is missing", || {
        let said = cluster.run(&["get", "apple", "--timeout", "500ms"]);
        assert_eq!(said.code, 3, "{said:?}");
        said.err.ends_with("try:   coppice init\n")
    });
    let said = cluster.run(&["init", "--partitions", "2", "-o", "table"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.out.starts_with("formed: cluster ") && said.out.ends_with(", 3 nodes, 2 partitions\n"),
        "{}",
        said.out
    );
    let said = cluster.run(&["init"]);
    assert_eq!((said.code, said.out.as_str()), (5, ""), "{said:?}");
    assert!(said.err.starts_with("error: init: "));
    let said = cluster.run(&["init", "--if-needed", "-o", "table"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.starts_with("exists already: "), "{}", said.out);
    cluster.healthy();
    eventually("the table says that all is well", || {
        let said = cluster.run(&["status", "-o", "table"]);
        said.out.starts_with("healthy: survives the loss of any 1 node\nnodes       n1 up  n2 up  n3 up    ")
    });
    eventually("so does JSON", || {
        let said = cluster.run(&["status", "-o", "json"]);
        let json: serde_json::Value = serde_json::from_str(&said.out).expect("json");
        (&json["health"], &json["tolerated_failures"]) == (&"healthy".into(), &1.into())
    });
}

#[test]
fn any_node_takes_any_verb() {
    let cluster = Cluster::formed(3, "m");
    for index in 0..3 {
        for key in ["a", "z"] {
            let said = cluster.run_at(index, &["put", key, &index.to_string()]);
            assert_eq!(said.code, 0, "{said:?}");
            assert_eq!(cluster.run_at(index, &["get", key]).out, index.to_string());
        }
    }
}

/// The others dial it at its old port, so it hears of no leader; it gave up after ten seconds, for good.
#[test]
fn a_node_that_listens_elsewhere_after_a_restart_is_found_there() {
    let mut cluster = Cluster::formed_beside(3, 1, "m");
    cluster.kill(2);
    cluster.kill(3);
    let [before, elsewhere] = [2, 3].map(|index| format!("127.0.0.1:{}", cluster.peer_port(index)));
    let mut command = program();
    let words = cluster.command(2);
    let words = words.get_args().map(|word| if *word == *before { elsewhere.as_ref() } else { word });
    command.args(words);
    cluster.start_as(2, command, "ready");
    cluster.healthy();
    cluster.kill(0);
    eventually("the other two are a majority", || cluster.run(&["put", "apple", "red"]).code == 0);
}

#[test]
fn those_who_form_a_cluster_at_once_get_the_same_one() {
    let cluster = Cluster::waiting(3);
    let said: Vec<_> = std::thread::scope(|scope| {
        let inits = ["2", "3", "4"].map(|count| {
            let words = ["init", "--partitions", count, "--if-needed", "-o", "json", "--timeout", "30s"];
            let cluster = &cluster;
            scope.spawn(move || cluster.run(&words))
        });
        inits.map(|init| init.join().expect("no panic")).into()
    });
    let formed: Vec<serde_json::Value> =
        said.iter().map(|said| serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"))).collect();
    assert!(said.iter().all(|said| said.code == 0), "{said:?}");
    assert!(formed.iter().all(|json| json["cluster"] == formed[0]["cluster"]), "{said:?}");
    cluster.healthy();
}

#[test]
fn a_killed_node_is_missed_named_and_taken_back() {
    let mut cluster = Cluster::formed(3, "m");
    for victim in 0..3 {
        cluster.kill(victim);
        // Whatever it led is led by another one before the deadline of one call.
        for key in ["a", "z"] {
            let said = cluster.run(&["put", key, &format!("without {victim}")]);
            assert_eq!(said.code, 0, "{said:?}");
        }
        let sentence = format!("degraded: survives the loss of 0 more nodes until n{} is back\n", victim + 1);
        eventually("the status names who is missing", || {
            let said = cluster.run(&["status", "-o", "table"]);
            assert_ne!(said.code, 0, "{said:?}");
            said.code == 1 && said.out.starts_with(&sentence)
        });
        cluster.start(victim, "ready");
        cluster.healthy();
    }
    assert_eq!(cluster.run(&["get", "a"]).out, "without 2");
}

#[test]
fn every_acknowledged_write_survives_the_death_of_all_nodes() {
    let mut cluster = Cluster::formed(3, "m");
    let mut acknowledged = Vec::new();
    for round in 0..2 {
        for number in 0..10 {
            let key = format!("{}{round}.{number:02}", if number % 2 == 0 { 'a' } else { 'z' });
            assert_eq!(cluster.run(&["put", &key, &key]).code, 0);
            acknowledged.push(key);
        }
        (0..3).for_each(|index| cluster.kill(index));
        let said = cluster.run(&["put", "refused", "1", "--timeout", "300ms"]);
        assert_eq!(said.code, 3, "nobody can have taken it: {said:?}");
        (0..3).for_each(|index| cluster.start(index, "ready"));
        cluster.healthy();
        for key in &acknowledged {
            let said = cluster.run(&["get", key]);
            assert_eq!((said.code, said.out.as_str()), (0, key.as_str()), "{}", said.err);
        }
        assert_eq!(cluster.run(&["get", "refused"]).code, 4);
    }
}

#[test]
fn without_a_quorum_a_write_is_never_called_done() {
    let mut cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    cluster.kill(0);
    cluster.kill(1);
    let put = cluster.run(&["put", "a", "2", "--timeout", "1s"]);
    assert!([3, 6].contains(&put.code), "{put:?}");
    assert_eq!(put.err.lines().count(), 4);
    let said = cluster.run(&["status", "--timeout", "2s"]);
    assert_eq!(said.code, 3, "{said:?}");
    cluster.start(0, "ready");
    cluster.start(1, "ready");
    cluster.healthy();
    let value = cluster.run(&["get", "a"]).out;
    // Unknown is unknown; what certainly failed is not there.
    assert!(value == "1" || (put.code == 6 && value == "2"), "{value} after {put:?}");
}

#[test]
fn an_orderly_stop_exits_0_and_loses_nothing() {
    let mut cluster = Cluster::formed(3, "m");
    for index in 0..3 {
        assert_eq!(cluster.run(&["put", &format!("a{index}"), "1"]).code, 0);
        assert!(cluster.stop(index).success(), "{}", cluster.log(index));
        cluster.start(index, "ready");
        cluster.healthy();
    }
    for index in 0..3 {
        assert_eq!(cluster.run(&["get", &format!("a{index}")]).out, "1");
    }
}

#[test]
#[ignore = "long: waits for what is paused"]
fn a_paused_node_is_missed_and_comes_back_right() {
    let cluster = Cluster::formed(3, "");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
    for index in 0..3 {
        signal(cluster.pid(index), "STOP");
        let said = cluster.run(&["put", "a", &index.to_string()]);
        assert_eq!(said.code, 0, "{said:?}");
        eventually("the pause is seen", || cluster.run(&["status"]).code == 1);
        signal(cluster.pid(index), "CONT");
        // Asked of the one that slept: it must not answer from its dreams.
        assert_eq!(cluster.run_at(index, &["get", "a"]).out, index.to_string());
        cluster.healthy();
    }
}

#[test]
fn a_second_process_on_the_same_directory_is_refused_and_told_the_first() {
    let cluster = Cluster::formed(1, "");
    let mut command = cluster.command(0);
    command.args(["--listen-native=127.0.0.1:0"]);
    let mut words = vec!["serve".to_owned(), "--config".to_owned(), "/dev/null".to_owned(), "--data-dir".to_owned()];
    words.push(cluster.data_dir(0).display().to_string());
    for listen in ["--listen-native", "--listen-peer", "--listen-resp", "--listen-admin"] {
        words.extend([listen.to_owned(), "127.0.0.1:0".to_owned()]);
    }
    let said = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
    assert!(said.err.contains(&cluster.pid(0).to_string()), "{}", said.err);
    let four: Vec<&str> = said.err.lines().rev().take(4).collect();
    assert!(four[3].starts_with("error: serve: ") && four[0].starts_with("try: "), "{}", said.err);
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
}

#[test]
fn garbage_at_the_port_is_answered_and_the_node_goes_on() {
    let cluster = Cluster::formed(1, "");
    let memory = || resident_kib(cluster.pid(0));
    let before = memory();
    let garbage: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0xff; 64], &[0; 64], b"\xff\xff\xff\x7f\0\0\0\0\x01\0\0\0\0\0\0\0"];
    for _ in 0..50 {
        for bytes in garbage {
            let mut stream = TcpStream::connect(("127.0.0.1", cluster.native_port(0))).expect("it listens");
            stream.set_read_timeout(Some(patience())).expect("a socket");
            let _ = stream.write_all(bytes);
            let mut answer = Vec::new();
            // Closed, perhaps with a reset; never left open.
            if let Err(error) = stream.read_to_end(&mut answer) {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "left open");
            }
        }
    }
    let after = memory();
    assert!(after < before + 16 * 1024, "memory grew from {before} KiB to {after} KiB");
    assert_eq!(cluster.run(&["put", "a", "1"]).code, 0);
}

#[test]
fn the_admin_port_tells_health_and_the_same_status() {
    let cluster = Cluster::formed(1, "");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.admin_port(0))).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    assert!(get("/livez").starts_with("HTTP/1.1 200"));
    eventually("the node is ready", || get("/readyz").starts_with("HTTP/1.1 200"));
    eventually("the status is told there too", || {
        let status = get("/status");
        let (_, body) = status.split_once("\r\n\r\n").expect("a body");
        let json: serde_json::Value = serde_json::from_str(body).expect("json");
        assert_eq!(json["v"], 1, "{body}");
        json["sentence"] == "degraded: 1 of 3 replicas; survives the loss of 0 more nodes"
    });
    let mut command = program();
    command.args(["status", "--local", "--timeout", "60s"]).env("COPPICE_DATA_DIR", cluster.data_dir(0));
    eventually("the local status is good", || command.output().expect("it runs").status.success());
}

#[test]
fn a_node_ends_with_its_parent_if_it_was_told_to() {
    let scratch = Scratch::new("parent");
    let data = scratch.path("n1");
    // A shell that starts a node, says its number, and then waits.
    let script = format!(
        "{} serve --config /dev/null --end-with $$ --data-dir {} --listen-native 127.0.0.1:0 --listen-peer 127.0.0.1:0 \
         --listen-admin off --listen-resp off > {}/out & echo $!; wait",
        env!("CARGO_BIN_EXE_coppice"),
        data.display(),
        scratch.0.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]);
    let mut shell = crate::support::Running::start(shell);
    let pid: u32 = shell.line("").trim().parse().expect("a number");
    let out = scratch.path("out");
    eventually("the node waits", || std::fs::read_to_string(&out).is_ok_and(|text| text.starts_with("waiting")));
    shell.child.kill().expect("it lives");
    shell.ended();
    eventually("the node is gone", || !lives(pid));
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}
