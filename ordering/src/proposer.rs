//! The proposer: a leadership from the moment its round is chosen to its end (protocol.md 1.1, 1.2).
//!
//! Here is its state, and the one decision of Phase 1: which value each instance gets. The composition does the rest.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::{Batch, Configuration};
use crate::batcher::Batcher;
use crate::heartbeats::{Heartbeats, ShortestRoundTrip};
use crate::ids::{Ballot, HeartbeatRound, Instance, Lsn, ReplicaId, Ticket, Time};
use crate::message::Phase1b;
use crate::quorum::{Quorum, VoteSet};
use crate::reads::Confirmations;
use crate::retransmission::Retransmission;
use crate::window::Window;

/// So long a round for reads waits for as few voters as a quorum needs; then everybody is asked.
const FEW_ANSWER_WITHIN: Duration = Duration::from_millis(2);

/// Phase 1 under way, for all instances from `from` on, under the configuration decided at `configured_at`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Phase1 {
    pub from: Instance,
    pub configured_at: Instance,
    pub answered: VoteSet,
    pub replies: Vec<(ReplicaId, Phase1b)>,
    pub begun_at: Time,
    pub retry_at: Time,
    /// A candidate gives up then. A leader that repeats Phase 1 resigns when it hears no quorum.
    pub give_up_at: Time,
}

/// What the leader knows of another replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub id: ReplicaId,
    /// Anything of the own ballot came last then.
    pub heard_at: Time,
    /// The newest round that it acknowledged.
    pub acked: HeartbeatRound,
    /// Its promise of a lease lasts at least until then, by the leader's clock.
    pub lease_until: Time,
    /// It durably holds everything decided up to here.
    pub durable_upto: Instance,
    /// The quickest heartbeat there and back.
    pub nearest: ShortestRoundTrip,
}

/// The leader makes another voter the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaderTransfer {
    pub to: ReplicaId,
    pub deadline: Time,
    /// Nothing changes before the transferee acknowledges this round, and holds most of what had been decided here when
    /// the round was asked for: one that cannot be reached, or is far behind, costs nobody a pause.
    pub asked: (HeartbeatRound, Instance),
    /// Since when nothing is proposed.
    pub paused_at: Option<Time>,
    pub sent: bool,
}

impl LeaderTransfer {
    /// When the leader goes on leading. A pause lasts no longer than an election would.
    pub fn ends_at(&self, election_timeout: Duration) -> Time {
        let paused = self.paused_at.filter(|_| !mutant!(transfer_pauses_on));
        paused.map_or(self.deadline, |paused_at| self.deadline.min(paused_at + election_timeout))
    }
}

/// What the others have been told of decisions and watermarks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Announcement {
    /// What the last `Phase2a` or heartbeat to everybody carried.
    carried: (Instance, Option<Ticket>),
    /// When to send a heartbeat because nothing else carried what is new.
    pub due_at: Option<Time>,
}

impl Announcement {
    fn of_nothing_above(decided_upto: Instance) -> Announcement {
        Announcement { carried: (decided_upto, None), due_at: None }
    }

    /// A message to everybody carries this.
    pub fn carry(&mut self, current: (Instance, Option<Ticket>)) {
        (self.carried, self.due_at) = (current, None);
    }

    /// Whether the others were told of this.
    pub fn is_carried(&self, current: (Instance, Option<Ticket>)) -> bool {
        self.carried == current
    }
}

/// What Phase 1 found above what is decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FoundValues {
    /// Not proposed again yet, from `window.next()` on.
    pub values: VecDeque<Batch>,
    /// The last instance that was found: when it is executed, this replica serves.
    pub upto: Instance,
}

/// A configuration on its way into the log, alone (protocol.md 1.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PendingChange {
    /// Waits until nothing is in flight.
    pub waiting: Option<Configuration>,
    /// It is proposed and undecided, the last thing in flight.
    pub in_flight: bool,
}

impl PendingChange {
    pub fn is_none(&self) -> bool {
        self.waiting.is_none() && !self.in_flight
    }
}

