//! Operators' verbs that change the cluster's shape: which nodes it has, and where the replicas of its groups are
//! (operations.md 2; protocol.md 1.5, 8).
//!
//! A request is begun by its first sending and watched by every further one: whoever asks repeats it until it is done.
//! It goes on without anybody asking, since the directory's log drives it.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{MapVersion, NodeId, PartitionId};
use crate::serde_bytes;

/// Names a change for ever: drawn by whoever asks for it, so that asking again is not asking twice. Prints as 16 hex
/// digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChangeId(pub u64);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for ChangeId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<ChangeId, Self::Err> {
        u64::from_str_radix(text, 16).map(ChangeId)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// The process whose peer port is `address`, which waits, becomes a node.
    AddNode {
        /// `host:port` of its peer port.
        address: String,
    },
    /// The replicas of a node are rebuilt on others, its leaderships are transferred; it stays a node.
    DrainNode { node: NodeId },
    /// A drained node may hold replicas again.
    UndrainNode { node: NodeId },
    /// A node is drained, then it leaves the cluster.
    RemoveNode { node: NodeId },
    /// The process at `address` becomes a node and gets the replicas of `old`, which is removed: for a lost disk.
    ReplaceNode {
        /// Which node goes.
        old: NodeId,
        /// `host:port` of the peer port of the process that comes.
        address: String,
    },
    /// The replicas of one group move.
    Move {
        /// Which group; the directory's too.
        partition: PartitionId,
        /// Nodes that give their replica up; none: all that are not in `to`.
        #[serde(deserialize_with = "serde_bytes::bounded::deserialize")]
        from: Vec<NodeId>,
        /// Nodes that get one.
        #[serde(deserialize_with = "serde_bytes::bounded::deserialize")]
        to: Vec<NodeId>,
    },
    /// A partition is cut in two.
    Split {
        /// Which; none: the one that holds `at`, else the largest one.
        partition: Option<PartitionId>,
        /// First key of the new partition; none: the median.
        #[serde(with = "serde_bytes::option")]
        at: Option<Bytes>,
    },
    /// A partition is joined to a neighbour, which keeps its name.
    Merge {
        /// Which goes.
        partition: PartitionId,
        /// Which stays; none: the lower neighbour, of the first partition the upper one.
        into: Option<PartitionId>,
    },
    /// Each group has this many replicas from now on: missing ones come, surplus ones go.
    SetReplicas {
        /// The cluster setting `replicas`; none: its default.
        count: Option<u32>,
    },
    /// Leaders and replicas are spread over the nodes by load and bytes.
    Rebalance,
}

impl Shape {
    /// The verb that asks for it, as an operator types it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::AddNode { .. } => "node add",
            Self::DrainNode { .. } => "node drain",
            Self::UndrainNode { .. } => "node undrain",
            Self::RemoveNode { .. } => "node remove",
            Self::ReplaceNode { .. } => "node replace",
            Self::Move { .. } => "partition move",
            Self::Split { .. } => "partition split",
            Self::Merge { .. } => "partition merge",
            Self::SetReplicas { count: Some(_) } => "config set",
            Self::SetReplicas { count: None } => "config unset",
            Self::Rebalance => "rebalance",
        }
    }
}

/// Asks for a change, or how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReshapeRequest {
    pub change: ChangeId,
    pub shape: Shape,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Do it although fewer failures will be survived afterwards. What would lose a quorum is refused all the same.
    pub force: bool,
    /// Of a split: only if the partition still has these boundaries, which the plan was made for.
    pub within: Option<Boundaries>,
}

/// Where a partition begins and ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Boundaries {
    /// Its first key.
    #[serde(with = "serde_bytes")]
    pub low: Bytes,
    /// The first key beyond; none: it is the last partition.
    #[serde(with = "serde_bytes::option")]
    pub high: Option<Bytes>,
}

/// Where a partition will be cut, and what it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitPlan {
    /// First key of the new partition.
    #[serde(with = "serde_bytes")]
    pub at: Bytes,
    /// Of the partition that is cut.
    pub boundaries: Boundaries,
}

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshaped {
    /// Nothing is left to be done.
    pub done: bool,
    /// It was begun before this request. Else `steps` is a plan.
    pub begun: bool,
    /// Before the beginning: what will be done, a sentence per step. Afterwards: what is being done, or was.
    pub steps: Vec<String>,
    /// Replicas that still have to move, partitions that still have to answer.
    pub left: u32,
    /// The partition that came of it, of a split or merge.
    pub partition: Option<PartitionId>,
    /// The node that came of it.
    pub node: Option<NodeId>,
    /// The plan of a split.
    pub cut: Option<SplitPlan>,
    /// The map of the node that answered.
    pub map_version: MapVersion,
}
