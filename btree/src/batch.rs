//! Many commands at once, with the results of one by one.
//!
//! A tree that does not fit the caches spends most of a command waiting for memory. So a group of keys first goes down
//! the tree together, level by level, only to ask for what each will need next; the waiting overlaps. Then the commands
//! are executed in their order.

use crate::key::{Probe, head};
use crate::node::{INNER_HEAD_LINES, Node};
use crate::op::{Op, OpResult};
use crate::shared::Link;
use crate::snapshot::Snapshot;
use crate::tree::Tree;
use crate::undo::Undo;
use crate::words::Words;

/// Keys that go down together: about as many lines as a core can wait for at a time.
const GROUP: usize = 16;
/// Commands that go down together: two groups are under way at a time, and a change needs more lines than a read.
const GROUP_TO_CHANGE: usize = GROUP / 2;

impl Tree {
    /// Executes `ops` in order and appends one result each to `results`: the same results, content and undo as
    /// [`Tree::execute`] one by one, faster.
    pub fn execute_batch(&mut self, ops: &[Op<'_>], results: &mut Vec<OpResult>, undo: &mut Undo) {
        results.reserve(ops.len());
        let ask = |tree: &Self, group: &[Op<'_>]| {
            tree.warm(group.iter().map(Op::key), Words::prefetch_change);
        };
        // While the commands of one group are executed, the memory of the next one's leaves is on its way.
        let mut groups = ops.chunks(GROUP_TO_CHANGE).peekable();
        if let Some(first) = groups.peek() {
            ask(self, first);
        }
        while let Some(group) = groups.next() {
            if let Some(next) = groups.peek() {
                ask(self, next);
            }
            for op in group {
                results.push(self.execute_as::<false>(*op, undo));
            }
        }
    }
}

impl Snapshot {
    /// Looks `keys` up together and hands each index, ascending, with its value to `found`.
    pub fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K], mut found: impl FnMut(usize, Option<&[u8]>)) {
        for (group, first) in keys.chunks(GROUP).zip((0..).step_by(GROUP)) {
            let leaves = self.warm(group.iter().map(AsRef::as_ref), Words::prefetch_pair);
            for ((key, leaf), index) in group.iter().zip(leaves).zip(first..) {
                found(index, leaf.and_then(|leaf| leaf.get_in_leaf(Probe::new(key.as_ref()))));
            }
        }
    }

    /// Goes down with up to [`GROUP`] keys and asks for what a command on each will touch in its leaf, by `prefetch` if
    /// it is a fast one. Returns the leaves.
    #[inline]
    fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, prefetch: impl Fn(&Words, u64)) -> [Option<&Link>; GROUP] {
        let mut lanes = [Lane { probe: Probe::new(&[]), link: self.root.as_ref(), block: 0 }; GROUP];
        let mut count = 0;
        for (lane, key) in lanes.iter_mut().zip(keys) {
            lane.probe = Probe { head: head(key), key };
            count += 1;
        }
        // All leaves have the same height, so the lanes arrive together.
        while let Some(Node::Inner(_)) = lanes[0].link.map(Link::node) {
            for lane in &mut lanes[..count] {
                if let Some(Node::Inner(inner)) = lane.link.map(Link::node) {
                    lane.block = inner.search_block(lane.probe);
                }
            }
            for lane in &mut lanes[..count] {
                if let Some(Node::Inner(inner)) = lane.link.map(Link::node) {
                    let child = inner.child(inner.search_from(lane.block, lane.probe));
                    child.prefetch(0..INNER_HEAD_LINES);
                    lane.link = Some(child);
                }
            }
        }
        for lane in &lanes[..count] {
            if let Some(Node::Words(words)) = lane.link.map(Link::node) {
                prefetch(words, lane.probe.head);
            }
        }
        lanes.map(|lane| lane.link)
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
}
