//! The coordinator's shape: what goes in, what comes out, and what stands in the partitions' logs (protocol.md 4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use crate::ids::{Ballot, ChangeId, ConfirmToken, MapVersion, PartitionId, QueryId, Ticket};

/// Put this into your log: coordinator to the leader of a partition, and the entry itself (protocol.md 4, step 2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub ticket: Ticket,
    /// The ticket of the same ballot that was sent to this partition before this one. `None`: the first one.
    pub prev: Option<Ticket>,
    pub work: Work,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prev {
            Some(prev) => write!(f, "place {} after {prev}: {}", self.ticket, self.work),
            None => write!(f, "place {} first: {}", self.ticket, self.work),
        }
    }
}

/// What a ticket does in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Nothing: the first ticket of a ballot, or one that was voided.
    #[default]
    Nothing,
    /// Answer these, as of the ticket's position.
    Queries(Vec<SubQuery>),
    /// Apply this, unless it was applied before.
    Change {
        /// Of the [`Change`].
        id: ChangeId,
        /// Of the [`Change`].
        payload: Bytes,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Nothing => write!(f, "nothing"),
            Work::Queries(queries) => {
                let ids: Vec<String> = queries.iter().map(|sub| sub.query.to_string()).collect();
                write!(f, "{}", ids.join(" "))
            }
            Work::Change { id, .. } => write!(f, "{id}"),
        }
    }
}

/// One partition's share of a query.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubQuery {
    /// Of which query.
    pub query: QueryId,
    /// Sub-range, client, drawn replica: opaque here.
    pub bytes: Bytes,
}

/// One attempt at a query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    pub id: QueryId,
    /// The map by which it was cut.
    pub map: MapVersion,
    /// What each partition is to answer.
    pub parts: BTreeMap<PartitionId, Bytes>,
}

/// A change of the map that moves boundaries, decided in the directory (protocol.md 8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// Partitions apply each once.
    pub id: ChangeId,
    /// The map after it.
    pub map: MapVersion,
    /// Who must have placed it before it is released. A split: parent and child, which need not exist yet. A merge:
    /// both.
    pub partitions: BTreeSet<PartitionId>,
    /// Which of them must have placed it before the others are sent it: replies behind a change wait for all its
    /// partitions, and it is never voided. A merge: the sealed one, where nobody waits for a reply. It may be without a
    /// majority, and then the other one goes on as if nothing were planned.
    pub first: Option<PartitionId>,
    /// What to do.
    pub payload: Bytes,
}

/// What [`super::Coordinator::step`] takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time passed; wanted at [`super::Coordinator::deadline`].
    Tick,
    /// The directory's replica on this node leads, in this ballot, and has executed all that was decided before.
    Lead {
        /// Its ballot; one that is not above the last is ignored.
        ballot: Ballot,
        /// The decided map's version.
        map: MapVersion,
        /// Every partition of the map. The directory is none.
        partitions: BTreeSet<PartitionId>,
        /// Decided changes that are not known to be done, oldest first.
        changes: Vec<Change>,
    },
    /// It leads no more.
    Resign,
    /// The decided map is this one from now on, and no boundary moved by it.
    Map {
        /// Ascends.
        version: MapVersion,
        /// Every partition of it. One that is gone gets no ticket; one that is new gets its first.
        partitions: BTreeSet<PartitionId>,
    },
    /// A query. Ends in [`Effect::Complete`], [`Effect::Aborted`] or [`Effect::Refused`].
    Query(Query),
    /// A change was decided. Ends in [`Effect::Changed`]; if leadership ends before, the next leader repeats it.
    Change(Change),
    /// A partition's leader says that everything up to this ticket is decided there.
    Placed {
        partition: PartitionId,
        /// The last one in it.
        ticket: Ticket,
    },
    /// Leadership was confirmed for a moment after [`Effect::Confirm`] with this token came out.
    Confirmed(ConfirmToken),
    /// This partition has another leader, or it can be reached again: what it has not placed is sent at once.
    Resend(PartitionId),
}

/// What the driver is to do, in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send to the leader of this partition; losing it is harmless.
    Place { partition: PartitionId, place: Place },
    /// Tell the leader of this partition; losing it is harmless.
    Released {
        partition: PartitionId,
        /// Every ticket up to here is released or voided. Grows.
        watermark: Ticket,
    },
    /// Confirm the directory's leadership, by a round that begins after this came out (protocol.md 7). Comes again,
    /// with a later token, if it is not answered.
    Confirm(ConfirmToken),
    /// This query has a ticket: its client may expect the parts.
    Cut { query: QueryId, ticket: Ticket },
    /// The parts of this ticket are the query's result.
    Complete { query: QueryId, ticket: Ticket },
    /// The query has no result, and never will: ask again.
    Aborted { query: QueryId, why: Abort },
    /// The query was not taken.
    Refused { query: QueryId, why: Refusal },
    /// The change is placed in all its partitions and released. It need not be given to a later leader.
    Changed { id: ChangeId, ticket: Ticket },
}

/// Why a query that was taken has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abort {
    /// This partition did not place its ticket in time (protocol.md 4.1).
    Unplaced(PartitionId),
    /// It was placed, and not released in time: it stood behind a change of the map, or was not confirmed.
    Unreleased,
    /// Leadership of the directory ended.
    Deposed,
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Abort::Unplaced(partition) => write!(f, "{partition} did not order the query in time: ask again"),
            Abort::Unreleased => write!(f, "the query was ordered, but not released in time: ask again"),
            Abort::Deposed => write!(f, "another node coordinates queries now: ask there"),
        }
    }
}

/// Why a query was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The directory's replica on this node does not lead.
    NotLeading,
    /// Too many queries are under way: ask here again, later.
    Busy,
    /// It was cut by another map than the present one: cut it again.
    MapChanged {
        /// The present one.
        map: MapVersion,
    },
    /// It names this partition, which the map does not have; or it names none.
    NoSuchPartition(Option<PartitionId>),
    /// Its shares are larger than a ticket may be.
    TooLarge,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotLeading => write!(f, "this node does not coordinate queries"),
            Refusal::Busy => write!(f, "too many queries are under way: ask again later"),
            Refusal::MapChanged { map } => write!(f, "the map is {map} by now: cut the query again"),
            Refusal::NoSuchPartition(Some(partition)) => write!(f, "the map has no {partition}"),
            Refusal::NoSuchPartition(None) => write!(f, "the query names no partition"),
            Refusal::TooLarge => write!(f, "the query is too large"),
        }
    }
}
