//! Many commands at once, with the results of one by one.
//!
//! A tree that does not fit the caches spends most of a command waiting for memory. So a group of keys first goes down
//! the tree together, level by level, only to ask for what each will need next; the waiting overlaps. Then the commands
//! are executed in their order, each along the way that it found, as far as that is still right.

use crate::key::{Probe, head};
use crate::node::{INNER_HEAD_LINES, INNER_SLOTS, Node};
use crate::op::{Op, OpResult};
use crate::shared::Link;
use crate::snapshot::Snapshot;
use crate::tree::Tree;
use crate::undo::Undo;
use crate::words::Words;

/// Keys that go down together: about as many lines as a core can wait for at a time. With commands that change
/// something two groups are under way at a time.
const GROUP: usize = 16;

impl Tree {
    /// Executes `ops` in order and appends one result each to `results`: the same results, content and undo as
    /// [`Tree::execute`] one by one, faster.
    pub fn execute_batch(&mut self, ops: &[Op<'_>], results: &mut Vec<OpResult>, undo: &mut Undo) {
        results.reserve(ops.len());
        let ask = |tree: &Self, group: &[Op<'_>]| {
            tree.warm(group.iter().map(Op::key), Words::prefetch_change).map(|lane| lane.way)
        };
        // While the commands of one group are executed, the memory of the next one's leaves is on its way.
        let mut groups = ops.chunks(GROUP).peekable();
        let mut next_ways = groups.peek().map(|first| ask(self, first));
        while let (Some(group), Some(ways)) = (groups.next(), next_ways) {
            next_ways = groups.peek().map(|next| ask(self, next));
            for (op, way) in group.iter().zip(ways) {
                results.push(self.execute_on::<false>(*op, way, undo));
            }
        }
    }
}

impl Snapshot {
    /// Looks `keys` up together and hands each index, ascending, with its value to `found`.
    pub fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K], mut found: impl FnMut(usize, Option<&[u8]>)) {
        for (group, first) in keys.chunks(GROUP).zip((0..).step_by(GROUP)) {
            let lanes = self.warm(group.iter().map(AsRef::as_ref), Words::prefetch_pair);
            for ((_, lane), index) in group.iter().zip(lanes).zip(first..) {
                found(index, lane.link.and_then(|leaf| leaf.get_in_leaf(lane.probe)));
            }
        }
    }

    /// Goes down with up to [`GROUP`] keys and asks for what a command on each will touch in its leaf, by `prefetch` if
    /// it is a fast one. Returns how far the keys came: to their leaves.
    #[inline]
    fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, prefetch: impl Fn(&Words, u64)) -> [Lane<'k, '_>; GROUP] {
        let lane = Lane { probe: Probe::new(&[]), link: self.root.as_ref(), block: 0, way: Way::UNKNOWN };
        let mut lanes = [lane; GROUP];
        let mut count = 0;
        for (lane, key) in lanes.iter_mut().zip(keys) {
            lane.probe = Probe { head: head(key), key };
            count += 1;
        }
        // All leaves have the same height, so the lanes arrive together.
        let mut level = 0;
        while let Some(Node::Inner(_)) = lanes[0].link.map(Link::node) {
            for lane in &mut lanes[..count] {
                if let Some(Node::Inner(inner)) = lane.link.map(Link::node) {
                    lane.block = inner.search_block(lane.probe);
                }
            }
            for lane in &mut lanes[..count] {
                if let Some(Node::Inner(inner)) = lane.link.map(Link::node) {
                    let at = inner.search_from(lane.block, lane.probe);
                    lane.way.note(level, at);
                    let child = inner.child(at);
                    child.prefetch(0..INNER_HEAD_LINES);
                    lane.link = Some(child);
                }
            }
            level += 1;
        }
        for lane in &lanes[..count] {
            if let Some(Node::Words(words)) = lane.link.map(Link::node) {
                prefetch(words, lane.probe.head);
            }
        }
        lanes
    }
}

/// A key on its way down.
#[derive(Clone, Copy)]
struct Lane<'k, 't> {
    probe: Probe<'k>,
    /// The node it has reached.
    link: Option<&'t Link>,
    /// The block of that node in which the next one's link stands.
    block: usize,
    /// How it got there.
    way: Way,
}

/// Which children a key went down through: a guess where it will go the next time, after other keys changed the tree.
/// Whoever follows it looks at each step whether it is right ([`Inner::search_near`]).
///
/// The children are one byte each, the topmost lowest. What is deeper than eight nodes is not in it.
///
/// [`Inner::search_near`]: crate::node::Inner::search_near
#[derive(Clone, Copy)]
pub(crate) struct Way(u64);

impl Way {
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
