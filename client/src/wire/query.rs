//! Queries across partitions (protocol.md 4): what the coordinator is asked and says, and what flows to the nodes that
//! serve the parts.
//!
//! A query is named by its client ([`ClientId`](super::ClientId)) and the number of the attempt. The request travels on
//! a stream like any other; parts travel on the connections to the nodes that serve them, in [`Part`](super::Part)
//! frames that carry a ticket and whose stream is the number of the attempt. `PartCredit` and `PartCancel` name it the
//! same way.
//!
//! ```text
//! RangeQuery = u8 flags (1 reverse, 2 keys only, 4 count, 8 high, 16 leaders, 32 spread), varint query,
//!              varint pairs_max, varint bytes_max, varint credit, low, [high]
//! QueryPlan  = u8 flags (1 high), ticket, varint version, varint parts, low,
//!              parts x (varint partition, varint node, high: left out in the last part without the flag)
//! QueryCompleted = ticket;  PartCredit = varint partition, u32 bytes;  PartCancel = nothing
//! ticket     = varint round, varint replica, varint n;  low, high = varint length, bytes
//! ```

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{BODY_BYTES_MAX, Kind, begin_frame, end_frame};
use super::scan::{ScanOptions, put_bound};
use super::varint::{Reader, WireError, put_varint};
use super::{KEY_BYTES_MAX, MapVersion, NodeId, PartitionId, ReplicaId, Ticket};

// Beside those of [`ScanOptions`].
const QUERY_HIGH: u8 = 8;
const QUERY_LEADERS: u8 = 16;
const QUERY_SPREAD: u8 = 32;
const QUERY_FLAGS: u8 = ScanOptions::FLAGS | QUERY_HIGH | QUERY_LEADERS | QUERY_SPREAD;
const PLAN_HIGH: u8 = 1;

/// Up to so many parts are looked through one by one.
const FEW_PARTS: usize = 16;

pub(super) fn put_ticket(out: &mut BytesMut, ticket: Ticket) {
    put_varint(out, ticket.round);
    put_varint(out, u64::from(ticket.replica.0));
    put_varint(out, ticket.n);
}

pub(super) fn read_ticket(reader: &mut Reader<'_>) -> Result<Ticket, WireError> {
    let (round, replica) = (reader.varint()?, ReplicaId(reader.varint_u32()?));
    Ok(Ticket { round, replica, n: reader.varint()? })
}

/// A bound may be one byte longer than a key: the first key behind the longest one.
fn read_bound(reader: &mut Reader<'_>, body: &Bytes) -> Result<Bytes, WireError> {
    reader.bytes("bound length", KEY_BYTES_MAX + 1).map(|bound| body.slice_ref(bound))
}

/// One attempt at a range over any number of partitions, for the coordinator: the leader of the directory. Answered by
/// [`QueryPlan`], then by `QueryCompleted`, or at any time by a [`Refusal`](super::Refusal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRequest {
    /// Number of the attempt: among those of this client id no other has it. Chunks, credit and cancelling name it.
    pub query: u32,
    /// First key.
    pub low: Bytes,
    /// First key beyond; none: to the end of the key space.
    pub high: Option<Bytes>,
    /// How each part is read. The limits are for each part; the client cuts the whole.
    pub scan: ScanOptions,
    /// Only leaders serve its parts: an attempt before came to nothing, perhaps because a replica that had been drawn
    /// is out of reach. Leaders are not, having placed the ticket.
    pub from_leaders: bool,
    /// All replicas share in serving the parts. Else leaders do: they know first what is decided, and nobody has to be
    /// told.
    pub spread: bool,
    /// Bytes of each part that may come before the client sends `PartCredit`. A chunk may overdraw it.
    pub credit: u32,
}

impl QueryRequest {
    /// Appends a `RangeQuery` frame.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) {
        let start = begin_frame(out, Kind::RangeQuery, stream);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.put_u8(
            self.scan.flags()
                | flag(self.high.is_some(), QUERY_HIGH)
                | flag(self.from_leaders, QUERY_LEADERS)
                | flag(self.spread, QUERY_SPREAD),
        );
        put_varint(out, u64::from(self.query));
        self.scan.put_limits(out);
        put_varint(out, u64::from(self.credit));
        for bound in std::iter::once(&self.low).chain(&self.high) {
            put_bound(out, bound);
        }
        end_frame(out, start);
    }

    pub(super) fn decode(body: &Bytes) -> Result<QueryRequest, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags & !QUERY_FLAGS != 0 {
            return Err(WireError::Unknown { what: "query flag", value: u64::from(flags) });
        }
        let query = reader.varint_u32()?;
        let scan = ScanOptions::read(flags, &mut reader)?;
        let credit = reader.varint_u32()?;
        let low = read_bound(&mut reader, body)?;
        let high = if flags & QUERY_HIGH != 0 { Some(read_bound(&mut reader, body)?) } else { None };
        reader.finish()?;
        if high.as_ref().is_some_and(|high| *high <= low) {
            return Err(WireError::Order("bounds"));
        }
        Ok(QueryRequest {
            query,
            low,
            high,
            scan,
            from_leaders: flags & QUERY_LEADERS != 0,
            spread: flags & QUERY_SPREAD != 0,
            credit,
        })
    }
}

