//! Snapshots of other nodes: for a replica that is too far behind, for one that joins, and for one whose own state is
//! gone (protocol.md 1.5, 1.6). One fetch asks one node; if that gives nothing, the next one is asked.

use std::collections::{BTreeMap, VecDeque};

use coppice_btree::KeyRange;
use coppice_client::map::{Entry, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId};
use coppice_ordering::{Instance, ReplicaId};

use super::step::ByGroup;
use super::{Controller, Effect, FetchId};
use crate::snapshot::LoadedSnapshot;
use crate::worker;

/// What a snapshot is fetched for.
#[derive(Debug)]
enum Purpose {
    /// A replica that runs, and holds this, lacks what the others have forgotten.
    Install(KeyRange),
    /// This replica is to begin with it.
    Join(ReplicaId),
    /// A replica that ran before has lost its state.
    Restore,
}

#[derive(Debug)]
struct Fetch {
    group: PartitionId,
    purpose: Purpose,
    least: Instance,
    /// Who is yet to be asked.
    sources: VecDeque<NodeId>,
}

/// A replica that is to join waits for the word of the workers: does another replica here hold its keys?
#[derive(Debug)]
struct HoldsQuestion {
    asked: u64,
    me: ReplicaId,
    /// Workers that have yet to answer.
    left: usize,
    sources: Vec<NodeId>,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// The newest number, of a fetch or a question.
    newest: u64,
    under_way: BTreeMap<FetchId, Fetch>,
    asked: ByGroup<HoldsQuestion>,
    /// Counts joins, so that the next one begins with another source.
    joins: usize,
}

impl Controller {
    fn fetch(&mut self, mut fetch: Fetch) -> bool {
        let Some(from) = fetch.sources.pop_front() else { return false };
        self.fetches.newest += 1;
        let id = self.fetches.newest;
        self.effects.push(Effect::Fetch { fetch: id, group: fetch.group, from, least: fetch.least });
        self.fetches.under_way.insert(id, fetch);
        true
    }

    /// A replica here can go on with a snapshot only.
    pub(super) fn fetch_newer(&mut self, group: PartitionId, held: KeyRange, from: NodeId, least: Instance) {
        if mutant!(behind_for_ever) {
            return;
        }
        let purpose = Purpose::Install(held);
        _ = self.fetch(Fetch { group, purpose, least, sources: [from].into() });
    }

    /// A replica of a group that is there already begins with a snapshot from one of its voters (protocol.md 1.5), or
    /// from a learner: that may vote already, and the map not know it until the group has a leader. If another replica
    /// here still holds its keys, the split that gives them to it has yet to be executed here, and the child begins
    /// from the fork.
    pub(super) fn join(&mut self, entry: &Entry, me: ReplicaId) {
        let (group, Some(own)) = (entry.partition, self.node) else { return };
        if self.leaving.contains_key(&group) && !mutant!(joins_amid_deletion) {
            return;
        }
        let elsewhere = |role| {
            let others = entry.replicas.iter().filter(move |info| info.role == role && info.node != own);
            others.map(|info| info.node)
        };
        let mut sources: Vec<NodeId> = elsewhere(Role::Voter).collect();
        let first = (self.fetches.joins + 1) % sources.len().max(1);
        sources.rotate_left(first);
        if !mutant!(learners_unasked) {
            sources.extend(elsewhere(Role::Learner));
        }
        if sources.is_empty() || !self.replica_manager.begin_join(group, me) {
            return;
        }
        self.fetches.joins += usize::from(!mutant!(one_source_is_asked));
        if !self.replica_manager.may_be_forked(&self.map, group) || mutant!(joins_before_fork) {
            return self.fetch_first(group, me, sources);
        }
        let asked = self.fetches.newest + 1;
        self.fetches.newest = asked;
        self.fetches.asked.insert(group, HoldsQuestion { asked, me, left: self.workers, sources });
        for worker in 0..self.workers {
            let holds = worker::Input::Holds { asked, group, low: entry.low.clone() };
            self.effects.push(Effect::Worker(worker, holds));
        }
    }

