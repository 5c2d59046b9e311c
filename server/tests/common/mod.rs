//! What tests of real files, threads, nodes and processes share: a directory that goes with the test, and waiting for a
//! condition instead of for a time.
#![allow(dead_code)] // Each test program uses a part of it.

pub mod cluster;
pub mod raw;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Set for a test that runs under a planted bug: its patience, in seconds. It is to fail, so nobody wants to wait long.
const PATIENCE_VARIABLE: &str = "COPPICE_TEST_PATIENCE";

/// How long anything may take that does not take for ever, on any machine, however busy. Reaching it is a failure, not
/// a measurement.
pub fn patience() -> Duration {
    let seconds = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(120))
}

/// Waits until `holds`, `bound` at most, looking again every few milliseconds.
///
/// # Panics
/// It did not hold in time; the message says what was waited for.
#[track_caller]
pub fn wait_until(what: &str, bound: Duration, mut holds: impl FnMut() -> bool) {
    wait_for(what, bound, || holds().then_some(()));
}

/// Waits until `look` finds something, `bound` at most, looking again every few milliseconds.
///
/// # Panics
/// It found nothing in time; the message says what was waited for.
#[track_caller]
pub fn wait_for<T>(what: &str, bound: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < bound, "waited {bound:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory of its own for one test, removed with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes one; `name` is for people who find it while the test runs.
    pub fn new(name: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("coppice-{name}-{}-{count}", std::process::id()));
        // Left by a process that was killed and had the same number.
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `test` of this program under a planted bug, in a process of its own, since a bug is on for a whole process: it
/// must fail.
#[cfg(feature = "mutants")]
#[track_caller]
pub fn assert_caught(mutant: &str, test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--include-ignored"]).env("COPPICE_MUTANT", mutant).env(PATIENCE_VARIABLE, "20");
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "no test {test}");
    assert!(!output.status.success(), "{mutant} is not caught by {test}: {said}");
}
