//! How far the log is durable for the groups of one worker thread, from the log's writer to that worker thread.
//!
//! A position takes the place of the one before it, so there is never too much here, and the writer never waits for a
//! worker thread: one that waits for the writer's queue takes nothing out of its mailbox meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use coppice_client::wire::PartitionId;
use coppice_ordering::Lsn;

/// Positions that the worker thread has not taken yet, one for each group at most.
#[derive(Debug, Default)]
pub struct DurableUpto {
    any: AtomicBool,
    positions: Mutex<Vec<(PartitionId, Lsn)>>,
}

impl DurableUpto {
    /// Raises the positions of these groups, and leaves none in `raised`. Whoever calls rings the worker thread's bell
    /// after.
    pub fn raise(&self, raised: &mut Vec<(PartitionId, Lsn)>) {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        for (group, lsn) in raised.drain(..) {
            match positions.iter_mut().find(|(known, _)| *known == group) {
                Some((_, position)) => *position = lsn.max(*position),
                None => positions.push((group, lsn)),
            }
        }
        self.any.store(true, Ordering::Release);
    }

    /// Takes all of them.
    pub fn take(&self) -> Vec<(PartitionId, Lsn)> {
        if !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.positions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_that_nobody_takes_stay_one_for_each_group() {
        let durable = DurableUpto::default();
        for lsn in 1..10_000 {
            durable.raise(&mut vec![(PartitionId(1), Lsn(lsn)), (PartitionId(2), Lsn(2 * lsn))]);
        }
        durable.raise(&mut vec![(PartitionId(1), Lsn(7))]);
        assert_eq!(durable.take(), [(PartitionId(1), Lsn(9_999)), (PartitionId(2), Lsn(19_998))]);
        assert_eq!(durable.take(), []);
    }
}
