//! The planted bugs of the checkers: `coppice-check diff` catches each (hazards.md 3.7).
#![cfg(feature = "mutants")]

use std::process::Command;

#[test]
fn every_planted_bug_of_the_checkers_is_caught() {
    let program = env!("CARGO_BIN_EXE_coppice-check");
    let output = Command::new(program).args(["diff", "--mutants", "--count", "5000"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.matches("caught ").count() == 7, "{said}");
}
