//! What a peer says is checked before anything acts on it.
//!
//! A message is refused whole, and counted, when it names a number that no election, log or coordinator reaches, a
//! batch that no leader proposes, or a ballot whose leader did not send it. Without this one frame could end a group
//! for good: a promise of the last round there is leaves no round for the next election.

use crate::batch::{Batch, Configuration};
use crate::ids::{Ballot, Instance, ReplicaId, Round, Ticket};
use crate::message::{AcceptedBatch, CatchUpReply, Message, Phase1b};
use crate::paxos::Paxos;
use crate::quorum::{LEARNERS_MAX, VOTERS_MAX};
use crate::settings::{ACCEPT_AHEAD_MAX, BATCH_BYTES_MAX};

/// A round may lie this far above the highest one known here. Rounds rise by one for each candidacy: a replica that was
/// cut off for 13 years while its group held ten elections a second is still let in again.
const ROUND_AHEAD_MAX: u64 = 1 << 32;

/// No ballot has a higher round. Far enough below the largest number that nothing wraps, and 2^30 times
/// `ROUND_AHEAD_MAX` above the first one.
pub const ROUND_MAX: Round = Round(1 << 62);

/// No log is longer. Relative bounds do not help here: a learner begins with nothing, and its group may be any length.
const INSTANCE_MAX: Instance = Instance(1 << 62);

/// No coordinator gives out more tickets in one ballot.
const TICKETS_MAX: u64 = 1 << 62;

impl Ticket {
    /// Whether a coordinator may have come this far since `known`, the highest ticket known so far.
    pub(crate) fn may_follow(self, known: Option<Ticket>) -> bool {
        let round = known.map_or(Round(0), |known| known.ballot.round);
        self.ballot.round.may_follow(round) && self.n <= TICKETS_MAX
    }
}

impl Round {
    /// Whether elections may have come this far since `known`, the highest round known so far.
    fn may_follow(self, known: Round) -> bool {
        mutant!(absurd_round_promised) || self <= ROUND_MAX && self.0.saturating_sub(known.0) <= ROUND_AHEAD_MAX
    }
}

impl Batch {
    /// Whether a leader may propose this.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Batch::NoOp => true,
            Batch::Commands(commands) => commands.len_bytes() <= BATCH_BYTES_MAX,
            Batch::Configuration(configuration) => configuration.is_sound(),
        }
    }
}

impl Configuration {
    /// Whether a group can go on under this: it has voters, not too many members, and nobody in two roles.
    pub fn is_sound(&self) -> bool {
        let Configuration { voters, learners, leaving } = self;
        (1..=VOTERS_MAX).contains(&voters.len())
            && learners.len() <= LEARNERS_MAX
            && leaving.len() <= VOTERS_MAX + LEARNERS_MAX
            && voters.is_disjoint(learners)
            && !leaving.iter().any(|replica| self.is_member(*replica))
    }
}

impl Paxos {
    /// Whether this replica can stand in a round above what it has promised. One whose log holds an absurd promise can
    /// neither vote nor lead, and is to be replaced.
    pub fn has_rounds_left(&self) -> bool {
        self.acceptor.promised().round < ROUND_MAX
    }

    /// Whether a snapshot that a peer took here may be put in place ([`crate::Input::Installed`]).
    pub fn may_install(&self, instance: Instance, configuration: &Configuration, promised: Ballot) -> bool {
        let known = self.election.round_seen.max(self.ballot().round);
        instance <= INSTANCE_MAX && configuration.is_sound() && promised.round.may_follow(known)
    }

    /// Whether `message`, from the replica `from`, says what only a broken or foreign process says.
    pub(super) fn is_absurd(&self, from: ReplicaId, message: &Message) -> bool {
        let known = self.election.round_seen.max(self.ballot().round);
        let ballot = |ballot: Ballot| ballot.round.may_follow(known);
        let of_leader = |of: Ballot| ballot(of) && (of.replica == from || mutant!(anybody_leads));
        let upto = |instance: Instance| instance <= INSTANCE_MAX;
        let released = |ticket: Option<Ticket>| ticket.is_none_or(|ticket| ticket.may_follow(self.released));
        let kept = |kept: &AcceptedBatch| upto(kept.instance) && ballot(kept.ballot) && kept.batch.is_sound();
        let sound = match message {
            Message::PreVote(m) => upto(m.decided_upto),
            Message::PreVoteReply(m) => ballot(m.promised) && upto(m.decided_upto),
            Message::Phase1a(m) => ballot(m.ballot) && upto(m.from) && m.transfer.is_none_or(ballot),
            Message::Phase1b(m) => {
                upto(m.decided_upto) && upto(m.trimmed_upto) && m.accepted.iter().all(kept) && in_order(m)
            }
            Message::Phase2a(m) => {
                let found = m.instance > Instance::ZERO && upto(m.instance) && m.batch.is_sound();
                of_leader(m.ballot) && found && upto(m.decided_upto) && released(m.released)
            }
            Message::Phase2b(m) => upto(m.first) && upto(m.instance),
            Message::Preempted(m) => ballot(m.ballot),
            Message::Heartbeat(m) => {
                of_leader(m.ballot) && upto(m.decided_upto) && upto(m.held_upto) && released(m.released)
            }
            Message::HeartbeatAck(m) => upto(m.durable_upto) && released(m.released),
            Message::CatchUp(m) => upto(m.from),
            Message::CatchUpReply(m) => {
                let CatchUpReply { decided, decided_upto, trimmed_upto, held_upto, promised } = m;
                let all = [decided_upto, trimmed_upto, held_upto].into_iter().all(|instance| upto(*instance));
                all && ballot(*promised) && decided.iter().all(kept)
            }
            Message::ReadPosition(m) => ballot(m.ballot),
            Message::ReadPositionReply(m) => of_leader(m.ballot) && upto(m.position),
            Message::TransferLeader(m) => of_leader(m.ballot),
        };
        !sound
    }
}

/// Whether the votes ascend from the first instance that was asked for, and end near what the acceptor has decided.
fn in_order(m: &Phase1b) -> bool {
    let ascend = m.accepted.windows(2).all(|pair| pair[0].instance < pair[1].instance);
    let ends = m.accepted.first().zip(m.accepted.last());
    let bounded = ends.is_none_or(|(first, last)| {
        first.instance >= m.from && last.instance.ahead_of(m.decided_upto) <= ACCEPT_AHEAD_MAX
    });
    ascend && bounded
}