/// The coordinator to the client: the query has this ticket, these nodes serve its parts (protocol.md 4, step 2). It
/// proves nothing: only `QueryCompleted` with the same ticket does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryPlan {
    /// The ticket that every part carries.
    pub ticket: Ticket,
    /// The map by which it was cut.
    pub version: MapVersion,
    /// In key order, each adjoining the next, covering the query's bounds exactly; no partition twice.
    pub parts: Vec<SubRange>,
}

/// One part of a query, as the coordinator cut it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubRange {
    pub partition: PartitionId,
    /// First key.
    pub low: Bytes,
    /// First key beyond; none, in the last part only: to the end of the key space.
    pub high: Option<Bytes>,
    /// The node whose replica serves it.
    pub node: NodeId,
}

impl QueryPlan {
    /// Appends a `QueryPlan` frame. [`WireError::Limit`]: it names so many and such long bounds that it does not fit a
    /// frame; nothing is appended.
    ///
    /// # Panics
    /// If there is no part, or parts do not adjoin: the coordinator cut them itself.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) -> Result<(), WireError> {
        let (first, last) = self.parts.first().zip(self.parts.last()).expect("a plan has parts");
        let adjoin = self.parts.windows(2).all(|pair| pair[0].high.as_ref() == Some(&pair[1].low));
        assert!(adjoin, "the parts of a plan adjoin");
        let start = begin_frame(out, Kind::QueryPlan, stream);
        let body = out.len();
        out.put_u8(if last.high.is_some() { PLAN_HIGH } else { 0 });
        put_ticket(out, self.ticket);
        put_varint(out, self.version.0);
        put_varint(out, self.parts.len() as u64);
        put_bound(out, &first.low);
        for part in &self.parts {
            put_varint(out, u64::from(part.partition.0));
            put_varint(out, u64::from(part.node.0));
            if let Some(high) = &part.high {
                put_bound(out, high);
            }
        }
        let bytes = out.len() - body;
        if bytes > BODY_BYTES_MAX {
            out.truncate(start);
            return Err(WireError::Limit { what: "plan bytes", value: bytes as u64, max: BODY_BYTES_MAX as u64 });
        }
        end_frame(out, start);
        Ok(())
    }

    /// Reads the body of a `QueryPlan` frame. Parts adjoin, their bounds ascend, and no partition is named twice.
    pub fn decode(body: &Bytes) -> Result<QueryPlan, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags & !PLAN_HIGH != 0 {
            return Err(WireError::Unknown { what: "plan flag", value: u64::from(flags) });
        }
        let ticket = read_ticket(&mut reader)?;
        let version = MapVersion(reader.varint()?);
        let count = reader.varint_u32()?;
        if count == 0 {
            return Err(WireError::Empty("parts"));
        }
        let mut low = read_bound(&mut reader, body)?;
        // Grows with what is there, not with what is announced.
        let mut parts: Vec<SubRange> = Vec::new();
        let mut partitions = BTreeSet::new();
        for at in 0..count {
            let (partition, node) = (PartitionId(reader.varint_u32()?), NodeId(reader.varint_u32()?));
            let again = if parts.len() < FEW_PARTS {
                parts.iter().any(|part| part.partition == partition)
            } else {
                if partitions.is_empty() {
                    partitions.extend(parts.iter().map(|part| part.partition));
                }
                !partitions.insert(partition)
            };
            if again {
                return Err(WireError::Limit { what: "parts of one partition", value: 2, max: 1 });
            }
            let open = at + 1 == count && flags & PLAN_HIGH == 0;
            let high = if open { None } else { Some(read_bound(&mut reader, body)?) };
            if high.as_ref().is_some_and(|high| *high <= low) {
                return Err(WireError::Order("bounds"));
            }
            let next = high.clone().unwrap_or_default();
            parts.push(SubRange { partition, low: std::mem::replace(&mut low, next), high, node });
        }
        reader.finish()?;
        Ok(QueryPlan { ticket, version, parts })
    }
}

/// The coordinator to the client, last: the parts of this ticket are the result (protocol.md 4, step 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCompleted {
    pub ticket: Ticket,
}

impl QueryCompleted {
    /// Appends a `QueryCompleted` frame.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) {
        let start = begin_frame(out, Kind::QueryCompleted, stream);
        put_ticket(out, self.ticket);
        end_frame(out, start);
    }

    /// Reads the body of a `QueryCompleted` frame.
    pub fn decode(body: &[u8]) -> Result<QueryCompleted, WireError> {
        let mut reader = Reader::new(body);
        let ticket = read_ticket(&mut reader)?;
        reader.finish()?;
        Ok(QueryCompleted { ticket })
    }
}

/// The client to the node that serves a part: so many more bytes of it may come. Appends a `PartCredit` frame.
pub fn encode_part_credit(out: &mut BytesMut, query: u32, partition: PartitionId, bytes: u32) {
    let start = begin_frame(out, Kind::PartCredit, query);
    put_varint(out, u64::from(partition.0));
    out.put_u32_le(bytes);
    end_frame(out, start);
}

pub(super) fn decode_part_credit(body: &[u8]) -> Result<(PartitionId, u32), WireError> {
    let mut reader = Reader::new(body);
    let credit = (PartitionId(reader.varint_u32()?), reader.u32()?);
    reader.finish()?;
    Ok(credit)
}

/// The client to a node: stop sending the parts of this attempt. Appends a `PartCancel` frame.
pub fn encode_part_cancel(out: &mut BytesMut, query: u32) {
    let start = begin_frame(out, Kind::PartCancel, query);
    end_frame(out, start);
}
