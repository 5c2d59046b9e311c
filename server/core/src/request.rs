//! What is asked of a replica and what it answers, free of frames and sockets.

use std::sync::Arc;

use bytes::Bytes;
use coppice_btree::{Cursor, Value};
use coppice_client::map::PartitionMap;
use coppice_client::wire::{
    self, CollectRequest, PartitionId, Position, QueryPlan, RangeRequest, ReadRequest, SessionId, Ticket,
    ValidateRequest, Version,
};
use coppice_ordering::multicast::Abort;
use coppice_ordering::{Instance, ReplicaId};

use crate::cost::{Account, Charge};
use crate::machine::directory::{DirectoryCommand, DirectoryReply};

/// Who waits for an answer: made and understood by the driver, opaque to the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The connection, never used again for another one; its shard in the upper 16 bits.
    pub connection: u64,
    /// The request on that connection.
    pub stream: u32,
}

/// Bits of a connection's number that count connections; the shard stands above them.
const COUNT_BITS: u32 = 48;

/// In the number of a connection: it is none, but a range that is gathered here (`crate::gather`).
const GATHER: u64 = 1 << (COUNT_BITS - 1);

/// Nobody waits: a ticket of the coordinator, who hears of it in another way.
const NOBODY: u64 = u64::MAX;

/// The connection of requests that the node makes itself.
const OWN: u64 = (1 << COUNT_BITS) - 1;

impl Origin {
    /// The number of the `count`-th connection of a shard.
    pub fn connection(shard: usize, count: u64) -> u64 {
        (shard as u64) << COUNT_BITS | count & OWN
    }

    /// A request that the node makes itself.
    pub fn own(shard: usize, stream: u32) -> Origin {
        Origin { connection: Origin::connection(shard, OWN), stream }
    }

    /// The request of this number that a shard makes for what it gathers.
    pub fn gather(shard: usize, number: u64) -> Origin {
        Origin { connection: Origin::connection(shard, GATHER | number), stream: 0 }
    }

    /// The number of a request for what is gathered.
    pub fn gathers(self) -> Option<u64> {
        let is_one = self.connection & GATHER != 0 && !self.is_own() && !self.is_nobody();
        is_one.then_some(self.connection & (GATHER - 1))
    }

    /// Nobody waits for the answer.
    pub fn nobody() -> Origin {
        Origin { connection: NOBODY, stream: 0 }
    }

    /// Whether nobody waits for the answer.
    pub fn is_nobody(self) -> bool {
        self.connection == NOBODY
    }

    /// Whether the node itself asks.
    pub fn is_own(self) -> bool {
        self.connection & OWN == OWN
    }

    /// The shard that holds the connection.
    pub fn shard(self) -> usize {
        (self.connection >> COUNT_BITS) as usize
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
        /// How many.
        commands: u32,
        /// What executing them costs ([`coppice_client::wire::PACK_WORK_MAX`]).
        work: u32,
        /// Whether any of them may make the partition larger.
        grows: bool,
    },
    /// Opens a session: the entry as the client made it.
    Open {
        /// Goes into the batch as it is.
        entry: Bytes,
    },
    /// Reads keys, all at one position, as many as this account has room for.
    Read(ReadRequest, Account, Held),
    /// Reads a range inside the partition.
    Range(Box<RangeRequest>),
    /// Reads ranges inside the partition, for somebody who will validate them and gives nothing out before.
    Readings(Vec<Bounds>),
    /// Reads whether ranges inside the partition have changed since they were read.
    Validate(ValidateRequest, Held),
    /// Changes the directory.
    Directory(Box<DirectoryCommand>),
}

impl Request {
    /// Whether the partition may be larger afterwards: refused when disk or memory is full.
    pub fn grows(&self) -> bool {
        match self {
            Request::Pack { grows, .. } => *grows,
            // Whoever wants to delete needs a session; their number and bytes are bounded anyway.
            Request::Open { .. } => false,
            Request::Read(..) | Request::Range(_) | Request::Readings(_) | Request::Validate(..) => false,
            Request::Directory(_) => false,
        }
    }

    /// Whether the log has to hold something before it is answered.
    pub fn is_logged(&self) -> bool {
        !matches!(self, Request::Read(..) | Request::Range(_) | Request::Readings(_) | Request::Validate(..))
    }

    /// What will be validated, and is given out to nobody before.
    pub fn is_first_reading(&self) -> bool {
        match self {
            Request::Range(range) => range.versioned && !range.stale,
            Request::Readings(_) => true,
            _ => false,
        }
    }

    /// For a read: whether the decided state of any replica will do, and whether a replica that follows shall serve it.
    pub fn read_rules(&self) -> (bool, bool) {
        match self {
            Request::Read(read, ..) => (read.stale, read.anywhere),
            Request::Range(range) => (range.stale, range.anywhere),
            Request::Readings(_) => (false, true),
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
    /// A queue is full.
    Busy,
    /// A key lies outside this partition, or the partition is not here.
    WrongPartition,
    /// The session is not open (any more).
    SessionExpired,
    /// No room for growth: disk or memory.
    Full,
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
    Readings {
        /// The position that was read.
        instance: Instance,
        /// If changes are counted.
        version: Option<Version>,
        /// Walks over the state at that position; none: not all of that range lies in the partition.
        cursors: Vec<Option<Box<Cursor>>>,
    },
    /// A range over several partitions may be streamed from these cursors.
    Gathered {
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
    Completed {
        /// Its ticket.
        ticket: Ticket,
    },
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
    /// The query has no result, for this reason of the coordinator.
    pub fn aborted(why: Abort) -> Reply {
        let unplaced = if let Abort::Unplaced(partition) = why { Some(PartitionId(partition.0)) } else { None };
        Reply::Aborted { text: why.to_string(), unplaced }
    }
}

/// The refusal that says: another partition, by this map.
pub fn wrong_partition(map: &PartitionMap, group: PartitionId) -> wire::Refusal {
    // What changed together with it: of a split, both parts.
    let version = map.entry(group).map(|entry| entry.version);
    let together = map.partitions.iter().filter(|entry| Some(entry.version) == version);
    wire::Refusal::WrongPartition { partition: group, version: map.version, entries: together.cloned().collect() }
}
