//! When keys expire (protocol.md 11). A partition has a time of its own, in milliseconds, that only its log moves on:
//! entries say what time it is at least, and the leader who writes them counts on from what the log says. A key expires
//! by an entry, never by a look at a clock.
//!
//! Deadlines lie in a tree beside that of the values, with undo records of its own: what an operation does to a value
//! does not depend on deadlines, so they follow behind it. A key that is absent has none.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};
use coppice_btree::{
    Edit, Expiry as Wanted, ExpiryCondition, Key, KeyRange, Op, OpResult, SettleProgress, Snapshot, Tree, Undo,
    UndoMark, Update, UpdateOutcome,
};
use coppice_ordering::Ballot;

use super::shifts::{SHIFTS_MAX, Shift, Shifts};
use crate::machine::entry::Said;

/// Deadlines that one look at what is due reads at most into its index, and drops from it.
const READ_AT_ONCE: usize = 1_024;

/// In a snapshot, where the length of the first key would stand: who counted the time stands before it.
const COUNTED_BY: u32 = u32::MAX;

/// The same of shifts, behind that.
const SHIFTED: u32 = u32::MAX - 1;

/// The time of a partition, and when its keys expire.
#[derive(Debug, Default)]
pub struct Expiry {
    /// Milliseconds; never goes back.
    time: u64,
    /// The highest ballot whose leader has moved it on.
    counted_by: Ballot,
    /// What the leader of an earlier ballot says in this batch. It moves nothing on, but what its pack sets counts from
    /// there, if that is later.
    earlier: u64,
    /// Of each key that expires: when, but for the shift of its range.
    deadlines: Tree,
    shifts: Shifts,
    undo: Undo,
    /// Not replicated: only who leads looks for what is due.
    due: Option<Due>,
    /// Keys that expired here.
    expired: u64,
}

/// Takes back what a batch did.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpiryMark {
    time: u64,
    counted_by: Ballot,
    at: UndoMark,
}

/// How it all was before a boundary moved.
#[derive(Debug)]
pub(super) struct ExpiryBefore {
    mark: ExpiryMark,
    deadlines: Snapshot,
    shifts: Shifts,
}

/// What a sealed partition leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpiryLeft {
    time: u64,
    deadlines: Snapshot,
    shifts: Shifts,
}

/// Deadlines in their order. It may hold some that are not true: what was taken back, or left with a split. It lacks
/// those that are not read yet.
#[derive(Clone, Debug, Default)]
struct Due {
    order: BTreeSet<(u64, Key)>,
    /// The first key whose deadline is not read; none: all are.
    unread: Option<Key>,
}

/// Keys to expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueKeys {
    pub keys: Vec<Bytes>,
    /// There may be more: look again soon.
    pub more: bool,
}

impl Expiry {
    /// The time as last executed.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Keys that expire.
    pub fn len(&self) -> u64 {
        self.deadlines.len()
    }

    /// Whether no key expires.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Keys that expired here, since this state was made.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// When a key expires.
    pub fn deadline(&self, key: &[u8]) -> Option<u64> {
        self.deadlines.get(key).map(|stored| self.shifts.at(key).read(stored))
    }

    /// Milliseconds until a key expires; zero: it is due.
    pub(super) fn remaining(&self, key: &[u8]) -> Option<u64> {
        self.deadline(key).map(|deadline| deadline.saturating_sub(self.time))
    }

    /// It is so late at least, if no leader of a later ballot has counted meanwhile: that one did not know what this
    /// one had counted, and keys were set by what it counts itself.
    pub(super) fn advance(&mut self, Said { by, time }: Said) {
        let is_earlier = by < self.counted_by && !mutant!(earlier_leader_counts);
        self.earlier = if is_earlier { time } else { 0 };
        if !is_earlier {
            self.counted_by = self.counted_by.max(by);
            self.time = if mutant!(time_goes_back_at_election) { time } else { self.time.max(time) };
        }
    }

    /// A batch begins.
    pub(super) fn begin_batch(&mut self) {
        self.earlier = 0;
    }

    fn set(&mut self, key: &[u8], deadline: u64) {
        let shift = self.shifts.at(key);
        let value = shift.write(deadline);
        let put = self.deadlines.execute(Op::Put { key, value: &value }, &mut self.undo);
        self.reorder(key, put.value().map(|before| shift.read(before)), Some(shift.read(&value)));
    }

