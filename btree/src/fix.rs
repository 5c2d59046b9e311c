//! Neighbours that hold too little get together: merged into one node, or evened out.
//!
//! Fill is a matter of memory, not of correctness: only a removal, a split of the tree and a join make nodes thin, and
//! each puts right what it touched.

use crate::capacity::Capacity;
use crate::key::separator;
use crate::node::{Inner, Link, Split};
use crate::shared::Shared;
use crate::value::Key;
use crate::wide::Wide;
use crate::words::Words;

/// Whether the node should get together with a neighbour.
#[inline]
pub(crate) fn is_thin(link: &Link, capacity: Capacity) -> bool {
    match link {
        Link::Inner(inner) => inner.len() < capacity.children_low(),
        Link::Words(words) => words.len() < capacity.pairs_low(),
        Link::Wide(wide) => wide.len() < capacity.pairs_low(),
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
    match (left, right) {
        (Link::Inner(left), Link::Inner(right)) => {
            let (left, right) = (left.into_inner(), right.into_inner());
            fuse_inner(left, separator, right, capacity)
        }
        (Link::Words(left), Link::Words(right)) => fuse_words(left, right, capacity),
        (left, right) => fuse_wide(into_wide(left), into_wide(right), capacity),
    }
}

fn fuse_inner(mut left: Inner, separator: Key, mut right: Inner, capacity: Capacity) -> (Link, Option<Split>) {
    let (count, half) = (left.len() + right.len(), (left.len() + right.len()) / 2);
    if count <= capacity.children_max() {
        left.append(separator, right);
        return (Link::inner(left), None);
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
    (Link::inner(left), Some(Split { separator, right: Link::inner(right) }))
}

fn fuse_words(mut left: Shared<Words>, mut right: Shared<Words>, capacity: Capacity) -> (Link, Option<Split>) {
    let (count, half) = (left.len() + right.len(), (left.len() + right.len()) / 2);
    let into = left.own();
    if count <= capacity.pairs_max() {
        into.append(&right);
        return (Link::Words(left), None);
    }
    if into.len() < half {
        let from = right.own();
        let rest = from.split_off(half - into.len());
        into.append(from);
        *from = rest;
    } else {
        let mut moved = into.split_off(half);
        moved.append(&right);
        right = Shared::new(moved);
    }
    let separator = Key::from(right.keys()[0].to_be_bytes());
    (Link::Words(left), Some(Split { separator, right: Link::Words(right) }))
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

fn into_wide(leaf: Link) -> Wide {
    match leaf {
        Link::Words(words) => Wide::from_words(&words),
        Link::Wide(wide) => wide.into_inner(),
        Link::Inner(_) => unreachable!("neighbours have the same height"),
    }
}
