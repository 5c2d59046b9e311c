//! What a node knows of itself and of its replicas, as nodes tell each other, and what operators see of it.

mod health;
pub mod live;
mod overview;
mod remedies;
mod replica_counts;
mod warnings;

use std::collections::BTreeMap;

use coppice_client::wire::{MapVersion, NodeId, NodeStatus, PartitionId, ReplicaId, Ticket};
use coppice_ordering::Paxos;
pub use health::{Health, cut_off, is_near, sentence};
pub use overview::{overview, tolerated_failures};
pub use remedies::{Remedy, remedies};
pub use replica_counts::{ReplicaCounts, listed, replicas};
use serde::{Deserialize, Serialize};
pub use warnings::Condition;

use crate::ids::wire_replica;

/// What a node knows of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LocalStatus {
    pub node: NodeStatus,
    /// Version of its map.
    pub map_version: u64,
    pub replicas: BTreeMap<PartitionId, LocalReplica>,
    /// What is wrong with it.
    pub warnings: Vec<String>,
    /// Why it takes no further replica, if it does not.
    pub full: Option<String>,
    /// Changes of the topology under way, if it leads the directory ([`coppice_client::wire::Status::changes`]).
    pub changes: Vec<String>,
}

impl LocalStatus {
    /// Whether it takes no further replica.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }
}

/// What a node has left for further replicas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// Replicas that it holds.
    pub replicas: usize,
    /// Replicas that it may hold.
    pub replicas_max: usize,
    /// Its disk is filled to the reserve.
    pub disk_is_full: bool,
    /// Its memory is filled to the limit.
    pub memory_is_full: bool,
}

impl Capacity {
    /// Why a node takes no further replica, if it does not ([`LocalStatus::full`]).
    pub fn full(self) -> Option<String> {
        if self.replicas >= self.replicas_max {
            return Some(format!("it holds {} replicas, as many as limits.partitions allows", self.replicas));
        }
        if self.disk_is_full {
            return Some("its disk is filled to the reserve".into());
        }
        self.memory_is_full.then(|| "its memory is filled to the limit".into())
    }
}

/// A group's membership as one of its replicas knows it; what the others hold, only a leader knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Who votes.
    pub voters: Vec<ReplicaId>,
    /// Who learns.
    pub learners: Vec<ReplicaId>,
    /// The instance that decided this.
    pub configured_at: u64,
    /// Decided.
    pub decided_upto: u64,
    /// A quorum of the voters durably holds everything up to here.
    pub held_upto: u64,
    /// How far the other replicas durably are.
    pub durable: Vec<(ReplicaId, u64)>,
}

impl GroupReport {
    /// What a replica knows of its group.
    pub fn of(paxos: &Paxos) -> GroupReport {
        let (configuration, configured_at) = paxos.configuration();
        let others = configuration.members().chain(configuration.leaving.iter().copied());
        let durable = others.filter_map(|id| Some((wire_replica(id), paxos.durable_upto(id)?.0)));
        GroupReport {
            voters: configuration.voters.iter().copied().map(wire_replica).collect(),
            learners: configuration.learners.iter().copied().map(wire_replica).collect(),
            configured_at: configured_at.0,
            decided_upto: paxos.decided_upto().0,
            held_upto: paxos.held_upto().0,
            durable: durable.collect(),
        }
    }
}

/// One replica as its node knows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LocalReplica {
    pub replica: ReplicaId,
    /// The map version of its boundaries in a checkpoint on its disk.
    pub saved: MapVersion,
    /// Whether it leads and serves.
    pub leads: bool,
    /// The leader as it knows it.
    pub leader: Option<NodeId>,
    /// Why it would refuse writes that grow, if it led.
    pub refuses: Option<String>,
    /// Highest ballot: round and replica.
    pub ballot: (u64, ReplicaId),
    /// Decided and executed.
    pub decided_upto: u64,
    /// Forgotten.
    pub trimmed_upto: u64,
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Replies held by the gate.
    pub held: u64,
    /// Commands that it had decided as a leader, and reads that it was asked for, since its process began.
    pub operations: u64,
    /// Commands decided per second, lately.
    pub commands_per_second: f64,
    /// Instances undecided.
    pub window: u32,
    /// Commands per batch, lately.
    pub batch_commands: f64,
    pub sessions: u64,
    /// How far behind the other replicas are, in instances and milliseconds, as a leader sees it.
    pub lags: BTreeMap<NodeId, (u64, u64)>,
    /// The newest digests and their instances, ascending.
    pub digests: Vec<(u64, u64)>,
    /// Its group's membership.
    pub group: GroupReport,
    /// The last ticket of its decided log.
    pub last_ticket: Option<Ticket>,
    /// Every ticket up to here is released, as far as it was told.
    pub released: Option<Ticket>,
    /// Bytes of the undo of what is executed and undecided.
    pub undo_bytes: u64,
}
