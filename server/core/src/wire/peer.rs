//! Peer messages as bytes: the messages of all groups between two nodes share frames.
//!
//! A frame's body is a sequence of (group, receiver, sender, message). Payloads are sent from the bytes they arrived
//! in and read back as slices of the frame. It does not know sockets.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::WireError;
use coppice_ordering::message::{
    AcceptedBatch, CatchUp, CatchUpReply, Heartbeat, HeartbeatAck, Message, Phase1a, Phase1b, Phase2a, Phase2b,
    PreVote, PreVoteReply, Preempted, ReadPosition, ReadPositionReply, TransferLeader,
};
use coppice_ordering::{Ballot, Batch, Commands, Configuration, HeartbeatRound, Instance, ReplicaId, Round, Ticket};

use super::codec::{Body, BodyReader};

/// A message with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The group, by its partition's number; 0 is the directory.
    pub group: u32,
    /// The replica it is for.
    pub to: ReplicaId,
    /// The replica that sent it.
    pub from: ReplicaId,
    /// What it says.
    pub message: Message,
}

/// Longest batch: a leader closes one at `batch_bytes_max`, 2 MiB at most, or takes one pack more, of 4 MiB at most. A
/// record of the log holds twice that.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// Most messages in one frame: a sender closes a frame at 16 KiB, and the shortest message has 6 bytes. Once read, each
/// takes far more room than on the wire.
const MESSAGES_MAX: usize = 4_096;

/// Most batches in one message: as many as an acceptor may hold undecided, and as many decided ones
/// (`ACCEPTED_DECIDED_MAX` of the core). Empty ones have five bytes on the wire, and far more in memory.
const ACCEPTED_MAX: usize = 2 << 16;

/// Room made ahead for batches of a message.
const ACCEPTED_AHEAD: usize = 1_024;

/// Most replicas in one set of a configuration.
const REPLICAS_MAX: usize = 1_024;

// Message kinds on the wire. Numbers are never reused.
const PRE_VOTE: u8 = 1;
const PRE_VOTE_REPLY: u8 = 2;
const PHASE_1A: u8 = 3;
const PHASE_1B: u8 = 4;
const PHASE_2A: u8 = 5;
const PHASE_2B: u8 = 6;
const PREEMPTED: u8 = 7;
const HEARTBEAT: u8 = 8;
const HEARTBEAT_ACK: u8 = 9;
const CATCH_UP: u8 = 10;
const CATCH_UP_REPLY: u8 = 11;
const READ_POSITION: u8 = 12;
const READ_POSITION_REPLY: u8 = 13;
const TRANSFER_LEADER: u8 = 14;

// Batch kinds.
const NO_OP: u8 = 0;
const COMMANDS: u8 = 1;
const CONFIGURATION: u8 = 2;

/// Appends one message to a frame's body.
pub fn encode(body: &mut Body, envelope: &Envelope) {
    body.put_varint(u64::from(envelope.group));
    body.put_varint(u64::from(envelope.to.0));
    body.put_varint(u64::from(envelope.from.0));
    match &envelope.message {
        Message::PreVote(m) => {
            body.put_u8(PRE_VOTE);
            body.put_varint(m.attempt);
            body.put_varint(m.decided_upto.0);
        }
        Message::PreVoteReply(m) => {
            body.put_u8(PRE_VOTE_REPLY);
            body.put_varint(m.attempt);
            body.put_u8(u8::from(m.granted));
            put_ballot(body, m.promised);
            body.put_varint(m.decided_upto.0);
        }
        Message::Phase1a(m) => {
            body.put_u8(PHASE_1A);
            put_ballot(body, m.ballot);
            body.put_varint(m.from.0);
            put_option(body, m.transfer, put_ballot);
        }
        Message::Phase1b(m) => {
            body.put_u8(PHASE_1B);
            put_ballot(body, m.ballot);
            body.put_varint(m.from.0);
            put_accepted(body, &m.accepted);
            body.put_varint(m.decided_upto.0);
            body.put_varint(m.trimmed_upto.0);
        }
        Message::Phase2a(m) => {
            body.put_u8(PHASE_2A);
            put_ballot(body, m.ballot);
            body.put_varint(m.instance.0);
            put_batch(body, &m.batch);
            body.put_varint(m.decided_upto.0);
            put_option(body, m.released, put_ticket);
        }
        Message::Phase2b(m) => {
            body.put_u8(PHASE_2B);
            put_ballot(body, m.ballot);
            body.put_varint(m.first.0);
            body.put_varint(m.instance.0);
        }
        Message::Preempted(m) => {
            body.put_u8(PREEMPTED);
            put_ballot(body, m.ballot);
        }
        Message::Heartbeat(m) => {
            body.put_u8(HEARTBEAT);
            put_ballot(body, m.ballot);
            body.put_varint(m.round.0);
            body.put_varint(m.decided_upto.0);
            body.put_varint(m.held_upto.0);
            put_option(body, m.released, put_ticket);
            put_duration(body, m.lease);
            put_duration(body, m.quiesce);
        }
        Message::HeartbeatAck(m) => {
            body.put_u8(HEARTBEAT_ACK);
            put_ballot(body, m.ballot);
            body.put_varint(m.round.0);
            body.put_varint(m.durable_upto.0);
            put_duration(body, m.lease);
            put_option(body, m.released, put_ticket);
        }
        Message::CatchUp(m) => {
            body.put_u8(CATCH_UP);
            body.put_varint(m.from.0);
            body.put_varint(u64::from(m.bytes_max));
        }
        Message::CatchUpReply(m) => {
            body.put_u8(CATCH_UP_REPLY);
            put_accepted(body, &m.decided);
            body.put_varint(m.decided_upto.0);
            body.put_varint(m.trimmed_upto.0);
            body.put_varint(m.held_upto.0);
            put_ballot(body, m.promised);
        }
        Message::ReadPosition(m) => {
            body.put_u8(READ_POSITION);
            body.put_varint(m.incarnation);
            body.put_varint(m.ask);
            put_ballot(body, m.ballot);
        }
        Message::ReadPositionReply(m) => {
            body.put_u8(READ_POSITION_REPLY);
            body.put_varint(m.incarnation);
            body.put_varint(m.ask);
            body.put_varint(m.position.0);
            put_ballot(body, m.ballot);
        }
        Message::TransferLeader(m) => {
            body.put_u8(TRANSFER_LEADER);
            put_ballot(body, m.ballot);
        }
    }
}

