//! Letting go of the nodes that changed ones were copied from, once no snapshot needs them.
//!
//! A copy borrows its children from the original, and takes over what it still has when something below it changes
//! again. Where nothing does, this does it.

use crate::key::Probe;
use crate::node::{LinkMut, Node};
use crate::value::Key;

/// How far [`crate::Tree::settle`] came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleProgress {
    /// The key to go on from; none: it is through.
    pub next: Option<Key>,
    /// Something was passed over that a snapshot still shares.
    pub is_shared: bool,
}

/// A node that lets go of its original counts for so many: up to 66 leaves may be freed with that.
const RELEASE: usize = 8;

/// What a walk may still do, and what it has met.
pub(crate) struct Walk {
    pub left: usize,
    pub is_shared: bool,
}

/// Goes through the inner nodes at and below `link` in key order, from the place of `from` on, and has each take over
/// what it borrowed. What somebody else holds too is passed over with all that is below it. Stops when nothing is left
/// to do it with, and names the key to go on from.
pub(crate) fn settle(link: LinkMut<'_>, from: &[u8], walk: &mut Walk) -> Option<Key> {
    if !matches!(link.node(), Node::Inner(_)) {
        return None;
    }
    let Some(inner) = link.own_if_alone() else {
        walk.is_shared = true;
        return None;
    };
    walk.left = walk.left.saturating_sub(1 + RELEASE * usize::from(inner.settle()));
    walk.is_shared |= inner.is_borrowing();
    if !matches!(inner.child(0).node(), Node::Inner(_)) {
        return None;
    }
    let first = inner.search(Probe::new(from));
    for at in first..inner.len() {
        if at > first && walk.left == 0 {
            return Some(inner.separator(at - 1));
        }
        let next = settle(inner.child_mut(at), from, walk);
        if next.is_some() {
            return next;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::SettleProgress;
    use crate::capacity::Capacity;
    use crate::tree::Tree;

    fn key(number: u64) -> [u8; 8] {
        number.to_be_bytes()
    }

    fn tree(pairs: u64) -> Tree {
        let mut tree = Tree::with_capacity_per_node(Capacity::TINY);
        for number in 0..pairs {
            tree.put(&key(number), b"old");
        }
        tree
    }

    fn change(tree: &mut Tree, pairs: impl Iterator<Item = u64>) {
        pairs.for_each(|number| drop(tree.put(&key(number), b"new")));
    }

    /// Calls until it is through.
    fn settle(tree: &mut Tree, nodes: usize) -> usize {
        let (mut from, mut calls) = (Vec::new(), 1);
        while let Some(next) = tree.settle(&from, nodes).next {
            assert!(next.as_slice() > from.as_slice(), "every call gets further");
            from = next.to_vec();
            calls += 1;
        }
        calls
    }

    #[test]
    #[cfg(not(feature = "safe"))]
    fn what_was_borrowed_from_a_snapshot_that_ended_is_taken_over() {
        for nodes in [1, 7, 100_000] {
            let mut tree = tree(2_000);
            let snapshot = tree.snapshot();
            change(&mut tree, (0..2_000).step_by(5));
            assert_ne!(tree.check().unwrap().borrowing, 0);
            settle(&mut tree, nodes);
            assert!(tree.settle(b"", 100_000).is_shared, "the snapshot is still read");
            let borrowing = tree.check().unwrap().borrowing;
            assert_ne!(borrowing, 0);
            assert!(snapshot.iter().all(|(_, value)| value == b"old"));
            drop(snapshot);
            assert_eq!(tree.check().unwrap().borrowing, borrowing, "nobody has touched it");
            let calls = settle(&mut tree, nodes);
            assert_eq!(tree.check().unwrap().borrowing, 0);
            assert_eq!(tree.settle(b"", 100_000), SettleProgress::default());
            assert_eq!(calls == 1, nodes == 100_000, "{calls} calls");
            let is_new = |number: u64| number.is_multiple_of(5);
            for (number, (found, value)) in (0..).zip(tree.iter()) {
                assert_eq!((&*found, value), (&key(number)[..], if is_new(number) { &b"new"[..] } else { b"old" }));
            }
        }
    }

    #[test]
    fn a_tree_that_shares_its_nodes_is_left_as_it_is() {
        let mut tree = tree(500);
        let mut other = Tree::from(tree.snapshot());
        assert_eq!(tree.settle(b"", 100), SettleProgress { next: None, is_shared: true });
        change(&mut other, 0..500);
        settle(&mut other, 16);
        settle(&mut tree, 16);
        assert!(tree.iter().all(|(_, value)| value == b"old") && other.iter().all(|(_, value)| value == b"new"));
        assert_eq!(Tree::new().settle(b"", 1), SettleProgress::default());
    }
}