    /// The key expires no more; whether it did.
    fn clear(&mut self, key: &[u8]) -> bool {
        let cleared = self.deadlines.execute(Op::Delete { key }, &mut self.undo);
        self.reorder(key, cleared.value().map(|before| self.shifts.at(key).read(before)), None);
        cleared.value().is_some()
    }

    fn reorder(&mut self, key: &[u8], before: Option<u64>, after: Option<u64>) {
        let Some(due) = &mut self.due else { return };
        if let Some(before) = before {
            due.order.remove(&(before, Key::from(key)));
        }
        due.order.extend(after.map(|after| (after, Key::from(key))));
    }

    /// Whether an operation may do anything here, or ask for anything.
    #[inline]
    pub(super) fn concerns(&self, op: &Op<'_>) -> bool {
        matches!(op, Op::Update { .. } | Op::Look { .. }) || !self.is_empty()
    }

    /// Follows an operation that came to `result` on the values, and adds to that what deadlines say.
    pub(super) fn follow(&mut self, op: &Op<'_>, result: &mut OpResult) {
        match (*op, result) {
            (Op::Put { key, .. }, OpResult::Put { .. }) if !mutant!(put_keeps_expiry) => _ = self.clear(key),
            (Op::Cas { key, .. }, OpResult::Cas { done: true, .. }) => _ = self.clear(key),
            (Op::Delete { key }, OpResult::Delete { previous: Some(_) }) => _ = self.clear(key),
            (Op::Look { key }, OpResult::Look { remaining, .. }) => {
                *remaining = self.remaining(key);
            }
            (Op::Update { key, terms }, OpResult::Update { outcome, exists, .. })
                if *outcome == UpdateOutcome::Done =>
            {
                let Some(update) = Update::read(terms) else { return };
                let done = self.update(key, update.expiry, *exists);
                // Of an update that changes nothing else it is what was asked for.
                if !done && update.edit == Edit::Keep && update.expiry != Wanted::Keep {
                    *outcome = UpdateOutcome::Unmet;
                }
            }
            (Op::Move { key, to, .. }, OpResult::Update { outcome: UpdateOutcome::Done, .. }) if key != to => {
                let deadline = self.deadline(key);
                self.clear(key);
                match deadline {
                    Some(deadline) => self.set(to, deadline),
                    None => _ = self.clear(to),
                }
            }
            _ => {}
        }
    }

    /// Whether the expiry that an update wants came about.
    fn update(&mut self, key: &[u8], wanted: Wanted, exists: bool) -> bool {
        if !exists {
            self.clear(key);
            return false;
        }
        match wanted {
            Wanted::Keep => true,
            Wanted::Clear => self.clear(key),
            Wanted::After { milliseconds, only } => {
                let (now, next) = (self.deadline(key), self.time.max(self.earlier).saturating_add(milliseconds));
                let sets = match only {
                    ExpiryCondition::Always => true,
                    ExpiryCondition::None => now.is_none(),
                    ExpiryCondition::Some => now.is_some(),
                    ExpiryCondition::Later => now.is_some_and(|now| next > now),
                    ExpiryCondition::Earlier => now.is_none_or(|now| next < now),
                };
                if sets {
                    self.set(key, next);
                }
                sets
            }
        }
    }

    /// Expires a key if it is time, and says whether; the caller removes it.
    pub(super) fn expire(&mut self, key: &[u8]) -> bool {
        let due = self.deadline(key).is_some_and(|deadline| deadline <= self.time);
        if due {
            self.clear(key);
            self.expired += 1;
        }
        due
    }

    /// The first deadline in the index, which may be stale.
    pub fn next_due(&self) -> Option<u64> {
        let due = self.due.as_ref().filter(|due| due.unread.is_none())?;
        due.order.first().map(|(deadline, _)| *deadline)
    }

