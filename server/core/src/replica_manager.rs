//! Which replicas live on this node: which run again after a restart, which begin because the map or a split says so,
//! which wait for their state, which go, and whose log is still needed (protocol.md 1.5, 8).
//!
//! Pure: it decides and remembers. The controller has the log read, snapshots fetched, replicas started and stopped as
//! it says. It knows neither settings nor how a snapshot travels.

mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use coppice_btree::KeyRange;
use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId};
use coppice_ordering::{Instance, ReplicaId};
pub use start::{CreateRequest, Start};

use crate::ids;
use crate::machine::partition::Fork;
use crate::replay::GroupReplay;
use crate::snapshot::LoadedSnapshot;

/// The version of the map that `init` makes.
const FIRST_MAP: MapVersion = MapVersion(1);

/// A replica that waits for its state. Its promises, and its votes above the trim position, are in the log and intact;
/// what it voted for below is decided, and only the state that came of it is missing. So it is still the old voter
/// (protocol.md 1.5 speaks of lost votes), but until a snapshot at or above the trim position is here it neither votes
/// nor serves: as an acceptor it would report holes where batches were decided (hazards.md PX6).
#[derive(Debug)]
pub struct AwaitingSnapshot {
    me: ReplicaId,
    create: CreateRequest,
    replay: GroupReplay,
    trimmed: Instance,
    /// Times asked so far; the next time begins with the next node.
    asked: usize,
    fetching: bool,
}

impl AwaitingSnapshot {
    /// The snapshot must reach this far.
    pub fn trimmed(&self) -> Instance {
        self.trimmed
    }
}

/// The replica's log was trimmed up to here, no checkpoint reaches that far, and there is no other replica to take its
/// state from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLost(pub Instance);

/// What the map asks of this node about one group.
#[derive(Debug)]
pub enum PlacementDemand {
    /// Nothing: it has no replica here, or it runs, or waits for its state, or was removed.
    Nothing,
    /// The group was just made, and this replica of it begins with nothing.
    Begin(Box<Start>),
    /// The group is there already, and this replica of it begins with a snapshot.
    Join(ReplicaId),
}

/// The replicas of one node.
#[derive(Debug, Default)]
pub struct ReplicaManager {
    /// Replicas that run here.
    running: BTreeMap<PartitionId, ReplicaId>,
    /// Replicas that were removed here: not started again (protocol.md 8). One number for each group that operators
    /// merged or moved away; nothing that a client sends adds to it. A group that has ended may not be dropped from it:
    /// a parent that is behind executes its split yet.
    removed: BTreeMap<PartitionId, ReplicaId>,
    /// Replicas whose state must come from another node, or from a split executed again, before they run.
    awaiting_snapshot: BTreeMap<PartitionId, AwaitingSnapshot>,
    /// The map version of each replica's create request: a map at least as new that does not name it has removed it.
    created_at: BTreeMap<PartitionId, MapVersion>,
    /// Groups that a replica here is to join, while its snapshot is on its way.
    joining: BTreeMap<PartitionId, ReplicaId>,
    /// Groups that this node lacks while a snapshot waits which skips splits that made them: no fork is waited for.
    skipped: BTreeSet<PartitionId>,
    /// Children of splits without a checkpoint yet, with their parents. Until it has one, a child's beginning exists
    /// only as the parent's log up to the split.
    unsaved: BTreeMap<PartitionId, UnsavedChild>,
    /// With which replicas the directory began here; none: it did not.
    founders: Vec<(ReplicaId, NodeId)>,
    /// Replicas whose create request is on its way to the log: a crash may leave a checkpoint of a replica that nobody
    /// knows.
    pending_creates: BTreeSet<PartitionId>,
}

/// A child that needs its parent.
#[derive(Debug)]
struct UnsavedChild {
    parent: PartitionId,
    /// It has a checkpoint, and waits for its create request to be durable.
    has_checkpoint: bool,
}

/// Starting.
impl ReplicaManager {
    /// The log of this node says that a replica of the group was removed here.
    pub fn note_removed(&mut self, group: PartitionId, replica: ReplicaId) {
        self.removed.insert(group, replica);
    }

