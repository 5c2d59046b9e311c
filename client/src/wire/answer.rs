//! Writing answers (see `reply`): the executor's half, which knows no streams, and the connection's half, which knows
//! no results. Nothing is allocated but room in the buffer.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::OpResult;

use super::frame::{Kind, begin_frame, end_frame};
use super::reply::{
    CAS, CHANGED, DELETE, DONE, EIGHT, EXISTS, EXISTS_LOOK, EXPIRES, FLAG_READ, FORGOTTEN, FULL, GET, INSERT, LATER,
    LOAD, LOOK, MANY, OMITTED, OPENED, OTHER, POSITION, PUT, REPLY_BYTES_MAX, RESULT_BYTES_MAX, TOO_LARGE, UNCHANGED,
    UNMET, UPDATE, UPDATED_VALUE, VALUE, WRONG_PARTITION,
};
use super::varint::{Reader, WireError, put_varint, varint_bytes};
use super::{CommandRefusal, FRAME_BYTES_MAX, PartitionId, Position, SessionId};

/// A section is closed when it holds this many bytes, and another one begun, so that sections fit frames.
const SECTION_BYTES: usize = 1024 * 1024;
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

/// Bytes that [`put_op_result`] writes.
fn op_result_bytes(result: &OpResult) -> usize {
    let value = match result {
        OpResult::Put { previous: value }
        | OpResult::Insert { present: value }
        | OpResult::Delete { previous: value }
        | OpResult::Cas { current: value, .. }
        | OpResult::Get { value } => value.as_deref(),
        OpResult::Update { length, value, .. } => {
            let value = value.as_deref().map_or(0, |value| varint_bytes(value.len() as u64) + value.len());
            return 3 + varint_bytes(u64::from(*length)) + value;
        }
        OpResult::Look { length, remaining, .. } => {
            return 3 + varint_bytes(u64::from(*length)) + remaining.map_or(0, varint_bytes);
        }
    };
    match value.map(<[u8]>::len) {
        None => 1,
        Some(8) => 9,
        Some(length) => 1 + varint_bytes(length as u64) + length,
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
        OpResult::Update { outcome, exists, length, value } => {
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            let flags = flag(*exists, EXISTS) | flag(value.is_some(), UPDATED_VALUE);
            out.put_slice(&[OTHER, UPDATE, *outcome as u8 | flags]);
            put_varint(out, u64::from(*length));
            if let Some(value) = value {
                put_varint(out, value.len() as u64);
                out.put_slice(value);
            }
        }
        OpResult::Look { exists, length, remaining } => put_look(out, *exists, *length, *remaining),
    }
}

fn put_look(out: &mut BytesMut, exists: bool, length: u32, remaining: Option<u64>) {
    let exists = if exists { EXISTS_LOOK } else { 0 };
    out.put_slice(&[OTHER, LOOK, exists | remaining.map_or(0, |_| EXPIRES)]);
    put_varint(out, u64::from(length));
    if let Some(remaining) = remaining {
        put_varint(out, remaining);
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

    /// Whose answer it is.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Whether it is as large as an answer may be.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bytes() >= REPLY_BYTES_MAX
    }

    /// Bytes of the answer so far.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.out.len() - self.start
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

    /// Whether a range is as it was read.
    pub fn validated(&mut self, unchanged: bool) {
        self.next();
        self.out.put_slice(&[OTHER, if unchanged { UNCHANGED } else { CHANGED }]);
    }

    /// The results of a command of several operations. More than [`RESULT_BYTES_MAX`] are left out: it was executed.
    pub fn many<'r>(&mut self, results: impl ExactSizeIterator<Item = &'r OpResult> + Clone) {
        self.next();
        // Found out before anything is copied: commands that are left out one after the other cost their operations
        // only.
        let header = 5 + varint_bytes(results.len() as u64);
        let bytes = results.clone().map(op_result_bytes).fold(header, usize::saturating_add);
        if bytes > RESULT_BYTES_MAX {
            self.out.put_slice(&[OTHER, OMITTED]);
            return;
        }
        self.out.put_u8(MANY);
        // Room for a length of any size, written small when it is known.
        let at = self.out.len();
        self.out.put_slice(&[0; 5]);
        put_varint(self.out, results.len() as u64);
        for result in results {
            put_op_result(self.out, result);
        }
        let length = (self.out.len() - at - 5) as u32;
        // A varint of exactly five bytes: the fifth ends it.
        for (i, byte) in self.out[at..at + 5].iter_mut().enumerate() {
            *byte = (length >> (7 * i)) as u8 & 0x7f | if i < 4 { 0x80 } else { 0 };
        }
    }

    /// A guard of a command of several operations does not hold: none of them ran.
    pub fn unmet(&mut self, guard: u64) {
        self.next();
        self.out.put_slice(&[OTHER, UNMET]);
        put_varint(self.out, guard);
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
            CommandRefusal::Later => LATER,
        };
        self.out.put_slice(&[OTHER, code]);
        if let CommandRefusal::WrongPartition { version } = refusal {
            put_varint(self.out, version.0);
        }
    }

    /// The command was executed before, at this position, with this encoded result (from [`PackReply::last_result`]).
    /// The position may be in another partition's log: the one that this partition was split from.
    pub fn repeated(&mut self, position: Position, result: &[u8]) {
        let Some((tag, content)) = result.split_first() else { return self.refused(CommandRefusal::Forgotten) };
        self.next();
        self.out.put_u8(tag | POSITION);
        put_varint(self.out, u64::from(position.partition.0));
        put_varint(self.out, position.instance);
        put_varint(self.out, u64::from(position.index));
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