    /// Whether a replica of this worker, of another group, holds the keys that a replica which joins begins with.
    pub(super) fn on_held(&mut self, asked: u64, group: PartitionId, is_held: bool) {
        let Some(waiting) = self.fetches.asked.get_mut(&group).filter(|waiting| waiting.asked == asked) else { return };
        waiting.left -= 1;
        if !is_held && waiting.left > 0 && !mutant!(one_worker_knows_all) {
            return;
        }
        let Some(HoldsQuestion { me, sources, .. }) = self.fetches.asked.remove(&group) else { return };
        if is_held {
            // Asked again at the next look.
            _ = self.replica_manager.end_join(group, me);
        } else if self.replica_manager.is_joining(group, me) {
            self.fetch_first(group, me, sources);
        }
    }

    fn fetch_first(&mut self, group: PartitionId, me: ReplicaId, sources: Vec<NodeId>) {
        let fetch = Fetch { group, purpose: Purpose::Join(me), least: Instance::ZERO, sources: sources.into() };
        if !self.fetch(fetch) {
            _ = self.replica_manager.end_join(group, me);
        }
    }

    /// Asks other nodes for the state of each replica that waits for it.
    pub(super) fn ask_for_states(&mut self) {
        let Some(own) = self.node else { return };
        for group in self.replica_manager.unasked().into_iter().filter(|_| !mutant!(states_unasked)) {
            let Some((nodes, least)) = self.replica_manager.ask_for_state(own, &self.map, group) else { continue };
            _ = self.fetch(Fetch { group, purpose: Purpose::Restore, least, sources: nodes.into() });
        }
    }

    /// Whether a snapshot that begins so is wanted.
    pub(super) fn on_offered(&mut self, id: FetchId, kept: &KeyRange, version: MapVersion) {
        let (wanted, own) = (self.fetches.under_way.get(&id), self.node.unwrap_or_default());
        let may = wanted.is_some_and(|fetch| match &fetch.purpose {
            Purpose::Install(held) => {
                self.replica_manager.may_install(own, &self.map, (fetch.group, held), (kept, version))
            }
            Purpose::Join(me) => self.replica_manager.is_joining(fetch.group, *me),
            Purpose::Restore => true,
        });
        self.effects.push(Effect::Admit(id, may));
        if !may {
            // What it gives away is fetched first.
            self.start_missing();
        }
    }

    /// A snapshot is durable here, or none came.
    pub(super) fn on_fetched(&mut self, id: FetchId, loaded: Option<Box<LoadedSnapshot>>) {
        let Some(fetch) = self.fetches.under_way.remove(&id) else { return };
        let is_called_off = match &fetch.purpose {
            Purpose::Join(me) => !self.replica_manager.is_joining(fetch.group, *me),
            Purpose::Install(_) | Purpose::Restore => false,
        };
        if !is_called_off && loaded.is_none() && !fetch.sources.is_empty() && !mutant!(one_source_is_asked) {
            _ = self.fetch(fetch);
            return;
        }
        let group = fetch.group;
        match fetch.purpose {
            Purpose::Install(_) => self.tell_owner(group, worker::Input::Snapshot(group, loaded)),
            Purpose::Join(me) => self.joined(group, me, loaded),
            Purpose::Restore => {
                if let Some(start) = self.replica_manager.snapshot_arrived(group, loaded.map(|loaded| *loaded)) {
                    self.start(start);
                }
            }
        }
    }

    fn joined(&mut self, group: PartitionId, me: ReplicaId, loaded: Option<Box<LoadedSnapshot>>) {
        let (own, Some(loaded)) = (self.node.unwrap_or_default(), loaded) else {
            _ = self.replica_manager.end_join(group, me);
            return;
        };
        if let Some(start) = self.replica_manager.joined(own, &self.map, (group, me), *loaded) {
            self.start(start);
            failpoint!("control.joined");
        }
    }
}
