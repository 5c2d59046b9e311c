//! Cutting a tree at a key: the nodes on the key's path are cut, the parts on either side joined again. O(log n).

use crate::capacity::Capacity;
use crate::join::{Subtree, join};
use crate::key::Probe;
use crate::node::{Inner, Link, OwnedNode};
use crate::value::Key;

/// What lies below the probe, and what does not.
pub(crate) fn split(tree: Subtree, probe: Probe<'_>, capacity: Capacity) -> (Option<Subtree>, Option<Subtree>) {
    let height = tree.height;
    match tree.link.into_owned() {
        OwnedNode::Inner(mut inner) => {
            let at = inner.search(probe);
            let right = (at + 1 < inner.len()).then(|| inner.split_off(at + 1));
            let left = (at > 0).then(|| {
                let (separator, child) = inner.split_off(at);
                (Box::new(std::mem::replace(&mut *inner, child)), separator)
            });
            let child = Subtree { link: inner.take_child(0), height: height - 1 };
            let (below, above) = split(child, probe, capacity);
            let left = left.map(|(left, separator)| (collapsed(left, height), separator));
            let right = right.map(|(separator, right)| (separator, collapsed(Box::new(right), height)));
            (join_left(left, below, capacity), join_right(above, right, capacity))
        }
        OwnedNode::Fixed(mut leaf) => {
            let at = leaf.rank(leaf.lower_bound(probe));
            if at == 0 || at == leaf.len() {
                return one_side(Link::from(leaf), at == 0);
            }
            let right = leaf.split_off(at);
            (leaf_tree(Link::from(leaf)), leaf_tree(Link::fixed(right)))
        }
        OwnedNode::Variable(mut leaf) => {
            let at = leaf.lower_bound(probe);
            if at == 0 || at == leaf.len() {
                return one_side(Link::from(leaf), at == 0);
            }
            let right = leaf.split_off(at);
            (leaf_tree(Link::from(leaf)), leaf_tree(Link::variable(right)))
        }
    }
}

fn leaf_tree(link: Link) -> Option<Subtree> {
    Some(Subtree { link, height: 0 })
}

fn one_side(link: Link, is_right: bool) -> (Option<Subtree>, Option<Subtree>) {
    if is_right { (None, leaf_tree(link)) } else { (leaf_tree(link), None) }
}

/// A root needs no inner node of one child.
fn collapsed(mut inner: Box<Inner>, height: usize) -> Subtree {
    match inner.len() {
        1 => Subtree { link: inner.take_child(0), height: height - 1 },
        _ => Subtree { link: Link::from(inner), height },
    }
}

fn join_left(left: Option<(Subtree, Key)>, below: Option<Subtree>, capacity: Capacity) -> Option<Subtree> {
    match (left, below) {
        (Some((left, separator)), Some(below)) => Some(join(left, &separator, below, capacity)),
        (left, below) => left.map(|(left, _)| left).or(below),
    }
}

fn join_right(above: Option<Subtree>, right: Option<(Key, Subtree)>, capacity: Capacity) -> Option<Subtree> {
    match (above, right) {
        (Some(above), Some((separator, right))) => Some(join(above, &separator, right, capacity)),
        (above, right) => right.map(|(_, right)| right).or(above),
    }
}
