//! Reading: what a tree and a snapshot of it have in common. Nothing here changes a node.

use std::fmt;

use crate::capacity::Capacity;
use crate::check::{Shape, Violation, check};
use crate::descent::{GROUP, descend_all};
use crate::digest::Digest;
use crate::key::Probe;
use crate::node::{FixedLeaf, Link, Node, Summary};
use crate::rank;
use crate::value::{Key, Value};

/// The state of a tree at one moment. It never changes, is cheap to clone (one reference count), may be read and
/// dropped by any thread, and lives independent of the tree.
///
/// While it lives, the tree copies each node once before it changes it. Dropping the last snapshot of a moment frees
/// those old nodes: O(nodes copied meanwhile), better not done by the thread that executes commands.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// `None`: no pairs. No other node is empty.
    pub(crate) root: Option<Link>,
    pub(crate) capacity: Capacity,
}

impl Snapshot {
    /// How wide its nodes grow.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The value at `key`. O(log n).
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let probe = Probe::new(key);
        self.leaf(probe)?.get_in_leaf(probe)
    }

    /// Looks `keys` up together and hands each index, ascending, with its value to `found`.
    pub fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K], mut found: impl FnMut(usize, Option<&[u8]>)) {
        for (group, first) in keys.chunks(GROUP).zip((0..).step_by(GROUP)) {
            let descents = descend_all(self.root(), group.iter().map(AsRef::as_ref), FixedLeaf::prefetch_pair);
            for ((_, descent), index) in group.iter().zip(descents).zip(first..) {
                found(index, descent.link.and_then(|leaf| leaf.get_in_leaf(descent.probe)));
            }
        }
    }

    /// The value at `key`, owned; long values are shared, not copied. O(log n).
    #[inline]
    pub fn get_value(&self, key: &[u8]) -> Option<Value> {
        let probe = Probe::new(key);
        match self.leaf(probe)?.node() {
            Node::Fixed(leaf) if probe.is_word() => Some(Value::from(*leaf.get(probe.head)?)),
            Node::Variable(leaf) => Some(leaf.values()[leaf.find(probe).ok()?].clone()),
            _ => None,
        }
    }

    /// The leaf that the probe belongs to.
    #[inline]
    fn leaf(&self, probe: Probe<'_>) -> Option<&Link> {
        let mut link = self.root.as_ref()?;
        while let Node::Inner(inner) = link.node() {
            link = inner.child(inner.search(probe));
            link.prefetch_all();
        }
        Some(link)
    }

    /// Whether `key` is there. O(log n).
    #[inline]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// The number of pairs. O(1).
    #[inline]
    pub fn len(&self) -> u64 {
        self.summary().len
    }

    /// Whether there are no pairs. O(1).
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The payload: the lengths of all keys and values, in bytes. O(1).
    pub fn bytes(&self) -> u64 {
        self.summary().bytes
    }

    /// The digest of the content. O(1).
    pub fn digest(&self) -> Digest {
        Digest(self.summary().digest)
    }

    /// The key that has `rank` keys below it; `None` if there are not that many. O(log n).
    pub fn key_at(&self, rank: u64) -> Option<Key> {
        rank::key_at(self.root()?, rank)
    }

    /// How many keys are below `key`, which need not be there. O(log n).
    pub fn rank(&self, key: &[u8]) -> u64 {
        self.root().map_or(0, |root| rank::rank(root, Probe::new(key)))
    }

    /// The key that cuts the tree into two halves of the same number of pairs; `None` with fewer than two pairs.
    /// O(log n).
    pub fn median(&self) -> Option<Key> {
        if self.len() < 2 { None } else { self.key_at(self.len() / 2) }
    }

    /// The smallest key. O(log n).
    pub fn first_key(&self) -> Option<Key> {
        self.root().map(|root| root.first_key().to_key())
    }

    /// The greatest key. O(log n).
    pub fn last_key(&self) -> Option<Key> {
        self.root().map(|root| root.last_key().to_key())
    }

    /// Verifies that keys ascend and lie between their separators, that no node is empty, too wide or at the wrong
    /// height, and that all counts, lengths and digests are those of the content. O(n).
    pub fn check(&self) -> Result<Shape, Violation> {
        self.root().map_or(Ok(Shape::default()), |root| check(root, self.capacity))
    }

    pub(crate) fn root(&self) -> Option<&Link> {
        self.root.as_ref()
    }

    #[inline]
    pub(crate) fn summary(&self) -> Summary {
        self.root.as_ref().map(Link::summary).unwrap_or_default()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} pairs, {} bytes, digest {})", self.len(), self.bytes(), self.digest())
    }
}
