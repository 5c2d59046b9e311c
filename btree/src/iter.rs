//! Walking over the pairs of a range, in either direction, leaf by leaf.
//!
//! The bound at the far end is compared with once per leaf, not once per pair.

use crate::key::{KeyRange, KeyRef, Probe, head};
use crate::node::{FixedLeaf, Inner, Link, Node};
use crate::run::{Block, FixedRun, Run};
use crate::snapshot::Snapshot;
use crate::value::Key;

impl Snapshot {
    /// The pairs of `range`, ascending. O(log n), then O(1) per pair.
    pub fn range(&self, range: &KeyRange) -> Range<'_> {
        Range { runs: self.runs(range), rest: None, block: Block::EMPTY }
    }

    /// The pairs of `range`, descending. O(log n), then O(1) per pair.
    pub fn range_reverse(&self, range: &KeyRange) -> RangeReverse<'_> {
        RangeReverse { runs: self.runs_reverse(range), rest: None, block: Block::EMPTY }
    }

    /// The pairs of `range` as they lie together in leaves, ascending: the fast way to copy a range out. O(log n), then
    /// O(1) per leaf.
    pub fn runs(&self, range: &KeyRange) -> Runs<'_> {
        let high_head = range.high.as_deref().map_or(u64::MAX, head);
        let mut runs = Runs { path: Vec::new(), first: None, high: range.high.clone(), high_head };
        if let Some(root) = &self.root {
            let probe = Probe::new(&range.low);
            let leaf = runs.path.descend(root, |inner| inner.search(probe));
            runs.path.prefetch_ahead();
            runs.first = Some(Run::of_leaf(leaf).from(probe));
        }
        runs
    }

    /// The pairs of `range` as they lie together in leaves: the runs descending, each in itself ascending.
    pub fn runs_reverse(&self, range: &KeyRange) -> RunsReverse<'_> {
        let mut runs = RunsReverse { path: Vec::new(), first: None, low: range.low.clone() };
        if let Some(root) = &self.root {
            runs.first = Some(match &range.high {
                Some(high) => {
                    let probe = Probe::new(high);
                    Run::of_leaf(runs.path.descend(root, |inner| inner.search(probe))).up_to(probe)
                }
                None => Run::of_leaf(runs.path.descend(root, |inner| inner.len() - 1)),
            });
        }
        runs
    }

    /// All pairs, ascending.
    pub fn iter(&self) -> Range<'_> {
        self.range(&KeyRange::all())
    }
}

impl<'a> IntoIterator for &'a Snapshot {
    type Item = (KeyRef<'a>, &'a [u8]);
    type IntoIter = Range<'a>;
    fn into_iter(self) -> Range<'a> {
        self.iter()
    }
}

/// How many leaves ahead of a walk are asked for: reading one takes less time than its memory takes to come.
const LEAVES_AHEAD: usize = 3;

/// The lines of a fixed-size leaf.
const LEAF_LINES: std::ops::Range<usize> = 0..size_of::<FixedLeaf>() / 64;

/// Inner nodes from the root down, each with the child that the walk is in.
type Path<'a> = Vec<(&'a Inner, usize)>;

trait Walk<'a> {
    /// Goes down to a leaf; `choose` picks the child of each inner node.
    fn descend(&mut self, link: &'a Link, choose: impl Fn(&Inner) -> usize) -> &'a Link;

    /// Asks for the leaves ahead, as far as they have the same parent as the one at hand.
    fn prefetch_ahead(&self);
}

impl<'a> Walk<'a> for Path<'a> {
    #[inline]
    fn descend(&mut self, mut link: &'a Link, choose: impl Fn(&Inner) -> usize) -> &'a Link {
        while let Node::Inner(inner) = link.node() {
            let at = choose(inner);
            self.push((inner, at));
            link = inner.child(at);
            link.prefetch_all();
        }
        link
    }

    #[inline]
    fn prefetch_ahead(&self) {
        let Some((parent, at)) = self.last() else { return };
        (at + 1..=at + LEAVES_AHEAD).filter_map(|at| parent.get_child(at)).for_each(|leaf| leaf.prefetch(LEAF_LINES));
    }
}

/// The runs of a range, ascending; see [`Snapshot::runs`].
pub struct Runs<'a> {
    path: Path<'a>,
    /// The leaf that the walk begins in.
    first: Option<Run<'a>>,
    high: Option<Key>,
    /// The head of `high`.
    high_head: u64,
}

