//! A replica as its worker hosts it: the pure part, who is where, and what is to be remembered about it.

use std::collections::BTreeMap;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{MapVersion, NodeId};
use coppice_ordering::{Instance, ReplicaId, Ticket, Time};

use super::lag::Lag;
use super::reclamation::Reclamation;
use super::tuning::GroupTuner;
use crate::checkpoint_due::Needs;
use crate::ids;
use crate::replica::Replica;
use crate::sessions::Sessions;
use crate::snapshot::SavedBoundaries;
use crate::status::{GroupReport, LocalReplica};
use crate::wire::peer::Envelope;

/// One hosted replica.
pub struct Group {
    /// The pure part.
    pub replica: Replica,
    /// Which replica of the group it is.
    pub me: ReplicaId,
    /// Where the group's replicas are, this one included.
    pub nodes: BTreeMap<ReplicaId, NodeId>,
    /// A snapshot is being fetched.
    pub installing: bool,
    /// The boundaries that are on the disk.
    pub boundaries: SavedBoundaries,
    pub checkpoints: Checkpoints,
    /// How far behind the other replicas are, where this one leads.
    pub lags: BTreeMap<NodeId, Lag>,
    /// How it is tuned, while this replica leads it.
    pub tuner: Option<GroupTuner>,
    /// What it had to execute when it began here: from the state of one instance to that of another.
    pub(super) replay: (Instance, Instance),
    /// Its tree lets go of what a checkpoint shared with it.
    pub(super) reclamation: Option<Reclamation>,
}

/// What is remembered of a replica's checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checkpoints {
    /// Bytes logged since the last one began.
    pub logged_bytes: u64,
    /// Bytes of the last one.
    pub bytes: u64,
    /// The one that is being written.
    pub writing: Option<Writing>,
    /// Bytes logged between the two that are kept: with those since, what the replica needs of the log.
    pub older_bytes: u64,
    /// The instance of the last one, if one was written since the replica began here.
    pub at: Option<Instance>,
    /// That one stands alone.
    pub alone: bool,
    pub splits: Splits,
}

/// Splits that a replica here has executed since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    pub executed: u32,
    /// How many of them need its log no more: their children are on the disk, or live elsewhere.
    pub saved: u32,
}

impl Splits {
    /// Whether a child needs the log up to its split.
    pub fn await_children(self) -> bool {
        self.executed != self.saved
    }
}

/// A checkpoint that is being written.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Which one, of all that its worker began.
    pub number: u64,
    /// The state after this instance.
    pub instance: Instance,
    /// The map version of its boundaries.
    pub boundaries: MapVersion,
    /// Bytes logged between the one before it and this one.
    pub logged: u64,
}

/// What `status` shows of one replica.
#[derive(Clone, Debug)]
pub struct GroupStatus {
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
    /// Keys as last executed.
    pub keys: u64,
    /// Bytes of keys and values as last executed.
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
    /// Sessions as last executed.
    pub sessions: u64,
    /// Batches and commands decided so far, for rates and the average batch.
    pub instances_decided: u64,
    /// Commands decided so far.
    pub commands_decided: u64,
    /// Keys and ranges that reads asked for so far.
    pub reads: u64,
    /// The newest digests and their instances, ascending; the last is of now, if nothing is undecided here.
    pub digests: Vec<(Instance, u64)>,
    /// How far behind the other replicas are, in instances and milliseconds, as a leader knows it.
    pub lags: BTreeMap<NodeId, (u64, u64)>,
    /// Its group's membership.
    pub report: GroupReport,
    /// The map version of its boundaries on its disk.
    pub saved: MapVersion,
}

/// Whether one replica could serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReadiness {
    /// It leads and serves, or hears its leader.
    pub is_led: bool,
    /// Instances that others have decided and that are not executed here; 0 while they are few enough to be on their
    /// way.
    pub lacks: u64,
}

/// Whether a message that came from node `node` is from the replica that it names, by where the group's replicas live.
fn comes_from(nodes: &BTreeMap<ReplicaId, NodeId>, replica: ReplicaId, node: NodeId) -> bool {
    nodes.get(&replica) == Some(&node) || mutant!(sender_not_checked)
}

impl Group {
    /// A replica that begins, on a node that knows where the others are.
    pub fn new(replica: Replica, nodes: BTreeMap<ReplicaId, NodeId>) -> Group {
        Group {
            me: replica.paxos().id(),
            boundaries: SavedBoundaries::new(replica.executor().machine()),
            replica,
            nodes,
            installing: false,
            checkpoints: Checkpoints::default(),
            lags: BTreeMap::new(),
            tuner: None,
            replay: Default::default(),
            reclamation: None,
        }
    }

    /// How many instances it has executed of those that its log held decided when it began here, and how many these
    /// are; none: all, or a state of another replica is awaited.
    pub fn replay(&self) -> Option<(u64, u64)> {
        let ((from, upto), executor) = (self.replay, self.replica.executor());
        let goes_on = executor.decided() < upto && executor.awaits().is_none();
        goes_on.then(|| (executor.decided().0.saturating_sub(from.0), upto.0 - from.0))
    }

