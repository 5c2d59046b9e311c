//! A replica as its shard hosts it: the pure part, who is where, and what the driver must remember about it.

use std::collections::{BTreeMap, VecDeque};

use coppice_client::wire::{MapVersion, NodeId};
use coppice_core::replica::{Decided, Replica};
use coppice_core::snapshot::SavedBorders;
use coppice_core::status::GroupReport;
use coppice_core::wire::peer::Envelope;
use coppice_ordering::{Instance, ReplicaId, Ticket};

use super::lag::Lag;
use super::settling::Settling;
use crate::checkpoint::due::Needs;
use crate::metrics::{CloseReason, Partition, PartitionSample};

/// One hosted replica.
pub struct Group {
    /// The pure part.
    pub replica: Replica,
    /// Which replica of the group it is.
    pub me: ReplicaId,
    /// This node.
    pub node: NodeId,
    /// Where the group's replicas are, this one included.
    pub nodes: BTreeMap<ReplicaId, NodeId>,
    /// Bytes logged since the last checkpoint began.
    pub logged_bytes: u64,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// A checkpoint is being written.
    pub checkpointing: bool,
    /// Bytes logged between its two checkpoints: with those since, what it needs of the log.
    pub older_bytes: u64,
    /// The instance of its last checkpoint, if it wrote one since it began here.
    pub checkpoint_at: Option<Instance>,
    /// That one stands alone.
    pub alone: bool,
    /// A snapshot is being fetched.
    pub installing: bool,
    /// The borders that are on the disk.
    pub borders: SavedBorders,
    /// Closed batches as they were last published: full, idle, due.
    pub closed: [u64; 3],
    /// How it is tuned, while it leads and the autopilot is on.
    pub tuned: Option<super::Tuned>,
    /// Where its values are published.
    pub metrics: Partition,
    /// How far behind the other replicas are, where this one leads.
    pub lags: BTreeMap<NodeId, Lag>,
    /// When the newest instances were proposed and decided, where this one led.
    pub times: VecDeque<Decided>,
    /// Its tree lets go of what a checkpoint shared with it.
    pub(crate) settling: Option<Settling>,
}

const CLOSE_REASONS: [CloseReason; 3] = [CloseReason::Bytes, CloseReason::Idle, CloseReason::Delay];

/// What `status` shows of one replica.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Which replica.
    pub me: ReplicaId,
    /// Whether it leads and serves.
    pub leads: bool,
    /// The leader's node, if one is known.
    pub leader: Option<NodeId>,
    /// Highest ballot.
    pub ballot: coppice_ordering::Ballot,
    /// Decided and executed up to here.
    pub decided: Instance,
    /// Forgotten up to here.
    pub trimmed: Instance,
    /// Keys at the tip.
    pub keys: u64,
    /// Bytes of keys and values at the tip.
    pub bytes: u64,
    /// Replies behind the gate.
    pub held: usize,
    /// Instances executed and not decided.
    pub speculative: u64,
    /// Memory of the undo of these.
    pub undo_bytes: u64,
    /// The last ticket of the decided log.
    pub last_ticket: Option<Ticket>,
    /// Every ticket up to here is released, as far as it was told.
    pub released: Option<Ticket>,
    /// Undecided instances of a leader, and their limit.
    pub window: (u64, u64),
    /// Sessions at the tip.
    pub sessions: u64,
    /// Batches and commands decided so far, for rates and the average batch.
    pub instances_decided: u64,
    /// Commands decided so far.
    pub commands_decided: u64,
    /// The newest digests and their instances, ascending; the last is of now, if nothing is undecided here.
    pub digests: Vec<(Instance, u64)>,
    /// How far behind the other replicas are, in instances and milliseconds, as a leader knows it.
    pub lags: BTreeMap<NodeId, (u64, u64)>,
    /// Its group's membership.
    pub report: GroupReport,
    /// The map version of its borders on its disk.
    pub saved: MapVersion,
}

/// Whether a message that came from node `node` is from the replica that it names, by where the group's replicas live.
fn comes_from(nodes: &BTreeMap<ReplicaId, NodeId>, replica: ReplicaId, node: NodeId) -> bool {
    nodes.get(&replica) == Some(&node) || mutant!(sender_not_checked)
}

impl Group {
    /// Whether this message of another node is for the replica here, and from a replica there.
    pub fn hears(&self, envelope: &Envelope, node: NodeId) -> bool {
        self.me == envelope.to && comes_from(&self.nodes, envelope.from, node)
    }

