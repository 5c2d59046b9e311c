//! Removing a pair: down to its leaf, and back up with what changed, thin nodes getting together with a neighbour.

use crate::capacity::Capacity;
use crate::fix::fix_child;
use crate::key::Probe;
use crate::node::{Inner, Link, Summary};
use crate::value::Value;

/// One removal on its way down and up; `ALONE` as in [`search::find_block`](crate::search::find_block).
struct Removal<'a, const ALONE: bool> {
    probe: Probe<'a>,
    capacity: Capacity,
    /// What the subtree below shrank by.
    gone: Summary,
}

/// Removes `key` from the tree under `root`; returns its value.
pub(crate) fn remove<const ALONE: bool>(root: &mut Option<Link>, key: &[u8], capacity: Capacity) -> Option<Value> {
    let link = root.as_mut()?;
    let mut removal = Removal::<ALONE> { probe: Probe::new(key), capacity, gone: Summary::default() };
    let value = removal.descend(link)?;
    match link {
        Link::Inner(inner) if inner.len() == 1 => *root = Some(inner.own().take_child(0)),
        link if link.width() == 0 => *root = None,
        _ => {}
    }
    Some(value)
}

impl<const ALONE: bool> Removal<'_, ALONE> {
    fn descend(&mut self, link: &mut Link) -> Option<Value> {
        match link {
            Link::Inner(inner) => {
                let at = Inner::search_ahead::<ALONE>(inner, self.probe);
                self.descend_inner(inner.own(), at)
            }
            Link::Words(words) => {
                if !self.probe.is_word() {
                    return None;
                }
                let at = words.find::<ALONE>(self.probe.head).ok()?;
                let (value, digest) = words.own().remove(at);
                self.gone = Summary { len: 1, bytes: 16, digest };
                Some(Value::from(value))
            }
            Link::Wide(wide) => {
                let at = wide.find(self.probe).ok()?;
                let wide = wide.own();
                let (value, gone) = wide.remove(at);
                self.gone = gone;
                // When the last odd pair has gone, the leaf becomes a fast one again.
                if let Some(words) = wide.to_words() {
                    *link = Link::words(words);
                }
                Some(value)
            }
        }
    }

    fn descend_inner(&mut self, inner: &mut Inner, at: usize) -> Option<Value> {
        let value = self.descend(inner.child_mut(at))?;
        inner.apply(Summary::default().minus(self.gone));
        fix_child(inner, at, self.capacity);
        Some(value)
    }
}
