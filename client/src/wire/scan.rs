//! What every request for a range says beside its bounds.

use bytes::{BufMut, BytesMut};

use super::varint::{Reader, WireError, put_varint};

const REVERSE: u8 = 1;
const KEYS_ONLY: u8 = 2;
const COUNT: u8 = 4;

/// In which direction a range is read, what is sent of it, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// From the high end down.
    pub reverse: bool,
    /// Leaves the values out.
    pub keys_only: bool,
    /// Sends no pairs, only how many there are (limits apply).
    pub count_only: bool,
    /// Pairs at most; 0: no limit.
    pub pairs_max: u64,
    /// Bytes of keys and values at most, though at least one pair; 0: no limit.
    pub bytes_max: u64,
}

impl ScanOptions {
    /// The bits that [`ScanOptions::flags`] uses.
    pub const FLAGS: u8 = REVERSE | KEYS_ONLY | COUNT;

    /// The options that are bits: 1 reverse, 2 keys only, 4 count.
    pub fn flags(self) -> u8 {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        flag(self.reverse, REVERSE) | flag(self.keys_only, KEYS_ONLY) | flag(self.count_only, COUNT)
    }

    /// Appends the limits: `varint pairs_max, varint bytes_max`.
    pub fn put_limits(self, out: &mut BytesMut) {
        put_varint(out, self.pairs_max);
        put_varint(out, self.bytes_max);
    }

    /// Reads the limits behind these flags, of which only [`ScanOptions::FLAGS`] matter.
    ///
    /// # Errors
    /// The limits are cut off.
    pub fn read(flags: u8, reader: &mut Reader<'_>) -> Result<ScanOptions, WireError> {
        let (pairs_max, bytes_max) = (reader.varint()?, reader.varint()?);
        let is_set = |flag: u8| flags & flag != 0;
        let (reverse, keys_only, count_only) = (is_set(REVERSE), is_set(KEYS_ONLY), is_set(COUNT));
        Ok(ScanOptions { reverse, keys_only, count_only, pairs_max, bytes_max })
    }

    /// Whether so many pairs, with so many bytes of keys and values, reach a limit.
    pub fn is_reached(self, pairs: u64, bytes: u64) -> bool {
        (self.pairs_max > 0 && pairs >= self.pairs_max) || (self.bytes_max > 0 && bytes >= self.bytes_max)
    }
}

/// A bound of a range. It may be one byte longer than a key: the first key behind the longest one.
pub(super) fn put_bound(out: &mut BytesMut, bound: &[u8]) {
    put_varint(out, bound.len() as u64);
    out.put_slice(bound);
}
