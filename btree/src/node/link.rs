//! Counted references to nodes, and hints to the memory system: the crate's only unsafe code.
//!
//! An `enum` of three `std::sync::Arc` would do, and does with the feature `safe`. What this adds: a link takes 8
//! bytes instead of 16, so half the lines hold the children of a node; the owners' count stands in a node's first line,
//! beside what a search reads first; whether a node has one owner is one load (`Arc::get_mut` locks the line, which
//! holds up every cache miss of the operations around it); a node can be asked for before it is needed; and the copy of
//! an inner node borrows its children from the original ([`Children`]).
//! `cargo bench -p coppice-btree --bench twins` measures what that is worth. Run under Miri:
//! `cargo +nightly miri test -p coppice-btree --lib`.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, offset_of};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

pub(crate) use self::children::Children;
use crate::node::{FixedLeaf, Inner, Node, NodeMut, OwnedNode, VariableLeaf};

mod children;

/// How many links lead to a node, lent ones not counted: the first field of every node.
///
/// Invariant: 1, but in a node that links lead to; there it is their number.
#[derive(Debug)]
pub(crate) struct Owners(AtomicU32);

impl Owners {
    /// Of a node that no link leads to yet.
    pub fn one() -> Self {
        Self(AtomicU32::new(1))
    }
}

/// A copy of a node starts with one owner, whatever the original has.
impl Clone for Owners {
    fn clone(&self) -> Self {
        Self::one()
    }
}

/// A counted reference to a node. The node does not change while it has several owners.
///
/// Invariant: `tagged` is the pointer of a `Box<Inner>`, `Box<FixedLeaf>` or `Box<VariableLeaf>` that was leaked, with
/// the kind of node in its two lowest bits. The links that lead to the node own the box together; `Owners` counts them.
/// A link with the bit `LENT` is not one of them: it stands in a slot of [`Children`] whose lender has an owner of the
/// node, as it is or through its own lender, and it never leaves that slot.
pub(crate) struct Link {
    tagged: NonNull<u8>,
    owns: PhantomData<(Inner, FixedLeaf, VariableLeaf)>,
}

const INNER: usize = 0;
const FIXED: usize = 1;
const VARIABLE: usize = 2;
const TAG: usize = 3;
const LENT: usize = 4;
const BITS: usize = TAG | LENT;

fn without_lent(address: NonZeroUsize) -> NonZeroUsize {
    // The address of a node is none of the bits.
    NonZeroUsize::new(address.get() & !LENT).unwrap_or(address)
}

const _: () =
    assert!(align_of::<Inner>() > BITS && align_of::<FixedLeaf>() > BITS && align_of::<VariableLeaf>() > BITS);
const _: () = assert!(
    offset_of!(Inner, owners) == 0 && offset_of!(FixedLeaf, owners) == 0 && offset_of!(VariableLeaf, owners) == 0
);

// SAFETY: a `Link` gives out `&` to its node on every thread that has one (the nodes are Sync), and the last owner, on
// whichever thread, changes or drops it (they are Send). The count is atomic. The nodes hold links themselves, so the
// compiler cannot find this out; everything else in them is checked below.
unsafe impl Send for Link {}
// SAFETY: through a `&Link` a thread can get a `&` to the node and clones of the link, for which the above holds.
unsafe impl Sync for Link {}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    // With `Link` as both, by the lines above, these need all other fields to be both.
    is_send_and_sync::<Inner>();
    is_send_and_sync::<FixedLeaf>();
    is_send_and_sync::<VariableLeaf>();
};

impl Link {
    fn new<T>(node: Box<T>, tag: usize) -> Self {
        let tagged = NonNull::from(Box::leak(node)).cast::<u8>().map_addr(|address| address | tag);
        Self { tagged, owns: PhantomData }
    }

    #[inline]
    fn tag(&self) -> usize {
        self.tagged.addr().get() & TAG
    }

    /// The node's address, as that of a node of type `T`: right only for the type that the tag says.
    #[inline]
    fn pointer<T>(&self) -> *mut T {
        self.tagged.as_ptr().map_addr(|address| address & !BITS).cast()
    }

    /// Whether it stands in a slot of [`Children`], and somebody else keeps the node for it.
    #[inline]
    fn is_lent(&self) -> bool {
        self.tagged.addr().get() & LENT != 0
    }

    /// The same link, for a slot of [`Children`] whose lender is, or has, an owner of the node.
    #[inline]
    fn lend(&self) -> Self {
        Self { tagged: self.tagged.map_addr(|address| address | LENT), owns: PhantomData }
    }

    /// The link with an owner of its own, so that it may leave its slot.
    #[inline]
    fn counted(self) -> Self {
        if self.is_lent() { self.clone() } else { self }
    }

    #[inline]
    fn owners(&self) -> &AtomicU32 {
        // SAFETY: the box lives as long as `self` (invariant), every kind of node begins with its `Owners` (asserted
        // above), and no `&mut` to the node exists: `own` borrows the only link to it mutably as long as that lives.
        unsafe { &(*self.pointer::<Owners>()).0 }
    }

