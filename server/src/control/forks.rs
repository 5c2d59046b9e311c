//! Children of splits: each replica of the parent starts the child's beside it, from the fork, and no data moves
//! (ordering.md 8).
//!
//! Until the child's first checkpoint is durable, its beginning exists only as the parent's log up to the split. So
//! the parent takes no checkpoint and is not removed before; after a crash it executes the split again, and the child,
//! whose birth and votes stand in the log, goes on from the same fork.

use std::sync::Arc;

use coppice_client::wire::{MapVersion, PartitionId};
use coppice_ordering::{Configuration, RecoveredGroup};

use super::groups::Birth;
use super::{Control, ask_shard};
use crate::machine::shard::Fork;
use crate::machine::{Machine, Mark};
use crate::net::translate;

impl Control {
    /// A split is decided and executed in `parent`, which is `led` here or not.
    pub(super) fn on_forked(&mut self, parent: PartitionId, led: bool, mark: &Mark) {
        for fork in Machine::forks(mark) {
            self.start_child(parent, led, fork);
        }
    }

    fn start_child(&mut self, parent: PartitionId, led: bool, fork: &Fork) {
        let Some(identity) = self.shared.identity() else { return };
        let group = fork.shard.partition();
        let Some(info) = fork.replicas.iter().find(|info| info.node == identity.node) else { return };
        let me = translate::replica(info.replica);
        // Started before, even if removed since: a second start would vote without what the first one promised
        // (reliability.md MV11).
        let known = self.running.get(&group).or_else(|| self.removed.get(&group));
        if known.is_some_and(|&known| known >= me) && !crate::mutant!(fork_again) {
            return;
        }
        self.joining.remove(&group);
        let voters = fork.replicas.iter().map(|info| translate::replica(info.replica));
        let configuration = Configuration::of_voters(voters);
        let mut recovered = RecoveredGroup::from_snapshot(fork.instance, configuration, fork.instance);
        let birth = match self.healing.remove(&group).filter(|healing| healing.me == me) {
            Some(mut healing) => {
                for (lsn, record) in healing.replay.take_records() {
                    recovered.apply(lsn, record);
                }
                healing.birth
            }
            None => {
                let birth = Birth::of_fork(fork);
                if !self.note_birth(group, me, &birth) {
                    return;
                }
                birth
            }
        };
        tracing::info!(%parent, child = %group, instance = %fork.instance, "a split: the child begins here");
        self.unsaved.insert(group, parent);
        let machine = Machine::Shard(Box::new(fork.shard.copy()));
        // Whoever leads the parent leads the child soonest.
        let launch = self.launch(group, me, &birth, recovered, machine, fork.instance, led);
        self.start(launch);
        self.save_children();
    }

    /// Has the children that have no checkpoint yet write one.
    pub(super) fn save_children(&mut self) {
        for &child in self.unsaved.keys() {
            self.checkpoint_now(child);
        }
    }

    /// A checkpoint of a group is durable here.
    pub(super) fn on_saved(&mut self, group: PartitionId) {
        self.unsaved.remove(&group);
    }

    /// Whether a child on this node still needs the group's log.
    pub(super) fn is_needed(&self, group: PartitionId) -> bool {
        self.unsaved.values().any(|&parent| parent == group)
    }

    /// Whether a replica here still holds the keys that begin with `low`: then the split that gives them to another
    /// group has yet to be executed here, and the child will begin from the fork.
    pub(super) fn awaits_fork(&self, group: PartitionId, low: bytes::Bytes) -> impl Future<Output = bool> + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            for shard in 0..shared.shards() {
                let low = low.clone();
                let holds = ask_shard(&shared, shard, super::groups::LOOK_TIMEOUT, move |shard| {
                    shard.groups.iter().any(|(&id, hosted)| {
                        let data = hosted.replica.executor().machine().shard();
                        id != group && data.is_some_and(|data| data.range().contains(&low))
                    })
                });
                if holds.await.unwrap_or(true) {
                    return true;
                }
            }
            false
        }
    }
}

impl Birth {
    /// Of a child: its state comes from the fork, or later from a snapshot, never from its log alone.
    fn of_fork(fork: &Fork) -> Birth {
        let entry = coppice_client::map::Entry {
            partition: fork.shard.partition(),
            version: MapVersion(fork.version.0),
            low: bytes::Bytes::copy_from_slice(&fork.shard.range().low),
            high: fork.shard.range().high.as_ref().map(|high| bytes::Bytes::copy_from_slice(high)),
            replicas: fork.replicas.clone(),
        };
        Birth::of_later(&entry)
    }
}
