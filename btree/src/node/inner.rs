//! The inner node: separators in blocks, as integers where their heads say enough, and the links to the children.

use std::cmp::Ordering;

use crate::key::{Probe, common, common_of_all, compare_prefix, head};
use crate::node::{Children, Link, LinkMut, Node, Owners, Split, Summary, prefetch};
use crate::search::{BLOCK, block_of, count_below, count_in_block, take_sample};
use crate::value::Key;

/// Child slots of an inner node; one more than it keeps, for the child that makes it split. Wide enough that a tree of
/// twelve million pairs has three levels above its leaves, of which the caches hold all but the lowest.
pub(crate) const INNER_SLOTS: usize = 96;

/// Nodes that lend children to a copy, to a copy of that, and so on, at most: the next copy counts itself among its
/// children's owners. Each keeps what changed since, so this bounds the memory that copies hold.
const LENDERS_MAX: u16 = 4;

/// Children and the separators between them: everything below `children[i]` is under separator `i`, everything below
/// `children[i + 1]` is not.
///
/// The order of the fields counts: what a search reads first, and what a change below writes, is in the first two
/// cache lines; every block of heads, and of children, is a line.
#[repr(C, align(64))]
pub(crate) struct Inner {
    pub(crate) owners: Owners,
    /// The number of children; at least 2, but while a node is being built.
    len: u16,
    /// How many nodes, one after the other, lend children to this one: 0 if it has all for itself.
    lenders: u16,
    sample: [u64; SAMPLES],
    /// Of everything below.
    summary: Summary,
    /// The separators themselves, if not all of them have eight bytes.
    tails: Option<Box<Tails>>,
    /// The heads of the separators, ascending; `u64::MAX` in slots at or above `len - 1`.
    heads: [u64; INNER_SLOTS],
    /// In the first `len` slots.
    pub(crate) children: Children,
}

/// Separators of any length. A type of its own, so that an inner node holds one word for it.
#[derive(Clone)]
struct Tails {
    /// What all of them begin with; heads are of what stands behind.
    prefix: Key,
    keys: Vec<Key>,
}

const SAMPLES: usize = INNER_SLOTS / BLOCK - 1;
/// The lines before the heads: `owners` to `tails`.
pub(crate) const INNER_HEAD_LINES: usize = 2;
pub(super) const CHILDREN_LINE: usize = INNER_HEAD_LINES + INNER_SLOTS / BLOCK;
#[cfg(not(feature = "safe"))]
const _: () = assert!(std::mem::offset_of!(Inner, heads) == 64 * INNER_HEAD_LINES);
#[cfg(not(feature = "safe"))]
const _: () = assert!(std::mem::offset_of!(Inner, children) == 64 * CHILDREN_LINE);

impl Inner {
    fn empty() -> Self {
        Self {
            owners: Owners::one(),
            len: 0,
            lenders: 0,
            sample: [u64::MAX; SAMPLES],
            summary: Summary { len: 0, bytes: 0, digest: 0 },
            tails: None,
            heads: [u64::MAX; INNER_SLOTS],
            children: Children::none(),
        }
    }

    /// A copy of the inner node that `link` leads to.
    pub fn copy_of(link: &Link) -> Self {
        let Node::Inner(inner) = link.node() else { unreachable!("a leaf is no inner node") };
        let lenders = (inner.lenders + 1) % (LENDERS_MAX + 1);
        Self {
            owners: Owners::one(),
            len: inner.len,
            lenders,
            sample: inner.sample,
            summary: inner.summary,
            tails: inner.tails.clone(),
            heads: inner.heads,
            children: if lenders == 0 { inner.children.counted() } else { Children::lent_by(link) },
        }
    }

    /// Takes over what this node has borrowed, if it can: one change in eight looks, because that takes a line of the
    /// lender.
    #[inline]
    pub fn settled_at_times(&mut self) -> &mut Self {
        if self.lenders > 0 && self.summary.digest.is_multiple_of(8) {
            self.settle();
        }
        self
    }

    /// Takes over what this node has borrowed, if it can. Returns from how many nodes.
    pub fn settle(&mut self) -> u16 {
        let settled = if self.lenders > 0 { self.children.settle() } else { 0 };
        self.lenders -= settled;
        settled
    }

    /// Whether some of its children may be borrowed.
    pub fn is_borrowing(&self) -> bool {
        self.lenders > 0
    }

    /// A node of one child; more must follow.
    pub fn new(first: Link) -> Self {
        let mut inner = Self { len: 1, summary: first.summary(), ..Self::empty() };
        inner.children.set(0, first);
        inner
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

    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Notes that the subtree changed by `change`.
    #[inline]
    pub fn apply(&mut self, change: Summary) {
        self.summary = self.summary.plus(change);
    }

    #[inline]
    pub fn child(&self, at: usize) -> &Link {
        self.children.get(at).expect("a child in every slot below len")
    }

    /// Child `at`, if there are so many.
    #[inline]
    pub fn get_child(&self, at: usize) -> Option<&Link> {
        self.children.get(at)
    }

    #[inline]
    pub fn child_mut(&mut self, at: usize) -> LinkMut<'_> {
        self.children.get_mut(at).expect("a child in every slot below len")
    }