    /// A replica that ran here before: it goes on, or waits for its state (none).
    ///
    /// # Errors
    /// Its state is gone, and nobody else has it.
    pub fn restart(
        &mut self,
        own: NodeId,
        (group, me): (PartitionId, ReplicaId),
        create: CreateRequest,
        loaded: Option<LoadedSnapshot>,
        mut replay: GroupReplay,
    ) -> Result<Option<Start>, StateLost> {
        self.created_at.insert(group, create.map_version());
        self.note_founders(group, &create);
        let state = loaded.as_ref().map(|loaded| loaded.instance.max(replay.state()));
        let Some(trimmed) = create.lacks(state, replay.trimmed) else {
            return Ok(Some(Start::again(group, me, create, loaded, &mut replay)));
        };
        // A child's beginning comes from the split, which its parent here executes again.
        if replay.trimmed.is_some() && create.nodes().all(|(_, node)| node == own) {
            return Err(StateLost(trimmed));
        }
        self.awaiting_snapshot
            .insert(group, AwaitingSnapshot { me, create, replay, trimmed, asked: 0, fetching: false });
        Ok(None)
    }

    /// What the map asks of this node about a group. A newer replica of it takes the place of one that waits here.
    pub fn wanted(&mut self, own: NodeId, entry: &Entry) -> PlacementDemand {
        let group = entry.partition;
        let Some(info) = entry.replica_on(own) else { return PlacementDemand::Nothing };
        let me = ids::replica(info.replica);
        let waiting = self.awaiting_snapshot.get(&group).map(|waiting| waiting.me);
        let known = self.running.get(&group).copied().or(waiting).or_else(|| self.removed.get(&group).copied());
        if known.is_some_and(|known| known >= me) {
            return PlacementDemand::Nothing;
        }
        // An older replica goes first, and its checkpoints with it: they lie where those of the next one will.
        if self.running.contains_key(&group) && !mutant!(joins_beside_its_elder) {
            return PlacementDemand::Nothing;
        }
        self.awaiting_snapshot.remove(&group);
        // Since the first map nothing was changed about the group: its log begins with what this entry says. Any later
        // entry says nothing about how the group began.
        if entry.version > FIRST_MAP || info.role == Role::Learner {
            if info.role == Role::Voter && mutant!(snapshot_skips_fork) {
                return PlacementDemand::Nothing;
            }
            return PlacementDemand::Join(me);
        }
        let first = entry.replicas.first().is_some_and(|first| first.node == own);
        let create = CreateRequest::of(entry);
        self.note_founders(group, &create);
        PlacementDemand::Begin(Box::new(Start::founding(group, me, create, first)))
    }

    fn note_founders(&mut self, group: PartitionId, create: &CreateRequest) {
        if group == PartitionId::DIRECTORY {
            self.founders = create.nodes().collect();
        }
    }

    /// Whether the directory may begin here as `entry` says; without replicas it says nothing. Every `init` asks the
    /// first seed first, which has a replica of it in any case.
    ///
    /// # Errors
    /// It began here with other replicas: a majority of these and one of those could decide beside each other.
    pub fn may_found(&self, entry: &Entry) -> Result<(), String> {
        let asked = entry.replicas.iter().map(|info| (ids::replica(info.replica), info.node));
        let says_nothing = self.founders.is_empty() || entry.replicas.is_empty();
        if says_nothing || self.founders.iter().copied().eq(asked) || mutant!(founds_otherwise) {
            return Ok(());
        }
        let nodes: Vec<String> = self.founders.iter().map(|(_, node)| node.to_string()).collect();
        Err(format!(
            "the directory began here on {}: repeat init with the seeds and the replicas of the first time, or begin \
             anew with empty data directories",
            nodes.join(", ")
        ))
    }

    /// Whether the map names a replica for this node that does not run.
    pub fn lacks_any(&self, own: NodeId, map: &PartitionMap) -> bool {
        !self.lacked(own, map).is_empty()
    }

    fn lacked(&self, own: NodeId, map: &PartitionMap) -> Vec<PartitionId> {
        let named = map.groups().filter(|entry| entry.replica_on(own).is_some()).map(|entry| entry.partition);
        named.filter(|group| !self.running.contains_key(group)).collect()
    }

