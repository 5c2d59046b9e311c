//! One fault at every place of a small run (hazards.md G8, G9, G10): a crash between every two effects of every
//! node, power loss included, alone, with another one in its recovery, with one of another node; an error, a full disk
//! or a slow flush at every I/O; one flipped byte at every offset of the logs and checkpoints that the run leaves.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use coppice_testkit::random::Random;

use super::panics::run_plan;
use super::plan::fault::{Fault, Kind, Target};
use super::plan::{MS, Plan, ServerPlan, Workload};
use super::trace::Trace;
use super::world::{Outcome, World};

/// Down for so long: longer than an election, so that the others go on without it.
const DOWN: u64 = 700 * MS;

/// Bytes of room between two places where a disk is full.
const ROOM_STEP: u64 = 256;

/// Simulated time between two places where a disk is slow.
const SLOW_STEP: u64 = 5 * MS;

/// What goes wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskError {
    /// An effect on the log fails, and the process stops; an act on a checkpoint, and it goes on; a read of a start.
    Eio,
    /// The disk has room for so many bytes, and again after two seconds.
    Enospc,
    /// Flushes take a second longer for a second.
    Slow,
}

/// `crash-every`
#[derive(Debug, Args)]
pub struct CrashEvery {
    /// Operations of the run.
    #[arg(long, default_value_t = 40)]
    ops: u32,
    /// Only every so manieth place.
    #[arg(long, default_value_t = 1)]
    step: usize,
    /// So many runs with two crashes, each at a drawn place of a drawn node.
    #[arg(long, default_value_t = 0)]
    double: u64,
}

/// `io-every`
#[derive(Debug, Args)]
pub struct IoEvery {
    /// Operations of the run.
    #[arg(long, default_value_t = 40)]
    ops: u32,
    /// Only every so manieth place.
    #[arg(long, default_value_t = 1)]
    step: usize,
    /// What goes wrong there, separated by commas.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "eio,enospc,slow")]
    errors: Vec<DiskError>,
}

/// `rot`
#[derive(Debug, Args)]
pub struct Rot {
    /// Operations of the run.
    #[arg(long, default_value_t = 40)]
    ops: u32,
    /// Every byte; else every sixteenth.
    #[arg(long)]
    exhaustive: bool,
}

/// The small run: nothing goes wrong in it but what is put there.
fn small(operations: u32) -> Plan {
    let mut plan = Plan::of(0);
    plan.faults.clear();
    plan.clock_rates.iter_mut().for_each(|rate| *rate = 1_000);
    (plan.partitions, plan.replicas, plan.nodes) = (2, 3, 3);
    plan.clock_rates.resize(3, 1_000);
    let (collectors, updates) = (plan.workload.collectors, plan.workload.updates);
    plan.workload =
        Workload { clients: 2, in_flight: 4, operations, keys: 24, impatient: 0, think: 2 * MS, collectors, updates };
    (plan.disk.segment_bytes, plan.shuffle, plan.minority_down) = (24 << 10, false, false);
    plan.server = ServerPlan {
        snapshot_instances: 12,
        sessions_max: 100_000,
        expiry_instances: 1_000_000,
        speculation: u32::MAX,
        ..plan.server
    };
    plan.settings = coppice_ordering::Settings { window: 4, batch_bytes_max: 128, ..Default::default() };
    let network = &mut plan.network;
    (network.tail, network.loss, network.duplicates, network.client_cut, network.connect_fails) = (0, 0, 0, 0, 0);
    (network.delay_min, network.delay_mean) = (MS, MS / 4);
    (plan.disk.flush_min, plan.disk.flush_max, plan.disk.power) = (MS / 2, MS, true);
    plan.disk.snapshot_max = 5 * MS;
    // A split on the way, so that its places are among them (hazards.md G10).
    plan.faults.push(Fault { at: 20 * MS, kind: Kind::Split { key: 6, again: None } });
    plan
}

