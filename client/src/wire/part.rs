//! Chunks of a range. Encoded straight from the leaves, numbered, each with the position it was read at.
//!
//! ```text
//! part = u8 flags (1 eight, 2 keys only, 4 end, 8 a limit ended it, 16 ticket, 32 version, 64 compared), u32 pairs,
//!        u64 pairs so far, varint partition, varint number, varint instance, varint index,
//!        [ticket: varint round, varint replica, varint n],
//!        [version: varint replica, varint incarnation, varint began, varint changes],
//!        [compared: varint number, u8 same],
//! pairs pair = key value | key; key, value = varint length, bytes; with `eight` 8 bytes and no length
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use super::compare::Compared;
use super::frame::{Kind, begin_frame, end_frame};
use super::query::{put_ticket, read_ticket};
use super::validate::{put_version, read_version};
use super::varint::{Reader, WireError, put_varint, varint_bytes};
use super::{KEY_BYTES_MAX, PART_BYTES, PartitionId, Position, Ticket, VALUE_BYTES_MAX, Version};

const FLAG_EIGHT: u8 = 1;
const FLAG_KEYS_ONLY: u8 = 2;
const FLAG_END: u8 = 4;
const FLAG_LIMITED: u8 = 8;
const FLAG_TICKET: u8 = 16;
const FLAG_VERSION: u8 = 32;
const FLAG_COMPARED: u8 = 64;

/// How a range ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartEnd {
    /// Everything in the bounds was sent.
    Complete,
    /// A limit of entries or bytes ended it: there may be more behind the last key, which is where to go on.
    Limited,
}

/// One chunk, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The position that the range was read at: the same in all chunks of one partition.
    pub position: Position,
    /// Counts the chunks of a range from 0 (hazards.md TK16).
    pub number: u32,
    /// The query that the chunk belongs to, if the range spans partitions.
    pub ticket: Option<Ticket>,
    /// Of the range, for those who will ask whether it has changed. On the first chunk, if it was asked for.
    pub version: Option<Version>,
    /// What became of a stretch that the reader named: the chunk has no pairs, those of a stretch that differs follow.
    pub compared: Option<Compared>,
    /// Pairs of the range so far, this chunk included, without those of stretches that are the same. In a counted range
    /// the pairs are not sent.
    pub pairs_so_far: u64,
    /// Set on the last chunk.
    pub end: Option<PartEnd>,
    /// Whether the values were left out.
    pub keys_only: bool,
    eight: bool,
    count: u32,
    pairs: &'a [u8],
}

impl<'a> Part<'a> {
    /// Reads the body of a `Part` frame and checks all of it.
    pub fn decode(body: &'a [u8]) -> Result<Part<'a>, WireError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags >= 128 {
            return Err(WireError::Unknown { what: "part flag", value: u64::from(flags) });
        }
        let count = reader.u32()?;
        let pairs_so_far = reader.u64()?;
        let partition = PartitionId(reader.varint_u32()?);
        let number = reader.varint_u32()?;
        let position = Position { partition, instance: reader.varint()?, index: reader.varint_u32()? };
        let ticket = if flags & FLAG_TICKET == 0 { None } else { Some(read_ticket(&mut reader)?) };
        let version = if flags & FLAG_VERSION == 0 { None } else { Some(read_version(&mut reader)?) };
        let compared = match flags & FLAG_COMPARED {
            0 => None,
            _ => Some(Compared { number: reader.varint()?, same: reader.u8()? == 1 }),
        };
        let end = match flags & (FLAG_END | FLAG_LIMITED) {
            0 => None,
            FLAG_END => Some(PartEnd::Complete),
            FLAG_LIMITED => return Err(WireError::Unknown { what: "part flag", value: u64::from(flags) }),
            _ => Some(PartEnd::Limited),
        };
        let (eight, keys_only) = (flags & FLAG_EIGHT != 0, flags & FLAG_KEYS_ONLY != 0);
        let pairs = reader.rest();
        if eight {
            let bytes = u64::from(count) * if keys_only { 8 } else { 16 };
            if bytes != pairs.len() as u64 {
                return Err(WireError::Truncated);
            }
        } else {
            for _ in 0..count {
                read_pair(&mut reader, keys_only)?;
            }
            reader.finish()?;
        }
        Ok(Part { position, number, ticket, version, compared, pairs_so_far, end, keys_only, eight, count, pairs })
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none: the last chunk may be empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether all keys and values here are 8 bytes long.
    pub fn is_eight(&self) -> bool {
        self.eight
    }

    /// The first and the last key, in the order of the range. O(pairs), O(1) if all are 8 bytes long.
    pub fn ends(&self) -> Option<(&'a [u8], &'a [u8])> {
        if self.eight {
            let pair = if self.keys_only { 8 } else { 16 };
            let last = self.pairs.len().checked_sub(pair)?;
            return Some((self.pairs.get(..8)?, self.pairs.get(last..last + 8)?));
        }
        let mut keys = self.pairs().map(|(key, _)| key);
        let first = keys.next()?;
        Some((first, keys.last().unwrap_or(first)))
    }

    /// The pairs in the order of the range; values are empty if they were left out.
    #[inline]
    pub fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (mut reader, eight, keys_only) = (Reader::new(self.pairs), self.eight, self.keys_only);
        std::iter::from_fn(move || {
            if !eight {
                return read_pair(&mut reader, keys_only).ok();
            }
            let key: &[u8] = reader.array::<8>().ok()?;
            let value: &[u8] = if keys_only { &[] } else { reader.array::<8>().ok()? };
            Some((key, value))
        })
    }
}

