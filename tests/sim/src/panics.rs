//! Runs whose panics are failures of their seeds.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::plan::Plan;
use super::trace::Trace;
use super::watch::Running;
use super::world::{Failure, Outcome, run};

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Panics become failures of their seed; what they say is kept, not printed. A program that a panic ends says at once
/// which seed it was.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if cfg!(panic = "abort") {
            match SEED.get() {
                Some(seed) => println!("seed {seed} FAILED: panic: {text}\n  replay: coppice-sim replay {seed:#x}"),
                None => eprintln!("{text}"),
            }
            println!("  a panic ends this program; built with --profile sim it goes on with the next seed");
        }
        PANIC.with_borrow_mut(|kept| *kept = text);
    }));
}

/// What the panic said that was caught last on this thread.
pub(super) fn panicked() -> String {
    PANIC.with_borrow(String::clone)
}

/// Runs a plan; a panic of the code under test is a failure like any other.
pub fn run_plan(plan: Plan, trace: Trace) -> Outcome {
    let _running = Running::begin(plan.seed);
    SEED.set(Some(plan.seed));
    match catch_unwind(AssertUnwindSafe(|| run(plan, trace))) {
        Ok(outcome) => outcome,
        Err(_) => {
            let failure = Failure { check: "panic".into(), what: panicked(), step: 0, at: 0 };
            Outcome { failure: Some(failure), ..Outcome::default() }
        }
    }
}