/// Whether the run is right without any fault.
fn is_calm(operations: u32) -> bool {
    let failure = run_plan(small(operations), Trace::silent()).failure;
    failure.iter().for_each(|failure| println!("without any fault: {}: {}", failure.check, failure.what));
    failure.is_none()
}

fn code(failed: usize) -> ExitCode {
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Crashes and I/O errors: what the commit gate runs.
pub fn main(operations: u32, step: usize) -> ExitCode {
    if !is_calm(operations) {
        return ExitCode::FAILURE;
    }
    code(crashes(operations, step) + io_errors(operations, step))
}

/// A crash at every place.
pub fn crash_every(arguments: &CrashEvery) -> ExitCode {
    if !is_calm(arguments.ops) {
        return ExitCode::FAILURE;
    }
    code(crashes(arguments.ops, arguments.step) + doubles(arguments.ops, arguments.double))
}

/// A fault of the disk at every place.
pub fn io_every(arguments: &IoEvery) -> ExitCode {
    let &IoEvery { ops, step, .. } = arguments;
    if !is_calm(ops) {
        return ExitCode::FAILURE;
    }
    let each = |error: &DiskError| match error {
        DiskError::Eio => io_errors(ops, step),
        DiskError::Enospc => full_disks(ops, step),
        DiskError::Slow => slow_disks(ops, step),
    };
    code(arguments.errors.iter().map(each).sum())
}

fn crash(node: usize, number: u32, again: Option<u64>) -> Fault {
    Fault { at: 0, kind: Kind::Crash { who: Target::Node(node), effects: number, down: DOWN, again } }
}

fn crashes(operations: u32, step: usize) -> usize {
    let twice = |node, number: u32| crash(node, number, Some(u64::from(number % 7)));
    every("a crash before effect", operations, step, &|node, number| crash(node, number, None), &ended)
        + every("a crash, and one in recovery, before effect", operations, step, &twice, &ended)
}

fn io_errors(operations: u32, step: usize) -> usize {
    let log = |node, number: u32| {
        let kind = Kind::IoError { who: Target::Node(node), after: u64::from(number) };
        Fault { at: 0, kind }
    };
    let checkpoints = |node, number: u32| {
        let kind = Kind::CheckpointError { who: Target::Node(node), after: u64::from(number) };
        Fault { at: 0, kind }
    };
    let met = |outcome: &Outcome| outcome.coverage.count("checkpoint: an act fails") > 0;
    every("an I/O error at I/O", operations, step, &log, &ended)
        + every("an I/O error at act on checkpoints", operations, step, &checkpoints, &met)
        + read_errors(operations, step)
}

/// A start fails to read, at every read of it; late in the run, when there is a log of several segments.
fn read_errors(operations: u32, step: usize) -> usize {
    let (mut runs, mut failed) = (0, 0);
    for node in 0..3 {
        for number in (0..).step_by(step.max(1)) {
            let kind = Kind::ReadError { who: Target::Node(node), after: number, down: DOWN };
            let what = format!("a failed read, number {number} of a start of n{node}");
            let outcome = with(operations, vec![Fault { at: 30 * MS, kind }], &what);
            runs += 1;
            failed += usize::from(outcome.failure.is_some());
            // The process ended, and its start did not.
            if outcome.crashes < 2 {
                break;
            }
        }
    }
    println!("a failed read: {runs} places, {failed} failed");
    failed
}

/// Whether a fault ended a process.
fn ended(outcome: &Outcome) -> bool {
    outcome.crashes > 0
}

/// One run for each node and each place, until no place is left: the fault did not come any more.
fn every(
    what: &str,
    operations: u32,
    step: usize,
    fault: &dyn Fn(usize, u32) -> Fault,
    came: &dyn Fn(&Outcome) -> bool,
) -> usize {
    let (mut runs, mut failed) = (0, 0);
    for node in 0..3 {
        for number in (0..).step_by(step.max(1)) {
            let outcome = with(operations, vec![fault(node, number)], &format!("{what} {number} of n{node}"));
            runs += 1;
            failed += usize::from(outcome.failure.is_some());
            if !came(&outcome) {
                break;
            }
        }
    }
    println!("{what}: {runs} places, {failed} failed");
    failed
}

/// A run with these faults; what went wrong is printed.
fn with(operations: u32, faults: Vec<Fault>, what: &str) -> Outcome {
    let mut plan = small(operations);
    plan.faults.extend(faults);
    plan.faults.sort_by_key(|fault| fault.at);
    let outcome = run_plan(plan, Trace::silent());
    outcome.failure.iter().for_each(|failure| println!("{what}: {}: {}", failure.check, failure.what));
    outcome
}

/// Two crashes, each at a drawn place of a drawn node, and each in a third of the runs with one more in its recovery.
fn doubles(operations: u32, count: u64) -> usize {
    let is_beyond = |&number: &u32| !ended(&with(operations, vec![crash(0, 1 << number, None)], ""));
    let places = (0_u32..).find(is_beyond).unwrap_or(20);
    let mut failed = 0;
    for number in 0..count {
        let mut random = Random::of(number, 0xdb1);
        let mut draw = || {
            let again = (random.below(3) == 0).then(|| random.below(8) as u64);
            crash(random.below(3), random.below(1 << places) as u32, again)
        };
        let faults = vec![draw(), draw()];
        failed += usize::from(with(operations, faults, &format!("pair {number} of crashes")).failure.is_some());
    }
    if count > 0 {
        println!("two crashes: {count} runs, {failed} failed");
    }
    failed
}

/// A disk with ever more room, until it is enough.
fn full_disks(operations: u32, step: usize) -> usize {
    let (mut runs, mut failed) = (0, 0);
    for node in 0..3 {
        // Beyond the first segments nothing is prepared any more: what a run of this length writes fits.
        let most = ROOM_STEP * u64::from(operations) * 8;
        for bytes in (0..most).step_by(ROOM_STEP as usize * step.max(1)) {
            let kind = Kind::FullDisk { who: Target::Node(node), bytes, length: 2_000 * MS };
            let what = format!("a disk of n{node} with room for {bytes} bytes");
            runs += 1;
            failed += usize::from(with(operations, vec![Fault { at: 10 * MS, kind }], &what).failure.is_some());
        }
    }
    println!("a full disk: {runs} places, {failed} failed");
    failed
}

/// A disk that is slow from ever later on, over the length of the run.
fn slow_disks(operations: u32, step: usize) -> usize {
    let (mut runs, mut failed) = (0, 0);
    for node in 0..3 {
        for number in (0..u64::from(operations) * 2).step_by(step.max(1)) {
            let kind = Kind::SlowDisk { who: Target::Node(node), by: 1_000 * MS, length: 1_000 * MS };
            let at = number * SLOW_STEP;
            let what = format!("a slow disk of n{node} from {at} ns on");
            runs += 1;
            failed += usize::from(with(operations, vec![Fault { at, kind }], &what).failure.is_some());
        }
    }
    println!("a slow disk: {runs} places, {failed} failed");
    failed
}

/// Flips bytes of what the small run leaves on its disks: each start finds all that was durable, or refuses; no
/// checkpoint with a changed byte loads.
pub fn rot(arguments: &Rot) -> ExitCode {
    let mut world = World::new(small(arguments.ops), Trace::silent());
    world.run();
    if let Some(failure) = &world.failure {
        println!("without any fault: {}: {}", failure.check, failure.what);
        return ExitCode::FAILURE;
    }
    let step = if arguments.exhaustive { 1 } else { 16 };
    let mut failed = 0;
    for (number, node) in world.nodes.iter_mut().enumerate() {
        let found = node.store.rot(step);
        let (flips, refused, wrong) = (found.flips, found.refused, found.wrong.len());
        println!(
            "n{number}: {flips} bytes changed, {refused} refused, {} without effect, {wrong} wrong",
            flips - refused - wrong
        );
        found.wrong.iter().take(10).for_each(|what| println!("n{number}: {what}"));
        failed += wrong;
    }
    code(failed)
}