/// A chunk and a place in it: for readers that keep the chunk and take its pairs one by one.
#[derive(Clone, Debug)]
pub struct PartCursor {
    body: Bytes,
    at: usize,
    eight: bool,
    keys_only: bool,
}

impl PartCursor {
    /// Before the first pair of the body of a `Part` frame, which is checked here.
    pub fn new(body: Bytes) -> Result<PartCursor, WireError> {
        let part = Part::decode(&body)?;
        let (at, eight, keys_only) = (body.len() - part.pairs.len(), part.eight, part.keys_only);
        Ok(PartCursor { body, at, eight, keys_only })
    }

    /// Bytes of the whole chunk: what its reader gives back as credit.
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Whether all pairs were taken.
    pub fn is_done(&self) -> bool {
        self.at >= self.body.len()
    }

    #[inline]
    pub fn next_pair(&mut self) -> Option<(&[u8], &[u8])> {
        let mut reader = Reader::new(&self.body[self.at..]);
        let pair = if self.eight {
            let key: &[u8] = reader.array::<8>().ok()?;
            let value: &[u8] = if self.keys_only { &[] } else { reader.array::<8>().ok()? };
            (key, value)
        } else {
            read_pair(&mut reader, self.keys_only).ok()?
        };
        self.at = self.body.len() - reader.rest().len();
        Some(pair)
    }
}

#[inline]
fn read_pair<'a>(reader: &mut Reader<'a>, keys_only: bool) -> Result<(&'a [u8], &'a [u8]), WireError> {
    let key = reader.bytes("key length", KEY_BYTES_MAX)?;
    let value = if keys_only { &[][..] } else { reader.bytes("value length", VALUE_BYTES_MAX)? };
    Ok((key, value))
}

/// What all chunks of a range have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// The request; in a query the number of the attempt.
    pub stream: u32,
    /// Where it is read.
    pub position: Position,
    /// The query, if the range spans partitions.
    pub ticket: Option<Ticket>,
    /// For the first chunk alone.
    pub version: Option<Version>,
    /// Whether values are left out.
    pub keys_only: bool,
}

/// Writes one chunk as a frame.
#[derive(Debug)]
pub struct PartWriter<'b> {
    out: &'b mut BytesMut,
    frame: usize,
    flags_at: usize,
    flags: u8,
    count: u32,
}

impl<'b> PartWriter<'b> {
    /// Begins chunk `number`. `eight`: all its keys and values must be 8 bytes long; begin a range with `true` and go
    /// on with `false` once [`PartWriter::push`] has refused a pair of another length.
    pub fn new(out: &'b mut BytesMut, head: &PartHead, number: u32, eight: bool) -> PartWriter<'b> {
        let frame = begin_frame(out, Kind::Part, head.stream);
        let flags_at = out.len();
        let version = head.version.filter(|_| number == 0);
        let flags = if eight { FLAG_EIGHT } else { 0 }
            | if head.keys_only { FLAG_KEYS_ONLY } else { 0 }
            | if head.ticket.is_some() { FLAG_TICKET } else { 0 }
            | if version.is_some() { FLAG_VERSION } else { 0 };
        out.put_u8(flags);
        out.put_u32_le(0);
        out.put_u64_le(0);
        put_varint(out, u64::from(head.position.partition.0));
        put_varint(out, u64::from(number));
        put_varint(out, head.position.instance);
        put_varint(out, u64::from(head.position.index));
        if let Some(ticket) = head.ticket {
            put_ticket(out, ticket);
        }
        if let Some(version) = version {
            put_version(out, version);
        }
        PartWriter { out, frame, flags_at, flags, count: 0 }
    }

    /// The chunk says what became of a stretch, and holds no pairs.
    #[must_use]
    pub fn compared(mut self, Compared { number, same }: Compared) -> PartWriter<'b> {
        self.flags |= FLAG_COMPARED;
        put_varint(self.out, number);
        self.out.put_u8(u8::from(same));
        self
    }

