//! A cluster in several states, as it reads.

use std::collections::BTreeSet;

use bytes::Bytes;
use coppice_client::wire::{
    ClusterId, MapVersion, NodeId, NodeStatus, PartitionId, PartitionStatus, ReplicaId, ReplicaStatus, Status,
};

use coppice_core::status::{Health, sentence};

use super::golden;
use crate::status_view::{Look, exit, table, to_json};
use crate::text::Coding;

/// Three nodes, the directory and four partitions; the nodes in `down` do not answer.
fn cluster(down: &[u32]) -> Status {
    let up = |node: u32| !down.contains(&node);
    let boundaries = ["", "g", "n", "t"];
    let replicas = || {
        (1..=3)
            .map(|n| ReplicaStatus {
                replica: ReplicaId(n),
                node: NodeId(n),
                voter: true,
                up: up(n),
                ..ReplicaStatus::default()
            })
            .collect::<Vec<_>>()
    };
    let partition = |id: u32| {
        let index = id.checked_sub(1).map(|index| index as usize);
        let low = index.map_or("", |index| boundaries[index]);
        let high = index.and_then(|index| boundaries.get(index + 1));
        let leader = if up(id % 3 + 1) { Some(NodeId(id % 3 + 1)) } else { None };
        PartitionStatus {
            id: PartitionId(id),
            low: Bytes::from_static(low.as_bytes()),
            high: high.map(|high| Bytes::from_static(high.as_bytes())),
            leader: leader.filter(|_| down.len() < 2),
            replicas: replicas(),
            ballot: (1, ReplicaId(1)),
            decided_upto: 12,
            keys: u64::from(id) * 1000,
            bytes: u64::from(id) * 16_000,
            commands_per_second: 50.4,
            batch_commands: 1.2,
            digest: Some((10, 0xfeed)),
            ..PartitionStatus::default()
        }
    };
    let node = |id: u32| NodeStatus {
        id: NodeId(id),
        name: format!("n{id}"),
        address: format!("127.0.0.1:74{}0", id - 1),
        up: up(id),
        incarnation: 1,
        version: "0.1.0".to_owned(),
        flush_us_p99: 300 + 100 * u64::from(id),
        ..NodeStatus::default()
    };
    Status {
        cluster: Some(ClusterId(0xc0ffee)),
        node: NodeId(1),
        majority: down.len() < 2,
        replicas: 3,
        map_version: MapVersion(5),
        feature_level: 2,
        tolerated_failures: 1 - i32::try_from(down.len()).expect("few"),
        nodes: (1..=3).map(node).collect(),
        partitions: (0..=4).map(partition).collect(),
        ..Status::default()
    }
}

fn shown(status: &Status) -> String {
    let mut text = Vec::new();
    let look = Look { coding: Coding::Plain, color: false };
    table(status, &BTreeSet::new(), look, &mut text).expect("memory takes it");
    String::from_utf8(text).expect("text")
}

#[test]
fn a_whole_cluster_is_healthy() {
    let status = cluster(&[]);
    assert_eq!((Health::of(&status), exit(Health::of(&status)) as u8), (Health::Healthy, 0));
    golden::check("status_healthy", &shown(&status));
    golden::check("status_healthy_json", &format!("{:#}\n", to_json(&status)));
}

#[test]
fn a_cluster_without_one_node_is_degraded_and_names_it() {
    let status = cluster(&[2]);
    assert_eq!((Health::of(&status), exit(Health::of(&status)) as u8), (Health::Degraded, 1));
    golden::check("status_degraded", &shown(&status));
}

#[test]
fn a_cluster_without_a_quorum_names_what_is_lost() {
    let status = cluster(&[2, 3]);
    assert_eq!((Health::of(&status), exit(Health::of(&status)) as u8), (Health::Unavailable, 3));
    golden::check("status_unavailable", &shown(&status));
}

/// A node that is heard and cannot send, or nodes that cannot vote: a majority answers, and nothing is served.
#[test]
fn partitions_that_nobody_leads_are_named_although_a_majority_answers() {
    let mut status = cluster(&[]);
    status.tolerated_failures = -1;
    status.partitions[2].leader = None;
    status.partitions[3].leader = None;
    assert_eq!(sentence(&status), "unavailable: no leader for p2, p3");
}

#[test]
fn one_node_alone_is_healthy_and_says_what_it_survives() {
    let mut status = cluster(&[]);
    status.tolerated_failures = 0;
    assert_eq!(sentence(&status), "healthy: all replicas are up; survives the loss of no node");
}

#[test]
fn an_election_and_a_late_replica_are_degraded() {
    let mut status = cluster(&[]);
    status.partitions[1].leader = None;
    assert_eq!(sentence(&status), "degraded: survives the loss of 1 more node; no leader for p1 yet");
    status.nodes[2].up = false;
    status.partitions[2].leader = None;
    let wanted = "degraded: survives the loss of 1 more node until n3 is back; no leader for p1, p2 yet";
    assert_eq!(sentence(&status), wanted);
    let mut status = cluster(&[]);
    status.partitions[2].replicas[0].lag_ms = 60_000;
    assert_eq!(sentence(&status), "degraded: survives the loss of 1 more node until the replicas of p2 have caught up");
}

