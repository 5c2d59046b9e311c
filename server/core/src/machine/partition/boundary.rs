//! Moving boundaries: what splits and merges do to a partition's state, and how they are taken back (protocol.md 8,
//! 2.3).
//!
//! A split cuts the tree in O(log n) and the upper part becomes the child's; a merge seals one partition, then joins
//! its tree to the neighbour's: no pair is copied. Commands after a cut cannot touch the upper part, so taking the cut
//! back is joining it again; taking a join back is cutting.

use bytes::Bytes;
use coppice_btree::{KeyRange, Snapshot, Tree, UndoMark};
use coppice_client::map::ReplicaInfo;
use coppice_client::wire::{MapVersion, PartitionId};
use coppice_ordering::{Chain, Instance, Ticket};
use serde::{Deserialize, Serialize};

use super::expiry::{ExpiryBefore, ExpiryLeft};
use super::{Partition, PartitionMark};
use crate::sessions::Sessions;

/// A change of boundaries as it stands in a partition's log.
///
/// The directory decides one change of a partition at a time, and each raises the map's version. So a partition applies
/// a change once: when its version is above that of the last change applied there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundaryChange {
    /// The map that it leads to, and its name: no other change has it, whatever operators call theirs.
    pub version: MapVersion,
    pub step: BoundaryStep,
}

impl BoundaryChange {
    /// Those that must have placed it before it is released.
    pub fn partitions(&self) -> Vec<PartitionId> {
        match &self.step {
            BoundaryStep::Split { parent, child, .. } => vec![*parent, *child],
            BoundaryStep::Seal { partition, .. } => vec![*partition],
            BoundaryStep::Join { partition, target } => vec![*partition, *target],
        }
    }

    /// Which of them places it before the other is sent it: nobody waits for a reply of a sealed partition.
    pub fn first(&self) -> Option<PartitionId> {
        match &self.step {
            BoundaryStep::Split { .. } | BoundaryStep::Seal { .. } => None,
            BoundaryStep::Join { partition, .. } => Some(*partition),
        }
    }

    /// Those that it touches, or will.
    pub fn touched(&self) -> [PartitionId; 2] {
        match &self.step {
            BoundaryStep::Split { parent, child, .. } => [*parent, *child],
            BoundaryStep::Seal { partition, target } | BoundaryStep::Join { partition, target } => {
                [*partition, *target]
            }
        }
    }
}

/// What a change does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoundaryStep {
    /// The keys from `at` on become a partition of their own.
    Split {
        /// Which partition is cut.
        parent: PartitionId,
        /// The new one.
        child: PartitionId,
        /// Its first key.
        #[serde(with = "coppice_client::serde_bytes")]
        at: Bytes,
        /// Its replicas, each beside one of the parent's.
        replicas: Vec<ReplicaInfo>,
    },
    /// Stops commands and reads of a partition; it still gives parts of queries. The first half of a merge.
    Seal {
        partition: PartitionId,
        /// The neighbour that will take it in.
        target: PartitionId,
    },
    /// The neighbour of a sealed partition takes in its keys and sessions. The second half of a merge.
    Join {
        /// The sealed one.
        partition: PartitionId,
        /// Its neighbour, on the same nodes.
        target: PartitionId,
    },
}

/// The child of a split, as it begins.
#[derive(Debug)]
pub struct Fork {
    /// The instance of the parent's log that made it: its own log goes on from there.
    pub instance: Instance,
    /// The map that names it.
    pub version: MapVersion,
    pub replicas: Vec<ReplicaInfo>,
    /// Its state.
    pub partition: Partition,
}

/// That a partition is sealed, and for whom: replicated state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seal {
    /// The neighbour that will take it in.
    pub target: PartitionId,
    /// The version of the change that sealed it: below that of the change that joins them, above all before that.
    pub version: MapVersion,
    /// The last ticket when it was sealed.
    pub last_ticket: Option<Ticket>,
}

