//! Removing a pair: down to its leaf, and back up with what changed, thin nodes getting together with a neighbour.

use crate::batch::Way;
use crate::capacity::Capacity;
use crate::fix::fix_child;
use crate::key::Probe;
use crate::node::{Inner, Node, NodeMut, Summary};
use crate::shared::{Link, LinkMut};
use crate::value::Value;

/// One removal on its way down and up. `ALONE`: nobody asked for its nodes before.
struct Removal<'a, const ALONE: bool> {
    probe: Probe<'a>,
    /// Where the key went down before, if it did not come `ALONE`.
    way: Way,
    capacity: Capacity,
    /// What the subtree below shrank by.
    gone: Summary,
}

/// Removes `key` from the tree under `root`; returns its value.
pub(crate) fn remove<const ALONE: bool>(
    root: &mut Option<Link>,
    key: &[u8],
    way: Way,
    capacity: Capacity,
) -> Option<Value> {
    let link = root.as_mut()?;
    let mut removal = Removal::<ALONE> { probe: Probe::new(key), way, capacity, gone: Summary::default() };
    let value = removal.descend(link.into())?;
    match link.node() {
        Node::Inner(inner) if inner.len() == 1 => *root = Some(link.own_inner().take_child(0)),
        Node::Words(words) if words.len() == 0 => *root = None,
        Node::Wide(wide) if wide.len() == 0 => *root = None,
        _ => {}
    }
    Some(value)
}

impl<const ALONE: bool> Removal<'_, ALONE> {
    fn descend(&mut self, mut link: LinkMut<'_>) -> Option<Value> {
        match link.node() {
            Node::Inner(inner) => {
                let at = if ALONE { inner.search(self.probe) } else { inner.search_near(self.way.pop(), self.probe) };
                self.descend_inner(link.own_inner(), at)
            }
            Node::Words(words) => {
                if !self.probe.is_word() {
                    return None;
                }
                let slot = words.find(self.probe.head).ok()?;
                let NodeMut::Words(words) = link.own() else { unreachable!("a copy is of the same kind") };
                let (value, digest) = words.remove(slot);
                self.gone = Summary { len: 1, bytes: 16, digest };
                Some(Value::from(value))
            }
            Node::Wide(wide) => {
                let at = wide.find(self.probe).ok()?;
                let NodeMut::Wide(wide) = link.again().own() else { unreachable!("a copy is of the same kind") };
                let (value, gone) = wide.remove(at);
                self.gone = gone;
                // When the last odd pair has gone, the leaf becomes a fast one again.
                if let Some(words) = wide.to_words() {
                    link.set(Link::words(words));
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
