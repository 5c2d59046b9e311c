//! The fixed-size leaf: pairs whose keys and values have eight bytes each, in blocks that keep gaps. Refuses every
//! other pair.
//!
//! A new pair moves only what is behind it in its block: one line of keys, one of values. Around a block that is full,
//! one pair of each goes over to the next block, up to the nearest gap.

use crate::digest::hash_words;
use crate::key::{KeyRef, Probe};
use crate::node::{Owners, Summary, prefetch};
use crate::search::{BLOCK, block_of, count_of_block};

/// Blocks of a fixed-size leaf.
pub(crate) const BLOCKS: usize = 7;

/// Slots of a fixed-size leaf; one more than it keeps, for the pair that makes it split. A leaf is just below 1 KiB.
pub(crate) const FIXED_SLOTS: usize = BLOCKS * BLOCK;

/// Pairs in ascending order of keys, from block to block and inside each.
///
/// The order of the fields counts: what a search reads first, and what a change writes, is in the first cache line;
/// every block of keys, and of values, is a line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct FixedLeaf {
    pub(crate) owners: Owners,
    /// How many pairs each block holds, four bits each, the first block lowest.
    lens: u32,
    /// The sum of the pairs' hashes.
    digest: u64,
    /// The greatest key that each block but the last may hold; ascending. The block before has the smaller ones.
    sample: [u64; BLOCKS - 1],
    /// Big-endian keys as integers, ascending from the first slot of each block on; `u64::MAX` in unused slots.
    keys: [[u64; BLOCK]; BLOCKS],
    values: [[[u8; 8]; BLOCK]; BLOCKS],
}

/// The cache line of the first block of keys.
const KEYS_LINE: usize = 1;
/// The cache line of the first block of values.
const VALUES_LINE: usize = KEYS_LINE + BLOCKS;
const _: () = assert!(std::mem::offset_of!(FixedLeaf, keys) == 64 * KEYS_LINE);
const _: () = assert!(std::mem::offset_of!(FixedLeaf, values) == 64 * VALUES_LINE);

/// Blocks of this many pairs at least are made when a leaf is laid out anew.
const BLOCK_PAIRS_MIN: usize = BLOCK / 2;

/// The bit of each block's length that is set if the block is full.
const FULL: u32 = 0x0888_8888;

/// A place in a fixed-size leaf: that of a pair, or where one belongs, which may be behind the last pair of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub block: usize,
    pub at: usize,
}

impl Slot {
    /// The very first place.
    pub const FIRST: Self = Self { block: 0, at: 0 };
}

/// Pairs that lie together in one block.
pub(crate) type BlockOfPairs<'a> = (&'a [u64], &'a [[u8; 8]]);

impl FixedLeaf {
    pub fn new() -> Self {
        Self {
            owners: Owners::one(),
            lens: 0,
            digest: 0,
            sample: [u64::MAX; BLOCKS - 1],
            keys: [[u64::MAX; BLOCK]; BLOCKS],
            values: [[[0; 8]; BLOCK]; BLOCKS],
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        sum_of_lens(self.lens)
    }

    #[inline]
    pub fn len_of(&self, block: usize) -> usize {
        (self.lens >> (4 * block)) as usize & 15
    }

    /// The pairs of block `at`, perhaps none; `None` behind the last block.
    #[inline]
    pub fn block(&self, at: usize) -> Option<BlockOfPairs<'_>> {
        let (keys, values) = (self.keys.get(at)?, self.values.get(at)?);
        let len = self.len_of(at).min(BLOCK);
        Some((&keys[..len], &values[..len]))
    }

    /// Copies block `at` out, each key in front of its value; returns how many of the eight are pairs.
    #[inline]
    pub fn copy_block(&self, at: usize, out: &mut [[u8; 16]; BLOCK]) -> usize {
        let (keys, values) = (&self.keys[at], &self.values[at]);
        for (out, (key, value)) in out.iter_mut().zip(keys.iter().zip(values)) {
            out[..8].copy_from_slice(&key.to_be_bytes());
            out[8..].copy_from_slice(value);
        }
        self.len_of(at)
    }

    /// The place behind the last pair.
    #[inline]
    pub fn end(&self) -> Slot {
        Slot { block: BLOCKS - 1, at: self.len_of(BLOCKS - 1) }
    }

