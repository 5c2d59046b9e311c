//! Runs: the pairs of a range that lie together in one leaf, and copying them out at once. Knows nothing of the way
//! from leaf to leaf.

use crate::key::{KeyRef, Probe};
use crate::node::{BLOCKS, FixedLeaf, Link, Node, Slot};
use crate::search::BLOCK;
use crate::value::{Key, Value};

/// Pairs of one leaf, ascending.
#[derive(Clone, Copy, Debug)]
pub enum Run<'a> {
    /// All keys and values have eight bytes.
    Fixed(FixedRun<'a>),
    /// Keys and values have any length.
    Variable(VariableRun<'a>),
}

/// Pairs of a fixed-size leaf.
#[derive(Clone, Copy, Debug)]
pub struct FixedRun<'a> {
    leaf: &'a FixedLeaf,
    from: Slot,
    /// The first slot behind the run; not before `from`.
    to: Slot,
}

/// Pairs of a variable leaf. The slices have the same length.
#[derive(Clone, Copy, Debug)]
pub struct VariableRun<'a> {
    keys: &'a [Key],
    values: &'a [Value],
}

/// Room for the pairs of any fixed-size leaf, as [`FixedRun::copy_to`] writes them.
pub type FixedBuffer = [[u8; 16]; BLOCK * BLOCKS];

impl<'a> Run<'a> {
    /// All of a leaf.
    #[inline]
    pub(crate) fn of_leaf(leaf: &'a Link) -> Self {
        match leaf.node() {
            Node::Fixed(leaf) => Self::Fixed(FixedRun { leaf, from: Slot::FIRST, to: leaf.end() }),
            Node::Variable(leaf) => Self::Variable(VariableRun { keys: leaf.keys(), values: leaf.values() }),
            Node::Inner(_) => unreachable!("a walk goes down to the leaves"),
        }
    }

    /// The number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Fixed(run) => run.len(),
            Self::Variable(run) => run.keys.len(),
        }
    }

    /// Whether there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pair that has `rank` pairs of the run below it. O(1).
    ///
    /// # Panics
    /// If the run does not have so many.
    #[inline]
    pub fn pair(&self, rank: usize) -> (KeyRef<'a>, &'a [u8]) {
        match self {
            Self::Fixed(FixedRun { leaf, from, .. }) => {
                let (key, value) = leaf.pairs().nth(leaf.rank(*from) + rank).expect("a rank below the length");
                (KeyRef::Word(key.to_be_bytes()), value)
            }
            Self::Variable(run) => (KeyRef::Bytes(&run.keys[rank]), &run.values[rank]),
        }
    }

    /// Leaves out everything below the probe.
    #[inline]
    pub(crate) fn from(self, probe: Probe<'_>) -> Self {
        match self {
            Self::Fixed(run) => {
                Self::Fixed(FixedRun { from: run.leaf.lower_bound(probe).clamp(run.from, run.to), ..run })
            }
            Self::Variable(VariableRun { keys, values }) => {
                let at = keys.partition_point(|key| key.as_slice() < probe.key);
                Self::Variable(VariableRun { keys: &keys[at..], values: &values[at..] })
            }
        }
    }

    /// Leaves out everything that is not below the probe.
    #[inline]
    pub(crate) fn up_to(self, probe: Probe<'_>) -> Self {
        match self {
            Self::Fixed(run) => {
                Self::Fixed(FixedRun { to: run.leaf.lower_bound(probe).clamp(run.from, run.to), ..run })
            }
            Self::Variable(VariableRun { keys, values }) => {
                let at = keys.partition_point(|key| key.as_slice() < probe.key);
                Self::Variable(VariableRun { keys: &keys[..at], values: &values[..at] })
            }
        }
    }

    /// Whether a key of the leaf, if not of the run, is not below the probe.
    #[inline]
    pub(crate) fn reaches(&self, probe: Probe<'_>) -> bool {
        match self {
            // A longer key with the same head lies above.
            Self::Fixed(run) => run.leaf.last().is_some_and(|last| {
                last > probe.head || (last == probe.head && last.to_be_bytes().as_slice() >= probe.key)
            }),
            Self::Variable(run) => run.keys.last().is_some_and(|last| last.as_slice() >= probe.key),
        }
    }

    /// Whether a key of the leaf, if not of the run, is below the probe.
    #[inline]
    pub(crate) fn begins_below(&self, probe: Probe<'_>) -> bool {
        match self {
            Self::Fixed(run) => *run.leaf.first_key() < *probe.key,
            Self::Variable(run) => run.keys.first().is_some_and(|first| first.as_slice() < probe.key),
        }
    }
}

