//! What one worker counted; tallies of workers add up. Latencies are kept in nanoseconds at three digits.

use hdrhistogram::Histogram;

use crate::runner::Timeline;
use crate::target::{Done, End, Nanos};
use crate::workload::Kind;

/// An hour bounds what a histogram tells apart; above it all is an hour.
const LATENCY_MAX: Nanos = 3_600_000_000_000;

/// A histogram of nanoseconds that grows with what it sees.
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are a legal precision")
}

/// Adds one latency.
pub fn record(histogram: &mut Histogram<u64>, latency: Nanos) {
    record_many(histogram, latency, 1);
}

fn record_many(histogram: &mut Histogram<u64>, latency: Nanos, count: u64) {
    // Auto-resizing and bounded above: it cannot be refused.
    let _ = histogram.record_n(latency.min(LATENCY_MAX), count);
}

/// Ends by how they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Answered.
    pub ok: u64,
    /// Sure errors.
    pub failed: u64,
    /// Refused for overload.
    pub busy: u64,
    /// Silence.
    pub unknown: u64,
}

impl Ends {
    /// Counts one.
    pub fn add(&mut self, end: End) {
        match end {
            End::Ok => self.ok += 1,
            End::Failed => self.failed += 1,
            End::Busy => self.busy += 1,
            End::Unknown => self.unknown += 1,
        }
    }

    /// Adds another worker's.
    pub fn merge(&mut self, other: Ends) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.busy += other.busy;
        self.unknown += other.unknown;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.ok + self.failed + self.busy + self.unknown
    }
}

/// One kind of request inside the window.
#[derive(Clone, Debug)]
pub struct OfKind {
    /// Latencies of the answered ones.
    pub latency: Histogram<u64>,
    /// Keys and pairs that came back.
    pub found: u64,
}

/// One slice of the window.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Latencies of answered requests, by the end (closed loop) or by the intended start (open loop).
    pub latency: Histogram<u64>,
    /// Ends that fell into the slice.
    pub ends: Ends,
    /// Commands of the answered requests that ended in it.
    pub commands: u64,
}

impl Slice {
    fn new() -> Slice {
        Slice { latency: histogram(), ends: Ends::default(), commands: 0 }
    }

    /// Adds another worker's.
    pub fn merge(&mut self, other: &Slice) {
        self.latency.add(&other.latency).expect("histograms that resize take any other");
        self.ends.merge(other.ends);
        self.commands += other.commands;
    }
}

/// When a request was due and when it went out.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Open loop: when the schedule wanted it to start; closed loop: when it started.
    pub intended: Nanos,
    /// When it ended.
    pub ended: Nanos,
}

/// All that a worker counted.
#[derive(Clone, Debug)]
pub struct Tally {
    timeline: Timeline,
    open: bool,
    /// The window, slice by slice.
    pub slices: Vec<Slice>,
    /// The window, by kind.
    pub kinds: Vec<OfKind>,
    /// Requests that ended outside of the window, dropped from every other number.
    pub trimmed: u64,
    /// Open loop: requests of the window that were never sent, for lack of slots, before the run ended.
    pub unsent: u64,
    /// How long those had waited by then: lower bounds of what their latencies would have been.
    pub overdue: Histogram<u64>,
    /// The first error that the target told.
    pub first_error: Option<String>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(timeline: &Timeline, open: bool) -> Tally {
        let of_kind = || OfKind { latency: histogram(), found: 0 };
        Tally {
            slices: (0..timeline.slices()).map(|_| Slice::new()).collect(),
            kinds: Kind::ALL.iter().map(|_| of_kind()).collect(),
            timeline: timeline.clone(),
            open,
            trimmed: 0,
            unsent: 0,
            overdue: histogram(),
            first_error: None,
        }
    }

    /// Counts one end. Answers belong to the moment of the end; all else to the start, since silence ends when our
    /// patience does. In an open loop latency, too, belongs to the moment when the request was due, whenever it ended:
    /// what a stall delayed is charged to the stall.
    pub fn add(&mut self, kind: Kind, commands: u32, times: Times, done: &Done) {
        let (started, ended) = (self.timeline.slice_of(times.intended), self.timeline.slice_of(times.ended));
        let Some(counted) = (if done.end == End::Ok { ended } else { started }) else {
            self.trimmed += 1;
            return self.add_latency(kind, started, ended, times, done);
        };
        let slice = &mut self.slices[counted];
        slice.ends.add(done.end);
        slice.commands += if done.end == End::Ok { u64::from(commands) } else { 0 };
        self.add_latency(kind, started, ended, times, done);
    }

    fn add_latency(&mut self, kind: Kind, started: Option<usize>, ended: Option<usize>, times: Times, done: &Done) {
        let charged = if self.open { started } else { ended };
        let (Some(slice), End::Ok) = (charged, done.end) else { return };
        let latency = times.ended.saturating_sub(times.intended);
        record(&mut self.slices[slice].latency, latency);
        let of_kind = &mut self.kinds[kind.index()];
        record(&mut of_kind.latency, latency);
        of_kind.found += u64::from(done.found);
    }

    /// Adds another worker's tally of the same timeline.
    pub fn merge(&mut self, other: &Tally) {
        assert_eq!(self.timeline, other.timeline, "tallies of one run have one timeline");
        self.slices.iter_mut().zip(&other.slices).for_each(|(mine, theirs)| mine.merge(theirs));
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.latency.add(&theirs.latency).expect("histograms that resize take any other");
            mine.found += theirs.found;
        }
        self.trimmed += other.trimmed;
        self.unsent += other.unsent;
        self.overdue.add(&other.overdue).expect("histograms that resize take any other");
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    /// Counts `count` requests that were due about `intended` and not sent by the end of the run, at `now`. Leaving
    /// them out would make a store look the faster the further it falls behind.
    pub fn never_sent(&mut self, intended: Nanos, count: u64, now: Nanos) {
        let Some(slice) = self.timeline.slice_of(intended) else { return };
        let waited = now.saturating_sub(intended);
        self.unsent += count;
        record_many(&mut self.overdue, waited, count);
        record_many(&mut self.slices[slice].latency, waited, count);
    }

    /// All latencies of the window, those of requests that were never sent included.
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = self.overdue.clone();
        self.kinds.iter().for_each(|kind| all.add(&kind.latency).expect("histograms that resize take any other"));
        all
    }

    /// All ends of the window.
    pub fn ends(&self) -> Ends {
        self.slices.iter().fold(Ends::default(), |mut sum, slice| {
            sum.merge(slice.ends);
            sum
        })
    }

    /// Commands of the requests answered within the window.
    pub fn commands(&self) -> u64 {
        self.slices.iter().map(|slice| slice.commands).sum()
    }
}