    /// All pairs, block by block.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockOfPairs<'_>> {
        (0..BLOCKS).filter_map(|at| self.block(at))
    }

    /// All pairs, ascending.
    pub fn pairs(&self) -> impl DoubleEndedIterator<Item = (u64, &[u8; 8])> {
        self.blocks().flat_map(|(keys, values)| keys.iter().copied().zip(values))
    }

    /// The pair at `slot`, which is there.
    #[inline]
    pub fn value(&self, slot: Slot) -> &[u8; 8] {
        &self.values[slot.block][slot.at]
    }

    /// The key that has `rank` keys of this leaf below it.
    pub fn key(&self, rank: usize) -> Option<KeyRef<'_>> {
        self.pairs().nth(rank).map(|(key, _)| KeyRef::Word(key.to_be_bytes()))
    }

    /// The smallest key of a leaf that is not empty.
    #[inline]
    pub fn first_key(&self) -> KeyRef<'_> {
        self.key(0).expect("no leaf in a tree is empty")
    }

    /// The greatest key.
    #[inline]
    pub fn last(&self) -> Option<u64> {
        let block = self.lens.checked_ilog2()? as usize / 4;
        self.keys.get(block)?.get(self.len_of(block).checked_sub(1)?).copied()
    }

    /// The greatest key.
    #[inline]
    pub fn last_key(&self) -> Option<KeyRef<'_>> {
        self.last().map(|key| KeyRef::Word(key.to_be_bytes()))
    }

    #[inline]
    pub fn summary(&self) -> Summary {
        let len = self.len() as u64;
        Summary { len, bytes: 16 * len, digest: self.digest }
    }

    /// The place of an eight-byte key, or where it belongs.
    #[inline]
    pub fn find(&self, key: u64) -> Result<Slot, Slot> {
        self.find_in_block(block_of(&self.sample, key), key)
    }

    #[inline]
    fn find_in_block(&self, block: usize, key: u64) -> Result<Slot, Slot> {
        let keys = &self.keys[block];
        let at = count_of_block(keys, key);
        let slot = Slot { block, at };
        if keys.get(at) == Some(&key) && at < self.len_of(block) { Ok(slot) } else { Err(slot) }
    }

    /// The value of an eight-byte key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&[u8; 8]> {
        let block = block_of(&self.sample, key);
        // The value is in a line of its own: it comes while the keys are being compared.
        prefetch(self, VALUES_LINE + block..VALUES_LINE + block + 1);
        let slot = self.find_in_block(block, key).ok()?;
        self.values.get(slot.block)?.get(slot.at)
    }

    /// Asks for the lines in which the pair of `key` is found, or will be. Waits for the first line.
    #[inline]
    pub fn prefetch_pair(&self, key: u64) {
        let block = block_of(&self.sample, key);
        prefetch(self, KEYS_LINE + block..KEYS_LINE + block + 1);
        prefetch(self, VALUES_LINE + block..VALUES_LINE + block + 1);
    }

    /// Asks for the lines that a change at `key` touches. Waits for the first line.
    #[inline]
    pub fn prefetch_change(&self, key: u64) {
        self.prefetch_pair(key);
        // In most blocks this is the block itself. No branch: a wrong prediction makes the keys that go down together
        // wait for one another.
        let block = block_of(&self.sample, key);
        let gap = self.nearest_gap(block).unwrap_or(block);
        prefetch(self, KEYS_LINE + gap..KEYS_LINE + gap + 1);
        prefetch(self, VALUES_LINE + gap..VALUES_LINE + gap + 1);
    }

    /// The first place whose key is not below the probe, which may have any length.
    #[inline]
    pub fn lower_bound(&self, probe: Probe<'_>) -> Slot {
        match self.find(probe.head) {
            // A longer key with the same head comes after the eight-byte one, a shorter one before.
            Ok(slot) if probe.key.len() > 8 => Slot { at: slot.at + 1, ..slot },
            Ok(slot) | Err(slot) => slot,
        }
    }

    /// How many pairs are before `slot`.
    #[inline]
    pub fn rank(&self, slot: Slot) -> usize {
        sum_of_lens(self.lens & ((1 << (4 * slot.block)) - 1)) + slot.at
    }

    /// Adds a pair where it belongs; returns its hash.
    #[inline]
    pub fn insert(&mut self, slot: Slot, key: u64, value: [u8; 8]) -> u64 {
        let Slot { block, at } = slot;
        if self.len_of(block) < BLOCK {
            insert_in_block(&mut self.keys[block], at, key);
            insert_in_block(&mut self.values[block], at, value);
            self.lens += 1 << (4 * block);
        } else {
            self.insert_crowded(slot, key, value);
        }
        let hash = hash_words(key, value);
        self.digest = self.digest.wrapping_add(hash);
        hash
    }

    /// Adds a pair above all others.
    pub fn push(&mut self, key: u64, value: [u8; 8]) {
        let slot = self.find(key).unwrap_or_else(|slot| slot);
        self.insert(slot, key, value);
    }

    /// The nearest block to `block` that has a gap: itself, if it has one.
    #[inline]
    fn nearest_gap(&self, block: usize) -> Option<usize> {
        // A block of eight pairs is full: the highest of its four bits says so.
        let gaps = !self.lens & FULL;
        let above = gaps >> (4 * block);
        let below = gaps & ((1 << (4 * block)) - 1);
        let right = (above != 0).then(|| block + above.trailing_zeros() as usize / 4);
        let left = (below != 0).then(|| below.ilog2() as usize / 4);
        match (left, right) {
            (Some(left), Some(right)) if block - left < right - block => Some(left),
            (left, right) => right.or(left),
        }
    }

    /// Adds a pair where it belongs, to a block that is full: every block from there to the nearest gap gives one pair
    /// to the next. The digest stays.
    #[cold]
    #[inline(never)]
    fn insert_crowded(&mut self, slot: Slot, key: u64, value: [u8; 8]) {
        let Slot { block, at } = slot;
        let gap = self.nearest_gap(block).expect("a leaf of as many pairs as slots has been split");
        // What waits for a place, and its place in the block at hand.
        let (mut pair, mut at) = ((key, value), at);
        if gap > block {
            for block in block..gap {
                if at < BLOCK {
                    let last = (self.keys[block][BLOCK - 1], self.values[block][BLOCK - 1]);
                    insert_in_block(&mut self.keys[block], at, pair.0);
                    insert_in_block(&mut self.values[block], at, pair.1);
                    pair = last;
                }
                self.sample[block] = self.keys[block][BLOCK - 1];
                at = 0;
            }
        } else {
            for block in (gap + 1..=block).rev() {
                if at > 0 {
                    let first = (self.keys[block][0], self.values[block][0]);
                    insert_below(&mut self.keys[block], at, pair.0);
                    insert_below(&mut self.values[block], at, pair.1);
                    pair = first;
                }
                self.sample[block - 1] = pair.0;
                at = BLOCK;
            }
            at = self.len_of(gap);
        }
        insert_in_block(&mut self.keys[gap], at, pair.0);
        insert_in_block(&mut self.values[gap], at, pair.1);
        self.lens += 1 << (4 * gap);
    }

    /// Lays the given pairs out, in place of what the leaf held. The digest stays.
    fn spread(&mut self, mut keys: &[u64], mut values: &[[u8; 8]]) {
        let used = keys.len().div_ceil(BLOCK_PAIRS_MIN).clamp(1, BLOCKS);
        let (len, longer) = (keys.len() / used, keys.len() % used);
        self.lens = 0;
        for block in 0..BLOCKS {
            let len = if block < used { len + usize::from(block < longer) } else { 0 };
            let (head, rest) = keys.split_at(len);
            self.keys[block] = [u64::MAX; BLOCK];
            self.keys[block][..len].copy_from_slice(head);
            keys = rest;
            let (head_values, rest) = values.split_at(len);
            self.values[block][..len].copy_from_slice(head_values);
            values = rest;
            self.lens |= (len as u32) << (4 * block);
            if let Some(sample) = self.sample.get_mut(block) {
                // The last block in use takes every greater key; full, it goes on to the one behind it.
                *sample = if block + 1 < used { head[len - 1] } else { u64::MAX };
            }
        }
    }

    /// Leaves a gap in every block, if there are enough.
    pub fn spread_all(&mut self) {
        let pairs = UnpackedPairs::of(self);
        self.spread(pairs.keys(), pairs.values());
    }

    /// Overwrites the value at `slot`; returns what the digest grows by.
    #[inline]
    pub fn replace(&mut self, slot: Slot, value: [u8; 8]) -> u64 {
        let key = self.keys[slot.block][slot.at];
        let old = std::mem::replace(&mut self.values[slot.block][slot.at], value);
        let growth = hash_words(key, value).wrapping_sub(hash_words(key, old));
        self.digest = self.digest.wrapping_add(growth);
        growth
    }

    /// Removes the pair at `slot`; returns its value and hash.
    #[inline]
    pub fn remove(&mut self, slot: Slot) -> ([u8; 8], u64) {
        let Slot { block, at } = slot;
        let (key, value) = (self.keys[block][at], self.values[block][at]);
        remove_in_block(&mut self.keys[block], at, u64::MAX);
        remove_in_block(&mut self.values[block], at, [0; 8]);
        self.lens -= 1 << (4 * block);
        let hash = hash_words(key, value);
        self.digest = self.digest.wrapping_sub(hash);
        (value, hash)
    }

    /// Cuts off everything from rank `at` on.
    pub fn split_off(&mut self, at: usize) -> Self {
        let pairs = UnpackedPairs::of(self);
        let mut right = Self::new();
        right.spread(&pairs.keys()[at..], &pairs.values()[at..]);
        right.digest = right.hash_all();
        self.spread(&pairs.keys()[..at], &pairs.values()[..at]);
        self.digest = self.digest.wrapping_sub(right.digest);
        right
    }

    /// Adds all pairs of `right`, which lie above.
    pub fn append(&mut self, right: &Self) {
        let mut pairs = UnpackedPairs::of(self);
        pairs.add(right);
        self.spread(pairs.keys(), pairs.values());
        self.digest = self.digest.wrapping_add(right.digest);
    }

    /// The digest from scratch.
    pub fn hash_all(&self) -> u64 {
        self.pairs().map(|(key, value)| hash_words(key, *value)).fold(0, u64::wrapping_add)
    }

    /// The invariants of the layout; says which one is broken.
    pub fn check_slots(&self) -> Result<(), &'static str> {
        if !self.sample.is_sorted() {
            return Err("the bounds of the blocks do not ascend");
        }
        let mut low = None;
        for (block, keys) in self.keys.iter().enumerate() {
            let high = self.sample.get(block).copied().unwrap_or(u64::MAX);
            let Some((used, unused)) = keys.split_at_checked(self.len_of(block)) else {
                return Err("a block says it holds more than it can");
            };
            if unused.iter().any(|key| *key != u64::MAX) {
                return Err("an unused key slot is not at the maximum");
            }
            if used.iter().any(|key| low.is_some_and(|low| *key <= low) || *key > high) {
                return Err("a key is in another's block");
            }
            low = Some(high);
        }
        Ok(())
    }
}

