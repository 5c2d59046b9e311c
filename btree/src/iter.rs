//! Walking over the pairs of a range, in either direction, leaf by leaf.
//!
//! The bound at the far end is compared with once per leaf, not once per pair.

use crate::key::{KeyRange, KeyRef, Probe, head};
use crate::node::{Inner, Node};
use crate::shared::Link;
use crate::snapshot::Snapshot;
use crate::value::Key;
use crate::wide::Wide;
use crate::words::{BLOCKS, BlockOfPairs, Words};

impl Snapshot {
    /// The pairs of `range`, ascending. O(log n), then O(1) per pair.
    pub fn range(&self, range: &KeyRange) -> Range<'_> {
        let mut iter = Range {
            path: Vec::new(),
            rest: Blocks::NONE,
            run: Run::EMPTY,
            high: range.high.clone(),
            high_head: range.high.as_deref().map_or(u64::MAX, head),
        };
        if let Some(root) = &self.root {
            let probe = Probe::new(&range.low);
            let leaf = iter.path.descend(root, |inner| inner.search(probe));
            if let Some((inner, at)) = iter.path.last() {
                (at + 1..=at + LEAVES_AHEAD)
                    .filter_map(|at| inner.get_child(at))
                    .for_each(|leaf| leaf.prefetch(LEAF_LINES));
            }
            match leaf {
                Leaf::Words(words) => {
                    let (pairs, next) = words.from(words.lower_bound(probe));
                    (iter.run, iter.rest) = (Run::of_block(pairs), Blocks { words: Some(words), blocks: next..BLOCKS });
                }
                Leaf::Wide(wide) => iter.run = Run::of_wide(wide).from(wide.lower_bound(probe)),
            }
            iter.clip();
        }
        iter
    }

    /// The pairs of `range`, descending. O(log n), then O(1) per pair.
    pub fn range_reverse(&self, range: &KeyRange) -> RangeReverse<'_> {
        let mut iter = RangeReverse { path: Vec::new(), rest: Blocks::NONE, run: Run::EMPTY, low: range.low.clone() };
        if let Some(root) = &self.root {
            match &range.high {
                Some(high) => {
                    let probe = Probe::new(high);
                    match iter.path.descend(root, |inner| inner.search(probe)) {
                        Leaf::Words(words) => {
                            let (pairs, before) = words.up_to(words.lower_bound(probe));
                            (iter.run, iter.rest) =
                                (Run::of_block(pairs), Blocks { words: Some(words), blocks: 0..before });
                        }
                        Leaf::Wide(wide) => iter.run = Run::of_wide(wide).up_to(wide.lower_bound(probe)),
                    }
                }
                None => {
                    let leaf = iter.path.descend(root, |inner| inner.len() - 1);
                    (iter.run, iter.rest) = leaf.to_walk();
                }
            }
            iter.clip();
        }
        iter
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

/// The lines of a fast leaf.
const LEAF_LINES: std::ops::Range<usize> = 0..size_of::<Words>() / 64;

/// Inner nodes from the root down, each with the child that the walk is in.
type Path<'a> = Vec<(&'a Inner, usize)>;

trait Walk<'a> {
    /// Goes down to a leaf; `choose` picks the child of each inner node.
    fn descend(&mut self, link: &'a Link, choose: impl Fn(&Inner) -> usize) -> Leaf<'a>;
}

impl<'a> Walk<'a> for Path<'a> {
    #[inline]
    fn descend(&mut self, mut link: &'a Link, choose: impl Fn(&Inner) -> usize) -> Leaf<'a> {
        loop {
            match link.node() {
                Node::Inner(inner) => {
                    let at = choose(inner);
                    self.push((inner, at));
                    link = inner.child(at);
                }
                Node::Words(words) => return Leaf::Words(words),
                Node::Wide(wide) => return Leaf::Wide(wide),
            }
        }
    }
}

