//! The numbers of a run, as they are printed, written and drawn.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::metrics::Ordering;
use crate::runner::tally::OfKind;
use crate::runner::{Tally, Timeline};
use crate::units::{print_count, print_ms};
use crate::workload::{Kind, Plan};

/// What was run: the part of the report that is known before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// `native`, `resp` ..
    pub target: String,
    /// The workload's name.
    pub workload: String,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub loop_kind: String,
    /// Closed loop: clients; open loop: the most requests under way.
    pub clients: u32,
    /// Closed loop: the pause of a client, as on the command line.
    pub think: String,
    /// Open loop: requests per second asked for.
    pub rate: Option<f64>,
    /// Threads that generate.
    pub workers: u32,
    /// Connections (native: client instances, each with its own sessions).
    pub connections: u32,
    /// Bytes that the client library packs into one frame; 0: one command per frame.
    pub pack_bytes: u64,
    /// Keys taken to be stored.
    pub entries: u64,
    /// Keys that take part.
    pub universe: u64,
    /// Bytes of a written value; 0: text (recorded runs).
    pub value_bytes: u64,
    /// Percent of ranges that span two partitions.
    pub cross_percent: u8,
    /// Partitions that get keys.
    pub partitions: u64,
    /// All requests follow from it.
    pub seed: u64,
    /// Length of the run, seconds.
    pub duration_s: f64,
    /// Dropped at each end, seconds.
    pub trim_s: f64,
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Nanoseconds in milliseconds, rounded to the microsecond: histograms keep three digits.
pub fn ms(nanos: u64) -> f64 {
    (nanos as f64 / 1e3).round() / 1e3
}

impl Latency {
    /// Of a histogram of nanoseconds; zeros if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        Latency {
            mean_ms: ms(histogram.mean() as u64),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(histogram.max()),
        }
    }
}

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindRow {
    /// Its word.
    pub kind: String,
    /// Answered within the window.
    pub requests: u64,
    /// Keys and pairs returned.
    pub found: u64,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Latency,
}

/// One step of `--find-max`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Clients (closed loop) or requests per second (open loop).
    pub load: f64,
    /// Requests answered per second.
    pub throughput: f64,
    /// Commands answered per second.
    pub commands_per_second: f64,
    /// Whether the bound held and nothing failed.
    pub good: bool,
    /// Latencies.
    #[serde(flatten)]
    pub latency: Latency,
}

impl Point {
    /// One line for people while the search goes on.
    pub fn line(&self, open: bool, errors: u64) -> String {
        format!(
            "{} {}: {} requests/s, {} commands/s, p50 {} ms, p99 {} ms, p99.9 {} ms, errors {errors}: {}",
            print_count(self.load as u64),
            if open { "requests/s due" } else { "clients" },
            print_count(self.throughput as u64),
            print_count(self.commands_per_second as u64),
            print_ms(self.latency.p50_ms),
            print_ms(self.latency.p99_ms),
            print_ms(self.latency.p999_ms),
            if self.good { "holds" } else { "does not hold" },
        )
    }
}

/// What `--find-max` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindMax {
    /// As on the command line.
    pub bound: String,
    /// Whether it held at any load; then all other numbers are those of the best such load.
    pub held: bool,
    /// Every load that was tried, in order.
    pub steps: Vec<Point>,
}

/// The whole result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this object; fields are only added.
    pub v: u32,
    /// What was run.
    #[serde(flatten)]
    pub setup: Setup,
    /// Requests answered within the measured window.
    pub requests: u64,
    /// The same per second.
    pub throughput: f64,
    /// Commands on the tree per second: a request of seven updates has seven.
    pub commands_per_second: f64,
    /// Latencies of all kinds together.
    #[serde(flatten)]
    pub latency: Latency,
    /// Sure errors.
    pub failed: u64,
    /// Refused for overload.
    pub busy: u64,
    /// No answer in time: the outcome is unknown.
    pub unknown: u64,
    /// Open loop: due within the window and never sent.
    pub unsent: u64,
    /// Ended in head or tail, not counted above.
    pub dropped: u64,
    /// The kinds that occurred.
    pub kinds: Vec<KindRow>,
    /// Processor time of the generator over the window, per command, microseconds.
    pub generator_cpu_us_per_command: f64,
    /// Processors that the generator kept busy.
    pub generator_cores: f64,
    /// The six numbers' server side; absent if no node's metrics could be read.
    pub ordering: Option<Ordering>,
    /// The first error, in the store's words.
    pub first_error: Option<String>,
    /// The search of `--find-max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub find_max: Option<FindMax>,
}

/// Rounds rates for printing: thousandths of a request per second mean nothing.
fn rate(count: u64, over: Duration) -> f64 {
    (count as f64 / over.as_secs_f64() * 10.0).round() / 10.0
}

impl Summary {
    /// From what was counted over the window and the processor time that the generator took in it.
    pub fn new(setup: Setup, tally: &Tally, timeline: &Timeline, cpu: Duration, ordering: Option<Ordering>) -> Summary {
        let over = timeline.window_length();
        let (ends, commands) = (tally.ends(), tally.commands());
        let row = |(kind, of_kind): (&Kind, &OfKind)| KindRow {
            kind: kind.name().to_owned(),
            requests: of_kind.latency.len(),
            found: of_kind.found,
            latency: Latency::of(&of_kind.latency),
        };
        let kinds = Kind::ALL.iter().zip(&tally.kinds).filter(|(_, of_kind)| !of_kind.latency.is_empty());
        Summary {
            v: 1,
            setup,
            requests: ends.ok,
            throughput: rate(ends.ok, over),
            commands_per_second: rate(commands, over),
            latency: Latency::of(&tally.latency()),
            failed: ends.failed,
            busy: ends.busy,
            unknown: ends.unknown,
            unsent: tally.unsent,
            dropped: tally.trimmed,
            kinds: kinds.map(row).collect(),
            generator_cpu_us_per_command: (cpu.as_secs_f64() * 1e9 / commands.max(1) as f64).round() / 1e3,
            generator_cores: (cpu.as_secs_f64() / over.as_secs_f64() * 100.0).round() / 100.0,
            ordering,
            first_error: tally.first_error.clone(),
            find_max: None,
        }
    }
}

impl Setup {
    /// The part that a plan knows.
    pub fn of_plan(plan: &Plan) -> Setup {
        Setup {
            workload: plan.mix.name.clone(),
            entries: plan.entries,
            universe: plan.universe,
            value_bytes: match plan.value {
                crate::workload::ValueForm::Bytes(bytes) => bytes.into(),
                crate::workload::ValueForm::Text => 0,
            },
            cross_percent: plan.cross_percent,
            partitions: plan.keys.parts(),
            seed: plan.seed,
            ..Setup::default()
        }
    }
}
