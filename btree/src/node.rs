//! Nodes and the links between them. A node that more than one link reaches never changes: who wants to change it
//! copies it first (reliability.md ST12). Knows nothing of commands.

use std::sync::Arc;

use crate::digest::hash_pair;
use crate::key::{KeyRef, Probe};
use crate::search::count_below;
use crate::value::Key;
use crate::wide::Wide;
use crate::words::Words;

/// Child slots of an inner node; one more than it keeps, for the child that makes it split.
pub(crate) const INNER_SLOTS: usize = 64;

/// What a subtree holds. A change of a subtree is one too: its numbers wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub len: u64,
    pub bytes: u64,
    pub digest: u64,
}

impl Summary {
    pub fn of_pair(key: &[u8], value: &[u8]) -> Self {
        Self { len: 1, bytes: (key.len() + value.len()) as u64, digest: hash_pair(key, value) }
    }

    #[inline]
    pub fn plus(self, other: Self) -> Self {
        Self {
            len: self.len.wrapping_add(other.len),
            bytes: self.bytes.wrapping_add(other.bytes),
            digest: self.digest.wrapping_add(other.digest),
        }
    }

    #[inline]
    pub fn minus(self, other: Self) -> Self {
        Self {
            len: self.len.wrapping_sub(other.len),
            bytes: self.bytes.wrapping_sub(other.bytes),
            digest: self.digest.wrapping_sub(other.digest),
        }
    }
}

/// A counted reference to a node, and the node's kind. All children of one node have the same height; leaves of both
/// kinds may be siblings.
#[derive(Clone)]
pub(crate) enum Link {
    Inner(Arc<Inner>),
    Words(Arc<Words>),
    Wide(Arc<Wide>),
}

/// What a node that became too large gives to its parent.
pub(crate) struct Split {
    pub separator: Key,
    pub right: Link,
}

/// The node, to be changed: itself if nothing else reaches it, else a copy of it.
#[inline]
pub(crate) fn own<T: Clone>(node: &mut Arc<T>) -> &mut T {
    Arc::make_mut(node)
}

impl Link {
    pub fn words(words: Words) -> Self {
        Self::Words(Arc::new(words))
    }

    pub fn inner(inner: Inner) -> Self {
        Self::Inner(Arc::new(inner))
    }

    /// A general leaf, in the fast form if possible.
    pub fn wide(wide: Wide) -> Self {
        match wide.to_words() {
            Some(words) => Self::words(words),
            None => Self::Wide(Arc::new(wide)),
        }
    }

    pub fn summary(&self) -> Summary {
        match self {
            Self::Inner(inner) => inner.summary,
            Self::Words(words) => words.summary(),
            Self::Wide(wide) => wide.summary(),
        }
    }

    /// Pairs of a leaf, children of an inner node.
    pub fn width(&self) -> usize {
        match self {
            Self::Inner(inner) => inner.len(),
            Self::Words(words) => words.len(),
            Self::Wide(wide) => wide.len(),
        }
    }

    /// 0 for a leaf. O(height).
    pub fn height(&self) -> usize {
        match self {
            Self::Inner(inner) => 1 + inner.child(0).height(),
            Self::Words(_) | Self::Wide(_) => 0,
        }
    }

    /// The smallest key of the subtree, which is not empty. O(height).
    pub fn first_key(&self) -> KeyRef<'_> {
        match self {
            Self::Inner(inner) => inner.child(0).first_key(),
            Self::Words(words) => words.key(0),
            Self::Wide(wide) => wide.key(0),
        }
    }

    /// The greatest key of the subtree, which is not empty. O(height).
    pub fn last_key(&self) -> KeyRef<'_> {
        match self {
            Self::Inner(inner) => inner.child(inner.len() - 1).last_key(),
            Self::Words(words) => words.key(words.len() - 1),
            Self::Wide(wide) => wide.key(wide.len() - 1),
        }
    }
}

/// Children and the separators between them: everything below `children[i]` is under separator `i`, everything below
/// `children[i + 1]` is not.
#[derive(Clone)]
pub(crate) struct Inner {
    /// Of everything below.
    summary: Summary,
    /// The number of children; at least 2, but while a node is being built.
    len: u32,
    /// The heads of the separators, ascending; `u64::MAX` in slots at or above `len - 1`.
    heads: [u64; INNER_SLOTS],
    /// The separators themselves; `None` while all of them have eight bytes.
    tails: Option<Vec<Key>>,
    /// `Some` in the first `len` slots.
    children: [Option<Link>; INNER_SLOTS],
}

impl Inner {
    /// A node of one child; more must follow.
    pub fn new(first: Link) -> Self {
        let mut children = [const { None }; INNER_SLOTS];
        let summary = first.summary();
        children[0] = Some(first);
        Self { summary, len: 1, heads: [u64::MAX; INNER_SLOTS], tails: None, children }
    }

