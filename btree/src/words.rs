//! The fast leaf: pairs whose keys and values have eight bytes each, in two arrays. Refuses every other pair.

use crate::digest::hash_words;
use crate::key::{KeyRef, Probe};
use crate::node::Summary;
use crate::search::{BLOCK, block_of, count_below, count_in_block, take_sample};
use crate::shared::{Owners, prefetch};

/// Slots of a fast leaf; one more than it keeps, for the pair that makes it split. A leaf is just below 1 KiB.
pub(crate) const WORDS_SLOTS: usize = 56;

/// Pairs in ascending order of keys.
///
/// The order of the fields counts: what a search reads first, and what a change writes, is in the first cache line;
/// every block of keys, and of values, is a line.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Words {
    pub(crate) owners: Owners,
    len: u32,
    /// The sum of the pairs' hashes.
    digest: u64,
    sample: [u64; SAMPLES],
    /// Big-endian keys as integers, ascending; `u64::MAX` in slots at or above `len`.
    keys: [u64; WORDS_SLOTS],
    values: [[u8; 8]; WORDS_SLOTS],
}

const SAMPLES: usize = WORDS_SLOTS / BLOCK - 1;
/// The cache line of the first block of keys.
const KEYS_LINE: usize = 1;
/// The cache line of the first block of values.
const VALUES_LINE: usize = KEYS_LINE + WORDS_SLOTS / BLOCK;
const _: () = assert!(std::mem::offset_of!(Words, keys) == 64 * KEYS_LINE);
const _: () = assert!(std::mem::offset_of!(Words, values) == 64 * VALUES_LINE);

impl Words {
    pub fn new() -> Self {
        Self {
            owners: Owners::one(),
            len: 0,
            digest: 0,
            sample: [u64::MAX; SAMPLES],
            keys: [u64::MAX; WORDS_SLOTS],
            values: [[0; 8]; WORDS_SLOTS],
        }
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
        self.find_in_block(block_of(&self.sample, key), key)
    }

    #[inline]
    fn find_in_block(&self, block: usize, key: u64) -> Result<usize, usize> {
        let at = count_in_block(&self.keys, block, key);
        if self.keys().get(at) == Some(&key) { Ok(at) } else { Err(at) }
    }

    /// The value of an eight-byte key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&[u8; 8]> {
        let block = block_of(&self.sample, key);
        // The value is in a line of its own: it comes while the keys are being compared.
        prefetch(self, VALUES_LINE + block..VALUES_LINE + block + 1);
        self.values.get(self.find_in_block(block, key).ok()?)
    }

    /// Asks for the lines in which the pair of `key` is found. Waits for the first line.
    #[inline]
    pub fn prefetch_pair(&self, key: u64) {
        let block = block_of(&self.sample, key);
        prefetch(self, KEYS_LINE + block..KEYS_LINE + block + 1);
        prefetch(self, VALUES_LINE + block..VALUES_LINE + block + 1);
    }

    /// Asks for the lines that a change at `key` touches: a new pair moves the ones behind it. Waits for the first one.
    #[inline]
    pub fn prefetch_change(&self, key: u64) {
        let (block, last) = (block_of(&self.sample, key), self.len() / BLOCK);
        // Some lines are asked for more than once. A loop over just the right ones would end at a place that nobody can
        // predict, and a wrong prediction makes the keys that go down together wait for one another.
        for line in 0..WORDS_SLOTS / BLOCK {
            let line = line.max(block).min(last);
            prefetch(self, KEYS_LINE + line..KEYS_LINE + line + 1);
            prefetch(self, VALUES_LINE + line..VALUES_LINE + line + 1);
        }
    }

    /// How many keys are below the probe, which may have any length.
    pub fn lower_bound(&self, probe: Probe<'_>) -> usize {
        let below = count_below(&self.sample, &self.keys, probe.head);
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
        take_sample(&mut self.sample, &self.keys, at, len);
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
        take_sample(&mut self.sample, &self.keys, at, len);
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
        take_sample(&mut right.sample, &right.keys, 0, WORDS_SLOTS);
        right.digest = right.hash_all();
        self.keys[at..].fill(u64::MAX);
        take_sample(&mut self.sample, &self.keys, at, WORDS_SLOTS);
        self.len = at as u32;
        self.digest = self.digest.wrapping_sub(right.digest);
        right
    }

    /// Adds all pairs of `right`, which lie above.
    pub fn append(&mut self, right: &Self) {
        let (from, to) = (self.len(), self.len() + right.len());
        self.keys[from..to].copy_from_slice(right.keys());
        take_sample(&mut self.sample, &self.keys, from, to);
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
        let mut sample = [u64::MAX; SAMPLES];
        take_sample(&mut sample, &self.keys, 0, WORDS_SLOTS);
        self.sample == sample && self.keys[self.len()..].iter().all(|key| *key == u64::MAX)
    }
}
