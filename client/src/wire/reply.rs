//! Answers to packs, to opened sessions and to reads. One frame answers as many requests as are ready.
//!
//! ```text
//! Replies frame = sections; section = u32 stream, u32 length of the rest, u8 flags (1: read), varint partition,
//!                 varint instance, varint index, varint first, u16 count, count x result
//! result        = u8 tag, [varint partition, varint instance, varint index: where they differ], content
//! tag           = bits 0-2 kind, 3 a value follows, 4 of 8 bytes, else varint length first, 5 done, 6 position follows
//! ```
//! What has no kind of its own has a second byte behind its tag. Of an update: `u8 outcome (bits 0-3), 4 the key
//! exists, 5 a value follows; varint length, [varint length, value]`; of a look: `u8 0 the key exists, 1 it expires;
//! varint length, [varint milliseconds]`.
//!
//! Result `i` of a section answers command `first + i` of the pack and stands at index `index + first + i` of its
//! instance; in a read section all stand at the same position.
//!
//! Two writers, because two rooms write: the executor makes an *answer* (sections without their stream: it does not
//! know who waits) with [`PackReply`], the connection puts answers behind their streams with [`RepliesWriter`].

use coppice_btree::UpdateOutcome;

pub use super::answer::{AnswerWriter, PackReply, RepliesWriter};
use super::varint::{Reader, WireError};
use super::{CommandRefusal, MapVersion, PartitionId, Position, VALUE_BYTES_MAX};

/// Longest result. A [`Command::Many`](super::Command::Many) that would answer more answers [`ResultRef::Omitted`].
pub const RESULT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// An answer that has so many bytes takes no further result that may hold a value: what is left of the pack or the read
/// is refused with [`CommandRefusal::Later`].
pub const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub(super) const FLAG_READ: u8 = 1;

// Kinds of results, 0 to 7.
pub(super) const PUT: u8 = 0;
pub(super) const INSERT: u8 = 1;
pub(super) const DELETE: u8 = 2;
pub(super) const CAS: u8 = 3;
pub(super) const GET: u8 = 4;
pub(super) const MANY: u8 = 5;
pub(super) const LOAD: u8 = 6;
/// A second byte says which.
pub(super) const OTHER: u8 = 7;
pub(super) const KIND_MASK: u8 = 7;
pub(super) const VALUE: u8 = 8;
pub(super) const EIGHT: u8 = 16;
pub(super) const DONE: u8 = 32;
pub(super) const POSITION: u8 = 64;

// Flags of the results of an update and of a look.
pub(super) const OUTCOME_MASK: u8 = 15;
pub(super) const EXISTS: u8 = 16;
pub(super) const UPDATED_VALUE: u8 = 32;
pub(super) const EXISTS_LOOK: u8 = 1;
pub(super) const EXPIRES: u8 = 2;

// Second bytes of `OTHER`. Never used twice.
pub(super) const OPENED: u8 = 1;
pub(super) const OMITTED: u8 = 2;
pub(super) const UNCHANGED: u8 = 3;
pub(super) const CHANGED: u8 = 4;
pub(super) const UPDATE: u8 = 5;
pub(super) const LOOK: u8 = 6;
pub(super) const UNMET: u8 = 7;
pub(super) const WRONG_PARTITION: u8 = 16;
pub(super) const FORGOTTEN: u8 = 17;
pub(super) const FULL: u8 = 18;
pub(super) const TOO_LARGE: u8 = 19;
pub(super) const LATER: u8 = 20;