    /// Whether this message of another node is for the replica here, and from a replica there.
    pub(super) fn hears(&self, envelope: &Envelope, node: NodeId) -> bool {
        self.me == envelope.to && comes_from(&self.nodes, envelope.from, node)
    }

    /// Learns from a map where the group's replicas are.
    pub(super) fn learn_places(&mut self, map: &PartitionMap) {
        let Some(entry) = map.group(self.replica.group()) else { return };
        for info in entry.replicas.iter().filter(|_| !mutant!(places_unlearned)) {
            self.nodes.insert(crate::ids::replica(info.replica), info.node);
        }
    }

    /// The node of the leader, if one is known.
    pub fn leader_node(&self) -> Option<NodeId> {
        self.replica.leader().and_then(|leader| self.nodes.get(&leader).copied())
    }

    /// Looks how far the other replicas are, if this one leads.
    pub(super) fn look_at_lags(&mut self, now: Time) {
        if !self.replica.is_leading() {
            self.lags.clear();
            return;
        }
        let decided = self.replica.executor().decided();
        let Group { lags, nodes, replica, me, .. } = self;
        lags.retain(|node, _| nodes.values().any(|known| known == node));
        for (&id, &node) in nodes.iter().filter(|(id, _)| *id != me) {
            let Some(durable) = replica.paxos().durable_upto(id) else { continue };
            lags.entry(node).or_insert_with(|| Lag::new(now, decided)).observe(now, decided, durable);
        }
    }

    /// Whether it could serve.
    pub fn readiness(&self) -> ReplicaReadiness {
        let paxos = self.replica.paxos();
        let missing = paxos.told_upto().ahead_of(self.replica.executor().decided());
        let is_led = self.replica.leader().is_some();
        ReplicaReadiness { is_led, lacks: if paxos.may_be_on_their_way(missing) { 0 } else { missing } }
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
            speculative: executor.last_executed().ahead_of(executor.decided()),
            undo_bytes: executor.undo_bytes(),
            last_ticket: self.replica.last_ticket(),
            released: self.replica.released(),
            window: (paxos.in_flight().0 as u64, u64::from(paxos.settings().window)),
            sessions: self.sessions().map_or(0, |sessions| sessions.len() as u64),
            instances_decided: counters.instances_decided,
            commands_decided: counters.commands_decided,
            reads: self.replica.reads_asked(),
            digests: executor.digests().chain([executor.digest_now()]).collect(),
            lags: lags.collect(),
            report: GroupReport::of(paxos),
            saved: self.boundaries.version(),
        }
    }

    /// What decides whether it writes a checkpoint; others know whether its batches keep the log's oldest segment, and
    /// whether it is the one whose replay takes longest.
    pub fn needs(&self, pins: bool, replays_most: bool) -> Needs {
        Needs {
            logged: self.checkpoints.logged_bytes,
            replays_most,
            checkpoint: self.checkpoints.bytes,
            data: self.size().1,
            pins,
            owes: self.boundaries.is_owed(),
            advanced: self.checkpoints.at != Some(self.replica.executor().decided()),
            alone: self.checkpoints.alone,
        }
    }

    /// The sessions as last executed; none: it is the directory's.
    pub fn sessions(&self) -> Option<&Sessions> {
        Some(self.replica.executor().machine().partition()?.sessions())
    }

    /// Keys, and bytes of keys and values, as last executed.
    pub fn size(&self) -> (u64, u64) {
        match self.replica.executor().machine().partition() {
            Some(partition) => (partition.tree().len(), partition.tree().bytes()),
            None => (0, 0),
        }
    }
}

impl GroupStatus {
    /// The same as nodes tell each other; rates, which take two looks, are 0.
    pub fn told(&self) -> LocalReplica {
        LocalReplica {
            replica: ids::wire_replica(self.me),
            saved: self.saved,
            leads: self.leads,
            leader: self.leader,
            refuses: None,
            ballot: (self.ballot.round.0, ids::wire_replica(self.ballot.replica)),
            decided_upto: self.decided.0,
            trimmed_upto: self.trimmed.0,
            keys: self.keys,
            bytes: self.bytes,
            held: self.held as u64,
            operations: self.commands_decided + self.reads,
            commands_per_second: 0.0,
            window: self.window.0 as u32,
            batch_commands: 0.0,
            sessions: self.sessions,
            lags: self.lags.clone(),
            digests: self.digests.iter().map(|(instance, digest)| (instance.0, *digest)).collect(),
            group: self.report.clone(),
            last_ticket: self.last_ticket.map(ids::ticket),
            released: self.released.map(ids::ticket),
            undo_bytes: self.undo_bytes,
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
        let test = "worker::group::tests::a_replica_is_heard_from_its_own_node_only";
        planted::assert_caught("sender_not_checked", test);
    }
}
