//! Keys: their first eight bytes as one integer, the comparison built on it, and ranges of keys.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::value::Key;

/// The first eight bytes, zero-padded, as a big-endian integer. `head(a) < head(b)` implies `a < b`; if both keys have
/// eight bytes, the order of the heads is the order of the keys.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(word) => u64::from_be_bytes(*word),
        None => {
            let mut word = [0; 8];
            word[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(word)
        }
    }
}

/// A key that is being looked for, with its head taken once.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    pub head: u64,
    pub key: &'a [u8],
}

impl<'a> Probe<'a> {
    #[inline]
    pub fn new(key: &'a [u8]) -> Self {
        Self { head: head(key), key }
    }

    /// Whether the head says everything about the key.
    #[inline]
    pub fn is_word(&self) -> bool {
        self.key.len() == 8
    }
}

/// What two keys have in common at their front.
pub(crate) fn common<'a>(one: &'a [u8], other: &[u8]) -> &'a [u8] {
    &one[..one.iter().zip(other).take_while(|(one, other)| one == other).count()]
}

/// What keys in their order have in common at their front.
pub(crate) fn common_of_all(keys: &[Key]) -> Key {
    keys.first().zip(keys.last()).map_or(Key::EMPTY, |(first, last)| Key::from(common(first, last)))
}

/// How `key` lies to keys that all begin with `prefix`; equal: it begins so too.
#[inline]
pub(crate) fn compare_prefix(key: &[u8], prefix: &[u8]) -> Ordering {
    key[..key.len().min(prefix.len())].cmp(prefix)
}

/// A short key above everything in a left node and not above the first key of its right neighbour. Eight bytes if
/// that is possible: such separators compare as integers.
pub(crate) fn separator(left_last: &[u8], right_first: &[u8]) -> Key {
    debug_assert!(left_last < right_first, "nodes out of order");
    let len = (common(left_last, right_first).len() + 1).max(8).min(right_first.len());
    Key::from(&right_first[..len])
}

/// A key as an iterator yields it: eight bytes by value (nodes keep them as integers), others borrowed.
#[derive(Clone, Copy)]
pub enum KeyRef<'a> {
    /// A key of exactly eight bytes.
    Word([u8; 8]),
    /// A key of any length.
    Bytes(&'a [u8]),
}

impl KeyRef<'_> {
    /// The bytes of the key.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Word(word) => word,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// An owned copy.
    #[inline]
    pub fn to_key(self) -> Key {
        match self {
            Self::Word(word) => Key::from(word),
            Self::Bytes(bytes) => Key::from(bytes),
        }
    }
}

impl Deref for KeyRef<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for KeyRef<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for KeyRef<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for KeyRef<'_> {}

impl fmt::Debug for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}

/// A half-open range of keys, `[low, high)`; no `high` means no upper end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    /// The first key of the range, if it exists.
    pub low: Key,
    /// The first key above the range; `None`: unbounded.
    pub high: Option<Key>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// `[low, high)`.
    pub fn new(low: &[u8], high: &[u8]) -> Self {
        Self { low: Key::from(low), high: Some(Key::from(high)) }
    }

    /// `[low, ..)`.
    pub fn from(low: &[u8]) -> Self {
        Self { low: Key::from(low), high: None }
    }

    /// `[low, high]`, as the papers' queries count (papers.md D11).
    pub fn inclusive(low: &[u8], high: &[u8]) -> Self {
        Self { low: Key::from(low), high: Some(Key::from([high, &[0]].concat())) }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut high = prefix.to_vec();
        while let Some(last) = high.last_mut() {
            if *last < u8::MAX {
                *last += 1;
                break;
            }
            high.pop();
        }
        Self { low: Key::from(prefix), high: (!high.is_empty()).then(|| Key::from(high)) }
    }

    /// Whether `key` lies inside.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && self.is_below_high(key)
    }

    /// Whether no key can lie inside.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.is_below_high(&self.low)
    }

    /// What lies in both; an empty range if nothing does.
    pub fn intersect(&self, other: &Self) -> Self {
        let low = (&self.low).max(&other.low).clone();
        let high = match (&self.high, &other.high) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        Self { low, high }
    }

    /// What lies here and not in `other`: below it, and above it; empty ranges where nothing does.
    pub fn minus(&self, other: &Self) -> [Self; 2] {
        let below = self.intersect(&Self { low: Key::default(), high: Some(other.low.clone()) });
        let above = match &other.high {
            Some(high) => self.intersect(&Self { low: high.clone(), high: None }),
            None => Self { low: Key::default(), high: Some(Key::default()) },
        };
        [below, above]
    }

    #[inline]
    fn is_below_high(&self, key: &[u8]) -> bool {
        self.high.as_ref().is_none_or(|high| key < high.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_another_is_what_lies_below_and_above_it() {
        let nothing = KeyRange::new(b"", b"");
        let range = KeyRange::new(b"d", b"p");
        assert_eq!(range.minus(&KeyRange::new(b"f", b"k")), [KeyRange::new(b"d", b"f"), KeyRange::new(b"k", b"p")]);
        assert_eq!(KeyRange::all().minus(&KeyRange::from(b"m")), [KeyRange::new(b"", b"m"), nothing]);
        for covers in [KeyRange::all(), KeyRange::new(b"d", b"p"), KeyRange::from(b"a")] {
            assert!(range.minus(&covers).iter().all(KeyRange::is_empty), "{covers:?}");
        }
        let [below, above] = range.minus(&KeyRange::from(b"x"));
        assert!(below == range && above.is_empty());
        let [below, above] = range.minus(&KeyRange::new(b"a", b"b"));
        assert!(below.is_empty() && above == range);
    }

    #[test]
    fn a_separator_lies_between_its_neighbours() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"abcdefghij", b"b"];
        for (i, left) in keys.iter().enumerate() {
            for right in &keys[i + 1..] {
                let middle = separator(left, right);
                assert!(*left < middle.as_slice() && middle.as_slice() <= *right, "{left:?} {middle:?} {right:?}");
            }
        }
    }

    #[test]
    fn ranges_know_what_they_hold() {
        assert!(KeyRange::inclusive(b"a", b"b").contains(b"b"));
        assert!(!KeyRange::new(b"a", b"b").contains(b"b"));
        assert!(KeyRange::prefix(b"a\xff").contains(b"a\xff\xff") && !KeyRange::prefix(b"a\xff").contains(b"b"));
        assert_eq!(KeyRange::prefix(b"\xff\xff").high, None);
        assert!(KeyRange::new(b"b", b"a").is_empty() && !KeyRange::all().is_empty());
        assert_eq!(KeyRange::new(b"a", b"c").intersect(&KeyRange::from(b"b")), KeyRange::new(b"b", b"c"));
    }
}