/// A leaf that a walk has come to.
enum Leaf<'a> {
    Words(&'a Words),
    Wide(&'a Wide),
}

impl<'a> Leaf<'a> {
    /// All its pairs: what is at hand, and what is left.
    #[inline]
    fn to_walk(&self) -> (Run<'a>, Blocks<'a>) {
        match self {
            Self::Words(words) => (Run::EMPTY, Blocks { words: Some(words), blocks: 0..BLOCKS }),
            Self::Wide(wide) => (Run::of_wide(wide), Blocks::NONE),
        }
    }
}

/// What is left of a fast leaf.
#[derive(Clone)]
struct Blocks<'a> {
    words: Option<&'a Words>,
    blocks: std::ops::Range<usize>,
}

impl<'a> Blocks<'a> {
    const NONE: Self = Self { words: None, blocks: 0..0 };

    /// The first pairs that are left, if any are.
    #[inline]
    fn pop_first(&mut self) -> Option<Run<'a>> {
        let words = self.words?;
        self.blocks.find_map(|at| words.block(at).filter(|(keys, _)| !keys.is_empty())).map(Run::of_block)
    }

    /// The last pairs that are left, if any are.
    #[inline]
    fn pop_last(&mut self) -> Option<Run<'a>> {
        let words = self.words?;
        let mut blocks = self.blocks.by_ref().rev();
        blocks.find_map(|at| words.block(at).filter(|(keys, _)| !keys.is_empty())).map(Run::of_block)
    }
}

/// Pairs that lie next to each other in one leaf, ascending.
#[derive(Clone, Copy, Debug)]
pub enum Run<'a> {
    /// Pairs of eight-byte keys and values. The slices have the same length.
    Words {
        /// The keys as big-endian integers.
        keys: &'a [u64],
        /// The values.
        values: &'a [[u8; 8]],
    },
    /// Pairs of any lengths. The slices have the same length.
    Wide {
        /// The keys.
        keys: &'a [Key],
        /// The values.
        values: &'a [crate::value::Value],
    },
}

impl<'a> Run<'a> {
    const EMPTY: Self = Self::Words { keys: &[], values: &[] };

    #[inline]
    fn of_block((keys, values): BlockOfPairs<'a>) -> Self {
        Self::Words { keys, values }
    }

    #[inline]
    fn of_wide(wide: &'a Wide) -> Self {
        Self::Wide { keys: wide.keys(), values: wide.values() }
    }

    /// The number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Words { keys, .. } => keys.len(),
            Self::Wide { keys, .. } => keys.len(),
        }
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pair at `at`.
    ///
    /// # Panics
    /// If `at` is not below `len`.
    #[inline]
    pub fn pair(&self, at: usize) -> (KeyRef<'a>, &'a [u8]) {
        match self {
            Self::Words { keys, values } => (KeyRef::Word(keys[at].to_be_bytes()), &values[at]),
            Self::Wide { keys, values } => (KeyRef::Bytes(&keys[at]), &values[at]),
        }
    }

    /// The pairs from `at` on.
    ///
    /// # Panics
    /// If `at` is above `len`.
    #[must_use]
    pub fn from(self, at: usize) -> Self {
        match self {
            Self::Words { keys, values } => Self::Words { keys: &keys[at..], values: &values[at..] },
            Self::Wide { keys, values } => Self::Wide { keys: &keys[at..], values: &values[at..] },
        }
    }

    /// The pairs before `at`.
    ///
    /// # Panics
    /// If `at` is above `len`.
    #[must_use]
    pub fn up_to(self, at: usize) -> Self {
        match self {
            Self::Words { keys, values } => Self::Words { keys: &keys[..at], values: &values[..at] },
            Self::Wide { keys, values } => Self::Wide { keys: &keys[..at], values: &values[..at] },
        }
    }

    /// How many keys are below the probe.
    fn lower_bound(&self, probe: Probe<'_>) -> usize {
        match self {
            Self::Words { keys, .. } => keys.partition_point(|key| key.to_be_bytes().as_slice() < probe.key),
            Self::Wide { keys, .. } => keys.partition_point(|key| key.as_slice() < probe.key),
        }
    }

    #[inline]
    fn pop_first(&mut self) -> Option<(KeyRef<'a>, &'a [u8])> {
        match self {
            Self::Words { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_first()?, values.split_first()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Word(key.to_be_bytes()), value))
            }
            Self::Wide { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_first()?, values.split_first()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Bytes(key), value))
            }
        }
    }

    #[inline]
    fn pop_last(&mut self) -> Option<(KeyRef<'a>, &'a [u8])> {
        let last = self.len().checked_sub(1)?;
        let pair = self.pair(last);
        *self = self.up_to(last);
        Some(pair)
    }
}

