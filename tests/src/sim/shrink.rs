//! Makes a failing run short: takes out halves, quarters, then single faults, operations, clients and settings, while
//! the same check fails.

use super::Plan;
use super::sweep::run_plan;
use super::trace::Trace;

struct Shrink {
    check: String,
    left: u32,
}

impl Shrink {
    fn fails(&mut self, plan: &Plan) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let failure = run_plan(plan.clone(), Trace::silent()).failure;
        failure.is_some_and(|failure| failure.check == self.check)
    }
}

/// The shortest plan found in at most `runs` runs; `None` if the seed does not fail.
pub fn shrink(seed: u64, runs: u32) -> Option<Plan> {
    let mut plan = Plan::of(seed);
    let failure = run_plan(plan.clone(), Trace::silent()).failure?;
    println!("seed {seed}: {}: {}", failure.check, failure.what);
    let mut shrink = Shrink { check: failure.check, left: runs };
    let mut before = usize::MAX;
    while plan.faults.len() + (plan.operations as usize) < before {
        before = plan.faults.len() + plan.operations as usize;
        fewer_faults(&mut plan, &mut shrink);
        simpler(&mut plan, &mut shrink);
    }
    println!("{} faults and {} operations are left", plan.faults.len(), plan.operations);
    Some(plan)
}

fn fewer_faults(plan: &mut Plan, shrink: &mut Shrink) {
    let mut piece = plan.faults.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < plan.faults.len() {
            let mut shorter = plan.clone();
            shorter.faults.drain(at..(at + piece).min(plan.faults.len()));
            if shrink.fails(&shorter) {
                *plan = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
}

/// One thing that may be simpler.
type Change = fn(&mut Plan);

fn simpler(plan: &mut Plan, shrink: &mut Shrink) {
    let changes: [Change; 15] = [
        |plan| plan.settings.retain_bytes_min = coppice_ordering::Settings::default().retain_bytes_min,
        |plan| plan.operations /= 2,
        |plan| plan.operations -= plan.operations / 4,
        |plan| plan.network.loss = 0,
        |plan| plan.network.duplicates = 0,
        |plan| plan.network.tail = 0,
        |plan| plan.network.client_cut = 0,
        |plan| plan.network.connect_fails = 0,
        |plan| plan.network.delay_mean = 0,
        |plan| plan.clock_rates.iter_mut().for_each(|rate| *rate = 1_000),
        |plan| plan.shuffle = false,
        |plan| plan.disk.power = false,
        |plan| plan.minority_down = false,
        |plan| plan.impatient = 0,
        |plan| plan.in_flight = 1,
    ];
    for change in changes {
        let mut simple = plan.clone();
        change(&mut simple);
        let changed = format!("{simple:?}") != format!("{plan:?}");
        if changed && simple.operations >= simple.clients && shrink.fails(&simple) {
            *plan = simple;
        }
    }
}
