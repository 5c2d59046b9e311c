//! Arguments of the verbs that change the cluster's shape.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use coppice_client::wire::{ChangeId, NodeId, PartitionId};

/// `node`
#[derive(Debug, Clone, Subcommand)]
pub enum NodeVerb {
    /// List the nodes
    Ls,
    /// Make a waiting process a node of the cluster
    Add {
        /// Peer port of the process: `host:port`
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Rebuild a node's replicas on others and hand its leaderships over; it stays a node
    Drain {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Let a drained node hold replicas again
    Undrain {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Drain a node, then take it off the cluster for ever
    Remove {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Give the replicas of a node whose data is lost to a waiting process
    Replace {
        /// The node that goes, such as n3
        #[arg(value_parser = node)]
        old: NodeId,
        /// Peer port of the process that comes: `host:port`
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Have a running node log more, or less, until it restarts
    LogLevel {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// error, warn, info, debug or trace, or such per module: info,coppice_server::shard=debug
        #[arg(value_name = "LEVELS")]
        levels: String,
    },
}

impl NodeVerb {
    /// As it is typed.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ls => "node ls",
            Self::Add { .. } => "node add",
            Self::Drain { .. } => "node drain",
            Self::Undrain { .. } => "node undrain",
            Self::Remove { .. } => "node remove",
            Self::Replace { .. } => "node replace",
            Self::LogLevel { .. } => "node log-level",
        }
    }
}

/// `partition`
#[derive(Debug, Clone, Subcommand)]
pub enum PartitionVerb {
    /// List the partitions
    Ls,
    /// Show the partition that holds a key
    Show {
        /// The key; `-` reads it from stdin, `@FILE` from a file
        key: OsString,
    },
    /// Cut a partition in two; no data moves
    Split {
        /// Which, such as p2 [default: the one that holds --at, else the largest]
        #[arg(value_parser = partition)]
        partition: Option<PartitionId>,
        /// First key of the new partition [default: the median]
        #[arg(long, value_name = "KEY")]
        at: Option<OsString>,
        /// Move the new partition to these nodes: n4, or the peer port of a waiting process, which becomes a node
        #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "NODE")]
        to: Vec<String>,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Join a partition to a neighbour, which keeps its name
    Merge {
        /// Which goes, such as p2
        #[arg(value_parser = partition)]
        partition: PartitionId,
        /// Which stays [default: the one below; of the first one, the one above]
        #[arg(long, value_parser = partition, value_name = "PARTITION")]
        into: Option<PartitionId>,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Move the replicas of a partition to other nodes; p0 is the directory
    Move {
        /// Which, such as p2
        #[arg(value_parser = partition)]
        partition: PartitionId,
        /// Nodes that give their replica up [default: all that are not named by --to]
        #[arg(long, value_parser = node, value_delimiter = ',', num_args = 1.., value_name = "NODE")]
        from: Vec<NodeId>,
        /// Nodes that shall hold a replica
        #[arg(long, value_parser = node, value_delimiter = ',', num_args = 1.., required = true, value_name = "NODE")]
        to: Vec<NodeId>,
        /// How.
        #[command(flatten)]
        plan: PlanArgs,
    },
}

impl PartitionVerb {
    /// As it is typed.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ls => "partition ls",
            Self::Show { .. } => "partition show",
            Self::Split { .. } => "partition split",
            Self::Merge { .. } => "partition merge",
            Self::Move { .. } => "partition move",
        }
    }
}

/// How a plan is carried out.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Accept that fewer failures will be survived afterwards
    #[arg(long)]
    pub force: bool,
    /// Watch a change that was begun before, by the name that it was given then
    #[arg(long, value_name = "CHANGE")]
    pub resume: Option<ChangeId>,
}

/// `n3`, or `3`.
pub(super) fn node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').unwrap_or(text).parse();
    number.map(NodeId).map_err(|_| format!("a node such as n3, not `{text}`"))
}

/// `p2`, or `2`.
pub(super) fn partition(text: &str) -> Result<PartitionId, String> {
    let number = text.strip_prefix('p').unwrap_or(text).parse();
    number.map(PartitionId).map_err(|_| format!("a partition such as p2, not `{text}`"))
}
