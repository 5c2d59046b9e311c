//! What is asked of a replica and what it answers, free of frames and sockets.

use std::sync::Arc;

use bytes::Bytes;
use coppice_btree::{Cursor, Edit, Expiry, Op, OpResult, Update, Value};
use coppice_client::wire::{
    CollectRequest, Command, CommandsRequest, PartitionId, Position, QueryPlan, RangeRequest, ReadRequest, SessionId,
    Ticket, ValidateRequest, Version,
};
use coppice_ordering::multicast::Abort;
use coppice_ordering::{Instance, ReplicaId};

use crate::cost::{Account, Charge};
use crate::machine::directory::{DirectoryCommand, DirectoryReply};
use crate::settings::units::show_size;

/// Who asked, and so where the reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    Client {
        /// The worker that has its connection.
        worker: u16,
        /// The request on that connection.
        stream: u32,
        /// The connection: the worker never uses its number again for another one.
        connection: u64,
    },
    /// The node itself.
    Node {
        /// The worker that waits.
        worker: u16,
        /// The request, as that counts them.
        number: u32,
    },
    /// A double collect of a worker (`crate::collects`).
    Collect {
        worker: u16,
        /// The request, as that counts them.
        number: u64,
    },
    /// Nobody: whoever proposed it hears of it in another way.
    Nobody,
}

// One lies beside each command that waits.
const _: () = assert!(size_of::<Origin>() == 16);

impl Origin {
    /// The worker that is to have the reply.
    pub fn worker(self) -> Option<usize> {
        match self {
            Origin::Client { worker, .. } | Origin::Node { worker, .. } | Origin::Collect { worker, .. } => {
                Some(usize::from(worker))
            }
            Origin::Nobody => None,
        }
    }
}

/// A range inside a partition.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// First key.
    pub low: Value,
    /// First key beyond; none: the end of the key space.
    pub high: Option<Value>,
    /// From the high end down.
    pub reverse: bool,
}

/// What the bytes of a request are charged to, as long as it is somewhere: whoever asked may be gone by then. None: the
/// node itself asks.
pub type Held = Option<Arc<Charge>>;

/// A request for one group, checked whole before.
#[derive(Clone, Debug)]
pub enum Request {
    /// Numbered commands of one session: the entry as the client packed it, or behind the mark of its user.
    Pack {
        /// Goes into the batch as it is.
        entry: Bytes,
        commands: u32,
        /// What executing them costs ([`coppice_client::wire::PACK_WORK_MAX`]).
        work: u32,
        /// Whether any of them may make the partition larger.
        grows: bool,
        /// Whether nodes of feature level 1 know all of them.
        known: bool,
        /// Whether any of them asks for the time of the partition.
        timed: bool,
    },
    /// Opens a session: the entry as the client made it.
    Open {
        /// Goes into the batch as it is.
        entry: Bytes,
    },
    /// Reads keys, all at one position, as many values as this account has room for.
    Read(ReadRequest, Account, Held),
    /// Reads a range inside the partition.
    Range(Box<RangeRequest>),
    /// Reads ranges inside the partition, for somebody who will validate them and gives nothing out before.
    CollectParts(Vec<Bounds>),
    /// Reads whether ranges inside the partition have changed since they were read.
    Validate(ValidateRequest, Held),
    /// Changes the directory.
    Directory(Box<DirectoryCommand>),
}

impl Request {
    /// The commands of a client, as an `entry` of the log. What cannot be read may do anything.
    pub fn pack(entry: Bytes, commands: &CommandsRequest) -> Request {
        let grows = commands.pack().map_or(true, |pack| pack.commands().any(|(_, command)| command_grows(&command)));
        let known = commands.known;
        let timed = !known
            && commands.pack().is_ok_and(|pack| pack.commands().any(|(_, command)| command_asks_for_time(&command)));
        Request::Pack { entry, commands: commands.count, work: commands.work, grows, known, timed }
    }

    /// Whether the partition may be larger afterwards: refused when disk or memory is full.
    pub fn grows(&self) -> bool {
        match self {
            Request::Pack { grows, .. } => *grows,
            // Whoever wants to delete needs a session; their number and bytes are bounded anyway.
            Request::Open { .. } => false,
            Request::Read(..) | Request::Range(_) | Request::CollectParts(_) | Request::Validate(..) => false,
            Request::Directory(_) => false,
        }
    }

    /// Whether the log has to hold something before it is answered.
    pub fn is_logged(&self) -> bool {
        !matches!(self, Request::Read(..) | Request::Range(_) | Request::CollectParts(_) | Request::Validate(..))
    }

    /// What will be validated, and is given out to nobody before.
    pub fn is_first_reading(&self) -> bool {
        match self {
            Request::Range(range) => range.versioned && !range.stale,
            Request::CollectParts(_) => true,
            _ => false,
        }
    }

    /// For a read: whether the decided state of any replica will do, and whether a replica that follows shall serve it.
    pub fn read_rules(&self) -> (bool, bool) {
        match self {
            Request::Read(read, ..) => (read.stale, read.anywhere),
            Request::Range(range) => (range.stale, range.anywhere),
            Request::CollectParts(_) => (false, true),
            Request::Validate(asked, _) => (false, asked.anywhere),
            Request::Pack { .. } | Request::Open { .. } | Request::Directory(_) => (false, false),
        }
    }
}

/// Why nothing was done. Sure: the request has no effect, now or later (hazards.md 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another replica leads.
    NotLeader {
        /// Which, if known.
        hint: Option<ReplicaId>,
    },
    /// A queue is full: which.
    Busy(&'static str),
    /// A key lies outside this partition, or the partition is not here.
    WrongPartition,
    /// The session is not open, or has ended.
    SessionExpired,
    /// No room for growth: disk or memory.
    Full(Fullness),
    /// The cluster's feature level is too low: some of its nodes may not know the command.
    FeatureLevel,
}

