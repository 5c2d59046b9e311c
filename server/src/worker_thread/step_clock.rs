//! How long a worker does nothing else: by the clock, and by its processor, since on a busy machine others run in the
//! middle of a step.

use std::cell::Cell;
use std::time::{Duration, Instant as Clock};

use coppice_ordering::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::{self, Stage};

/// The processor's clock costs a system call: around short steps it is looked at once in so long, and the share of a
/// long one is told as exactly.
const LOOK: Duration = Duration::from_millis(1);

/// The clock of a worker thread, and what it publishes of its steps.
pub(crate) struct StepClock {
    /// Of the node: [`Time`] counts from here.
    started: Clock,
    processor: ProcessorClock,
    /// Time spent in steps of the worker so far: whoever measures a stage around them takes it off.
    stepped: Duration,
    metrics: metrics::Worker,
}

impl StepClock {
    pub(super) fn new(started: Clock, metrics: metrics::Worker) -> StepClock {
        StepClock { started, processor: ProcessorClock::new(), stepped: Duration::ZERO, metrics }
    }

    /// Now, on the clock of this node.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The thread takes something up, now.
    pub(super) fn begins(&self) -> Clock {
        let now = Clock::now();
        self.processor.begins(now, processor_time);
        now
    }

    /// What began then ends now: the thread looks at something else. How long it took.
    pub(super) fn ends(&self, begun: Clock) -> Duration {
        let (took, worked) = self.processor.ended(begun, Clock::now(), processor_time);
        self.metrics.worker_step(took, worked);
        took
    }

    /// A step of the worker that began then has ended: how long it took.
    pub(super) fn stepped_since(&mut self, begun: Time) -> Duration {
        let took = self.now().since(begun);
        self.stepped += took;
        took
    }

    /// The time spent in steps of the worker so far.
    pub(super) fn stepped(&self) -> Duration {
        self.stepped
    }

    /// A socket was read and its frames handed on since `begun`, when `stepped` had been spent in steps.
    pub(super) fn received(&self, begun: Clock, stepped: Duration) {
        let (steps, took) = (self.stepped.saturating_sub(stepped), self.ends(begun));
        self.metrics.stage_busy(Stage::Receive, took.saturating_sub(steps));
    }
}

/// When the processor's clock was looked at last.
#[derive(Debug)]
struct ProcessorClock(Cell<(Clock, Duration)>);

impl ProcessorClock {
    fn new() -> ProcessorClock {
        ProcessorClock(Cell::new((Clock::now(), Duration::ZERO)))
    }

    /// A step begins now.
    fn begins(&self, now: Clock, processor: impl FnOnce() -> Duration) {
        if now.saturating_duration_since(self.0.get().0) >= LOOK {
            self.0.set((now, processor()));
        }
    }

    /// A step began then and ends now: how long it took, and how much of that the processor worked on it at most.
    fn ended(&self, begun: Clock, now: Clock, processor: impl FnOnce() -> Duration) -> (Duration, Duration) {
        let took = now.saturating_duration_since(begun);
        let (looked, before) = self.0.get();
        if now.saturating_duration_since(looked) < LOOK {
            return (took, took);
        }
        let worked = processor();
        self.0.set((now, worked));
        (took, took.min(worked.saturating_sub(before)))
    }
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_run_in_the_middle_of_a_step_is_none_of_its_work() {
        let steps = ProcessorClock::new();
        let ms = Duration::from_millis;
        let begun = steps.0.get().0;
        let never = || -> Duration { unreachable!("a short step costs no system call") };
        assert_eq!(steps.ended(begun, begun + ms(1) / 2, never), (ms(1) / 2, ms(1) / 2));
        assert_eq!(steps.ended(begun + ms(1), begun + ms(31), || ms(4)), (ms(30), ms(4)));
        // What was worked between two steps is none of the second one.
        steps.begins(begun + ms(200), || ms(90));
        assert_eq!(steps.ended(begun + ms(200), begun + ms(260), || ms(95)), (ms(60), ms(5)));
    }
}
