//! Replicas of this node: they go on after a start, begin because the map or a split says so, and go; and whether
//! this process may speak for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use coppice_client::map::{Entry, PartitionMap};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::ReplicaId;

use super::{Controller, Effect, RecoveredReplica};
use crate::incarnation::fence::Fence;
use crate::machine::partition::Fork;
use crate::replay::Entry as LogEntry;
use crate::replica_manager::{PlacementDemand, Start};
use crate::worker::{self, Splits};

/// A replica that goes.
#[derive(Debug)]
pub(super) struct Removal {
    replica: ReplicaId,
    /// The parent whose log it needs, if it was to be split off again after a crash.
    parent: Option<PartitionId>,
    /// Its worker has dropped it: it says nothing any more.
    is_dropped: bool,
    /// The log says that it is gone.
    is_removed: bool,
}

impl Controller {
    /// A group that the log knows, at a start.
    pub(super) fn restart(&mut self, recovered: RecoveredReplica) {
        let RecoveredReplica { group, removed, created, loaded, replay } = recovered;
        if let Some(removed) = removed {
            self.replica_manager.note_removed(group, removed);
        }
        let Some((me, create)) = created else { return };
        let own = self.node.unwrap_or_default();
        match self.replica_manager.restart(own, (group, me), create, loaded, replay) {
            Ok(Some(start)) => self.start(start),
            // It waits for its state.
            Ok(None) => {}
            Err(lost) => self.effects.push(Effect::StateLost(group, lost)),
        }
    }

    pub(super) fn start(&mut self, start: Start) {
        let group = start.group;
        self.replica_manager.runs(&start);
        self.splits.remove(&group);
        // It does not wait for that: whatever it writes later is durable only together with its create request. Others
        // may have to, for what is to outlive a crash beside it.
        if start.is_new {
            let create = postcard::to_stdvec(&start.create).expect("a create request is plain data").into();
            self.effects.push(Effect::Log(Box::new(LogEntry::Created { group, replica: start.me, create })));
        }
        if let Some(upto) = start.trim_upto {
            self.effects.push(Effect::Log(Box::new(LogEntry::Trimmed { group, upto })));
        }
        self.effects.push(Effect::Start(Box::new(start)));
    }

    /// Uses this map: replicas that it names for this node, and no others.
    pub(super) fn use_map(&mut self, map: Arc<PartitionMap>) {
        self.map = Arc::clone(&map);
        self.effects.push(Effect::Map(Arc::clone(&map)));
        // Before workers send to nodes that are new to them.
        self.links.follow(self.node, &map, &mut self.effects);
        for worker in 0..self.workers {
            self.effects.push(Effect::Worker(worker, worker::Input::Map(Arc::clone(&map))));
        }
        self.start_missing();
    }

    /// Removes replicas that the map does not name, and begins those that it names and that do not run.
    pub(super) fn start_missing(&mut self) {
        let Some(own) = self.node else { return };
        let map = Arc::clone(&self.map);
        for group in self.replica_manager.unnamed(own, &map) {
            self.remove(group);
        }
        if self.replica_manager.lacks_any(own, &map) {
            map.groups().for_each(|entry| self.want(entry));
        }
    }

    /// Starts the replica that `entry` names for this node, unless it runs, or was removed here before.
    pub(super) fn want(&mut self, entry: &Entry) {
        let Some(own) = self.node else { return };
        match self.replica_manager.wanted(own, entry) {
            PlacementDemand::Nothing => {}
            PlacementDemand::Begin(start) => self.start(*start),
            PlacementDemand::Join(me) => self.join(entry, me),
        }
    }

    /// The replica here was removed from its group, and nobody needs it any more.
    pub(super) fn remove(&mut self, group: PartitionId) {
        let Some(own) = self.node else { return };
        let parent = self.replica_manager.needs(group);
        if self.is_parent_of_leaving(group) {
            return;
        }
        let Some(replica) = self.replica_manager.remove(own, &self.map, group) else { return };
        self.leaving.insert(group, Removal { replica, parent, is_dropped: false, is_removed: false });
        self.splits.remove(&group);
        self.leaders.remove(&group);
        if group == PartitionId::DIRECTORY {
            self.topology.forget();
        }
        // It says nothing any more before the log and the disk forget what it says.
        self.tell_owner(group, worker::Input::Drop(group));
        if mutant!(forgotten_while_it_speaks) {
            self.on_dropped(group);
        }
    }

    /// The worker has dropped a replica.
    pub(super) fn on_dropped(&mut self, group: PartitionId) {
        if let Some(leaving) = self.leaving.get_mut(&group) {
            leaving.is_dropped = true;
        }
    }

    /// The log says of replicas that were dropped that they are gone; not while a child, which a split that was on its
    /// way has begun since, needs their log.
    pub(super) fn forget_removed(&mut self) {
        let replica_manager = &self.replica_manager;
        let may_go = |(group, leaving): &(&PartitionId, &mut Removal)| {
            let is_needed = replica_manager.is_needed(**group) && !mutant!(removed_under_its_child);
            leaving.is_dropped && !leaving.is_removed && !is_needed
        };
        for (&group, leaving) in self.leaving.iter_mut().filter(may_go) {
            leaving.is_removed = true;
            let replica = leaving.replica;
            self.effects.push(Effect::Log(Box::new(LogEntry::Removed { group, replica })));
            self.effects.push(Effect::Removed(group, replica));
            // Its checkpoints go once the removal is durable: a start that found neither would call its state lost.
            if mutant!(removal_unflushed) {
                self.effects.push(Effect::DeleteCheckpoints(group));
            }
        }
    }

