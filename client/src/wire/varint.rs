//! Reading bytes that nobody vouches for: a cursor whose every step is checked, and LEB128 integers.

use bytes::{BufMut, BytesMut};

/// Why bytes are not a message. Says what was wrong, never repeats the bytes (no key or value in logs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the message does.
    #[error("ends too early")]
    Truncated,
    /// Bytes are left over behind the message.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// A length or count is above its limit.
    #[error("{what} is {value}, at most {max} is allowed")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// What was found.
        value: u64,
        /// What is allowed.
        max: u64,
    },
    /// A tag, kind, code or flag that this version does not know.
    #[error("unknown {what} {value}")]
    Unknown {
        /// What kind of tag.
        what: &'static str,
        /// What was found.
        value: u64,
    },
    /// Numbers or keys that must ascend do not.
    #[error("{0} do not ascend")]
    Order(&'static str),
    /// An integer does not fit its type.
    #[error("integer overflow")]
    Overflow,
    /// A count of zero where at least one is needed.
    #[error("no {0}")]
    Empty(&'static str),
    /// A postcard body that is not what its kind says.
    #[error("not a valid {0}")]
    Control(&'static str),
}

/// Appends `value` as LEB128: 7 bits per byte, lowest first.
#[inline]
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// [`put_varint`] for a vector.
#[inline]
pub(super) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`put_varint`] appends for `value`: 1 to 10.
#[inline]
pub fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// A cursor over foreign bytes. Every step either stays inside or is an error; nothing is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// What was not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Passes over `count` bytes of [`Reader::rest`], or to the end.
    #[inline]
    pub fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or(&[]);
    }

    /// The next byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, WireError> {
        let (&byte, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(array)
    }

    /// A little-endian integer of 2 bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    /// A little-endian integer of 4 bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    /// A little-endian integer of 8 bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    /// A LEB128 integer.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, WireError> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.varint_long(),
        }
    }

    fn varint_long(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(WireError::Overflow);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError::Overflow)
    }

    /// A LEB128 integer of at most 32 bits.
    #[inline]
    pub fn varint_u32(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.varint()?).map_err(|_| WireError::Overflow)
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A LEB128 length of at most `max`, then so many bytes.
    #[inline]
    pub fn bytes(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let value = self.varint()?;
        if value > max as u64 {
            return Err(WireError::Limit { what, value, max: max as u64 });
        }
        self.take(value as usize)
    }

    /// Nothing may be left.
    #[inline]
    pub fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.rest.len())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_integer_comes_back_in_the_announced_length(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = BytesMut::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_bytes(value));
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert!(reader.is_empty());
            let mut cut = Reader::new(&out[..out.len() - 1]);
            prop_assert_eq!(cut.varint(), Err(WireError::Truncated));
        }
    }

    #[test]
    fn an_integer_above_64_bits_is_refused() {
        for bytes in [[0xff; 10], [0x80; 10]] {
            assert_eq!(Reader::new(&bytes).varint(), Err(WireError::Overflow));
        }
        let mut largest = [0xff; 10];
        largest[9] = 1;
        assert_eq!(Reader::new(&largest).varint(), Ok(u64::MAX));
        largest[9] = 2;
        assert_eq!(Reader::new(&largest).varint(), Err(WireError::Overflow));
    }
}
