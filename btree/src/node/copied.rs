//! Bytes of nodes that this process has copied because somebody else shared them: what snapshots have kept alive.
//!
//! A node is copied once, at its first change after a snapshot was taken, so what a snapshot keeps alive is at most
//! what was copied since. Node and values are counted whole: a value that is overwritten later stays with the old node.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::node::Node;

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Bytes of all nodes that were copied so far.
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

/// A node is copied.
pub(super) fn note(node: Node<'_>) {
    let bytes = match node {
        Node::Inner(inner) => size_of_val(inner) as u64,
        Node::Fixed(leaf) => size_of_val(leaf) as u64,
        Node::Variable(leaf) => size_of_val(leaf) as u64 + leaf.summary().bytes,
    };
    COPIED.fetch_add(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn what_a_snapshot_keeps_alive_is_counted() {
        let mut tree = Tree::new();
        let value = vec![7; 1_000];
        (0..1_000_u64).for_each(|n| drop(tree.put(&n.to_be_bytes(), &value)));
        let before = copied_bytes();
        let snapshot = tree.snapshot();
        (0..3).for_each(|_| (0..1_000_u64).for_each(|n| drop(tree.put(&n.to_be_bytes(), b"small"))));
        let copied = copied_bytes() - before;
        // Other tests of this process may copy too.
        assert!(copied >= snapshot.bytes(), "{copied} bytes were copied");
    }
}
