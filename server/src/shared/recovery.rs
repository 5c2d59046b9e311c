//! How far this start has come with what its data directory holds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coppice_client::wire::PartitionId;

/// What a start does before its replicas serve, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryStep {
    /// Reads the newest good checkpoint of a partition.
    Checkpoint(PartitionId),
    /// Reads the log.
    Log,
    /// Executes what the log holds of a partition above its checkpoint.
    Replay(PartitionId),
}

impl fmt::Display for RecoveryStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryStep::Checkpoint(partition) => write!(out, "reading the checkpoint of {partition}"),
            RecoveryStep::Log => write!(out, "reading the log"),
            RecoveryStep::Replay(partition) => write!(out, "replaying {partition}"),
        }
    }
}

/// Done so far, of how much: bytes, or instances of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Done so far.
    pub done: u64,
    /// All of it.
    pub all: u64,
}

impl Share {
    /// In percent, rounded down: 100 only when all is done.
    pub fn percent(self) -> u64 {
        (u128::from(self.done) * 100).checked_div(u128::from(self.all)).map_or(100, |percent| percent.min(100) as u64)
    }
}

/// What is under way.
#[derive(Debug)]
pub struct Recovery {
    under_way: Mutex<BTreeMap<RecoveryStep, Share>>,
    began: Instant,
    had_work: AtomicBool,
    is_over: AtomicBool,
}

impl Default for Recovery {
    /// It begins now.
    fn default() -> Recovery {
        let (under_way, [had_work, is_over]) = (Mutex::default(), [false; 2].map(AtomicBool::new));
        Recovery { under_way, began: Instant::now(), had_work, is_over }
    }
}

impl Recovery {
    /// A step has come so far; one that is done is under way no more. What begins after the end is no recovery.
    pub fn note(&self, step: RecoveryStep, done: u64, all: u64) {
        if self.is_over() {
            return;
        }
        let mut under_way = self.under_way();
        match done < all {
            true => {
                self.had_work.store(true, Ordering::Relaxed);
                under_way.insert(step, Share { done, all });
            }
            false => _ = under_way.remove(&step),
        }
    }

    /// Whether nothing is under way any more, for good.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends it once nothing is under way; says how long it took, the first time and if there was anything.
    pub fn end(&self) -> Option<Duration> {
        let ends = self.under_way().is_empty() && !self.is_over.swap(true, Ordering::Relaxed);
        (ends && self.had_work.load(Ordering::Relaxed)).then(|| self.began.elapsed())
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<RecoveryStep, Share>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same in one line.
    pub fn text(&self) -> String {
        match &self.lines()[..] {
            [] => "recovering: almost done".to_owned(),
            lines => lines.join("; "),
        }
    }

    /// What is under way, as sentences for people: none once everything is recovered.
    pub fn lines(&self) -> Vec<String> {
        self.under_way().iter().map(|(step, share)| format!("recovering: {step}, {} %", share.percent())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_said_in_its_order() {
        let (recovery, p1) = (Recovery::default(), PartitionId(1));
        assert!(recovery.lines().is_empty());
        recovery.note(RecoveryStep::Replay(p1), 0, 7);
        recovery.note(RecoveryStep::Log, 999, 1_000);
        recovery.note(RecoveryStep::Checkpoint(p1), 2, 5);
        let said = [
            "recovering: reading the checkpoint of p1, 40 %",
            "recovering: reading the log, 99 %",
            "recovering: replaying p1, 0 %",
        ];
        assert_eq!(recovery.lines(), said);
        recovery.note(RecoveryStep::Checkpoint(p1), 5, 5);
        recovery.note(RecoveryStep::Log, 1_000, 1_000);
        assert!(recovery.end().is_none());
        recovery.note(RecoveryStep::Replay(p1), 7, 7);
        assert!(recovery.lines().is_empty() && !recovery.is_over());
        assert!(recovery.end().is_some() && recovery.end().is_none(), "once");
        recovery.note(RecoveryStep::Replay(p1), 0, 7);
        assert!(recovery.lines().is_empty());
    }
}
