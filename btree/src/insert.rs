//! Writing a pair: down to its leaf, and back up with what changed and with nodes that had to split.

use crate::batch::Way;
use crate::capacity::Capacity;
use crate::key::{Probe, separator};
use crate::node::{Inner, Node, NodeMut, Split, Summary};
use crate::shared::{Link, LinkMut};
use crate::value::Value;
use crate::wide::Wide;
use crate::words::{Slot, Words};

/// One write on its way down and up. `ALONE`: nobody asked for its nodes before.
pub(crate) struct Write<'a, const ALONE: bool> {
    probe: Probe<'a>,
    /// Where the key went down before, if it did not come `ALONE`.
    way: Way,
    value: &'a [u8],
    /// Whether a present value gives way (`put`) or stays (`insert`).
    overwrite: bool,
    capacity: Capacity,
    /// Whether the path so far is the tree's right edge.
    rightmost: bool,
    /// The value found.
    pub previous: Option<Value>,
    /// What the subtree below grew by.
    change: Summary,
    /// The right part of the node below, if it had to split.
    split: Option<Split>,
}

impl<'a, const ALONE: bool> Write<'a, ALONE> {
    pub fn new(key: &'a [u8], value: &'a [u8], overwrite: bool, way: Way, capacity: Capacity) -> Self {
        Self {
            probe: Probe::new(key),
            way,
            value,
            overwrite,
            capacity,
            rightmost: true,
            previous: None,
            change: Summary::default(),
            split: None,
        }
    }

    /// Writes into the tree under `root`.
    pub fn run(&mut self, root: &mut Option<Link>) {
        let Some(link) = root else {
            *root = Some(match (self.probe.is_word(), <[u8; 8]>::try_from(self.value)) {
                (true, Ok(value)) => {
                    let mut words = Words::new();
                    words.push(self.probe.head, value);
                    Link::words(words)
                }
                _ => {
                    let mut wide = Wide::new();
                    wide.insert(0, self.probe.key, self.value);
                    Link::wide(wide)
                }
            });
            return;
        };
        self.descend(link.into());
        if let Some(Split { separator, right }) = self.split.take() {
            let left = root.take().expect("the root that split");
            *root = Some(Link::inner(Inner::of_two(left, separator, right)));
        }
    }

    fn descend(&mut self, link: LinkMut<'_>) {
        match link.node() {
            Node::Inner(inner) => {
                let at = if ALONE { inner.search(self.probe) } else { inner.search_near(self.way.pop(), self.probe) };
                if let NodeMut::Inner(inner) = link.own() {
                    self.descend_inner(inner, at);
                }
            }
            Node::Words(words) if self.probe.is_word() => {
                let place = words.find(self.probe.head);
                match (place, <[u8; 8]>::try_from(self.value)) {
                    (Ok(slot), _) if !self.overwrite => self.previous = Some(Value::from(*words.value(slot))),
                    (place, Ok(value)) => self.write_words(link, place, value),
                    (_, Err(_)) => self.write_odd(link),
                }
            }
            Node::Words(_) => self.write_odd(link),
            Node::Wide(_) => self.write_wide(link),
        }
    }

    #[inline]
    fn descend_inner(&mut self, inner: &mut Inner, at: usize) {
        self.rightmost &= at + 1 == inner.len();
        let child = inner.child_mut(at);
        if ALONE {
            child.prefetch_all();
        }
        self.descend(child);
        inner.apply(self.change);
        if self.split.is_some() {
            self.split_inner(inner, at);
        }
    }

    #[cold]
    fn split_inner(&mut self, inner: &mut Inner, at: usize) {
        let Some(Split { separator, right }) = self.split.take() else { return };
        inner.insert_child(at, separator, right);
        if inner.len() > self.capacity.children_max() {
            // At the right edge the left part stays full: keys that only grow fill their nodes.
            let cut = if self.rightmost { inner.len() - 2 } else { inner.len() / 2 };
            let (separator, right) = inner.split_off(cut);
            self.split = Some(Split { separator, right: Link::inner(right) });
        }
    }

    #[inline]
    fn write_words(&mut self, link: LinkMut<'_>, place: Result<Slot, Slot>, value: [u8; 8]) {
        let NodeMut::Words(words) = link.own() else { unreachable!("the caller saw a fast leaf") };
        match place {
            Ok(slot) => {
                self.previous = Some(Value::from(*words.value(slot)));
                self.change.digest = words.replace(slot, value);
            }
            Err(slot) => {
                let at = words.rank(slot);
                let digest = words.insert(slot, self.probe.head, value);
                self.change = Summary { len: 1, bytes: 16, digest };
                if words.len() > self.capacity.pairs_max() {
                    let right = words.split_off(self.leaf_cut(at, words.len()));
                    let separator = right.first_key().to_key();
                    self.split = Some(Split { separator, right: Link::words(right) });
                }
            }
        }
    }

    /// Writes a pair that does not fit a fast leaf: from here on this leaf is a general one.
    #[cold]
    fn write_odd(&mut self, mut link: LinkMut<'_>) {
        if let Node::Words(words) = link.node() {
            let wide = Wide::from_words(words);
            link.set(Link::from(Box::new(wide)));
        }
        self.write_wide(link);
    }

    fn write_wide(&mut self, mut link: LinkMut<'_>) {
        let Node::Wide(wide) = link.node() else { unreachable!("the caller saw a general leaf") };
        let place = wide.find(self.probe);
        if let (Ok(at), false) = (place, self.overwrite) {
            self.previous = Some(wide.values()[at].clone());
            return;
        }
        let NodeMut::Wide(wide) = link.again().own() else { unreachable!("a copy is of the same kind") };
        match place {
            Ok(at) => {
                let (previous, change) = wide.replace(at, self.value);
                self.previous = Some(previous);
                self.change = change;
            }
            Err(at) => {
                let digest = wide.insert(at, self.probe.key, self.value);
                let bytes = (self.probe.key.len() + self.value.len()) as u64;
                self.change = Summary { len: 1, bytes, digest };
                if wide.len() > self.capacity.pairs_max() {
                    let right = wide.split_off(self.leaf_cut(at, wide.len()));
                    let separator = separator(&wide.keys()[wide.len() - 1], &right.keys()[0]);
                    if let Some(words) = wide.to_words() {
                        link.set(Link::words(words));
                    }
                    self.split = Some(Split { separator, right: Link::wide(right) });
                }
            }
        }
    }

    /// Where to cut a leaf of `len` pairs of which the one at `at` is new.
    fn leaf_cut(&self, at: usize, len: usize) -> usize {
        // At the right edge the left part stays full: keys that only grow fill their leaves.
        if self.rightmost && at + 1 == len { len - 1 } else { len / 2 }
    }
}
