//! Makes a failing run short: takes out halves, quarters, then single faults, operations, clients and settings, while
//! the same check fails; then nodes, partitions and keys.

use super::panics::run_plan;
use super::trace::Trace;
use super::{Failure, Plan};

/// What a plan is run by, and how often yet.
struct Shrink<'a> {
    fails: &'a mut dyn FnMut(&Plan) -> bool,
    left: u32,
}

impl Shrink<'_> {
    /// Whether a plan fails in the same way.
    fn fails(&mut self, plan: &Plan) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        (self.fails)(plan)
    }
}

/// Whether it is the same that went wrong. A panic is the same one at the same place only: a plan that was changed too
/// far panics somewhere else.
fn is_same(first: &Failure, other: &Failure) -> bool {
    let place = |failure: &Failure| failure.what.lines().next().unwrap_or_default().to_owned();
    first.check == other.check && (first.check != "panic" || place(first) == place(other))
}

/// The shortest plan found in at most `runs` runs; `None` if the seed does not fail.
pub fn shrink(seed: u64, runs: u32) -> Option<Plan> {
    let mut plan = Plan::of(seed);
    let failure = run_plan(plan.clone(), Trace::silent()).failure?;
    println!("seed {seed}: {}: {}", failure.check, failure.what);
    let mut fails = |plan: &Plan| {
        let again = run_plan(plan.clone(), Trace::silent()).failure;
        again.is_some_and(|again| is_same(&failure, &again))
    };
    reduce(&mut plan, runs, &mut fails);
    let Plan { nodes, partitions, workload: super::plan::Workload { operations, clients, keys, .. }, .. } = plan;
    println!("{} faults and {operations} operations are left", plan.faults.len());
    println!("of {clients} clients, on {nodes} nodes, {partitions} partitions and {keys} keys");
    Some(plan)
}

fn reduce(plan: &mut Plan, runs: u32, fails: &mut dyn FnMut(&Plan) -> bool) {
    let mut shrink = Shrink { fails, left: runs };
    for changes in [SIMPLER, SMALLER] {
        let mut before = usize::MAX;
        while size(plan) < before {
            before = size(plan);
            fewer_faults(plan, &mut shrink);
            simpler(plan, changes, &mut shrink);
        }
    }
}

fn size(plan: &Plan) -> usize {
    let shape = plan.workload.operations
        + plan.workload.clients
        + plan.replicas
        + plan.nodes
        + plan.partitions
        + plan.workload.keys;
    plan.faults.len() + shape as usize
}

fn fewer_faults(plan: &mut Plan, shrink: &mut Shrink<'_>) {
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

const SIMPLER: &[Change] = &[
    |plan| plan.settings.retain_bytes_min = coppice_ordering::Settings::default().retain_bytes_min,
    |plan| plan.workload.operations /= 2,
    |plan| plan.workload.operations -= plan.workload.operations / 4,
    |plan| plan.network.loss = 0,
    |plan| plan.network.duplicates = 0,
    |plan| plan.network.tail = 0,
    |plan| plan.network.client_cut = 0,
    |plan| plan.network.connect_fails = 0,
    |plan| plan.network.damaged = 0,
    |plan| plan.network.delay_mean = 0,
    |plan| plan.disk.misread = 0,
    |plan| plan.disk.read_errors = 0,
    |plan| plan.clock_rates.iter_mut().for_each(|rate| *rate = 1_000),
    |plan| plan.shuffle = false,
    |plan| plan.disk.power = false,
    |plan| plan.minority_down = false,
    |plan| plan.workload.impatient = 0,
    |plan| plan.workload.in_flight = 1,
    |plan| plan.server.workers = 1,
];

/// What faults and operations name by number: where a fault that is left names what is gone, the run goes on with one
/// that is there, or panics at another place and does not count.
const SMALLER: &[Change] = &[
    |plan| plan.workload.operations /= 2,
    |plan| plan.workload.operations -= plan.workload.operations / 4,
    |plan| plan.workload.clients = plan.workload.clients.div_ceil(2),
    |plan| plan.partitions = 1,
    |plan| plan.partitions = (plan.partitions - 1).max(1),
    |plan| plan.replicas = plan.replicas.min(3),
    |plan| plan.nodes = plan.replicas.max(plan.nodes.min(3)),
    |plan| plan.nodes = (plan.nodes - 1).max(plan.replicas).max(3),
    |plan| plan.workload.keys = (plan.workload.keys / 2).max(plan.partitions),
    |plan| plan.workload.keys = (plan.workload.keys - plan.workload.keys / 4).max(plan.partitions),
];

fn simpler(plan: &mut Plan, changes: &[Change], shrink: &mut Shrink<'_>) {
    for change in changes {
        let mut simple = plan.clone();
        change(&mut simple);
        simple.clock_rates.truncate(simple.nodes as usize);
        let changed = format!("{simple:?}") != format!("{plan:?}");
        if changed && simple.workload.operations >= simple.workload.clients && shrink.fails(&simple) {
            *plan = simple;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed with room on every side.
    fn large() -> Plan {
        let seeds = (0..1_000).map(Plan::of);
        let fits = |plan: &Plan| {
            plan.partitions >= 4 && plan.nodes >= 6 && plan.workload.keys >= 200 && plan.faults.len() >= 8
        };
        seeds.into_iter().find(fits).expect("one of a thousand")
    }

    #[test]
    fn what_a_failure_does_not_need_goes() {
        let mut plan = large();
        let needed = plan.faults[5].clone();
        let mut fails =
            |plan: &Plan| plan.faults.contains(&needed) && plan.workload.operations >= 20 && plan.workload.keys >= 9;
        reduce(&mut plan, 2_000, &mut fails);
        assert_eq!(plan.faults, [needed]);
        assert_eq!(
            (plan.workload.clients, plan.partitions, plan.nodes, plan.replicas),
            (1, 1, 3, plan.replicas.min(3))
        );
        assert!((20..27).contains(&plan.workload.operations) && (9..12).contains(&plan.workload.keys), "{plan:?}");
        assert_eq!(plan.clock_rates.len(), 3);
    }

    #[test]
    fn what_a_failure_needs_stays() {
        let first = large();
        let mut plan = first.clone();
        let (partitions, nodes) = (first.partitions, first.nodes - 1);
        let mut runs = 0;
        let mut fails = |plan: &Plan| {
            runs += 1;
            plan.partitions == partitions && plan.nodes >= nodes
        };
        reduce(&mut plan, 30, &mut fails);
        assert_eq!((plan.partitions, runs), (partitions, 30));
        assert!(plan.nodes >= nodes, "{plan:?}");
    }

    #[test]
    fn a_panic_elsewhere_is_another_failure() {
        let failure = |check: &str, what: &str| Failure { check: check.into(), what: what.into(), step: 0, at: 0 };
        let first = failure("panic", "panicked at node.rs:7\nindex 3");
        assert!(is_same(&first, &failure("panic", "panicked at node.rs:7\nindex 2")));
        assert!(!is_same(&first, &failure("panic", "panicked at world.rs:9\nindex 3")));
        assert!(is_same(&failure("I1", "two values"), &failure("I1", "two others")));
        assert!(!is_same(&failure("I1", "two values"), &failure("I2", "two values")));
    }
}
