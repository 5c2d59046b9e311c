//! Why a node does not start.

use coppice_client::tls::TlsError;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::Instance;

use crate::checkpoint::CheckpointError;
use crate::config::Address;
use crate::datadir::DataDirError;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        address: Address,
        /// What the system said.
        error: std::io::Error,
    },
    /// The log or a checkpoint cannot be used: this node must not vote.
    #[error("{error}")]
    Storage {
        /// Whose directory it is, if it says so.
        node: Option<NodeId>,
        /// What is wrong with it.
        error: StorageError,
    },
    /// The system gave no thread, no event loop, or takes a bound socket back.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Beyond loopback only with TLS or `insecure = true`.
    #[error("{address} is not a loopback address, and its port is in the clear: set insecure = true to accept that")]
    Insecure { address: Address },
}

/// Why what a node has on its disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The log, or what stands beside it.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A checkpoint; damaged ones are no error, another one or a peer's takes their place.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The log says that a replica was created, in words that this program does not know.
    #[error("{0}: its create request is unknown")]
    CreateRequest(PartitionId),
    /// The log is trimmed, what it was trimmed for is gone, and no other replica has it.
    #[error(
        "{group}: the log is trimmed up to {trimmed}, no good checkpoint reaches that far, and there is no other \
         replica to take its state from"
    )]
    StateLost {
        /// Of which partition.
        group: PartitionId,
        /// The last instance that the log has dropped.
        trimmed: Instance,
    },
}