/// The result of one command, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultRef<'a> {
    /// Done; what was there before.
    Put {
        /// The overwritten value.
        previous: Option<&'a [u8]>,
    },
    /// Inserted if `present` is none.
    Insert {
        /// The value that kept the insert from happening.
        present: Option<&'a [u8]>,
    },
    /// Done; what was there before.
    Delete {
        /// The removed value.
        previous: Option<&'a [u8]>,
    },
    /// Compared, and written if equal.
    Cas {
        /// Whether the new value was written.
        done: bool,
        /// The value found before.
        current: Option<&'a [u8]>,
    },
    /// Read.
    Get { value: Option<&'a [u8]> },
    /// Changed, or why not.
    Update {
        /// Whether it was done, or why not.
        outcome: UpdateOutcome,
        /// Whether the key is there afterwards.
        exists: bool,
        /// Bytes of its value afterwards.
        length: u32,
        /// The value that was asked for.
        value: Option<&'a [u8]>,
    },
    /// Looked at.
    Look {
        /// Whether the key is there.
        exists: bool,
        /// Bytes of its value.
        length: u32,
        /// Milliseconds until it expires.
        remaining: Option<u64>,
    },
    /// Several operations.
    Many(ManyResults<'a>),
    /// This guard (from 0) of several operations does not hold: none of them ran.
    Unmet { guard: u64 },
    /// All pairs of a load were new and are loaded.
    Loaded { pairs: u64 },
    /// Nothing was loaded: the key of this pair (from 0) was there already.
    NotLoaded { present: u64 },
    /// The session is open; the result's position is its id.
    Opened,
    /// Executed, but the results are more than an answer can hold.
    Omitted,
    /// Of a range that was read: nothing of it has changed since, as of the section's position.
    Unchanged,
    /// Something of it may have changed.
    Changed,
    /// Not executed by this sending.
    Refused(CommandRefusal),
}

/// The results of a command of several operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManyResults<'a> {
    count: u32,
    results: &'a [u8],
}

impl<'a> ManyResults<'a> {
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// In the order of the operations; ends early if the bytes are not results.
    pub fn iter(&self) -> impl Iterator<Item = ResultRef<'a>> + use<'a> {
        let mut reader = Reader::new(self.results);
        std::iter::from_fn(move || Some(read_result(&mut reader).ok()?.0))
    }
}

/// Length of the first encoded result of `results`, as a session row stores them one after the other.
pub fn result_bytes(results: &[u8]) -> Result<usize, WireError> {
    let mut reader = Reader::new(results);
    read_result(&mut reader)?;
    Ok(results.len() - reader.rest().len())
}

/// Reads one result; its own position, if it has one.
#[inline]
fn read_result<'a>(reader: &mut Reader<'a>) -> Result<(ResultRef<'a>, Option<Position>), WireError> {
    let tag = reader.u8()?;
    let position = if tag & POSITION == 0 { None } else { Some(read_position(reader)?) };
    let kind = tag & KIND_MASK;
    if kind > GET {
        return Ok((read_other(reader, tag)?, position));
    }
    let value = match tag & (VALUE | EIGHT) {
        0 => None,
        VALUE => Some(reader.bytes("value length", VALUE_BYTES_MAX)?),
        EIGHT => return Err(WireError::Unknown { what: "result tag", value: u64::from(tag) }),
        _ => Some(reader.array::<8>()?.as_slice()),
    };
    let result = match kind {
        PUT => ResultRef::Put { previous: value },
        INSERT => ResultRef::Insert { present: value },
        DELETE => ResultRef::Delete { previous: value },
        CAS => ResultRef::Cas { done: tag & DONE != 0, current: value },
        _ => ResultRef::Get { value },
    };
    Ok((result, position))
}

#[inline]
fn read_position(reader: &mut Reader<'_>) -> Result<Position, WireError> {
    let partition = PartitionId(reader.varint_u32()?);
    Ok(Position { partition, instance: reader.varint()?, index: reader.varint_u32()? })
}

fn read_other<'a>(reader: &mut Reader<'a>, tag: u8) -> Result<ResultRef<'a>, WireError> {
    match tag & KIND_MASK {
        MANY => {
            let mut content = Reader::new(reader.bytes("result length", RESULT_BYTES_MAX)?);
            let count = content.varint_u32()?;
            let results = content.rest();
            for _ in 0..count {
                // One level only: an operation of a command is no command of operations.
                let tag = *content.rest().first().ok_or(WireError::Truncated)?;
                if tag & KIND_MASK > GET && !matches!(content.rest(), [OTHER, UPDATE | LOOK, ..]) {
                    return Err(WireError::Unknown { what: "result tag", value: u64::from(tag) });
                }
                read_result(&mut content)?;
            }
            content.finish()?;
            Ok(ResultRef::Many(ManyResults { count, results }))
        }
        LOAD if tag & DONE != 0 => Ok(ResultRef::Loaded { pairs: reader.varint()? }),
        LOAD => Ok(ResultRef::NotLoaded { present: reader.varint()? }),
        _ => Ok(match reader.u8()? {
            OPENED => ResultRef::Opened,
            OMITTED => ResultRef::Omitted,
            UNCHANGED => ResultRef::Unchanged,
            CHANGED => ResultRef::Changed,
            UPDATE => read_update(reader)?,
            LOOK => {
                let flags = reader.u8()?;
                if flags > EXPIRES | EXISTS_LOOK {
                    return Err(WireError::Unknown { what: "flags of a look", value: u64::from(flags) });
                }
                let (exists, length) = (flags & EXISTS_LOOK != 0, reader.varint_u32()?);
                let remaining = if flags & EXPIRES != 0 { Some(reader.varint()?) } else { None };
                ResultRef::Look { exists, length, remaining }
            }
            UNMET => ResultRef::Unmet { guard: reader.varint()? },
            WRONG_PARTITION => {
                let version = MapVersion(reader.varint()?);
                ResultRef::Refused(CommandRefusal::WrongPartition { version })
            }
            FORGOTTEN => ResultRef::Refused(CommandRefusal::Forgotten),
            FULL => ResultRef::Refused(CommandRefusal::Full),
            TOO_LARGE => ResultRef::Refused(CommandRefusal::TooLarge),
            LATER => ResultRef::Refused(CommandRefusal::Later),
            value => return Err(WireError::Unknown { what: "result", value: u64::from(value) }),
        }),
    }
}

