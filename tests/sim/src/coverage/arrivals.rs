//! Rare conditions that show in what arrives, and at whom: a message beside the state that it meets, a multicast
//! message, a reply. What meets no condition worth a name is passed over.

use coppice_core::multicast::MulticastBody;
use coppice_core::request::{Refusal, Reply};
use coppice_ordering::multicast::{Abort, Effect as Coordinated, Work};
use coppice_ordering::{Batch, Counters, Message, Paxos, ReplicaId};

use super::Coverage;

/// A batch of more commands is a large one.
const MANY_COMMANDS: u32 = 8;

impl Coverage {
    /// A message arrives at a replica.
    pub fn message(&mut self, paxos: &Paxos, from: ReplicaId, message: &Message) {
        let (ballot, decided, member) = (paxos.ballot(), paxos.decided_upto(), is_member(paxos, from));
        let leads = paxos.is_leader();
        if !member {
            self.stranger(message);
        }
        if matches!(message, Message::Heartbeat(m) if !m.quiesce.is_zero()) {
            self.note("quiescence: a leader tells of it");
        }
        match message {
            Message::PreVote(_) if leads => self.note("pre-vote: asked of a leader"),
            Message::PreVote(m) if m.decided_upto < paxos.trimmed_upto() => {
                self.note("pre-vote: asked by one behind the trim point");
            }
            Message::PreVoteReply(m) if m.granted && leads => self.note("pre-vote: granted to one that leads already"),
            Message::PreVoteReply(m) if !m.granted => self.note("pre-vote: refused"),
            Message::PreVoteReply(m) if m.decided_upto > decided => self.note("pre-vote: tells of decisions"),
            Message::Phase1a(m) if m.ballot < ballot => self.note("phase 1: asked in an old ballot"),
            Message::Phase1a(m) if m.ballot == paxos.promised() => self.note("phase 1: asked again"),
            Message::Phase1a(m) if m.transfer.is_some() => self.note("phase 1: asked by a successor"),
            Message::Phase1a(_) if leads => self.note("phase 1: asked of a leader"),
            Message::Phase1a(m) if m.from <= paxos.trimmed_upto() => self.note("phase 1: asked below the trim point"),
            Message::Phase1a(m) if m.from <= decided => self.note("phase 1: asked by one that is behind"),
            Message::Phase1b(m) => {
                let ballots = m.accepted.windows(2).any(|pair| pair[0].ballot != pair[1].ballot);
                let hole = m.accepted.windows(2).any(|pair| pair[0].instance.next() != pair[1].instance);
                if m.ballot < ballot {
                    self.note("phase 1: answered in an old ballot");
                }
                if leads {
                    self.note("phase 1: answered after it was over");
                }
                if ballots {
                    self.note("phase 1: votes of several ballots");
                }
                if hole {
                    self.note("phase 1: votes around a hole");
                }
                if m.decided_upto > decided {
                    self.note("phase 1: tells of decisions");
                }
                if m.trimmed_upto > decided {
                    self.note("phase 1: tells of a snapshot");
                }
                if m.accepted.iter().any(|accepted| accepted.batch.as_configuration().is_some()) {
                    self.note("phase 1: finds a configuration");
                }
                if !member {
                    self.note("phase 1: answered by no member");
                }
            }
            Message::Phase2a(m) => {
                if m.ballot < ballot {
                    self.note("phase 2: proposed in an old ballot");
                } else if m.instance <= decided {
                    self.note("phase 2: proposed where it is decided");
                    if paxos.batch(m.instance).is_some_and(|batch| *batch != m.batch) {
                        self.note("phase 2: proposed what was overwritten");
                    }
                } else if paxos.batch(m.instance).is_some_and(|batch| *batch == m.batch) {
                    self.note("phase 2: proposed again");
                } else if paxos.batch(m.instance).is_some() {
                    self.note("phase 2: a later ballot overwrites");
                } else if m.instance > paxos.accepted_upto().next() {
                    self.note("phase 2: proposed above a gap");
                }
                if m.batch.count() > MANY_COMMANDS {
                    self.note("phase 2: a batch of many commands");
                }
                if m.ballot > paxos.promised() {
                    self.note("phase 2: proposed in a ballot that was not promised here");
                }
                match &m.batch {
                    Batch::NoOp => self.note("phase 2: a hole is filled"),
                    Batch::Configuration(_) => self.note("phase 2: a configuration is proposed"),
                    Batch::Commands(_) => {}
                }
                if m.ballot > ballot && leads {
                    self.note("phase 2: proposed to a leader of an old ballot");
                }
            }
            Message::Phase2b(m) => {
                if m.instance > m.first {
                    self.note("phase 2: one vote for several instances");
                }
                if m.ballot < ballot {
                    self.note("phase 2: a vote for an old ballot");
                } else if m.instance <= decided {
                    self.note("phase 2: a vote for what is decided");
                } else if m.first > decided.next() {
                    self.note("phase 2: a vote above a gap");
                }
                if !member {
                    self.note("phase 2: a vote of no member");
                }
            }
            Message::Preempted(m) if m.ballot > ballot => self.note("preempted: by an unknown ballot"),
            Message::Preempted(_) if leads => self.note("preempted: a leader is told"),
            Message::Heartbeat(m) if m.ballot < ballot => self.note("heartbeat: of an old leader"),
            Message::Heartbeat(_) if leads => self.note("heartbeat: a leader hears of another one"),
            Message::Heartbeat(m) if m.decided_upto > paxos.accepted_upto() => {
                self.note("heartbeat: tells of what is missing");
            }
            Message::Heartbeat(m) if !m.lease.is_zero() => self.note("heartbeat: asks for a lease"),
            Message::HeartbeatAck(m) if m.ballot < ballot => self.note("heartbeat: acknowledged in an old ballot"),
            Message::HeartbeatAck(_) if !member => self.note("heartbeat: acknowledged by no member"),
            Message::HeartbeatAck(m) if !m.lease.is_zero() => self.note("heartbeat: promises a lease"),
            Message::CatchUp(m) if m.from <= paxos.trimmed_upto() => self.note("catch-up: below the trim point"),
            Message::CatchUp(m) if m.from > decided => self.note("catch-up: asked of one that knows no more"),
            Message::CatchUp(_) if !is_member(paxos, paxos.id()) => self.note("catch-up: asked of a removed replica"),
            Message::CatchUpReply(m) => {
                if m.decided.is_empty() && m.trimmed_upto > decided {
                    self.note("catch-up: offers a snapshot");
                } else if m.decided.is_empty() {
                    self.note("catch-up: no news");
                }
                if m.decided.iter().any(|decided| decided.batch.as_configuration().is_some()) {
                    self.note("catch-up: brings a configuration");
                }
                if leads {
                    self.note("catch-up: comes to a leader");
                }
                if m.promised > ballot {
                    self.note("catch-up: tells of a later ballot");
                }
                if m.decided.first().is_some_and(|first| first.instance <= decided) {
                    self.note("catch-up: brings what is known");
                }
            }
            Message::ReadPosition(_) if leads => self.note("position: asked of a leader"),
            Message::ReadPosition(_) => self.note("position: asked of one that does not lead"),
            Message::ReadPositionReply(m) if m.position > decided => self.note("position: above what is decided here"),
            Message::TransferLeader(m) if m.ballot < ballot => self.note("transfer: in an old ballot"),
            Message::TransferLeader(_) => self.note("transfer: asked to lead"),
            _ => {}
        }
    }