    /// The child of a split that is decided and executed here begins beside its parent, which is `led` here or not; or
    /// it was started before.
    pub fn fork(&mut self, own: NodeId, parent: PartitionId, led: bool, fork: &Fork) -> Option<Start> {
        let group = fork.partition.id();
        let me = ids::replica(fork.replicas.iter().find(|info| info.node == own)?.replica);
        // Started before, even if removed since: a second start would vote without what the first one promised
        // (hazards.md MV11).
        let known = self.running.get(&group).or_else(|| self.removed.get(&group));
        if known.is_some_and(|&known| known >= me) && !mutant!(fork_again) {
            return None;
        }
        // One that waits for its state here, and whose log was trimmed above the fork, has no votes left from there on:
        // from the fork it would go on without them. So would a replica that a newer one has taken the place of.
        let waits = self.awaiting_snapshot.get(&group);
        if waits.is_some_and(|waits| waits.me > me || (waits.me == me && waits.trimmed > fork.instance))
            && !mutant!(fork_below_trimmed)
        {
            return None;
        }
        self.joining.remove(&group);
        let mut start = Start::forked(parent, fork, me, led);
        if let Some(mut waiting) = self.awaiting_snapshot.remove(&group).filter(|waiting| waiting.me == me) {
            (start.create, start.is_new) = (waiting.create, false);
            start.replay(&mut waiting.replay);
        }
        self.unsaved.insert(group, UnsavedChild { parent, has_checkpoint: false });
        Some(start)
    }

    /// The replica runs from now on.
    pub fn runs(&mut self, start: &Start) {
        self.running.insert(start.group, start.me);
        if start.is_new && !mutant!(create_unflushed) {
            self.pending_creates.insert(start.group);
        }
        self.skipped.remove(&start.group);
        self.created_at.insert(start.group, start.create.map_version());
    }

    /// The create request of a replica that runs is durable.
    pub fn create_is_durable(&mut self, group: PartitionId, me: ReplicaId) {
        if self.running.get(&group) == Some(&me) {
            self.pending_creates.remove(&group);
            if self.unsaved.get(&group).is_some_and(|child| child.has_checkpoint) {
                self.unsaved.remove(&group);
            }
        }
    }

    /// Replicas that run here.
    pub fn running(&self) -> &BTreeMap<PartitionId, ReplicaId> {
        &self.running
    }
}

/// Joining, and waiting for a snapshot.
impl ReplicaManager {
    /// A replica is to join a group; `false`: that is under way.
    pub fn begin_join(&mut self, group: PartitionId, me: ReplicaId) -> bool {
        let begins = self.joining.get(&group).is_none_or(|&joining| joining < me);
        if begins {
            self.joining.insert(group, me);
        }
        begins
    }

    /// Whether it is still to join: a split executed meanwhile may have started it.
    pub fn is_joining(&self, group: PartitionId, me: ReplicaId) -> bool {
        self.joining.get(&group) == Some(&me)
    }

    /// Whether a replica that joins is to wait while another replica here holds the group's keys: a split has yet to be
    /// executed here, and the child begins from its fork. The keys of a partition that ends are with its merge target,
    /// which splits it off no more.
    pub fn may_be_forked(&self, map: &PartitionMap, group: PartitionId) -> bool {
        !self.skipped.contains(&group)
            && group != PartitionId::DIRECTORY
            && map.ending.iter().all(|entry| entry.partition != group)
    }

    /// No snapshot came; it is tried again when the map is looked at. `false`: the join was called off before.
    pub fn end_join(&mut self, group: PartitionId, me: ReplicaId) -> bool {
        let joins = self.is_joining(group, me);
        if joins {
            self.joining.remove(&group);
        }
        joins
    }

    /// The first snapshot of a joining replica is here, durable: it begins, if it is still to join and the map wants
    /// it. A split that was executed meanwhile may have started an older one.
    pub fn joined(
        &mut self,
        own: NodeId,
        map: &PartitionMap,
        (group, me): (PartitionId, ReplicaId),
        loaded: LoadedSnapshot,
    ) -> Option<Start> {
        let joins = self.end_join(group, me) && !self.running.contains_key(&group);
        let entry = map.group(group).filter(|_| joins || mutant!(joins_after_fork))?;
        let wanted = entry.replica_on(own).is_some_and(|info| ids::replica(info.replica) == me);
        if !wanted || self.removed.get(&group).is_some_and(|&removed| removed >= me) {
            return None;
        }
        Some(Start::joining(group, me, CreateRequest::of_later(entry), loaded))
    }

