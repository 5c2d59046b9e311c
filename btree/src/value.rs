//! Owned byte strings of 16 bytes: up to 15 bytes stay inside, longer ones are shared.
//!
//! Every previous value of an update becomes one of these, so making one from eight bytes must cost no allocation
//! (the papers' case). Knows nothing of trees.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An owned byte string, immutable, cheap to clone: inline up to [`Value::INLINE_BYTES_MAX`] bytes, else shared.
///
/// Order, equality and hash are those of its bytes.
#[derive(Clone)]
pub struct Value(Repr);

/// An owned key. Keys and values are held in the same way.
pub type Key = Value;

// Shared is an `Arc` of a box, not of a slice: a thin pointer leaves room for the length's niche, so that `Value` and
// `Option<Value>` are 16 bytes each. Long values pay one more allocation for it.
#[derive(Clone)]
enum Repr {
    Inline { len: InlineLen, bytes: [u8; 15] },
    Shared(Arc<Box<[u8]>>),
}

/// A length from 0 to 15. An enum, so that the compiler keeps the variant of `Repr` in its unused bit patterns.
#[derive(Clone, Copy)]
#[repr(u8)]
#[rustfmt::skip]
enum InlineLen { L0, L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11, L12, L13, L14, L15 }

impl InlineLen {
    #[rustfmt::skip]
    const ALL: [Self; 16] = [
        Self::L0, Self::L1, Self::L2, Self::L3, Self::L4, Self::L5, Self::L6, Self::L7,
        Self::L8, Self::L9, Self::L10, Self::L11, Self::L12, Self::L13, Self::L14, Self::L15,
    ];
}

const _: () = assert!(size_of::<Option<Value>>() == 16);

impl Value {
    /// The longest byte string that needs no allocation.
    pub const INLINE_BYTES_MAX: usize = 15;

    /// The empty byte string.
    pub const EMPTY: Self = Self(Repr::Inline { len: InlineLen::L0, bytes: [0; 15] });

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..*len as usize],
            Repr::Shared(shared) => shared,
        }
    }

    /// The bytes as one word, if there are exactly eight.
    #[inline]
    pub(crate) fn as_word(&self) -> Option<[u8; 8]> {
        self.as_slice().try_into().ok()
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    #[inline]
    fn from(array: [u8; N]) -> Self {
        Self::from(array.as_slice())
    }
}

impl From<&[u8]> for Value {
    #[inline]
    fn from(slice: &[u8]) -> Self {
        if let Ok(word) = <[u8; 8]>::try_from(slice) {
            let mut bytes = [0; 15];
            bytes[..8].copy_from_slice(&word);
            return Self(Repr::Inline { len: InlineLen::L8, bytes });
        }
        match InlineLen::ALL.get(slice.len()) {
            Some(&len) => {
                let mut bytes = [0; 15];
                bytes[..slice.len()].copy_from_slice(slice);
                Self(Repr::Inline { len, bytes })
            }
            None => Self(Repr::Shared(Arc::new(slice.into()))),
        }
    }
}

impl From<Vec<u8>> for Value {
    fn from(vec: Vec<u8>) -> Self {
        if vec.len() <= Self::INLINE_BYTES_MAX {
            return Self::from(vec.as_slice());
        }
        Self(Repr::Shared(Arc::new(vec.into_boxed_slice())))
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(array: &[u8; N]) -> Self {
        Self::from(array.as_slice())
    }
}

impl From<&Vec<u8>> for Value {
    fn from(vec: &Vec<u8>) -> Self {
        Self::from(vec.as_slice())
    }
}

impl From<Box<[u8]>> for Value {
    fn from(boxed: Box<[u8]>) -> Self {
        Self::from(Vec::from(boxed))
    }
}

impl From<Cow<'_, [u8]>> for Value {
    fn from(cow: Cow<'_, [u8]>) -> Self {
        match cow {
            Cow::Borrowed(slice) => Self::from(slice),
            Cow::Owned(vec) => Self::from(vec),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::from(Vec::from(bytes))
    }
}

impl From<&Bytes> for Value {
    fn from(bytes: &Bytes) -> Self {
        Self::from(&bytes[..])
    }
}

impl From<&Value> for Value {
    fn from(value: &Value) -> Self {
        value.clone()
    }
}

impl From<&Value> for Bytes {
    #[inline]
    fn from(value: &Value) -> Self {
        Self::copy_from_slice(value)
    }
}

impl From<Value> for Bytes {
    /// A shared value stays shared: nothing is copied.
    fn from(value: Value) -> Self {
        match &value.0 {
            Repr::Inline { .. } => Self::from(&value),
            Repr::Shared(_) => Self::from_owner(value),
        }
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.to_vec()
    }
}

impl Default for Value {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Value {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Value {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Value {}

impl PartialEq<[u8]> for Value {
    #[inline]
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice() == other
    }
}

impl PartialEq<&[u8]> for Value {
    #[inline]
    fn eq(&self, other: &&[u8]) -> bool {
        self.as_slice() == *other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value {
    fn eq(&self, other: &[u8; N]) -> bool {
        self.as_slice() == other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.as_slice() == *other
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        self.as_slice() == other.as_bytes()
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.as_slice() == other.as_bytes()
    }
}

impl PartialOrd for Value {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(Value::from(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(Value::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_as_it_went_in() {
        for len in 0..40_u8 {
            let bytes: Vec<u8> = (0..len).collect();
            assert_eq!(Value::from(bytes.as_slice()).as_slice(), bytes);
            assert_eq!(Value::from(bytes.clone()).clone().as_slice(), bytes);
        }
        assert_eq!(size_of::<Value>(), 16);
    }

    #[test]
    fn whatever_holds_bytes_becomes_one_and_equals_it() {
        for text in ["", "red", "8 bytes!", "a long string, a shared one"] {
            let bytes = text.as_bytes();
            let boxed: Box<[u8]> = bytes.into();
            let values: [Value; 9] = [
                text.into(),
                text.to_owned().into(),
                (&text.to_owned()).into(),
                bytes.to_vec().into(),
                (&bytes.to_vec()).into(),
                boxed.into(),
                Cow::Borrowed(bytes).into(),
                Bytes::copy_from_slice(bytes).into(),
                (&Bytes::copy_from_slice(bytes)).into(),
            ];
            for value in values {
                assert!(value == text && value == *text && value == bytes && value == *bytes);
                assert_eq!(Value::from(&value), value);
                assert_eq!(Bytes::from(value.clone()), bytes);
                assert_eq!(Vec::from(value), bytes);
            }
        }
        let arrays = (Value::from([1; 8]), Value::from([1, 2]), Value::from(b"abc"));
        assert!(arrays.0 == [1; 8] && arrays.1 == [1, 2] && arrays.2 == b"abc");
    }

    #[test]
    fn order_is_that_of_the_bytes() {
        let values = ["a", "ab", "a long string, a shared one", "b"].map(Value::from);
        assert!(values.is_sorted_by(|a, b| (a < b) == (a.as_slice() < b.as_slice())));
        assert!(values[0] < values[1] && values[2] < values[3]);
    }
}
