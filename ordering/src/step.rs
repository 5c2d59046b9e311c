//! The shape of the core: what goes in, what comes out, what becomes durable.
//!
//! Effects may be carried out in any order and in parallel, except that records are written in `lsn` order.

use std::time::Duration;

use crate::batch::{Batch, Configuration};
use crate::ids::{Ballot, Instance, Lsn, ReadToken, ReplicaId, Ticket, Time};
use crate::message::Message;

/// What [`crate::Paxos::step`] takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time passed; wanted at [`crate::Paxos::deadline`].
    Tick,
    /// A message of this group arrived.
    Message {
        /// Who sent it, as its connection proves.
        from: ReplicaId,
        /// What it says.
        message: Message,
    },
    /// Every record of this group up to here is flushed.
    Persisted(Lsn),
    /// Ask that leadership be confirmed for a moment after now (protocol.md 7). Answered by [`Effect::Confirmed`] or
    /// [`Effect::Unconfirmed`]; at once by the latter if this replica does not lead. Tokens ascend.
    Confirm(ReadToken),
    /// Ask the leader, wherever it is, for a confirmed position (protocol.md 7). Answered by [`Effect::Position`];
    /// asked again while there is no answer. Tokens ascend, apart from those of `Confirm`.
    AskPosition(ReadToken),
    /// Leader: propose this configuration (protocol.md 1.5). Ends in [`Effect::ConfigurationDecided`], in
    /// [`Effect::ChangeRefused`], or in the loss of leadership. `leaving` is filled in.
    Change(Configuration),
    /// Leader: make this voter the leader, or go on leading. It proposes until the voter has answered a heartbeat and
    /// lacks little, and then pauses, for an election timeout at most.
    TransferLeader {
        /// The voter that shall lead.
        to: ReplicaId,
        /// When to give up: [`Effect::LeaderTransferFailed`].
        deadline: Time,
    },
    /// Nothing came from the node of this replica after `since`, or its process is another one: what it said of a rest
    /// is void. Whoever sets [`crate::Settings::quiesce_heartbeat_interval`] must tell this well within
    /// `election_timeout`.
    Lost {
        peer: ReplicaId,
        /// When its node was last heard.
        since: Time,
    },
    /// The process of this replica has ended: its machine closed its connections and refuses new ones. A hint, as a
    /// timeout is one; a leader that is gone is not waited for. Not every end is told: a machine may end too.
    Gone { peer: ReplicaId },
    /// Everything up to here is decided **and** executed as decided. Feeds `apply_lag_max` (papers.md A11) and the
    /// takeover (protocol.md 7). Values above what is decided count as that.
    Executed(Instance),
    /// Batches up to here may be forgotten: a snapshot at or above it is durable (protocol.md 1.6). Values above what
    /// was reported `Executed` count as that.
    Trim(Instance),
    /// A snapshot from a peer is durable and in place: go on after it. The records of this group still stand. Ignored
    /// if this replica has decided that far meanwhile: compare with [`crate::Paxos::decided_upto`] before putting one
    /// in place. What is accepted above it is announced anew; no `Decided` is emitted for what it covers.
    Installed {
        /// Where it was taken.
        instance: Instance,
        /// The configuration that governs the next instance.
        configuration: Configuration,
        /// The instance that decided it; zero for the first one.
        configured_at: Instance,
        /// What the replica that took it had promised ([`crate::Paxos::promised`]): this one promises no less
        /// (protocol.md 1.5).
        promised: Ballot,
    },
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Append this record, flush, and answer [`Input::Persisted`]. Lazy ones ([`Record::is_lazy`]) need no flush of
    /// their own.
    Persist {
        /// Ascends by one.
        lsn: Lsn,
        record: Record,
    },
    /// Send; losing it is harmless.
    Send {
        /// Never this replica.
        to: ReplicaId,
        message: Message,
    },
    /// A batch arrived or was proposed here: it may be executed speculatively (protocol.md 2.1). Comes in any order of
    /// instances, and again for the same one when another ballot brings the same or another batch. Never for an
    /// instance that was announced as decided.
    Accepted {
        instance: Instance,
        /// One batch per (instance, ballot), for ever.
        ballot: Ballot,
        batch: Batch,
    },
    /// Everything up to here is decided. The last `Accepted` of each instance was the decided value.
    Decided {
        /// Grows.
        upto: Instance,
    },
    /// Leader: the oldest queued submissions went into this instance. Their outcome is open from now on. Follows the
    /// instance's `Accepted`.
    Proposed {
        instance: Instance,
        /// How many calls of `submit` it holds.
        submissions: u32,
    },
    /// Leadership ended with this many submissions still queued, all that there were: none was or will be proposed.
    Refused {
        /// How many calls of `submit`.
        submissions: u32,
    },
    /// Leadership is confirmed for a moment after each of these tokens arrived.
    Confirmed {
        /// Tokens up to here.
        upto: ReadToken,
    },
    /// Leadership is lost or was not there: these reads must be redirected.
    Unconfirmed {
        /// All tokens up to here that were not confirmed.
        upto: ReadToken,
    },
    /// The reads asked with `AskPosition` may be answered from any state that has executed up to `instance`.
    Position {
        /// Tokens up to here.
        upto: ReadToken,
        /// Decided already, perhaps not yet here.
        instance: Instance,
    },
    /// This replica leads and has executed all that was decided before: it takes commands and serves reads.
    Leading {
        ballot: Ballot,
        /// The first instance of its own.
        from: Instance,
    },
    /// This replica does not lead, or has stopped leading.
    Following {
        /// The leader, if one was heard.
        leader: Option<ReplicaId>,
        /// The highest ballot known.
        ballot: Ballot,
    },
    /// Only a snapshot at or above `instance` helps. Repeated, with changing sources, until [`Input::Installed`];
    /// ignore it while one is on its way.
    NeedSnapshot {
        /// Who offered one.
        from: ReplicaId,
        /// The offerer forgot the batches up to here.
        instance: Instance,
    },
    /// A configuration was decided. It governs from the next instance on. Comes before the `Decided` that covers it.
    ConfigurationDecided {
        /// Its entry.
        instance: Instance,
        /// Who replicates from now on.
        configuration: Configuration,
    },
    /// The change was not proposed.
    ChangeRefused(ChangeError),
    /// The transfer did not happen in time; this replica leads on.
    LeaderTransferFailed {
        /// Who was to lead.
        to: ReplicaId,
    },
    /// This replica was removed, and a quorum of its successors durably holds everything up to the entry that removed
    /// it: its state may be deleted (protocol.md 1.5).
    Dismissed {
        /// That entry.
        instance: Instance,
    },
    /// The watermark grew by what another replica of the group said (protocol.md 3).
    Released {
        /// Grows.
        watermark: Ticket,
    },
    /// Log records of this group below this one are needed no more.
    Forget {
        /// Keep this one.
        below: Lsn,
    },
}

