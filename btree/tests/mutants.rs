//! Every planted bug is caught by the model (hazards.md 6: SP2, SP3, ST12, RD8).
#![cfg(feature = "mutants")]

mod common;

use std::process::Command;

use common::{ALL_PAIRS, Run};
use coppice_btree::{Capacity, mutants};

/// What a mutant must break. Without one it passes.
#[test]
fn the_scenario_by_which_each_is_caught() {
    for seed in 0..40 {
        for pairs in ALL_PAIRS {
            Run::new(seed, pairs, 8, Capacity::TINY).steps(200);
            Run::new(seed, pairs, 200, Capacity::TINY).steps(200);
        }
    }
}

/// Whether the scenario passes in a process of its own, with one mutant switched on.
fn passes_with(mutant: &str) -> bool {
    let program = std::env::current_exe().expect("this test is a program");
    let output = Command::new(program)
        .args(["--exact", "the_scenario_by_which_each_is_caught"])
        .env("COPPICE_MUTANT", mutant)
        .output()
        .expect("a test program starts");
    output.status.success()
}

#[test]
fn nothing_is_caught_without_a_mutant() {
    assert!(passes_with(""));
}

#[test]
fn every_mutant_is_caught() {
    for name in mutants::NAMES {
        assert!(!passes_with(name), "{name} was not caught");
    }
}
