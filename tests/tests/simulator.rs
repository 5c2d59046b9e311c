//! The simulator in plain `cargo test`: a few seeds, the same seed twice, and the planted bugs that a few seeds catch.
//! `coppice-sim sweep` runs thousands (reliability.md 9).

use std::process::{Command, Output};

fn simulate(arguments: &[&str], mutant: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-sim"));
    command.args(arguments).env("COPPICE_MUTANT", mutant).output().expect("it runs")
}

#[test]
fn a_few_seeds_find_nothing_and_are_the_same_twice() {
    let output = simulate(&["sweep", "--count", "12", "--twice", "--jobs", "2"], "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 0 failed"), "{said}");
}

#[test]
fn a_seed_can_be_replayed_and_its_history_judged_apart() {
    let directory = std::env::temp_dir().join(format!("coppice-simulator-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (trace, history) = (directory.join("1.trace"), directory.join("1.jsonl"));
    let (trace, history) = (trace.to_str().expect("a path"), history.to_str().expect("a path"));
    let output = simulate(&["replay", "1", "--trace", trace, "--history", history], "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let lines = std::fs::read_to_string(trace).expect("a trace").lines().count();
    assert!(lines > 100, "{lines}");
    let judged =
        Command::new(env!("CARGO_BIN_EXE_coppice-check")).args(["history", history]).output().expect("it runs");
    std::fs::remove_dir_all(&directory).expect("removed");
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

/// The snapshot that a replica installed rots: below it the log holds votes that were overwritten, and no older
/// checkpoint leads past them.
#[test]
fn what_an_installed_snapshot_covered_is_never_read_from_the_log() {
    let schedule = concat!(env!("CARGO_MANIFEST_DIR"), "/schedules/an_installed_snapshot_rots.json");
    let output = simulate(&["replay", schedule], "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[cfg(feature = "mutants")]
#[test]
fn an_older_checkpoint_below_an_installed_snapshot_is_caught() {
    let schedule = concat!(env!("CARGO_MANIFEST_DIR"), "/schedules/an_installed_snapshot_rots.json");
    let output = simulate(&["replay", schedule], "install_trims_nothing");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("FAILED") && said.contains("I1"), "{said}");
}

/// Those of the list that few seeds show; `coppice-sim mutants` looks for all.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    use coppice_tests::sim::planted::{CAUGHT, QUICK_SEEDS};
    for planted in CAUGHT.iter().filter(|planted| planted.seeds <= QUICK_SEEDS) {
        // The first failure ends it; most show within two seeds.
        let output = simulate(&["sweep", "--first", "--count", &planted.seeds.to_string()], planted.name);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains("FAILED"), "{} is not caught: {said}", planted.name);
    }
}
