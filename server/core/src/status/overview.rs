//! The status of the cluster: what each node says of itself, put together by the map.

use std::collections::BTreeMap;

use coppice_client::map::{Entry, NodeState, PartitionMap, Role};
use coppice_client::wire::{ClusterId, MapVersion, NodeId, NodeStatus, PartitionStatus, ReplicaStatus, Status};

use super::{LocalStatus, ReplicaCounts};
use crate::majority::{is_majority, voters_up};
use crate::settings::ClusterSettings;

/// What node `own` shows, which has heard these nodes, itself included. `settings`: those of the cluster;
/// none: `own` has asked nobody else. `excuses`: what nodes said that let nobody ask.
pub fn overview(
    map: &PartitionMap,
    (cluster, own): (Option<ClusterId>, NodeId),
    known: &BTreeMap<NodeId, LocalStatus>,
    (settings, tickets_in_flight): (Option<&ClusterSettings>, u32),
    excuses: &BTreeMap<NodeId, String>,
) -> Status {
    let members = map.nodes.iter().filter(|info| info.state != NodeState::Removed);
    let nodes = members.map(|info| match known.get(&info.id) {
        Some(local) => NodeStatus { id: info.id, ..local.node.clone() },
        None => NodeStatus {
            id: info.id,
            name: info.name.clone(),
            address: info.addresses.native.clone(),
            ..NodeStatus::default()
        },
    });
    let entries = map.directory.iter().chain(&map.partitions);
    let mut warnings = known.get(&own).map(|local| local.warnings.clone()).unwrap_or_default();
    for (node, local) in known.iter().filter(|(node, _)| **node != own) {
        warnings.extend(local.warnings.iter().map(|text| format!("{node}: {text}")));
    }
    let silent = excuses.iter().filter(|(node, _)| !known.contains_key(node));
    warnings.extend(silent.map(|(node, text)| format!("{node} does not answer yet: {text}")));
    let replicas = settings.map(|settings| settings.replicas);
    if let Some(replicas) = replicas {
        let still = ReplicaCounts::of(map, replicas as usize, known).sentences();
        warnings.extend(still.into_iter().map(|text| format!("replicas = {replicas}: {text}")));
    }
    Status {
        cluster,
        node: own,
        map_version: MapVersion(map.version.0),
        feature_level: settings.map_or(0, |settings| settings.feature_level),
        tolerated_failures: tolerated_failures(map, known),
        tickets_in_flight,
        nodes: nodes.collect(),
        partitions: entries.map(|entry| partition_status(entry, known)).collect(),
        warnings,
        majority: is_majority(map, |node| known.contains_key(&node)),
        replicas: replicas.unwrap_or_default(),
        removed: map.node(own).is_some_and(|info| info.state == NodeState::Removed),
        changes: known.values().flat_map(|local| local.changes.iter().cloned()).collect(),
    }
}

/// How many more nodes may be lost, as far as this node knows; -1: some partition has no quorum, or nobody who answers
/// knows a leader of it.
pub fn tolerated_failures(map: &PartitionMap, known: &BTreeMap<NodeId, LocalStatus>) -> i32 {
    let spare = |entry: &Entry| {
        let up = |node: NodeId| known.get(&node).is_some_and(|local| local.replicas.contains_key(&entry.partition));
        let (alive, all) = voters_up(entry, up);
        let mut replicas = known.values().filter_map(|local| local.replicas.get(&entry.partition));
        let led = replicas.any(|replica| replica.leads || replica.leader.is_some());
        if led { alive as i32 - (all as i32 / 2 + 1) } else { -1 }
    };
    map.directory.iter().chain(&map.partitions).map(spare).min().unwrap_or(-1).max(-1)
}

