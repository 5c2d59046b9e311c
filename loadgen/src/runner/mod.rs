//! Runs: one thread per worker, each with its own target and tally; the calling thread watches. Threads share nothing
//! but channels.

pub mod engine;
pub mod pacing;
pub mod tally;
mod threads;
pub mod timeline;

pub use engine::Orders;
pub use pacing::Pace;
pub use tally::{Ends, Tally};
pub use threads::{Watch, run};
pub use timeline::Timeline;

/// How a worker has been doing since it last told.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The time this covers.
    pub over: std::time::Duration,
    /// Requests that ended in it.
    pub ends: Ends,
    /// Their median latency, nanoseconds.
    pub p50: u64,
    /// Their 99th percentile, nanoseconds.
    pub p99: u64,
}

#[cfg(test)]
mod tests;
