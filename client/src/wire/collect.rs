//! A range over several partitions that one node reads, because it has a replica of each: that node makes one moment of
//! it (the server's `worker`).
//!
//! ```text
//! Collect = u8 flags (1 reverse, 2 keys only, 4 count, 8 high), varint pairs_max, varint bytes_max, varint credit,
//!          varint parts, parts x part, [high]
//! part   = varint partition, low;  low, high = varint length, bytes
//! ```
//! Parts stand in ascending order, each up to the low end of the next one, the last one up to `high`. The answer is one
//! sequence of `Part` frames, part after part in the order of the range, numbered through; each part that a limit did
//! not leave out has at least one, which says where it was read. `Refused` with `Aborted`: something of it changed
//! while it was read.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::Value;

use super::frame::{Kind, begin_frame, end_frame};
use super::scan::{ScanOptions, put_bound};
use super::varint::{Reader, WireError, put_varint};
use super::{COLLECT_PARTS_MAX, KEY_BYTES_MAX, PartitionId};

/// Beside those of [`ScanOptions`].
const HIGH: u8 = 8;

/// A range over several partitions, for a node that has a replica of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectRequest {
    /// Each partition of the range, and the first key wanted of it; ascending.
    pub parts: Vec<(PartitionId, Value)>,
    /// First key beyond; none: to the end of the last partition.
    pub high: Option<Value>,
    /// How it is read.
    pub scan: ScanOptions,
    /// Bytes of parts that may come before the client sends `Credit`. A chunk may overdraw it, the next one waits.
    pub credit: u32,
}

impl CollectRequest {
    /// The bounds of a part.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn bounds(&self, part: usize) -> (&Value, Option<&Value>) {
        let high = self.parts.get(part + 1).map(|(_, low)| low).or(self.high.as_ref());
        (&self.parts[part].1, high)
    }

    /// Appends a `Collect` frame. There are two to [`COLLECT_PARTS_MAX`] parts, and they fit a frame: the caller has
    /// checked.
    pub fn encode(&self, out: &mut BytesMut, stream: u32) {
        let start = begin_frame(out, Kind::Collect, stream);
        out.put_u8(self.scan.flags() | if self.high.is_some() { HIGH } else { 0 });
        self.scan.put_limits(out);
        put_varint(out, u64::from(self.credit));
        put_varint(out, self.parts.len() as u64);
        for (partition, low) in &self.parts {
            put_varint(out, u64::from(partition.0));
            put_bound(out, low);
        }
        if let Some(high) = &self.high {
            put_bound(out, high);
        }
        end_frame(out, start);
    }

    pub(super) fn decode(body: &Bytes) -> Result<CollectRequest, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags & !(ScanOptions::FLAGS | HIGH) != 0 {
            return Err(WireError::Unknown { what: "collect flag", value: u64::from(flags) });
        }
        let scan = ScanOptions::read(flags, &mut reader)?;
        let credit = reader.varint_u32()?;
        let count = reader.varint_u32()?;
        if count as usize > COLLECT_PARTS_MAX {
            return Err(WireError::Limit { what: "parts", value: u64::from(count), max: COLLECT_PARTS_MAX as u64 });
        }
        if count == 0 {
            return Err(WireError::Empty("parts"));
        }
        let mut parts = Vec::with_capacity(count as usize);
        for _ in 0..count {
            parts.push((PartitionId(reader.varint_u32()?), read_bound(&mut reader)?));
        }
        let high = if flags & HIGH != 0 { Some(read_bound(&mut reader)?) } else { None };
        reader.finish()?;
        Ok(CollectRequest { parts, high, scan, credit })
    }
}

/// A bound may be one byte longer than a key: the first key behind the longest one.
fn read_bound(reader: &mut Reader<'_>) -> Result<Value, WireError> {
    reader.bytes("bound length", KEY_BYTES_MAX + 1).map(Value::from)
}
