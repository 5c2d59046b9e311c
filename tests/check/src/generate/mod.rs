//! Synthetic histories that a correct server could have given, or one with a wrong gate: a tiny sequential store with
//! partitions, logs, tickets, splits and merges. For tests of the checkers and for their benchmarks. Deterministic.

mod names;
mod run;
mod store;

use std::fs::File;
use std::io::{self, BufWriter};

use clap::{Args, ValueEnum};

use super::event::Event;
use super::faults::plant;
use super::write::write as write_event;
use coppice_testkit::random::Random;

/// When replies behind a ticket leave (protocol.md 3 and 4, release rule).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    /// Moves of ladders and tokens, one for each client (`marks.rs`). With them, `keys` counts the places of all keys,
    /// one in four of them an ordinary key's.
    pub marks: u32,
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
            marks: 0,
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

/// Arguments of `coppice-check generate`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where to write; `-`: standard output.
    file: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many operations.
    #[arg(long, default_value_t = 100_000)]
    ops: usize,
    /// Clients, each with one operation at a time.
    #[arg(long, default_value_t = 16)]
    clients: u32,
    #[arg(long, default_value_t = 64)]
    keys: u32,
    #[arg(long, default_value_t = 4)]
    partitions: u32,
    /// Copies of each log line.
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Ranges, per mille of the operations.
    #[arg(long, default_value_t = 100)]
    ranges: u32,
    /// Unanswered operations, per mille.
    #[arg(long, default_value_t = 0)]
    unanswered: u32,
    /// Splits and merges, per mille of the operations.
    #[arg(long, default_value_t = 0)]
    changes: u32,
    /// Moves of ladders and tokens, per mille of the operations: what B5 and B6 check.
    #[arg(long, default_value_t = 0)]
    marks: u32,
    /// Plant faults: one in that many operations; 0 = none.
    #[arg(long, default_value_t = 0)]
    faults: usize,
    /// When replies behind a ticket leave; all but `right` are wrong.
    #[arg(long, value_enum, default_value = "right")]
    gate: Gate,
    /// Leave out the log lines.
    #[arg(long)]
    no_logs: bool,
}

/// Writes a history as `coppice-check generate` does.
pub fn write(arguments: &Arguments) -> io::Result<()> {
    let shape = Shape {
        seed: arguments.seed,
        operations: arguments.ops,
        clients: arguments.clients,
        keys: if arguments.marks > 0 { arguments.keys * names::STRIDE } else { arguments.keys },
        partitions: arguments.partitions,
        replicas: arguments.replicas,
        ranges: arguments.ranges,
        unanswered: arguments.unanswered,
        changes: arguments.changes,
        marks: arguments.marks,
        gate: arguments.gate,
        logs: !arguments.no_logs,
        ..Shape::default()
    };
    let target: Box<dyn io::Write> =
        if arguments.file == "-" { Box::new(io::stdout()) } else { Box::new(File::create(&arguments.file)?) };
    let mut out = BufWriter::with_capacity(1 << 20, target);
    let mut outcome = Ok(());
    let mut random = Random::of(arguments.seed, 2);
    let mut held: Vec<Event<'static>> = Vec::new();
    let mut sink = |event: Event<'static>| {
        if arguments.faults == 0 {
            outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| write_event(&mut out, &event));
        } else {
            held.push(event);
        }
    };
    generate(&shape, &mut sink);
    outcome?;
    if let Some(faults) = arguments.ops.checked_div(arguments.faults) {
        (0..faults).for_each(|_| plant(&mut held, &mut random));
        held.iter().try_for_each(|event| write_event(&mut out, event))?;
    }
    io::Write::flush(&mut out)
}
