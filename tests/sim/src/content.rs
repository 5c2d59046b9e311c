//! What a partition holds, by a model of its own: plain maps, and operations in plain words. It shares no code with the
//! tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_btree::{Condition, Edit, Expiry, ExpiryCondition, Op, OpResult, Returns, Update, UpdateOutcome, Value};
use coppice_ordering::Ballot;

/// What ends the keys that no history holds: those of updates, which the checkers know nothing of.
pub const BEYOND: u8 = b'+';

/// Whether no history holds the key.
pub fn is_beyond(key: &[u8]) -> bool {
    key.last() == Some(&BEYOND)
}

/// The key beside `key` that no history holds.
pub fn beyond(key: &Bytes) -> Bytes {
    [&key[..], &[BEYOND]].concat().into()
}

/// Pairs, and when they expire by the partition's own time.
#[derive(Clone, Debug, Default)]
pub struct Content {
    pub pairs: BTreeMap<Bytes, Bytes>,
    pub deadlines: BTreeMap<Bytes, u64>,
    /// Milliseconds.
    pub time: u64,
    /// The latest leader that counted it, and what an earlier one says where it is later.
    pub counted_by: Ballot,
    pub earlier: u64,
}

impl Content {
    /// Cuts off all at or above `at`.
    pub fn split_off(&mut self, at: &Bytes) -> Content {
        let (pairs, deadlines) = (self.pairs.split_off(at), self.deadlines.split_off(at));
        Content { pairs, deadlines, time: self.time, ..Content::default() }
    }

    /// Takes in a neighbour's.
    pub fn join(&mut self, other: Content) {
        self.pairs.extend(other.pairs);
        let remaining = other.deadlines.into_iter().map(|(key, at)| (key, at.saturating_sub(other.time) + self.time));
        self.deadlines.extend(remaining);
    }

    /// It is so late at least, if no later leader has counted, and keys of these whose time has come go.
    pub fn expire(&mut self, by: Ballot, time: u64, keys: &[Value]) {
        self.earlier = time;
        if by >= self.counted_by {
            self.counted_by = by;
            self.time = self.time.max(time);
        }
        for key in keys {
            if self.deadlines.get(&key[..]).is_some_and(|at| *at <= self.time) {
                self.remove(key);
            }
        }
    }

    fn value(&self, key: &[u8]) -> Option<Value> {
        self.pairs.get(key).map(|value| Value::from(&value[..]))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) {
        self.pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    }

    fn remove(&mut self, key: &[u8]) -> Option<Bytes> {
        self.deadlines.remove(key);
        self.pairs.remove(key)
    }

    /// What is known of a key without its value.
    pub fn look(&self, key: &[u8]) -> OpResult {
        let length = self.pairs.get(key).map(Bytes::len);
        let remaining = self.deadlines.get(key).map(|at| at.saturating_sub(self.time));
        OpResult::Look { exists: length.is_some(), length: length.unwrap_or(0) as u32, remaining }
    }

    /// The same of all keys that no history holds.
    pub fn looks(&self) -> BTreeMap<Bytes, OpResult> {
        let beyond = self.pairs.keys().filter(|key| is_beyond(key));
        beyond.map(|key| (key.clone(), self.look(key))).collect()
    }

    /// Executes an operation.
    pub fn apply(&mut self, op: &Op<'_>) -> OpResult {
        let current = self.value(op.key());
        match *op {
            Op::Put { key, value } => {
                self.write(key, value);
                self.deadlines.remove(key);
                OpResult::Put { previous: current }
            }
            Op::Insert { key, value } => {
                if current.is_none() {
                    self.write(key, value);
                }
                OpResult::Insert { present: current }
            }
            Op::Delete { key } => {
                self.remove(key);
                OpResult::Delete { previous: current }
            }
            Op::Cas { key, expected, value } => {
                let done = current.as_deref() == Some(expected);
                if done {
                    self.write(key, value);
                    self.deadlines.remove(key);
                }
                OpResult::Cas { done, current }
            }
            Op::Get { .. } => OpResult::Get { value: current },
            Op::Update { key, terms } => match Update::read(terms) {
                Some(update) => self.update(key, &update, current),
                None => self.updated(key, UpdateOutcome::Unmet, None),
            },
            Op::Look { key } => self.look(key),
            Op::Move { key, to, absent } => {
                let outcome = if current.is_none() {
                    UpdateOutcome::Missing
                } else if absent && self.pairs.contains_key(to) {
                    UpdateOutcome::Unmet
                } else {
                    let deadline = self.deadlines.remove(key);
                    let value = self.remove(key).unwrap_or_default();
                    self.remove(to);
                    self.write(to, &value);
                    self.deadlines.extend(deadline.map(|at| (Bytes::copy_from_slice(to), at)));
                    UpdateOutcome::Done
                };
                self.updated(to, outcome, None)
            }
        }
    }

