//! The last minutes of a node, sample by sample, from differences of its metrics: what the page draws.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use coppice_core::status::live::{SAMPLES_MAX, Sample, Samples};

use super::cells::{BUCKETS_MAX, Histogram, Total};
use super::names::{Op, Outcome};
use super::{Node, PartitionCells};

/// A sample is at least this long. The control thread looks every half second or every second.
const SPAN: Duration = Duration::from_millis(900);

/// Requests of clients for data.
const WRITES: [Op; 7] = [Op::Pack, Op::Put, Op::Insert, Op::Delete, Op::Cas, Op::Many, Op::Load];
const READS: [Op; 2] = [Op::Get, Op::Range];

/// What a request that was refused or failed ended with. Those sent elsewhere are asked again.
const FAILURES: [Outcome; 5] = [Outcome::Busy, Outcome::Full, Outcome::SessionExpired, Outcome::Denied, Outcome::Error];

/// Counts of a histogram's buckets.
type Counts = [u64; BUCKETS_MAX];

/// Everything that a sample is made of, counted from the start of the process, or as it is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    writes: u64,
    reads: u64,
    failed: u64,
    queries: u64,
    undone: u64,
    latencies: Counts,
    flushes: Counts,
    holds: Counts,
    held: u64,
    tickets_in_flight: u64,
    log_bytes: u64,
}

impl Totals {
    /// Of this node, now.
    pub fn of(node: &Node) -> Totals {
        let workers = &node.0.workers;
        let sum = |ops: &[Op], outcomes: &[Outcome]| {
            let cells = workers.iter().flat_map(|worker| ops.iter().map(|op| &worker.requests[op.index()]));
            cells.flat_map(|of| outcomes.iter().map(|outcome| of[outcome.index()].get())).sum::<u64>()
        };
        let data = || WRITES.into_iter().chain(READS);
        let partitions = node.partitions();
        let of_partitions = |cell: fn(&PartitionCells) -> u64| partitions.values().map(|of| cell(of)).sum();
        let latencies = workers.iter().flat_map(|worker| data().map(|op| &worker.request_seconds[op.index()]));
        let results = workers.iter().flat_map(|worker| &worker.tickets.results);
        Totals {
            writes: of_partitions(|cells| cells.commands_decided.get()),
            reads: sum(&READS, &[Outcome::Ok]),
            failed: sum(&data().collect::<Vec<_>>(), &FAILURES),
            queries: results.map(|cell| cell.get()).sum(),
            undone: of_partitions(|cells| cells.speculation.undone_commands.get()),
            latencies: counts(latencies),
            flushes: counts([&node.0.log.flush_seconds]),
            holds: counts(workers.iter().map(|worker| &worker.reply_hold_seconds)),
            held: of_partitions(|cells| cells.replies_held.get()),
            tickets_in_flight: node.tickets_in_flight(),
            log_bytes: node.0.log.log_bytes.get(),
        }
    }
}

fn counts<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Counts {
    Total::of(histograms).map_or([0; BUCKETS_MAX], |total| total.counts())
}

/// What came since; none of a partition that has gone.
fn since(now: u64, then: u64) -> u32 {
    u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX)
}

fn all_since(now: &Counts, then: &Counts) -> [u32; BUCKETS_MAX] {
    std::array::from_fn(|at| since(now[at], then[at]))
}

/// The time that 99 of 100 observations stayed below, in microseconds; 0: there are none. Buckets are powers of 2;
/// within one, observations are taken to lie evenly between the logarithms of its bounds.
fn p99_us(counts: &[u32; BUCKETS_MAX]) -> u32 {
    let all: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let mut rest = all * 0.99;
    for (at, count) in counts.iter().map(|&count| f64::from(count)).enumerate().filter(|(_, count)| *count > 0.0) {
        if rest <= count {
            return (16.0 * 2f64.powf(at as f64 + rest / count)) as u32;
        }
        rest -= count;
    }
    0
}

/// The newest samples of a node.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    /// Number of the last one.
    newest: u64,
    last: Option<(Instant, Totals)>,
}