    /// Bytes of the chunk's body so far: what counts against the client's credit.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.out.len() - self.flags_at
    }

    /// Pairs so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether this chunk can only hold pairs of 8 bytes and 8 bytes.
    #[inline]
    pub fn is_eight(&self) -> bool {
        self.flags & FLAG_EIGHT != 0
    }

    /// What a pair of 8 bytes and 8 bytes takes in an `eight` chunk.
    #[inline]
    fn words_bytes(&self) -> usize {
        if self.flags & FLAG_KEYS_ONLY == 0 { 16 } else { 8 }
    }

    /// Appends a pair. `false`: it does not go into this chunk, which is full or `eight`; finish it and begin another.
    #[inline]
    #[must_use]
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> bool {
        let value = if self.flags & FLAG_KEYS_ONLY == 0 { Some(value) } else { None };
        if self.is_eight() {
            if self.body_bytes() + self.words_bytes() > PART_BYTES {
                return false;
            }
            match (<&[u8; 8]>::try_from(key), value.map(<&[u8; 8]>::try_from)) {
                (Ok(key), Some(Ok(value))) => {
                    let mut pair = [0; 16];
                    pair[..8].copy_from_slice(key);
                    pair[8..].copy_from_slice(value);
                    self.out.put_slice(&pair);
                }
                (Ok(key), None) => self.out.put_slice(key),
                _ => return false,
            }
        } else {
            let bytes = |bytes: &[u8]| varint_bytes(bytes.len() as u64) + bytes.len();
            if self.count > 0 && self.body_bytes() + bytes(key) + value.map_or(0, bytes) > PART_BYTES {
                return false;
            }
            for bytes in std::iter::once(key).chain(value) {
                put_varint(self.out, bytes.len() as u64);
                self.out.put_slice(bytes);
            }
        }
        self.count += 1;
        true
    }

    /// Appends pairs of 8 bytes and 8 bytes, as many as fit; returns how many did. If it is not all of them, finish the
    /// chunk and begin another.
    #[must_use]
    #[inline]
    pub fn push_words(&mut self, pairs: &[[u8; 16]]) -> usize {
        if !self.is_eight() {
            let mut words = pairs.iter().map(|pair| pair.split_at(8));
            return words.position(|(key, value)| !self.push(key, value)).unwrap_or(pairs.len());
        }
        let room = PART_BYTES.saturating_sub(self.body_bytes()) / self.words_bytes();
        let pairs = &pairs[..pairs.len().min(room)];
        if self.flags & FLAG_KEYS_ONLY == 0 {
            self.out.put_slice(pairs.as_flattened());
        } else {
            pairs.iter().for_each(|pair| self.out.put_slice(&pair[..8]));
        }
        self.count += pairs.len() as u32;
        pairs.len()
    }

    /// Ends the chunk. `pairs_before`: pairs of the range in the chunks before it (in a counted range: all pairs).
    /// Returns the bytes of its body.
    pub fn finish(self, pairs_before: u64, end: Option<PartEnd>) -> usize {
        let PartWriter { out, frame, flags_at, flags, count } = self;
        out[flags_at] = flags
            | match end {
                None => 0,
                Some(PartEnd::Complete) => FLAG_END,
                Some(PartEnd::Limited) => FLAG_END | FLAG_LIMITED,
            };
        out[flags_at + 1..flags_at + 5].copy_from_slice(&count.to_le_bytes());
        let pairs_so_far = pairs_before + u64::from(count);
        out[flags_at + 5..flags_at + 13].copy_from_slice(&pairs_so_far.to_le_bytes());
        end_frame(out, frame);
        out.len() - flags_at
    }
}
