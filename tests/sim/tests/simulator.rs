//! The simulator in plain `cargo test`: a few seeds, the same seed twice, and the planted bugs that a few seeds catch.
//! `coppice-sim sweep` runs thousands (hazards.md 9).

use std::process::{Command, Output};

use coppice_check::cli::{Checker, judge};
use coppice_check::history::History;

fn simulate(arguments: &[&str], mutant: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-sim"));
    command.args(arguments).env("COPPICE_MUTANT", mutant).output().expect("it runs")
}

#[test]
fn a_few_seeds_find_nothing_and_are_the_same_twice() {
    let output = simulate(&["sweep", "--count", "4", "--twice", "--jobs", "2"], "");
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
        judge(&History::load(&[history.to_owned()]).expect("a history"), &[Checker::Certificate, Checker::Search]);
    std::fs::remove_dir_all(&directory).expect("removed");
    assert!(judged.lines.iter().all(|line| matches!(line.verdict, "PASS" | "-")), "{:?}", judged.lines);
}

/// Schedules A to F, and the runs of the past (hazards.md 6).
#[test]
fn scripts_and_schedules_end_well() {
    let output = simulate(&["scripts", "--plain"], "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 0 failed"), "{said}");
    for name in ["a_two_partitions", "f_a_part_that_is_read_late", "sp04_a_session_row_is_undone"] {
        assert!(said.contains(&format!("{name}: passes")), "{name}: {said}");
    }
}

#[test]
fn a_name_that_nothing_has_is_refused_before_anything_is_built() {
    for words in [["scripts", "--only", "typo"], ["mutants", "--only", "typo"]] {
        let output = simulate(&words, "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("`typo`") && !said.contains("building"), "{said}");
    }
}

/// The command itself says so, and would fail if it did not find it (protocol.md 1.5).
#[test]
#[ignore = "long: a world of many states"]
fn the_model_of_a_lost_disk_under_its_old_id_is_found_to_be_broken() {
    let output = simulate(&["model", "--paxos", "3x2x1", "--only", "a lost disk under its old id"], "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("as it must be") && said.contains("1 worlds"), "{said}");
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_scripts_and_schedules_are_caught() {
    let output = simulate(&["scripts"], "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 0 failed"), "{said}");
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../schedules")).expect("schedules").count();
    // One each, and C and F have two.
    assert_eq!(said.matches("it fails, as it must").count(), files + 8, "{said}");
    let output = simulate(&["scripts", "--plain", "--only", "a_two_partitions"], "gate_off");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}

/// What a short run needs is less than what its seed drew.
#[cfg(feature = "mutants")]
#[test]
fn a_planted_bug_that_is_caught_is_shown_by_less_than_its_seed_draws() {
    use coppice_sim::Plan;
    let directory = std::env::temp_dir().join(format!("coppice-shrink-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("short.json");
    let file = file.to_str().expect("a path");
    let output = simulate(&["sweep", "--first", "--count", "200", "--jobs", "1"], "undo_no_session");
    let said = String::from_utf8_lossy(&output.stdout);
    let seed = said.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(" FAILED")).expect("caught").0;
    let output = simulate(&["shrink", seed, "--runs", "60", "--out", file], "undo_no_session");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(" operations are left"), "{said}");
    let again = simulate(&["replay", file], "undo_no_session");
    assert_eq!(again.status.code(), Some(1), "the short run fails too");
    let text = std::fs::read_to_string(file).expect("a schedule");
    std::fs::remove_dir_all(&directory).expect("removed");
    let short: serde_json::Value = serde_json::from_str(&text).expect("json");
    let (short, drawn) = (&short["plan"], serde_json::to_value(Plan::of(seed.parse().expect("a seed"))).expect("json"));
    let operations = |plan: &serde_json::Value| plan["workload"]["operations"].as_u64().expect("a count");
    assert!(short["faults"].as_array().map(Vec::len) < drawn["faults"].as_array().map(Vec::len), "{short}");
    assert!(operations(short) < operations(&drawn), "{short}");
}

/// Who waits for the end of a cut, or for a node that is gone, is seen.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_that_make_clients_wait_are_caught() {
    for (mutant, cut) in [
        ("multicast_ends_here", "a pair"),
        ("deaf_leader_stays", "the coordinator hears nobody"),
        ("client_follows_the_gone", "node dies"),
    ] {
        let output = simulate(&["cuts", "--count", "6", "--only", cut], mutant);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(" ms: c"), "{mutant} under {cut}: {said}");
    }
}

/// Those of the list that few seeds show; `coppice-sim mutants` looks for all.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    use coppice_sim::planted::{CAUGHT, QUICK_SEEDS};
    for planted in CAUGHT.iter().filter(|planted| planted.seeds <= QUICK_SEEDS) {
        // The first failure ends it; most show within two seeds.
        let output = simulate(&["sweep", "--first", "--count", &planted.seeds.to_string()], planted.name);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains("FAILED"), "{} is not caught: {said}", planted.name);
    }
}

/// What is needed to see what went wrong, without running it again: the check, the commit, the command that replays the
/// seed, and its last steps.
#[cfg(feature = "mutants")]
#[test]
fn a_seed_that_is_caught_says_how_and_shows_its_last_steps() {
    let output = simulate(&["sweep", "--first", "--count", "200", "--jobs", "1"], "gate_off");
    let said = String::from_utf8_lossy(&output.stdout);
    let seed = said.split("seed ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a seed");
    let hex = format!("{:#x}", seed.parse::<u64>().expect("a number"));
    assert!(said.contains(&format!("seed {seed} FAILED: ")), "{said}");
    assert!(said.contains("; commit ") || said.contains("of a commit that is not known"), "{said}");
    assert!(said.contains(&format!("replay: coppice-sim replay {hex} --trace {seed}.trace")), "{said}");
    let steps = said.lines().filter(|line| line.contains(" => ")).count();
    assert!(steps > 20 && steps <= 200, "{steps} steps: {said}");
    let again = simulate(&["replay", &hex], "gate_off");
    assert!(String::from_utf8_lossy(&again.stdout).contains("FAILED at step"), "{hex}");
}

/// Each invariant after every step is shown by a bug that breaks it; those that are not here have directed tests beside
/// them (`marks`, `ledger`, `positions`).
#[cfg(feature = "mutants")]
#[test]
fn invariants_after_every_step_are_seen_when_caught() {
    let shown = [
        ("released_guessed", "I3"),
        ("old_quorum", "I5"),
        ("conf_one_phase1", "I5"),
        ("undo_unbounded", "I6"),
        ("part_at_last_executed", "I13"),
        ("cut_by_other_map", "I13"),
        ("bounds_at_routing", "I14"),
        ("fork_no_sessions", "I15"),
        ("fork_no_ticket", "I15"),
        ("dedupe_at_propose", "I16"),
        ("merge_drops_sessions", "I16"),
    ];
    for (mutant, invariant) in shown {
        // In many seeds something that it leads to is met first: one of the next may show it.
        let mut met = Vec::new();
        let is_shown = (0..12).any(|tried| {
            let from = (1 + 30 * tried).to_string();
            let output = simulate(&["sweep", "--first", "--from", &from, "--count", "400", "--jobs", "2"], mutant);
            let said = String::from_utf8_lossy(&output.stdout);
            let is_shown = said.contains(&format!("FAILED: {invariant} "));
            met.extend(said.lines().find(|line| line.contains("FAILED")).map(str::to_owned));
            is_shown
        });
        assert!(is_shown, "{mutant} is caught otherwise:\n{}", met.join("\n"));
    }
}
