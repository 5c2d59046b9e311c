//! Nodes and the links between them. A node that more than one link reaches never changes: who wants to change it
//! copies it first (reliability.md ST12). Knows nothing of commands.

use crate::digest::hash_pair;
use crate::key::{KeyRef, Probe, head};
use crate::search::{
    BLOCK, SAMPLE_OF_NONE, SLOTS, Sample, Slots, count_below, count_in_block, find_block, take_sample,
};
use crate::shared::Shared;
use crate::value::Key;
use crate::wide::Wide;
use crate::words::Words;

/// Child slots of an inner node; one more than it keeps, for the child that makes it split.
pub(crate) const INNER_SLOTS: usize = SLOTS;

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
    Inner(Shared<Inner>),
    Words(Shared<Words>),
    Wide(Shared<Wide>),
}

/// What a node that became too large gives to its parent.
pub(crate) struct Split {
    pub separator: Key,
    pub right: Link,
}

impl Link {
    pub fn words(words: Words) -> Self {
        Self::Words(Shared::new(words))
    }

    pub fn inner(inner: Inner) -> Self {
        Self::Inner(Shared::new(inner))
    }

    /// A general leaf, in the fast form if possible.
    pub fn wide(wide: Wide) -> Self {
        match wide.to_words() {
            Some(words) => Self::words(words),
            None => Self::Wide(Shared::new(wide)),
        }
    }

    /// Asks for the first line of the node.
    #[inline]
    pub fn prefetch(&self) {
        match self {
            Self::Inner(inner) => inner.prefetch(0..1),
            Self::Words(words) => words.prefetch(0..1),
            Self::Wide(wide) => wide.prefetch(0..1),
        }
    }

    /// Asks for a whole leaf.
    #[inline]
    pub fn prefetch_leaf(&self) {
        if let Self::Words(words) = self {
            words.prefetch(0..size_of::<Words>().div_ceil(64));
        }
    }

    pub fn summary(&self) -> Summary {
        match self {
            Self::Inner(inner) => inner.summary,
            Self::Words(words) => words.summary(),
            Self::Wide(wide) => wide.summary(),
        }
    }