    /// Keys whose deadline is at or before `time`, as many as fit the bounds. Costs what it returns, and reads some of
    /// the deadlines that are not in the index.
    pub fn due(&mut self, time: u64, keys_max: usize, bytes_max: usize) -> DueKeys {
        let due = self.due.get_or_insert_with(|| Due { order: BTreeSet::new(), unread: Some(Key::EMPTY) });
        if let Some(from) = due.unread.take() {
            let rest = KeyRange { low: from, high: None };
            let mut rest = self.deadlines.range(&rest);
            for (key, deadline) in rest.by_ref().take(READ_AT_ONCE) {
                due.order.insert((self.shifts.at(&key).read(deadline), Key::from(&*key)));
            }
            due.unread = rest.next().map(|(key, _)| Key::from(&*key));
        }
        let (mut found, mut bytes, mut stale) = (DueKeys::default(), 0, Vec::new());
        for entry in due.order.iter().take_while(|(deadline, _)| *deadline <= time) {
            let (deadline, key) = entry;
            if self.deadlines.get(key).map(|stored| self.shifts.at(key).read(stored)) != Some(*deadline) {
                stale.push(entry.clone());
            } else {
                bytes += key.len();
                found.keys.push(Bytes::copy_from_slice(key));
            }
            if found.keys.len() >= keys_max || bytes >= bytes_max || stale.len() >= READ_AT_ONCE {
                found.more = true;
                break;
            }
        }
        found.more |= due.unread.is_some();
        stale.iter().for_each(|entry| _ = due.order.remove(entry));
        found
    }

    /// This replica leads no more.
    pub fn forget_due(&mut self) {
        self.due = None;
    }

    pub(super) fn mark(&self) -> ExpiryMark {
        ExpiryMark { time: self.time, counted_by: self.counted_by, at: self.undo.mark() }
    }

    /// Takes back what was done since.
    pub(super) fn undo_to(&mut self, mark: ExpiryMark) {
        let touched: Vec<Key> = match self.due {
            Some(_) => self.undo.keys_since(mark.at).map(Key::from).collect(),
            None => Vec::new(),
        };
        self.deadlines.undo_to(&mut self.undo, mark.at);
        (self.time, self.counted_by) = (mark.time, mark.counted_by);
        if let Some(due) = &mut self.due {
            let deadline = |key: &Key| Some(self.shifts.at(key).read(self.deadlines.get(key)?));
            let restored = touched.into_iter().filter_map(|key| Some((deadline(&key)?, key)));
            due.order.extend(restored);
        }
    }

    pub(super) fn forget_undo_before(&mut self, mark: Option<ExpiryMark>) {
        self.undo.forget_before(mark.map_or_else(|| self.undo.mark(), |mark| mark.at));
    }

    pub(super) fn undo_len(&self) -> usize {
        self.undo.len()
    }

    pub(super) fn undo_bytes(&self) -> u64 {
        self.undo.bytes()
    }

    /// A copy for reading only, with the undo. O(1), and what is undecided.
    pub(super) fn view(&self) -> Expiry {
        let deadlines = self.deadlines.snapshot().into();
        let (time, counted_by, earlier) = (self.time, self.counted_by, self.earlier);
        let (shifts, undo) = (self.shifts.clone(), self.undo.clone());
        Expiry { time, counted_by, earlier, deadlines, shifts, undo, due: None, expired: self.expired }
    }

    /// How it is before a boundary moves.
    pub(super) fn before(&self) -> ExpiryBefore {
        ExpiryBefore { mark: self.mark(), deadlines: self.deadlines.snapshot(), shifts: self.shifts.clone() }
    }

    /// Takes back what was done since a boundary moved, and that.
    pub(super) fn undo_boundary(&mut self, before: &ExpiryBefore) {
        self.undo_to(before.mark);
        self.deadlines = before.deadlines.clone().into();
        self.shifts = before.shifts.clone();
        self.read_again();
    }

    /// Deadlines came from elsewhere.
    fn read_again(&mut self) {
        if let Some(due) = &mut self.due {
            due.unread = Some(Key::EMPTY);
        }
    }

    /// Cuts off those at or above `at`: they go on at the same time, counted by whoever leads there. O(log n).
    pub(super) fn split_off(&mut self, at: &[u8]) -> Expiry {
        let (deadlines, shifts) = (self.deadlines.split_off(at), self.shifts.from(at));
        self.shifts = self.shifts.below(at);
        Expiry { time: self.time, deadlines, shifts, ..Expiry::default() }
    }

