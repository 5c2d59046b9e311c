//! The rolling content digest: a sum of one hash per pair, so it depends on what a tree holds and on nothing else.
//!
//! The function is part of what nodes compare with each other and what backups record: it never changes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tells whether two trees hold the same pairs, whatever their histories and layouts. Digests of disjoint trees add
/// up to the digest of their union ([`Digest::and`]). It guards against bugs, not against an adversary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Digest(pub u64);

impl Digest {
    /// The digest of two disjoint sets of pairs together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// The digest of one pair.
    pub fn of_pair(key: &[u8], value: &[u8]) -> Self {
        Self(hash_pair(key, value))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

// Odd constants with about as many ones as zeros (wyhash's).
const C1: u64 = 0xa076_1d64_78bd_642f;
const C2: u64 = 0xe703_7ed1_a0b4_28db;
const C3: u64 = 0x8ebc_6af0_9c88_c6e3;
const C4: u64 = 0x5899_65cc_7537_4cc3;

/// Both halves of the 128-bit product, folded.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// The hash of an eight-byte key (as the integer that nodes hold) with an eight-byte value.
#[inline]
pub(crate) fn hash_words(key: u64, value: [u8; 8]) -> u64 {
    let value = u64::from_le_bytes(value);
    // The key's own hash is mixed with the value before the second product, so pairs that trade values differ.
    let mixed = fold(fold(key ^ C1, C2) ^ value ^ C3, C4);
    // A product by an odd constant is a bijection: what `fold` spread unevenly does not stay in the low bits.
    (mixed ^ (mixed >> 32)).wrapping_mul(C1)
}

/// The hash of any pair. For eight-byte keys with eight-byte values it equals [`hash_words`].
pub(crate) fn hash_pair(key: &[u8], value: &[u8]) -> u64 {
    if let (Ok(key), Ok(value)) = (<[u8; 8]>::try_from(key), <[u8; 8]>::try_from(value)) {
        return hash_words(u64::from_be_bytes(key), value);
    }
    let state = hash_bytes(C3 ^ key.len() as u64, key);
    let state = hash_bytes(state ^ (value.len() as u64).rotate_left(32), value);
    (state ^ (state >> 32)).wrapping_mul(C1)
}

fn hash_bytes(mut state: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word) ^ C1, C2);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(state ^ u64::from_le_bytes(last) ^ C4, C2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_pairs_have_different_digests() {
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..300_u64 {
            for value in 0..300_u64 {
                assert!(seen.insert(hash_words(key, value.to_be_bytes())));
            }
        }
        assert_ne!(hash_pair(b"a", b"bc"), hash_pair(b"ab", b"c"));
        assert_ne!(hash_pair(b"a", b""), hash_pair(b"", b"a"));
        assert_ne!(hash_pair(b"a", b"\0"), hash_pair(b"a", b"\0\0"));
    }

    #[test]
    fn pairs_that_trade_values_change_the_sum() {
        let of = |a: u64, b: u64| Digest::of_pair(&a.to_be_bytes(), &b.to_be_bytes());
        assert_ne!(of(1, 2).and(of(3, 4)), of(1, 4).and(of(3, 2)));
    }

    #[test]
    fn the_function_has_not_changed() {
        assert_eq!(Digest::of_pair(b"8 bytes.", b"8 bytes!").to_string(), "ff3583cba9a88c30");
        assert_eq!(Digest::of_pair(b"key", b"a longer value").to_string(), "cee9fadc7bdc1096");
    }
}
