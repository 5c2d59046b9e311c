//! Cutting a tree at a key: the nodes on the key's path are cut, the parts on either side joined again. O(log n).

use crate::capacity::Capacity;
use crate::join::{Tall, join};
use crate::key::Probe;
use crate::node::{Inner, OwnedNode};
use crate::shared::Link;
use crate::value::Key;

/// What lies below the probe, and what does not.
pub(crate) fn split(tree: Tall, probe: Probe<'_>, capacity: Capacity) -> (Option<Tall>, Option<Tall>) {
    let height = tree.height;
    match tree.link.into_owned() {
        OwnedNode::Inner(mut inner) => {
            let at = inner.search(probe);
            let right = (at + 1 < inner.len()).then(|| inner.split_off(at + 1));
            let left = (at > 0).then(|| {
                let (separator, child) = inner.split_off(at);
                (Box::new(std::mem::replace(&mut *inner, child)), separator)
            });
            let child = Tall { link: inner.take_child(0), height: height - 1 };
            let (below, above) = split(child, probe, capacity);
            let left = left.map(|(left, separator)| (collapsed(left, height), separator));
            let right = right.map(|(separator, right)| (separator, collapsed(Box::new(right), height)));
            (join_left(left, below, capacity), join_right(above, right, capacity))
        }
        OwnedNode::Words(mut words) => {
            let at = words.rank(words.lower_bound(probe));
            if at == 0 || at == words.len() {
                return one_side(Link::from(words), at == 0);
            }
            let right = words.split_off(at);
            (leaf(Link::from(words)), leaf(Link::words(right)))
        }
        OwnedNode::Wide(mut wide) => {
            let at = wide.lower_bound(probe);
            if at == 0 || at == wide.len() {
                return one_side(Link::from(wide), at == 0);
            }
            let right = wide.split_off(at);
            (leaf(Link::from(wide)), leaf(Link::wide(right)))
        }
    }
}

fn leaf(link: Link) -> Option<Tall> {
    Some(Tall { link, height: 0 })
}

fn one_side(link: Link, is_right: bool) -> (Option<Tall>, Option<Tall>) {
    if is_right { (None, leaf(link)) } else { (leaf(link), None) }
}

/// A root needs no inner node of one child.
fn collapsed(mut inner: Box<Inner>, height: usize) -> Tall {
    match inner.len() {
        1 => Tall { link: inner.take_child(0), height: height - 1 },
        _ => Tall { link: Link::from(inner), height },
    }
}

fn join_left(left: Option<(Tall, Key)>, below: Option<Tall>, capacity: Capacity) -> Option<Tall> {
    match (left, below) {
        (Some((left, separator)), Some(below)) => Some(join(left, &separator, below, capacity)),
        (left, below) => left.map(|(left, _)| left).or(below),
    }
}

fn join_right(above: Option<Tall>, right: Option<(Key, Tall)>, capacity: Capacity) -> Option<Tall> {
    match (above, right) {
        (Some(above), Some((separator, right))) => Some(join(above, &separator, right, capacity)),
        (above, right) => right.map(|(_, right)| right).or(above),
    }
}