    /// The value of the probe in this leaf.
    #[inline]
    pub fn get_in_leaf<const ALONE: bool>(&self, probe: Probe<'_>) -> Option<&[u8]> {
        match self {
            Self::Words(words) if probe.is_word() => Some(Words::get::<ALONE>(words, probe.head)?),
            Self::Wide(wide) => Some(&wide.values()[wide.find(probe).ok()?]),
            _ => None,
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
///
/// The order of the fields counts: behind the owners' count (`shared`), the first three fill the first cache line.
#[repr(C)]
pub(crate) struct Inner {
    /// The number of children; at least 2, but while a node is being built.
    len: u32,
    /// Whether there are `tails`.
    has_tails: bool,
    sample: Sample,
    /// The heads of the separators, ascending; `u64::MAX` in slots at or above `len - 1`.
    heads: Slots,
    /// `Some` in the first `len` slots.
    children: [Option<Link>; INNER_SLOTS],
    /// Of everything below.
    summary: Summary,
    /// The separators themselves; empty while all of them have eight bytes.
    tails: Vec<Key>,
}

/// The cache line where the children begin, and the lines of a block of them.
const CHILDREN_LINE: usize = (std::mem::offset_of!(Inner, children) + 8) / 64;
const BLOCK_LINES: usize = BLOCK * size_of::<Option<Link>>() / 64;
const _: () = assert!(std::mem::offset_of!(Inner, heads) + 8 == 64);

impl Clone for Inner {
    fn clone(&self) -> Self {
        // Each child gets one more owner; the lines that count them come together, not one after the other.
        self.children().for_each(Link::prefetch);
        Self {
            sample: self.sample,
            heads: self.heads,
            children: self.children.clone(),
            tails: self.tails.clone(),
            ..*self
        }
    }
}

impl Inner {
    const EMPTY: Self = Self {
        len: 0,
        has_tails: false,
        sample: SAMPLE_OF_NONE,
        heads: [u64::MAX; INNER_SLOTS],
        children: [const { None }; INNER_SLOTS],
        summary: Summary { len: 0, bytes: 0, digest: 0 },
        tails: Vec::new(),
    };

    /// A node of one child; more must follow.
    pub fn new(first: Link) -> Self {
        let mut children = [const { None }; INNER_SLOTS];
        let summary = first.summary();
        children[0] = Some(first);
        Self { len: 1, summary, children, ..Self::EMPTY }
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

    /// Child `at`, if there are so many.
    #[inline]
    pub fn get_child(&self, at: usize) -> Option<&Link> {
        self.children.get(at)?.as_ref()
    }

    #[inline]
    pub fn child_mut(&mut self, at: usize) -> &mut Link {
        self.children[at].as_mut().expect("a child in every slot below len")
    }

    pub fn children(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.children[..self.len()].iter().flatten()
    }

    pub fn separator(&self, at: usize) -> Key {
        match self.has_tails {
            true => self.tails[at].clone(),
            false => Key::from(self.heads[at].to_be_bytes()),
        }
    }

    /// The child whose subtree the probe belongs to: the number of separators that are not above it.
    #[inline]
    pub fn search(&self, probe: Probe<'_>) -> usize {
        if self.has_tails {
            return self.search_tails(probe);
        }
        match probe.key.len() >= 8 {
            true => self.count_not_above(probe.head),
            // A shorter key lies below every eight-byte separator with its head.
            false => self.count_below(probe.head),
        }
    }

    /// [`Inner::search`]; asks for the links of the block that the child is in while its heads are being compared.
    #[inline]
    pub fn search_ahead<const ALONE: bool>(this: &Shared<Self>, probe: Probe<'_>) -> usize {
        if this.has_tails || probe.key.len() < 8 {
            return this.search(probe);
        }
        let Some(bound) = probe.head.checked_add(1) else { return this.len() - 1 };
        let block = find_block::<ALONE>(&this.sample, &this.heads, bound);
        let line = CHILDREN_LINE + block * BLOCK_LINES;
        // The block after it is reached by one key in nine only.
        this.prefetch(line..line + BLOCK_LINES);
        count_in_block(&this.heads, block, bound)
    }

    fn search_tails(&self, probe: Probe<'_>) -> usize {
        let (below, end) = (self.count_below(probe.head), self.count_not_above(probe.head));
        below + self.tails[below..end].partition_point(|tail| tail.as_slice() <= probe.key)
    }

    /// The number of separators whose heads are below `head`.
    #[inline]
    fn count_below(&self, head: u64) -> usize {
        count_below(&self.sample, &self.heads, head)
    }

    /// The number of separators whose heads are not above `head`.
    #[inline]
    fn count_not_above(&self, head: u64) -> usize {
        match head.checked_add(1) {
            Some(bound) => self.count_below(bound),
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
        if !self.has_tails && separator.len() != 8 {
            self.tails = (0..len - 1).map(|i| self.separator(i)).collect();
            self.has_tails = true;
        }
        self.heads.copy_within(at..len - 1, at + 1);
        self.heads[at] = head(&separator);
        take_sample(&mut self.sample, &self.heads, at, len);
        if self.has_tails {
            self.tails.insert(at, separator);
        }
        self.children[at + 1..=len].rotate_right(1);
        self.children[at + 1] = Some(child);
        self.len += 1;
    }

    /// Takes out the child to the right of child `at`. The summary stays.
    pub fn remove_child(&mut self, at: usize) -> Split {
        let separator = self.separator(at);
        let len = self.len();
        self.heads.copy_within(at + 1..len - 1, at);
        self.heads[len - 2] = u64::MAX;
        take_sample(&mut self.sample, &self.heads, at, len);
        if self.has_tails {
            self.tails.remove(at);
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
        let mut right = Self { len: (len - at) as u32, ..Self::EMPTY };
        right.heads[..len - 1 - at].copy_from_slice(&self.heads[at..len - 1]);
        take_sample(&mut right.sample, &right.heads, 0, SLOTS);
        self.heads[at - 1..].fill(u64::MAX);
        take_sample(&mut self.sample, &self.heads, at - 1, SLOTS);
        if self.has_tails {
            right.tails = self.tails.split_off(at);
            right.has_tails = true;
            right.drop_needless_tails();
            self.tails.pop();
            self.drop_needless_tails();
        }
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
        if self.tails.iter().all(|tail| tail.len() == 8) {
            self.has_tails = false;
            self.tails = Vec::new();
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
        let mut sample = SAMPLE_OF_NONE;
        take_sample(&mut sample, &self.heads, 0, SLOTS);
        if self.sample != sample {
            return Err("the sample does not match the heads");
        }
        if self.has_tails {
            let same = |(tail, stored): (&Key, &u64)| head(tail) == *stored;
            if self.tails.len() != seps || !self.tails.iter().zip(&self.heads).all(same) {
                return Err("separators do not match their heads");
            }
        }
        Ok(())
    }
}
