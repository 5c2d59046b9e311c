//! The tree: a snapshot that can change.

use std::fmt;
use std::ops::Deref;

use crate::capacity::Capacity;
use crate::descent::DescentHint;
use crate::insert::Write;
use crate::join::{Subtree, join};
use crate::key::{Probe, separator};
use crate::node::{Link, LinkMut};
use crate::remove::remove;
use crate::settle::{SettleProgress, Walk, settle};
use crate::snapshot::Snapshot;
use crate::split::split;
use crate::value::Value;

/// An ordered map from byte strings to byte strings, copy-on-write at node level.
///
/// Everything that reads is a method of [`Snapshot`], to which a tree dereferences. [`Tree::execute`] runs
/// commands with undo; the methods here leave no undo record.
#[derive(Default)]
pub struct Tree {
    pub(crate) now: Snapshot,
    /// The state of after the last change, for a mutant's cursors.
    #[cfg(feature = "mutants")]
    pub(crate) live: crate::mutants::Live,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty tree with nodes of another width: for tests.
    pub fn with_capacity_per_node(capacity: Capacity) -> Self {
        Self::from(Snapshot { root: None, capacity })
    }

    /// The state of this moment; lives independent of the tree. O(1).
    pub fn snapshot(&self) -> Snapshot {
        self.now.clone()
    }

    /// Writes `value` whether or not `key` is there; returns the previous value. O(log n).
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Option<Value> {
        self.write::<true>(key, value, true, DescentHint::UNKNOWN)
    }

    /// Writes `value` only if `key` is absent; returns the present value otherwise. O(log n).
    #[inline]
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<Value> {
        self.write::<true>(key, value, false, DescentHint::UNKNOWN)
    }

    #[inline]
    pub(crate) fn write<const ALONE: bool>(
        &mut self,
        key: &[u8],
        value: &[u8],
        overwrite: bool,
        hint: DescentHint,
    ) -> Option<Value> {
        let mut write = Write::<ALONE>::new(key, value, overwrite, hint, self.now.capacity);
        write.run(&mut self.now.root);
        self.changed();
        write.previous
    }

    /// Removes `key`; returns its value. O(log n).
    #[inline]
    pub fn delete(&mut self, key: &[u8]) -> Option<Value> {
        self.remove::<true>(key, DescentHint::UNKNOWN)
    }

    #[inline]
    pub(crate) fn remove<const ALONE: bool>(&mut self, key: &[u8], hint: DescentHint) -> Option<Value> {
        let value = remove::<ALONE>(&mut self.now.root, key, hint, self.now.capacity);
        self.changed();
        value
    }

    #[inline]
    fn changed(&self) {
        #[cfg(feature = "mutants")]
        if mutant!(range_no_snapshot) {
            self.live.set(&self.now);
        }
    }

    /// Frees what is kept only because snapshots that have ended by now once shared it with this tree. Changes do that
    /// on their way; this is for what nobody changes. Goes through `nodes` inner nodes in key order, and those on the
    /// way to the first, from the place of the key `from` on; one that lets go of what it was copied from counts for
    /// several. Content and digest stay. O(`nodes`), and whole subtrees where much was removed meanwhile.
    pub fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        let mut walk = Walk { left: nodes, is_shared: false };
        let next = self.now.root.as_mut().and_then(|root| settle(LinkMut::from(root), from, &mut walk));
        SettleProgress { next, is_shared: walk.is_shared }
    }

    /// Removes every pair.
    pub fn clear(&mut self) {
        self.now.root = None;
    }

    /// Cuts off every pair at or above `key` into a tree of its own. O(log n), but the first such cut copies nodes
    /// that a snapshot shares.
    pub fn split_off(&mut self, key: &[u8]) -> Self {
        let capacity = self.now.capacity;
        let (left, right) = match self.now.root.take() {
            Some(root) => split(subtree(root), Probe::new(key), capacity),
            None => (None, None),
        };
        self.now.root = left.map(|left| left.link);
        Self::from(Snapshot { root: right.map(|right| right.link), capacity })
    }

    /// Adds every pair of `right`. O(log n).
    ///
    /// # Panics
    /// If a key of `right` is not above all keys of this tree.
    pub fn join(&mut self, mut right: Self) {
        let Some(right) = right.now.root.take() else { return };
        let Some(left) = self.now.root.take() else {
            self.now.root = Some(right);
            return;
        };
        let (last, first) = (left.last_key(), right.first_key());
        assert!(*last < *first, "joined trees overlap: {last:?} is not below {first:?}");
        let separator = separator(&last, &first);
        self.now.root = Some(join(subtree(left), &separator, subtree(right), self.now.capacity).link);
    }
}

fn subtree(link: Link) -> Subtree {
    let height = link.height();
    Subtree { link, height }
}

impl Deref for Tree {
    type Target = Snapshot;
    #[inline]
    fn deref(&self) -> &Snapshot {
        &self.now
    }
}

/// A tree that starts from the snapshot's state and shares its nodes until it changes them. O(1).
impl From<Snapshot> for Tree {
    fn from(now: Snapshot) -> Self {
        Self {
            now,
            #[cfg(feature = "mutants")]
            live: Default::default(),
        }
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} pairs, {} bytes, digest {})", self.len(), self.bytes(), self.digest())
    }
}
