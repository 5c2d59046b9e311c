//! Packs: numbered commands of one session for one partition, in the bytes that go from the client through the leader's
//! batch, the log and the followers to the executor, untouched.
//!
//! ```text
//! pack    = u8 flags (1: eight), varint session.partition, varint session.instance, varint session.index,
//!           varint count, varint lowest_unacknowledged, count x command
//! command = u8 code, varint number - previous number (the first: - lowest_unacknowledged), content
//! content = one operation: see `op`
//!           many: varint bytes, varint count, count x (u8 code, content)
//!           guarded: varint bytes, varint count, varint guards, count x (u8 code, content); the first are the guards
//!           load: varint bytes, varint count, count x (key value), ascending
//! ```
//! With `eight` an update of 16 bytes takes 18.

use coppice_btree::Op;

pub(crate) use super::op::is_known_everywhere;
use super::op::{INSERT, PUT, read_op, read_pair};
pub(crate) use super::pack_writer::check_op;
pub use super::pack_writer::{Excess, PackWriter, PushError, is_eight};
use super::varint::{Reader, WireError};
use super::{
    COMPOUND_BYTES_MAX, MANY_OPERATIONS_MAX, OPERATION_WORK, PACK_BYTES_MAX, PACK_WORK_MAX, PartitionId, SessionId,
};

pub(super) const FLAG_EIGHT: u8 = 1;

// Codes of commands beside those of one operation. Never used twice.
pub(super) const MANY: u8 = 6;
pub(super) const LOAD: u8 = 7;
pub(super) const GUARDED: u8 = 12;

/// One command, borrowed from its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// One operation.
    Op(Op<'a>),
    /// Several operations of one partition under one number, all or none: none if one of its guards does not hold.
    Many(ManyOps<'a>),
    /// Ascending pairs, all of them new; else nothing is changed.
    Load(LoadPairs<'a>),
}

impl Command<'_> {
    /// What executing the command costs ([`PACK_WORK_MAX`]).
    #[inline]
    pub fn work(&self) -> u32 {
        match self {
            Command::Op(_) => OPERATION_WORK,
            Command::Many(many) => many.count.saturating_mul(OPERATION_WORK),
            Command::Load(load) => load.count.max(OPERATION_WORK),
        }
    }

    /// Whether every version that speaks the protocol knows the command.
    #[inline]
    fn is_known_everywhere(&self) -> bool {
        match self {
            Command::Op(op) => is_known_everywhere(op),
            Command::Many(many) => many.guards == 0 && many.iter().all(|op| is_known_everywhere(&op)),
            Command::Load(_) => true,
        }
    }

    /// Whether every key of the command is in `[low, high)`; `high` none: no upper bound.
    #[inline]
    pub fn is_within(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let within = |key: &[u8]| key >= low && high.is_none_or(|high| key < high);
        let both = |op: &Op<'_>| within(op.key()) && op.other_key().is_none_or(within);
        match self {
            Command::Op(op) => both(op),
            Command::Many(many) => many.iter().all(|op| both(&op)),
            Command::Load(load) => load.iter().all(|(key, _)| within(key)),
        }
    }
}

/// The operations of a [`Command::Many`], checked when the pack was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManyOps<'a> {
    bytes: &'a [u8],
    count: u32,
    guards: u32,
    eight: bool,
}

impl<'a> ManyOps<'a> {
    /// How many operations, guards included.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none; a decoded pack has no such command.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many of the first operations are guards. They change nothing; if one is not met, the others do not run.
    pub fn guards(&self) -> usize {
        self.guards as usize
    }

