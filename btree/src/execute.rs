//! Executing commands on a tree, one by one and many at once, and taking them back.

use crate::descent::{DescentHint, GROUP, descend_all};
use crate::node::FixedLeaf;
use crate::op::{Op, OpResult};
use crate::tree::Tree;
use crate::undo::{Record, Undo, UndoMark};
use crate::update::{Change, Returns, Update, UpdateOutcome};
use crate::value::{Key, Value};

impl Tree {
    /// Executes one command and leaves in `undo` what takes it back (protocol.md 2.3): nothing for a read, a failed
    /// insert, a failed cas or a delete of nothing. O(log n).
    #[inline]
    pub fn execute(&mut self, op: Op<'_>, undo: &mut Undo) -> OpResult {
        self.execute_on::<true>(op, DescentHint::UNKNOWN, undo)
    }

    /// [`Tree::execute`]; with `ALONE`, nobody asked for the nodes before, else the key went down the given way then.
    #[inline]
    pub(crate) fn execute_on<const ALONE: bool>(&mut self, op: Op<'_>, hint: DescentHint, undo: &mut Undo) -> OpResult {
        match op {
            Op::Put { key, value } => OpResult::Put { previous: self.put_undoable::<ALONE>(key, value, hint, undo) },
            Op::Insert { key, value } => {
                let present = self.write::<ALONE>(key, value, false, hint);
                if present.is_none() || mutant!(undo_insert) {
                    undo.push(Record::Inserted { key: Key::from(key) });
                }
                OpResult::Insert { present }
            }
            Op::Delete { key } => {
                let previous = self.remove::<ALONE>(key, hint);
                if let Some(value) = &previous {
                    undo.push(Record::Deleted { key: Key::from(key), value: value.clone() });
                } else if mutant!(undo_delete) {
                    undo.push(Record::Deleted { key: Key::from(key), value: Value::EMPTY });
                }
                OpResult::Delete { previous }
            }
            Op::Cas { key, expected, value } => {
                if self.get(key).is_some_and(|current| current == expected) {
                    OpResult::Cas { done: true, current: self.put_undoable::<ALONE>(key, value, hint, undo) }
                } else {
                    OpResult::Cas { done: false, current: self.get_value(key) }
                }
            }
            Op::Get { key } => OpResult::Get { value: self.get_value(key) },
            Op::Update { key, terms } => self.update(key, terms, undo),
            Op::Look { key } => {
                let length = self.get(key).map(<[u8]>::len);
                OpResult::Look { exists: length.is_some(), length: length.unwrap_or(0) as u32, remaining: None }
            }
            Op::Move { key, to, absent } => self.move_value(key, to, absent, undo),
        }
    }

    /// Executes an [`Update`]. Never inlined, so that the short operations beside it stay short.
    #[inline(never)]
    fn update(&mut self, key: &[u8], terms: &[u8], undo: &mut Undo) -> OpResult {
        let mark = undo.mark();
        let current = self.get(key);
        // The decoder of commands has read the terms, so they are valid.
        let (outcome, change, returns) = match Update::read(terms) {
            Some(update) if !update.condition.holds(current) => (UpdateOutcome::Unmet, Change::Nothing, update.returns),
            Some(update) => match update.edit.apply(current) {
                Ok(change) => (UpdateOutcome::Done, change, update.returns),
                Err(outcome) => (outcome, Change::Nothing, update.returns),
            },
            None => (UpdateOutcome::Unmet, Change::Nothing, Returns::Nothing),
        };
        let previous = if returns == Returns::Previous { self.get_value(key) } else { None };
        match change {
            Change::Nothing => {}
            Change::Write(value) => {
                self.put_undoable::<true>(key, &value, DescentHint::UNKNOWN, undo);
            }
            Change::Remove => _ = self.execute(Op::Delete { key }, undo),
        }
        if mutant!(update_undo_forgets) {
            undo.cut(mark);
        }
        let now = self.get(key);
        let (exists, length) = (now.is_some(), now.map_or(0, <[u8]>::len) as u32);
        let value = if returns == Returns::New { self.get_value(key) } else { previous };
        OpResult::Update { outcome, exists, length, value }
    }

    #[inline(never)]
    fn move_value(&mut self, key: &[u8], to: &[u8], absent: bool, undo: &mut Undo) -> OpResult {
        let outcome = match (self.get_value(key), self.get(to)) {
            (None, _) => UpdateOutcome::Missing,
            (Some(_), Some(_)) if absent => UpdateOutcome::Unmet,
            (Some(_), _) if key == to => UpdateOutcome::Done,
            (Some(value), _) => {
                self.execute(Op::Delete { key }, undo);
                self.put_undoable::<true>(to, &value, DescentHint::UNKNOWN, undo);
                UpdateOutcome::Done
            }
        };
        let now = self.get(to);
        OpResult::Update { outcome, exists: now.is_some(), length: now.map_or(0, <[u8]>::len) as u32, value: None }
    }

    /// Executes `ops` in order and appends one result each to `results`: the same results, content and undo as
    /// [`Tree::execute`] one by one, faster.
    pub fn execute_batch(&mut self, ops: &[Op<'_>], results: &mut Vec<OpResult>, undo: &mut Undo) {
        results.reserve(ops.len());
        let ask = |tree: &Self, group: &[Op<'_>]| {
            descend_all(tree.root(), group.iter().map(Op::key), FixedLeaf::prefetch_change).map(|descent| descent.hint)
        };
        // While the commands of one group are executed, the memory of the next one's leaves is on its way.
        let mut groups = ops.chunks(GROUP).peekable();
        let mut next_hints = groups.peek().map(|first| ask(self, first));
        while let (Some(group), Some(hints)) = (groups.next(), next_hints) {
            next_hints = groups.peek().map(|next| ask(self, next));
            for (op, hint) in group.iter().zip(hints) {
                results.push(self.execute_on::<false>(*op, hint, undo));
            }
        }
    }

    #[inline]
    fn put_undoable<const ALONE: bool>(
        &mut self,
        key: &[u8],
        value: &[u8],
        hint: DescentHint,
        undo: &mut Undo,
    ) -> Option<Value> {
        let previous = self.write::<ALONE>(key, value, true, hint);
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
