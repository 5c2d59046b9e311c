//! What takes back one batch of a partition: how everything that it may change was before, and what must happen when it
//! is decided. It knows nothing of how changes are made.

use coppice_btree::{KeyRange, UndoMark};
use coppice_client::wire::MapVersion;
use coppice_ordering::Chain;

use super::boundary::{AwaitedState, BoundaryUndo, Fork};
use super::expiry::ExpiryMark;
use crate::sessions::{SessionLimits, SessionUndo};

/// Takes back one batch.
#[derive(Debug)]
pub struct PartitionMark {
    pub(super) tree: UndoMark,
    pub(super) expiry: ExpiryMark,
    pub(super) sessions: Vec<SessionUndo>,
    pub(super) limits: SessionLimits,
    pub(super) chain: Chain,
    pub(super) range: KeyRange,
    pub(super) map_version: MapVersion,
    /// Changes counted before it.
    pub(super) changes: u64,
    /// Tickets that nobody had taken yet.
    pub(super) placed: usize,
    pub(super) moved: Vec<BoundaryUndo>,
    /// Children that begin when the batch is decided.
    pub(super) forks: Vec<Fork>,
    /// The batch sealed the partition.
    pub(super) seals: bool,
    /// Versions of the changes by which neighbours were taken in.
    pub(super) joins: Vec<MapVersion>,
    /// What the batch needs and is not here: it must be taken back, and executed again later.
    pub(super) awaits: Option<AwaitedState>,
    /// Operations on the tree, and what costs as much.
    pub(super) work: u64,
    /// Bytes that it wrote beyond what it carries, at most.
    pub(super) written: usize,
}

impl PartitionMark {
    /// Memory that it keeps, beside the tree's records.
    pub fn bytes(&self) -> u64 {
        size_of::<PartitionMark>() as u64 + self.sessions.iter().map(SessionUndo::bytes).sum::<u64>()
    }

    /// What executing the batch cost: operations on the tree, and what takes as long.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Bytes that the batch wrote beyond what it carries, at most: they are kept until it is decided.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Whether the batch moved a boundary: then somebody must act when it is decided.
    pub fn moves_boundaries(&self) -> bool {
        self.seals || !self.joins.is_empty() || !self.forks.is_empty()
    }

    /// Children that begin when the batch is decided.
    pub fn forks(&self) -> &[Fork] {
        &self.forks
    }

    /// Whether the batch sealed the partition.
    pub fn seals(&self) -> bool {
        self.seals
    }

    /// Versions of the changes by which neighbours were taken in.
    pub fn joins(&self) -> &[MapVersion] {
        &self.joins
    }

    /// What the batch needs and is not here: it must be taken back at once, and executed again later.
    pub fn awaits(&self) -> Option<AwaitedState> {
        self.awaits
    }
}
