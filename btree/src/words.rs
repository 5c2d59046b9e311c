//! The fast leaf: pairs whose keys and values have eight bytes each, in two arrays. Refuses every other pair.

use crate::digest::hash_words;
use crate::key::{KeyRef, Probe};
use crate::node::Summary;
use crate::search::count_below;

/// Slots of a fast leaf; one more than it keeps, for the pair that makes it split. 62 pairs and both headers are 1 KiB.
pub(crate) const WORDS_SLOTS: usize = 62;

/// Pairs in ascending order of keys.
#[derive(Clone)]
pub(crate) struct Words {
    len: u32,
    /// The sum of the pairs' hashes.
    digest: u64,
    /// Big-endian keys as integers, ascending; `u64::MAX` in slots at or above `len`.
    keys: [u64; WORDS_SLOTS],
    values: [[u8; 8]; WORDS_SLOTS],
}

impl Words {
    pub fn new() -> Self {
        Self { len: 0, digest: 0, keys: [u64::MAX; WORDS_SLOTS], values: [[0; 8]; WORDS_SLOTS] }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn keys(&self) -> &[u64] {
        &self.keys[..self.len()]
    }

    #[inline]
    pub fn values(&self) -> &[[u8; 8]] {
        &self.values[..self.len()]
    }

    pub fn key(&self, at: usize) -> KeyRef<'_> {
        KeyRef::Word(self.keys()[at].to_be_bytes())
    }

    pub fn summary(&self) -> Summary {
        Summary { len: u64::from(self.len), bytes: 16 * u64::from(self.len), digest: self.digest }
    }

    /// The place of an eight-byte key, or where it belongs.
    #[inline]
    pub fn find(&self, key: u64) -> Result<usize, usize> {
        let at = count_below(&self.keys, key);
        if self.keys().get(at) == Some(&key) { Ok(at) } else { Err(at) }
    }

    /// How many keys are below the probe, which may have any length.
    pub fn lower_bound(&self, probe: Probe<'_>) -> usize {
        let below = count_below(&self.keys, probe.head);
        // A longer key with the same head comes after the eight-byte one, a shorter one before.
        let equal_is_below = probe.key.len() > 8 && self.keys().get(below) == Some(&probe.head);
        below + usize::from(equal_is_below)
    }

    #[inline]
    pub fn insert(&mut self, at: usize, key: u64, value: [u8; 8]) -> u64 {
        let len = self.len();
        self.keys.copy_within(at..len, at + 1);
        self.keys[at] = key;
        self.values.copy_within(at..len, at + 1);
        self.values[at] = value;
        self.len += 1;
        let hash = hash_words(key, value);
        self.digest = self.digest.wrapping_add(hash);
        hash
    }

    /// Overwrites the value at `at`; returns what the digest grows by.
    #[inline]
    pub fn replace(&mut self, at: usize, value: [u8; 8]) -> u64 {
        let key = self.keys()[at];
        let old = std::mem::replace(&mut self.values[at], value);
        let growth = hash_words(key, value).wrapping_sub(hash_words(key, old));
        self.digest = self.digest.wrapping_add(growth);
        growth
    }

    /// Removes the pair at `at`; returns its value and hash.
    #[inline]
    pub fn remove(&mut self, at: usize) -> ([u8; 8], u64) {
        let len = self.len();
        let value = self.values()[at];
        let hash = hash_words(self.keys[at], value);
        self.keys.copy_within(at + 1..len, at);
        self.keys[len - 1] = u64::MAX;
        self.values.copy_within(at + 1..len, at);
        self.len -= 1;
        self.digest = self.digest.wrapping_sub(hash);
        (value, hash)
    }

    /// Cuts off everything from `at` on.
    pub fn split_off(&mut self, at: usize) -> Self {
        let len = self.len();
        let mut right = Self::new();
        right.keys[..len - at].copy_from_slice(&self.keys[at..len]);
        right.values[..len - at].copy_from_slice(&self.values[at..len]);
        right.len = (len - at) as u32;
        right.digest = right.hash_all();
        self.keys[at..].fill(u64::MAX);
        self.len = at as u32;
        self.digest = self.digest.wrapping_sub(right.digest);
        right
    }

    /// Adds all pairs of `right`, which lie above.
    pub fn append(&mut self, right: &Self) {
        let (from, to) = (self.len(), self.len() + right.len());
        self.keys[from..to].copy_from_slice(right.keys());
        self.values[from..to].copy_from_slice(right.values());
        self.len = to as u32;
        self.digest = self.digest.wrapping_add(right.digest);
    }

    /// The digest from scratch.
    pub fn hash_all(&self) -> u64 {
        let hashes = self.keys().iter().zip(self.values()).map(|(key, value)| hash_words(*key, *value));
        hashes.fold(0, u64::wrapping_add)
    }

    pub fn has_clean_slots(&self) -> bool {
        self.keys[self.len()..].iter().all(|key| *key == u64::MAX)
    }
}