/// How far a candidacy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// Its round is not durable. Nothing is sent in its ballot (hazards.md PX2).
    Recording,
    /// Its first Phase 1 is under way.
    Standing,
    /// Phase 1 was completed once: it leads.
    Leading,
    /// `Effect::Leading` is out.
    Serving,
}

/// A candidacy, and the leadership that it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proposer {
    /// Promised by this replica too, as long as this exists.
    pub ballot: Ballot,
    /// The record of the round.
    pub ballot_lsn: Lsn,
    /// The leader that made this candidate stand.
    pub transfer_of: Option<Ballot>,
    pub stage: Stage,
    /// Under way. Nothing is proposed meanwhile.
    pub phase1: Option<Phase1>,
    pub found: FoundValues,
    pub window: Window,
    pub batcher: Batcher,
    pub change: PendingChange,
    pub transfer: Option<LeaderTransfer>,
    /// A `TransferLeader` was sent: this ballot uses no lease more, for the message may arrive whenever it likes.
    pub lease_void: bool,
    /// All other members, and those that leave.
    pub peers: Vec<Peer>,
    pub heartbeats: Heartbeats,
    pub confirmations: Confirmations,
    pub retransmission: Retransmission,
    pub announcement: Announcement,
}

impl Proposer {
    pub fn new(ballot: Ballot, ballot_lsn: Lsn, transfer_of: Option<Ballot>, decided_upto: Instance) -> Proposer {
        Proposer {
            ballot,
            ballot_lsn,
            transfer_of,
            stage: Stage::Recording,
            phase1: None,
            found: FoundValues { values: VecDeque::new(), upto: decided_upto },
            window: Window::starting_at(decided_upto.next()),
            batcher: Batcher::default(),
            change: PendingChange::default(),
            transfer: None,
            lease_void: false,
            peers: Vec::new(),
            heartbeats: Heartbeats::default(),
            confirmations: Confirmations::default(),
            retransmission: Retransmission::default(),
            announcement: Announcement::of_nothing_above(decided_upto),
        }
    }

    /// Whether messages of the ballot may be sent, and those that come belong to it.
    pub fn has_begun(&self) -> bool {
        self.stage >= Stage::Standing
    }

    /// Whether Phase 1 was completed once.
    pub fn is_elected(&self) -> bool {
        self.stage >= Stage::Leading
    }

    /// Whether it takes commands and confirms reads.
    pub fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether no Phase 1 is under way or ahead of it: it may propose.
    pub fn may_propose(&self) -> bool {
        self.has_begun() && self.phase1.is_none()
    }

