//! Neighbours that hold too little get together: merged into one node, or evened out.
//!
//! Fill is a matter of memory, not of correctness: only a removal, a split of the tree and a join make nodes thin, and
//! each puts right what it touched.

use crate::capacity::Capacity;
use crate::key::separator;
use crate::node::{FixedLeaf, Inner, Link, Node, OwnedNode, Split, VariableLeaf};
use crate::value::Key;

/// Whether the node should get together with a neighbour.
#[inline]
pub(crate) fn is_thin(link: &Link, capacity: Capacity) -> bool {
    match link.node() {
        Node::Inner(inner) => inner.len() < capacity.children_low(),
        Node::Fixed(leaf) => leaf.len() < capacity.pairs_low(),
        Node::Variable(leaf) => leaf.len() < capacity.pairs_low(),
    }
}

/// Merges or evens out child `at` with a neighbour, if it is thin and has one.
pub(crate) fn fix_child(inner: &mut Inner, at: usize, capacity: Capacity) {
    if inner.len() >= 2 && is_thin(inner.child(at), capacity) {
        fuse_children(inner, at.saturating_sub(1), capacity);
    }
}

/// Merges or evens out children `at` and `at + 1`.
pub(crate) fn fuse_children(inner: &mut Inner, at: usize, capacity: Capacity) {
    let Split { separator, right } = inner.remove_child(at);
    let left = inner.take_child(at);
    let (left, split) = fuse(left, separator, right, capacity);
    inner.set_child(at, left);
    if let Some(Split { separator, right }) = split {
        inner.insert_child(at, separator, right);
    }
}

/// Makes one node of two neighbours of the same height, or two of about the same width.
pub(crate) fn fuse(left: Link, separator: Key, right: Link, capacity: Capacity) -> (Link, Option<Split>) {
    match (left.into_owned(), right.into_owned()) {
        (OwnedNode::Inner(left), OwnedNode::Inner(right)) => fuse_inner(left, separator, *right, capacity),
        (OwnedNode::Fixed(left), OwnedNode::Fixed(right)) => fuse_fixed(left, right, capacity),
        (left, right) => fuse_variable(into_variable(left), into_variable(right), capacity),
    }
}

fn fuse_inner(mut left: Box<Inner>, separator: Key, mut right: Inner, capacity: Capacity) -> (Link, Option<Split>) {
    let (count, half) = (left.len() + right.len(), (left.len() + right.len()) / 2);
    if count <= capacity.children_max() {
        left.append(separator, right);
        return (Link::from(left), None);
    }
    let (separator, right) = if left.len() < half {
        let (next, rest) = right.split_off(half - left.len());
        left.append(separator, right);
        (next, rest)
    } else if left.len() > half {
        let (next, mut moved) = left.split_off(half);
        moved.append(separator, right);
        (next, moved)
    } else {
        (separator, right)
    };
    (Link::from(left), Some(Split { separator, right: Link::inner(right) }))
}

fn fuse_fixed(mut left: Box<FixedLeaf>, mut right: Box<FixedLeaf>, capacity: Capacity) -> (Link, Option<Split>) {
    let (count, half) = (left.len() + right.len(), (left.len() + right.len()) / 2);
    if count <= capacity.pairs_max() {
        left.append(&right);
        return (Link::from(left), None);
    }
    if left.len() < half {
        let rest = right.split_off(half - left.len());
        left.append(&right);
        *right = rest;
    } else {
        let mut moved = left.split_off(half);
        moved.append(&right);
        *right = moved;
    }
    let separator = right.first_key().to_key();
    (Link::from(left), Some(Split { separator, right: Link::from(right) }))
}

fn fuse_variable(mut left: VariableLeaf, right: VariableLeaf, capacity: Capacity) -> (Link, Option<Split>) {
    left.append(right);
    if left.len() <= capacity.pairs_max() {
        return (Link::variable(left), None);
    }
    let right = left.split_off(left.len() / 2);
    let separator = separator(&left.keys()[left.len() - 1], &right.keys()[0]);
    (Link::variable(left), Some(Split { separator, right: Link::variable(right) }))
}

fn into_variable(leaf: OwnedNode) -> VariableLeaf {
    match leaf {
        OwnedNode::Fixed(leaf) => VariableLeaf::from_fixed(&leaf),
        OwnedNode::Variable(leaf) => *leaf,
        OwnedNode::Inner(_) => unreachable!("neighbours have the same height"),
    }
}
