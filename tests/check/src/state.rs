//! The map that a history is about, by numbers of keys and values: a set of present keys that skips absent ones 64 at a
//! time on two levels.

use super::intern::NONE;

/// One value, or nothing, per key.
#[derive(Clone, Debug)]
pub struct State {
    values: Vec<u32>,
    present: Vec<u64>,
    /// One bit per word of `present` that is not zero.
    words: Vec<u64>,
}

impl State {
    /// Nothing but `start`, for `keys` keys.
    pub fn new(keys: usize, start: &[(u32, u32)]) -> State {
        let words = keys / 64 + 1;
        let mut state = State { values: vec![NONE; keys], present: vec![0; words], words: vec![0; words / 64 + 1] };
        start.iter().for_each(|(key, value)| state.set(*key, *value));
        state
    }

    /// The value of a key; `NONE`: absent.
    #[inline]
    pub fn get(&self, key: u32) -> u32 {
        self.values[key as usize]
    }

    /// Sets the value of a key; `NONE`: removes it.
    #[inline]
    pub fn set(&mut self, key: u32, value: u32) {
        self.values[key as usize] = value;
        let (word, bit) = (key as usize / 64, 1 << (key % 64));
        if value == NONE {
            self.present[word] &= !bit;
        } else {
            self.present[word] |= bit;
        }
        if self.present[word] == 0 {
            self.words[word / 64] &= !(1 << (word % 64));
        } else {
            self.words[word / 64] |= 1 << (word % 64);
        }
    }

    /// The first present key at or after `key`; `NONE`: there is none.
    #[inline]
    pub fn next(&self, key: u32) -> u32 {
        let mut word = key as usize / 64;
        let Some(rest) = self.present.get(word).map(|bits| bits & (u64::MAX << (key % 64))) else { return NONE };
        if rest != 0 {
            return (word * 64) as u32 + rest.trailing_zeros();
        }
        word += 1;
        let mut group = word / 64;
        let mut mask = u64::MAX << (word % 64);
        while let Some(bits) = self.words.get(group).map(|bits| bits & mask) {
            if bits != 0 {
                let word = group * 64 + bits.trailing_zeros() as usize;
                return (word * 64) as u32 + self.present[word].trailing_zeros();
            }
            group += 1;
            mask = u64::MAX;
        }
        NONE
    }

    /// The pairs of `[low, high)`.
    pub fn range(&self, low: u32, high: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut key = self.next(low);
        std::iter::from_fn(move || {
            if key >= high {
                return None;
            }
            let pair = (key, self.get(key));
            key = self.next(key + 1);
            Some(pair)
        })
    }
}
