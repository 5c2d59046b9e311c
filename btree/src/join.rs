//! Joining two trees of disjoint ranges: the lower one becomes a child at the edge of the higher one. O(log n).

use crate::capacity::Capacity;
use crate::fix::{fuse, fuse_children, is_thin};
use crate::node::{Inner, Link, Split};
use crate::value::Key;

/// A tree and its height; a leaf has height 0.
pub(crate) struct Subtree {
    pub link: Link,
    pub height: usize,
}

/// Everything of `left` and `right`. The keys of `left` lie below `separator`, those of `right` do not.
pub(crate) fn join(mut left: Subtree, separator: &Key, mut right: Subtree, capacity: Capacity) -> Subtree {
    let mut grown;
    let split = if left.height > right.height {
        let split = append(left.link.own_inner(), left.height, separator, right, capacity);
        grown = left;
        split
    } else if left.height < right.height {
        let split = prepend(right.link.own_inner(), right.height, separator, left, capacity);
        grown = right;
        split
    } else {
        let height = left.height;
        let (link, split) = if is_thin(&left.link, capacity) || is_thin(&right.link, capacity) {
            fuse(left.link, separator.clone(), right.link, capacity)
        } else {
            (left.link, Some(Split { separator: separator.clone(), right: right.link }))
        };
        grown = Subtree { link, height };
        split
    };
    if let Some(Split { separator, right }) = split {
        grown = Subtree { link: Link::inner(Inner::of_two(grown.link, separator, right)), height: grown.height + 1 };
    }
    grown
}

/// Adds `right` at the right edge of `inner`, which is higher.
fn append(inner: &mut Inner, height: usize, separator: &Key, right: Subtree, capacity: Capacity) -> Option<Split> {
    let last = inner.len() - 1;
    if height == right.height + 1 {
        inner.push(separator.clone(), right.link);
        fix_pair(inner, last, capacity);
    } else {
        let added = right.link.summary();
        let split = append(inner.child_mut(last).own_inner(), height - 1, separator, right, capacity);
        inner.apply(added);
        if let Some(Split { separator, right }) = split {
            inner.insert_child(last, separator, right);
        }
    }
    split_if_wide(inner, capacity)
}

/// Adds `left` at the left edge of `inner`, which is higher.
fn prepend(inner: &mut Inner, height: usize, separator: &Key, left: Subtree, capacity: Capacity) -> Option<Split> {
    if height == left.height + 1 {
        inner.push_front(left.link, separator.clone());
        fix_pair(inner, 0, capacity);
    } else {
        let added = left.link.summary();
        let split = prepend(inner.child_mut(0).own_inner(), height - 1, separator, left, capacity);
        inner.apply(added);
        if let Some(Split { separator, right }) = split {
            inner.insert_child(0, separator, right);
        }
    }
    split_if_wide(inner, capacity)
}

/// Puts right the pair of children at `at` of a node that has at least three, if one of the two is thin.
fn fix_pair(inner: &mut Inner, at: usize, capacity: Capacity) {
    if is_thin(inner.child(at), capacity) || is_thin(inner.child(at + 1), capacity) {
        fuse_children(inner, at, capacity);
    }
}

fn split_if_wide(inner: &mut Inner, capacity: Capacity) -> Option<Split> {
    if inner.len() <= capacity.children_max() {
        return None;
    }
    let (separator, right) = inner.split_off(inner.len() / 2);
    Some(Split { separator, right: Link::inner(right) })
}
