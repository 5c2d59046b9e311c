//! Options, steps and errors of checkpoints.

use std::io;
use std::path::PathBuf;

use coppice_client::wire::{ClusterId, PartitionId};
use coppice_core::snapshot::Head;
use coppice_ordering::Instance;

use super::commit_protocol::Act;
use super::stream::StreamError;

/// How checkpoints are written. Defaults are those of operations.md 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Whose checkpoints: none of another cluster is written or loaded. None: any, for looking at.
    pub cluster: Option<ClusterId>,
    /// `checkpoint.rate`: bytes per second that a checkpoint may write.
    pub rate_bytes: u64,
    /// `checkpoint.cache`: memory of sled for one open checkpoint.
    pub cache_bytes: u64,
    /// Below this much free space none is written: sled must never see a full disk.
    pub space_floor_bytes: u64,
}

impl CheckpointOptions {
    /// Whether a snapshot belongs here.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`].
    pub(super) fn belongs(&self, head: &Head) -> Result<(), CheckpointError> {
        match self.cluster {
            Some(own) if head.cluster != own && !mutant!(foreign_snapshot_believed) => {
                Err(CheckpointError::Foreign { found: head.cluster, own })
            }
            _ => Ok(()),
        }
    }
}

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        // Half of `log.disk_reserve`: the other half is for votes.
        CheckpointOptions { cluster: None, rate_bytes: 64 << 20, cache_bytes: 32 << 20, space_floor_bytes: 512 << 20 }
    }
}

/// A checkpoint that does not count, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: damaged at byte {offset}: {reason}")]
pub struct BadCheckpoint {
    /// The file.
    pub path: PathBuf,
    /// Where in it, to 64 KiB.
    pub offset: u64,
    /// What is wrong.
    pub reason: String,
}

/// Why a checkpoint was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// What is on disk is damaged.
    #[error(transparent)]
    Bad(#[from] BadCheckpoint),
    /// The chunks are not those of the snapshot.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// It is the state of another cluster.
    #[error("the snapshot is of cluster {found}, this node belongs to cluster {own}")]
    Foreign {
        /// The cluster that its head names.
        found: ClusterId,
        /// This node's.
        own: ClusterId,
    },
    /// Another one of this partition is being written (hazards.md ST5).
    #[error("another checkpoint of {0} is being written")]
    Busy(PartitionId),
    /// There is one of this instance already.
    #[error("there is a checkpoint of {0} at {1} already")]
    Present(PartitionId, Instance),
    /// The checkpoint that a start read is not there any more, or damaged: start again.
    #[error("the checkpoint of {0} at {1} was read, and cannot be read again")]
    Gone(PartitionId, Instance),
    /// Too little free space to begin or to go on.
    #[error("{free_bytes} bytes are free, too few for a checkpoint")]
    Space {
        /// Free bytes of the file system.
        free_bytes: u64,
    },
    /// The observer said so.
    #[error("stopped")]
    Stopped,
    /// sled failed.
    #[error("{path}: {error}")]
    Store {
        /// The checkpoint.
        path: PathBuf,
        /// What sled said.
        error: String,
    },
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// What has just been done for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The directory `.tmp` is there.
    Begun,
    /// A chunk is written.
    Chunk(u64),
    /// All is written and sled is closed.
    Written,
    /// Some more was read back.
    Reading,
    /// Every chunk was read back, every checksum and the digest fit.
    ReadBack,
    /// `SUMS` is written.
    Summed,
    /// Every file and directory is flushed.
    Flushed,
    /// It has its name.
    Renamed,
    /// The name is durable: the checkpoint counts.
    Durable,
    /// Older generations are gone.
    Pruned,
}

impl Step {
    /// What has been done when an act has.
    pub fn after(act: Act) -> Step {
        match act {
            Act::Flush => Step::Flushed,
            Act::Rename => Step::Renamed,
            Act::FlushDir => Step::Durable,
            Act::Prune => Step::Pruned,
        }
    }
}

/// Told of every step; false stops there, as a crash would.
pub type Observer = Box<dyn FnMut(Step) -> bool + Send>;
