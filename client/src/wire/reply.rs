//! Answers to packs, to opened sessions and to reads. One frame answers as many requests as are ready.
//!
//! ```text
//! Replies frame = sections; section = u32 stream, u32 length of the rest, u8 flags (1: read), varint partition,
//!                 varint instance, varint index, varint first, u16 count, count x result
//! result        = u8 tag, [varint instance, varint index: where it differs], content
//! tag           = bits 0-2 kind, 3 a value follows, 4 of 8 bytes, else varint length first, 5 done, 6 position follows
//! ```
//! Result `i` of a section answers command `first + i` of the pack and stands at index `index + first + i` of its
//! instance; in a read section all stand at the same position.
//!
//! Two writers, because two rooms write: the executor makes an *answer* (sections without their stream: it does not
//! know who waits) with [`PackReply`], the connection puts answers behind their streams with [`RepliesWriter`].

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::OpResult;

use super::frame::{Kind, begin_frame, end_frame};
use super::varint::{Reader, WireError, put_varint};
use super::{CommandRefusal, FRAME_BYTES_MAX, MapVersion, PartitionId, Position, SessionId, VALUE_BYTES_MAX};

/// A section is closed when it holds this many bytes, and another one begun, so that sections fit frames.
const SECTION_BYTES: usize = 1024 * 1024;
/// Longest result. A [`Command::Many`](super::Command::Many) that would answer more answers [`ResultRef::Omitted`].
pub const RESULT_BYTES_MAX: usize = 2 * 1024 * 1024;

const FLAG_READ: u8 = 1;

// Kinds of results, 0 to 7.
const PUT: u8 = 0;
const INSERT: u8 = 1;
const DELETE: u8 = 2;
const CAS: u8 = 3;
const GET: u8 = 4;
const MANY: u8 = 5;
const LOAD: u8 = 6;
/// A second byte says which.
const OTHER: u8 = 7;
const KIND_MASK: u8 = 7;
const VALUE: u8 = 8;
const EIGHT: u8 = 16;
const DONE: u8 = 32;
const POSITION: u8 = 64;