    /// Whether a child that needs the group's log goes, and the log does not say so yet: after a crash it would be
    /// there again.
    fn is_parent_of_leaving(&self, group: PartitionId) -> bool {
        let waits = |leaving: &Removal| leaving.parent == Some(group) && !leaving.is_removed;
        self.leaving.values().any(waits) && !mutant!(released_before_removal)
    }

    /// Whether everything that is to be here is here, or goes.
    pub(super) fn is_complete(&self) -> bool {
        let lacks = |own| self.replica_manager.lacks_any(own, &self.map);
        let waits = !self.replica_manager.awaiting_snapshot().is_empty() || !self.replica_manager.unsaved().is_empty();
        !waits && !self.node.is_some_and(lacks)
    }

    /// A split is decided and executed in `parent`, which is `led` here or not: each replica of the parent starts the
    /// child's beside it, from the fork, and no data moves (protocol.md 8).
    pub(super) fn on_forked(&mut self, (parent, me): (PartitionId, ReplicaId), led: bool, forks: &[Fork]) {
        let Some(own) = self.node else { return };
        if self.replica_manager.running().get(&parent) == Some(&me) {
            self.splits.entry(parent).or_default().executed += 1;
        }
        for fork in forks {
            if let Some(start) = self.replica_manager.fork(own, parent, led, fork) {
                self.start(start);
                failpoint!("control.forked");
                self.save_children();
            }
        }
    }

    /// Tells the workers of parents whose children are all on the disk.
    pub(super) fn release_parents(&mut self) {
        let is_free = |group: PartitionId| !self.replica_manager.is_needed(group) && !self.is_parent_of_leaving(group);
        let waiting = self.splits.iter().filter(|(group, splits)| splits.await_children() && is_free(**group));
        let free: Vec<(PartitionId, u32)> = waiting.map(|(&group, splits)| (group, splits.executed)).collect();
        for (group, splits) in free {
            self.splits.insert(group, Splits { executed: splits, saved: splits });
            self.tell_owner(group, worker::Input::ChildrenSaved { group, splits });
        }
    }

    /// Has the children that have no checkpoint yet write one.
    pub(super) fn save_children(&mut self) {
        for child in self.replica_manager.unsaved() {
            self.tell_owner(child, worker::Input::CheckpointNow(child));
        }
    }
}

/// Whether this process may speak for the replicas that it found on its disk (hazards.md PX12): the other nodes of
/// their groups say so ([`crate::incarnation::fence`]).
impl Controller {
    /// This process is that node: it is mute until it is known whose word counts.
    pub(super) fn begin(&mut self, node: NodeId) {
        self.node = Some(node);
        self.change_fence(Fence::hold);
    }

    /// What the disk holds runs: the word of the others is awaited for an election timeout.
    pub(super) fn on_restored(&mut self, seeds: u32, copy: Option<String>) {
        if let Some(text) = copy {
            self.change_fence(|fence| _ = fence.mark_copy(&text));
            return self.drop_all();
        }
        let (neighbours, until) = (self.neighbours(seeds), self.now + self.known.settings.election_timeout);
        self.change_fence(|fence| fence.await_nodes(neighbours, until));
    }

    /// This process falls silent and drops its replicas. The mark on the disk tells later starts.
    pub(super) fn on_found_out(&mut self, by: NodeId, text: String) {
        let mut is_new = false;
        self.change_fence(|fence| is_new = fence.mark_copy(&text));
        if is_new {
            self.effects.push(Effect::WriteCopyMark { by, text });
            self.drop_all();
        }
    }

    /// An election timeout has passed: who was not reached then is awaited no longer.
    pub(super) fn end_fence(&mut self) {
        if self.fence.deadline().is_some_and(|until| until <= self.now) {
            self.effects.push(Effect::Unreached(self.fence.awaited().clone()));
            self.change_fence(|fence| _ = fence.stop_waiting());
        }
    }

    /// Has the workers told what that means for them.
    pub(super) fn change_fence(&mut self, change: impl FnOnce(&mut Fence)) {
        let before = self.fence.may_speak();
        change(&mut self.fence);
        let may_speak = self.fence.may_speak();
        if may_speak != before {
            self.effects.push(Effect::MaySpeak(may_speak));
        }
    }

    fn drop_all(&mut self) {
        let groups: Vec<PartitionId> = self.replica_manager.running().keys().copied().collect();
        groups.into_iter().for_each(|group| self.tell_owner(group, worker::Input::Drop(group)));
    }

    /// The other nodes of the groups whose replicas run here: whether this process may speak for these is theirs to
    /// say. Before there is a map, the nodes of the cluster are numbered like its seeds.
    fn neighbours(&self, seeds: u32) -> BTreeSet<NodeId> {
        let running = self.replica_manager.running();
        let is_here = |entry: &&Entry| running.contains_key(&entry.partition) && !mutant!(fence_awaits_nobody);
        let here = self.map.groups().filter(is_here);
        let mut nodes: BTreeSet<NodeId> = here.flat_map(|entry| entry.replicas.iter().map(|info| info.node)).collect();
        if self.map.version.0 == 0 && !running.is_empty() {
            nodes.extend((1..=seeds).map(NodeId));
        }
        nodes.retain(|&node| Some(node) != self.node);
        nodes
    }
}
