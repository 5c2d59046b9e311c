//! The same interface as `shared`, on `std::sync::Arc` and without hints: what the unsafe module is measured against.

use std::ops::Range;
use std::sync::Arc;

use crate::node::{FixedLeaf, INNER_SLOTS, Inner, Node, NodeMut, OwnedNode, VariableLeaf};

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
    Fixed(Arc<FixedLeaf>),
    Variable(Arc<VariableLeaf>),
}

impl Link {
    #[inline]
    pub fn node(&self) -> Node<'_> {
        match self {
            Self::Inner(inner) => Node::Inner(inner),
            Self::Fixed(leaf) => Node::Fixed(leaf),
            Self::Variable(leaf) => Node::Variable(leaf),
        }
    }

    /// A copy in the place of an inner node that has other owners.
    fn own_copy(&mut self) {
        let owners = match self {
            Self::Inner(inner) => Arc::strong_count(inner),
            Self::Fixed(leaf) => Arc::strong_count(leaf),
            Self::Variable(leaf) => Arc::strong_count(leaf),
        };
        if owners > 1 {
            super::copied::note(self.node());
        }
        if let Self::Inner(inner) = self
            && Arc::strong_count(inner) > 1
        {
            *self = Self::from(Box::new(Inner::copy_of(self)));
        }
    }

    #[inline]
    pub fn own(&mut self) -> NodeMut<'_> {
        self.own_copy();
        match self {
            Self::Inner(inner) => NodeMut::Inner(Arc::get_mut(inner).expect("it has one owner").settled_at_times()),
            Self::Fixed(leaf) => NodeMut::Fixed(Arc::make_mut(leaf)),
            Self::Variable(leaf) => NodeMut::Variable(Arc::make_mut(leaf)),
        }
    }

    pub fn into_owned(mut self) -> OwnedNode {
        self.own_copy();
        match self {
            Self::Inner(inner) => OwnedNode::Inner(Box::new(Arc::into_inner(inner).expect("it has one owner"))),
            Self::Fixed(leaf) => OwnedNode::Fixed(Box::new(Arc::unwrap_or_clone(leaf))),
            Self::Variable(leaf) => OwnedNode::Variable(Box::new(Arc::unwrap_or_clone(leaf))),
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

impl From<Box<FixedLeaf>> for Link {
    fn from(node: Box<FixedLeaf>) -> Self {
        Self::Fixed(Arc::from(node))
    }
}

impl From<Box<VariableLeaf>> for Link {
    fn from(node: Box<VariableLeaf>) -> Self {
        Self::Variable(Arc::from(node))
    }
}

/// A link that is about to be changed or replaced: where it stands it stays.
pub(crate) struct LinkMut<'a>(&'a mut Link);

impl<'a> From<&'a mut Link> for LinkMut<'a> {
    fn from(link: &'a mut Link) -> Self {
        Self(link)
    }
}

impl<'a> LinkMut<'a> {
    pub fn node(&self) -> Node<'_> {
        self.0.node()
    }

    pub fn own(self) -> NodeMut<'a> {
        self.0.own()
    }

    pub fn own_if_alone(self) -> Option<&'a mut Inner> {
        match &self.0 {
            Link::Inner(inner) if Arc::strong_count(inner) == 1 => Some(self.own_inner()),
            _ => None,
        }
    }

    pub fn again(&mut self) -> LinkMut<'_> {
        LinkMut(self.0)
    }

    pub fn set(&mut self, link: Link) {
        *self.0 = link;
    }

    pub fn prefetch_all(&self) {}
}

/// The links of an inner node to its children. Here nothing is lent: a copy of the node owns them too.
#[derive(Clone)]
pub(crate) struct Children([Option<Link>; INNER_SLOTS]);

impl Children {
    pub fn none() -> Self {
        Self([const { None }; INNER_SLOTS])
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&Link> {
        self.0.get(at)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<LinkMut<'_>> {
        self.0.get_mut(at)?.as_mut().map(LinkMut)
    }

    pub fn slots(&self) -> &[Option<Link>; INNER_SLOTS] {
        &self.0
    }

    pub fn take(&mut self, at: usize) -> Option<Link> {
        self.0[at].take()
    }

    pub fn set(&mut self, at: usize, child: Link) {
        self.0[at] = Some(child);
    }

    pub fn insert(&mut self, at: usize, len: usize, child: Link) {
        self.0[at..=len].rotate_right(1);
        self.0[at] = Some(child);
    }

    pub fn remove(&mut self, at: usize, len: usize) -> Option<Link> {
        self.0[at..len].rotate_left(1);
        self.take(len - 1)
    }

    pub fn split_off(&mut self, at: usize) -> Self {
        let mut right = Self::none();
        for (from, to) in (at..INNER_SLOTS).zip(&mut right.0) {
            *to = self.take(from);
        }
        right
    }

    pub fn lent_by(lender: &Link) -> Self {
        let Node::Inner(inner) = lender.node() else { unreachable!("leaves have no children") };
        inner.children.counted()
    }

    pub fn counted(&self) -> Self {
        self.clone()
    }

    pub fn settle(&mut self) -> u16 {
        0
    }

    pub fn check(&self, _lenders: u16) -> Result<(), &'static str> {
        Ok(())
    }
}

#[inline]
pub(crate) fn prefetch<T>(_node: &T, _lines: Range<usize>) {}