fn read_update<'a>(reader: &mut Reader<'a>) -> Result<ResultRef<'a>, WireError> {
    let flags = reader.u8()?;
    let unknown = WireError::Unknown { what: "outcome of an update", value: u64::from(flags) };
    if flags & !(OUTCOME_MASK | EXISTS | UPDATED_VALUE) != 0 {
        return Err(unknown);
    }
    let outcome = *UpdateOutcome::ALL.get(usize::from(flags & OUTCOME_MASK)).ok_or(unknown)?;
    let length = reader.varint_u32()?;
    let value = match flags & UPDATED_VALUE {
        0 => None,
        _ => Some(reader.bytes("value length", VALUE_BYTES_MAX)?),
    };
    Ok(ResultRef::Update { outcome, exists: flags & EXISTS != 0, length, value })
}

/// The body of a `Replies` frame, walked over section by section.
#[derive(Clone, Debug)]
pub struct Replies<'a> {
    reader: Reader<'a>,
}

impl<'a> Replies<'a> {
    /// The sections of `body`.
    pub fn new(body: &'a [u8]) -> Replies<'a> {
        Replies { reader: Reader::new(body) }
    }
}

impl<'a> Iterator for Replies<'a> {
    type Item = Result<Section<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let section = Section::read(&mut self.reader);
        if section.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(section)
    }
}

/// Results for one stream. Checked whole before it is given out: nobody acts on half of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    pub stream: u32,
    /// Position of the pack's first command, or of the whole read.
    pub position: Position,
    /// Index in the pack (or among the keys) of the first result here.
    pub first: u32,
    /// How many results.
    pub count: u16,
    /// Whether it answers a read.
    pub read: bool,
    results: &'a [u8],
}

impl<'a> Section<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Section<'a>, WireError> {
        let stream = reader.u32()?;
        let length = reader.u32()? as usize;
        let mut content = Reader::new(reader.take(length)?);
        let flags = content.u8()?;
        if flags & !FLAG_READ != 0 {
            return Err(WireError::Unknown { what: "section flag", value: u64::from(flags) });
        }
        let partition = PartitionId(content.varint_u32()?);
        let position = Position { partition, instance: content.varint()?, index: content.varint_u32()? };
        let first = content.varint_u32()?;
        let count = content.u16()?;
        // The highest index that a result can have must be an index.
        let last = u64::from(position.index) + u64::from(first) + u64::from(count);
        u32::try_from(last).map_err(|_| WireError::Overflow)?;
        let results = content.rest();
        for _ in 0..count {
            read_result(&mut content)?;
        }
        content.finish()?;
        Ok(Section { stream, position, first, count, read: flags & FLAG_READ != 0, results })
    }

    /// The results in order, each with its position.
    pub fn results(&self) -> impl Iterator<Item = (Position, ResultRef<'a>)> + use<'a> {
        let (mut reader, mut position, read) = (Reader::new(self.results), self.position, self.read);
        if !read {
            position.index += self.first;
        }
        std::iter::from_fn(move || {
            let (result, own) = read_result(&mut reader).ok()?;
            let at = own.unwrap_or(position);
            if !read {
                position.index += 1;
            }
            Some((at, result))
        })
    }
}