/// A sealed partition's decided state: what its neighbour takes in. Nothing of it changes.
#[derive(Clone, Debug)]
pub struct AbsorbedState {
    /// Who leaves it.
    pub partition: PartitionId,
    /// For whom, and since when.
    pub seal: Seal,
    range: KeyRange,
    tree: Snapshot,
    expiry: ExpiryLeft,
    sessions: Sessions,
}

/// An absorbed state that a batch needs and that is not here yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedState {
    /// Who leaves it.
    pub partition: PartitionId,
}

/// Takes one change back.
#[derive(Debug)]
pub(super) struct BoundaryUndo {
    /// What ran before the change.
    at: UndoMark,
    range: KeyRange,
    map_version: MapVersion,
    expiry: ExpiryBefore,
    what: TreeUndo,
}

#[derive(Debug)]
enum TreeUndo {
    /// A split cut this off.
    Upper(Snapshot),
    /// A merge sealed the partition.
    Nothing,
    /// A merge joined another tree: below the own keys, or above.
    Lower,
    Higher,
}

impl Partition {
    /// Applies a change, unless it was applied before or does not concern this partition.
    pub(super) fn change(&mut self, instance: Instance, change: &BoundaryChange, mark: &mut PartitionMark) {
        if change.version <= self.map_version && !mutant!(boundary_applied_again) {
            return;
        }
        match &change.step {
            BoundaryStep::Split { parent, child, at, replicas } if *parent == self.partition => {
                self.split(instance, change, (*child, at, replicas), mark);
            }
            BoundaryStep::Seal { partition, target } if *partition == self.partition && self.sealed.is_none() => {
                self.note(change, TreeUndo::Nothing, mark);
                self.sealed =
                    Some(Seal { target: *target, version: change.version, last_ticket: self.chain.last_ticket() });
                mark.seals = true;
                failpoint!("merge.sealed");
            }
            BoundaryStep::Join { partition, target } if *target == self.partition => {
                self.join(instance, change, *partition, mark);
            }
            BoundaryStep::Split { .. } | BoundaryStep::Seal { .. } | BoundaryStep::Join { .. } => {}
        }
    }

    /// Remembers what takes the change back; call it before anything is changed.
    fn note(&mut self, change: &BoundaryChange, what: TreeUndo, mark: &mut PartitionMark) {
        mark.moved.push(BoundaryUndo {
            at: self.undo.mark(),
            range: self.range.clone(),
            map_version: self.map_version,
            expiry: self.expiry.before(),
            what,
        });
        self.map_version = change.version;
    }

    fn split(
        &mut self,
        instance: Instance,
        change: &BoundaryChange,
        (child, at, replicas): (PartitionId, &Bytes, &[ReplicaInfo]),
        mark: &mut PartitionMark,
    ) {
        if !self.range.contains(at) || **at == *self.range.low || self.sealed.is_some() {
            return;
        }
        let before = self.range.clone();
        let upper = self.tree.split_off(at);
        failpoint!("split.cut");
        self.note(change, TreeUndo::Upper(upper.snapshot()), mark);
        let expiry = self.expiry.split_off(at);
        self.range.high = Some(at[..].into());
        let sessions = match mutant!(fork_no_sessions) {
            true => Sessions::default(),
            false => self.sessions.share(&mut mark.sessions),
        };
        let partition = Partition {
            range: KeyRange { low: at[..].into(), high: before.high },
            tree: upper,
            expiry,
            sessions,
            session_limits: self.session_limits,
            chain: self.chain.child(),
            ..Partition::new(child, KeyRange::all(), change.version)
        };
        mark.forks.push(Fork { instance, version: change.version, replicas: replicas.to_vec(), partition });
        failpoint!("split.forked");
    }

