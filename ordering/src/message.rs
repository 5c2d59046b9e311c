//! What replicas of one group say to each other: one struct per message, with only the fields that it uses.
//!
//! The enum is the protocol's table of contents; `lib.rs` shows who sends what to whom. How a message becomes bytes is
//! the server's business. `from` of a message is told by the connection it came on, never by a field.

use std::time::Duration;

use crate::batch::Batch;
use crate::ids::{Ballot, HeartbeatRound, Instance, Ticket};

/// Every message of a group. Losing, repeating, delaying or reordering any of them is harmless.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Have you lost the leader too?
    PreVote(PreVote),
    /// Answer to it.
    PreVoteReply(PreVoteReply),
    /// Promise me this ballot.
    Phase1a(Phase1a),
    /// Promised, and this is what I accepted.
    Phase1b(Phase1b),
    /// Accept this batch.
    Phase2a(Phase2a),
    /// Accepted.
    Phase2b(Phase2b),
    /// I promised a higher ballot.
    Preempted(Preempted),
    /// I lead.
    Heartbeat(Heartbeat),
    /// I follow.
    HeartbeatAck(HeartbeatAck),
    /// Give me what was decided.
    CatchUp(CatchUp),
    /// Here it is, or take a snapshot.
    CatchUpReply(CatchUpReply),
    /// How far must I have decided to answer a read?
    ReadPosition(ReadPosition),
    /// This far.
    ReadPositionReply(ReadPositionReply),
    /// Lead, I stop.
    TransferLeader(TransferLeader),
}

/// Candidate to voters, before it takes a new round (protocol.md 1.1, liveness only).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreVote {
    /// Counts the candidate's attempts, so that late replies are told apart.
    pub attempt: u64,
    /// What the candidate has decided: a voter refuses one that is behind its trim point.
    pub decided_upto: Instance,
}

/// Voter to candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreVoteReply {
    /// Of the [`PreVote`].
    pub attempt: u64,
    /// The voter has not heard of a leader for an election timeout either.
    pub granted: bool,
    /// The highest ballot the voter promised: the new round goes above it.
    pub promised: Ballot,
    /// A candidate that is refused because it is behind can start to catch up.
    pub decided_upto: Instance,
}

/// Candidate to voters: Phase 1 for all instances at once (protocol.md 1.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Phase1a {
    /// The candidate's; its round is durable there (hazards.md PX2).
    pub ballot: Ballot,
    /// First instance that the candidate does not know to be decided.
    pub from: Instance,
    /// The leader of this ballot asked the candidate to lead: leases promised to it no longer count (protocol.md 7).
    pub transfer: Option<Ballot>,
}

/// Acceptor to candidate, after the promise is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Phase1b {
    /// Promised.
    pub ballot: Ballot,
    /// Of the [`Phase1a`].
    pub from: Instance,
    /// Everything accepted at or after `from`, ascending. Decided instances may be left out from the front where they
    /// would exceed `phase1b_bytes_max` together; the candidate then catches up first.
    pub accepted: Vec<AcceptedBatch>,
    /// Everything up to here is decided; entries up to here are the decided values.
    pub decided_upto: Instance,
    /// Batches up to here are forgotten: they are decided, not holes (hazards.md PX6).
    pub trimmed_upto: Instance,
}

/// One accepted batch: the vote of an acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcceptedBatch {
    pub instance: Instance,
    /// The ballot in which it was accepted, not the one promised (hazards.md PX3).
    pub ballot: Ballot,
    pub batch: Batch,
}

/// Leader to voters and learners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Phase2a {
    /// The leader's.
    pub ballot: Ballot,
    pub instance: Instance,
    /// What. The same handles in every copy.
    pub batch: Batch,
    /// Everything up to here is decided; applies to batches accepted in `ballot` (protocol.md 1.4).
    pub decided_upto: Instance,
    /// Tickets up to here are released (protocol.md 3, 4): opaque here.
    pub released: Option<Ticket>,
}

