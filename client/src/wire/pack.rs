//! Packs: numbered commands of one session for one partition, in the bytes that go from the client through the leader's
//! batch, the log and the followers to the executor, untouched (architecture.md, Where the parts meet).
//!
//! ```text
//! pack    = u8 flags (1: eight), varint session.partition, varint session.instance, varint session.index,
//!           varint count, varint lowest_unacknowledged, count x command
//! command = u8 code, varint number - previous number (the first: - lowest_unacknowledged), content
//! content = put, insert: key value | delete, get: key | cas: key expected value
//!           many: varint bytes, varint count, count x (u8 code, content)
//!           load: varint bytes, varint count, count x (key value), ascending
//! key, value = varint length, bytes; with `eight` 8 bytes and no length
//! ```
//! With `eight` an update of 16 bytes takes 18.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_btree::Op;

use super::entry::TAG_PACK;
use super::frame::{HEADER_BYTES, Kind, end_frame};
use super::varint::{Reader, WireError, put_varint, varint_bytes};
use super::{
    COMPOUND_BYTES_MAX, KEY_BYTES_MAX, MANY_OPERATIONS_MAX, PACK_BYTES_MAX, PartitionId, SessionId, VALUE_BYTES_MAX,
};

const FLAG_EIGHT: u8 = 1;

// Codes of commands. Never used twice (style.md 21).
const PUT: u8 = 1;
const INSERT: u8 = 2;
const DELETE: u8 = 3;
const CAS: u8 = 4;
const GET: u8 = 5;
const MANY: u8 = 6;
const LOAD: u8 = 7;

/// One command, borrowed from its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// One operation.
    Op(Op<'a>),
    /// Several operations of one partition under one number, all or none.
    Many(ManyOps<'a>),
    /// Ascending pairs, all of them new; else nothing is changed.
    Load(LoadPairs<'a>),
}

impl Command<'_> {
    /// Whether every key of the command is in `[low, high)`; `high` none: no upper bound.
    pub fn is_within(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let within = |key: &[u8]| key >= low && high.is_none_or(|high| key < high);
        match self {
            Command::Op(op) => within(op_key(op)),
            Command::Many(many) => many.iter().all(|op| within(op_key(&op))),
            Command::Load(load) => load.iter().all(|(key, _)| within(key)),
        }
    }
}

pub(crate) fn op_key<'a>(op: &Op<'a>) -> &'a [u8] {
    match *op {
        Op::Put { key, .. } | Op::Insert { key, .. } | Op::Delete { key } | Op::Cas { key, .. } | Op::Get { key } => {
            key
        }
    }
}

/// The operations of a [`Command::Many`], checked when the pack was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManyOps<'a> {
    bytes: &'a [u8],
    count: u32,
    eight: bool,
}

impl<'a> ManyOps<'a> {
    /// How many operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none; a decoded pack has no such command.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The operations in order.
    pub fn iter(&self) -> impl Iterator<Item = Op<'a>> + use<'a> {
        let (mut reader, eight) = (Reader::new(self.bytes), self.eight);
        // What was checked at decoding reads without error; were it not so, the iterator would end, not panic.
        std::iter::from_fn(move || {
            let code = reader.u8().ok()?;
            read_op(&mut reader, code, eight).ok()
        })
    }
}

/// The pairs of a [`Command::Load`], checked and known to ascend when the pack was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadPairs<'a> {
    bytes: &'a [u8],
    count: u32,
    eight: bool,
}

impl<'a> LoadPairs<'a> {
    /// How many pairs.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none; a decoded pack has no such command.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pairs, ascending by key.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (mut reader, eight) = (Reader::new(self.bytes), self.eight);
        std::iter::from_fn(move || read_pair(&mut reader, eight).ok())
    }
}

/// A pack, borrowed from the bytes it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack<'a> {
    session: SessionId,
    count: u32,
    lowest_unacknowledged: u64,
    eight: bool,
    commands: &'a [u8],
}

