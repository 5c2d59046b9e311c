//! Many keys on their way down at once.
//!
//! A tree that does not fit the caches spends most of a command waiting for memory. So a group of keys first goes down
//! the tree together, level by level, only to ask for what each will need next; the waiting overlaps. Then the commands
//! are executed in their order, each along the way that it found, as far as that is still right.

use crate::key::{Probe, head};
use crate::node::{FixedLeaf, INNER_HEAD_LINES, INNER_SLOTS, Link, Node};

/// Keys that go down together: about as many lines as a core can wait for at a time. With commands that change
/// something two groups are under way at a time.
pub(crate) const GROUP: usize = 16;

/// Goes down with up to [`GROUP`] keys and asks for what a command on each will touch in its leaf, by `prefetch` if
/// it is a fixed-size one. Returns how far the keys came: to their leaves.
#[inline]
pub(crate) fn descend_all<'k, 't>(
    root: Option<&'t Link>,
    keys: impl Iterator<Item = &'k [u8]>,
    prefetch: impl Fn(&FixedLeaf, u64),
) -> [Descent<'k, 't>; GROUP] {
    let start = Descent { probe: Probe::new(&[]), link: root, block: 0, hint: DescentHint::UNKNOWN };
    let mut descents = [start; GROUP];
    let mut count = 0;
    for (descent, key) in descents.iter_mut().zip(keys) {
        descent.probe = Probe { head: head(key), key };
        count += 1;
    }
    // All leaves have the same height, so the descents arrive together.
    let mut level = 0;
    while let Some(Node::Inner(_)) = descents[0].link.map(Link::node) {
        for descent in &mut descents[..count] {
            if let Some(Node::Inner(inner)) = descent.link.map(Link::node) {
                descent.block = inner.search_block(descent.probe);
            }
        }
        for descent in &mut descents[..count] {
            if let Some(Node::Inner(inner)) = descent.link.map(Link::node) {
                let at = inner.search_from(descent.block, descent.probe);
                descent.hint.note(level, at);
                let child = inner.child(at);
                child.prefetch(0..INNER_HEAD_LINES);
                descent.link = Some(child);
            }
        }
        level += 1;
    }
    for descent in &descents[..count] {
        if let Some(Node::Fixed(leaf)) = descent.link.map(Link::node) {
            prefetch(leaf, descent.probe.head);
        }
    }
    descents
}

/// A key on its way down.
#[derive(Clone, Copy)]
pub(crate) struct Descent<'k, 't> {
    pub probe: Probe<'k>,
    /// The node it has reached.
    pub link: Option<&'t Link>,
    /// The block of that node in which the next one's link stands.
    block: usize,
    /// How it got there.
    pub hint: DescentHint,
}

/// Which children a key went down through: a guess where it will go the next time, after other keys changed the tree.
/// Whoever follows it looks at each step whether it is right ([`Inner::search_near`]).
///
/// The children are one byte each, the topmost lowest. What is deeper than eight nodes is not in it.
///
/// [`Inner::search_near`]: crate::node::Inner::search_near
#[derive(Clone, Copy)]
pub(crate) struct DescentHint(u64);

impl DescentHint {
    /// Of a key that went nowhere yet.
    pub const UNKNOWN: Self = Self(0);

    /// Notes that the key went to child `child` of the node that is `level` nodes below the root.
    #[inline]
    fn note(&mut self, level: u32, child: usize) {
        self.0 |= (child as u64).checked_shl(8 * level).unwrap_or(0);
    }

    /// The topmost child on the way, which then leads on from there.
    #[inline]
    pub fn pop(&mut self) -> usize {
        let child = self.0 & 0xff;
        self.0 >>= 8;
        child as usize
    }
}

const _: () = assert!(INNER_SLOTS <= 0xff);
