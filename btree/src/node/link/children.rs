//! The links of an inner node to its children, some of which it may have borrowed from the node that it is a copy of.
//!
//! Nothing here is unsafe, but what is relies on it: a link that is lent never leaves its slot.

use std::mem::ManuallyDrop;

use super::{Link, LinkMut};
use crate::node::{INNER_SLOTS, Node, OwnedNode};

/// The links of an inner node to its children.
///
/// The copy of a node would be one more owner of each of its children, which takes a cache line of every child, once to
/// count it and once to count it back. So a copy only borrows them from the original, which it keeps, until it is the
/// only one that does; then it takes over those that it still has ([`Children::settle`]).
///
/// Invariant: a link that is lent, in `slots`, leads to a node to which a slot of the lender leads too; those that are
/// lent have the same order in both. A lender has this node and perhaps others as owners, none of whom changes it.
#[repr(C)]
pub(crate) struct Children {
    slots: [Option<Link>; INNER_SLOTS],
    /// The node that this one's is a copy of.
    lender: Option<Link>,
}

impl Children {
    pub fn none() -> Self {
        Self { slots: [const { None }; INNER_SLOTS], lender: None }
    }

    /// Those of the inner node that `lender` leads to, which lends them.
    pub fn lent_by(lender: &Link) -> Self {
        let Node::Inner(inner) = lender.node() else { unreachable!("leaves have no children") };
        let slots = std::array::from_fn(|at| inner.children.slots[at].as_ref().map(Link::lend));
        Self { slots, lender: Some(lender.clone()) }
    }

    /// The same children, with one owner more each.
    pub fn counted(&self) -> Self {
        self.slots.iter().flatten().for_each(|child| child.prefetch(0..1));
        Self { slots: self.slots.clone(), lender: None }
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&Link> {
        self.slots.get(at)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<LinkMut<'_>> {
        self.slots.get_mut(at)?.as_mut().map(LinkMut)
    }

    /// All slots.
    pub fn slots(&self) -> &[Option<Link>; INNER_SLOTS] {
        &self.slots
    }

    /// Takes a child out of its slot.
    pub fn take(&mut self, at: usize) -> Option<Link> {
        self.slots[at].take().map(Link::counted)
    }

    /// Fills an empty slot, or replaces who is there.
    pub fn set(&mut self, at: usize, child: Link) {
        self.slots[at] = Some(child);
    }

    /// Moves the children in slots `at` to `len - 1` up by one, and fills slot `at`.
    pub fn insert(&mut self, at: usize, len: usize, child: Link) {
        self.slots[at..=len].rotate_right(1);
        self.slots[at] = Some(child);
    }

    /// Takes out child `at` of `len` and moves those behind it down by one.
    pub fn remove(&mut self, at: usize, len: usize) -> Option<Link> {
        self.slots[at..len].rotate_left(1);
        self.take(len - 1)
    }

    /// Moves the children from slot `at` on to the first slots of others.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut right = Self::none();
        for (from, to) in (at..INNER_SLOTS).zip(&mut right.slots) {
            *to = self.take(from);
        }
        right
    }

    /// Takes the children over from a lender that nobody else keeps, and from that one's own. Returns how many gave up
    /// what they had; those of their children that are no more in the slots are dropped. O([`INNER_SLOTS`]) for each.
    pub fn settle(&mut self) -> u16 {
        let mut settled = 0;
        while let Some(lender) = self.lender.take_if(|lender| lender.is_only_owner()) {
            let OwnedNode::Inner(lender) = lender.into_owned() else { unreachable!("leaves lend nothing") };
            // Dropped only after what is still borrowed was found in it.
            let mut lender = ManuallyDrop::new(lender);
            let mut theirs = lender.children.slots.iter_mut().flatten();
            for slot in self.slots.iter_mut().flatten().filter(|slot| slot.is_lent()) {
                let same = theirs.find(|link| link.pointer::<u8>() == slot.pointer());
                // Ownership changes hands, unless the lender borrowed the child too.
                std::mem::swap(slot, same.expect("who borrows a child has it from its lender"));
            }
            self.lender = lender.children.lender.take();
            drop(ManuallyDrop::into_inner(lender));
            settled += 1;
        }
        settled
    }