    /// The operations in order.
    #[inline]
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
    #[inline]
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
        Ok(Pack::decode_counted(bytes)?.0)
    }

    /// The same; what executing the pack costs, at most [`PACK_WORK_MAX`]; and whether every version that speaks the
    /// protocol knows all of its commands.
    pub fn decode_counted(bytes: &'a [u8]) -> Result<(Pack<'a>, u32, bool), WireError> {
        if bytes.len() > PACK_BYTES_MAX {
            return Err(limit("pack bytes", bytes.len() as u64, PACK_BYTES_MAX));
        }
        let pack = Pack::decode_header(bytes)?;
        let mut reader = Reader::new(pack.commands);
        let mut number = pack.lowest_unacknowledged;
        let (mut work, mut known) = (0_u32, true);
        for at in 0..pack.count {
            let command = read_command(&mut reader, pack.eight, at == 0, &mut number, true)?;
            work = work.saturating_add(command.work());
            known &= command.is_known_everywhere();
        }
        if work > PACK_WORK_MAX {
            return Err(limit("operations in a pack", u64::from(work / OPERATION_WORK), MANY_OPERATIONS_MAX));
        }
        reader.finish()?;
        Ok((pack, work, known))
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
        let (eight, commands) = (flags & FLAG_EIGHT != 0, reader.rest());
        if count as usize > commands.len() {
            return Err(WireError::Truncated);
        }
        Ok(Pack { session, count, lowest_unacknowledged, eight, commands })
    }

    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Bytes of the commands.
    pub fn bytes(&self) -> usize {
        self.commands.len()
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
    #[inline]
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
    if let Some(update) = read_eight(reader, eight, first, number) {
        return Ok(Command::Op(update));
    }
    let code = reader.u8()?;
    let step = reader.varint()?;
    if step == 0 && !first {
        return Err(WireError::Order("command numbers"));
    }
    *number = number_after(*number, step).ok_or(WireError::Overflow)?;
    match code {
        MANY | GUARDED => read_many(reader, eight, code == GUARDED, check).map(Command::Many),
        LOAD => read_load(reader, eight, check).map(Command::Load),
        _ => read_op(reader, code, eight).map(Command::Op),
    }
}

/// A number that another one can follow.
#[inline]
fn number_after(number: u64, step: u64) -> Option<u64> {
    number.checked_add(step).filter(|number| *number < u64::MAX)
}

/// The papers' case in one look: an update of 8 bytes and 8 bytes whose number is near. Else nothing is read.
#[inline]
fn read_eight<'a>(reader: &mut Reader<'a>, eight: bool, first: bool, number: &mut u64) -> Option<Op<'a>> {
    let record = reader.rest().first_chunk::<18>()?;
    let (code, step) = (record[0], record[1]);
    if !eight || code > INSERT || code == 0 || step >= 0x80 || (step == 0 && !first) {
        return None;
    }
    *number = number_after(*number, u64::from(step))?;
    reader.skip(18);
    let (key, value) = (&record[2..10], &record[10..]);
    Some(if code == PUT { Op::Put { key, value } } else { Op::Insert { key, value } })
}

fn read_compound<'a>(reader: &mut Reader<'a>) -> Result<(u32, &'a [u8]), WireError> {
    let mut content = Reader::new(reader.bytes("command length", COMPOUND_BYTES_MAX)?);
    let count = content.varint_u32()?;
    if count == 0 {
        return Err(WireError::Empty("operations"));
    }
    Ok((count, content.rest()))
}

fn read_many<'a>(reader: &mut Reader<'a>, eight: bool, guarded: bool, check: bool) -> Result<ManyOps<'a>, WireError> {
    let (count, mut bytes) = read_compound(reader)?;
    let mut guards = 0;
    if guarded {
        let mut content = Reader::new(bytes);
        guards = content.varint_u32()?;
        bytes = content.rest();
    }
    if check {
        if count as usize > MANY_OPERATIONS_MAX {
            return Err(limit("operations", u64::from(count), MANY_OPERATIONS_MAX));
        }
        // It would be taken for a command that every version knows, and old nodes do not know its code.
        if guarded && guards == 0 {
            return Err(WireError::Empty("guards"));
        }
        if guards > count {
            return Err(limit("guards", u64::from(guards), count as usize));
        }
        let mut content = Reader::new(bytes);
        for at in 0..count {
            let code = content.u8()?;
            let op = read_op(&mut content, code, eight)?;
            if at < guards && !is_guard(&op) {
                return Err(WireError::Unknown { what: "guard", value: u64::from(code) });
            }
        }
        content.finish()?;
    }
    Ok(ManyOps { bytes, count, guards, eight })
}

/// Whether the operation says whether a condition holds, and does nothing else.
pub(super) fn is_guard(op: &Op<'_>) -> bool {
    matches!(op, Op::Update { .. }) && op.is_read()
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
