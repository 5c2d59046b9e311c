//! A cluster in several states, as it reads.

use bytes::Bytes;
use coppice_client::wire::{
    ClusterId, MapVersion, NodeId, NodeStatus, PartitionId, PartitionStatus, ReplicaId, ReplicaStatus, Status,
};

use super::golden;
use crate::status_view::{Health, sentence, table, to_json};
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
        map_version: MapVersion(5),
        feature_level: 1,
        tolerated_failures: 1 - i32::try_from(down.len()).expect("few"),
        nodes: (1..=3).map(node).collect(),
        partitions: (0..=4).map(partition).collect(),
        ..Status::default()
    }
}

fn shown(status: &Status) -> String {
    let mut text = Vec::new();
    table(status, Coding::Plain, &mut text).expect("memory takes it");
    String::from_utf8(text).expect("text")
}

#[test]
fn a_whole_cluster_is_healthy() {
    let status = cluster(&[]);
    assert_eq!((Health::of(&status), Health::of(&status).exit() as u8), (Health::Healthy, 0));
    golden::check("status_healthy", &shown(&status));
    golden::check("status_healthy_json", &format!("{:#}\n", to_json(&status)));
}

#[test]
fn a_cluster_without_one_node_is_degraded_and_names_it() {
    let status = cluster(&[2]);
    assert_eq!((Health::of(&status), Health::of(&status).exit() as u8), (Health::Degraded, 1));
    golden::check("status_degraded", &shown(&status));
}

#[test]
fn a_cluster_without_a_quorum_names_what_is_lost() {
    let status = cluster(&[2, 3]);
    assert_eq!((Health::of(&status), Health::of(&status).exit() as u8), (Health::Unavailable, 3));
    golden::check("status_unavailable", &shown(&status));
}

/// A node that is heard and cannot send, or nodes that cannot vote: a majority answers, and nothing is served.
#[test]
fn partitions_that_nobody_leads_are_named_although_a_majority_answers() {
    let mut status = cluster(&[]);
    status.tolerated_failures = -1;
    status.partitions[2].leader = None;
    status.partitions[3].leader = None;
    assert_eq!(sentence(&status), "unavailable: no leader for p2 (g..n), p3 (n..t)");
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
    assert_eq!(sentence(&status), "degraded: survives the loss of 1 more node until p1 has a leader");
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
    assert_eq!(Health::of(&status), Health::Healthy, "the others hold everything");
}

#[test]
fn without_a_cluster_the_next_command_is_named() {
    let status = Status::default();
    assert_eq!(Health::of(&status), Health::Unformed);
    assert_eq!(
        shown(&status),
        "waiting for init: these nodes belong to no cluster (form one: coppice init; add to one: coppice node add; \
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
