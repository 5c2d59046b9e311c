//! Neighbours that hold too little get together: merged into one node, or evened out.
//!
//! Fill is a matter of memory, not of correctness: only a removal, a split of the tree and a join make nodes thin, and
//! each puts right what it touched.

use crate::capacity::Capacity;
use crate::key::separator;
use crate::node::{Inner, Node, OwnedNode, Split};
use crate::shared::Link;
use crate::value::Key;
use crate::wide::Wide;
use crate::words::Words;

/// Whether the node should get together with a neighbour.
#[inline]
pub(crate) fn is_thin(link: &Link, capacity: Capacity) -> bool {
    match link.node() {
        Node::Inner(inner) => inner.len() < capacity.children_low(),
        Node::Words(words) => words.len() < capacity.pairs_low(),
        Node::Wide(wide) => wide.len() < capacity.pairs_low(),
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
        (OwnedNode::Words(left), OwnedNode::Words(right)) => fuse_words(left, right, capacity),
        (left, right) => fuse_wide(into_wide(left), into_wide(right), capacity),
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

fn fuse_words(mut left: Box<Words>, mut right: Box<Words>, capacity: Capacity) -> (Link, Option<Split>) {
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

fn fuse_wide(mut left: Wide, right: Wide, capacity: Capacity) -> (Link, Option<Split>) {
    left.append(right);
    if left.len() <= capacity.pairs_max() {
        return (Link::wide(left), None);
    }
    let right = left.split_off(left.len() / 2);
    let separator = separator(&left.keys()[left.len() - 1], &right.keys()[0]);
    (Link::wide(left), Some(Split { separator, right: Link::wide(right) }))
}

fn into_wide(leaf: OwnedNode) -> Wide {
    match leaf {
        OwnedNode::Words(words) => Wide::from_words(&words),
        OwnedNode::Wide(wide) => *wide,
        OwnedNode::Inner(_) => unreachable!("neighbours have the same height"),
    }
}
