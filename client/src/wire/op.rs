//! One operation as bytes: the only file that knows the codes of operations and the order of their strings. Packs
//! (see `pack`) put code and number before it.
//!
//! ```text
//! operation  = put, insert: key value | delete, get: key | cas: key expected value
//! key, value = varint length, bytes; with `eight` 8 bytes and no length
//! ```

use coppice_btree::Op;

use super::varint::{Reader, WireError, push_varint};
use super::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

// Codes of operations. 6 and 7 are taken by `pack`; none is used twice.
pub(super) const PUT: u8 = 1;
pub(super) const INSERT: u8 = 2;
const DELETE: u8 = 3;
const CAS: u8 = 4;
const GET: u8 = 5;

#[inline]
pub(super) fn code(op: &Op<'_>) -> u8 {
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
pub(super) fn strings<'a>(op: &Op<'a>) -> (&'a [u8], [Option<&'a [u8]>; 2]) {
    match *op {
        Op::Put { key, value } | Op::Insert { key, value } => (key, [Some(value), None]),
        Op::Delete { key } | Op::Get { key } => (key, [None, None]),
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
pub(super) fn read_pair<'a>(reader: &mut Reader<'a>, eight: bool) -> Result<(&'a [u8], &'a [u8]), WireError> {
    Ok((read_key(reader, eight)?, read_value(reader, eight)?))
}