/// Ascending pairs of a range; see [`Snapshot::range`].
pub struct Range<'a> {
    path: Path<'a>,
    /// What is left of the current leaf, behind the run.
    rest: Blocks<'a>,
    /// What is left of the current block, or general leaf.
    run: Run<'a>,
    high: Option<Key>,
    /// The head of `high`.
    high_head: u64,
}

impl<'a> Range<'a> {
    /// The next pairs that lie together in a leaf, never empty: the fast way to copy a range out.
    #[inline]
    pub fn next_run(&mut self) -> Option<Run<'a>> {
        while self.run.is_empty() {
            self.advance()?;
        }
        Some(std::mem::replace(&mut self.run, Run::EMPTY))
    }

    /// Goes to the next pairs, if the range reaches that far.
    #[inline]
    fn advance(&mut self) -> Option<()> {
        loop {
            if let Some(run) = self.rest.pop_first() {
                self.run = run;
                self.clip();
                return Some(());
            }
            self.next_leaf()?;
            if !self.run.is_empty() {
                self.clip();
                return Some(());
            }
        }
    }

    /// Goes to the next leaf, if there is one.
    #[inline(never)]
    fn next_leaf(&mut self) -> Option<()> {
        loop {
            let (inner, at) = self.path.last_mut()?;
            if *at + 1 < inner.len() {
                *at += 1;
                if let Some(ahead) = inner.get_child(*at + LEAVES_AHEAD) {
                    ahead.prefetch(LEAF_LINES);
                }
                let child = inner.child(*at);
                (self.run, self.rest) = self.path.descend(child, |_| 0).to_walk();
                return Some(());
            }
            self.path.pop();
        }
    }

    /// Cuts the run at the upper bound; a bound inside the run ends the walk.
    #[inline]
    fn clip(&mut self) {
        let (Some(high), Some(last)) = (&self.high, self.run.len().checked_sub(1)) else { return };
        if let Run::Words { keys, .. } = self.run
            && keys[last] < self.high_head
        {
            return;
        }
        if *self.run.pair(last).0 >= **high {
            self.run = self.run.up_to(self.run.lower_bound(Probe::new(high)));
            self.rest = Blocks::NONE;
            self.path.clear();
        }
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = (KeyRef<'a>, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.run.pop_first() {
                return Some(pair);
            }
            self.advance()?;
        }
    }
}

/// Descending pairs of a range; see [`Snapshot::range_reverse`].
pub struct RangeReverse<'a> {
    path: Path<'a>,
    /// What is left of the current leaf, before the run.
    rest: Blocks<'a>,
    /// What is left of the current block, or general leaf.
    run: Run<'a>,
    low: Key,
}

impl RangeReverse<'_> {
    /// Goes to the pairs before, if the range reaches that far.
    fn advance(&mut self) -> Option<()> {
        loop {
            if let Some(run) = self.rest.pop_last() {
                self.run = run;
                self.clip();
                return Some(());
            }
            self.rest = Blocks::NONE;
            let (inner, at) = self.path.last_mut()?;
            if *at > 0 {
                *at -= 1;
                let child = inner.child(*at);
                (self.run, self.rest) = self.path.descend(child, |inner| inner.len() - 1).to_walk();
                if !self.run.is_empty() {
                    self.clip();
                    return Some(());
                }
            } else {
                self.path.pop();
            }
        }
    }

    /// Cuts the run at the lower bound; a bound inside the run ends the walk.
    fn clip(&mut self) {
        if !self.run.is_empty() && *self.run.pair(0).0 < *self.low {
            self.run = self.run.from(self.run.lower_bound(Probe::new(&self.low)));
            self.rest = Blocks::NONE;
            self.path.clear();
        }
    }
}

impl<'a> Iterator for RangeReverse<'a> {
    type Item = (KeyRef<'a>, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.run.pop_last() {
                return Some(pair);
            }
            self.advance()?;
        }
    }
}