fn partition_status(entry: &Entry, known: &BTreeMap<NodeId, LocalStatus>) -> PartitionStatus {
    let local = |node: NodeId| known.get(&node).and_then(|node| node.replicas.get(&entry.partition));
    let leading = entry.replicas.iter().find(|info| local(info.node).is_some_and(|replica| replica.leads));
    let leader = leading.map(|info| info.node);
    let told = leader.and_then(local).or_else(|| entry.replicas.iter().find_map(|info| local(info.node)));
    let told = told.cloned().unwrap_or_default();
    let replicas = entry.replicas.iter().map(|info| {
        let replica = local(info.node);
        let lag = replica.map_or(0, |replica| told.decided_upto.saturating_sub(replica.decided_upto));
        ReplicaStatus {
            replica: info.replica,
            node: info.node,
            voter: info.role == Role::Voter,
            up: replica.is_some(),
            lag_instances: lag,
            lag_ms: told.lags.get(&info.node).map_or(0, |&(_, millis)| millis),
        }
    });
    PartitionStatus {
        id: entry.partition,
        low: entry.low.clone(),
        high: entry.high.clone(),
        leader,
        refuses: told.refuses.filter(|_| leader.is_some()),
        replicas: replicas.collect(),
        ballot: told.ballot,
        decided_upto: told.decided_upto,
        trimmed_upto: told.trimmed_upto,
        last_ticket: told.last_ticket,
        released: told.released,
        held: told.held,
        undo_bytes: told.undo_bytes,
        keys: told.keys,
        bytes: told.bytes,
        commands_per_second: told.commands_per_second,
        window: told.window,
        batch_commands: told.batch_commands,
        sessions: told.sessions,
        digest: told.digests.last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{Addresses, NodeInfo, ReplicaInfo};
    use coppice_client::wire::{PartitionId, ReplicaId};

    use super::*;
    use crate::status::LocalReplica;

    #[test]
    fn what_a_leader_refuses_and_who_was_removed_is_told() {
        let replica = |n: u32| ReplicaInfo { replica: ReplicaId(n), node: NodeId(n), role: Role::Voter };
        let entry = Entry { partition: PartitionId(1), replicas: (1..=3).map(replica).collect(), ..Entry::default() };
        let state = |n| if n == 4 { NodeState::Removed } else { NodeState::Member };
        let node =
            |n| NodeInfo { id: NodeId(n), name: String::new(), addresses: Addresses::default(), state: state(n) };
        let map =
            PartitionMap { partitions: vec![entry], nodes: (1..=4).map(node).collect(), ..PartitionMap::default() };
        let says = |n: u32| {
            let refuses = Some(format!("n{n} is full"));
            let replica = LocalReplica { leads: n == 2, refuses, ..LocalReplica::default() };
            let replicas = if n == 4 { BTreeMap::new() } else { BTreeMap::from([(PartitionId(1), replica)]) };
            (NodeId(n), LocalStatus { replicas, ..LocalStatus::default() })
        };
        let known: BTreeMap<_, _> = (1..=4).map(says).collect();
        let settings = ClusterSettings { replicas: 5, ..ClusterSettings::default() };
        let seen_by = |n| overview(&map, (None, NodeId(n)), &known, (Some(&settings), 0), &BTreeMap::new());
        let status = seen_by(1);
        assert_eq!((status.replicas, status.removed, status.nodes.len()), (5, false, 3));
        assert_eq!(status.partitions[0].refuses.as_deref(), Some("n2 is full"), "followers refuse nobody");
        assert!(seen_by(4).removed);
    }

    #[test]
    fn why_a_node_does_not_answer_is_told_if_it_says_so() {
        let known = BTreeMap::from([(NodeId(1), LocalStatus::default())]);
        let excuse = |node, text: &str| (NodeId(node), text.to_owned());
        let excuses = BTreeMap::from([excuse(1, "of before: it answers"), excuse(3, "recovering: its log, 40 %")]);
        let status = overview(&PartitionMap::default(), (None, NodeId(1)), &known, (None, 0), &excuses);
        assert_eq!(status.warnings, ["n3 does not answer yet: recovering: its log, 40 %"]);
    }

    #[test]
    fn a_partition_without_a_leader_survives_nothing() {
        let replica = |n: u32| ReplicaInfo { replica: ReplicaId(n), node: NodeId(n), role: Role::Voter };
        let entry = Entry { partition: PartitionId(1), replicas: (1..=3).map(replica).collect(), ..Entry::default() };
        let map = PartitionMap { partitions: vec![entry], ..PartitionMap::default() };
        let node = |leader| {
            let replica = LocalReplica { leader, ..LocalReplica::default() };
            LocalStatus { replicas: BTreeMap::from([(PartitionId(1), replica)]), ..LocalStatus::default() }
        };
        let of = |leaders: &[Option<NodeId>]| {
            let known = (1..).map(NodeId).zip(leaders.iter().map(|leader| node(*leader))).collect();
            tolerated_failures(&map, &known)
        };
        assert_eq!((of(&[Some(NodeId(1)); 3]), of(&[Some(NodeId(1)); 2]), of(&[Some(NodeId(1))])), (1, 0, -1));
        assert_eq!((of(&[None, Some(NodeId(1)), None]), of(&[None; 3])), (1, -1));
    }
}