/// Its log waits for room, so it holds nothing new, however long one waits.
#[test]
fn a_replica_that_is_late_for_want_of_room_names_the_disk() {
    let mut status = cluster(&[]);
    status.partitions[1].replicas[1].lag_ms = 3_089;
    let node = status.partitions[1].replicas[1].node;
    status.nodes.iter_mut().for_each(|row| row.disk_full = true);
    assert_eq!(
        sentence(&status),
        format!("degraded: survives the loss of 1 more node until {node} has room on its disk")
    );
    status.partitions[1].replicas[1].lag_ms = 0;
    status.nodes.iter_mut().for_each(|row| row.disk_full = row.id == node);
    assert_eq!(
        sentence(&status),
        format!("degraded: survives the loss of 1 more node; {node} has no room on its disk")
    );
}

#[test]
fn a_cluster_that_refuses_writes_says_which_limit_and_whose() {
    let mut status = cluster(&[]);
    let why = "the node that leads has reached memory.limit = 64 MiB";
    status.partitions[1].refuses = Some(why.to_owned());
    let survives = "survives the loss of 1 more node";
    assert_eq!(sentence(&status), format!("degraded: p1 refuses writes that grow: {why}; {survives}"));
    status.partitions.iter_mut().for_each(|partition| partition.refuses = Some(why.to_owned()));
    assert_eq!(sentence(&status), format!("degraded: the cluster refuses writes that grow: {why}; {survives}"));
    assert_eq!(exit(Health::of(&status)) as u8, 1);
}

#[test]
fn too_few_replicas_are_counted() {
    let mut status = cluster(&[]);
    status.tolerated_failures = 0;
    status.partitions[4].replicas.pop();
    assert_eq!(sentence(&status), "degraded: 2 of 3 replicas of p4; survives the loss of 0 more nodes");
    status.partitions.iter_mut().for_each(|partition| partition.replicas.truncate(2));
    assert_eq!(sentence(&status), "degraded: 2 of 3 replicas; survives the loss of 0 more nodes");
    status.replicas = 2;
    assert_eq!(Health::of(&status), Health::Healthy);
}

#[test]
fn a_node_that_was_removed_says_so() {
    let status = Status { removed: true, node: NodeId(4), ..cluster(&[]) };
    assert!(sentence(&status).starts_with("removed: n4 was removed from the cluster"), "{}", sentence(&status));
    assert_eq!(exit(Health::of(&status)) as u8, 1);
}

/// Long keys, nine replicas, many nodes, large numbers: 80 columns, and nothing that matters is lost.
#[test]
fn every_line_fits_80_columns() {
    let mut status = cluster(&[2]);
    let node = |id: u32| NodeStatus { id: NodeId(id), up: id != 17, ..NodeStatus::default() };
    status.nodes = (1..=20).map(node).collect();
    let replica = |n: u32| ReplicaStatus { node: NodeId(n), voter: true, up: n != 17, ..ReplicaStatus::default() };
    for partition in &mut status.partitions {
        partition.high = Some(Bytes::from(vec![0xfe; 300]));
        partition.low = Bytes::from(vec![b'k'; 300]);
        partition.replicas = (12..21).map(replica).collect();
        (partition.keys, partition.bytes) = (999_999_999_999, 1 << 50);
    }
    status.warnings =
        vec![format!("n2 is not let in: {}; replace it: `coppice node replace n2 HERE`", "why ".repeat(40))];
    let text = shown(&status);
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains("  (n17) n12 +7  ") && text.contains("n17 down") && text.contains("  kkkk"), "{text}");
    assert!(text.contains("`coppice node replace n2 HERE`"), "{text}");
}

#[test]
fn states_are_coloured_and_nothing_else() {
    let draw = |color| {
        let mut text = Vec::new();
        let (status, cut_off) = (cluster(&[2]), BTreeSet::from([NodeId(2)]));
        table(&status, &cut_off, Look { coding: Coding::Plain, color }, &mut text).expect("memory takes it");
        String::from_utf8(text).expect("text")
    };
    let (plain, coloured) = (draw(false), draw(true));
    assert!(plain.contains("n2 cut off") && plain.contains("n2 answers this program, and not n1"), "{plain}");
    assert!(
        coloured.starts_with("\u{1b}[33mdegraded\u{1b}[0m: ") && coloured.contains("n2\u{1b}[31m cut off\u{1b}[0m")
    );
    assert_eq!(coloured.replace("\u{1b}[33m", "").replace("\u{1b}[31m", "").replace("\u{1b}[0m", ""), plain);
}

#[test]
fn without_a_cluster_the_next_command_is_named() {
    let status = Status::default();
    assert_eq!(Health::of(&status), Health::Unformed);
    assert_eq!(
        shown(&status),
        "waiting for init: these nodes belong to no cluster (form one: coppice init; add\n  to one: coppice node add; \
         in place of a lost node: coppice node replace)\n"
    );
    assert_eq!(to_json(&status)["health"], "waiting for init");
}

#[test]
fn boundaries_that_are_no_text_have_a_place_in_json() {
    let mut status = cluster(&[]);
    status.partitions[1].high = Some(Bytes::from_static(&[0x80, 0]));
    let json = to_json(&status);
    assert_eq!(json["partitions"][1]["high_b64"], "gAA=");
    assert_eq!(json["partitions"][1]["low"], "");
    assert_eq!(json["partitions"][4]["high"], serde_json::Value::Null);
    assert!(shown(&status).contains("..0x8000"));
}
