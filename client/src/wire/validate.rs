//! Whether ranges have changed since they were read: the second half of a range that is read in several partitions
//! without an order between them (see the session's `collects`).
//!
//! ```text
//! Validate = u8 flags (1 anywhere), varint partition, varint ranges, ranges x range
//! range    = u8 flags (1 high), version, low, [high]
//! version  = varint replica, varint incarnation, varint began, varint changes;  low, high = varint length, bytes
//! ```
//! The answer is a read section of a `Replies` frame, with a result for each range.

use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{Kind, begin_frame, end_frame};
use super::varint::{Reader, WireError, put_varint};
use super::{KEY_BYTES_MAX, PartitionId, ReplicaId, VALIDATE_RANGES_MAX, Version};

const ANYWHERE: u8 = 1;
const HIGH: u8 = 1;

/// What a range with bounds of eight bytes takes, roughly.
const RANGE_BYTES: usize = 40;

/// A range that was read, and the version that came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeVersion<'a> {
    /// Of the first part that was read.
    pub version: Version,
    /// First key.
    pub low: &'a [u8],
    /// First key beyond; none: the end of the key space.
    pub high: Option<&'a [u8]>,
}

/// Asks a replica whether ranges have changed since it answered them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateRequest {
    pub partition: PartitionId,
    /// As in [`ReadRequest`](super::ReadRequest).
    pub anywhere: bool,
    count: u32,
    ranges: Bytes,
}

impl ValidateRequest {
    /// Appends a `Validate` frame. Ranges are at most [`VALIDATE_RANGES_MAX`], and fit a frame: the caller has checked.
    pub fn encode<'r>(
        out: &mut BytesMut,
        stream: u32,
        (partition, anywhere): (PartitionId, bool),
        ranges: impl ExactSizeIterator<Item = RangeVersion<'r>>,
    ) {
        let start = begin_frame(out, Kind::Validate, stream);
        out.put_u8(if anywhere { ANYWHERE } else { 0 });
        put_varint(out, u64::from(partition.0));
        put_varint(out, ranges.len() as u64);
        ranges.for_each(|range| put_range(out, range));
        end_frame(out, start);
    }

    /// One for a replica that is not asked by frames. Ranges are at most [`VALIDATE_RANGES_MAX`].
    pub fn of<'r>(
        partition: PartitionId,
        anywhere: bool,
        asked: impl ExactSizeIterator<Item = RangeVersion<'r>>,
    ) -> ValidateRequest {
        let (mut ranges, count) = (BytesMut::with_capacity(asked.len() * RANGE_BYTES), asked.len() as u32);
        asked.for_each(|range| put_range(&mut ranges, range));
        ValidateRequest { partition, anywhere, count, ranges: ranges.freeze() }
    }

    pub(super) fn decode(body: &Bytes) -> Result<ValidateRequest, WireError> {
        let mut reader = Reader::new(body);
        let anywhere = read_flag(&mut reader, ANYWHERE)?;
        let partition = PartitionId(reader.varint_u32()?);
        let count = reader.varint_u32()?;
        if count as usize > VALIDATE_RANGES_MAX {
            return Err(WireError::Limit { what: "ranges", value: u64::from(count), max: VALIDATE_RANGES_MAX as u64 });
        }
        if count == 0 {
            return Err(WireError::Empty("ranges"));
        }
        let ranges = body.slice_ref(reader.rest());
        for _ in 0..count {
            read_range(&mut reader)?;
        }
        reader.finish()?;
        Ok(ValidateRequest { partition, anywhere, count, ranges })
    }

    /// How many ranges, at least one.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none; a decoded request has some.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The ranges in order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeVersion<'_>> {
        let mut reader = Reader::new(&self.ranges);
        std::iter::from_fn(move || read_range(&mut reader).ok())
    }
}

fn put_range(out: &mut BytesMut, RangeVersion { version, low, high }: RangeVersion<'_>) {
    out.put_u8(if high.is_some() { HIGH } else { 0 });
    put_version(out, version);
    for bound in std::iter::once(low).chain(high) {
        put_varint(out, bound.len() as u64);
        out.put_slice(bound);
    }
}

fn read_range<'a>(reader: &mut Reader<'a>) -> Result<RangeVersion<'a>, WireError> {
    let bounded = read_flag(reader, HIGH)?;
    let version = read_version(reader)?;
    // A bound may be one byte longer than a key: the first key behind the longest one.
    let low = reader.bytes("bound length", KEY_BYTES_MAX + 1)?;
    let high = if bounded { Some(reader.bytes("bound length", KEY_BYTES_MAX + 1)?) } else { None };
    Ok(RangeVersion { version, low, high })
}

/// A byte of flags, of which there is only this one.
fn read_flag(reader: &mut Reader<'_>, flag: u8) -> Result<bool, WireError> {
    match reader.u8()? {
        0 => Ok(false),
        flags if flags == flag => Ok(true),
        flags => Err(WireError::Unknown { what: "validate flag", value: u64::from(flags) }),
    }
}

pub(super) fn put_version(out: &mut BytesMut, version: Version) {
    put_varint(out, u64::from(version.replica.0));
    put_varint(out, version.incarnation);
    put_varint(out, version.began);
    put_varint(out, version.changes);
}

pub(super) fn read_version(reader: &mut Reader<'_>) -> Result<Version, WireError> {
    let replica = ReplicaId(reader.varint_u32()?);
    Ok(Version { replica, incarnation: reader.varint()?, began: reader.varint()?, changes: reader.varint()? })
}
