//! What `coppice status` shows (operations.md 2; hazards.md E7). Plain data; the words around it are the program's.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ClusterId, MapVersion, NodeId, PartitionId, ReplicaId, Ticket};
use crate::serde_bytes;

/// The cluster as one node sees it, others asked unless `local` was wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster; none: not formed yet.
    pub cluster: Option<ClusterId>,
    /// Who answered.
    pub node: NodeId,
    /// Version of its map.
    pub map_version: MapVersion,
    /// What nodes may write.
    pub feature_level: u32,
    /// How many more nodes may be lost; -1: some partition has no quorum.
    pub tolerated_failures: i32,
    /// Queries across partitions that are out.
    pub tickets_in_flight: u32,
    /// Every node of the map.
    pub nodes: Vec<NodeStatus>,
    /// Every partition, the directory first.
    pub partitions: Vec<PartitionStatus>,
    /// Sentences, most urgent first.
    pub warnings: Vec<String>,
    /// A majority of the directory's voters answered the node: without one it knows only what it sees itself.
    pub majority: bool,
    /// Replicas that each partition shall have (`replicas`).
    pub replicas: u32,
    /// The node that answered was removed from the cluster.
    pub removed: bool,
    /// Changes of the topology under way: a sentence each, what moves where, and why if the cluster began it by itself.
    pub changes: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    /// Its label.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// Whether it answered.
    pub up: bool,
    /// Changes when its data directory is made anew.
    pub incarnation: u64,
    /// Version of the program.
    pub version: String,
    /// How long it runs, in milliseconds.
    pub uptime_ms: u64,
    /// Flush time, in microseconds.
    pub flush_us_p99: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Free bytes of its disk.
    pub disk_free_bytes: u64,
    /// Its disk is filled to the reserve.
    pub disk_full: bool,
    /// Its memory is filled to the limit.
    pub memory_full: bool,
    /// Resident bytes.
    pub memory_bytes: u64,
    /// Client connections.
    pub connections: u32,
}

/// One partition, or the directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionStatus {
    pub id: PartitionId,
    /// First key.
    #[serde(with = "serde_bytes")]
    pub low: Bytes,
    /// First key beyond; none: unbounded (or the directory).
    #[serde(with = "serde_bytes::option")]
    pub high: Option<Bytes>,
    /// Who leads it; none: nobody that was heard of.
    pub leader: Option<NodeId>,
    /// Why its leader refuses writes that grow, if it does.
    pub refuses: Option<String>,
    pub replicas: Vec<ReplicaStatus>,
    /// Ballot of the leader: round and replica.
    pub ballot: (u64, ReplicaId),
    /// Last decided instance.
    pub decided_upto: u64,
    /// The log is trimmed up to here.
    pub trimmed_upto: u64,
    /// Last ticket placed.
    pub last_ticket: Option<Ticket>,
    /// Last ticket released.
    pub released: Option<Ticket>,
    /// Replies held by the gate.
    pub held: u64,
    /// Bytes of undo records of what is executed and undecided.
    pub undo_bytes: u64,
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Commands decided per second, lately.
    pub commands_per_second: f64,
    /// Instances undecided now.
    pub window: u32,
    /// Commands per batch, lately.
    pub batch_commands: f64,
    /// Sessions open.
    pub sessions: u64,
    /// Digest of the state at the last compared instance.
    pub digest: Option<(u64, u64)>,
}

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    pub replica: ReplicaId,
    pub node: NodeId,
    /// Whether it votes.
    pub voter: bool,
    /// Whether it was heard of lately.
    pub up: bool,
    /// Decided instances of the leader that it does not know to be decided.
    pub lag_instances: u64,
    /// Since when it has not had on its disk all that the leader has decided, in milliseconds. On a full disk this
    /// grows although the replica knows everything.
    pub lag_ms: u64,
}