    pub fn peer_mut(&mut self, id: ReplicaId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    pub fn peer(&self, id: ReplicaId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    /// Whether the leader has stopped proposing, for another one to lead.
    pub fn pauses(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.paused_at.is_some())
    }

    /// Fits `peers` to a configuration. A new one counts as heard now: it gets an election timeout to answer.
    pub fn set_peers(&mut self, configuration: &Configuration, me: ReplicaId, now: Time) {
        let old = std::mem::take(&mut self.peers);
        let all = configuration.members().chain(configuration.leaving.iter().copied());
        self.peers = all
            .filter(|id| *id != me)
            .map(|id| {
                let fresh = Peer {
                    id,
                    heard_at: now,
                    acked: HeartbeatRound(0),
                    lease_until: Time::ZERO,
                    durable_upto: Instance::ZERO,
                    nearest: ShortestRoundTrip::default(),
                };
                let known = old.iter().find(|peer| peer.id == id).cloned();
                // Leases and rounds count anew under the new configuration (protocol.md 1.1).
                known.map_or(fresh, |known| Peer {
                    heard_at: now,
                    lease_until: Time::ZERO,
                    acked: HeartbeatRound(0),
                    ..known
                })
            })
            .collect();
    }

    /// The newest round that a quorum acknowledged. The leader itself does so at once.
    pub fn acked_by(&self, quorum: &Quorum, me: ReplicaId) -> HeartbeatRound {
        let acked = |id| {
            if id == me { self.heartbeats.newest } else { self.peer(id).map_or(HeartbeatRound(0), |peer| peer.acked) }
        };
        quorum.reached(acked).unwrap_or_default()
    }

    /// As many voters as are a quorum with `me`: those that acknowledged the newest rounds, of these the nearest.
    pub fn quickest_quorum(&self, quorum: &Quorum, me: ReplicaId) -> impl Iterator<Item = ReplicaId> + use<> {
        let mut voters: Vec<&Peer> = self.peers.iter().filter(|peer| quorum.position(peer.id).is_some()).collect();
        voters.sort_by_key(|peer| (Reverse(peer.acked), peer.nearest.shortest().unwrap_or(Duration::MAX)));
        voters.truncate(quorum.majority() - usize::from(quorum.position(me).is_some()));
        voters.into_iter().map(|peer| peer.id).collect::<Vec<_>>().into_iter()
    }

    /// When a round is begun to everybody, since the few that were asked for reads have not answered.
    pub fn everybody_at(&self) -> Option<Time> {
        self.heartbeats
            .few_since
            .filter(|_| !self.confirmations.is_empty() && !mutant!(few_asked_for_ever))
            .map(|since| since + FEW_ANSWER_WITHIN)
    }

    /// Until when a quorum has promised to elect nobody else. The leader itself elects nobody while it leads.
    pub fn lease_until(&self, quorum: &Quorum, me: ReplicaId) -> Time {
        let lease = |id| if id == me { Time(u64::MAX) } else { self.peer(id).map_or(Time::ZERO, |p| p.lease_until) };
        quorum.reached(lease).unwrap_or_default()
    }

    /// The group is quiescent no more. Who was not asked for so long had no chance to be heard.
    pub fn wake(&mut self, now: Time) {
        self.heartbeats.wake();
        self.forgive_silence(now);
    }

    /// Counts everybody as heard now.
    fn forgive_silence(&mut self, now: Time) {
        if !mutant!(quiescence_is_silence) {
            self.peers.iter_mut().for_each(|peer| peer.heard_at = now);
        }
    }

    /// A round to everybody begins: how long until the next one, if that is longer than usual.
    pub fn note_round(&mut self, now: Time, idle: bool, interval: Duration) -> Option<Duration> {
        let (quiescent, ends) = self.heartbeats.note_round(idle, interval);
        if ends {
            self.forgive_silence(now);
        }
        quiescent
    }

    /// When a quorum, this replica included, was last heard.
    pub fn quorum_heard_at(&self, quorum: &Quorum, me: ReplicaId) -> Time {
        let heard = |id| if id == me { Time(u64::MAX) } else { self.peer(id).map_or(Time::ZERO, |p| p.heard_at) };
        quorum.reached(heard).unwrap_or_default()
    }
}

/// The values that a new leader proposes in the instances after `decided_upto`: in each, that of the highest ballot
/// which a quorum's replies report; a hole becomes `NoOp`, never a queued command. The list ends at a configuration,
/// because the instances after it are another quorum's (protocol.md 1.1).
pub(crate) fn adopt(replies: &[(ReplicaId, Phase1b)], decided_upto: Instance) -> VecDeque<Batch> {
    let reported = || replies.iter().flat_map(|(_, reply)| &reply.accepted).filter(|a| a.instance > decided_upto);
    let last = reported().map(|accepted| accepted.instance).max().unwrap_or(decided_upto);
    let mut best: Vec<Option<(Ballot, &Batch)>> = vec![None; last.ahead_of(decided_upto) as usize];
    for accepted in reported() {
        let best = &mut best[(accepted.instance.0 - decided_upto.0 - 1) as usize];
        let better = best.is_none_or(|(ballot, _)| accepted.ballot > ballot && !mutant!(first_value_wins));
        if better {
            *best = Some((accepted.ballot, &accepted.batch));
        }
    }
    let mut values = VecDeque::with_capacity(best.len());
    for value in best {
        let batch = value.map_or(Batch::NoOp, |(_, batch)| batch.clone());
        let configuration = batch.as_configuration().is_some();
        values.push_back(batch);
        if configuration && !mutant!(conf_one_phase1) {
            break;
        }
    }
    values
}
