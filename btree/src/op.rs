//! Commands on a tree, their results, and the functions that execute and undo them. Knows nothing of who asked, or
//! when.

use crate::batch::Way;
use crate::tree::Tree;
use crate::undo::{Record, Undo, UndoMark};
use crate::value::{Key, Value};

/// One command on one key, borrowed from the bytes it arrived in: nothing is copied to run it.
///
/// `Get` appears inside a command of several operations or in a read; a batch of updates holds the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op<'a> {
    /// Writes `value`, whether or not `key` was there. Result: [`OpResult::Put`] with the previous value.
    Put {
        /// Where to write.
        key: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Writes `value` only if `key` is absent (papers.md D11). Result: [`OpResult::Insert`].
    Insert {
        /// Where to write.
        key: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Removes `key`. Result: [`OpResult::Delete`] with the removed value.
    Delete {
        /// What to remove.
        key: &'a [u8],
    },
    /// Writes `value` only if `key` holds exactly `expected`. Result: [`OpResult::Cas`].
    Cas {
        /// Where to write.
        key: &'a [u8],
        /// What must be there.
        expected: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Reads `key`. Result: [`OpResult::Get`].
    Get {
        /// What to read.
        key: &'a [u8],
    },
}

impl<'a> Op<'a> {
    /// The value that the command may write.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put { value, .. } | Self::Insert { value, .. } | Self::Cas { value, .. } => Some(value),
            Self::Delete { .. } | Self::Get { .. } => None,
        }
    }

    /// The key that the command is about.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Self::Put { key, .. }
            | Self::Insert { key, .. }
            | Self::Delete { key }
            | Self::Cas { key, .. }
            | Self::Get { key } => key,
        }
    }
}

/// What a command answers. Every mutation tells what was there before (hazards.md E2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// Answers [`Op::Put`].
    Put {
        /// The value that was overwritten; `None`: the key was absent.
        previous: Option<Value>,
    },
    /// Answers [`Op::Insert`].
    Insert {
        /// The value that kept the insert from happening; `None`: inserted.
        present: Option<Value>,
    },
    /// Answers [`Op::Delete`].
    Delete {
        /// The removed value; `None`: there was nothing to remove.
        previous: Option<Value>,
    },
    /// Answers [`Op::Cas`].
    Cas {
        /// Whether the new value was written.
        done: bool,
        /// The value found before the command, done or not; `None`: the key was absent.
        current: Option<Value>,
    },
    /// Answers [`Op::Get`].
    Get {
        /// The value; `None`: the key is absent.
        value: Option<Value>,
    },
}

impl Tree {
    /// Executes one command and leaves in `undo` what takes it back (protocol.md 2.3): nothing for a read, a failed
    /// insert, a failed cas or a delete of nothing. O(log n).
    #[inline]
    pub fn execute(&mut self, op: Op<'_>, undo: &mut Undo) -> OpResult {
        self.execute_on::<true>(op, Way::UNKNOWN, undo)
    }

    /// [`Tree::execute`]; with `ALONE`, nobody asked for the nodes before, else the key went down the given way then.
    #[inline]
    pub(crate) fn execute_on<const ALONE: bool>(&mut self, op: Op<'_>, way: Way, undo: &mut Undo) -> OpResult {
        match op {
            Op::Put { key, value } => OpResult::Put { previous: self.put_undoable::<ALONE>(key, value, way, undo) },
            Op::Insert { key, value } => {
                let present = self.write::<ALONE>(key, value, false, way);
                if present.is_none() || mutant!(undo_insert) {
                    undo.push(Record::Inserted { key: Key::from(key) });
                }
                OpResult::Insert { present }
            }
            Op::Delete { key } => {
                let previous = self.remove::<ALONE>(key, way);
                if let Some(value) = &previous {
                    undo.push(Record::Deleted { key: Key::from(key), value: value.clone() });
                } else if mutant!(undo_delete) {
                    undo.push(Record::Deleted { key: Key::from(key), value: Value::EMPTY });
                }
                OpResult::Delete { previous }
            }
            Op::Cas { key, expected, value } => {
                if self.get(key).is_some_and(|current| current == expected) {
                    OpResult::Cas { done: true, current: self.put_undoable::<ALONE>(key, value, way, undo) }
                } else {
                    OpResult::Cas { done: false, current: self.get_value(key) }
                }
            }
            Op::Get { key } => OpResult::Get { value: self.get_value(key) },
        }
    }

    #[inline]
    fn put_undoable<const ALONE: bool>(
        &mut self,
        key: &[u8],
        value: &[u8],
        way: Way,
        undo: &mut Undo,
    ) -> Option<Value> {
        let previous = self.write::<ALONE>(key, value, true, way);
        let key = Key::from(key);
        undo.push(match &previous {
            Some(value) if !mutant!(undo_put) => Record::Replaced { key, value: value.clone() },
            _ => Record::Inserted { key },
        });
        previous
    }

    /// Takes back, newest first, everything recorded since `mark`, and removes those records. O(records log n).
    ///
    /// # Panics
    /// If records at or after `mark` were already forgotten, or do not fit this tree: state that cannot be restored
    /// must never be served (hazards.md SP10).
    pub fn undo_to(&mut self, undo: &mut Undo, mark: UndoMark) {
        self.undo_each(undo, mark, || {});
    }

    /// As [`Tree::undo_to`]; `taken_back` is called after each record, while others are still to come.
    ///
    /// # Panics
    /// As [`Tree::undo_to`].
    pub fn undo_each(&mut self, undo: &mut Undo, mark: UndoMark, mut taken_back: impl FnMut()) {
        if mutant!(undo_forward) {
            let mut records = Vec::new();
            while let Some(record) = undo.pop_after(mark) {
                records.push(record);
            }
            for record in records.into_iter().rev() {
                self.take_back(record);
            }
            return;
        }
        while let Some(record) = undo.pop_after(mark) {
            self.take_back(record);
            taken_back();
        }
    }

    fn take_back(&mut self, record: Record) {
        match record {
            Record::Inserted { key } => {
                let removed = self.delete(&key);
                assert!(removed.is_some() || MUTANTS, "undo of an insert found nothing at {key:?}");
            }
            Record::Deleted { key, value } => {
                let present = self.insert(&key, &value);
                assert!(present.is_none() || MUTANTS, "undo of a delete found {present:?} at {key:?}");
            }
            Record::Replaced { key, value } => {
                let replaced = self.put(&key, &value);
                assert!(replaced.is_some() || MUTANTS, "undo of a put found nothing at {key:?}");
            }
        }
    }
}

/// With planted bugs the tests want to see wrong states, not this file's assertions.
const MUTANTS: bool = cfg!(feature = "mutants");