    /// A message comes from a replica that is no member of the configuration known here.
    fn stranger(&mut self, message: &Message) {
        match message {
            Message::PreVote(_) => self.note("pre-vote: asked by no member"),
            Message::Phase1a(_) => self.note("phase 1: asked by no member"),
            Message::Phase2a(_) => self.note("phase 2: proposed by no member"),
            Message::Heartbeat(_) => self.note("heartbeat: of no member"),
            Message::CatchUp(_) => self.note("catch-up: asked by no member"),
            _ => {}
        }
    }

    /// A multicast message arrives at a node; `coordinates`: in which ballot, if it does.
    pub fn multicast(&mut self, body: &MulticastBody, coordinates: Option<coppice_ordering::Ballot>) {
        match body {
            MulticastBody::Place(place) => match (&place.work, place.prev) {
                (Work::Nothing, None) => self.note("ticket: the first one of a ballot"),
                (Work::Nothing, Some(_)) => self.note("ticket: a voided one"),
                (Work::Change { .. }, _) => self.note("ticket: of a change of boundaries"),
                (Work::Queries(subs), _) if subs.len() > 1 => self.note("ticket: shared by queries"),
                (Work::Queries(_), _) => {}
            },
            MulticastBody::Placed(ticket) => match coordinates {
                None => self.note("ticket: placed is told to none that coordinates"),
                Some(ballot) if ballot > ticket.ballot => self.note("ticket: placed is of an old coordinator's"),
                Some(ballot) if ballot < ticket.ballot => self.note("ticket: placed is of a later coordinator's"),
                Some(_) => {}
            },
            MulticastBody::Released(_) => {}
        }
    }

