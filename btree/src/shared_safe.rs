//! The same interface as `shared`, on `std::sync::Arc` and without hints: what the unsafe module is measured against.

use std::ops::Range;
use std::sync::Arc;

use crate::node::{Inner, Node, NodeMut, OwnedNode};
use crate::wide::Wide;
use crate::words::Words;

/// `Arc` counts; here the field takes the place of the count in a node, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Owners(#[expect(dead_code, reason = "it keeps the layout of the nodes")] u32);

impl Owners {
    pub fn one() -> Self {
        Self(1)
    }
}

/// A counted reference to a node.
#[derive(Clone)]
pub(crate) enum Link {
    Inner(Arc<Inner>),
    Words(Arc<Words>),
    Wide(Arc<Wide>),
}

impl Link {
    #[inline]
    pub fn node(&self) -> Node<'_> {
        match self {
            Self::Inner(inner) => Node::Inner(inner),
            Self::Words(words) => Node::Words(words),
            Self::Wide(wide) => Node::Wide(wide),
        }
    }

    #[inline]
    pub fn own(&mut self) -> NodeMut<'_> {
        match self {
            Self::Inner(inner) => NodeMut::Inner(Arc::make_mut(inner)),
            Self::Words(words) => NodeMut::Words(Arc::make_mut(words)),
            Self::Wide(wide) => NodeMut::Wide(Arc::make_mut(wide)),
        }
    }

    pub fn into_owned(self) -> OwnedNode {
        match self {
            Self::Inner(inner) => OwnedNode::Inner(Box::new(Arc::unwrap_or_clone(inner))),
            Self::Words(words) => OwnedNode::Words(Box::new(Arc::unwrap_or_clone(words))),
            Self::Wide(wide) => OwnedNode::Wide(Box::new(Arc::unwrap_or_clone(wide))),
        }
    }

    #[inline]
    pub fn prefetch(&self, _lines: Range<usize>) {}
}

impl From<Box<Inner>> for Link {
    fn from(node: Box<Inner>) -> Self {
        Self::Inner(Arc::from(node))
    }
}

impl From<Box<Words>> for Link {
    fn from(node: Box<Words>) -> Self {
        Self::Words(Arc::from(node))
    }
}

impl From<Box<Wide>> for Link {
    fn from(node: Box<Wide>) -> Self {
        Self::Wide(Arc::from(node))
    }
}

#[inline]
pub(crate) fn prefetch<T>(_node: &T, _lines: Range<usize>) {}