impl<'a> Pack<'a> {
    /// Checks everything: lengths, limits, order, codes. After it walking over the commands cannot fail, so an executor
    /// cannot either. O(bytes) at most, O(commands) with `eight`.
    pub fn decode(bytes: &'a [u8]) -> Result<Pack<'a>, WireError> {
        if bytes.len() > PACK_BYTES_MAX {
            return Err(limit("pack bytes", bytes.len() as u64, PACK_BYTES_MAX));
        }
        let pack = Pack::decode_header(bytes)?;
        let mut reader = Reader::new(pack.commands);
        let mut number = pack.lowest_unacknowledged;
        for at in 0..pack.count {
            read_command(&mut reader, pack.eight, at == 0, &mut number, true)?;
        }
        reader.finish()?;
        Ok(pack)
    }

    /// Reads the header alone, for bytes that passed [`Pack::decode`] before on this or another node. On other bytes
    /// [`Pack::commands`] ends early.
    pub fn decode_header(bytes: &'a [u8]) -> Result<Pack<'a>, WireError> {
        let mut reader = Reader::new(bytes);
        let flags = reader.u8()?;
        if flags & !FLAG_EIGHT != 0 {
            return Err(WireError::Unknown { what: "pack flag", value: u64::from(flags) });
        }
        let partition = PartitionId(reader.varint_u32()?);
        let session = SessionId { partition, instance: reader.varint()?, index: reader.varint_u32()? };
        let count = reader.varint_u32()?;
        let lowest_unacknowledged = reader.varint()?;
        if count == 0 {
            return Err(WireError::Empty("commands"));
        }
        let eight = flags & FLAG_EIGHT != 0;
        Ok(Pack { session, count, lowest_unacknowledged, eight, commands: reader.rest() })
    }

    /// Whose commands.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// How many commands, at least one.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// All numbers below it have been answered to the client's satisfaction: their replies may be forgotten.
    pub fn lowest_unacknowledged(&self) -> u64 {
        self.lowest_unacknowledged
    }

    /// Whether all keys and values are 8 bytes long.
    pub fn is_eight(&self) -> bool {
        self.eight
    }

    /// The number of the first command.
    pub fn first_number(&self) -> Option<u64> {
        self.commands().next().map(|(number, _)| number)
    }

    /// The commands in order, each with its number; numbers ascend.
    pub fn commands(&self) -> impl Iterator<Item = (u64, Command<'a>)> + use<'a> {
        let (mut reader, mut number) = (Reader::new(self.commands), self.lowest_unacknowledged);
        let (eight, mut first) = (self.eight, true);
        std::iter::from_fn(move || {
            let command = read_command(&mut reader, eight, first, &mut number, false).ok()?;
            first = false;
            Some((number, command))
        })
    }
}

fn limit(what: &'static str, value: u64, max: usize) -> WireError {
    WireError::Limit { what, value, max: max as u64 }
}

#[inline]
fn read_command<'a>(
    reader: &mut Reader<'a>,
    eight: bool,
    first: bool,
    number: &mut u64,
    check: bool,
) -> Result<Command<'a>, WireError> {
    let code = reader.u8()?;
    let step = reader.varint()?;
    if step == 0 && !first {
        return Err(WireError::Order("command numbers"));
    }
    *number = number.checked_add(step).ok_or(WireError::Overflow)?;
    match code {
        MANY => read_many(reader, eight, check).map(Command::Many),
        LOAD => read_load(reader, eight, check).map(Command::Load),
        _ => read_op(reader, code, eight).map(Command::Op),
    }
}

#[inline]
fn read_op<'a>(reader: &mut Reader<'a>, code: u8, eight: bool) -> Result<Op<'a>, WireError> {
    match code {
        PUT => Ok(Op::Put { key: read_key(reader, eight)?, value: read_value(reader, eight)? }),
        INSERT => Ok(Op::Insert { key: read_key(reader, eight)?, value: read_value(reader, eight)? }),
        DELETE => Ok(Op::Delete { key: read_key(reader, eight)? }),
        CAS => Ok(Op::Cas {
            key: read_key(reader, eight)?,
            expected: read_value(reader, eight)?,
            value: read_value(reader, eight)?,
        }),
        GET => Ok(Op::Get { key: read_key(reader, eight)? }),
        _ => Err(WireError::Unknown { what: "command code", value: u64::from(code) }),
    }
}

#[inline]
fn read_key<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<&'a [u8], WireError> {
    if eight { reader.array::<8>().map(<[u8; 8]>::as_slice) } else { reader.bytes("key length", KEY_BYTES_MAX) }
}

