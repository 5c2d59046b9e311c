//! The variable leaf: keys and values of any length. Slower than [`FixedLeaf`], which it gives way to when it can.

use std::cmp::Ordering;

use crate::digest::hash_pair;
use crate::key::{KeyRef, Probe, common, common_of_all, compare_prefix, head};
use crate::node::{FixedLeaf, Owners, Summary};
use crate::value::{Key, Value};

/// Pairs in ascending order of keys.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct VariableLeaf {
    pub(crate) owners: Owners,
    /// The sum of the pairs' hashes.
    digest: u64,
    /// The sum of the lengths of keys and values.
    bytes: u64,
    /// What all keys begin with.
    prefix: Key,
    /// The heads of `keys` behind it: most comparisons end here, also where keys have a long prefix in common.
    heads: Vec<u64>,
    keys: Vec<Key>,
    values: Vec<Value>,
}

impl VariableLeaf {
    pub fn new() -> Self {
        let (heads, keys, values) = (Vec::new(), Vec::new(), Vec::new());
        Self { owners: Owners::one(), digest: 0, bytes: 0, prefix: Key::EMPTY, heads, keys, values }
    }

    pub fn from_fixed(leaf: &FixedLeaf) -> Self {
        let summary = leaf.summary();
        Self {
            owners: Owners::one(),
            digest: summary.digest,
            bytes: summary.bytes,
            prefix: Key::EMPTY,
            heads: leaf.pairs().map(|(key, _)| key).collect(),
            keys: leaf.pairs().map(|(key, _)| Key::from(key.to_be_bytes())).collect(),
            values: leaf.pairs().map(|(_, value)| Value::from(*value)).collect(),
        }
    }

    /// The same pairs in a fixed-size leaf, if they all fit one.
    pub fn to_fixed(&self) -> Option<FixedLeaf> {
        if self.bytes != 16 * self.len() as u64 {
            return None;
        }
        let mut leaf = FixedLeaf::new();
        for (key, value) in self.keys.iter().zip(&self.values) {
            leaf.push(u64::from_be_bytes(key.as_word()?), value.as_word()?);
        }
        leaf.spread_all();
        Some(leaf)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    #[inline]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    #[inline]
    pub fn key(&self, at: usize) -> KeyRef<'_> {
        KeyRef::Bytes(&self.keys[at])
    }

    #[inline]
    pub fn summary(&self) -> Summary {
        Summary { len: self.len() as u64, bytes: self.bytes, digest: self.digest }
    }

    /// The place of a key, or where it belongs.
    pub fn find(&self, probe: Probe<'_>) -> Result<usize, usize> {
        let head = match compare_prefix(probe.key, &self.prefix) {
            _ if mutant!(prefix_unverified) => head(probe.key.get(self.prefix.len()..).unwrap_or_default()),
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.len()),
            Ordering::Equal => head(&probe.key[self.prefix.len()..]),
        };
        let below = self.heads.partition_point(|stored| *stored < head);
        let equal = self.heads[below..].partition_point(|stored| *stored == head);
        match self.keys[below..below + equal].binary_search_by(|key| key.as_slice().cmp(probe.key)) {
            Ok(at) => Ok(below + at),
            Err(at) => Err(below + at),
        }
    }

    /// Heads stand behind this prefix of all keys from now on.
    fn skip(&mut self, prefix: Key) {
        if prefix.len() != self.prefix.len() {
            self.heads = self.keys.iter().map(|key| head(&key[prefix.len()..])).collect();
        }
        self.prefix = prefix;
    }

    /// Heads stand behind all that the keys have in common.
    fn skip_common(&mut self) {
        self.skip(common_of_all(&self.keys));
    }

    /// How many keys are below the probe.
    #[inline]
    pub fn lower_bound(&self, probe: Probe<'_>) -> usize {
        self.find(probe).unwrap_or_else(|at| at)
    }

    /// Adds a pair; returns its hash.
    pub fn insert(&mut self, at: usize, key: &[u8], value: &[u8]) -> u64 {
        let hash = hash_pair(key, value);
        if compare_prefix(key, &self.prefix) != Ordering::Equal {
            self.skip(Key::from(common(&self.prefix, key)));
        }
        self.heads.insert(at, head(&key[self.prefix.len()..]));
        self.keys.insert(at, Key::from(key));
        self.values.insert(at, Value::from(value));
        self.bytes += (key.len() + value.len()) as u64;
        self.digest = self.digest.wrapping_add(hash);
        // Each time that the leaf has doubled: a constant for each key.
        if self.len().is_power_of_two() {
            self.skip_common();
        }
        hash
    }

    /// Overwrites the value at `at`; returns the old one and what the summary grows by.
    pub fn replace(&mut self, at: usize, value: &[u8]) -> (Value, Summary) {
        let key = &self.keys[at];
        let old = std::mem::replace(&mut self.values[at], Value::from(value));
        let growth = Summary {
            len: 0,
            bytes: (value.len() as u64).wrapping_sub(old.len() as u64),
            digest: hash_pair(key, value).wrapping_sub(hash_pair(key, &old)),
        };
        self.bytes = self.bytes.wrapping_add(growth.bytes);
        self.digest = self.digest.wrapping_add(growth.digest);
        (old, growth)
    }

    /// Removes the pair at `at`; returns its value and what it counted for.
    pub fn remove(&mut self, at: usize) -> (Value, Summary) {
        self.heads.remove(at);
        let (key, value) = (self.keys.remove(at), self.values.remove(at));
        if self.keys.is_empty() {
            self.prefix = Key::EMPTY;
        }
        let gone = Summary::of_pair(&key, &value);
        self.bytes -= gone.bytes;
        self.digest = self.digest.wrapping_sub(gone.digest);
        (value, gone)
    }

    /// Cuts off everything from `at` on.
    pub fn split_off(&mut self, at: usize) -> Self {
        let (heads, keys, values) = (self.heads.split_off(at), self.keys.split_off(at), self.values.split_off(at));
        let prefix = self.prefix.clone();
        let mut right = Self { owners: Owners::one(), digest: 0, bytes: 0, prefix, heads, keys, values };
        let moved = right.sum_all();
        (right.bytes, right.digest) = (moved.bytes, moved.digest);
        self.bytes -= moved.bytes;
        self.digest = self.digest.wrapping_sub(moved.digest);
        self.skip_common();
        right.skip_common();
        right
    }

    /// Adds all pairs of `right`, which lie above.
    pub fn append(&mut self, mut right: Self) {
        if let (Some(first), Some(last)) = (self.keys.first().or(right.keys.first()), right.keys.last()) {
            let prefix = Key::from(common(first, last));
            self.skip(prefix.clone());
            right.skip(prefix);
        }
        self.heads.extend(right.heads);
        self.keys.extend(right.keys);
        self.values.extend(right.values);
        self.bytes += right.bytes;
        self.digest = self.digest.wrapping_add(right.digest);
    }

    /// The summary from scratch.
    pub fn sum_all(&self) -> Summary {
        let pairs = self.keys.iter().zip(&self.values);
        pairs.fold(Summary::default(), |sum, (key, value)| sum.plus(Summary::of_pair(key, value)))
    }

    pub fn has_matching_heads(&self) -> bool {
        self.heads.len() == self.keys.len()
            && self.values.len() == self.keys.len()
            && self.keys.iter().all(|key| key.starts_with(&self.prefix))
            && self.heads.iter().zip(&self.keys).all(|(stored, key)| *stored == head(&key[self.prefix.len()..]))
    }
}