/// Which bound keeps writes that grow from a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fullness {
    /// Memory of the node that leads: its limit in bytes.
    Memory(u64),
    /// Memory or disks of so many nodes that no majority has room.
    Majority,
    /// The log of the node that leads takes nothing.
    Log,
}

impl std::fmt::Display for Fullness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fullness::Memory(limit) => {
                write!(f, "the node that leads has reached memory.limit = {}", show_size(*limit))
            }
            Fullness::Majority => write!(f, "fewer than a majority of its nodes have room"),
            Fullness::Log => write!(f, "the disk of the node that leads has no room for the log"),
        }
    }
}

/// An answer to a request.
pub enum Reply {
    /// A pack's outcome, encoded.
    Pack(Bytes),
    /// The session is open.
    Opened(SessionId),
    /// Values in the order of the keys, and the instance whose state they are of.
    Read {
        /// The position that was read.
        instance: Instance,
        /// One per key.
        values: Vec<Option<Value>>,
        /// So many keys at the end are to be asked for again.
        left_out: usize,
        /// Of the values.
        charge: Charge,
    },
    /// What is known of keys without their values, in their order, and the instance whose state it is of.
    Looks {
        /// The position that was read.
        instance: Instance,
        /// One per key.
        looks: Vec<OpResult>,
        /// Of these.
        charge: Charge,
    },
    /// The range may be streamed from this cursor.
    Range {
        /// The position that was read.
        instance: Instance,
        /// Walks over the state at that position.
        cursor: Box<Cursor>,
        /// What was asked.
        range: Box<RangeRequest>,
        /// If it was asked for and is known.
        version: Option<Version>,
    },
    /// Ranges that are to be validated.
    CollectedParts {
        /// The position that was read.
        instance: Instance,
        /// If changes are counted.
        version: Option<Version>,
        /// Walks over the state at that position; none: not all of that range lies in the partition.
        cursors: Vec<Option<Box<Cursor>>>,
    },
    /// A range over several partitions may be streamed from these cursors.
    Collected {
        /// Where each part was read, or found unchanged since, in the order of the range.
        parts: Vec<(Position, Box<Cursor>)>,
        /// What was asked.
        range: Box<CollectRequest>,
    },
    /// Whether ranges have changed since they were read.
    Validated {
        /// The position that was read.
        instance: Instance,
        /// One per range: nothing has.
        unchanged: Vec<bool>,
    },
    /// A query has a ticket: what to expect, and from whom. Not the last answer.
    QueryPlan(Box<QueryPlan>),
    /// The parts of this ticket are the query's result.
    Completed { ticket: Ticket },
    /// The query has no result: ask again.
    Aborted {
        /// Why, in words.
        text: String,
        /// The partition that did not order it in time, if that is why.
        unplaced: Option<PartitionId>,
    },
    /// A directory command's outcome.
    Directory(DirectoryReply),
    /// Nothing was done.
    Refused(Refusal),
    /// Leadership ended after the command was proposed: it may still be decided. To be repeated, under its number, with
    /// the new leader.
    Unsure {
        /// The new leader, if known.
        hint: Option<ReplicaId>,
    },
}

impl Reply {
    /// The instance that it is about, if it says one. Reads a few bytes of an answer that the executor wrote.
    pub fn instance(&self) -> Option<Instance> {
        match self {
            Reply::Pack(answer) => {
                let mut out = bytes::BytesMut::new();
                let mut replies = coppice_client::wire::RepliesWriter::new(&mut out);
                replies.answer(0, answer).ok()?;
                replies.finish();
                let body = out.get(coppice_client::wire::frame::HEADER_BYTES..)?;
                let section = coppice_client::wire::Replies::new(body).next()?.ok()?;
                Some(Instance(section.results().next()?.0.instance))
            }
            Reply::Opened(session) => Some(Instance(session.instance)),
            Reply::Read { instance, .. }
            | Reply::Looks { instance, .. }
            | Reply::Range { instance, .. }
            | Reply::CollectedParts { instance, .. }
            | Reply::Validated { instance, .. } => Some(*instance),
            Reply::Collected { .. }
            | Reply::QueryPlan(_)
            | Reply::Completed { .. }
            | Reply::Aborted { .. }
            | Reply::Directory(_)
            | Reply::Refused(_)
            | Reply::Unsure { .. } => None,
        }
    }

    /// The query has no result, for this reason of the coordinator.
    pub fn aborted(why: Abort) -> Reply {
        let unplaced = if let Abort::Unplaced(partition) = why { Some(PartitionId(partition.0)) } else { None };
        Reply::Aborted { text: why.to_string(), unplaced }
    }
}

fn command_asks_for_time(command: &Command<'_>) -> bool {
    let asks = |op: &Op<'_>| match op {
        Op::Look { .. } => true,
        Op::Update { terms, .. } => {
            Update::read(terms).is_some_and(|update| matches!(update.expiry, Expiry::After { .. }))
        }
        _ => false,
    };
    match command {
        Command::Op(op) => asks(op),
        Command::Many(operations) => operations.iter().any(|op| asks(&op)),
        Command::Load(_) => false,
    }
}

fn command_grows(command: &Command<'_>) -> bool {
    // A get in a pack leaves its answer in the session table.
    let op_grows = |op: &Op<'_>| match op {
        Op::Delete { .. } => false,
        Op::Update { terms, .. } => Update::read(terms).is_none_or(|update| update.edit != Edit::Remove),
        _ => true,
    };
    match command {
        Command::Op(op) => op_grows(op),
        Command::Many(operations) => operations.iter().any(|op| op_grows(&op)),
        Command::Load(_) => true,
    }
}
