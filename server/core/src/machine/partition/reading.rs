//! Reading a partition's state: keys, ranges, and parts of queries.

use coppice_btree::{Cursor, Direction, KeyRange, OpResult, Value};

use super::Partition;

/// From here on looking for a key again costs less than a copy of its value.
const SHARED_BYTES_MIN: usize = 4_096;

/// What a read of keys finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// One per key, of the first ones.
    pub values: Vec<Option<Value>>,
    /// Keys behind them, to be asked for again.
    pub left_out: usize,
    /// Of all the values.
    pub bytes: usize,
}

impl Partition {
    /// The values of the first of `keys`, as many as `bytes_max` allows, and of how many keys that leaves out; `None`
    /// if a key lies outside the partition, or it is sealed: checked in the state that is read, whenever the read was
    /// positioned (hazards.md MV3).
    pub fn get_all<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, bytes_max: usize) -> Option<Values> {
        let keys: Vec<&[u8]> = keys.collect();
        if !self.owns_all(&keys) {
            return None;
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        self.tree.get_batch(&keys, |at, value| {
            if bytes < bytes_max {
                bytes += value.map_or(0, <[u8]>::len);
                values.push(match value {
                    Some(value) if value.len() < SHARED_BYTES_MIN => Some(Value::from(value)),
                    // Shared with the tree: thousands of reads of one large value copy nothing.
                    Some(_) => self.tree.get_value(keys[at]),
                    None => None,
                });
            }
        });
        let left_out = keys.len() - values.len();
        Some(Values { values, left_out, bytes })
    }

    /// What an [`coppice_btree::Op::Look`] at each of `keys` would answer here, if no time passed; `None` as above.
    /// O(log n) each.
    pub fn look_all<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Option<Vec<OpResult>> {
        let keys: Vec<&[u8]> = keys.collect();
        let look = |key: &&[u8]| {
            let length = self.tree.get(key).map(<[u8]>::len);
            let remaining = self.expiry.remaining(key);
            OpResult::Look { exists: length.is_some(), length: length.unwrap_or(0) as u32, remaining }
        };
        self.owns_all(&keys).then(|| keys.iter().map(look).collect())
    }

    fn owns_all(&self, keys: &[&[u8]]) -> bool {
        !self.is_closed() && keys.iter().all(|key| self.range.contains(key)) || mutant!(read_ignores_split)
    }

    /// The values in the state before everything that can be taken back, as long as no boundary has moved since. Costs
    /// what was executed since the last call, and the keys.
    pub fn get_all_before<'k, K: Iterator<Item = &'k [u8]>>(
        &mut self,
        keys: impl Fn() -> K,
        bytes_max: usize,
    ) -> Option<Values> {
        if self.is_closed() || !keys().all(|key| self.range.contains(key)) {
            return None;
        }
        self.overlay.update(&self.undo);
        let mut read = Values { values: Vec::new(), left_out: 0, bytes: 0 };
        for key in keys() {
            if read.bytes >= bytes_max {
                read.left_out += 1;
                continue;
            }
            let value = match self.overlay.before(&self.undo, key) {
                Some(before) => before.cloned(),
                None => self.tree.get_value(key),
            };
            read.bytes += value.as_deref().map_or(0, <[u8]>::len);
            read.values.push(value);
        }
        Some(read)
    }

    /// A walk over `[low, high)` as it is now, O(1) to make; `None` if a part of it lies outside the partition, or it
    /// is sealed.
    pub fn cursor(&self, low: &[u8], high: Option<&[u8]>, reverse: bool) -> Option<Cursor> {
        if self.is_closed() {
            return None;
        }
        self.part(low, high, reverse)
    }

    /// The same for a part of a query: a sealed partition gives it too.
    pub(super) fn part(&self, low: &[u8], high: Option<&[u8]>, reverse: bool) -> Option<Cursor> {
        if !self.owns_range(low, high) && !mutant!(read_ignores_split) {
            return None;
        }
        let wanted = KeyRange { low: low.into(), high: high.map(Into::into) };
        let direction = if reverse { Direction::Reverse } else { Direction::Forward };
        Some(self.tree.cursor(wanted, direction))
    }

    /// Whether `[low, high)` may be read here: it lies inside the partition, which is not sealed.
    pub fn may_read(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        !self.is_closed() && self.owns_range(low, high)
    }

    fn owns_range(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let below_high = match (high, &self.range.high) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(high), Some(own)) => high <= own.as_slice(),
        };
        low >= self.range.low.as_slice() && below_high
    }
}