    /// The node of the leader, if one is known.
    pub fn leader_node(&self) -> Option<NodeId> {
        self.replica.leader().and_then(|leader| self.nodes.get(&leader).copied())
    }

    /// What `status` shows.
    pub fn status(&self) -> GroupStatus {
        let paxos = self.replica.paxos();
        let executor = self.replica.executor();
        let counters = paxos.counters();
        let (keys, bytes) = self.size();
        let lags = self.lags.iter().map(|(&node, lag)| (node, (lag.instances(), lag.behind_for().as_millis() as u64)));
        GroupStatus {
            me: self.me,
            leads: self.replica.is_leading(),
            leader: self.leader_node(),
            ballot: paxos.ballot(),
            decided: executor.decided(),
            trimmed: paxos.trimmed_upto(),
            keys,
            bytes,
            held: self.replica.held(),
            speculative: executor.tip().ahead_of(executor.decided()),
            undo_bytes: executor.undo_bytes(),
            last_ticket: self.replica.last_ticket(),
            released: self.replica.released(),
            window: (paxos.in_flight().0 as u64, u64::from(paxos.settings().window)),
            sessions: executor.machine().shard().map_or(0, |shard| shard.sessions().len() as u64),
            instances_decided: counters.instances_decided,
            commands_decided: counters.commands_decided,
            digests: executor.digests().chain([executor.digest_now()]).collect(),
            lags: lags.collect(),
            report: GroupReport::of(paxos),
            saved: self.borders.version(),
        }
    }

    /// What decides whether it writes a checkpoint; others know whether its batches keep the log's oldest segment.
    pub fn needs(&self, pins: bool) -> Needs {
        Needs {
            logged: self.logged_bytes,
            checkpoint: self.checkpoint_bytes,
            data: self.size().1,
            pins,
            owes: self.borders.is_owed(),
            advanced: self.checkpoint_at != Some(self.replica.executor().decided()),
            alone: self.alone,
        }
    }

    fn size(&self) -> (u64, u64) {
        match self.replica.executor().machine().shard() {
            Some(shard) => (shard.tree().len(), shard.tree().bytes()),
            None => (0, 0),
        }
    }

    /// Publishes the values of `/metrics`.
    pub fn publish(&mut self, shard: &crate::metrics::Shard) {
        let counters = self.replica.paxos().counters();
        let closed = [counters.batches_closed_full, counters.batches_closed_idle, counters.batches_closed_due];
        for ((reason, now), before) in CLOSE_REASONS.into_iter().zip(closed).zip(self.closed) {
            shard.batches_closed(reason, now - before);
        }
        self.closed = closed;
        let paxos = self.replica.paxos();
        let executor = self.replica.executor();
        let counters = paxos.counters();
        let (keys, bytes) = self.size();
        let sessions = executor.machine().shard().map_or(0, |shard| shard.sessions().len() as u64);
        self.metrics.publish(&PartitionSample {
            commands_decided: counters.commands_decided,
            instances_decided: counters.instances_decided,
            window_instances: paxos.in_flight().0 as u64,
            window_limit: u64::from(paxos.settings().window),
            window_instance_nanos: counters.window_instance_ns,
            speculation_rollbacks: executor.counters().rollbacks,
            speculation_undone_commands: executor.counters().undone_commands,
            speculative_instances: executor.tip().ahead_of(executor.decided()),
            leader_changes: self.replica.leader_changes(),
            keys,
            bytes,
            leads: self.replica.is_leading(),
            decided_instance: executor.decided().0,
            sessions,
            gate_held: self.replica.held() as u64,
        });
        for (&node, lag) in &self.lags {
            self.metrics.peer(node).set_lag(lag.instances(), lag.behind_for());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node could once speak as any replica: promise and vote for others.
    #[test]
    fn a_replica_is_heard_from_its_own_node_only() {
        let nodes = BTreeMap::from([1, 2, 3].map(|n| (ReplicaId(n), NodeId(n + 10))));
        assert!(comes_from(&nodes, ReplicaId(2), NodeId(12)));
        assert!(!comes_from(&nodes, ReplicaId(2), NodeId(13)), "another one of the group");
        assert!(!comes_from(&nodes, ReplicaId(2), NodeId(99)), "a node without a replica");
        assert!(!comes_from(&nodes, ReplicaId(4), NodeId(12)), "a replica that no map has named");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_sender_that_is_not_checked_is_caught() {
        let test = "shard::group::tests::a_replica_is_heard_from_its_own_node_only";
        planted::assert_caught("sender_not_checked", test);
    }
}