impl<'a> VariableRun<'a> {
    pub(crate) fn block(&self) -> Block<'a> {
        Block::Variable { keys: self.keys, values: self.values }
    }

    /// The pairs, ascending.
    #[inline]
    pub fn pairs(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.keys.iter().map(Key::as_slice).zip(self.values.iter().map(Value::as_slice))
    }
}

impl FixedRun<'_> {
    /// The number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        self.leaf.rank(self.to).saturating_sub(self.leaf.rank(self.from))
    }

    /// Whether there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the pairs out, each key in front of its value, and returns them; the rest of the buffer is spoilt. Whole
    /// blocks are copied whatever they hold: no loop whose length depends on the data.
    #[inline]
    pub fn copy_to<'b>(&self, buffer: &'b mut FixedBuffer) -> &'b mut [[u8; 16]] {
        let mut end = 0;
        for block in self.from.block..=self.to.block {
            let Some(room) = buffer[end..].first_chunk_mut::<BLOCK>() else { break };
            end += self.leaf.copy_block(block, room);
        }
        &mut buffer[self.from.at..self.from.at + self.len()]
    }
}

impl<'a> FixedRun<'a> {
    /// Takes the first block out; perhaps an empty one.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<Block<'a>> {
        let Slot { block, at } = self.from;
        if block > self.to.block {
            return None;
        }
        let (keys, values) = self.leaf.block(block)?;
        let end = if block == self.to.block { self.to.at } else { keys.len() };
        self.from = Slot { block: block + 1, at: 0 };
        Some(Block::Fixed { keys: keys.get(at..end)?, values: values.get(at..end)? })
    }

    /// Takes the last block out; perhaps an empty one.
    #[inline]
    pub(crate) fn pop_last(&mut self) -> Option<Block<'a>> {
        let Slot { block, at } = self.to;
        if block < self.from.block {
            return None;
        }
        let (keys, values) = self.leaf.block(block)?;
        let from = if block == self.from.block { self.from.at } else { 0 };
        self.to = match block.checked_sub(1) {
            Some(before) => Slot { block: before, at: self.leaf.len_of(before) },
            None => Slot::FIRST,
        };
        if block == self.from.block {
            // Nothing is left.
            self.from = Slot { block: block + 1, at: 0 };
        }
        Some(Block::Fixed { keys: keys.get(from..at)?, values: values.get(from..at)? })
    }
}

/// Pairs that lie next to each other, ascending. The slices have the same length.
#[derive(Clone, Copy)]
pub(crate) enum Block<'a> {
    Fixed { keys: &'a [u64], values: &'a [[u8; 8]] },
    Variable { keys: &'a [Key], values: &'a [Value] },
}

impl<'a> Block<'a> {
    pub const EMPTY: Self = Self::Fixed { keys: &[], values: &[] };

    #[inline]
    pub fn pop_first(&mut self) -> Option<(KeyRef<'a>, &'a [u8])> {
        match self {
            Self::Fixed { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_first()?, values.split_first()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Word(key.to_be_bytes()), value))
            }
            Self::Variable { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_first()?, values.split_first()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Bytes(key), value))
            }
        }
    }

    #[inline]
    pub fn pop_last(&mut self) -> Option<(KeyRef<'a>, &'a [u8])> {
        match self {
            Self::Fixed { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_last()?, values.split_last()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Word(key.to_be_bytes()), value))
            }
            Self::Variable { keys, values } => {
                let ((key, next_keys), (value, next_values)) = (keys.split_last()?, values.split_last()?);
                (*keys, *values) = (next_keys, next_values);
                Some((KeyRef::Bytes(key), value))
            }
        }
    }
}