/// The sum of the lengths of some blocks.
#[inline]
fn sum_of_lens(lens: u32) -> usize {
    let pairs = (lens & 0x0f0f_0f0f) + (lens >> 4 & 0x0f0f_0f0f);
    (pairs.wrapping_mul(0x0101_0101) >> 24) as usize
}

/// Puts `item` at `at`; what was there and behind goes one slot up. No branch and no call: which slots move cannot be
/// predicted, and eight are few.
#[inline]
fn insert_in_block<T: Copy>(block: &mut [T; BLOCK], at: usize, item: T) {
    let old = *block;
    for i in 1..BLOCK {
        block[i] = if i > at { old[i - 1] } else { old[i] };
    }
    block[at] = item;
}

/// Puts `item` right before `at`, which is above 0; what was there and before goes one slot down.
#[inline]
fn insert_below<T: Copy>(block: &mut [T; BLOCK], at: usize, item: T) {
    let old = *block;
    for i in 0..BLOCK - 1 {
        block[i] = if i < at { old[i + 1] } else { old[i] };
    }
    block[at - 1] = item;
}

/// Takes out what is at `at`; what is behind goes one slot down.
#[inline]
fn remove_in_block<T: Copy>(block: &mut [T; BLOCK], at: usize, unused: T) {
    let old = *block;
    for i in 0..BLOCK - 1 {
        block[i] = if i >= at { old[i + 1] } else { old[i] };
    }
    block[BLOCK - 1] = unused;
}

