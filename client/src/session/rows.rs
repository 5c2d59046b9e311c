//! The sessions that this client opened, and the numbers it used in each (protocol.md 6).
//!
//! A row is the client's mirror of a row in the partition's session table: which numbers wait for an answer, so that
//! every pack can say what was acknowledged. Several partitions share a row after a split.

use std::collections::VecDeque;

use crate::time::Time;
use crate::wire::SessionId;

/// Unknown numbers kept unacknowledged per session, so that they can be resumed; the oldest is given up first.
const KEPT_MAX: usize = 16;

/// Names a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowKey(u32);

#[derive(Clone, Debug)]
struct Row {
    id: SessionId,
    /// Numbers in ascending order; `true`: answered. The first one is not answered.
    numbers: VecDeque<(u64, bool)>,
    /// Numbers whose outcome is unknown to the caller, with the end of their keeping.
    kept: VecDeque<(u64, Time)>,
    /// Not in the partition's table any more.
    expired: bool,
}

/// All sessions of this client.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    /// The last number used, in any session: numbers are the client's.
    last_number: u64,
}

impl Rows {
    /// A session that was just opened, or the one of a token.
    pub fn insert(&mut self, id: SessionId) -> RowKey {
        let known = self.rows.iter().position(|row| row.id == id);
        // A row that nobody needs any more makes room: sessions expire seldom, so this stays short.
        let free = || self.rows.iter().position(|row| row.expired && row.numbers.is_empty());
        let row = Row { id, numbers: VecDeque::new(), kept: VecDeque::new(), expired: false };
        if let Some(at) = known {
            return RowKey(at as u32);
        }
        match free() {
            Some(at) => {
                self.rows[at] = row;
                RowKey(at as u32)
            }
            None => {
                self.rows.push(row);
                RowKey((self.rows.len() - 1) as u32)
            }
        }
    }

    pub fn id(&self, key: RowKey) -> SessionId {
        self.rows[key.0 as usize].id
    }

    pub fn is_expired(&self, key: RowKey) -> bool {
        self.rows[key.0 as usize].expired
    }

    pub fn expire(&mut self, key: RowKey) {
        self.rows[key.0 as usize].expired = true;
    }

    /// The lowest number that is not acknowledged: what a pack says before it is given further numbers.
    pub fn lowest_unacknowledged(&self, key: RowKey) -> u64 {
        self.rows[key.0 as usize].numbers.front().map_or(self.last_number + 1, |&(number, _)| number)
    }

    /// The number that [`Rows::next_number`] would use.
    pub fn upcoming_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Uses the next number in this session.
    pub fn next_number(&mut self, key: RowKey) -> u64 {
        self.last_number += 1;
        self.rows[key.0 as usize].numbers.push_back((self.last_number, false));
        self.last_number
    }

    /// Takes a number of an earlier life of the client up again.
    pub fn resume_number(&mut self, key: RowKey, number: u64) {
        // Never give a number twice in one session.
        self.last_number = self.last_number.max(number);
        let row = &mut self.rows[key.0 as usize];
        row.kept.retain(|&(kept, _)| kept != number);
        match row.numbers.binary_search_by_key(&number, |&(number, _)| number) {
            Ok(at) => row.numbers[at].1 = false,
            Err(at) => row.numbers.insert(at, (number, false)),
        }
    }

    /// The caller has its answer: the number is acknowledged from the next pack on.
    pub fn done(&mut self, key: RowKey, number: u64) {
        let numbers = &mut self.rows[key.0 as usize].numbers;
        // Answers come mostly in order.
        if let Some(front) = numbers.front_mut().filter(|front| front.0 == number) {
            front.1 = true;
        } else if let Ok(at) = numbers.binary_search_by_key(&number, |&(number, _)| number) {
            numbers[at].1 = true;
        }
        while numbers.front().is_some_and(|&(_, done)| done) {
            numbers.pop_front();
        }
    }

    /// The caller was told that the outcome is unknown: the number stays unacknowledged for a while.
    pub fn keep(&mut self, key: RowKey, number: u64, until: Time) {
        let kept = &mut self.rows[key.0 as usize].kept;
        kept.push_back((number, until));
        if kept.len() > KEPT_MAX
            && let Some((oldest, _)) = kept.pop_front()
        {
            self.done(key, oldest);
        }
    }

    /// Gives up what was kept long enough.
    pub fn forget_kept(&mut self, now: Time) {
        for at in 0..self.rows.len() {
            while let Some(&(number, until)) = self.rows[at].kept.front()
                && until <= now
            {
                self.rows[at].kept.pop_front();
                self.done(RowKey(at as u32), number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PartitionId;

    #[test]
    fn the_lowest_unacknowledged_number_follows_the_answers() {
        let mut rows = Rows::default();
        let a = rows.insert(SessionId { partition: PartitionId(1), instance: 5, index: 0 });
        let b = rows.insert(SessionId { partition: PartitionId(2), instance: 5, index: 0 });
        assert_eq!(rows.lowest_unacknowledged(a), 1);
        let numbers: Vec<u64> = [a, b, a, a].map(|row| rows.next_number(row)).to_vec();
        assert_eq!(numbers, [1, 2, 3, 4]);
        rows.done(a, 3);
        assert_eq!((rows.lowest_unacknowledged(a), rows.lowest_unacknowledged(b)), (1, 2));
        rows.done(a, 1);
        assert_eq!(rows.lowest_unacknowledged(a), 4);
        rows.done(a, 4);
        rows.done(b, 2);
        assert_eq!((rows.lowest_unacknowledged(a), rows.lowest_unacknowledged(b)), (5, 5));
    }

    #[test]
    fn an_unknown_number_is_kept_for_a_while_and_only_so_many() {
        let mut rows = Rows::default();
        let row = rows.insert(SessionId::default());
        for _ in 0..KEPT_MAX as u64 + 1 {
            let number = rows.next_number(row);
            rows.keep(row, number, Time::from_millis(number));
        }
        assert_eq!(rows.lowest_unacknowledged(row), 2);
        rows.forget_kept(Time::from_millis(4));
        assert_eq!(rows.lowest_unacknowledged(row), 5);
        rows.resume_number(row, 5);
        rows.forget_kept(Time::from_millis(1_000));
        assert_eq!(rows.lowest_unacknowledged(row), 5);
        rows.done(row, 5);
        assert_eq!(rows.lowest_unacknowledged(row), KEPT_MAX as u64 + 2);
    }
}