    /// Whether a snapshot that holds `kept`, by the map of `version`, may take the place of a replica of `group` here
    /// that holds `held`. What it does not hold went to other partitions, by splits that this replica will not
    /// execute: until those which the map names here run, each with a checkpoint of its own, this disk is one of the
    /// majority that has their keys (hazards.md MV10). They join without waiting for a fork then. The snapshot may
    /// skip a merge too, and then what it gives away is with the partition that ends.
    pub fn may_install(
        &mut self,
        own: NodeId,
        map: &PartitionMap,
        (group, held): (PartitionId, &KeyRange),
        (kept, version): (&KeyRange, MapVersion),
    ) -> bool {
        if group == PartitionId::DIRECTORY || mutant!(install_before_children) {
            return true;
        }
        // Who has what went, and what ended, is not known here yet.
        if map.version < version {
            return false;
        }
        let range =
            |entry: &Entry| KeyRange { low: (&entry.low[..]).into(), high: entry.high.as_deref().map(Into::into) };
        let ending = map.ending.iter().filter(|entry| self.running.contains_key(&entry.partition)).map(range);
        let ending = ending.filter(|_| !mutant!(merge_skipped));
        let gone: Vec<KeyRange> = ending.chain([held.clone()]).flat_map(|had| had.minus(kept)).collect();
        let has_some = |entry: &&Entry| {
            let range = range(entry);
            entry.partition != group && gone.iter().any(|gone| !gone.intersect(&range).is_empty())
        };
        let missing = |entry: &&Entry| {
            let info = entry.replica_on(own).filter(|info| info.role == Role::Voter);
            let durable =
                self.running.get(&entry.partition).filter(|_| !self.pending_creates.contains(&entry.partition));
            let ours = durable.or_else(|| self.removed.get(&entry.partition));
            info.is_some_and(|info| ours.is_none_or(|&ours| ours < ids::replica(info.replica)))
        };
        let owners = map.groups().filter(|entry| entry.partition != PartitionId::DIRECTORY).filter(has_some);
        let missing: Vec<PartitionId> = owners.filter(missing).map(|entry| entry.partition).collect();
        // A child may not be born yet, and its parent wait here for a fork that comes no more.
        if !missing.is_empty() && !mutant!(parent_awaits_fork) {
            self.skipped.extend(self.lacked(own, map));
        }
        self.skipped.extend(&missing);
        missing.is_empty() && !self.is_needed(group)
    }

    /// Replicas that wait for their state.
    pub fn awaiting_snapshot(&self) -> &BTreeMap<PartitionId, AwaitingSnapshot> {
        &self.awaiting_snapshot
    }

    /// Groups whose state nobody was asked for yet, or was asked in vain.
    pub fn unasked(&self) -> Vec<PartitionId> {
        self.awaiting_snapshot.iter().filter(|(_, waiting)| !waiting.fetching).map(|(&group, _)| group).collect()
    }

    /// The nodes to ask now for the state of a replica that waits, one after the other: those of its create request and
    /// of the map, each time from the next one on. The answer goes to [`ReplicaManager::snapshot_arrived`].
    pub fn ask_for_state(
        &mut self,
        own: NodeId,
        map: &PartitionMap,
        group: PartitionId,
    ) -> Option<(Vec<NodeId>, Instance)> {
        let waiting = self.awaiting_snapshot.get_mut(&group)?;
        let mut nodes: Vec<NodeId> = waiting.create.nodes().map(|(_, node)| node).collect();
        nodes.extend(map.group(group).into_iter().flat_map(|entry| entry.replicas.iter().map(|info| info.node)));
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|&node| node != own);
        let first = waiting.asked % nodes.len().max(1);
        nodes.rotate_left(first);
        waiting.asked += 1;
        waiting.fetching = !nodes.is_empty();
        waiting.fetching.then_some((nodes, waiting.trimmed))
    }

    /// What a node gave that was asked for a state; none: nothing. If it does not reach far enough, the next one is
    /// asked.
    pub fn snapshot_arrived(&mut self, group: PartitionId, loaded: Option<LoadedSnapshot>) -> Option<Start> {
        let waiting = self.awaiting_snapshot.get_mut(&group)?;
        waiting.fetching = false;
        let loaded = loaded.filter(|loaded| loaded.instance >= waiting.trimmed)?;
        let AwaitingSnapshot { me, create, mut replay, .. } = self.awaiting_snapshot.remove(&group)?;
        Some(Start::again(group, me, create, Some(loaded), &mut replay))
    }
}

