//! Removing a pair: down to its leaf, and back up with what changed, thin nodes getting together with a neighbour.

use crate::capacity::Capacity;
use crate::descent::DescentHint;
use crate::fix::fix_child;
use crate::key::Probe;
use crate::node::{Inner, Link, LinkMut, Node, NodeMut, Summary};
use crate::value::Value;

/// One removal on its way down and up. `ALONE`: nobody asked for its nodes before.
struct Removal<'a, const ALONE: bool> {
    probe: Probe<'a>,
    /// Where the key went down before, if it did not come `ALONE`.
    hint: DescentHint,
    capacity: Capacity,
    /// What the subtree below shrank by.
    gone: Summary,
}

/// Removes `key` from the tree under `root`; returns its value.
pub(crate) fn remove<const ALONE: bool>(
    root: &mut Option<Link>,
    key: &[u8],
    hint: DescentHint,
    capacity: Capacity,
) -> Option<Value> {
    let link = root.as_mut()?;
    let mut removal = Removal::<ALONE> { probe: Probe::new(key), hint, capacity, gone: Summary::default() };
    let value = removal.descend(link.into())?;
    match link.node() {
        Node::Inner(inner) if inner.len() == 1 => *root = Some(link.own_inner().take_child(0)),
        Node::Fixed(leaf) if leaf.len() == 0 => *root = None,
        Node::Variable(leaf) if leaf.len() == 0 => *root = None,
        _ => {}
    }
    Some(value)
}

impl<const ALONE: bool> Removal<'_, ALONE> {
    fn descend(&mut self, mut link: LinkMut<'_>) -> Option<Value> {
        match link.node() {
            Node::Inner(inner) => {
                let at = if ALONE { inner.search(self.probe) } else { inner.search_near(self.hint.pop(), self.probe) };
                self.descend_inner(link.own_inner(), at)
            }
            Node::Fixed(leaf) => {
                if !self.probe.is_word() {
                    return None;
                }
                let slot = leaf.find(self.probe.head).ok()?;
                let NodeMut::Fixed(leaf) = link.own() else { unreachable!("a copy is of the same kind") };
                let (value, digest) = leaf.remove(slot);
                self.gone = Summary { len: 1, bytes: 16, digest };
                Some(Value::from(value))
            }
            Node::Variable(leaf) => {
                let at = leaf.find(self.probe).ok()?;
                let NodeMut::Variable(leaf) = link.again().own() else { unreachable!("a copy is of the same kind") };
                let (value, gone) = leaf.remove(at);
                self.gone = gone;
                // When the last odd pair has gone, the leaf becomes a fixed-size one again.
                if let Some(leaf) = leaf.to_fixed() {
                    link.set(Link::fixed(leaf));
                }
                Some(value)
            }
        }
    }

    fn descend_inner(&mut self, inner: &mut Inner, at: usize) -> Option<Value> {
        let child = inner.child_mut(at);
        if ALONE {
            child.prefetch_all();
        }
        let value = self.descend(child)?;
        inner.apply(Summary::default().minus(self.gone));
        fix_child(inner, at, self.capacity);
        Some(value)
    }
}