    /// Whether nothing else holds the node.
    #[inline]
    fn is_only_owner(&self) -> bool {
        // Acquire: what other owners read before they let go of the node happened before we change it.
        !self.is_lent() && self.owners().load(Ordering::Acquire) == 1
    }

    /// The node, to be read.
    #[inline]
    pub fn node(&self) -> Node<'_> {
        // SAFETY: the box lives as long as `self`, is of the tag's type, and is not borrowed mutably (as in `owners`).
        unsafe {
            match self.tag() {
                INNER => Node::Inner(&*self.pointer()),
                FIXED => Node::Fixed(&*self.pointer()),
                _ => Node::Variable(&*self.pointer()),
            }
        }
    }

    /// A copy of the node, with one owner.
    #[cold]
    fn to_copy(&self) -> Self {
        super::copied::note(self.node());
        match self.node() {
            Node::Inner(_) => Self::from(Box::new(Inner::copy_of(self))),
            Node::Fixed(leaf) => Self::from(Box::new(leaf.clone())),
            Node::Variable(leaf) => Self::from(Box::new(leaf.clone())),
        }
    }

    /// The node, to be changed: itself if it has no other owner, else a copy (hazards.md ST12).
    #[inline]
    pub fn own(&mut self) -> NodeMut<'_> {
        if !self.is_only_owner() && !mutant!(cow_in_place) {
            *self = self.to_copy();
        }
        // SAFETY: there is one owner, which is `self`, borrowed mutably; so nobody else can reach the node or clone
        // its way to it while the result lives: who lends the node has an owner of it. (The mutant breaks this on
        // purpose; it is never in a released program.)
        unsafe {
            match self.tag() {
                INNER => NodeMut::Inner((*self.pointer::<Inner>()).settled_at_times()),
                FIXED => NodeMut::Fixed(&mut *self.pointer()),
                _ => NodeMut::Variable(&mut *self.pointer()),
            }
        }
    }

    /// The node itself, or a copy if it has other owners.
    pub fn into_owned(mut self) -> OwnedNode {
        if !self.is_only_owner() {
            self = self.to_copy();
        }
        let link = ManuallyDrop::new(self);
        // SAFETY: the only owner ends here without its `drop`, so the box, of the tag's type, is taken over just once.
        unsafe {
            match link.tag() {
                INNER => OwnedNode::Inner(Box::from_raw(link.pointer())),
                FIXED => OwnedNode::Fixed(Box::from_raw(link.pointer())),
                _ => OwnedNode::Variable(Box::from_raw(link.pointer())),
            }
        }
    }

    /// Asks for cache lines of the node, without waiting for them.
    #[inline]
    pub fn prefetch(&self, lines: Range<usize>) {
        prefetch_at(self.pointer::<u8>(), lines);
    }
}

impl From<Box<Inner>> for Link {
    fn from(node: Box<Inner>) -> Self {
        Self::new(node, INNER)
    }
}

impl From<Box<FixedLeaf>> for Link {
    fn from(node: Box<FixedLeaf>) -> Self {
        Self::new(node, FIXED)
    }
}

impl From<Box<VariableLeaf>> for Link {
    fn from(node: Box<VariableLeaf>) -> Self {
        Self::new(node, VARIABLE)
    }
}

/// The clone of a lent link is an owner like any other.
impl Clone for Link {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the new owner comes from an existing one. Overflow would take 2^32 links, 32 GiB of them.
        let before = self.owners().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a reference count overflowed");
        Self { tagged: self.tagged.map_addr(without_lent), owns: PhantomData }
    }
}

impl Drop for Link {
    #[inline]
    fn drop(&mut self) {
        if self.is_lent() {
            return;
        }
        // Release: what this owner read happened before the last owner frees it. The sole owner needs no locked
        // instruction: nobody is left to clone from.
        let owners = self.owners();
        if owners.load(Ordering::Acquire) != 1 {
            if owners.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        // SAFETY: the count is zero, or one and `self` is that one: nothing else reaches the box, and it is freed once,
        // as the type that the tag says.
        unsafe {
            match self.tag() {
                INNER => {
                    let inner = Box::<Inner>::from_raw(self.pointer());
                    // Each child that was not borrowed has one owner less.
                    let owned = inner.children.slots().iter().flatten().filter(|child| !child.is_lent());
                    owned.for_each(|child| child.prefetch(0..1));
                    drop(inner);
                }
                FIXED => drop(Box::<FixedLeaf>::from_raw(self.pointer())),
                _ => drop(Box::<VariableLeaf>::from_raw(self.pointer())),
            }
        }
    }
}

/// A link that is about to be changed or replaced: where it stands it stays.
pub(crate) struct LinkMut<'a>(&'a mut Link);

impl<'a> From<&'a mut Link> for LinkMut<'a> {
    fn from(link: &'a mut Link) -> Self {
        Self(link)
    }
}

