//! Leader transfers from this node: whether one may begin, to whom it goes when the node stops, how long it is tried,
//! and what came of it. Whoever leads a group transfers it in one try of its own
//! ([`crate::replica::Input::TransferLeader`]); here it is tried again until it is done or the time is over.

use std::time::Duration;

use coppice_client::map::{Entry, NodeState, PartitionMap, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId};
use coppice_ordering::{ReplicaId, Time};

use super::Effect;
use super::step::ByGroup;
use crate::majority::voters_up;
use crate::{ids, replica, worker};

/// Names one request for a transfer, as its driver counts them.
pub type TransferId = u64;

/// Between two tries: the other replica may have been behind, or out of reach for a moment.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What came of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// The other node leads; after how long.
    Done(Duration),
    /// This node does not lead the group.
    NotLeader,
    /// It was not begun, or not done in time.
    Failed(AdminError),
}

impl TransferOutcome {
    /// What an operator hears of it; none: the leader is somewhere else.
    pub fn reply(self) -> Option<AdminReply> {
        match self {
            TransferOutcome::Done(pause) => Some(AdminReply::Transferred { pause_us: pause.as_micros() as u64 }),
            TransferOutcome::NotLeader => None,
            TransferOutcome::Failed(error) => Some(AdminReply::Failed(error)),
        }
    }
}

/// Groups that a node leads, and the nodes that it reaches for each.
pub type Reached = ByGroup<Vec<NodeId>>;

#[derive(Debug)]
struct Transfer {
    id: TransferId,
    partition: PartitionId,
    to: (NodeId, ReplicaId),
    begun: Time,
    until: Time,
    retry_at: Time,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    under_way: Vec<Transfer>,
    /// The node stops: groups whose leadership is to go first, and until when that is waited for.
    stop: Option<(Vec<PartitionId>, Time)>,
}

/// Whether a replica of `partition` on node `to` may lead it, by this map.
///
/// # Errors
/// Why not.
pub(super) fn may_lead(map: &PartitionMap, partition: PartitionId, to: NodeId) -> Result<(), AdminError> {
    let Some(entry) = map.entry(partition) else {
        return Err(AdminError::NotFound(format!("there is no partition {partition}")));
    };
    if map.node(to).is_none_or(|info| info.state == NodeState::Removed) {
        return Err(AdminError::NotFound(format!("there is no node {to}")));
    }
    match entry.replica_on(to).map(|info| info.role) {
        Some(Role::Voter) => Ok(()),
        Some(Role::Learner) => {
            Err(AdminError::Invalid(format!("{to} is still a learner of {partition}: it leads once it votes")))
        }
        None => Err(AdminError::Invalid(format!("{to} has no replica of {partition}"))),
    }
}

/// Why node `own` cannot transfer `group` to node `to`, if it reaches only these.
fn obstacle(group: &Entry, to: NodeId, own: NodeId, reached: &[NodeId]) -> Option<String> {
    let partition = group.partition;
    let answers = |node: NodeId| node == own || reached.contains(&node);
    let (up, all) = voters_up(group, answers);
    if up <= all / 2 {
        return Some(format!("{partition} has no quorum: {up} of its {all} voters answer"));
    }
    (!answers(to)).then(|| format!("{to} does not answer, so {partition} stays where it is"))
}

/// The voter that takes a group over when its leader stops; those of many groups are spread over the nodes.
fn successor(group: &Entry, own: NodeId, reached: &[NodeId]) -> Option<ReplicaId> {
    let others = group.replicas.iter().filter(|info| info.role == Role::Voter && info.node != own);
    let others = others.filter(|info| reached.contains(&info.node) || mutant!(successor_unreached));
    others.min_by_key(|info| (info.node.0 + group.partition.0) % 7).map(|info| ids::replica(info.replica))
}

/// What a node knows as it transfers, and where what it wants goes.
pub(super) struct TransferContext<'a> {
    pub now: Time,
    pub own: Option<NodeId>,
    pub map: &'a PartitionMap,
    /// Who leads each group, as its replica here knows.
    pub leaders: &'a ByGroup<NodeId>,
    pub workers: usize,
    pub effects: &'a mut Vec<Effect>,
}