#[inline]
fn read_value<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<&'a [u8], WireError> {
    if eight { reader.array::<8>().map(<[u8; 8]>::as_slice) } else { reader.bytes("value length", VALUE_BYTES_MAX) }
}

#[inline]
fn read_pair<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<(&'a [u8], &'a [u8]), WireError> {
    Ok((read_key(reader, eight)?, read_value(reader, eight)?))
}

fn read_compound<'a>(reader: &mut Reader<'a>) -> Result<(u32, &'a [u8]), WireError> {
    let mut content = Reader::new(reader.bytes("command length", COMPOUND_BYTES_MAX)?);
    let count = content.varint_u32()?;
    if count == 0 {
        return Err(WireError::Empty("operations"));
    }
    Ok((count, content.rest()))
}

fn read_many<'a>(reader: &mut Reader<'a>, eight: bool, check: bool) -> Result<ManyOps<'a>, WireError> {
    let (count, bytes) = read_compound(reader)?;
    if check {
        if count as usize > MANY_OPERATIONS_MAX {
            return Err(limit("operations", u64::from(count), MANY_OPERATIONS_MAX));
        }
        let mut content = Reader::new(bytes);
        for _ in 0..count {
            let code = content.u8()?;
            read_op(&mut content, code, eight)?;
        }
        content.finish()?;
    }
    Ok(ManyOps { bytes, count, eight })
}

fn read_load<'a>(reader: &mut Reader<'a>, eight: bool, check: bool) -> Result<LoadPairs<'a>, WireError> {
    let (count, bytes) = read_compound(reader)?;
    if check {
        let mut content = Reader::new(bytes);
        let mut last: Option<&[u8]> = None;
        for _ in 0..count {
            let (key, _) = read_pair(&mut content, eight)?;
            if last.is_some_and(|last| last >= key) {
                return Err(WireError::Order("keys of a load"));
            }
            last = Some(key);
        }
        content.finish()?;
    }
    Ok(LoadPairs { bytes, count, eight })
}

/// Why a command was not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PushError {
    /// This pack is full; an empty one takes it.
    Full,
    /// The pack is `eight` and the command is not.
    NotEight,
    /// A key, a value or the whole command is above its limit; no pack takes it.
    TooLarge,
    /// Not above the number before it, or below the lowest unacknowledged one.
    Order,
    /// A compound command without operations, or a load whose keys do not ascend.
    Invalid,
}

/// Most bytes in front of the first command: frame header, partition, entry tag and length, pack header.
const ROOM: usize = 64;

/// Builds a pack inside its frame: every byte is written once, to where it is sent from.
#[derive(Debug)]
pub struct PackWriter {
    /// [`ROOM`] bytes for what goes in front, then the commands.
    buffer: BytesMut,
    session: SessionId,
    lowest_unacknowledged: u64,
    last: u64,
    count: u32,
    eight: bool,
    bytes_max: usize,
}

