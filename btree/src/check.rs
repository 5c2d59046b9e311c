//! Every invariant, verified from scratch: for tests and simulations.

use std::fmt;

use crate::capacity::Capacity;
use crate::key::KeyRef;
use crate::node::{Inner, Link, Node, Summary};

/// An invariant that does not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

fn violation<T>(text: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(text.into()))
}

/// How a tree is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Levels above the leaves.
    pub height: usize,
    /// Leaves of either kind.
    pub leaves: u64,
    /// Leaves of eight-byte keys and values.
    pub leaves_fixed: u64,
    /// Nodes above the leaves.
    pub inner_nodes: u64,
    /// Those of them that have borrowed children from what they were copied from, and keep that alive.
    pub borrowing: u64,
}

/// Verifies the tree under `root`.
pub(crate) fn check(root: &Link, capacity: Capacity) -> Result<Shape, Violation> {
    let height = root.height();
    let mut checker = Checker { capacity, shape: Shape { height, ..Shape::default() } };
    checker.check_link(root, height, None, None)?;
    Ok(checker.shape)
}

/// A walk over a whole tree.
struct Checker {
    capacity: Capacity,
    /// Of what it has seen so far.
    shape: Shape,
}

impl Checker {
    fn check_link(
        &mut self,
        link: &Link,
        height: usize,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
    ) -> Result<Summary, Violation> {
        let counted = match link.node() {
            Node::Inner(inner) if height > 0 => self.check_inner(inner, height, low, high)?,
            Node::Fixed(leaf) if height == 0 => {
                if let Err(text) = leaf.check_slots() {
                    return violation(text);
                }
                self.shape.leaves_fixed += 1;
                let pairs = leaf.pairs().map(|(key, value)| (KeyRef::Word(key.to_be_bytes()), &value[..]));
                self.check_keys(pairs, low, high)?
            }
            Node::Variable(leaf) if height == 0 => {
                if !leaf.has_matching_heads() {
                    return violation("heads do not match their keys");
                }
                let keys = (0..leaf.len()).map(|at| leaf.key(at));
                self.check_keys(keys.zip(leaf.values()).map(|(key, value)| (key, &value[..])), low, high)?
            }
            _ => return violation(format!("a node of the wrong kind at height {height}")),
        };
        if height == 0 {
            self.shape.leaves += 1;
        }
        if counted != link.summary() {
            return violation(format!("a node at height {height} sums to {counted:?}, says {:?}", link.summary()));
        }
        Ok(counted)
    }

    fn check_inner(
        &mut self,
        inner: &Inner,
        height: usize,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
    ) -> Result<Summary, Violation> {
        if let Err(text) = inner.check_slots() {
            return violation(text);
        }
        if inner.len() < 2 || inner.len() > self.capacity.children_max() {
            return violation(format!("an inner node of {} children", inner.len()));
        }
        self.shape.inner_nodes += 1;
        self.shape.borrowing += u64::from(inner.is_borrowing());
        let mut sum = Summary::default();
        let mut low = low.map(<[u8]>::to_vec);
        for (at, child) in inner.children().enumerate() {
            let separator = (at + 1 < inner.len()).then(|| inner.separator(at).to_vec());
            let child_high = separator.as_deref().or(high);
            if let (Some(low), Some(high)) = (&low, child_high)
                && low.as_slice() >= high
            {
                return violation(format!("separators out of order: {low:?} and {high:?}"));
            }
            sum = sum.plus(self.check_link(child, height - 1, low.as_deref(), child_high)?);
            low = separator.or(low);
        }
        Ok(sum)
    }

    fn check_keys<'a>(
        &self,
        pairs: impl Iterator<Item = (KeyRef<'a>, &'a [u8])>,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
    ) -> Result<Summary, Violation> {
        let mut sum = Summary::default();
        let mut last: Option<Vec<u8>> = None;
        for (key, value) in pairs {
            if last.as_deref().is_some_and(|last| last >= &*key) {
                return violation(format!("keys out of order: {last:?} before {key:?}"));
            }
            if low.is_some_and(|low| &*key < low) || high.is_some_and(|high| &*key >= high) {
                return violation(format!("{key:?} outside of its separators {low:?} and {high:?}"));
            }
            sum = sum.plus(Summary::of_pair(&key, value));
            last = Some(key.to_vec());
        }
        if sum.len == 0 || sum.len > self.capacity.pairs_max() as u64 {
            return violation(format!("a leaf of {} pairs", sum.len));
        }
        Ok(sum)
    }
}