impl<'a> Runs<'a> {
    /// Goes to the next leaf, if there is one.
    #[inline]
    fn next_leaf(&mut self) -> Option<Run<'a>> {
        let (inner, at) = self.path.last_mut()?;
        if *at + 1 == inner.len() {
            return self.next_parent();
        }
        *at += 1;
        if let Some(ahead) = inner.get_child(*at + LEAVES_AHEAD) {
            ahead.prefetch(LEAF_LINES);
        }
        Some(Run::of_leaf(inner.child(*at)))
    }

    /// Goes to the first leaf of the next node above leaves, if there is one.
    #[cold]
    #[inline(never)]
    fn next_parent(&mut self) -> Option<Run<'a>> {
        loop {
            self.path.pop();
            let (inner, at) = self.path.last_mut()?;
            if *at + 1 < inner.len() {
                *at += 1;
                let child = inner.child(*at);
                let leaf = self.path.descend(child, |_| 0);
                self.path.prefetch_ahead();
                return Some(Run::of_leaf(leaf));
            }
        }
    }

    /// Cuts a run at the upper bound; a bound inside the leaf ends the walk.
    #[inline]
    fn clip(&mut self, run: Run<'a>) -> Run<'a> {
        let Some(high) = &self.high else { return run };
        let probe = Probe { head: self.high_head, key: high };
        if !run.reaches(probe) {
            return run;
        }
        self.path.clear();
        run.up_to(probe)
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    /// The next run, never empty.
    #[inline]
    fn next(&mut self) -> Option<Run<'a>> {
        loop {
            let leaf = match self.first.take() {
                Some(first) => first,
                None => self.next_leaf()?,
            };
            let run = self.clip(leaf);
            if !run.is_empty() {
                return Some(run);
            }
        }
    }
}

/// The runs of a range, descending; see [`Snapshot::runs_reverse`].
pub struct RunsReverse<'a> {
    path: Path<'a>,
    /// The leaf that the walk begins in.
    first: Option<Run<'a>>,
    low: Key,
}

impl<'a> RunsReverse<'a> {
    /// Goes to the leaf before, if there is one.
    #[inline]
    fn next_leaf(&mut self) -> Option<Run<'a>> {
        loop {
            let (inner, at) = self.path.last_mut()?;
            if *at > 0 {
                *at -= 1;
                let child = inner.child(*at);
                return Some(Run::of_leaf(self.path.descend(child, |inner| inner.len() - 1)));
            }
            self.path.pop();
        }
    }

    /// Cuts a run at the lower bound; a bound inside the leaf ends the walk.
    #[inline]
    fn clip(&mut self, run: Run<'a>) -> Run<'a> {
        let probe = Probe::new(&self.low);
        if !run.begins_below(probe) {
            return run;
        }
        self.path.clear();
        run.from(probe)
    }
}

impl<'a> Iterator for RunsReverse<'a> {
    type Item = Run<'a>;

    /// The next run, never empty.
    #[inline]
    fn next(&mut self) -> Option<Run<'a>> {
        loop {
            let leaf = match self.first.take() {
                Some(first) => first,
                None => self.next_leaf()?,
            };
            let run = self.clip(leaf);
            if !run.is_empty() {
                return Some(run);
            }
        }
    }
}

/// Ascending pairs of a range; see [`Snapshot::range`].
pub struct Range<'a> {
    runs: Runs<'a>,
    /// What is left of the current fixed-size leaf, behind the block.
    rest: Option<FixedRun<'a>>,
    /// What is left of the current block.
    block: Block<'a>,
}

impl Range<'_> {
    #[inline(never)]
    fn next_run(&mut self) -> Option<()> {
        match self.runs.next()? {
            Run::Fixed(run) => self.rest = Some(run),
            Run::Variable(run) => self.block = run.block(),
        }
        Some(())
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = (KeyRef<'a>, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.block.pop_first() {
                return Some(pair);
            }
            match self.rest.as_mut().and_then(FixedRun::pop_first) {
                Some(block) => self.block = block,
                None => self.next_run()?,
            }
        }
    }
}

/// Descending pairs of a range; see [`Snapshot::range_reverse`].
pub struct RangeReverse<'a> {
    runs: RunsReverse<'a>,
    /// What is left of the current fixed-size leaf, before the block.
    rest: Option<FixedRun<'a>>,
    /// What is left of the current block.
    block: Block<'a>,
}

impl RangeReverse<'_> {
    #[inline(never)]
    fn next_run(&mut self) -> Option<()> {
        match self.runs.next()? {
            Run::Fixed(run) => self.rest = Some(run),
            Run::Variable(run) => self.block = run.block(),
        }
        Some(())
    }
}

impl<'a> Iterator for RangeReverse<'a> {
    type Item = (KeyRef<'a>, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.block.pop_last() {
                return Some(pair);
            }
            match self.rest.as_mut().and_then(FixedRun::pop_last) {
                Some(block) => self.block = block,
                None => self.next_run()?,
            }
        }
    }
}
