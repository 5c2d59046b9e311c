//! How fast a checkpoint may write, and whether it may at all.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::CheckpointError;
use crate::log::free_bytes;

/// Bytes that sled writes for one of ours: a chunk goes into its log, again with both halves when its node splits, and
/// again when a segment is cleaned. 855 MB were counted for the 216 MB of 12 M pairs.
pub(super) const STORE_BYTES: u64 = 4;

/// Bytes on the disk between two flushes of ours: a few milliseconds of it, for which the log's flush waits.
const FLUSH_BYTES: u64 = 2 << 20;

/// Counts what one checkpoint wrote.
#[derive(Debug)]
pub(super) struct Pace {
    dir: PathBuf,
    rate_bytes: u64,
    space_floor_bytes: u64,
    start: Instant,
    written: u64,
    unflushed: u64,
}

impl Pace {
    pub(super) fn new(dir: &Path, rate_bytes: u64, space_floor_bytes: u64) -> Pace {
        let dir = dir.to_owned();
        Pace { dir, rate_bytes: rate_bytes.max(1), space_floor_bytes, start: Instant::now(), written: 0, unflushed: 0 }
    }

    /// Counts bytes given to the store, sleeps if that was too fast, and says whether to flush now.
    pub(super) fn wrote(&mut self, bytes: u64) -> bool {
        let bytes = STORE_BYTES * bytes;
        self.written += bytes;
        self.unflushed += bytes;
        let due = Duration::from_secs_f64(self.written as f64 / self.rate_bytes as f64);
        if let Some(early) = due.checked_sub(self.start.elapsed())
            && early > Duration::from_millis(5)
        {
            thread::sleep(early);
        }
        let flush = self.unflushed >= FLUSH_BYTES;
        if flush {
            self.unflushed = 0;
        }
        flush
    }

    /// Stops before the disk is full: sled would not survive that, and votes need the rest.
    pub(super) fn check_space(&self) -> Result<(), CheckpointError> {
        let free = free_bytes(&self.dir).map_err(|error| CheckpointError::Io { path: self.dir.clone(), error })?;
        if free < self.space_floor_bytes { Err(CheckpointError::Space { free_bytes: free }) } else { Ok(()) }
    }
}
