//! One fault at every place of a small run (reliability.md G9, G10): a crash between every two effects of every node,
//! power loss included, and an error of the disk at every I/O.

use std::process::ExitCode;

use super::faults::{Fault, Kind, Target};
use super::plan::{MS, Plan};
use super::sweep::run_plan;
use super::trace::Trace;

/// Down for so long: longer than an election, so that the others go on without it.
const DOWN: u64 = 700 * MS;

/// The small run: nothing goes wrong in it but what is put there.
fn small(operations: u32) -> Plan {
    let mut plan = Plan::of(0);
    plan.faults.clear();
    plan.clock_rates.iter_mut().for_each(|rate| *rate = 1_000);
    (plan.partitions, plan.replicas, plan.nodes, plan.clients) = (2, 3, 3, 2);
    plan.clock_rates.resize(3, 1_000);
    (plan.in_flight, plan.operations, plan.keys, plan.impatient, plan.think) = (4, operations, 24, 0, 2 * MS);
    (plan.snapshot_instances, plan.segment_bytes, plan.shuffle, plan.minority_down) = (12, 24 << 10, false, false);
    (plan.sessions_max, plan.expiry_instances, plan.speculation) = (100_000, 1_000_000, u32::MAX);
    plan.settings = coppice_ordering::Settings { window: 4, batch_bytes_max: 128, ..Default::default() };
    let network = &mut plan.network;
    (network.tail, network.loss, network.duplicates, network.client_cut, network.connect_fails) = (0, 0, 0, 0, 0);
    (network.delay_min, network.delay_mean) = (MS, MS / 4);
    (plan.disk.flush_min, plan.disk.flush_max, plan.disk.power) = (MS / 2, MS, true);
    plan.disk.snapshot_max = 5 * MS;
    plan
}

/// Runs everything; prints what failed.
pub fn main(operations: u32, step: usize) -> ExitCode {
    let calm = run_plan(small(operations), Trace::silent());
    if let Some(failure) = calm.failure {
        println!("without any fault: {}: {}", failure.check, failure.what);
        return ExitCode::FAILURE;
    }
    let crash = |node, number| Kind::Crash { who: Target::Node(node), effects: number, down: DOWN, again: None };
    let twice = |node, number: u32| Kind::Crash {
        who: Target::Node(node),
        effects: number,
        down: DOWN,
        again: Some(u64::from(number % 7)),
    };
    let error = |node, number: u32| Kind::IoError { who: Target::Node(node), after: u64::from(number) };
    let failed = every("a crash before effect", operations, step, &crash)
        + every("a crash, and one in recovery, before effect", operations, step, &twice)
        + every("an I/O error at I/O", operations, step, &error);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run for each node and each place, until no place is left: the fault did not come any more.
fn every(what: &str, operations: u32, step: usize, kind: &dyn Fn(usize, u32) -> Kind) -> usize {
    let (mut runs, mut failed) = (0, 0);
    for node in 0..3 {
        for number in (0..).step_by(step.max(1)) {
            let mut plan = small(operations);
            plan.faults.push(Fault { at: 0, kind: kind(node, number) });
            let outcome = run_plan(plan, Trace::silent());
            runs += 1;
            if let Some(failure) = outcome.failure {
                failed += 1;
                println!("{what} {number} of n{node}: {}: {}", failure.check, failure.what);
            }
            if outcome.crashes == 0 {
                break;
            }
        }
    }
    println!("{what}: {runs} places, {failed} failed");
    failed
}