    pub fn children(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.children.slots()[..self.len()].iter().flatten()
    }

    pub fn separator(&self, at: usize) -> Key {
        match &self.tails {
            Some(tails) => tails.keys[at].clone(),
            None => Key::from(self.heads[at].to_be_bytes()),
        }
    }

    /// The child whose subtree the probe belongs to: the number of separators that are not above it. Asks for the link
    /// of that child while the heads are being compared.
    #[inline]
    pub fn search(&self, probe: Probe<'_>) -> usize {
        self.search_from(self.search_block(probe), probe)
    }

    /// The first half of [`Inner::search`]: the block that the child is in. Asks for the block's lines, waits for the
    /// node's first ones.
    #[inline]
    pub fn search_block(&self, probe: Probe<'_>) -> usize {
        let block = block_of(&self.sample, probe.head.saturating_add(1));
        prefetch(self, INNER_HEAD_LINES + block..INNER_HEAD_LINES + block + 1);
        // The line after it is reached by one key in nine only.
        prefetch(self, CHILDREN_LINE + block..CHILDREN_LINE + block + 1);
        block
    }

    /// The second half of [`Inner::search`].
    #[inline]
    pub fn search_from(&self, block: usize, probe: Probe<'_>) -> usize {
        if self.tails.is_some() || probe.key.len() < 8 {
            return self.search_odd(probe);
        }
        let Some(bound) = probe.head.checked_add(1) else { return self.len() - 1 };
        count_in_block(&self.heads, block, bound)
    }

    /// [`Inner::search`] with a guess, which is cheap to verify.
    #[inline]
    pub fn search_near(&self, guess: usize, probe: Probe<'_>) -> usize {
        let is_above_left = guess == 0 || self.heads.get(guess - 1).is_some_and(|head| *head <= probe.head);
        let is_below_right = self.heads.get(guess).is_some_and(|head| probe.head < *head);
        // A short key, or a separator of any length, takes more than heads to compare.
        let is_plain = probe.key.len() >= 8 && self.tails.is_none();
        let is_right = is_above_left && is_below_right && is_plain;
        if guess < self.len() && (is_right || mutant!(hint_unverified)) { guess } else { self.search(probe) }
    }

