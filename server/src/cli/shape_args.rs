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
        /// How the plan is carried out.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Rebuild a node's replicas on other nodes and transfer its leaderships; it stays a node
    Drain {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How the plan is carried out.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Let a drained node hold replicas again
    Undrain {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How the plan is carried out.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Drain a node, then remove it from the cluster for ever
    Remove {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// How the plan is carried out.
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
        /// How the plan is carried out.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Set the log level of a running node until it restarts
    LogLevel {
        /// Which, such as n3
        #[arg(value_parser = node)]
        node: NodeId,
        /// error, warn, info, debug or trace, or such per module: info,coppice_server::worker_thread=debug
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
    /// Split a partition in two
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
        /// How the plan is carried out.
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
        /// How the plan is carried out.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Move the replicas of a partition to other nodes; p0 is the directory
    Move {
        /// Which, such as p2
        #[arg(value_parser = partition)]
        partition: PartitionId,
        /// Nodes that lose their replica [default: all that are not named by --to]
        #[arg(long, value_parser = node, value_delimiter = ',', num_args = 1.., value_name = "NODE")]
        from: Vec<NodeId>,
        /// Nodes that get a replica
        #[arg(long, value_parser = node, value_delimiter = ',', num_args = 1.., required = true, value_name = "NODE")]
        to: Vec<NodeId>,
        /// How the plan is carried out.
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

/// `rebalance`
#[derive(Debug, Clone, Args)]
pub struct RebalanceArgs {
    /// Carry the plan out without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan
    #[arg(long)]
    pub dry_run: bool,
    /// Watch one that was begun before, by its name
    #[arg(long, value_name = "CHANGE")]
    pub resume: Option<ChangeId>,
}

impl RebalanceArgs {
    /// As of any other change: no step of it makes the cluster survive fewer failures.
    pub fn plan(&self) -> PlanArgs {
        PlanArgs { yes: self.yes, dry_run: self.dry_run, force: false, resume: self.resume }
    }
}

/// How a plan is carried out.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Carry the plan out without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan
    #[arg(long)]
    pub dry_run: bool,
    /// Accept that the cluster survives fewer failures afterwards
    #[arg(long)]
    pub force: bool,
    /// Watch a change that was begun before, by its name
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
