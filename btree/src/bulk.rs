//! Building from sorted pairs, bottom-up: leaves are filled one after the other, then the nodes above them.

use std::fmt;

use crate::capacity::Capacity;
use crate::fix::{fuse, is_thin};
use crate::key::{head, separator};
use crate::node::{FixedLeaf, Inner, Link, Split, VariableLeaf};
use crate::snapshot::Snapshot;
use crate::tree::Tree;
use crate::undo::{Record, Undo};
use crate::value::Key;

/// Why pairs were not loaded; the tree is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadError {
    /// The key of pair `index` (from 0) is not above the one before it.
    NotSorted {
        /// The place of the pair in the load, from 0.
        index: u64,
    },
    /// The key of pair `index` (from 0) is in the tree already.
    Present {
        /// The place of the pair in the load, from 0.
        index: u64,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSorted { index } => write!(f, "pair {index} is not above the pair before it"),
            Self::Present { index } => write!(f, "the key of pair {index} is in the tree already"),
        }
    }
}

impl std::error::Error for LoadError {}

impl Tree {
    /// A tree of the given pairs, which ascend by key. O(n).
    pub fn from_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, LoadError> {
        Self::from_sorted_with_capacity(pairs, Capacity::DEFAULT)
    }

    /// [`Tree::from_sorted`] with nodes of another width: for tests.
    pub fn from_sorted_with_capacity<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        pairs: impl IntoIterator<Item = (K, V)>,
        capacity: Capacity,
    ) -> Result<Self, LoadError> {
        let mut builder = Builder::new(capacity);
        for (key, value) in pairs {
            builder.push(key.as_ref(), value.as_ref())?;
        }
        Ok(Self::from(Snapshot { root: builder.finish(), capacity }))
    }

    /// Adds pairs that ascend by key and are all new, or changes nothing; returns how many there were.
    ///
    /// Above the greatest key of the tree, and into an empty tree, they are built bottom-up: O(n + log size).
    /// Elsewhere they are inserted one by one. Undo takes them out again.
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
        undo: &mut Undo,
    ) -> Result<u64, LoadError> {
        let mut pairs = pairs.into_iter().peekable();
        let appends = match (&self.now.root, pairs.peek()) {
            (Some(root), Some((key, _))) => *root.last_key() < *key.as_ref(),
            _ => true,
        };
        let mark = undo.mark();
        if appends {
            let mut builder = Builder::new(self.now.capacity);
            for (key, value) in pairs {
                if let Err(error) = builder.push(key.as_ref(), value.as_ref()) {
                    undo.cut(mark);
                    return Err(error);
                }
                undo.push(Record::Inserted { key: Key::from(key.as_ref()) });
            }
            let count = builder.count;
            self.join(Self::from(Snapshot { root: builder.finish(), capacity: self.now.capacity }));
            return Ok(count);
        }
        let mut last: Option<Key> = None;
        for (index, (key, value)) in (0..).zip(pairs) {
            let key = key.as_ref();
            let error = if last.as_ref().is_some_and(|last| last.as_slice() >= key) {
                Some(LoadError::NotSorted { index })
            } else {
                self.insert(key, value.as_ref()).map(|_| LoadError::Present { index })
            };
            if let Some(error) = error {
                self.undo_to(undo, mark);
                return Err(error);
            }
            let key = Key::from(key);
            undo.push(Record::Inserted { key: key.clone() });
            last = Some(key);
        }
        Ok(undo.mark().since(mark))
    }
}

/// Fills leaves from the left.
struct Builder {
    capacity: Capacity,
    leaf: Leaf,
    /// Full leaves, each with the separator before it; the first one's is empty and not used.
    leaves: Vec<(Key, Link)>,
    /// The separator before the leaf being filled.
    separator: Key,
    count: u64,
}

#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is filled in place")]
enum Leaf {
    Fixed(FixedLeaf),
    Variable(VariableLeaf),
}

impl Builder {
    fn new(capacity: Capacity) -> Self {
        Self { capacity, leaf: Leaf::Fixed(FixedLeaf::new()), leaves: Vec::new(), separator: Key::EMPTY, count: 0 }
    }

    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let last = self.leaf.last_key();
        if last.as_ref().is_some_and(|last| last.as_slice() >= key) {
            return Err(LoadError::NotSorted { index: self.count });
        }
        if self.leaf.len() == self.fill() {
            let next = separator(&last.expect("a full leaf is not empty"), key);
            let full = std::mem::replace(&mut self.leaf, Leaf::Fixed(FixedLeaf::new()));
            self.leaves.push((std::mem::replace(&mut self.separator, next), full.into_link()));
        }
        self.leaf.push(key, value);
        self.count += 1;
        Ok(())
    }

    /// Pairs per leaf: an eighth stays free, so that the first inserts after a load split nothing.
    fn fill(&self) -> usize {
        let max = self.capacity.pairs_max();
        max - max / 8
    }

    fn finish(mut self) -> Option<Link> {
        if self.count == 0 {
            return None;
        }
        let mut last = (self.separator, self.leaf.into_link());
        if is_thin(&last.1, self.capacity)
            && let Some((before, left)) = self.leaves.pop()
        {
            let (left, split) = fuse(left, last.0, last.1, self.capacity);
            last = (before, left);
            if let Some(Split { separator, right }) = split {
                self.leaves.push(std::mem::replace(&mut last, (separator, right)));
            }
        }
        self.leaves.push(last);
        let mut level = self.leaves;
        while level.len() > 1 {
            level = build_level(level, self.capacity);
        }
        level.pop().map(|(_, root)| root)
    }
}

impl Leaf {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(leaf) => leaf.len(),
            Self::Variable(leaf) => leaf.len(),
        }
    }

    fn last_key(&self) -> Option<Key> {
        match self {
            Self::Fixed(leaf) => leaf.last_key().map(|key| key.to_key()),
            Self::Variable(leaf) => leaf.keys().last().cloned(),
        }
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        if let Self::Fixed(leaf) = self {
            if let (true, Ok(value)) = (key.len() == 8, <[u8; 8]>::try_from(value)) {
                leaf.push(head(key), value);
                return;
            }
            *self = Self::Variable(VariableLeaf::from_fixed(leaf));
        }
        let Self::Variable(leaf) = self else { unreachable!("a pair that does not fit made the leaf a variable one") };
        leaf.insert(leaf.len(), key, value);
    }

    fn into_link(self) -> Link {
        match self {
            Self::Fixed(mut leaf) => {
                leaf.spread_all();
                Link::fixed(leaf)
            }
            Self::Variable(leaf) => Link::variable(leaf),
        }
    }
}

/// The nodes above the given ones, evenly filled.
fn build_level(below: Vec<(Key, Link)>, capacity: Capacity) -> Vec<(Key, Link)> {
    let max = capacity.children_max();
    let nodes = below.len().div_ceil(max - max / 8);
    let (width, wider) = (below.len() / nodes, below.len() % nodes);
    let mut below = below.into_iter();
    let mut level = Vec::with_capacity(nodes);
    for node in 0..nodes {
        let (separator, first) = below.next().expect("every node has children");
        let mut inner = Inner::new(first);
        for (separator, child) in below.by_ref().take(width + usize::from(node < wider) - 1) {
            inner.push(separator, child);
        }
        level.push((separator, Link::inner(inner)));
    }
    level
}
