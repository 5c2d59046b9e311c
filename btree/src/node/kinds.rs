//! The three kinds of nodes, as a link shows them, and what is asked of any of them.

use crate::digest::hash_pair;
use crate::key::{KeyRef, Probe};
use crate::node::inner::CHILDREN_LINE;
use crate::node::{FixedLeaf, INNER_SLOTS, Inner, Link, LinkMut, VariableLeaf, prefetch};
use crate::search::BLOCK;
use crate::value::Key;

/// What a subtree holds. A change of a subtree is one too: its numbers wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub len: u64,
    pub bytes: u64,
    pub digest: u64,
}

impl Summary {
    pub fn of_pair(key: &[u8], value: &[u8]) -> Self {
        Self { len: 1, bytes: (key.len() + value.len()) as u64, digest: hash_pair(key, value) }
    }

    #[inline]
    pub fn plus(self, other: Self) -> Self {
        Self {
            len: self.len.wrapping_add(other.len),
            bytes: self.bytes.wrapping_add(other.bytes),
            digest: self.digest.wrapping_add(other.digest),
        }
    }

    #[inline]
    pub fn minus(self, other: Self) -> Self {
        Self {
            len: self.len.wrapping_sub(other.len),
            bytes: self.bytes.wrapping_sub(other.bytes),
            digest: self.digest.wrapping_sub(other.digest),
        }
    }
}

/// A node, to be read. All children of one node have the same height; leaves of both kinds may be siblings.
pub(crate) enum Node<'a> {
    Inner(&'a Inner),
    Fixed(&'a FixedLeaf),
    Variable(&'a VariableLeaf),
}

/// A node, to be changed.
pub(crate) enum NodeMut<'a> {
    Inner(&'a mut Inner),
    Fixed(&'a mut FixedLeaf),
    Variable(&'a mut VariableLeaf),
}

/// A node that no link leads to.
pub(crate) enum OwnedNode {
    Inner(Box<Inner>),
    Fixed(Box<FixedLeaf>),
    Variable(Box<VariableLeaf>),
}

/// What a node that became too large gives to its parent.
pub(crate) struct Split {
    pub separator: Key,
    pub right: Link,
}

impl Link {
    pub fn fixed(leaf: FixedLeaf) -> Self {
        Self::from(Box::new(leaf))
    }

    pub fn inner(inner: Inner) -> Self {
        Self::from(Box::new(inner))
    }

    /// A variable leaf, as a fixed-size one if possible.
    pub fn variable(leaf: VariableLeaf) -> Self {
        match leaf.to_fixed() {
            Some(leaf) => Self::fixed(leaf),
            None => Self::from(Box::new(leaf)),
        }
    }

    /// The inner node that a link above the leaves leads to, to be changed.
    pub fn own_inner(&mut self) -> &mut Inner {
        LinkMut::from(self).own_inner()
    }

    /// Asks for all of a node, without waiting for it: a key that goes down alone waits once for the node then, and
    /// neighbouring lines come almost as fast as one. Keys that go down together wait together, and want few lines.
    #[inline]
    pub fn prefetch_all(&self) {
        match self.node() {
            Node::Inner(inner) => prefetch(inner, 0..CHILDREN_LINE + INNER_SLOTS / BLOCK),
            Node::Fixed(leaf) => prefetch(leaf, 0..size_of::<FixedLeaf>() / 64),
            Node::Variable(leaf) => prefetch(leaf, 0..size_of::<VariableLeaf>().div_ceil(64)),
        }
    }

    #[inline]
    pub fn summary(&self) -> Summary {
        match self.node() {
            Node::Inner(inner) => inner.summary(),
            Node::Fixed(leaf) => leaf.summary(),
            Node::Variable(leaf) => leaf.summary(),
        }
    }

    /// The value of the probe in this leaf.
    #[inline]
    pub fn get_in_leaf(&self, probe: Probe<'_>) -> Option<&[u8]> {
        match self.node() {
            Node::Fixed(leaf) if probe.is_word() => Some(leaf.get(probe.head)?),
            Node::Variable(leaf) => Some(&leaf.values()[leaf.find(probe).ok()?]),
            _ => None,
        }
    }

    /// 0 for a leaf. O(height).
    pub fn height(&self) -> usize {
        match self.node() {
            Node::Inner(inner) => 1 + inner.child(0).height(),
            Node::Fixed(_) | Node::Variable(_) => 0,
        }
    }

    /// The smallest key of the subtree, which is not empty. O(height).
    pub fn first_key(&self) -> KeyRef<'_> {
        match self.node() {
            Node::Inner(inner) => inner.child(0).first_key(),
            Node::Fixed(leaf) => leaf.first_key(),
            Node::Variable(leaf) => leaf.key(0),
        }
    }

    /// The greatest key of the subtree, which is not empty. O(height).
    pub fn last_key(&self) -> KeyRef<'_> {
        match self.node() {
            Node::Inner(inner) => inner.child(inner.len() - 1).last_key(),
            Node::Fixed(leaf) => leaf.last_key().expect("no leaf in a tree is empty"),
            Node::Variable(leaf) => leaf.key(leaf.len() - 1),
        }
    }
}

impl<'a> LinkMut<'a> {
    /// The inner node that a link above the leaves leads to, to be changed.
    pub fn own_inner(self) -> &'a mut Inner {
        match self.own() {
            NodeMut::Inner(inner) => inner,
            _ => unreachable!("a node above leaves is an inner one"),
        }
    }
}
