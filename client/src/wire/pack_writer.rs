//! Writing packs (see `pack`): every byte is written once, into the frame that it is sent in.

use std::fmt;

use bytes::Bytes;
use coppice_btree::{Op, Update};

use super::entry::TAG_PACK;
use super::frame::{HEADER_BYTES, Kind, seal_frame};
use super::op::{code, put_op, strings};
use super::pack::{FLAG_EIGHT, GUARDED, LOAD, MANY, is_guard};
use super::varint::{push_varint, varint_bytes};
use super::{
    COMPOUND_BYTES_MAX, KEY_BYTES_MAX, OPERATION_WORK, PACK_BYTES_MAX, PACK_WORK_MAX, PartitionId, SessionId,
    VALUE_BYTES_MAX,
};

/// Why a command was not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PushError {
    /// This pack is full; an empty one takes it.
    Full,
    /// The pack is `eight` and the command is not.
    NotEight,
    /// A key, a value or the whole command is above its limit; no pack takes it.
    TooLarge(Excess),
    /// Not above the number before it, or below the lowest unacknowledged one.
    Order,
    /// A compound command without operations, or a load whose keys do not ascend.
    Invalid,
}

/// What is above a limit that no setting changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Excess {
    /// What is limited, as `a value`.
    pub what: &'static str,
    /// `bytes`, or what is counted.
    pub unit: &'static str,
    pub found: usize,
    pub max: usize,
}

impl Excess {
    /// If it is one.
    pub fn of(what: &'static str, unit: &'static str, found: usize, max: usize) -> Result<(), Excess> {
        if found > max { Err(Excess { what, unit, found, max }) } else { Ok(()) }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excess { what, unit, found, max } = self;
        write!(f, "{what} of {found} {unit} is above the limit of {max}")?;
        match (*unit, max / 1024) {
            ("bytes", kib) if kib > 0 && max % (1 << 20) == 0 => write!(f, " ({} MiB)", kib / 1024),
            ("bytes", kib) if kib > 0 && max % 1024 == 0 => write!(f, " ({kib} KiB)"),
            _ => Ok(()),
        }
    }
}

impl From<Excess> for PushError {
    fn from(excess: Excess) -> PushError {
        PushError::TooLarge(excess)
    }
}

/// Most bytes in front of the first command: frame header, partition, entry tag and length, pack header.
const ROOM: usize = 64;

/// Builds a pack inside its frame: every byte is written once, to where it is sent from.
#[derive(Debug)]
pub struct PackWriter {
    /// [`ROOM`] bytes for what goes in front, then the commands. A vector: it grows with fewer checks per byte than the
    /// buffers that can be split.
    buffer: Vec<u8>,
    session: SessionId,
    lowest_unacknowledged: u64,
    last: u64,
    count: u32,
    work: u32,
    eight: bool,
    bytes_max: usize,
}

impl PackWriter {
    /// An empty pack. `bytes_max` bounds the commands' bytes, as far as a single command allows, and is itself bounded
    /// by [`PACK_BYTES_MAX`]. `buffer` may be one that was used before; it must be empty.
    pub fn new(
        mut buffer: Vec<u8>,
        session: SessionId,
        lowest_unacknowledged: u64,
        eight: bool,
        bytes_max: usize,
    ) -> PackWriter {
        buffer.clear();
        buffer.resize(ROOM, 0);
        let last = lowest_unacknowledged;
        PackWriter { buffer, session, lowest_unacknowledged, last, count: 0, work: 0, eight, bytes_max }
    }

    /// Commands so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the commands so far.
    pub fn bytes(&self) -> usize {
        self.buffer.len() - ROOM
    }

    /// Appends one operation.
    #[inline]
    pub fn push(&mut self, number: u64, op: Op<'_>) -> Result<(), PushError> {
        if let (true, Op::Put { key, value } | Op::Insert { key, value }) = (self.eight, op)
            && let (Ok(key), Ok(value)) = (key.try_into(), value.try_into())
            && let Some(step @ 0..=0x7f) = number.checked_sub(self.last)
            && (step > 0 || self.count == 0)
        {
            return self.push_eight(number, code(&op), step as u8, key, value);
        }
        self.push_any(number, op)
    }