impl History {
    /// Adds a sample if the last one is long enough ago.
    pub fn note(&mut self, now: Instant, node: &Node, memory_bytes: impl FnOnce() -> u64) {
        let Some((begun, then)) = &self.last else {
            self.last = Some((now, Totals::of(node)));
            return;
        };
        let span = now.duration_since(*begun);
        if span < SPAN {
            return;
        }
        let totals = Totals::of(node);
        let mut latencies = all_since(&totals.latencies, &then.latencies).to_vec();
        latencies.truncate(latencies.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        let sample = Sample {
            span_ms: u32::try_from(span.as_millis()).unwrap_or(u32::MAX),
            writes: since(totals.writes, then.writes),
            reads: since(totals.reads, then.reads),
            failed: since(totals.failed, then.failed),
            latencies,
            flush_us_p99: p99_us(&all_since(&totals.flushes, &then.flushes)),
            hold_us_p99: p99_us(&all_since(&totals.holds, &then.holds)),
            held: since(totals.held, 0),
            tickets_in_flight: since(totals.tickets_in_flight, 0),
            queries: since(totals.queries, then.queries),
            undone: since(totals.undone, then.undone),
            memory_bytes: memory_bytes(),
            log_bytes: totals.log_bytes,
        };
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.newest += 1;
        self.last = Some((now, totals));
    }

    /// Those behind number `after`; all of them if that is none of this process.
    pub fn after(&self, now: Instant, after: u64) -> Samples {
        let wanted = self.newest.checked_sub(after).unwrap_or(self.newest);
        let skipped = self.samples.len().saturating_sub(usize::try_from(wanted).unwrap_or(usize::MAX));
        let age = self.last.map_or(Duration::ZERO, |(at, _)| now.saturating_duration_since(at));
        Samples {
            newest: self.newest,
            age_ms: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
            samples: self.samples.iter().skip(skipped).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::PartitionSample;

    #[test]
    fn a_sample_is_what_came_since_the_one_before() {
        let (node, start) = (Node::new(2), Instant::now());
        let mut history = History::default();
        let note = |history: &mut History, ms| {
            history.note(start + Duration::from_millis(ms), &node, || 7);
        };
        note(&mut history, 0);
        let partition = node.partition("p1");
        let publish = |commands_decided| {
            partition.publish(&PartitionSample { commands_decided, replies_held: 3, ..PartitionSample::default() });
        };
        publish(50);
        let us = Duration::from_micros;
        for _ in 0..99 {
            node.worker(1).request(Op::Get, Outcome::Ok, us(100));
        }
        node.worker(0).request(Op::Put, Outcome::Busy, us(30));
        node.worker(0).request(Op::Admin, Outcome::Ok, us(30));
        node.log().flushed(us(300), 1);
        note(&mut history, 500);
        assert_eq!(history.after(start, 0), Samples::default(), "it is too short");
        note(&mut history, 1_000);
        let told = history.after(start + Duration::from_millis(1_250), 0);
        assert_eq!((told.newest, told.age_ms, told.samples.len()), (1, 250, 1));
        let wanted = Sample {
            span_ms: 1_000,
            writes: 50,
            reads: 99,
            failed: 1,
            latencies: vec![1, 0, 99],
            flush_us_p99: 508,
            held: 3,
            memory_bytes: 7,
            ..Sample::default()
        };
        assert_eq!(told.samples[0], wanted);
        // A partition that has gone takes its total with it.
        publish(20);
        note(&mut history, 2_000);
        assert_eq!(history.after(start, 1).samples[0].writes, 0);
    }

    #[test]
    fn only_what_is_new_is_told_and_ten_minutes_are_kept() {
        let (node, start) = (Node::new(1), Instant::now());
        let mut history = History::default();
        let all = SAMPLES_MAX as u64 + 5;
        (0..=all).for_each(|at| history.note(start + Duration::from_secs(at), &node, || at));
        let told = |after| {
            let told = history.after(start, after);
            (told.samples.len(), told.samples.first().map(|sample| sample.memory_bytes))
        };
        assert_eq!(told(0), (SAMPLES_MAX, Some(6)));
        assert_eq!(told(all - 2), (2, Some(all - 1)));
        assert_eq!(told(all), (0, None));
        assert_eq!(told(all + 1).0, SAMPLES_MAX, "the asker means a process before this one");
    }
}
