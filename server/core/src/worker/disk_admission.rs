//! What a worker does while disks or memory are full: here, or on the other nodes of a partition (hazards.md ST10).
//!
//! Memory at its limit counts as a disk at its reserve. A leader whose own memory is there refuses writes that grow,
//! and transfers its leadership to a replica that has room. A replica that follows has nobody to refuse: where the
//! others have room it goes on growing with them, up to nine eighths of its limit; then it takes nothing more from
//! them, and falls behind instead of being killed. Where no majority has room it takes what comes, for that grows no
//! more.
//!
//! A node below its reserve still votes, so that its partitions go on where the others have room; when fewer than a
//! majority have, writes that grow are refused, and what is left of the reserves is for deletes, elections and tickets.
//! A node whose log can write nothing at all votes no more, and its workers neither wait for the log nor fill its
//! queue: what would be logged is lost like a message, and who leads there transfers its leadership to a replica that
//! has room.

use std::collections::BTreeSet;
use std::time::Duration;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::{LogRoom, Message, ReplicaId, Time};

use super::{Effect, Group, Note, Worker};
use crate::replica::Input;
use crate::request::{Fullness, Request};

/// How often a leader that cannot write looks for a replica to lead in its place.
const TRANSFER_INTERVAL: Duration = Duration::from_millis(500);

/// What there is room for, as the driver knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The log waits for room: nothing that is appended becomes durable until there is some.
    pub log_is_stuck: bool,
    /// The disk is filled to its reserve.
    pub disk_is_full: bool,
    /// Memory is used up to its limit: nothing is to grow.
    pub memory_is_full: bool,
    /// That limit (`memory.limit`), in bytes.
    pub memory_limit: u64,
    /// So much memory is used that this node follows no leader any more.
    pub memory_is_spent: bool,
    /// Other nodes that have room for nothing that grows, as they said last.
    pub full_nodes: BTreeSet<NodeId>,
}

/// What there is room for, and when a leader here may next transfer its leadership for want of it.
#[derive(Debug, Default)]
pub(super) struct DiskAdmission {
    resources: Resources,
    next_transfer_at: Time,
}

impl DiskAdmission {
    pub(super) fn known(&self) -> &Resources {
        &self.resources
    }
}

impl Resources {
    /// Whether neither this node's disk is filled to its reserve nor its memory to its limit.
    pub fn is_here(&self) -> bool {
        !self.disk_is_full && !self.memory_is_full
    }
}

impl Worker {
    /// This is what there is room for. The others hear whether there is any here: they go by that when they look for a
    /// majority with room.
    pub(super) fn on_resources(&mut self, resources: Resources) {
        let was_here = self.admission.resources.is_here();
        self.admission.resources = resources;
        let is_here = self.admission.resources.is_here();
        if is_here != was_here && !mutant!(fullness_untold) {
            self.effects.push(Effect::Full(!is_here));
        }
    }

    /// Whose logs take records, for a partition's replica here.
    pub(super) fn log_room(&self, id: PartitionId) -> LogRoom {
        if !self.admission.resources.log_is_stuck {
            return LogRoom::Here;
        }
        let majority = self.groups.get(&id).is_some_and(|group| has_majority(group, |node| self.has_space(node)));
        if majority { LogRoom::Elsewhere } else { LogRoom::Nowhere }
    }

    /// Whether a request is refused for want of disk or memory; deletes and reads go on (operations.md 3).
    pub(super) fn refuses_growth(&self, id: PartitionId, request: &Request) -> Option<Fullness> {
        let grows = request.grows() || (request.is_logged() && self.admission.resources.log_is_stuck);
        if grows { self.fullness(id) } else { None }
    }

    /// Why writes that grow would be refused, if this node led the partition.
    pub fn fullness(&self, id: PartitionId) -> Option<Fullness> {
        let Resources { log_is_stuck, memory_is_full, memory_limit, .. } = self.admission.resources;
        if log_is_stuck {
            return Some(Fullness::Log);
        }
        if memory_is_full {
            return Some(Fullness::Memory(memory_limit));
        }
        self.lacks_majority_with_space(id).then_some(Fullness::Majority)
    }

    /// Whether fewer than a majority of the partition's voters have room.
    fn lacks_majority_with_space(&self, id: PartitionId) -> bool {
        if mutant!(room_of_one) {
            return !self.admission.resources.is_here();
        }
        if self.admission.resources.is_here() && self.admission.resources.full_nodes.is_empty() {
            return false;
        }
        self.groups.get(&id).is_some_and(|group| !has_majority(group, |node| self.has_space(node)))
    }

    /// Whether a node has room, as far as is known here.
    fn has_space(&self, node: NodeId) -> bool {
        match self.cluster.node == Some(node) {
            true => self.admission.resources.is_here(),
            false => !self.admission.resources.full_nodes.contains(&node),
        }
    }

    /// Whether a message of a peer is lost because there is no room for what it asks to hold. Memory that is spent
    /// loses none where no majority has room: without these replicas nobody leads, and nothing comes that grows.
    pub(super) fn loses(&self, id: PartitionId, message: &Message) -> bool {
        let room = &self.admission.resources;
        let spent = || {
            let others_go_on = || !self.lacks_majority_with_space(id) || mutant!(spent_memory_loses_all);
            room.memory_is_spent && others_go_on()
        };
        match message {
            Message::Phase1a(_) => room.log_is_stuck,
            Message::Phase2a(_) | Message::CatchUpReply(_) | Message::TransferLeader(_) => room.log_is_stuck || spent(),
            _ => false,
        }
    }

    /// Hands over what is led here while nothing can be written, or nothing that grows, to replicas that can. Where no
    /// majority could, nobody would be elected either: who leads goes on, for reads.
    pub(super) fn transfer_when_full(&mut self) {
        let (now, room) = (self.now, &self.admission.resources);
        if now < self.admission.next_transfer_at || !(room.log_is_stuck || room.memory_is_full) {
            return;
        }
        self.admission.next_transfer_at = now + TRANSFER_INTERVAL;
        let leading = self.groups.iter().filter(|(_, group)| group.replica.is_leading());
        let successors = leading.filter_map(|(&id, group)| Some((id, successor(group, |node| self.has_space(node))?)));
        let successors: Vec<(PartitionId, ReplicaId)> = successors.collect();
        for (partition, to) in successors {
            self.effects.push(Effect::Note(partition, Note::TransferWhenFull(to)));
            self.step_group(partition, Input::TransferLeader { to, deadline: now + TRANSFER_INTERVAL });
        }
    }
}

fn has_majority(group: &Group, has_space: impl Fn(NodeId) -> bool) -> bool {
    let voters = &group.replica.paxos().configuration().0.voters;
    let with_room = voters.iter().filter(|&voter| group.nodes.get(voter).is_none_or(|&node| has_space(node)));
    with_room.count() > voters.len() / 2
}

/// The voter on a node with room that holds most, if a majority has room.
fn successor(group: &Group, has_space: impl Fn(NodeId) -> bool) -> Option<ReplicaId> {
    if !has_majority(group, &has_space) {
        return None;
    }
    let paxos = group.replica.paxos();
    let others = paxos.configuration().0.voters.iter().filter(|&&voter| voter != group.me);
    let with_room = others.filter(|voter| group.nodes.get(voter).is_some_and(|&node| has_space(node)));
    with_room.filter_map(|&voter| Some((paxos.durable_upto(voter)?, voter))).max().map(|(_, voter)| voter)
}