    /// The papers' case: an update of 8 bytes and 8 bytes, 18 bytes in one go.
    #[inline]
    fn push_eight(&mut self, number: u64, code: u8, step: u8, key: &[u8; 8], value: &[u8; 8]) -> Result<(), PushError> {
        let mut bytes = [code; 18];
        self.admit(bytes.len(), OPERATION_WORK)?;
        bytes[1] = step;
        bytes[2..10].copy_from_slice(key);
        bytes[10..].copy_from_slice(value);
        self.buffer.extend_from_slice(&bytes);
        self.pushed(number);
        Ok(())
    }

    fn push_any(&mut self, number: u64, op: Op<'_>) -> Result<(), PushError> {
        let bytes = checked_op_bytes(&op, self.eight)? + 1;
        let step = self.step(number)?;
        self.admit(bytes + varint_bytes(step), OPERATION_WORK)?;
        self.buffer.push(code(&op));
        push_varint(&mut self.buffer, step);
        put_op(&mut self.buffer, &op, self.eight);
        self.pushed(number);
        Ok(())
    }

    /// Appends several operations as one command.
    pub fn push_many<'o>(
        &mut self,
        number: u64,
        operations: impl ExactSizeIterator<Item = Op<'o>> + Clone,
    ) -> Result<(), PushError> {
        self.push_guarded(number, 0, operations)
    }

    /// The same; the first `guards` operations only check conditions, and keep the others from running if one is not
    /// met.
    pub fn push_guarded<'o>(
        &mut self,
        number: u64,
        guards: usize,
        operations: impl ExactSizeIterator<Item = Op<'o>> + Clone,
    ) -> Result<(), PushError> {
        let count = operations.len();
        if count == 0 || guards > count || !operations.clone().take(guards).all(|op| is_guard(&op)) {
            return Err(PushError::Invalid);
        }
        let mut content = varint_bytes(count as u64);
        for op in operations.clone() {
            content += checked_op_bytes(&op, self.eight)? + 1;
        }
        if guards > 0 {
            content += varint_bytes(guards as u64);
        }
        let kind = if guards > 0 { GUARDED } else { MANY };
        self.begin_compound(number, kind, (count, OPERATION_WORK), content)?;
        if guards > 0 {
            push_varint(&mut self.buffer, guards as u64);
        }
        for op in operations {
            self.buffer.push(code(&op));
            put_op(&mut self.buffer, &op, self.eight);
        }
        self.pushed(number);
        Ok(())
    }

    /// Appends pairs, ascending by key, as one command.
    pub fn push_load<'o>(
        &mut self,
        number: u64,
        pairs: impl ExactSizeIterator<Item = (&'o [u8], &'o [u8])> + Clone,
    ) -> Result<(), PushError> {
        let count = pairs.len();
        if count == 0 {
            return Err(PushError::Invalid);
        }
        let mut content = varint_bytes(count as u64);
        let mut last: Option<&[u8]> = None;
        for (key, value) in pairs.clone() {
            content += checked_op_bytes(&Op::Put { key, value }, self.eight)?;
            if last.is_some_and(|last| last >= key) {
                return Err(PushError::Invalid);
            }
            last = Some(key);
        }
        self.begin_compound(number, LOAD, (count, 1), content)?;
        for (key, value) in pairs {
            put_op(&mut self.buffer, &Op::Put { key, value }, self.eight);
        }
        self.pushed(number);
        Ok(())
    }

    /// Begins a command of `count` parts, each of which costs `each`.
    fn begin_compound(
        &mut self,
        number: u64,
        code: u8,
        (count, each): (usize, u32),
        content: usize,
    ) -> Result<(), PushError> {
        Excess::of("a command", "bytes", content, COMPOUND_BYTES_MAX)?;
        Excess::of("a command", "operations", count, PACK_WORK_MAX as usize / each as usize)?;
        let work = (count as u32).saturating_mul(each).max(OPERATION_WORK);
        let step = self.step(number)?;
        self.admit(1 + varint_bytes(step) + varint_bytes(content as u64) + content, work)?;
        self.buffer.push(code);
        push_varint(&mut self.buffer, step);
        push_varint(&mut self.buffer, content as u64);
        push_varint(&mut self.buffer, count as u64);
        Ok(())
    }

    #[inline]
    fn step(&self, number: u64) -> Result<u64, PushError> {
        let step = number.checked_sub(self.last).ok_or(PushError::Order)?;
        if step == 0 && self.count > 0 { Err(PushError::Order) } else { Ok(step) }
    }

    #[inline]
    fn admit(&mut self, bytes: usize, work: u32) -> Result<(), PushError> {
        // An empty pack takes any legal command, so that a small `bytes_max` cannot starve one.
        let full = self.bytes() + bytes > self.bytes_max.min(PACK_BYTES_MAX - ROOM) || self.work + work > PACK_WORK_MAX;
        if self.count > 0 && full {
            return Err(PushError::Full);
        }
        self.work += work;
        Ok(())
    }

    #[inline]
    fn pushed(&mut self, number: u64) {
        self.last = number;
        self.count += 1;
    }

    /// The whole `Commands` frame for `partition`, ready to send; nothing if no command was pushed.
    pub fn finish(mut self, partition: PartitionId, stream: u32) -> Option<Bytes> {
        if self.count == 0 {
            return None;
        }
        let mut header = Vec::with_capacity(ROOM);
        header.push(if self.eight { FLAG_EIGHT } else { 0 });
        push_varint(&mut header, u64::from(self.session.partition.0));
        push_varint(&mut header, self.session.instance);
        push_varint(&mut header, u64::from(self.session.index));
        push_varint(&mut header, u64::from(self.count));
        push_varint(&mut header, self.lowest_unacknowledged);
        let pack_bytes = header.len() + self.bytes();
        let mut front = Vec::with_capacity(ROOM);
        front.resize(HEADER_BYTES, 0);
        front[8] = Kind::Commands as u8;
        front[12..16].copy_from_slice(&stream.to_le_bytes());
        push_varint(&mut front, u64::from(partition.0));
        front.push(TAG_PACK);
        push_varint(&mut front, pack_bytes as u64);
        let start = ROOM - front.len() - header.len();
        self.buffer[start..start + front.len()].copy_from_slice(&front);
        self.buffer[start + front.len()..ROOM].copy_from_slice(&header);
        seal_frame(&mut self.buffer[start..]);
        Some(Bytes::from(self.buffer).slice(start..))
    }
}