impl<'a> LinkMut<'a> {
    /// The node, to be read.
    #[inline]
    pub fn node(&self) -> Node<'_> {
        self.0.node()
    }

    /// The node, to be changed: see [`Link::own`].
    #[inline]
    pub fn own(self) -> NodeMut<'a> {
        self.0.own()
    }

    /// The inner node, to be changed, if nobody else holds it: nothing is copied.
    pub fn own_if_alone(self) -> Option<&'a mut Inner> {
        let is_inner = matches!(self.node(), Node::Inner(_));
        (is_inner && self.0.is_only_owner()).then(|| self.own_inner())
    }

    /// The same for a while.
    #[inline]
    pub fn again(&mut self) -> LinkMut<'_> {
        LinkMut(self.0)
    }

    /// Puts another node in its place.
    pub fn set(&mut self, link: Link) {
        *self.0 = link;
    }

    /// See [`Link::prefetch_all`].
    #[inline]
    pub fn prefetch_all(&self) {
        self.0.prefetch_all();
    }
}

/// Asks for cache lines of a node, without waiting for them. Line 0 is its first.
#[inline]
pub(crate) fn prefetch<T>(node: &T, lines: Range<usize>) {
    prefetch_at(std::ptr::from_ref(node).cast(), lines);
}

#[inline]
fn prefetch_at(start: *const u8, lines: Range<usize>) {
    for line in lines {
        prefetch_line(start.wrapping_add(64 * line));
    }
}

/// Asks for the cache line at `address`, which need not be valid. No effect where there is no such instruction.
#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64; a prefetch has no effect but on caches and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn fixed_leaf(keys: Range<u64>) -> Box<FixedLeaf> {
        let mut leaf = FixedLeaf::new();
        keys.for_each(|key| leaf.push(key, key.to_be_bytes()));
        Box::new(leaf)
    }

    pub(super) fn keys(link: &Link) -> Vec<u64> {
        match link.node() {
            Node::Fixed(leaf) => leaf.pairs().map(|(key, _)| key).collect(),
            _ => panic!("the tests here link to fixed-size leaves"),
        }
    }

    fn push(link: &mut Link, key: u64) {
        let NodeMut::Fixed(leaf) = link.own() else { panic!("the tests here link to fixed-size leaves") };
        leaf.push(key, [0; 8]);
    }

    pub(super) fn owners(link: &Link) -> u32 {
        link.owners().load(Ordering::Relaxed)
    }

    #[test]
    fn a_node_is_dropped_with_its_last_owner() {
        // The inner node owns the leaf: when it goes, one owner less is left.
        let leaf = Link::from(fixed_leaf(0..3));
        let first = Link::from(Box::new(Inner::new(leaf.clone())));
        let second = first.clone();
        assert_eq!(owners(&leaf), 2);
        drop(first);
        assert_eq!(owners(&leaf), 2);
        drop(second);
        assert_eq!(owners(&leaf), 1);
    }

    #[test]
    fn a_sole_owner_changes_in_place_and_others_keep_what_they_had() {
        let mut first = Link::from(fixed_leaf(0..1));
        let place = first.tagged;
        push(&mut first, 2);
        assert_eq!(first.tagged, place);
        let second = first.clone();
        push(&mut first, 3);
        assert_eq!((keys(&first), keys(&second)), (vec![0, 2, 3], vec![0, 2]));
        let third = second.clone();
        for link in [second, third] {
            let OwnedNode::Fixed(leaf) = link.into_owned() else { panic!("a fixed-size leaf went in") };
            assert!(leaf.pairs().map(|(key, _)| key).eq([0, 2]));
        }
    }

    #[test]
    fn every_kind_of_node_comes_back_as_what_it_was() {
        let leaf = Link::from(fixed_leaf(0..2));
        let variable = Link::from(Box::new(VariableLeaf::from_fixed(&fixed_leaf(0..5))));
        let inner = Link::from(Box::new(Inner::new(leaf.clone())));
        for link in [leaf, variable, inner] {
            let copy = link.clone();
            match (link.node(), copy.into_owned()) {
                (Node::Inner(a), OwnedNode::Inner(b)) => assert_eq!(a.len(), b.len()),
                (Node::Fixed(a), OwnedNode::Fixed(b)) => assert!(a.pairs().eq(b.pairs())),
                (Node::Variable(a), OwnedNode::Variable(b)) => assert_eq!(a.keys(), b.keys()),
                _ => panic!("the kind changed"),
            }
            drop(link.into_owned());
        }
    }

    #[test]
    fn owners_come_and_go_on_many_threads() {
        let mut link = Link::from(fixed_leaf(0..1));
        std::thread::scope(|scope| {
            for round in 1..50 {
                let held = link.clone();
                scope.spawn(move || assert_eq!(keys(&held).len() as u64, round));
                push(&mut link, round);
            }
        });
        assert_eq!((keys(&link), owners(&link)), ((0..50).collect(), 1));
    }
}