    fn updated(&self, key: &[u8], outcome: UpdateOutcome, value: Option<Value>) -> OpResult {
        let now = self.pairs.get(key);
        OpResult::Update { outcome, exists: now.is_some(), length: now.map_or(0, Bytes::len) as u32, value }
    }

    fn update(&mut self, key: &[u8], update: &Update<'_>, current: Option<Value>) -> OpResult {
        let met = match update.condition {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Equals(expected) => current.as_deref() == Some(expected),
        };
        let mut outcome = if met { self.edit(key, update.edit) } else { UpdateOutcome::Unmet };
        if outcome == UpdateOutcome::Done {
            let done = self.pairs.contains_key(key) && self.set_deadline(key, update.expiry);
            if !done && update.edit == Edit::Keep && update.expiry != Expiry::Keep {
                outcome = UpdateOutcome::Unmet;
            }
        }
        let value = match update.returns {
            Returns::Nothing => None,
            Returns::Previous => current,
            Returns::New => self.value(key),
        };
        self.updated(key, outcome, value)
    }

    /// Whether the key expires as it shall.
    fn set_deadline(&mut self, key: &[u8], expiry: Expiry) -> bool {
        let before = self.deadlines.get(key).copied();
        match expiry {
            Expiry::Keep => true,
            Expiry::Clear => self.deadlines.remove(key).is_some(),
            Expiry::After { milliseconds, only } => {
                let at = self.time.max(self.earlier) + milliseconds;
                // None is later than all.
                let last = before.unwrap_or(u64::MAX);
                let sets = match only {
                    ExpiryCondition::Always => true,
                    ExpiryCondition::None => before.is_none(),
                    ExpiryCondition::Some => before.is_some(),
                    ExpiryCondition::Later => at > last,
                    ExpiryCondition::Earlier => at < last,
                };
                if sets {
                    self.deadlines.insert(Bytes::copy_from_slice(key), at);
                }
                sets
            }
        }
    }

    fn edit(&mut self, key: &[u8], edit: Edit<'_>) -> UpdateOutcome {
        let before = self.pairs.get(key).cloned();
        let value = match edit {
            Edit::Keep => return UpdateOutcome::Done,
            Edit::Remove => {
                self.remove(key);
                return UpdateOutcome::Done;
            }
            Edit::Set(value) => value.to_vec(),
            Edit::Append(more) => [&before.unwrap_or_default()[..], more].concat(),
            Edit::SetRange { offset, bytes } => {
                let mut value = before.map_or_else(Vec::new, Vec::from);
                let missing = (offset as usize + bytes.len()).saturating_sub(value.len());
                value.extend(std::iter::repeat_n(0, missing));
                value.splice(offset as usize..offset as usize + bytes.len(), bytes.iter().copied());
                value
            }
            Edit::Add(number) => match number_of(before) {
                Some(before) => (before + number).to_string().into_bytes(),
                None => return UpdateOutcome::NotInteger,
            },
            // Quarters have no rounding.
            Edit::AddFloat(number) => {
                let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<f64>().ok();
                match (before.map_or(Some(0.0), |before| text(&before)), text(number)) {
                    (Some(before), Some(number)) => format!("{}", before + number).into_bytes(),
                    _ => return UpdateOutcome::NotFloat,
                }
            }
        };
        self.write(key, &value);
        UpdateOutcome::Done
    }
}

/// The integer that a value is, of those that are drawn.
fn number_of(value: Option<Bytes>) -> Option<i64> {
    let Some(value) = value else { return Some(0) };
    let text = std::str::from_utf8(&value).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