/// Reads all messages of a frame's body.
///
/// # Errors
/// The first thing that is not what it should be; the connection is then closed.
pub fn decode(body: Bytes) -> Result<Vec<Envelope>, WireError> {
    let mut reader = BodyReader::new(&body);
    let mut envelopes = Vec::new();
    while !reader.is_empty() {
        let group = reader.varint_u32()?;
        let to = ReplicaId(reader.varint_u32()?);
        let from = ReplicaId(reader.varint_u32()?);
        let message = decode_message(&mut reader)?;
        within("messages in a frame", envelopes.len() + 1, MESSAGES_MAX)?;
        envelopes.push(Envelope { group, to, from, message });
    }
    Ok(envelopes)
}

fn decode_message(r: &mut BodyReader<'_>) -> Result<Message, WireError> {
    Ok(match r.u8()? {
        PRE_VOTE => PreVote { attempt: r.varint()?, decided_upto: instance(r)? }.into(),
        PRE_VOTE_REPLY => PreVoteReply {
            attempt: r.varint()?,
            granted: r.u8()? != 0,
            promised: ballot(r)?,
            decided_upto: instance(r)?,
        }
        .into(),
        PHASE_1A => Phase1a { ballot: ballot(r)?, from: instance(r)?, transfer: option(r, ballot)? }.into(),
        PHASE_1B => Phase1b {
            ballot: ballot(r)?,
            from: instance(r)?,
            accepted: accepted(r)?,
            decided_upto: instance(r)?,
            trimmed_upto: instance(r)?,
        }
        .into(),
        PHASE_2A => Phase2a {
            ballot: ballot(r)?,
            instance: instance(r)?,
            batch: batch(r)?,
            decided_upto: instance(r)?,
            released: option(r, ticket)?,
        }
        .into(),
        PHASE_2B => Phase2b { ballot: ballot(r)?, first: instance(r)?, instance: instance(r)? }.into(),
        PREEMPTED => Preempted { ballot: ballot(r)? }.into(),
        HEARTBEAT => Heartbeat {
            ballot: ballot(r)?,
            round: HeartbeatRound(r.varint()?),
            decided_upto: instance(r)?,
            held_upto: instance(r)?,
            released: option(r, ticket)?,
            lease: duration(r)?,
            quiesce: duration(r)?,
        }
        .into(),
        HEARTBEAT_ACK => HeartbeatAck {
            ballot: ballot(r)?,
            round: HeartbeatRound(r.varint()?),
            durable_upto: instance(r)?,
            lease: duration(r)?,
            released: option(r, ticket)?,
        }
        .into(),
        CATCH_UP => CatchUp { from: instance(r)?, bytes_max: r.varint_u32()? }.into(),
        CATCH_UP_REPLY => CatchUpReply {
            decided: accepted(r)?,
            decided_upto: instance(r)?,
            trimmed_upto: instance(r)?,
            held_upto: instance(r)?,
            promised: ballot(r)?,
        }
        .into(),
        READ_POSITION => ReadPosition { incarnation: r.varint()?, ask: r.varint()?, ballot: ballot(r)? }.into(),
        READ_POSITION_REPLY => {
            let (incarnation, ask) = (r.varint()?, r.varint()?);
            ReadPositionReply { incarnation, ask, position: instance(r)?, ballot: ballot(r)? }.into()
        }
        TRANSFER_LEADER => TransferLeader { ballot: ballot(r)? }.into(),
        other => return Err(WireError::Unknown { what: "message kind", value: u64::from(other) }),
    })
}

