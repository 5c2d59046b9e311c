//! One operation as bytes: the only file that knows the codes of operations and the order of their strings. Packs
//! (see `pack`) put code and number before it.
//!
//! ```text
//! operation  = put, insert: key value | delete, get, look: key | cas: key expected value
//!              update: key terms (see `coppice_btree::Update`) | move, move to absent: key, other key
//! key, value = varint length, bytes; with `eight` 8 bytes and no length
//! ```

use coppice_btree::{Condition, Edit, Op, Update};

use super::varint::{Reader, WireError, push_varint};
use super::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

// Codes of operations. 6, 7 and 12 are taken by `pack`; none is used twice.
pub(super) const PUT: u8 = 1;
pub(super) const INSERT: u8 = 2;
const DELETE: u8 = 3;
const CAS: u8 = 4;
const GET: u8 = 5;
// From here on only where the cluster's feature level is 2 or more.
const UPDATE: u8 = 8;
const LOOK: u8 = 9;
const MOVE: u8 = 10;
const MOVE_TO_ABSENT: u8 = 11;

/// Longest terms of an update: a longest expected value and a longest operand, and the rest.
const TERMS_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX + 32;

const _: () = assert!(coppice_btree::EDITED_BYTES_MAX == VALUE_BYTES_MAX);

/// Whether every version that speaks the protocol knows the operation.
#[inline]
pub(crate) fn is_known_everywhere(op: &Op<'_>) -> bool {
    !matches!(op, Op::Update { .. } | Op::Look { .. } | Op::Move { .. })
}

#[inline]
pub(super) fn code(op: &Op<'_>) -> u8 {
    match op {
        Op::Put { .. } => PUT,
        Op::Insert { .. } => INSERT,
        Op::Delete { .. } => DELETE,
        Op::Cas { .. } => CAS,
        Op::Get { .. } => GET,
        Op::Update { .. } => UPDATE,
        Op::Look { .. } => LOOK,
        Op::Move { absent: false, .. } => MOVE,
        Op::Move { absent: true, .. } => MOVE_TO_ABSENT,
    }
}

/// Key, and up to two values, of an operation.
#[inline]
pub(super) fn strings<'a>(op: &Op<'a>) -> (&'a [u8], [Option<&'a [u8]>; 2]) {
    match *op {
        Op::Put { key, value } | Op::Insert { key, value } => (key, [Some(value), None]),
        Op::Delete { key } | Op::Get { key } | Op::Look { key } => (key, [None, None]),
        Op::Update { key, terms } => (key, [Some(terms), None]),
        Op::Move { key, to, .. } => (key, [Some(to), None]),
        Op::Cas { key, expected, value } => (key, [Some(expected), Some(value)]),
    }
}

#[inline]
pub(super) fn put_op(out: &mut Vec<u8>, op: &Op<'_>, eight: bool) {
    let (key, values) = strings(op);
    for bytes in std::iter::once(key).chain(values.into_iter().flatten()) {
        if !eight {
            push_varint(out, bytes.len() as u64);
        }
        out.extend_from_slice(bytes);
    }
}

#[inline]
pub(super) fn read_op<'a>(reader: &mut Reader<'a>, code: u8, eight: bool) -> Result<Op<'a>, WireError> {
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
        UPDATE => read_update(reader, eight),
        LOOK => Ok(Op::Look { key: read_key(reader, eight)? }),
        MOVE | MOVE_TO_ABSENT => {
            Ok(Op::Move { key: read_key(reader, eight)?, to: read_key(reader, eight)?, absent: code == MOVE_TO_ABSENT })
        }
        _ => Err(WireError::Unknown { what: "command code", value: u64::from(code) }),
    }
}

fn read_update<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<Op<'a>, WireError> {
    let key = read_key(reader, eight)?;
    let terms = if eight { reader.array::<8>()?.as_slice() } else { reader.bytes("terms length", TERMS_BYTES_MAX)? };
    let update = Update::read(terms).ok_or(WireError::Unknown { what: "terms of an update", value: 0 })?;
    for value in values(&update) {
        let (length, max) = (value.len() as u64, VALUE_BYTES_MAX as u64);
        if length > max {
            return Err(WireError::Limit { what: "value length", value: length, max });
        }
    }
    Ok(Op::Update { key, terms })
}

/// The strings in an update that are limited as values are.
pub(super) fn values<'a>(update: &Update<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let operand = match update.edit {
        Edit::Set(value) | Edit::Append(value) | Edit::SetRange { bytes: value, .. } | Edit::AddFloat(value) => value,
        Edit::Keep | Edit::Add(_) | Edit::Remove => &[],
    };
    let expected = if let Condition::Equals(expected) = update.condition { expected } else { &[] };
    [operand, expected].into_iter()
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
pub(super) fn read_pair<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<(&'a [u8], &'a [u8]), WireError> {
    Ok((read_key(reader, eight)?, read_value(reader, eight)?))
}