/// Acceptor to leader, after the votes are durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Phase2b {
    /// The leader's.
    pub ballot: Ballot,
    /// First of the contiguous run of instances whose batches of `ballot` are durable here. So a later vote repeats the
    /// earlier ones, and never covers a gap (hazards.md PX8).
    pub first: Instance,
    /// Last of the run.
    pub instance: Instance,
}

/// Acceptor to whoever used a lower ballot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Preempted {
    /// The promised one, durable.
    pub ballot: Ballot,
}

/// Leader to voters, learners, and those that leave, in a queue of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// The leader's.
    pub ballot: Ballot,
    /// Number of the round within the ballot.
    pub round: HeartbeatRound,
    /// As in [`Phase2a`].
    pub decided_upto: Instance,
    /// A quorum of the newest decided configuration durably holds everything up to here (protocol.md 1.5).
    pub held_upto: Instance,
    /// As in [`Phase2a`].
    pub released: Option<Ticket>,
    /// The lease that the leader asks for; zero with `reads = "quorum"`.
    pub lease: Duration,
    /// The group is quiescent: the next one comes within this. Zero: within `heartbeat_interval`, as always.
    pub quiesce: Duration,
}

/// Any replica to the leader, if it has promised no higher ballot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeartbeatAck {
    /// Of the [`Heartbeat`].
    pub ballot: Ballot,
    /// Of the [`Heartbeat`].
    pub round: HeartbeatRound,
    /// The sender durably holds everything decided up to here.
    pub durable_upto: Instance,
    /// The lease promised: no other ballot's `Phase1a` is answered for so long from now (protocol.md 7).
    pub lease: Duration,
    /// As far as the sender knows: what is released stays so, and the leader need not hear the coordinator itself.
    pub released: Option<Ticket>,
}

/// Replica to replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CatchUp {
    /// First instance wanted.
    pub from: Instance,
    /// At most so much payload, but at least one batch.
    pub bytes_max: u32,
}

/// Replica to replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CatchUpReply {
    /// Decided batches, contiguous, the first one wanted first. Empty if the sender knows no more than the asker, or,
    /// with
    /// `trimmed_upto` at or above what was wanted, if only a snapshot can help: then this is the offer of one.
    pub decided: Vec<AcceptedBatch>,
    /// What the sender knows to be decided.
    pub decided_upto: Instance,
    /// The sender has forgotten batches up to here; its snapshot covers them.
    pub trimmed_upto: Instance,
    /// As in [`Heartbeat`], as far as the sender knows.
    pub held_upto: Instance,
    /// What the sender has promised, perhaps not durably: whoever takes a configuration from it promises no less
    /// (protocol.md 1.5).
    pub promised: Ballot,
}

/// Follower to leader (protocol.md 7).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadPosition {
    /// The run of the asking process, so that a late answer to an earlier run is none (hazards.md RD2).
    pub incarnation: u64,
    /// Counts the asker's questions; an answer answers all earlier ones of the run too.
    pub ask: u64,
    /// The highest ballot that the asker knows: it has promised no higher one.
    pub ballot: Ballot,
}

/// Leader to follower, once its leadership is confirmed for a moment after the question arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadPositionReply {
    /// Of the [`ReadPosition`].
    pub incarnation: u64,
    /// Of the [`ReadPosition`].
    pub ask: u64,
    /// Whoever has executed everything up to here may answer. It is decided.
    pub position: Instance,
    /// The leader's: for the position as for `decided_upto` in [`Phase2a`].
    pub ballot: Ballot,
}

/// Leader to the voter that shall lead (protocol.md 8, move). The leader proposes nothing more, and uses no lease more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransferLeader {
    /// The ballot that ends.
    pub ballot: Ballot,
}

macro_rules! message_from {
    ($($name:ident),*) => {
        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

message_from!(
    PreVote,
    PreVoteReply,
    Phase1a,
    Phase1b,
    Phase2a,
    Phase2b,
    Preempted,
    Heartbeat,
    HeartbeatAck,
    CatchUp,
    CatchUpReply,
    ReadPosition,
    ReadPositionReply,
    TransferLeader
);