// Second bytes of `OTHER`. Never used twice (style.md 21).
const OPENED: u8 = 1;
const OMITTED: u8 = 2;
const WRONG_PARTITION: u8 = 16;
const FORGOTTEN: u8 = 17;
const FULL: u8 = 18;
const TOO_LARGE: u8 = 19;

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
    Get {
        /// The value.
        value: Option<&'a [u8]>,
    },
    /// Several operations.
    Many(ManyResults<'a>),
    /// All pairs of a load were new and are loaded.
    Loaded {
        /// How many.
        pairs: u64,
    },
    /// Nothing was loaded: the key of this pair (from 0) was there already.
    NotLoaded {
        /// Which pair.
        present: u64,
    },
    /// The session is open; the result's position is its id.
    Opened,
    /// Executed, but the results are more than an answer can hold.
    Omitted,
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
    /// How many.
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

#[inline]
fn put_value(out: &mut BytesMut, kind: u8, value: Option<&[u8]>) {
    match value {
        None => out.put_u8(kind),
        Some(value) => match <&[u8; 8]>::try_from(value) {
            Ok(value) => {
                let mut bytes = [kind | VALUE | EIGHT; 9];
                bytes[1..].copy_from_slice(value);
                out.put_slice(&bytes);
            }
            Err(_) => {
                out.put_u8(kind | VALUE);
                put_varint(out, value.len() as u64);
                out.put_slice(value);
            }
        },
    }
}

#[inline]
fn put_op_result(out: &mut BytesMut, result: &OpResult) {
    match result {
        OpResult::Put { previous } => put_value(out, PUT, previous.as_deref()),
        OpResult::Insert { present } => put_value(out, INSERT, present.as_deref()),
        OpResult::Delete { previous } => put_value(out, DELETE, previous.as_deref()),
        OpResult::Cas { done, current } => put_value(out, if *done { CAS | DONE } else { CAS }, current.as_deref()),
        OpResult::Get { value } => put_value(out, GET, value.as_deref()),
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
fn read_result<'a>(reader: &mut Reader<'a>) -> Result<(ResultRef<'a>, Option<(u64, u32)>), WireError> {
    let tag = reader.u8()?;
    let position = if tag & POSITION == 0 { None } else { Some((reader.varint()?, reader.varint_u32()?)) };
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

fn read_other<'a>(reader: &mut Reader<'a>, tag: u8) -> Result<ResultRef<'a>, WireError> {
    match tag & KIND_MASK {
        MANY => {
            let mut content = Reader::new(reader.bytes("result length", RESULT_BYTES_MAX)?);
            let count = content.varint_u32()?;
            let results = content.rest();
            for _ in 0..count {
                // One level only: an operation of a command is no command of operations.
                let tag = content.rest().first().ok_or(WireError::Truncated)?;
                if tag & KIND_MASK > GET {
                    return Err(WireError::Unknown { what: "result tag", value: u64::from(*tag) });
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
            WRONG_PARTITION => {
                let version = MapVersion(reader.varint()?);
                ResultRef::Refused(CommandRefusal::WrongPartition { version })
            }
            FORGOTTEN => ResultRef::Refused(CommandRefusal::Forgotten),
            FULL => ResultRef::Refused(CommandRefusal::Full),
            TOO_LARGE => ResultRef::Refused(CommandRefusal::TooLarge),
            value => return Err(WireError::Unknown { what: "result", value: u64::from(value) }),
        }),
    }
}

/// Writes the answer of one pack: what goes behind the stream in a `Replies` frame. Results are pushed in the order of
/// the pack's commands, each exactly once. Nothing is allocated but room in the buffer.
#[derive(Debug)]
pub struct PackReply<'b> {
    out: &'b mut BytesMut,
    partition: PartitionId,
    instance: u64,
    index: u32,
    flags: u8,
    /// Where this answer begins in `out`.
    start: usize,
    /// Where the open section begins in `out`, and where its count stands.
    section: usize,
    count_at: usize,
    count: u16,
    /// Results in closed sections.
    first: u32,
    /// Where the last result begins.
    last: usize,
}

/// [`PackReply`] by its general name: it also writes the answers of reads and of opened sessions.
pub type AnswerWriter<'b> = PackReply<'b>;

impl<'b> PackReply<'b> {
    /// An answer whose first command stands at (`instance`, `index`) of `partition`'s log; appended to `out`.
    pub fn new(out: &'b mut BytesMut, partition: PartitionId, instance: u64, index: u32) -> PackReply<'b> {
        PackReply::begin(out, partition, instance, index, 0)
    }

    /// An answer to a read: all results stand at the same position.
    pub fn read(out: &'b mut BytesMut, partition: PartitionId, instance: u64, index: u32) -> PackReply<'b> {
        PackReply::begin(out, partition, instance, index, FLAG_READ)
    }

    fn begin(out: &'b mut BytesMut, partition: PartitionId, instance: u64, index: u32, flags: u8) -> PackReply<'b> {
        let start = out.len();
        let mut reply = PackReply {
            out,
            partition,
            instance,
            index,
            flags,
            start,
            section: start,
            count_at: 0,
            count: 0,
            first: 0,
            last: start,
        };
        reply.begin_section();
        reply
    }

    fn begin_section(&mut self) {
        self.section = self.out.len();
        self.out.put_u32_le(0);
        self.out.put_u8(self.flags);
        put_varint(self.out, u64::from(self.partition.0));
        put_varint(self.out, self.instance);
        put_varint(self.out, u64::from(self.index));
        put_varint(self.out, u64::from(self.first));
        self.count_at = self.out.len();
        self.out.put_u16_le(0);
        self.count = 0;
    }

    fn end_section(&mut self) {
        let length = (self.out.len() - self.section - 4) as u32;
        self.out[self.section..self.section + 4].copy_from_slice(&length.to_le_bytes());
        self.out[self.count_at..self.count_at + 2].copy_from_slice(&self.count.to_le_bytes());
        self.first += u32::from(self.count);
    }

    /// Before each result.
    #[inline]
    fn next(&mut self) {
        if self.count == u16::MAX || self.out.len() - self.section > SECTION_BYTES {
            self.end_section();
            self.begin_section();
        }
        self.count += 1;
        self.last = self.out.len();
    }

    /// The result of one operation.
    #[inline]
    pub fn result(&mut self, result: &OpResult) {
        self.next();
        put_op_result(self.out, result);
    }

    /// The value of a key that was read.
    #[inline]
    pub fn value(&mut self, value: Option<&[u8]>) {
        self.next();
        put_value(self.out, GET, value);
    }

    /// The results of a command of several operations. More than [`RESULT_BYTES_MAX`] are left out: it was executed.
    pub fn many<'r>(&mut self, results: impl ExactSizeIterator<Item = &'r OpResult>) {
        self.next();
        self.out.put_u8(MANY);
        // Room for a length of any size, written small when it is known.
        let at = self.out.len();
        self.out.put_slice(&[0; 5]);
        put_varint(self.out, results.len() as u64);
        for result in results {
            put_op_result(self.out, result);
            if self.out.len() - at > RESULT_BYTES_MAX {
                self.out.truncate(self.last);
                self.out.put_slice(&[OTHER, OMITTED]);
                return;
            }
        }
        let length = (self.out.len() - at - 5) as u32;
        // A varint of exactly five bytes: the fifth ends it.
        for (i, byte) in self.out[at..at + 5].iter_mut().enumerate() {
            *byte = (length >> (7 * i)) as u8 & 0x7f | if i < 4 { 0x80 } else { 0 };
        }
    }

    /// A load was done.
    pub fn loaded(&mut self, pairs: u64) {
        self.next();
        self.out.put_u8(LOAD | DONE);
        put_varint(self.out, pairs);
    }

    /// A load was not done, because the key of pair `present` was there.
    pub fn not_loaded(&mut self, present: u64) {
        self.next();
        self.out.put_u8(LOAD);
        put_varint(self.out, present);
    }

    /// The session is open; its id is the position of this result.
    pub fn opened(&mut self) {
        self.next();
        self.out.put_slice(&[OTHER, OPENED]);
    }

    /// The command was not executed.
    pub fn refused(&mut self, refusal: CommandRefusal) {
        self.next();
        let code = match refusal {
            CommandRefusal::WrongPartition { .. } => WRONG_PARTITION,
            CommandRefusal::Forgotten => FORGOTTEN,
            CommandRefusal::Full => FULL,
            CommandRefusal::TooLarge => TOO_LARGE,
        };
        self.out.put_slice(&[OTHER, code]);
        if let CommandRefusal::WrongPartition { version } = refusal {
            put_varint(self.out, version.0);
        }
    }

    /// The command was executed before, at this position, with this encoded result (from [`PackReply::last_result`]).
    pub fn repeated(&mut self, instance: u64, index: u32, result: &[u8]) {
        let Some((tag, content)) = result.split_first() else { return self.refused(CommandRefusal::Forgotten) };
        self.next();
        self.out.put_u8(tag | POSITION);
        put_varint(self.out, instance);
        put_varint(self.out, u64::from(index));
        self.out.put_slice(content);
    }

    /// The encoded bytes of the result that was pushed last, as a session row stores them.
    pub fn last_result(&self) -> &[u8] {
        &self.out[self.last..]
    }

    /// Ends the answer; it stands in the buffer from here to the end.
    pub fn finish(mut self) -> std::ops::Range<usize> {
        self.end_section();
        self.start..self.out.len()
    }

    /// Ends the answer and splits everything that the buffer holds off as bytes. The buffer keeps its room.
    pub fn finish_split(self) -> Bytes {
        let out = {
            let mut reply = self;
            reply.end_section();
            reply.out
        };
        out.split().freeze()
    }
}

/// Writes `Replies` frames: as many as are needed, as few as possible.
#[derive(Debug)]
pub struct RepliesWriter<'b> {
    out: &'b mut BytesMut,
    /// Where the open frame begins.
    frame: Option<usize>,
}

impl<'b> RepliesWriter<'b> {
    /// Appends frames to `out`.
    pub fn new(out: &'b mut BytesMut) -> RepliesWriter<'b> {
        RepliesWriter { out, frame: None }
    }

    /// Answers `stream` with what [`PackReply`] wrote. Bytes that it did not write are an error, and nothing is sent.
    pub fn answer(&mut self, stream: u32, answer: &[u8]) -> Result<(), WireError> {
        let mut sections = Reader::new(answer);
        while !sections.is_empty() {
            let at = sections.rest();
            let length = sections.u32()? as usize;
            sections.take(length)?;
            self.room(4 + 4 + length);
            self.out.put_u32_le(stream);
            self.out.put_slice(&at[..4 + length]);
        }
        Ok(())
    }

    /// Answers `stream`: the session was opened at the position that is its id.
    pub fn opened(&mut self, stream: u32, session: SessionId) {
        self.room(64);
        self.out.put_u32_le(stream);
        let mut answer = PackReply::new(self.out, session.partition, session.instance, session.index);
        answer.opened();
        answer.finish();
    }

    /// Makes sure that a frame is open with room for `bytes`.
    fn room(&mut self, bytes: usize) {
        if let Some(start) = self.frame
            && self.out.len() - start + bytes > FRAME_BYTES_MAX
        {
            end_frame(self.out, start);
            self.frame = None;
        }
        if self.frame.is_none() {
            self.frame = Some(begin_frame(self.out, Kind::Replies, 0));
        }
    }

    /// Ends the last frame.
    pub fn finish(mut self) {
        if let Some(start) = self.frame.take() {
            end_frame(self.out, start);
        }
    }
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
    /// Which request.
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
            let at = own.map_or(position, |(instance, index)| Position { instance, index, ..position });
            if !read {
                position.index += 1;
            }
            Some((at, result))
        })
    }
}