    /// Takes in a sealed neighbour. Its state must be here; if it is not, the batch has to wait for it, and what it did
    /// so far is taken back (see [`PartitionMark::awaits`]).
    fn join(&mut self, instance: Instance, change: &BoundaryChange, partition: PartitionId, mark: &mut PartitionMark) {
        let Some(left) = self.absorbed_states.iter().find(|left| left.partition == partition).cloned() else {
            mark.awaits = Some(AwaitedState { partition });
            return;
        };
        let below = left.range.high.as_deref() == Some(self.range.low.as_slice());
        if !below && self.range.high.as_deref() != Some(left.range.low.as_slice()) {
            return;
        }
        self.note(change, if below { TreeUndo::Lower } else { TreeUndo::Higher }, mark);
        let at = if below { self.range.low.clone() } else { left.range.low.clone() };
        mark.work += self.expiry.join(&left.expiry, &at, below);
        let other = Tree::from(left.tree);
        if below {
            let own = std::mem::replace(&mut self.tree, other);
            self.tree.join(own);
            self.range.low = left.range.low;
        } else {
            self.tree.join(other);
            self.range.high = left.range.high;
        }
        if !mutant!(merge_drops_sessions) {
            self.sessions.unite(&left.sessions, instance.0, &self.session_limits, &mut mark.sessions);
        }
        self.chain = self.chain.merged(Chain::new(left.seal.last_ticket));
        mark.joins.push(change.version);
        failpoint!("merge.joined");
    }

    /// Takes back what a batch did to tree and boundaries, newest first.
    pub(super) fn undo_boundaries(&mut self, mark: &PartitionMark) {
        for moved in mark.moved.iter().rev() {
            self.tree.undo_to(&mut self.undo, moved.at);
            self.expiry.undo_boundary(&moved.expiry);
            match &moved.what {
                TreeUndo::Upper(upper) => self.tree.join(upper.clone().into()),
                TreeUndo::Nothing => self.sealed = None,
                TreeUndo::Lower => self.tree = self.tree.split_off(&moved.range.low),
                TreeUndo::Higher => {
                    if let Some(high) = &moved.range.high {
                        drop(self.tree.split_off(high));
                    }
                }
            }
            self.range = moved.range.clone();
            self.map_version = moved.map_version;
            failpoint!("undo.boundaries");
        }
        self.tree.undo_each(&mut self.undo, mark.tree, || failpoint!("undo.tree_record"));
        self.expiry.undo_to(mark.expiry);
    }

    /// A batch is decided: drops what no undo needs.
    pub(super) fn confirm_boundaries(&mut self, mark: &PartitionMark) {
        if let Some(&joined) = mark.joins.last() {
            self.absorbed_states.retain(|left| left.seal.version > joined);
        }
    }

    /// The seal, if the partition has one.
    pub fn sealed(&self) -> Option<Seal> {
        self.sealed
    }

    /// The same after a snapshot was loaded.
    pub fn set_sealed(&mut self, sealed: Option<Seal>) {
        self.sealed = sealed;
    }

    /// What this partition leaves to its neighbour, if it is sealed. The caller knows that the seal is decided; what
    /// stands after it in the log changes nothing of this.
    pub fn absorbed_state(&self) -> Option<AbsorbedState> {
        Some(AbsorbedState {
            partition: self.partition,
            seal: self.sealed?,
            range: self.range.clone(),
            tree: self.tree.snapshot(),
            expiry: self.expiry.left(),
            sessions: Sessions::import(self.sessions.export()),
        })
    }

    /// Keeps what a neighbour leaves until the change that takes it in is executed; `true` if it was not here before.
    pub fn absorb(&mut self, left: AbsorbedState) -> bool {
        let known = self.absorbed_states.iter().any(|known| known.partition == left.partition);
        // Nothing changes the merge target between the seal and the join: it is above the seal once it has taken it in.
        let wanted = left.seal.target == self.partition && !known && self.map_version < left.seal.version;
        if wanted {
            self.absorbed_states.push(left);
        }
        wanted
    }
}
