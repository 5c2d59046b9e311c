//! How far this start has come with what its data directory holds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coppice_client::wire::PartitionId;

use crate::metrics;

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
#[derive(Clone, Copy)]
struct Share {
    done: u64,
    all: u64,
}

impl Share {
    const DONE: Share = Share { done: 1, all: 1 };

    fn is_done(self) -> bool {
        self.done >= self.all
    }

    /// Rounded down: 1000 only when all is done.
    fn thousandths(self) -> u64 {
        let whole = (u128::from(self.done) * 1_000).checked_div(u128::from(self.all));
        whole.map_or(1_000, |thousandths| thousandths.min(1_000) as u64)
    }
}

/// What a start does before the node serves.
pub struct Recovery {
    steps: Mutex<BTreeMap<RecoveryStep, Share>>,
    began: Instant,
    is_over: AtomicBool,
    metrics: metrics::Node,
}

impl Recovery {
    /// It begins now.
    pub fn new(metrics: metrics::Node) -> Recovery {
        Recovery { steps: Mutex::default(), began: Instant::now(), is_over: AtomicBool::new(false), metrics }
    }

    /// A step has come so far. What begins after the end is no recovery, nor is what has nothing to do.
    pub fn note(&self, step: RecoveryStep, done: u64, all: u64) {
        if self.is_over() {
            return;
        }
        let mut steps = self.steps();
        match steps.get_mut(&step) {
            Some(share) if done >= all => *share = Share::DONE,
            None if done >= all => {}
            _ => _ = steps.insert(step, Share { done, all }),
        }
        let left: u64 = steps.values().map(|share| 1_000 - share.thousandths()).sum();
        self.metrics.set_to_recover(left.div_ceil(steps.len().max(1) as u64));
    }

    /// Partitions whose replay is not done.
    pub fn replaying(&self) -> Vec<PartitionId> {
        let of = |(step, share): (&RecoveryStep, &Share)| match step {
            RecoveryStep::Replay(partition) if !share.is_done() => Some(*partition),
            _ => None,
        };
        self.steps().iter().filter_map(of).collect()
    }

    /// Whether nothing is under way, for good.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends it once nothing is under way; says how long it took, the first time and if there was anything.
    pub fn end(&self) -> Option<Duration> {
        let steps = self.steps();
        let ends = steps.values().all(|share| share.is_done()) && !self.is_over.swap(true, Ordering::Relaxed);
        (ends && !steps.is_empty()).then(|| self.began.elapsed())
    }

    fn steps(&self) -> MutexGuard<'_, BTreeMap<RecoveryStep, Share>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (steps, percent) = (self.steps(), |share: &Share| share.thousandths() / 10);
        steps
            .iter()
            .filter(|(_, share)| !share.is_done())
            .map(|(step, share)| format!("recovering: {step}, {} %", percent(share)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_said_in_its_order() {
        let metrics = metrics::Node::new(1);
        let (recovery, p1) = (Recovery::new(metrics.clone()), PartitionId(1));
        let ratio = || {
            let page = metrics.render(metrics::Format::Text);
            page.lines().find_map(|line| line.strip_prefix("coppice_recovery_ratio ")).map(str::to_owned)
        };
        assert_eq!(ratio().as_deref(), Some("1.0"));
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
        assert!(ratio().is_some_and(|ratio| ratio.starts_with("0.46")), "a third of each step: {:?}", ratio());
        recovery.note(RecoveryStep::Checkpoint(p1), 5, 5);
        recovery.note(RecoveryStep::Log, 1_000, 1_000);
        assert!(recovery.end().is_none() && recovery.replaying() == [p1]);
        recovery.note(RecoveryStep::Replay(p1), 7, 7);
        assert!(recovery.lines().is_empty() && !recovery.is_over());
        assert!(recovery.end().is_some() && recovery.end().is_none(), "once");
        recovery.note(RecoveryStep::Replay(p1), 0, 7);
        assert!(recovery.lines().is_empty());
        assert_eq!(ratio().as_deref(), Some("1.0"));
    }
}
