//! Reading: what a tree and a snapshot of it have in common. Nothing here changes a node.

use std::fmt;

use crate::capacity::Capacity;
use crate::digest::Digest;
use crate::key::Probe;
use crate::node::{Node, Summary};
use crate::shared::Link;
use crate::value::Value;

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

    /// The value at `key`, owned; long values are shared, not copied. O(log n).
    #[inline]
    pub fn get_value(&self, key: &[u8]) -> Option<Value> {
        let probe = Probe::new(key);
        match self.leaf(probe)?.node() {
            Node::Words(words) if probe.is_word() => Some(Value::from(*words.get(probe.head)?)),
            Node::Wide(wide) => Some(wide.values()[wide.find(probe).ok()?].clone()),
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
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// The number of pairs. O(1).
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

    pub(crate) fn summary(&self) -> Summary {
        self.root.as_ref().map(Link::summary).unwrap_or_default()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} pairs, {} bytes, digest {})", self.len(), self.bytes(), self.digest())
    }
}
