//! The data directory of a node: who it belongs to, who may open it, and what stands where (experience.md 5).

use std::fmt;

/// The id that `init` draws for a cluster; 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// The number of a node in its cluster, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "n{}", self.0)
    }
}

/// Who a data directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node in it.
    pub node: NodeId,
    /// Counts the starts of this node, from 1.
    pub incarnation: u64,
}
