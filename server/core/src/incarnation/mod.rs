//! Which start of which node a process is, and incarnation fencing: how a copy of a data directory is told from the
//! node itself (hazards.md PX12).
//!
//! Every start claims what it is ([`claim`]); every node remembers the newest incarnation of each other node that it
//! let in ([`table`]); a process that found replicas on its disk stays silent until the others let it in ([`fence`]).

pub mod claim;
pub mod fence;
pub mod table;

use coppice_client::wire::{ClusterId, NodeId};

/// Who a data directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub cluster: ClusterId,
    /// The node in it.
    pub node: NodeId,
    /// Counts the starts of this node, from 1.
    pub incarnation: u64,
}
