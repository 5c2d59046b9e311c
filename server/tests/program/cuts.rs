//! Nodes that live, and that clients reach, but that the other nodes do not.

use std::time::Duration;

use coppice_client::Admin;
use coppice_client::wire::{AdminReply, AdminRequest, LinkFault, NodeId};

use crate::support::{Cluster, eventually, patience, patient};

/// Nothing passes between the node at `alone` and the others; `None`: everything does.
pub fn cut(cluster: &Cluster, alone: Option<usize>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for node in 0..3 {
        let fault = |other: usize| {
            let cut = alone.is_some_and(|alone| (alone == node) != (alone == other));
            LinkFault { to: NodeId(other as u32 + 1), cut, delay_ms: 0 }
        };
        let faults = (0..3).filter(|other| *other != node).map(fault).collect();
        let admin = Admin::new([format!("127.0.0.1:{}", cluster.native_port(node))], patient());
        let told = runtime.block_on(admin.verb(AdminRequest::Faults(faults))).expect("it answers");
        assert_eq!(told, AdminReply::Done);
    }
}

/// The partitions that a node leads, as it says itself.
fn leads(cluster: &Cluster, index: usize) -> usize {
    let page = cluster.page(index, "/metrics");
    page.lines().filter(|line| line.starts_with("coppice_partition_leader{") && line.ends_with(" 1")).count()
}

#[test]
fn a_leader_that_is_cut_off_steps_down_and_its_clients_move_on() {
    let cluster = Cluster::formed_with(3, "g,m,t", &["--allow-faults"]);
    let client = cluster.client();
    let mut value = 0_u32;
    let mut put_next = |what: &str| {
        for key in ["a", "z"] {
            let answer =
                client.put(key.as_bytes(), value.to_string().as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let before = value.checked_sub(1).map(|before| before.to_string());
            assert_eq!(answer.output.as_deref(), before.as_ref().map(String::as_bytes), "{what}: lost or done twice");
        }
        value += 1;
        value - 1
    };
    put_next("whole");
    for victim in 0..3 {
        let name = format!("n{}", victim + 1);
        for partition in ["p0", "p1", "p2", "p3", "p4"] {
            // On a busy machine the new leader may be late; then the old one goes on, and says so.
            eventually("the leader moves", || cluster.run(&["leader", "transfer", partition, &name]).code == 0);
        }
        put_next("led by one");
        cut(&cluster, Some(victim));
        // What was on its way, what comes now, a query of the directory's leader: each is one call.
        let newest = put_next("cut off").to_string();
        for _ in 0..3 {
            // No part of it is drawn on the node that is cut off, or none that is stays so.
            let scan = cluster.run(&["scan", "a..zz", "-o", "raw"]);
            assert_eq!((scan.code, scan.out.matches(&newest).count()), (0, 2), "{scan:?}");
        }
        // A client that knows nobody but the one that is cut off learns of the others from it.
        let said = cluster.run_at(victim, &["get", "a"]);
        assert_eq!((said.code, &said.out), (0, &newest), "{said:?}");
        eventually("the one that is cut off leads nothing", || leads(&cluster, victim) == 0);
        eventually("it says that it has no leader", || cluster.page(victim, "/readyz").starts_with("HTTP/1.1 503"));
        let page = || cluster.page(victim, "/status");
        eventually("there no quorum is seen", || {
            page().contains(r#""majority":false"#) && page().contains("no quorum")
        });
        // Asked first, or alone, it does not speak for the cluster.
        for words in [&["status", "-o", "json"][..], &["check", "replicas", "-o", "json"]] {
            eventually("another one answers", || {
                let said = cluster.run_at(victim, words);
                let other = !said.out.contains(&format!(r#""answered_by":"{name}""#));
                [0, 1].contains(&said.code)
                    && said.out.contains("answered_by")
                    && other
                    && said.err.contains("hears no")
            });
        }
        // It runs, which the others do not see.
        let cut_off = format!(r#""cut_off":["{name}"]"#);
        eventually("it is told from a node that is down", || {
            cluster.run(&["status", "-o", "json"]).out.contains(&cut_off)
        });
        let said = cluster.run_at(victim, &["partition", "split", "p1", "--at", "b", "--dry-run"]);
        assert_eq!(said.code, 0, "{said:?}");
        let leader = format!("n{}", (victim + 1) % 3 + 1);
        eventually("a leadership moves", || cluster.run_at(victim, &["leader", "transfer", "p1", &leader]).code == 0);
        cut(&cluster, None);
        cluster.healthy();
        put_next("healed");
    }
}

#[test]
#[ignore = "long: waits for every deadline"]
fn without_any_majority_every_call_ends_in_time() {
    let cluster = Cluster::formed_with(3, "", &["--allow-faults"]);
    let client = cluster.client();
    client.put(&b"a"[..], &b"1"[..]).expect("done");
    // A cut of all from all: everyone is reached by clients, and nobody by anybody else.
    cut(&cluster, Some(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (node, others) in [(1, [1, 3]), (2, [1, 2])] {
        let faults = others.iter().map(|&to| LinkFault { to: NodeId(to), cut: true, delay_ms: 0 }).collect();
        let admin = Admin::new([format!("127.0.0.1:{}", cluster.native_port(node))], patient());
        assert_eq!(runtime.block_on(admin.verb(AdminRequest::Faults(faults))).expect("it answers"), AdminReply::Done);
    }
    let client = client.with_timeout(Duration::from_secs(1));
    let (said, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let both = (client.put(&b"a"[..], &b"2"[..]), client.get(&b"a"[..]));
        // Nobody listens if the test has failed.
        _ = said.send(both);
    });
    // Far above what two calls may take, far below for ever.
    let (put, get) = ended.recv_timeout(patience()).expect("both calls end");
    assert!(put.is_err(), "{put:?}");
    assert!(get.is_err(), "nobody may answer from what may be old: {get:?}");
    eventually("nobody leads", || (0..3).all(|index| leads(&cluster, index) == 0));
    let said = cluster.run(&["put", "b", "1", "--timeout", "1s"]);
    assert_eq!(said.code, 3, "no leader took it: {said:?}");
    cut(&cluster, None);
    cluster.healthy();
    assert_eq!(cluster.run(&["get", "b"]).code, 4);
}

#[test]
fn faults_are_refused_where_they_were_not_allowed() {
    let cluster = Cluster::formed(1, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let admin = Admin::new([format!("127.0.0.1:{}", cluster.native_port(0))], patient());
    let refused = runtime.block_on(admin.verb(AdminRequest::Faults(Vec::new())));
    assert!(format!("{refused:?}").contains("allow_faults"), "{refused:?}");
}