    /// A node of two children.
    pub fn of_two(left: Link, separator: Key, right: Link) -> Self {
        let mut inner = Self::new(left);
        inner.push(separator, right);
        inner
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Notes that the subtree changed by `change`.
    #[inline]
    pub fn apply(&mut self, change: Summary) {
        self.summary = self.summary.plus(change);
    }

    #[inline]
    pub fn child(&self, at: usize) -> &Link {
        self.children[at].as_ref().expect("a child in every slot below len")
    }

    #[inline]
    pub fn child_mut(&mut self, at: usize) -> &mut Link {
        self.children[at].as_mut().expect("a child in every slot below len")
    }

    pub fn children(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.children[..self.len()].iter().flatten()
    }

    pub fn separator(&self, at: usize) -> Key {
        match &self.tails {
            Some(tails) => tails[at].clone(),
            None => Key::from(self.heads[at].to_be_bytes()),
        }
    }

    /// The child whose subtree the probe belongs to: the number of separators that are not above it.
    #[inline]
    pub fn search(&self, probe: Probe<'_>) -> usize {
        match &self.tails {
            None if probe.key.len() >= 8 => self.count_not_above(probe.head),
            // A shorter key lies below every eight-byte separator with its head.
            None => count_below(&self.heads, probe.head),
            Some(tails) => {
                let below = count_below(&self.heads, probe.head);
                let end = self.count_not_above(probe.head);
                below + tails[below..end].partition_point(|tail| tail.as_slice() <= probe.key)
            }
        }
    }

    /// The number of separators whose heads are not above `head`.
    #[inline]
    fn count_not_above(&self, head: u64) -> usize {
        match head.checked_add(1) {
            Some(bound) => count_below(&self.heads, bound),
            None => self.len() - 1,
        }
    }

    /// Adds a child at the right end.
    pub fn push(&mut self, separator: Key, child: Link) {
        self.summary = self.summary.plus(child.summary());
        self.insert_child(self.len() - 1, separator, child);
    }

    /// Adds a child at the left end.
    pub fn push_front(&mut self, child: Link, separator: Key) {
        self.summary = self.summary.plus(child.summary());
        let first = std::mem::replace(self.child_mut(0), child);
        self.insert_child(0, separator, first);
    }

    /// Puts a child to the right of child `at`. The summary stays: what it holds was in this subtree already.
    pub fn insert_child(&mut self, at: usize, separator: Key, child: Link) {
        let len = self.len();
        self.heads.copy_within(at..len - 1, at + 1);
        self.heads[at] = crate::key::head(&separator);
        if self.tails.is_none() && separator.len() != 8 {
            self.tails = Some((0..len - 1).map(|i| self.separator_after_shift(i, at)).collect());
        }
        if let Some(tails) = &mut self.tails {
            tails.insert(at, separator);
        }
        self.children[at + 1..=len].rotate_right(1);
        self.children[at + 1] = Some(child);
        self.len += 1;
    }

    /// Separator `at` of before, when the heads from `inserted` on have already moved up by one.
    fn separator_after_shift(&self, at: usize, inserted: usize) -> Key {
        Key::from(self.heads[at + usize::from(at >= inserted)].to_be_bytes())
    }

    /// Takes out the child to the right of child `at`. The summary stays.
    pub fn remove_child(&mut self, at: usize) -> Split {
        let separator = self.separator(at);
        let len = self.len();
        self.heads.copy_within(at + 1..len - 1, at);
        self.heads[len - 2] = u64::MAX;
        if let Some(tails) = &mut self.tails {
            tails.remove(at);
        }
        self.children[at + 1..len].rotate_left(1);
        let right = self.children[len - 1].take().expect("a child in every slot below len");
        self.len -= 1;
        Split { separator, right }
    }

    /// Cuts off the children from `at` on; returns them with the separator before them.
    pub fn split_off(&mut self, at: usize) -> (Key, Self) {
        let separator = self.separator(at - 1);
        let len = self.len();
        let mut right = Self {
            summary: Summary::default(),
            len: (len - at) as u32,
            heads: [u64::MAX; INNER_SLOTS],
            tails: None,
            children: [const { None }; INNER_SLOTS],
        };
        right.heads[..len - 1 - at].copy_from_slice(&self.heads[at..len - 1]);
        self.heads[at - 1..].fill(u64::MAX);
        if let Some(tails) = &mut self.tails {
            let kept = tails.split_off(at);
            tails.pop();
            right.tails = kept.iter().any(|tail| tail.len() != 8).then_some(kept);
        }
        self.drop_needless_tails();
        for (from, to) in self.children[at..].iter_mut().zip(&mut right.children) {
            *to = from.take();
        }
        right.summary = right.children().fold(Summary::default(), |sum, child| sum.plus(child.summary()));
        self.len = at as u32;
        self.summary = self.summary.minus(right.summary);
        (separator, right)
    }

    /// Adds all children of `right`, which lie at or above `separator`.
    pub fn append(&mut self, separator: Key, mut right: Self) {
        let count = right.len();
        for at in 0..count {
            let child = right.children[at].take().expect("a child in every slot below len");
            let separator = if at == 0 { separator.clone() } else { right.separator(at - 1) };
            self.insert_child(self.len() - 1, separator, child);
        }
        self.summary = self.summary.plus(right.summary);
    }

    /// Takes child `at` out of its slot, which stays; [`Inner::set_child`] must follow, or the end of this node.
    pub fn take_child(&mut self, at: usize) -> Link {
        self.children[at].take().expect("a child in every slot below len")
    }

    /// Fills the slot of a child that was taken out. The summary stays.
    pub fn set_child(&mut self, at: usize, child: Link) {
        self.children[at] = Some(child);
    }

    fn drop_needless_tails(&mut self) {
        if self.tails.as_ref().is_some_and(|tails| tails.iter().all(|tail| tail.len() == 8)) {
            self.tails = None;
        }
    }

    /// The invariants of this node alone; says which one is broken.
    pub fn check_slots(&self) -> Result<(), &'static str> {
        let (len, seps) = (self.len(), self.len() - 1);
        if self.children[..len].iter().any(Option::is_none) || self.children[len..].iter().any(Option::is_some) {
            return Err("children do not fill the first slots");
        }
        if self.heads[seps..].iter().any(|head| *head != u64::MAX) {
            return Err("unused heads are not at the maximum");
        }
        if let Some(tails) = &self.tails {
            let same = |(tail, stored): (&Key, &u64)| crate::key::head(tail) == *stored;
            if tails.len() != seps || !tails.iter().zip(&self.heads).all(same) {
                return Err("separators do not match their heads");
            }
        }
        Ok(())
    }
}
