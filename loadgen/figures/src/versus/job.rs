//! What is measured, and what a measurement is.

use serde::Serialize;

/// The jobs, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// One durable put at a time.
    UnloadedPut,
    /// As many puts as go, commands that wait leave together.
    PackedPuts,
    /// As many puts as go, each a message of its own.
    SinglePuts,
    /// Linearizable ranges of 1000 keys.
    Ranges,
    /// Linearizable reads of one key.
    Gets,
}

impl Job {
    /// All, in order.
    pub const ALL: [Job; 5] = [Job::UnloadedPut, Job::PackedPuts, Job::SinglePuts, Job::Ranges, Job::Gets];

    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Job::UnloadedPut => "put, 1 client",
            Job::PackedPuts => "puts, 1000 clients, packed",
            Job::SinglePuts => "puts, 1000 clients, one a message",
            Job::Ranges => "ranges of 1000 keys, 64 clients",
            Job::Gets => "gets, 1000 clients",
        }
    }

    /// Clients, each with one request at a time.
    pub const fn clients(self) -> u32 {
        match self {
            Job::UnloadedPut => 1,
            Job::PackedPuts | Job::SinglePuts | Job::Gets => 1_000,
            Job::Ranges => 64,
        }
    }

    /// The job as flags of `coppice-load run`.
    pub const fn flags(self) -> &'static str {
        match self {
            Job::UnloadedPut => "--workload put --clients 1",
            Job::PackedPuts => "--workload put --clients 1000",
            Job::SinglePuts => "--workload put --clients 1000 --connections 64 --pack 0",
            Job::Ranges => "--workload range --range-keys 1000 --clients 64",
            Job::Gets => "--workload get --clients 1000",
        }
    }
}

/// One job on one store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Requests answered per second.
    pub per_second: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 99th percentile of latency.
    pub p99_ms: f64,
    /// Requests that failed, were refused, or stayed without an answer.
    pub errors: u64,
    /// The command line that did it.
    pub command: String,
}