/// Whether the operation fits an `eight` pack: its key and its values are 8 bytes long.
#[inline]
pub fn is_eight(op: &Op<'_>) -> bool {
    let (key, values) = strings(op);
    key.len() == 8 && values.iter().flatten().all(|value| value.len() == 8)
}

/// Whether a pack takes an operation.
pub(crate) fn check_op(op: &Op<'_>) -> Result<(), PushError> {
    checked_op_bytes(op, false).map(|_| ())
}

/// Bytes of an operation's content, without code and number, if it is within the limits.
#[inline]
fn checked_op_bytes(op: &Op<'_>, eight: bool) -> Result<usize, PushError> {
    let (key, values) = strings(op);
    Excess::of("a key", "bytes", key.len(), KEY_BYTES_MAX)?;
    let checked = |value: &[u8]| Excess::of("a value", "bytes", value.len(), VALUE_BYTES_MAX);
    match *op {
        Op::Update { terms, .. } => {
            let update = Update::read(terms).ok_or(PushError::Invalid)?;
            super::op::values(&update).try_for_each(checked)?;
        }
        Op::Move { to, .. } => Excess::of("a key", "bytes", to.len(), KEY_BYTES_MAX)?,
        _ => values.iter().flatten().try_for_each(|value| checked(value))?,
    }
    if eight {
        if !is_eight(op) {
            return Err(PushError::NotEight);
        }
        return Ok(8 + 8 * values.iter().flatten().count());
    }
    let with_length = |bytes: &[u8]| varint_bytes(bytes.len() as u64) + bytes.len();
    Ok(with_length(key) + values.iter().flatten().map(|value| with_length(value)).sum::<usize>())
}
