//! Keys as they were before what is undecided: a stale read looks at the last executed state, and at the undo records
//! of its keys.
//!
//! The index of those records grows by what was executed since it was last asked, so a read never costs more than that
//! and its own keys.

use std::collections::{BTreeMap, VecDeque};

use coppice_btree::{Key, Undo, UndoMark, Value};

/// Marks of records that are forgotten meanwhile may stay until there are so many more than records.
const SPARE_MARKS: usize = 1_024;

/// Where the undo records of each key stand.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Records up to here are in the index.
    upto: UndoMark,
    marks: BTreeMap<Key, VecDeque<UndoMark>>,
    /// Marks of all keys together.
    count: usize,
}

impl Overlay {
    /// Records were taken back: others will take their places.
    pub fn clear(&mut self) {
        *self = Overlay::default();
    }

    /// Takes in the records made since the last call.
    pub fn update(&mut self, undo: &Undo) {
        if self.count > 2 * undo.len() + SPARE_MARKS {
            self.clear();
        }
        for (mark, key) in undo.changes_since(self.upto) {
            self.marks.entry(key.clone()).or_default().push_back(mark);
            self.count += 1;
        }
        self.upto = undo.mark();
    }

    /// What the key held before everything that `undo` holds; `None`: the same as now.
    pub fn before<'u>(&mut self, undo: &'u Undo, key: &[u8]) -> Option<Option<&'u Value>> {
        let marks = self.marks.get_mut(key)?;
        while let Some(&mark) = marks.front() {
            if let Some(before) = undo.before(mark) {
                return Some(before);
            }
            marks.pop_front();
            self.count -= 1;
        }
        self.marks.remove(key);
        None
    }
}