fn put_ballot(body: &mut Body, ballot: Ballot) {
    body.put_varint(ballot.round.0);
    body.put_varint(u64::from(ballot.replica.0));
}

fn ballot(r: &mut BodyReader<'_>) -> Result<Ballot, WireError> {
    Ok(Ballot { round: Round(r.varint()?), replica: ReplicaId(r.varint_u32()?) })
}

fn put_ticket(body: &mut Body, ticket: Ticket) {
    put_ballot(body, ticket.ballot);
    body.put_varint(ticket.n);
}

fn ticket(r: &mut BodyReader<'_>) -> Result<Ticket, WireError> {
    Ok(Ticket { ballot: ballot(r)?, n: r.varint()? })
}

fn instance(r: &mut BodyReader<'_>) -> Result<Instance, WireError> {
    Ok(Instance(r.varint()?))
}

fn put_duration(body: &mut Body, duration: Duration) {
    body.put_varint(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn duration(r: &mut BodyReader<'_>) -> Result<Duration, WireError> {
    Ok(Duration::from_nanos(r.varint()?))
}

fn put_option<T>(body: &mut Body, value: Option<T>, put: impl Fn(&mut Body, T)) {
    body.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(body, value);
    }
}

fn option<T>(
    r: &mut BodyReader<'_>,
    read: impl Fn(&mut BodyReader<'_>) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match r.u8()? {
        0 => Ok(None),
        1 => read(r).map(Some),
        other => Err(WireError::Unknown { what: "option", value: u64::from(other) }),
    }
}

fn put_accepted(body: &mut Body, accepted: &[AcceptedBatch]) {
    body.put_varint(accepted.len() as u64);
    for vote in accepted {
        body.put_varint(vote.instance.0);
        put_ballot(body, vote.ballot);
        put_batch(body, &vote.batch);
    }
}

fn accepted(r: &mut BodyReader<'_>) -> Result<Vec<AcceptedBatch>, WireError> {
    let count = r.count("accepted", 4)?;
    within("accepted", count, ACCEPTED_MAX)?;
    let mut accepted = Vec::with_capacity(count.min(ACCEPTED_AHEAD));
    for _ in 0..count {
        accepted.push(AcceptedBatch { instance: instance(r)?, ballot: ballot(r)?, batch: batch(r)? });
    }
    Ok(accepted)
}

fn put_batch(body: &mut Body, batch: &Batch) {
    match batch {
        Batch::NoOp => body.put_u8(NO_OP),
        Batch::Commands(commands) => {
            body.put_u8(COMMANDS);
            body.put_varint(u64::from(commands.count()));
            body.put_parts(commands.len_bytes(), commands.parts());
        }
        Batch::Configuration(configuration) => {
            body.put_u8(CONFIGURATION);
            for set in [&configuration.voters, &configuration.learners, &configuration.leaving] {
                body.put_varint(set.len() as u64);
                set.iter().for_each(|replica| body.put_varint(u64::from(replica.0)));
            }
        }
    }
}

fn batch(r: &mut BodyReader<'_>) -> Result<Batch, WireError> {
    Ok(match r.u8()? {
        NO_OP => Batch::NoOp,
        COMMANDS => {
            let count = r.varint_u32()?;
            let bytes_max = if mutant!(peer_batch_unbounded) { usize::MAX } else { BATCH_BYTES_MAX };
            Batch::Commands(Commands::new(count, r.bytes("batch length", bytes_max)?))
        }
        CONFIGURATION => {
            let (voters, learners, leaving) = (replicas(r)?, replicas(r)?, replicas(r)?);
            Batch::Configuration(Configuration { voters, learners, leaving })
        }
        other => return Err(WireError::Unknown { what: "batch kind", value: u64::from(other) }),
    })
}

/// A count that a peer says, before room is made for it.
fn within(what: &'static str, value: usize, max: usize) -> Result<(), WireError> {
    let unbounded = mutant!(peer_counts_unbounded);
    if value > max && !unbounded {
        return Err(WireError::Limit { what, value: value as u64, max: max as u64 });
    }
    Ok(())
}

fn replicas(r: &mut BodyReader<'_>) -> Result<BTreeSet<ReplicaId>, WireError> {
    let count = r.count("replicas", 1)?;
    within("replicas", count, REPLICAS_MAX)?;
    (0..count).map(|_| r.varint_u32().map(ReplicaId)).collect()
}