/// What a replica keeps on disk, in `lsn` order. Recovery hands all of it to [`crate::RecoveredGroup::apply`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// No lower ballot gets a promise or a vote from now on. A candidate's own round too.
    Promise {
        /// Promised.
        ballot: Ballot,
    },
    /// A vote. It promises its ballot too.
    Accept {
        instance: Instance,
        /// In which ballot.
        ballot: Ballot,
        /// What was known to be decided then: so deciding needs no record of its own.
        decided_upto: Instance,
        batch: Batch,
    },
    /// A decided batch that came from another replica. No vote.
    Learned {
        /// Where. Everything below is decided and recorded too.
        instance: Instance,
        /// The ballot under which the other replica keeps it.
        ballot: Ballot,
        batch: Batch,
    },
    /// Everything up to here is decided. Lazy.
    Decided { upto: Instance },
    /// Leases of at most this length are promised from now on; after a restart the longest is waited for (protocol.md
    /// 7).
    Lease { duration: Duration },
}

impl Record {
    /// Nothing waits for a lazy record: it may be flushed with the next one.
    pub fn is_lazy(&self) -> bool {
        matches!(self, Record::Decided { .. })
    }
}

/// Why [`crate::Paxos::submit`] refused. Nothing of the submission will ever be proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubmitError {
    /// Ask there.
    NotLeader {
        /// The leader, if one was heard.
        hint: Option<ReplicaId>,
    },
    /// The queue is full, or the replica is just becoming the leader or transferring the leadership: ask here again,
    /// later.
    Busy,
}

impl std::fmt::Display for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubmitError::NotLeader { hint: Some(leader) } => write!(f, "not the leader; {leader} is"),
            SubmitError::NotLeader { hint: None } => write!(f, "not the leader; none is known"),
            SubmitError::Busy => write!(f, "busy"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// Why a configuration was not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeError {
    /// This replica does not lead.
    NotLeader {
        /// The leader, if one was heard.
        hint: Option<ReplicaId>,
    },
    /// Another change, or a leader transfer, is under way.
    Busy,
    /// No voter, more than [`crate::quorum::VOTERS_MAX`] voters or [`crate::quorum::LEARNERS_MAX`] learners, or a
    /// replica that is voter and learner at once.
    Invalid,
}
