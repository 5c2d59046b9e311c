//! Byte strings become small numbers: each different string once. An own table, since a history of 10^6 operations
//! asks 10^7 times.

/// No string: absent, or unbounded.
pub const NONE: u32 = u32::MAX;

/// A string that is not said.
pub const UNSAID: u32 = u32::MAX - 1;

/// Strings by number and numbers by string. Numbers are given in order of first sight, from 0.
#[derive(Clone, Debug, Default)]
pub struct Interner {
    bytes: Vec<u8>,
    /// End of each string in `bytes`.
    ends: Vec<usize>,
    /// Open addressing, a power of two, at most half full: number, and above it the upper half of the hash, so that
    /// most unequal strings are told apart without looking at them. [`FREE`] = free.
    slots: Vec<u64>,
}

const FREE: u64 = u64::MAX;

/// A fast hash, for tables in memory only: equal on every run, easily flooded by whoever wants to.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = mix(state, u64::from_le_bytes(word));
    }
    let mut word = [0; 8];
    let rest = chunks.remainder();
    word[..rest.len()].copy_from_slice(rest);
    mix(state, u64::from_le_bytes(word))
}

/// Mixes one word into a hash.
#[inline]
pub fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(0xd6e8_feb8_6659_fd93_u64);
    (product as u64) ^ ((product >> 64) as u64) ^ 0x2545_f491_4f6c_dd1d
}

impl Interner {
    /// How many strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string of a number that this table gave.
    #[inline]
    pub fn get(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[start..self.ends[number]]
    }

    /// The number of `bytes`, a new one if they are new.
    #[inline]
    pub fn intern(&mut self, bytes: &[u8]) -> u32 {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = hash(bytes);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot] != FREE {
            let number = self.slots[slot] as u32;
            if self.slots[slot] >> 32 == hash >> 32 && self.get(number) == bytes {
                return number;
            }
            slot = (slot + 1) & mask;
        }
        let number = u32::try_from(self.ends.len()).expect("fewer than 2^32 different strings");
        self.slots[slot] = hash & !u64::from(u32::MAX) | u64::from(number);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        number
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(64);
        self.slots = vec![FREE; size];
        for number in 0..self.ends.len() as u32 {
            let hash = hash(self.get(number));
            let mut slot = hash as usize & (size - 1);
            while self.slots[slot] != FREE {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = hash & !u64::from(u32::MAX) | u64::from(number);
        }
    }

    /// Renumbers so that numbers are in byte order; returns the new number of each old one.
    pub fn sort(&mut self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_unstable_by(|a, b| self.get(*a).cmp(self.get(*b)));
        let mut new = vec![0; order.len()];
        let mut sorted = Interner::default();
        for (rank, old) in order.iter().enumerate() {
            new[*old as usize] = rank as u32;
            sorted.intern(self.get(*old));
        }
        *self = sorted;
        new
    }
}

/// Hashes integers fast: for maps from numbers, in memory only, whose iteration order is never looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fast(u64);

impl std::hash::Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0, hash(bytes));
    }
    fn write_u32(&mut self, word: u32) {
        self.0 = mix(self.0, u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }
    fn write_u128(&mut self, word: u128) {
        // Already random (Zobrist hashes).
        self.0 = word as u64;
    }
}

/// A map from numbers; see [`Fast`].
pub type FastMap<K, V> = std::collections::HashMap<K, V, std::hash::BuildHasherDefault<Fast>>;
/// A set of numbers; see [`Fast`].
pub type FastSet<K> = std::collections::HashSet<K, std::hash::BuildHasherDefault<Fast>>;
