//! What a worker is told of the load, twice a second: how busy its thread, the machine and the log's device were.

use std::time::Duration;

use coppice_core::worker::{Input, Load};
use coppice_ordering::Time;

use super::WorkerThread;
use crate::cores::Cores;

/// Flushes of the node's log since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushes {
    pub count: u64,
    /// Time of all of them.
    pub took: Duration,
}

/// Measures from one interval to the next.
#[derive(Debug, Default)]
pub(super) struct LoadMeter {
    cores: Cores,
    /// Where the last interval ended.
    last: Option<Sums>,
}

/// Since the node started.
#[derive(Clone, Copy, Debug)]
struct Sums {
    at: Time,
    /// How long the thread was busy.
    busy: Duration,
    /// How long all threads of the node looked for work.
    looked: Duration,
    flushes: Flushes,
}

impl LoadMeter {
    /// What passed since the last call; none: it is the first one.
    fn passed(&mut self, now: Sums) -> Option<Load> {
        let before = self.last.replace(now)?;
        let interval = now.at.since(before.at);
        let share = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64() / interval.as_secs_f64();
        (!interval.is_zero()).then(|| Load {
            interval,
            thread: share(now.busy, before.busy),
            machine: self.cores.busy(share(now.looked, before.looked)).unwrap_or(0.0),
            flushes: now.flushes.count.saturating_sub(before.flushes.count),
            flushing: now.flushes.took.saturating_sub(before.flushes.took),
        })
    }
}

/// Tells the worker what passed since the last call. `flushes`: so far.
pub(crate) fn tell_load(thread: &mut WorkerThread, flushes: Flushes) {
    let awake = tokio::runtime::Handle::current().metrics().worker_total_busy_duration(0);
    let busy = awake.saturating_sub(thread.idle.looked());
    let sums = Sums { at: thread.now(), busy, looked: thread.shared.looked_so_far(), flushes };
    if let Some(load) = thread.metrics.load.passed(sums) {
        thread.input(Input::Load(load));
    }
}
