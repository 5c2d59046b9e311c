//! How messages, records and effects print: one short line each, so that traces line up and can be diffed.

use std::fmt;

use crate::ids::{ReplicaId, Ticket};
use crate::message::{AcceptedBatch, Message};
use crate::step::{Effect, Record};

struct Tickets(Option<Ticket>);

impl fmt::Display for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |ticket| write!(f, " released {ticket}"))
    }
}

struct Batches<'a>(&'a [AcceptedBatch]);

impl fmt::Display for Batches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, AcceptedBatch { instance, ballot, batch }) in self.0.iter().enumerate() {
            let comma = if k == 0 { "" } else { ", " };
            write!(f, "{comma}{instance} {ballot} {batch}")?;
        }
        Ok(())
    }
}

struct Leader(Option<ReplicaId>);

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(leader) => write!(f, "{leader}"),
            None => write!(f, "nobody"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::PreVote(m) => write!(f, "PreVote {} decided {}", m.attempt, m.decided_upto),
            Message::PreVoteReply(m) => {
                let answer = if m.granted { "granted" } else { "refused" };
                write!(f, "PreVoteReply {} {answer} promised {} decided {}", m.attempt, m.promised, m.decided_upto)
            }
            Message::Phase1a(m) => {
                write!(f, "Phase1a {} from {}", m.ballot, m.from)?;
                m.transfer.map_or(Ok(()), |ballot| write!(f, " transfer of {ballot}"))
            }
            Message::Phase1b(m) => {
                write!(f, "Phase1b {} from {} accepted ({})", m.ballot, m.from, Batches(&m.accepted))?;
                write!(f, " decided {} trimmed {}", m.decided_upto, m.trimmed_upto)
            }
            Message::Phase2a(m) => {
                let released = Tickets(m.released);
                write!(f, "Phase2a {} {} {} decided {}{released}", m.ballot, m.instance, m.batch, m.decided_upto)
            }
            Message::Phase2b(m) => write!(f, "Phase2b {} {}..{}", m.ballot, m.first, m.instance),
            Message::Preempted(m) => write!(f, "Preempted by {}", m.ballot),
            Message::Heartbeat(m) => {
                write!(f, "Heartbeat {} round {} decided {}", m.ballot, m.round.0, m.decided_upto)?;
                write!(f, " held {}{}", m.held_upto, Tickets(m.released))?;
                for (what, time) in
                    [("lease", m.lease), ("quiesce", m.quiesce)].iter().filter(|(_, time)| !time.is_zero())
                {
                    write!(f, " {what} {time:?}")?;
                }
                Ok(())
            }
            Message::HeartbeatAck(m) => {
                write!(f, "HeartbeatAck {} round {} durable {}", m.ballot, m.round.0, m.durable_upto)?;
                write!(f, "{}", Tickets(m.released))?;
                if m.lease.is_zero() { Ok(()) } else { write!(f, " lease {:?}", m.lease) }
            }
            Message::CatchUp(m) => write!(f, "CatchUp from {}", m.from),
            Message::CatchUpReply(m) => {
                write!(f, "CatchUpReply ({})", Batches(&m.decided))?;
                write!(f, " decided {} trimmed {} held {}", m.decided_upto, m.trimmed_upto, m.held_upto)
            }
            Message::ReadPosition(m) => write!(f, "ReadPosition {}.{} {}", m.incarnation, m.ask, m.ballot),
            Message::ReadPositionReply(m) => {
                write!(f, "ReadPositionReply {}.{} position {} {}", m.incarnation, m.ask, m.position, m.ballot)
            }
            Message::TransferLeader(m) => write!(f, "TransferLeader {}", m.ballot),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Promise { ballot } => write!(f, "promise {ballot}"),
            Record::Accept { instance, ballot, decided_upto, batch } => {
                write!(f, "accept {instance} {ballot} {batch} decided {decided_upto}")
            }
            Record::Learned { instance, ballot, batch } => write!(f, "learned {instance} {ballot} {batch}"),
            Record::Decided { upto } => write!(f, "decided {upto}"),
            Record::Lease { duration } => write!(f, "lease {duration:?}"),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Persist { lsn, record } => write!(f, "persist {lsn}: {record}"),
            Effect::Send { to, message } => write!(f, "send {to}: {message}"),
            Effect::Accepted { instance, ballot, batch } => write!(f, "accepted {instance} {ballot} {batch}"),
            Effect::Decided { upto } => write!(f, "decided {upto}"),
            Effect::Proposed { instance, submissions } => write!(f, "proposed {instance}: {submissions} submissions"),
            Effect::Refused { submissions } => write!(f, "refused {submissions} submissions"),
            Effect::Confirmed { upto } => write!(f, "confirmed reads up to {}", upto.0),
            Effect::Unconfirmed { upto } => write!(f, "unconfirmed reads up to {}", upto.0),
            Effect::Position { upto, instance } => write!(f, "reads up to {} at {instance}", upto.0),
            Effect::Leading { ballot, from } => write!(f, "leading {ballot} from {from}"),
            Effect::Following { leader, ballot } => write!(f, "following {} {ballot}", Leader(*leader)),
            Effect::NeedSnapshot { from, instance } => write!(f, "need snapshot of {from} above {instance}"),
            Effect::ConfigurationDecided { instance, configuration } => {
                write!(f, "configuration {instance} {configuration}")
            }
            Effect::ChangeRefused(error) => write!(f, "change refused: {error:?}"),
            Effect::LeaderTransferFailed { to } => write!(f, "leader transfer to {to} failed"),
            Effect::Dismissed { instance } => write!(f, "dismissed by {instance}"),
            Effect::Released { watermark } => write!(f, "released {watermark}"),
            Effect::Forget { below } => write!(f, "forget below {below}"),
        }
    }
}