    /// [`Inner::search`] where heads are not everything.
    #[inline(never)]
    fn search_odd(&self, probe: Probe<'_>) -> usize {
        let Some(tails) = &self.tails else {
            // A shorter key lies below every eight-byte separator with its head; a longer one does not.
            let is_short = probe.key.len() < 8;
            return if is_short { self.count_below(probe.head) } else { self.count_not_above(probe.head) };
        };
        match compare_prefix(probe.key, &tails.prefix) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len() - 1,
            Ordering::Equal => {}
        }
        let head = head(&probe.key[tails.prefix.len()..]);
        let (below, end) = (self.count_below(head), self.count_not_above(head));
        below + tails.keys[below..end].partition_point(|tail| tail.as_slice() <= probe.key)
    }

    /// The number of separators whose heads are below `head`.
    fn count_below(&self, head: u64) -> usize {
        count_below(&self.sample, &self.heads, head)
    }

    /// The number of separators whose heads are not above `head`.
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
        let first = self.take_child(0);
        self.set_child(0, child);
        self.insert_child(0, separator, first);
    }

    /// Puts a child to the right of child `at`. The summary stays: what it holds was in this subtree already.
    pub fn insert_child(&mut self, at: usize, separator: Key, child: Link) {
        let len = self.len();
        if self.tails.is_none() && separator.len() != 8 {
            let keys = (0..len - 1).map(|i| self.separator(i)).collect();
            self.tails = Some(Box::new(Tails { prefix: Key::EMPTY, keys }));
        }
        if let Some(tails) = &self.tails
            && !separator.starts_with(&tails.prefix)
        {
            let prefix = Key::from(common(&tails.prefix, &separator));
            self.skip(prefix);
        }
        let skipped = self.tails.as_ref().map_or(0, |tails| tails.prefix.len());
        self.heads.copy_within(at..len - 1, at + 1);
        self.heads[at] = head(&separator[skipped..]);
        take_sample(&mut self.sample, &self.heads, at, len);
        if let Some(tails) = &mut self.tails {
            tails.keys.insert(at, separator);
        }
        self.children.insert(at + 1, len, child);
        self.len += 1;
        // Each time that the node has doubled: a constant for each separator.
        if len.is_power_of_two() {
            self.skip_common();
        }
    }

    /// Heads of separators of any length stand behind this prefix of all of them from now on.
    fn skip(&mut self, prefix: Key) {
        let Some(tails) = &mut self.tails else { return };
        for (stored, tail) in self.heads.iter_mut().zip(&tails.keys) {
            *stored = head(&tail[prefix.len()..]);
        }
        tails.prefix = prefix;
        take_sample(&mut self.sample, &self.heads, 0, INNER_SLOTS);
    }

    /// Heads stand behind all that the separators have in common.
    fn skip_common(&mut self) {
        if let Some(tails) = &self.tails {
            self.skip(common_of_all(&tails.keys));
        }
    }

    /// Takes out the child to the right of child `at`. The summary stays.
    pub fn remove_child(&mut self, at: usize) -> Split {
        let separator = self.separator(at);
        let len = self.len();
        self.heads.copy_within(at + 1..len - 1, at);
        self.heads[len - 2] = u64::MAX;
        take_sample(&mut self.sample, &self.heads, at, len);
        if let Some(tails) = &mut self.tails {
            tails.keys.remove(at);
            if tails.keys.is_empty() {
                tails.prefix = Key::EMPTY;
            }
        }
        let right = self.children.remove(at + 1, len).expect("a child in every slot below len");
        self.len -= 1;
        Split { separator, right }
    }

    /// Cuts off the children from `at` on; returns them with the separator before them.
    pub fn split_off(&mut self, at: usize) -> (Key, Self) {
        let separator = self.separator(at - 1);
        let len = self.len();
        let mut right = Self { len: (len - at) as u16, ..Self::empty() };
        right.heads[..len - 1 - at].copy_from_slice(&self.heads[at..len - 1]);
        take_sample(&mut right.sample, &right.heads, 0, INNER_SLOTS);
        self.heads[at - 1..].fill(u64::MAX);
        take_sample(&mut self.sample, &self.heads, at - 1, INNER_SLOTS);
        if let Some(tails) = &mut self.tails {
            right.tails = Some(Box::new(Tails { prefix: tails.prefix.clone(), keys: tails.keys.split_off(at) }));
            tails.keys.pop();
            right.settle_tails();
            self.settle_tails();
        }
        right.children = self.children.split_off(at);
        right.summary = right.children().fold(Summary::default(), |sum, child| sum.plus(child.summary()));
        self.len = at as u16;
        self.summary = self.summary.minus(right.summary);
        (separator, right)
    }

    /// Adds all children of `right`, which lie at or above `separator`.
    pub fn append(&mut self, separator: Key, mut right: Self) {
        let count = right.len();
        for at in 0..count {
            let child = right.take_child(at);
            let separator = if at == 0 { separator.clone() } else { right.separator(at - 1) };
            self.insert_child(self.len() - 1, separator, child);
        }
        self.summary = self.summary.plus(right.summary);
    }

    /// Takes child `at` out of its slot, which stays; [`Inner::set_child`] must follow, or the end of this node.
    pub fn take_child(&mut self, at: usize) -> Link {
        self.children.take(at).expect("a child in every slot below len")
    }

    /// Fills the slot of a child that was taken out. The summary stays.
    pub fn set_child(&mut self, at: usize, child: Link) {
        self.children.set(at, child);
    }

    /// After a cut: separators of eight bytes need nothing beside their heads.
    fn settle_tails(&mut self) {
        if self.tails.as_ref().is_some_and(|tails| tails.keys.iter().all(|tail| tail.len() == 8)) {
            self.skip(Key::EMPTY);
            self.tails = None;
        } else {
            self.skip_common();
        }
    }

    /// The invariants of this node alone; says which one is broken.
    pub fn check_slots(&self) -> Result<(), &'static str> {
        let (len, seps) = (self.len(), self.len() - 1);
        let (used, free) = self.children.slots().split_at(len);
        if used.iter().any(Option::is_none) || free.iter().any(Option::is_some) {
            return Err("children do not fill the first slots");
        }
        if self.heads[seps..].iter().any(|head| *head != u64::MAX) {
            return Err("unused heads are not at the maximum");
        }
        let mut sample = [u64::MAX; SAMPLES];
        take_sample(&mut sample, &self.heads, 0, INNER_SLOTS);
        if self.sample != sample {
            return Err("the sample does not match the heads");
        }
        if let Some(tails) = &self.tails {
            let same = |(tail, stored): (&Key, &u64)| {
                tail.starts_with(&tails.prefix) && head(&tail[tails.prefix.len()..]) == *stored
            };
            if tails.keys.len() != seps || !tails.keys.iter().zip(&self.heads).all(same) {
                return Err("separators do not match their heads");
            }
        }
        self.children.check(self.lenders)
    }
}
