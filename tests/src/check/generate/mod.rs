//! Synthetic histories that a correct server could have given, or one with a wrong gate: a tiny sequential store with
//! partitions, logs, tickets, splits and merges. For tests of the checkers and for their benchmarks. Deterministic.

mod run;
mod store;

use super::event::Event;

/// When replies behind a ticket leave (ordering.md 3 and 4, release rule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// When the ticket heads every queue and all its partitions placed it.
    Right,
    /// At once: wrong in 3 % of small histories.
    Off,
    /// When all its partitions placed it, whatever is before it: wrong in 0.03 % of small histories.
    TwoPartitions,
}

/// What to generate. Shares are per mille.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Shape {
    pub seed: u64,
    pub operations: usize,
    /// Clients, each with one operation at a time.
    pub clients: u32,
    pub keys: u32,
    pub partitions: u32,
    /// Copies of each log line.
    pub replicas: u32,
    pub gets: u32,
    pub ranges: u32,
    /// Of the ranges: over all keys.
    pub whole: u32,
    pub many: u32,
    pub stale: u32,
    /// Keys present at the start.
    pub filled: u32,
    pub unanswered: u32,
    /// Operations that end in a sure error.
    pub refused: u32,
    /// Commands that come again, late or at the wrong partition, and do not count.
    pub repeats: u32,
    /// Commands per instance at most.
    pub batch: u32,
    /// Chance of a split or a merge per operation.
    pub changes: u32,
    /// Chance of a new coordinator per operation.
    pub coordinators: u32,
    pub gate: Gate,
    /// Without: no log lines.
    pub logs: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            seed: 1,
            operations: 1_000,
            clients: 16,
            keys: 64,
            partitions: 4,
            replicas: 1,
            gets: 200,
            ranges: 100,
            whole: 1_000,
            many: 20,
            stale: 0,
            filled: 300,
            unanswered: 0,
            refused: 0,
            repeats: 0,
            batch: 8,
            changes: 0,
            coordinators: 0,
            gate: Gate::Right,
            logs: true,
        }
    }
}

/// Hands the events of one history to `sink`, the head first, log lines where they happen.
pub fn generate(shape: &Shape, sink: &mut dyn FnMut(Event<'static>)) {
    run::Run::new(shape, sink).run();
}

/// The events of one history.
pub fn events(shape: &Shape) -> Vec<Event<'static>> {
    let mut events = Vec::new();
    generate(shape, &mut |event| events.push(event));
    events
}
