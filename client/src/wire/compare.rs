//! Comparing a range with what its reader holds: the reader names stretches of keys with the hash of the pairs that it
//! holds of them, and the server says of each whether it reads the same pairs, in place of the pairs. What differs, and
//! what no stretch names, it sends.
//!
//! ```text
//! Compare = u8 flags (1 last), varint first, varint count, count x stretch;  PartCompare = varint partition, Compare
//! stretch = u8 flags (1 high), varint pairs, varint bytes, 32 bytes hash, low, [high]
//! low, high = varint length, bytes
//! ```
//! The range is opened with a credit of 0, so that its server announces it and waits. Stretches ascend, also from frame
//! to frame, and are numbered through from `first`.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::Value;
use ring::digest::{Context, SHA256};

use super::frame::{Kind, begin_frame, end_frame};
use super::scan::put_bound;
use super::varint::{Reader, WireError, put_varint};
use super::{KEY_BYTES_MAX, PartitionId};

/// Stretches of one range that wait at its server at a time: with the longest keys 264 KiB.
pub const STRETCHES_MAX: usize = 32;

const LAST: u8 = 1;
const HIGH: u8 = 1;
const HASH_BYTES: usize = 32;
/// Bytes that are hashed at a time, so that short pairs share a call.
const BUFFER_BYTES: usize = 4 * 1024;

/// What tells pairs in key order apart: equal sums mean equal pairs. The hash is SHA-256, since a change that it does
/// not show is missing in a backup, and whoever writes may choose what he writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairsSum {
    /// How many.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// SHA-256 of, for each pair, the lengths of its key and its value (`u32`, little-endian), key and value.
    pub hash: [u8; HASH_BYTES],
}

impl PairsSum {
    /// The sum of these pairs. O(bytes).
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> PairsSum {
        let mut hasher = PairsHasher::default();
        pairs.into_iter().for_each(|(key, value)| hasher.push(key, value));
        hasher.finish()
    }
}

/// Makes a [`PairsSum`], pair by pair.
#[derive(Clone)]
pub struct PairsHasher {
    context: Context,
    buffer: Vec<u8>,
    pairs: u64,
    bytes: u64,
}

impl Default for PairsHasher {
    fn default() -> PairsHasher {
        PairsHasher { context: Context::new(&SHA256), buffer: Vec::with_capacity(BUFFER_BYTES), pairs: 0, bytes: 0 }
    }
}

impl PairsHasher {
    /// Takes the next pair. O(bytes).
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let value = if mutant!(hash_without_values) { &[] } else { value };
        self.pairs += 1;
        self.bytes += (key.len() + value.len()) as u64;
        if self.buffer.len() + 8 + key.len() + value.len() > BUFFER_BYTES {
            self.context.update(&self.buffer);
            self.buffer.clear();
        }
        self.buffer.put_u32_le(key.len() as u32);
        self.buffer.put_u32_le(value.len() as u32);
        for bytes in [key, value] {
            if bytes.len() < BUFFER_BYTES / 2 {
                self.buffer.put_slice(bytes);
            } else {
                self.context.update(&self.buffer);
                self.buffer.clear();
                self.context.update(bytes);
            }
        }
    }

    /// Bytes of keys and values so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pairs so far.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The sum of what was pushed.
    pub fn finish(mut self) -> PairsSum {
        self.context.update(&self.buffer);
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(self.context.finish().as_ref());
        PairsSum { pairs: self.pairs, bytes: self.bytes, hash }
    }
}

/// What a reader holds of the keys from `low` to before `high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First key.
    pub low: Value,
    /// First key beyond; none: the end of the key space.
    pub high: Option<Value>,
    /// Of the pairs that it holds.
    pub sum: PairsSum,
}

/// Stretches for the server of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareRequest {
    /// Number of the first one.
    pub first: u64,
    /// At most [`STRETCHES_MAX`], ascending.
    pub stretches: Vec<Stretch>,
    /// None follows: what lies behind them is read.
    pub last: bool,
}

impl CompareRequest {
    /// Appends a `Compare` frame, or for a part of a query a `PartCompare`, whose stream is the number of the attempt.
    pub fn encode(
        out: &mut BytesMut,
        stream: u32,
        part: Option<PartitionId>,
        (first, stretches, last): (u64, &[Stretch], bool),
    ) {
        let kind = if part.is_some() { Kind::PartCompare } else { Kind::Compare };
        let start = begin_frame(out, kind, stream);
        if let Some(partition) = part {
            put_varint(out, u64::from(partition.0));
        }
        out.put_u8(if last { LAST } else { 0 });
        put_varint(out, first);
        put_varint(out, stretches.len() as u64);
        for Stretch { low, high, sum } in stretches {
            out.put_u8(if high.is_some() { HIGH } else { 0 });
            put_varint(out, sum.pairs);
            put_varint(out, sum.bytes);
            out.put_slice(&sum.hash);
            std::iter::once(low).chain(high).for_each(|bound| put_bound(out, bound));
        }
        end_frame(out, start);
    }

    pub(super) fn decode(body: &Bytes) -> Result<CompareRequest, WireError> {
        CompareRequest::read(&mut Reader::new(body))
    }

    pub(super) fn decode_part(body: &Bytes) -> Result<(PartitionId, CompareRequest), WireError> {
        let mut reader = Reader::new(body);
        let partition = PartitionId(reader.varint_u32()?);
        Ok((partition, CompareRequest::read(&mut reader)?))
    }

    fn read(reader: &mut Reader<'_>) -> Result<CompareRequest, WireError> {
        let flags = reader.u8()?;
        if flags & !LAST != 0 {
            return Err(WireError::Unknown { what: "compare flag", value: u64::from(flags) });
        }
        let first = reader.varint()?;
        let count = reader.varint_u32()?;
        if count as usize > STRETCHES_MAX {
            return Err(WireError::Limit { what: "stretches", value: u64::from(count), max: STRETCHES_MAX as u64 });
        }
        let mut stretches: Vec<Stretch> = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let flags = reader.u8()?;
            if flags & !HIGH != 0 {
                return Err(WireError::Unknown { what: "stretch flag", value: u64::from(flags) });
            }
            let sum = PairsSum { pairs: reader.varint()?, bytes: reader.varint()?, hash: *reader.array()? };
            let mut bound = || reader.bytes("bound length", KEY_BYTES_MAX + 1).map(Value::from);
            let low = bound()?;
            let high = if flags & HIGH != 0 { Some(bound()?) } else { None };
            let behind = stretches.last().is_none_or(|last| last.high.as_ref().is_some_and(|high| *high <= low));
            if !behind || high.as_ref().is_some_and(|high| *high <= low) {
                return Err(WireError::Order("stretches"));
            }
            stretches.push(Stretch { low, high, sum });
        }
        reader.finish()?;
        Ok(CompareRequest { first, stretches, last: flags & LAST != 0 })
    }
}

/// What became of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Its number.
    pub number: u64,
    /// The pairs that are read of it are those of the sum: they are not sent.
    pub same: bool,
}