    /// Whether every lent link is one of the lender's, and there are so many lenders.
    pub fn check(&self, lenders: u16) -> Result<(), &'static str> {
        let mut lent = self.slots.iter().flatten().filter(|slot| slot.is_lent());
        let Some(lender) = &self.lender else {
            return match (lent.next(), lenders) {
                (None, 0) => Ok(()),
                (None, _) => Err("a node counts lenders that it does not have"),
                (Some(_), _) => Err("a child is lent by nobody"),
            };
        };
        let Node::Inner(lender) = lender.node() else { return Err("a leaf lends children") };
        let mut theirs = lender.children.slots.iter().flatten();
        if !lent.all(|slot| theirs.any(|link| link.pointer::<u8>() == slot.pointer())) {
            return Err("a lent child is not its lender's");
        }
        lender.children.check(lenders.wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fixed_leaf, keys, owners};
    use super::*;
    use crate::node::{Inner, NodeMut};
    use crate::value::Key;

    /// An inner node over leaves of one key each, 0 to `count - 1`, and links to the leaves.
    fn parent(count: u64) -> (Link, Vec<Link>) {
        let leaves: Vec<Link> = (0..count).map(|key| Link::from(fixed_leaf(key..key + 1))).collect();
        let mut inner = Inner::new(leaves[0].clone());
        for (leaf, key) in leaves[1..].iter().zip(1_u64..) {
            inner.push(Key::from(key.to_be_bytes()), leaf.clone());
        }
        (Link::from(Box::new(inner)), leaves)
    }

    fn all_keys(link: &Link) -> Vec<u64> {
        let Node::Inner(inner) = link.node() else { panic!("a parent is asked for") };
        inner.children().flat_map(keys).collect()
    }

    fn children(link: &mut Link) -> &mut Children {
        &mut link.own_inner().children
    }

    #[test]
    fn a_copy_borrows_its_children_and_takes_over_those_that_it_still_has() {
        let (original, leaves) = parent(3);
        let mut copy = original.clone();
        let leaf = children(&mut copy).get_mut(1).unwrap();
        let NodeMut::Fixed(leaf) = leaf.own() else { panic!("a fixed-size leaf was put there") };
        leaf.push(7, [0; 8]);
        // One owner is the list here, the other the original.
        assert_eq!(leaves.iter().map(owners).collect::<Vec<_>>(), [2, 2, 2]);
        children(&mut copy).settle();
        assert!(children(&mut copy).lender.is_some(), "the original is still in use");
        assert_eq!((all_keys(&original), all_keys(&copy)), (vec![0, 1, 2], vec![0, 1, 7, 2]));
        drop(original);
        children(&mut copy).settle();
        assert!(children(&mut copy).lender.is_none());
        assert_eq!(leaves.iter().map(owners).collect::<Vec<_>>(), [2, 1, 2]);
        assert_eq!(all_keys(&copy), [0, 1, 7, 2]);
        drop(copy);
        assert_eq!(leaves.iter().map(owners).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn children_that_leave_a_copy_have_an_owner_of_their_own() {
        let (original, leaves) = parent(6);
        let mut copy = original.clone();
        let inner = copy.own_inner();
        let taken = inner.take_child(0);
        inner.set_child(0, Link::from(fixed_leaf(9..10)));
        let removed = inner.remove_child(1).right;
        let (_, right) = inner.split_off(2);
        drop((original, copy));
        assert_eq!(leaves.iter().map(owners).collect::<Vec<_>>(), [2, 1, 2, 2, 2, 2]);
        assert_eq!((keys(&taken), keys(&removed), all_keys(&Link::inner(right))), (vec![0], vec![2], vec![3, 4, 5]));
    }

    #[test]
    fn copies_of_copies_borrow_through_each_other_and_the_last_one_counts() {
        let (first, leaves) = parent(2);
        let mut versions = vec![first];
        for _ in 0..5 {
            let mut next = versions.last().unwrap().clone();
            let inner = next.own_inner();
            assert_eq!(inner.check_slots(), Ok(()));
            versions.push(next);
        }
        // Only the fifth copy has owners of its own; with the list's and the first one's that makes three.
        assert_eq!(owners(&leaves[0]), 3);
        let mut fourth = versions.swap_remove(4);
        versions.truncate(0);
        assert_eq!(owners(&leaves[0]), 2);
        children(&mut fourth).settle();
        assert!(children(&mut fourth).lender.is_none());
        assert_eq!((owners(&leaves[0]), all_keys(&fourth)), (2, vec![0, 1]));
    }
}