impl PackWriter {
    /// An empty pack. `bytes_max` bounds the commands' bytes, as far as a single command allows, and is itself bounded
    /// by [`PACK_BYTES_MAX`]. `buffer` may be one that was used before; it must be empty.
    pub fn new(
        mut buffer: BytesMut,
        session: SessionId,
        lowest_unacknowledged: u64,
        eight: bool,
        bytes_max: usize,
    ) -> PackWriter {
        buffer.clear();
        buffer.resize(ROOM, 0);
        let last = lowest_unacknowledged;
        PackWriter { buffer, session, lowest_unacknowledged, last, count: 0, eight, bytes_max }
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
        let bytes = checked_op_bytes(&op, self.eight)? + 1;
        let step = self.step(number)?;
        self.admit(bytes + varint_bytes(step))?;
        self.buffer.put_u8(code(&op));
        put_varint(&mut self.buffer, step);
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
        let count = operations.len();
        if count == 0 {
            return Err(PushError::Invalid);
        }
        let mut content = varint_bytes(count as u64);
        for op in operations.clone() {
            content += checked_op_bytes(&op, self.eight)? + 1;
        }
        if count > MANY_OPERATIONS_MAX {
            return Err(PushError::TooLarge);
        }
        self.begin_compound(number, MANY, count, content)?;
        for op in operations {
            self.buffer.put_u8(code(&op));
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
        self.begin_compound(number, LOAD, count, content)?;
        for (key, value) in pairs {
            put_op(&mut self.buffer, &Op::Put { key, value }, self.eight);
        }
        self.pushed(number);
        Ok(())
    }

    fn begin_compound(&mut self, number: u64, code: u8, count: usize, content: usize) -> Result<(), PushError> {
        if content > COMPOUND_BYTES_MAX {
            return Err(PushError::TooLarge);
        }
        let step = self.step(number)?;
        self.admit(1 + varint_bytes(step) + varint_bytes(content as u64) + content)?;
        self.buffer.put_u8(code);
        put_varint(&mut self.buffer, step);
        put_varint(&mut self.buffer, content as u64);
        put_varint(&mut self.buffer, count as u64);
        Ok(())
    }

    #[inline]
    fn step(&self, number: u64) -> Result<u64, PushError> {
        let step = number.checked_sub(self.last).ok_or(PushError::Order)?;
        if step == 0 && self.count > 0 { Err(PushError::Order) } else { Ok(step) }
    }

    #[inline]
    fn admit(&mut self, bytes: usize) -> Result<(), PushError> {
        // An empty pack takes any legal command, so that a small `bytes_max` cannot starve one.
        if self.count > 0 && self.bytes() + bytes > self.bytes_max.min(PACK_BYTES_MAX - ROOM) {
            return Err(PushError::Full);
        }
        self.buffer.reserve(bytes);
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
        let mut header = BytesMut::with_capacity(ROOM);
        header.put_u8(if self.eight { FLAG_EIGHT } else { 0 });
        put_varint(&mut header, u64::from(self.session.partition.0));
        put_varint(&mut header, self.session.instance);
        put_varint(&mut header, u64::from(self.session.index));
        put_varint(&mut header, u64::from(self.count));
        put_varint(&mut header, self.lowest_unacknowledged);
        let pack_bytes = header.len() + self.bytes();
        let mut front = BytesMut::with_capacity(ROOM);
        front.resize(HEADER_BYTES, 0);
        front[8] = Kind::Commands as u8;
        front[12..16].copy_from_slice(&stream.to_le_bytes());
        put_varint(&mut front, u64::from(partition.0));
        front.put_u8(TAG_PACK);
        put_varint(&mut front, pack_bytes as u64);
        let start = ROOM - front.len() - header.len();
        self.buffer[start..start + front.len()].copy_from_slice(&front);
        self.buffer[start + front.len()..ROOM].copy_from_slice(&header);
        end_frame(&mut self.buffer, start);
        Some(self.buffer.freeze().slice(start..))
    }
}

#[inline]
fn code(op: &Op<'_>) -> u8 {
    match op {
        Op::Put { .. } => PUT,
        Op::Insert { .. } => INSERT,
        Op::Delete { .. } => DELETE,
        Op::Cas { .. } => CAS,
        Op::Get { .. } => GET,
    }
}

/// Key, and up to two values, of an operation.
#[inline]
fn strings<'a>(op: &Op<'a>) -> (&'a [u8], [Option<&'a [u8]>; 2]) {
    match *op {
        Op::Put { key, value } | Op::Insert { key, value } => (key, [Some(value), None]),
        Op::Delete { key } | Op::Get { key } => (key, [None, None]),
        Op::Cas { key, expected, value } => (key, [Some(expected), Some(value)]),
    }
}

/// Whether the operation fits an `eight` pack: its key and its values are 8 bytes long.
#[inline]
pub fn is_eight(op: &Op<'_>) -> bool {
    let (key, values) = strings(op);
    key.len() == 8 && values.iter().flatten().all(|value| value.len() == 8)
}

/// Bytes of an operation's content, without code and number, if it is within the limits.
#[inline]
fn checked_op_bytes(op: &Op<'_>, eight: bool) -> Result<usize, PushError> {
    let (key, values) = strings(op);
    if key.len() > KEY_BYTES_MAX || values.iter().flatten().any(|value| value.len() > VALUE_BYTES_MAX) {
        return Err(PushError::TooLarge);
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

#[inline]
fn put_op(out: &mut BytesMut, op: &Op<'_>, eight: bool) {
    let (key, values) = strings(op);
    for bytes in std::iter::once(key).chain(values.into_iter().flatten()) {
        if !eight {
            put_varint(out, bytes.len() as u64);
        }
        out.put_slice(bytes);
    }
}
