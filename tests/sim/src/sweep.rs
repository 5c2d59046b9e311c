//! Many seeds, one after the other on each thread, with a line of progress.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::coverage::Coverage;
use super::failing;
use super::panics::run_plan;
use super::plan::{Plan, Verdicts};
use super::trace::Trace;
use super::world::{Failure, Outcome};

/// Which seeds, and how.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The first seed.
    pub from: u64,
    pub count: u64,
    /// Threads.
    pub jobs: usize,
    /// Every so many seeds one is run twice and the hashes are compared; 0: none.
    pub twice_every: u64,
    /// Stop at the first failure.
    pub first: bool,
    /// Say nothing while it runs.
    pub quiet: bool,
    /// What is not as the seeds draw it.
    pub changes: Changes,
}

/// What is not as a seed draws it.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// What the runs are judged by.
    pub judged: Verdicts,
    /// Names and values for [`Plan::set`].
    pub set: Vec<(String, String)>,
}

impl Changes {
    /// The plan of a seed, changed. Names and values were tried before.
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        plan.judged = self.judged;
        for (name, value) in &self.set {
            plan.set(name, value).expect("it was tried before");
        }
        plan
    }
}

/// What a sweep found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Failing seeds, ascending.
    pub failed: Vec<(u64, Failure)>,
    /// Seeds that were run.
    pub seeds: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// Operations answered.
    pub answered: u64,
    /// Faults made.
    pub faults: u64,
    /// Rare conditions, and how often they were met.
    pub coverage: Coverage,
    /// How long it took.
    pub took: Duration,
}

/// Runs one seed; `twice`: and once more, which must be the same run.
fn run_seed(plan: Plan, twice: bool) -> Outcome {
    let again = twice.then(|| plan.clone());
    let mut outcome = run_plan(plan, Trace::silent());
    if let Some(again) = again.filter(|_| outcome.failure.is_none()) {
        let again = run_plan(again, Trace::silent());
        if (again.hash, again.steps) != (outcome.hash, outcome.steps) {
            let what = format!("{:016x} after {} steps, then {:016x}", outcome.hash, outcome.steps, again.hash);
            outcome.failure = Some(Failure { check: "twice".into(), what, step: outcome.steps, at: 0 });
        }
    }
    outcome
}

impl Sweep {
    /// Runs all seeds.
    pub fn run(&self) -> Report {
        let (next, stop) = (AtomicU64::new(self.from), AtomicBool::new(false));
        let report = Mutex::new(Report::default());
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| self.work(&next, &stop, &report, started));
            }
        });
        let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.failed.sort_by_key(|(seed, _)| *seed);
        report.took = started.elapsed();
        report
    }

    fn work(&self, next: &AtomicU64, stop: &AtomicBool, report: &Mutex<Report>, started: Instant) {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.from.saturating_add(self.count) || stop.load(Ordering::Relaxed) {
                return;
            }
            let twice = self.twice_every > 0 && seed.is_multiple_of(self.twice_every);
            let outcome = run_seed(self.changes.plan(seed), twice);
            let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            report.seeds += 1;
            report.steps += outcome.steps;
            report.answered += outcome.answered;
            report.faults += outcome.faults;
            report.coverage.merge(&outcome.coverage);
            let mut shown = false;
            if let Some(failure) = outcome.failure {
                if !self.quiet {
                    failing::tell(seed, &failure);
                    shown = report.failed.len() < failing::SHOWN_MAX;
                }
                report.failed.push((seed, failure));
                stop.fetch_or(self.first, Ordering::Relaxed);
            }
            if !self.quiet && report.seeds.is_multiple_of(100) {
                let (seeds, steps) = (report.seeds, report.steps);
                let rate = seeds as f64 / started.elapsed().as_secs_f64();
                println!("{seeds} seeds, {steps} steps, {rate:.1} seeds/s, {} failed", report.failed.len());
            }
            drop(report);
            if shown {
                print!("{}", failing::last_steps(seed, self.changes.plan(seed)));
            }
        }
    }
}
