//! Writing a pair: down to its leaf, and back up with what changed and with nodes that had to split.

use crate::capacity::Capacity;
use crate::descent::DescentHint;
use crate::key::{Probe, separator};
use crate::node::{FixedLeaf, Inner, Link, LinkMut, Node, NodeMut, Slot, Split, Summary, VariableLeaf};
use crate::value::Value;

/// One write on its way down and up. `ALONE`: nobody asked for its nodes before.
pub(crate) struct Write<'a, const ALONE: bool> {
    probe: Probe<'a>,
    /// Where the key went down before, if it did not come `ALONE`.
    hint: DescentHint,
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
    pub fn new(key: &'a [u8], value: &'a [u8], overwrite: bool, hint: DescentHint, capacity: Capacity) -> Self {
        Self {
            probe: Probe::new(key),
            hint,
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
                    let mut leaf = FixedLeaf::new();
                    leaf.push(self.probe.head, value);
                    Link::fixed(leaf)
                }
                _ => {
                    let mut leaf = VariableLeaf::new();
                    leaf.insert(0, self.probe.key, self.value);
                    Link::variable(leaf)
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
                let at = if ALONE { inner.search(self.probe) } else { inner.search_near(self.hint.pop(), self.probe) };
                if let NodeMut::Inner(inner) = link.own() {
                    self.descend_inner(inner, at);
                }
            }
            Node::Fixed(leaf) if self.probe.is_word() => {
                let place = leaf.find(self.probe.head);
                match (place, <[u8; 8]>::try_from(self.value)) {
                    (Ok(slot), _) if !self.overwrite => self.previous = Some(Value::from(*leaf.value(slot))),
                    (place, Ok(value)) => self.write_fixed(link, place, value),
                    (_, Err(_)) => self.write_odd(link),
                }
            }
            Node::Fixed(_) => self.write_odd(link),
            Node::Variable(_) => self.write_variable(link),
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
    fn write_fixed(&mut self, link: LinkMut<'_>, place: Result<Slot, Slot>, value: [u8; 8]) {
        let NodeMut::Fixed(leaf) = link.own() else { unreachable!("the caller saw a fixed-size leaf") };
        match place {
            Ok(slot) => {
                self.previous = Some(Value::from(*leaf.value(slot)));
                self.change.digest = leaf.replace(slot, value);
            }
            Err(slot) => {
                let at = leaf.rank(slot);
                let digest = leaf.insert(slot, self.probe.head, value);
                self.change = Summary { len: 1, bytes: 16, digest };
                if leaf.len() > self.capacity.pairs_max() {
                    let right = leaf.split_off(self.leaf_cut(at, leaf.len()));
                    let separator = right.first_key().to_key();
                    self.split = Some(Split { separator, right: Link::fixed(right) });
                }
            }
        }
    }

    /// Writes a pair that does not fit a fixed-size leaf: from here on this leaf is a variable one.
    #[cold]
    fn write_odd(&mut self, mut link: LinkMut<'_>) {
        if let Node::Fixed(leaf) = link.node() {
            let leaf = VariableLeaf::from_fixed(leaf);
            link.set(Link::from(Box::new(leaf)));
        }
        self.write_variable(link);
    }

    fn write_variable(&mut self, mut link: LinkMut<'_>) {
        let Node::Variable(leaf) = link.node() else { unreachable!("the caller saw a variable leaf") };
        let place = leaf.find(self.probe);
        if let (Ok(at), false) = (place, self.overwrite) {
            self.previous = Some(leaf.values()[at].clone());
            return;
        }
        let NodeMut::Variable(leaf) = link.again().own() else { unreachable!("a copy is of the same kind") };
        match place {
            Ok(at) => {
                let (previous, change) = leaf.replace(at, self.value);
                self.previous = Some(previous);
                self.change = change;
            }
            Err(at) => {
                let digest = leaf.insert(at, self.probe.key, self.value);
                let bytes = (self.probe.key.len() + self.value.len()) as u64;
                self.change = Summary { len: 1, bytes, digest };
                if leaf.len() > self.capacity.pairs_max() {
                    let right = leaf.split_off(self.leaf_cut(at, leaf.len()));
                    let separator = separator(&leaf.keys()[leaf.len() - 1], &right.keys()[0]);
                    if let Some(leaf) = leaf.to_fixed() {
                        link.set(Link::fixed(leaf));
                    }
                    self.split = Some(Split { separator, right: Link::variable(right) });
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
