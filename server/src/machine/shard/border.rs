//! Moving borders: what a split does to a partition's state, and how it is taken back (ordering.md 8, 2.3).
//!
//! The tree is cut in O(log n) and the upper part becomes the child's: no pair is copied. Commands after the cut cannot
//! touch the upper part, so taking the cut back is joining it again.

use bytes::Bytes;
use coppice_btree::{KeyRange, Snapshot, UndoMark};
use coppice_client::map::ReplicaInfo;
use coppice_client::wire::{ChangeId, MapVersion, PartitionId};
use coppice_ordering::Instance;
use serde::{Deserialize, Serialize};

use super::{Shard, ShardMark};
use crate::sessions::Sessions;

/// Changes of a partition's borders whose ids are remembered: each was the only one under way for its partition, so a
/// repetition comes before many others.
const APPLIED_MAX: usize = 64;

/// A change of borders as it stands in a partition's log. It is applied once: its id is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BorderChange {
    /// Its name.
    pub id: ChangeId,
    /// The map that it leads to.
    pub version: MapVersion,
    /// What.
    pub border: Border,
}

impl BorderChange {
    /// Those that must have placed it before it is released.
    pub fn partitions(&self) -> [PartitionId; 2] {
        let Border::Split { parent, child, .. } = &self.border;
        [*parent, *child]
    }
}

/// What a change does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Border {
    /// The keys from `at` on become a partition of their own.
    Split {
        /// Which partition is cut.
        parent: PartitionId,
        /// The new one.
        child: PartitionId,
        /// Its first key.
        #[serde(with = "coppice_client::wire::serde_bytes")]
        at: Bytes,
        /// Its replicas, each beside one of the parent's.
        replicas: Vec<ReplicaInfo>,
    },
}

/// The child of a split, as it begins.
#[derive(Debug)]
pub struct Fork {
    /// The instance of the parent's log that made it: its own log goes on from there.
    pub instance: Instance,
    /// The map that names it.
    pub version: MapVersion,
    /// Its replicas.
    pub replicas: Vec<ReplicaInfo>,
    /// Its state.
    pub shard: Shard,
}

/// Takes one change back.
#[derive(Debug)]
pub(super) struct Cut {
    /// What ran before the change.
    at: UndoMark,
    range: KeyRange,
    map_version: MapVersion,
    applied: usize,
    upper: Snapshot,
}

impl Shard {
    /// Applies a change, unless it was applied before or does not concern this partition.
    pub(crate) fn change(&mut self, instance: Instance, change: &BorderChange, mark: &mut ShardMark) {
        if self.applied.contains(&change.id) {
            return;
        }
        let Border::Split { parent, child, at, replicas } = &change.border;
        if *parent != self.partition || !self.range.contains(at) || **at == *self.range.low {
            return;
        }
        let before = self.range.clone();
        let upper = self.tree.split_off(at);
        mark.cuts.push(Cut {
            at: self.undo.mark(),
            range: before.clone(),
            map_version: self.map_version,
            applied: self.applied.len(),
            upper: upper.snapshot(),
        });
        self.range.high = Some(at[..].into());
        self.map_version = change.version;
        self.applied.push(change.id);
        let sessions = match crate::mutant!(fork_no_sessions) {
            true => Sessions::default(),
            // The rows of before, without what only undo still needs.
            false => Sessions::import(self.sessions.export()),
        };
        let shard = Shard {
            partition: *child,
            range: KeyRange { low: at[..].into(), high: before.high },
            map_version: change.version,
            tree: upper,
            sessions,
            session_limits: self.session_limits,
            chain: self.chain.child(),
            applied: self.applied.clone(),
            ..Shard::new(*child, KeyRange::all(), change.version)
        };
        mark.forks.push(Fork { instance, version: change.version, replicas: replicas.clone(), shard });
    }

    /// Takes back what a batch did to tree and borders, newest first.
    pub(super) fn undo_borders(&mut self, mark: &ShardMark) {
        for cut in mark.cuts.iter().rev() {
            self.tree.undo_to(&mut self.undo, cut.at);
            self.tree.join(cut.upper.clone().into());
            self.range = cut.range.clone();
            self.map_version = cut.map_version;
            self.applied.truncate(cut.applied);
        }
        self.tree.undo_to(&mut self.undo, mark.tree);
    }

    /// A batch is decided: old ids of changes go where no undo needs them any more.
    pub(super) fn confirm_borders(&mut self, mark: &ShardMark) {
        if !mark.cuts.is_empty() && self.applied.len() > 2 * APPLIED_MAX {
            self.applied.drain(..APPLIED_MAX);
        }
    }

    /// Ids of the changes of borders that were applied, for a snapshot.
    pub fn applied(&self) -> &[ChangeId] {
        &self.applied
    }

    /// The same after a snapshot was loaded.
    pub fn set_applied(&mut self, applied: Vec<ChangeId>) {
        self.applied = applied;
    }
}