impl TransferContext<'_> {
    fn leads(&self, group: PartitionId) -> bool {
        self.own.is_some() && self.leaders.get(&group).copied() == self.own
    }

    /// The replica to which this node can transfer a group that it leads.
    fn transferee(&self, partition: PartitionId, to: NodeId, reached: &[NodeId]) -> Result<ReplicaId, TransferOutcome> {
        may_lead(self.map, partition, to).map_err(TransferOutcome::Failed)?;
        let own = self.own.ok_or(TransferOutcome::NotLeader)?;
        let group = self.map.group(partition).ok_or(TransferOutcome::NotLeader)?;
        let replica = group.replica_on(to).ok_or(TransferOutcome::NotLeader)?.replica;
        match self.leaders.get(&partition) {
            Some(&leader) if leader == to => return Err(TransferOutcome::Done(Duration::ZERO)),
            Some(&leader) if leader == own => {}
            _ => return Err(TransferOutcome::NotLeader),
        }
        match obstacle(group, to, own, reached) {
            Some(text) => Err(TransferOutcome::Failed(AdminError::Unavailable(text))),
            None => Ok(ids::replica(replica)),
        }
    }

    /// One try, by the leader's worker.
    fn transfer(&mut self, partition: PartitionId, to: ReplicaId, deadline: Time) {
        let input = worker::Input::Replica(partition, Box::new(replica::Input::TransferLeader { to, deadline }));
        self.effects.push(Effect::Worker(worker::owner(partition, self.workers), input));
    }

    fn ended(&mut self, id: TransferId, outcome: TransferOutcome) {
        self.effects.push(Effect::TransferEnded(id, outcome));
    }
}

impl Transfers {
    /// When [`Transfers::go_on`] is next wanted.
    pub(super) fn deadline(&self) -> Option<Time> {
        let stop = self.stop.as_ref().map(|(_, until)| *until);
        self.under_way.iter().map(|transfer| transfer.retry_at.min(transfer.until)).chain(stop).min()
    }

    /// Somebody wants a leadership of this node to go to another one, and is told within this time.
    pub(super) fn begin(
        &mut self,
        id: TransferId,
        (partition, to): (PartitionId, NodeId),
        within: Duration,
        reached: &[NodeId],
        context: &mut TransferContext<'_>,
    ) {
        match context.transferee(partition, to, reached) {
            Ok(replica) => {
                let (begun, retry_at, until) = (context.now, context.now, context.now + within);
                self.under_way.push(Transfer { id, partition, to: (to, replica), begun, until, retry_at });
            }
            Err(outcome) => context.ended(id, outcome),
        }
    }

    /// The node stops: every leadership goes to another voter that is reached, so that clients see a retry and no gap.
    /// The last node of a cluster has nobody to wait for. Each transfer takes at most `longest`.
    pub(super) fn stop(
        &mut self,
        within: Duration,
        led: Reached,
        longest: Duration,
        context: &mut TransferContext<'_>,
    ) {
        let mut leaving = Vec::new();
        for (partition, reached) in led {
            let group = context.map.group(partition).zip(context.own).filter(|_| context.leads(partition));
            if let Some(to) = group.and_then(|(group, own)| successor(group, own, &reached)) {
                context.transfer(partition, to, context.now + longest);
                leaving.push(partition);
            }
        }
        self.stop = Some((leaving, context.now + within.min(longest)));
    }

    /// Ends transfers that are done or whose time is over, and tries the others again.
    pub(super) fn go_on(&mut self, context: &mut TransferContext<'_>) {
        let now = context.now;
        for transfer in std::mem::take(&mut self.under_way) {
            let Transfer { id, partition, to: (to, replica), begun, until, retry_at } = transfer;
            let leader = context.leaders.get(&partition).copied();
            if leader == Some(to) {
                context.ended(id, TransferOutcome::Done(now.since(begun)));
            } else if leader.is_some() && leader != context.own {
                context.ended(id, TransferOutcome::NotLeader);
            } else if until <= now {
                let text = format!("{to} did not take {partition} over in time");
                context.ended(id, TransferOutcome::Failed(AdminError::TimedOut(text)));
            } else if retry_at <= now {
                context.transfer(partition, replica, until);
                self.under_way.push(Transfer { retry_at: now + RETRY_INTERVAL, ..transfer });
            } else {
                self.under_way.push(transfer);
            }
        }
        let is_over = |(leaving, until): &mut (Vec<PartitionId>, Time)| {
            let is_late = *until <= now && !mutant!(stop_waits_for_ever);
            is_late || !leaving.iter().any(|&group| context.leads(group)) || mutant!(stops_at_once)
        };
        if self.stop.take_if(is_over).is_some() {
            context.effects.push(Effect::Stopped);
        }
    }
}
