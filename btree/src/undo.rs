//! Undo records: logical, one per executed change, kept in the order of execution (protocol.md 2.3, 2.4).
//!
//! A record names a key and what was there, never a node: nodes split, merge and are shared while records wait.

use std::collections::VecDeque;

use crate::value::{Key, Value};

/// What takes one change back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    /// The key was absent: delete it.
    Inserted { key: Key },
    /// The key held `value` and was removed: insert it again.
    Deleted { key: Key, value: Value },
    /// The key held `value`: put it back.
    Replaced { key: Key, value: Value },
}

/// The records of everything executed and not yet decided, of any number of batches; its memory is reused.
///
/// The caller bounds it: records are as many as undecided changes (hazards.md SP9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Undo {
    records: VecDeque<Record>,
    /// How many records were forgotten from the front: marks stay valid meanwhile.
    forgotten: u64,
}

/// A moment between two commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UndoMark(u64);

impl UndoMark {
    /// The number of records between two moments.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}

impl Undo {
    /// No records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Now: what is executed from here on can be taken back with `tree.undo_to(&mut undo, mark)`.
    #[inline]
    pub fn mark(&self) -> UndoMark {
        UndoMark(self.forgotten + self.records.len() as u64)
    }

    /// Forgets the records before `mark`: what they would take back is decided. Earlier marks become unusable.
    pub fn forget_before(&mut self, mark: UndoMark) {
        let count = mark.0.saturating_sub(self.forgotten).min(self.records.len() as u64);
        self.records.drain(..count as usize);
        self.forgotten += count;
    }

    /// Forgets every record.
    pub fn forget_all(&mut self) {
        self.forget_before(self.mark());
    }

    /// The keys that were changed since `mark`, in order of execution, one for each change. O(changes).
    pub fn keys_since(&self, mark: UndoMark) -> impl Iterator<Item = &[u8]> {
        let before = mark.0.saturating_sub(self.forgotten).min(self.records.len() as u64);
        self.records.range(before as usize..).map(|record| match record {
            Record::Inserted { key } | Record::Deleted { key, .. } | Record::Replaced { key, .. } => key.as_slice(),
        })
    }

    /// The keys that were changed since `mark`, and the moment before each change; those that were forgotten are left
    /// out. O(changes).
    pub fn changes_since(&self, mark: UndoMark) -> impl Iterator<Item = (UndoMark, &Key)> {
        let first = mark.0.max(self.forgotten);
        let before = (first - self.forgotten).min(self.records.len() as u64);
        self.records.range(before as usize..).zip(first..).map(|(record, at)| match record {
            Record::Inserted { key } | Record::Deleted { key, .. } | Record::Replaced { key, .. } => {
                (UndoMark(at), key)
            }
        })
    }

    /// What the key of the change made at `mark` held before it; `None` if that is forgotten. O(1).
    #[inline]
    pub fn before(&self, mark: UndoMark) -> Option<Option<&Value>> {
        let at = mark.0.checked_sub(self.forgotten)?;
        Some(match self.records.get(usize::try_from(at).ok()?)? {
            Record::Inserted { .. } => None,
            Record::Deleted { value, .. } | Record::Replaced { value, .. } => Some(value),
        })
    }

    /// The number of records held.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Memory that the records keep: themselves, and the keys and values that do not fit inside. O(n).
    pub fn bytes(&self) -> u64 {
        let held = |value: &Value| if value.len() > Value::INLINE_BYTES_MAX { value.len() as u64 } else { 0 };
        let bytes = |record: &Record| match record {
            Record::Inserted { key } => held(key),
            Record::Deleted { key, value } | Record::Replaced { key, value } => held(key) + held(value),
        };
        (self.records.len() * size_of::<Record>()) as u64 + self.records.iter().map(bytes).sum::<u64>()
    }

    /// Whether there is nothing to take back.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, record: Record) {
        self.records.push_back(record);
    }

    /// Drops the records from `mark` on: what they would take back did not happen.
    pub(crate) fn cut(&mut self, mark: UndoMark) {
        while self.pop_after(mark).is_some() {}
    }

    /// The newest record after `mark`, removed.
    pub(crate) fn pop_after(&mut self, mark: UndoMark) -> Option<Record> {
        assert!(mark.0 >= self.forgotten, "undo to a decided moment: {} < {}", mark.0, self.forgotten);
        if self.mark() > mark { self.records.pop_back() } else { None }
    }
}