/// Pairs on their way into another layout.
struct UnpackedPairs {
    len: usize,
    keys: [u64; FIXED_SLOTS],
    values: [[u8; 8]; FIXED_SLOTS],
}

impl UnpackedPairs {
    fn of(leaf: &FixedLeaf) -> Self {
        let mut pairs = Self { len: 0, keys: [0; FIXED_SLOTS], values: [[0; 8]; FIXED_SLOTS] };
        pairs.add(leaf);
        pairs
    }

    fn add(&mut self, leaf: &FixedLeaf) {
        for (keys, values) in leaf.blocks() {
            let to = self.len + keys.len();
            self.keys[self.len..to].copy_from_slice(keys);
            self.values[self.len..to].copy_from_slice(values);
            self.len = to;
        }
    }

    fn keys(&self) -> &[u64] {
        &self.keys[..self.len]
    }

    fn values(&self) -> &[[u8; 8]] {
        &self.values[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn assert_equal(leaf: &FixedLeaf, model: &BTreeMap<u64, [u8; 8]>) {
        leaf.check_slots().unwrap();
        assert!(leaf.pairs().eq(model.iter().map(|(key, value)| (*key, value))), "{leaf:?}, expected {model:?}");
        assert_eq!((leaf.len(), leaf.digest), (model.len(), leaf.hash_all()));
        for (rank, (key, value)) in model.iter().enumerate() {
            assert_eq!(leaf.get(*key), Some(value));
            assert_eq!(leaf.find(*key).map(|slot| leaf.rank(slot)), Ok(rank));
        }
    }

    /// Small numbers that look random: splitmix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
    }

    #[test]
    fn full_blocks_find_a_gap_on_either_side_until_every_slot_is_taken() {
        for seed in 0..200 {
            let (mut leaf, mut model, mut state) = (FixedLeaf::new(), BTreeMap::new(), seed);
            // A third of the runs adds at one end, where the same block is always full.
            let next = |state: &mut u64, len: u64| match seed % 6 {
                0 => len,
                1 => u64::MAX - len,
                _ => random(state) % 100 + u64::from(random(state).is_multiple_of(50)) * (u64::MAX - 99),
            };
            let mut turns = 0;
            while leaf.len() < FIXED_SLOTS {
                let (key, value) = (next(&mut state, model.len() as u64), random(&mut state).to_be_bytes());
                turns += 1;
                match leaf.find(key) {
                    Ok(slot) if turns % 3 == 0 => {
                        assert_eq!(Some(leaf.remove(slot).0), model.remove(&key));
                    }
                    Ok(slot) => {
                        leaf.replace(slot, value);
                        model.insert(key, value);
                    }
                    Err(slot) => {
                        assert_eq!(leaf.rank(slot), model.range(..key).count());
                        leaf.insert(slot, key, value);
                        model.insert(key, value);
                    }
                }
                assert_equal(&leaf, &model);
            }
        }
    }

    #[test]
    fn a_leaf_that_is_cut_and_put_together_keeps_its_pairs() {
        for count in 1..=FIXED_SLOTS as u64 {
            for cut in 0..=count {
                let mut left = FixedLeaf::new();
                (0..count).for_each(|key| left.push(key, key.to_be_bytes()));
                let whole: BTreeMap<_, _> = (0..count).map(|key| (key, key.to_be_bytes())).collect();
                assert_equal(&left, &whole);
                let right = left.split_off(cut as usize);
                assert_equal(&left, &whole.range(..cut).map(|(key, value)| (*key, *value)).collect());
                assert_equal(&right, &whole.range(cut..).map(|(key, value)| (*key, *value)).collect());
                left.append(&right);
                assert_equal(&left, &whole);
            }
        }
    }

    #[test]
    fn a_full_leaf_that_is_spread_has_a_gap_in_every_block() {
        let mut leaf = FixedLeaf::new();
        (0..49).for_each(|key| leaf.push(key, [0; 8]));
        leaf.spread_all();
        assert!(leaf.blocks().all(|(keys, _)| keys.len() == BLOCK - 1));
    }
}
