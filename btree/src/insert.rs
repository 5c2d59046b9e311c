//! Writing a pair: down to its leaf, and back up with what changed and with nodes that had to split.

use crate::capacity::Capacity;
use crate::key::{Probe, separator};
use crate::node::{Inner, Link, Split, Summary};
use crate::shared::Shared;
use crate::value::{Key, Value};
use crate::wide::Wide;
use crate::words::Words;

/// One write on its way down and up; `ALONE` as in [`search::find_block`](crate::search::find_block).
pub(crate) struct Write<'a, const ALONE: bool> {
    probe: Probe<'a>,
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
    pub fn new(key: &'a [u8], value: &'a [u8], overwrite: bool, capacity: Capacity) -> Self {
        Self {
            probe: Probe::new(key),
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
                    words.insert(0, self.probe.head, value);
                    Link::words(words)
                }
                _ => {
                    let mut wide = Wide::default();
                    wide.insert(0, self.probe.key, self.value);
                    Link::wide(wide)
                }
            });
            return;
        };
        self.descend(link);
        if let Some(Split { separator, right }) = self.split.take() {
            let left = root.take().expect("the root that split");
            *root = Some(Link::inner(Inner::of_two(left, separator, right)));
        }
    }

    fn descend(&mut self, link: &mut Link) {
        match link {
            Link::Inner(inner) => {
                let at = Inner::search_ahead::<ALONE>(inner, self.probe);
                self.descend_inner(inner.own(), at);
            }
            Link::Words(_) => self.write_words(link),
            Link::Wide(_) => self.write_wide(link),
        }
    }

    #[inline]
    fn descend_inner(&mut self, inner: &mut Inner, at: usize) {
        self.rightmost &= at + 1 == inner.len();
        self.descend(inner.child_mut(at));
        inner.apply(self.change);
        if let Some(Split { separator, right }) = self.split.take() {
            inner.insert_child(at, separator, right);
            if inner.len() > self.capacity.children_max() {
                // At the right edge the left part stays full: keys that only grow fill their nodes.
                let cut = if self.rightmost { inner.len() - 2 } else { inner.len() / 2 };
                let (separator, right) = inner.split_off(cut);
                self.split = Some(Split { separator, right: Link::inner(right) });
            }
        }
    }

    fn write_words(&mut self, link: &mut Link) {
        let Link::Words(words) = link else { unreachable!("the caller saw a fast leaf") };
        if self.probe.is_word() {
            let value = <[u8; 8]>::try_from(self.value);
            match (words.find::<ALONE>(self.probe.head), value) {
                (Ok(at), _) if !self.overwrite => {
                    self.previous = Some(Value::from(words.values()[at]));
                    return;
                }
                (Ok(at), Ok(value)) => {
                    self.previous = Some(Value::from(words.values()[at]));
                    self.change.digest = words.own().replace(at, value);
                    return;
                }
                (Err(at), Ok(value)) => {
                    let words = words.own();
                    let digest = words.insert(at, self.probe.head, value);
                    self.change = Summary { len: 1, bytes: 16, digest };
                    if words.len() > self.capacity.pairs_max() {
                        let right = words.split_off(self.leaf_cut(at, words.len()));
                        let separator = Key::from(right.keys()[0].to_be_bytes());
                        self.split = Some(Split { separator, right: Link::words(right) });
                    }
                    return;
                }
                (_, Err(_)) => {}
            }
        }
        // The pair does not fit a fast leaf: from here on this leaf is a general one.
        *link = Link::Wide(Shared::new(Wide::from_words(words)));
        self.write_wide(link);
    }

    fn write_wide(&mut self, link: &mut Link) {
        let Link::Wide(wide) = link else { unreachable!("the caller saw a general leaf") };
        match wide.find(self.probe) {
            Ok(at) if !self.overwrite => self.previous = Some(wide.values()[at].clone()),
            Ok(at) => {
                let (previous, change) = wide.own().replace(at, self.value);
                self.previous = Some(previous);
                self.change = change;
            }
            Err(at) => {
                let wide = wide.own();
                let digest = wide.insert(at, self.probe.key, self.value);
                let bytes = (self.probe.key.len() + self.value.len()) as u64;
                self.change = Summary { len: 1, bytes, digest };
                if wide.len() > self.capacity.pairs_max() {
                    let right = wide.split_off(self.leaf_cut(at, wide.len()));
                    let separator = separator(&wide.keys()[wide.len() - 1], &right.keys()[0]);
                    if let Some(words) = wide.to_words() {
                        *link = Link::words(words);
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
