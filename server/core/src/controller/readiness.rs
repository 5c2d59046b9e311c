//! Whether a node is ready for clients, and why not (operations.md 1.6): it is recovered, it has caught up, and each
//! group that it has a vote in has a leader.

use std::collections::BTreeMap;

use coppice_client::map::{Entry, NodeState, Role};
use coppice_client::wire::{NodeId, PartitionId};

use super::Controller;
use crate::worker::{self, ReplicaReadiness};

/// The replicas of each worker; none: it does not answer.
pub type HeardReplicas = Vec<Option<BTreeMap<PartitionId, ReplicaReadiness>>>;

/// Why clients should not be sent to this node, one sentence each; empty if they may be.
pub fn reasons_against_readiness(controller: &Controller, heard: &HeardReplicas) -> Vec<String> {
    let Controller { node, fence, map, .. } = controller;
    let Some(own) = *node else { return vec!["waiting for init".into()] };
    if fence.copy().is_some() {
        return vec!["this node runs on a copy of its data directory: it votes no more".into()];
    }
    if map.version.0 == 0 {
        return vec!["the partition map is not known yet".into()];
    }
    match map.node(own).map(|info| info.state) {
        None => return vec!["the partition map that is known does not name this node".into()],
        Some(NodeState::Removed) => return vec!["this node was removed from its cluster".into()],
        Some(_) => {}
    }
    let mut reasons = Vec::new();
    if !fence.may_speak() {
        let awaited: Vec<String> = fence.awaited().iter().map(NodeId::to_string).collect();
        let who = if awaited.is_empty() { "the other nodes".into() } else { awaited.join(" ") };
        reasons.push(format!("the start waits for {who} to let it in"));
    }
    let silent = heard.iter().enumerate().filter(|(_, replicas)| replicas.is_none());
    reasons.extend(silent.map(|(worker, _)| format!("worker thread {worker} does not answer")));
    // One that only learns is being moved here: clients are served by others meanwhile.
    let votes = |entry: &&Entry| entry.replica_on(own).is_some_and(|info| info.role == Role::Voter);
    reasons.extend(map.groups().filter(votes).filter_map(|entry| reason_against(controller, entry.partition, heard)));
    reasons
}

fn reason_against(controller: &Controller, group: PartitionId, heard: &HeardReplicas) -> Option<String> {
    if controller.replica_manager.awaiting_snapshot().contains_key(&group) {
        return Some(format!("{group} awaits its state from another node"));
    }
    let replicas = heard[worker::owner(group, heard.len())].as_ref()?;
    match replicas.get(&group) {
        None => Some(format!("{group} has not begun here")),
        Some(replica) if !replica.is_led => Some(format!("{group} has no leader that this node knows")),
        Some(replica) => (replica.lacks > 0).then(|| format!("{group} lacks {} instances", replica.lacks)),
    }
}
