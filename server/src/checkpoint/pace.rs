//! How fast a checkpoint may write and read back, and whether it may at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{CheckpointError, Checkpoints};
use crate::log::free_bytes;

/// Bytes that sled writes for one of ours: a chunk goes into its log, again with both halves when its node splits, and
/// again when a segment is cleaned. 855 MB were counted for the 216 MB of 12 M pairs.
pub(super) const STORE_BYTES: u64 = 4;

/// Bytes on the disk between two flushes of ours: a few milliseconds of it, for which the log's flush waits.
const FLUSH_BYTES: u64 = 2 << 20;

/// One byte read back counts for so many written: it takes no disk, but as much of the processors as writing it.
const READ_BYTES: u64 = 2;

/// How many times as fast checkpoints are written; 0 is once.
#[derive(Clone, Debug, Default)]
pub struct Hurry(Arc<AtomicU64>);

impl Hurry {
    /// So many times from now on.
    pub fn set(&self, times: u64) {
        self.0.store(times, Ordering::Relaxed);
    }
}

/// Counts what one checkpoint wrote, then what of it was read back.
#[derive(Debug)]
pub(super) struct Pace {
    dir: PathBuf,
    rate_bytes: u64,
    /// How many times as fast: changes while the checkpoint is written.
    hurry: Hurry,
    space_floor_bytes: u64,
    start: Instant,
    spent: u64,
    unflushed: u64,
}

impl Pace {
    pub(super) fn new(checkpoints: &Checkpoints, rate_bytes: u64) -> Pace {
        let Checkpoints { dir, options, hurry, .. } = checkpoints.clone();
        let (space_floor_bytes, rate_bytes) = (options.space_floor_bytes, rate_bytes.max(1));
        Pace { dir, rate_bytes, hurry, space_floor_bytes, start: Instant::now(), spent: 0, unflushed: 0 }
    }

    /// Counts bytes given to the store, sleeps if that was too fast, and says whether to flush now.
    pub(super) fn wrote(&mut self, bytes: u64) -> bool {
        let bytes = STORE_BYTES * bytes;
        self.unflushed += bytes;
        self.spend(bytes);
        let flush = self.unflushed >= FLUSH_BYTES;
        if flush {
            self.unflushed = 0;
        }
        flush
    }

    /// All is written: what follows is read.
    pub(super) fn restart(&mut self) {
        (self.start, self.spent) = (Instant::now(), 0);
    }

    /// Counts bytes read back, and sleeps if that was too fast.
    pub(super) fn read(&mut self, bytes: u64) {
        self.spend(READ_BYTES * bytes);
    }

    fn spend(&mut self, bytes: u64) {
        self.spent += bytes / self.hurry.0.load(Ordering::Relaxed).max(1);
        let due = Duration::from_secs_f64(self.spent as f64 / self.rate_bytes as f64);
        if let Some(early) = due.checked_sub(self.start.elapsed())
            && early > Duration::from_millis(5)
        {
            thread::sleep(early);
        }
    }

    /// Stops before the disk is full: sled would not survive that, and votes need the rest.
    pub(super) fn check_space(&self) -> Result<(), CheckpointError> {
        let free = free_bytes(&self.dir).map_err(|error| CheckpointError::Io { path: self.dir.clone(), error })?;
        if free < self.space_floor_bytes { Err(CheckpointError::Space { free_bytes: free }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckpointOptions;
    use super::*;

    #[test]
    fn the_flushes_and_the_rate_count_what_sled_writes() {
        let options = CheckpointOptions { space_floor_bytes: 0, ..CheckpointOptions::default() };
        let checkpoints = Checkpoints::existing(&std::env::temp_dir(), options).expect("it is there");
        let mut pace = Pace::new(&checkpoints, u64::MAX);
        let chunk = FLUSH_BYTES / STORE_BYTES / 8;
        let due: Vec<bool> = (0..16).map(|_| pace.wrote(chunk)).collect();
        assert_eq!(due, [[false; 7].as_slice(), &[true], &[false; 7], &[true]].concat());
        assert_eq!(pace.spent, 2 * FLUSH_BYTES);

        let rate = 100 * FLUSH_BYTES;
        let mut paced = Pace::new(&checkpoints, rate);
        paced.wrote(rate / 10 / STORE_BYTES);
        assert!(paced.start.elapsed() >= Duration::from_millis(99), "a tenth of a second's bytes take that long");
        checkpoints.hurry.set(4);
        let before = paced.spent;
        paced.wrote(rate / 10 / STORE_BYTES);
        assert_eq!(paced.spent - before, rate / 40, "a quarter of the time");
    }
}
