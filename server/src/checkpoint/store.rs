//! Opening the sled store of a checkpoint.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::CheckpointOptions;

/// How long the lock of a store may stay taken by an owner that is gone, and how often we look.
const LOCK_LINGERS: Duration = Duration::from_secs(2);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// Opens the store at `path`. Its lock may outlive its last owner for a moment: sled's threads drop their handle late,
/// and a child process that is being started holds a copy of every descriptor until it runs. So a taken lock is waited
/// for, [`LOCK_LINGERS`] at most.
pub(super) fn open_store(path: &Path, options: &CheckpointOptions) -> Result<sled::Db, sled::Error> {
    let start = Instant::now();
    loop {
        match config(path, options).open() {
            Err(sled::Error::Io(error)) if lock_taken(&error) && start.elapsed() < LOCK_LINGERS => {
                thread::sleep(LOCK_LOOK);
            }
            opened => return opened,
        }
    }
}

/// Sled wraps the error of its lock into one of kind `Other`, of which only the text tells.
fn lock_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.to_string().starts_with("could not acquire lock")
}

fn config(path: &Path, options: &CheckpointOptions) -> sled::Config {
    // No flusher thread: we flush. No compression: the log is not compressed either, and chunks stay what they are.
    sled::Config::new().path(path).cache_capacity(options.cache_bytes).flush_every_ms(None).use_compression(false)
}