    /// What a sealed partition leaves.
    pub(super) fn left(&self) -> ExpiryLeft {
        ExpiryLeft { time: self.time, deadlines: self.deadlines.snapshot(), shifts: self.shifts.clone() }
    }

    /// Takes in those of a neighbour, below the own keys or above; `at` is the first key of the upper side. Its keys
    /// have as long to go as they had there; the own time stays, since entries that are under way were written by it.
    /// O(log n): what is stored stays, and counts with the shift of its side. Returns how many deadlines were written
    /// anew: all, where shifts are as many as may be.
    pub(super) fn join(&mut self, left: &ExpiryLeft, at: &[u8], below: bool) -> u64 {
        if left.deadlines.is_empty() {
            return 0;
        }
        let mut other = Tree::from(left.deadlines.clone());
        let from = if mutant!(merge_shifts_nothing) { self.time } else { left.time };
        let mut shifts = left.shifts.moved(from, self.time);
        if below {
            std::mem::swap(&mut self.deadlines, &mut other);
            std::mem::swap(&mut self.shifts, &mut shifts);
        }
        self.deadlines.join(other);
        self.shifts = self.shifts.joined(at, &shifts);
        self.read_again();
        if self.shifts.len() <= SHIFTS_MAX {
            return 0;
        }
        let whole = self.deadlines.snapshot();
        let unshifted = |stored: &[u8], key: &[u8]| Shift::default().write(self.shifts.at(key).read(stored));
        let written = whole.iter().map(|(key, stored)| (key.to_vec(), unshifted(stored, &key)));
        self.deadlines = Tree::from_sorted(written).unwrap_or_default();
        self.shifts = Shifts::default();
        self.len()
    }

    /// Of time and deadlines; zero where there was never any.
    pub(super) fn digest(&self) -> u64 {
        let by = self.counted_by.round.0.rotate_left(32) ^ u64::from(self.counted_by.replica.0);
        self.deadlines.digest().0
            ^ self.shifts.digest()
            ^ (self.time ^ by.rotate_left(7)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// See [`Tree::settle`].
    pub(super) fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        self.deadlines.settle(from, nodes)
    }

    /// For a snapshot; empty where there was never any. Linear in the deadlines.
    pub fn export(&self) -> Bytes {
        let mut out = Vec::new();
        if self.time > 0 || !self.is_empty() || self.counted_by > Ballot::ZERO {
            out.put_u64_le(self.time);
            if self.counted_by > Ballot::ZERO {
                out.put_u32_le(COUNTED_BY);
                out.put_u64_le(self.counted_by.round.0);
                out.put_u32_le(self.counted_by.replica.0);
            }
            if self.shifts.len() > 0 {
                out.put_u32_le(SHIFTED);
                self.shifts.export(&mut out);
            }
            for (key, deadline) in self.deadlines.iter() {
                out.put_u32_le(key.len() as u32);
                out.put_slice(&key);
                out.put_slice(deadline);
            }
        }
        out.into()
    }

    /// What [`Expiry::export`] made; none: it made something else.
    pub fn import(bytes: &[u8]) -> Option<Expiry> {
        let Some((time, mut rest)) = bytes.split_first_chunk::<8>() else {
            return bytes.is_empty().then(Expiry::default);
        };
        let mut counted_by = Ballot::ZERO;
        if let Some(behind) = rest.strip_prefix(&COUNTED_BY.to_le_bytes()) {
            let (round, behind) = behind.split_first_chunk()?;
            let (replica, behind) = behind.split_first_chunk()?;
            counted_by = Ballot::new(u64::from_le_bytes(*round), u32::from_le_bytes(*replica));
            rest = behind;
        }
        let mut shifts = Shifts::default();
        if let Some(behind) = rest.strip_prefix(&SHIFTED.to_le_bytes()) {
            (shifts, rest) = Shifts::import(behind)?;
        }
        let mut pairs = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (key, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let (deadline, behind) = behind.split_first_chunk::<8>()?;
            pairs.push((key, deadline));
            rest = behind;
        }
        let deadlines = Tree::from_sorted(pairs).ok().filter(|_| rest.is_empty())?;
        Some(Expiry { time: u64::from_le_bytes(*time), counted_by, deadlines, shifts, ..Expiry::default() })
    }
}