    /// A coordinator asks for this.
    pub fn coordinated(&mut self, effect: &Coordinated) {
        match effect {
            Coordinated::Complete { .. } => self.note("query: complete"),
            Coordinated::Aborted { why: Abort::Unplaced(_), .. } => self.note("query: aborted, not placed in time"),
            Coordinated::Aborted { why: Abort::Unreleased, .. } => self.note("query: aborted, not released in time"),
            Coordinated::Aborted { why: Abort::Deposed, .. } => self.note("query: aborted, its coordinator is deposed"),
            Coordinated::Refused { .. } => self.note("query: refused by the coordinator"),
            Coordinated::Changed { .. } => self.note("ticket: a change of boundaries is released"),
            _ => {}
        }
    }

    /// A client is told this.
    pub fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Refused(Refusal::Busy(_)) => self.note("reply: busy"),
            Reply::Refused(Refusal::WrongPartition) => self.note("reply: another partition's"),
            Reply::Refused(Refusal::SessionExpired) => self.note("reply: the session is over"),
            Reply::Refused(Refusal::Full(_)) => self.note("reply: the disk is full"),
            Reply::Refused(Refusal::NotLeader { hint: None }) => self.note("reply: no leader is known"),
            Reply::Refused(Refusal::NotLeader { .. }) => self.note("reply: another one leads"),
            Reply::Validated { unchanged, .. } => unchanged.iter().for_each(|unchanged| match unchanged {
                true => self.note("validation: unchanged"),
                false => self.note("validation: changed"),
            }),
            _ => {}
        }
    }

    /// A replica ends: what it counted.
    pub fn ends(&mut self, counters: &Counters) {
        let counted = [
            ("batch: closed because it is full", counters.batches_closed_full),
            ("batch: closed because the pipe is idle", counters.batches_closed_idle),
            ("batch: closed because it is due", counters.batches_closed_due),
            ("batch: the queue is full", counters.submissions_refused),
            ("phase 2: sent again", counters.retransmissions),
            ("phase 2: too far ahead", counters.accepts_ahead_ignored),
            ("election: a round is taken", counters.rounds_taken),
            ("election: a pre-vote is asked for", counters.pre_votes),
            ("election: phase 1 is over", counters.phases1_completed),
            ("leader: deaf, and resigns", counters.resignations),
            ("read: confirmed", counters.confirmations),
            ("catch-up: asked", counters.catch_ups),
            ("catch-up: learned", counters.batches_learned),
        ];
        counted.into_iter().for_each(|(name, count)| self.add(name, count));
    }
}

fn is_member(paxos: &Paxos, replica: ReplicaId) -> bool {
    paxos.configuration().0.is_member(replica)
}