/// Checkpoints and removal.
impl ReplicaManager {
    /// Children of splits that have no checkpoint yet, and are to write one now. One that was split itself waits for
    /// its own child: else, after a crash, its checkpoint is behind that split, and nothing makes that child again.
    pub fn unsaved(&self) -> Vec<PartitionId> {
        let waits = |group| self.is_needed(group) && !mutant!(child_saved_before_its_child);
        let unsaved = self.unsaved.iter().filter(|(_, child)| !child.has_checkpoint).map(|(&group, _)| group);
        unsaved.filter(|&group| !waits(group)).collect()
    }

    /// A checkpoint of a group is durable here.
    pub fn saved(&mut self, group: PartitionId) {
        if !self.pending_creates.contains(&group) {
            self.unsaved.remove(&group);
        } else if let Some(child) = self.unsaved.get_mut(&group) {
            child.has_checkpoint = true;
        }
    }

    /// The parent whose log a replica here needs: its own beginning is on the disk in no other way.
    pub fn needs(&self, child: PartitionId) -> Option<PartitionId> {
        self.unsaved.get(&child).map(|child| child.parent)
    }

    /// Whether a child on this node still needs the group's log: it takes no checkpoint and is not removed until the
    /// child has a checkpoint of its own. After a crash it executes the split again, and the child, whose create
    /// request and votes stand in the log, goes on from the same fork.
    pub fn is_needed(&self, group: PartitionId) -> bool {
        self.unsaved.values().any(|child| child.parent == group)
    }

    /// Replicas here that the map does not name. The directory takes a replica off the map only when a quorum
    /// of those that stay durably holds all of the log up to its removal (protocol.md 1.5).
    pub fn unnamed(&self, own: NodeId, map: &PartitionMap) -> Vec<PartitionId> {
        // An older map than the one that it was born from says nothing about it, and no map at all even less.
        if map.version == MapVersion(0) {
            return Vec::new();
        }
        let named = |group: PartitionId, me: ReplicaId| {
            let info = map.group(group).and_then(|entry| entry.replica_on(own));
            info.is_some_and(|info| ids::replica(info.replica) == me)
        };
        let newer = |group: &PartitionId| self.created_at.get(group).is_none_or(|born| map.version >= *born);
        let gone = self.running.iter().filter(|&(group, &me)| newer(group) && !named(*group, me));
        gone.map(|(&group, _)| group).filter(|&group| !self.has_use(own, map, group)).collect()
    }

    /// Whether a child on this node still needs the group's log, or will: one that waits for its state can have it from
    /// the group only, if it was started again without a checkpoint, and the split is still to be executed again. One
    /// that the map does not name counts for its own children.
    fn has_use(&self, own: NodeId, map: &PartitionMap, group: PartitionId) -> bool {
        let wanted = |child: PartitionId, waiting: &AwaitingSnapshot| {
            let info = map.group(child).and_then(|entry| entry.replica_on(own));
            let named = info.is_some_and(|info| ids::replica(info.replica) == waiting.me);
            named || map.version < waiting.create.map_version()
        };
        let of_group =
            |waiting: &AwaitingSnapshot| waiting.create.is_child_of(group) && waiting.trimmed == Instance::ZERO;
        let mut waiting = self.awaiting_snapshot.iter().filter(|(_, waiting)| of_group(waiting));
        let waits = waiting.any(|(&child, waiting)| wanted(child, waiting) || self.has_use(own, map, child));
        self.is_needed(group) || waits && !mutant!(awaited_parent_goes)
    }

    /// Of the groups that have checkpoints on this disk, those that no replica which the log knows as started can read:
    /// it was removed, and the process ended before its checkpoints were deleted; or it was to join, and never began.
    pub fn stale(&self, on_disk: Vec<PartitionId>) -> Vec<PartitionId> {
        let live = |group: &PartitionId| self.running.contains_key(group) || self.awaiting_snapshot.contains_key(group);
        let stale = on_disk.into_iter().filter(|group| !live(group));
        if mutant!(stale_checkpoints_stay) { Vec::new() } else { stale.collect() }
    }

    /// The replica was removed from its group: it goes, and is never started again. None: it does not run, or is still
    /// needed.
    pub fn remove(&mut self, own: NodeId, map: &PartitionMap, group: PartitionId) -> Option<ReplicaId> {
        if self.has_use(own, map, group) {
            return None;
        }
        let replica = self.running.remove(&group)?;
        self.unsaved.remove(&group);
        self.pending_creates.remove(&group);
        self.removed.insert(group, replica);
        self.created_at.remove(&group);
        Some(replica)
    }
}
