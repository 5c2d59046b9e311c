//! Real nodes end at named places of their code and come back (hazards.md 2, E10): a handful of places, one after
//! the other. `coppice-check cluster --nemesis fail` goes through all of them.
#![cfg(feature = "failpoints")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use planted::failpoints::ALL;
use serde_json::Value;

/// Runs `coppice-check cluster --nemesis fail` with its own server as the nodes: exit status, report, and all it said.
fn run(name: &str, words: &[&str]) -> (Option<i32>, Value, String) {
    let place: PathBuf = std::env::temp_dir().join(format!("coppice-fail-{name}-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a directory can be made");
    let program = env!("CARGO_BIN_EXE_coppice-check");
    let mut command = Command::new(program);
    command.args(["cluster", "--nemesis", "fail", "--bin", program, "-o", "json", "--out"]).arg(place.join("out"));
    command.arg("--data").arg(&place).args(words);
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    let report = said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    if status.code() != Some(1) {
        fs::remove_dir_all(&place).expect("it is ours");
    }
    (status.code(), report, said)
}

/// How often a failpoint fired.
fn fired(report: &Value, name: &str) -> u64 {
    let mut all = report["failpoints"].as_array().into_iter().flatten();
    all.find(|point| point["name"] == name).and_then(|point| point["fired"].as_u64()).unwrap_or(0)
}

fn all_fire(name: &str, points: &[&str], seed: &str) {
    let count = (2 * points.len()).to_string();
    let words = ["--failpoint", &points.join(","), "--count", &count, "--rate", "800", "--seed", seed];
    let (code, report, said) = run(name, &words);
    assert_eq!(code, Some(0), "{said}");
    for point in points {
        assert!(fired(&report, point) > 0, "{point} did not fire: {said}");
    }
}

#[test]
fn a_node_that_ends_in_the_middle_of_what_it_does_comes_back_with_every_answered_write() {
    let points = ["log.before_flush", "log.after_flush", "batch.executed", "worker.vote", "worker.replied"];
    all_fire("load", &points, "31");
}

#[test]
fn a_node_that_ends_while_it_starts_starts_the_next_time() {
    all_fire(
        "start",
        &["open.before_rename", "open.before_flush_dir", "datadir.log_opened", "file.before_rename"],
        "32",
    );
}

#[test]
fn a_node_that_ends_while_it_writes_a_checkpoint_has_its_log() {
    all_fire("checkpoint", &["checkpoint.chunk", "checkpoint.before_rename", "checkpoint.renamed"], "33");
}

/// Hazard SP10: a thread that panics with half of a batch taken back leaves a state that nobody may serve. In builds
/// where panics unwind the process went on, and the worker's other tasks with it.
#[test]
fn a_panic_in_the_middle_of_undo_ends_the_process() {
    all_fire("undo", &["undo.tree_record"], "34");
}

#[test]
fn the_list_names_places_of_each_part_of_a_node() {
    for part in ["log", "open", "segment", "trim", "checkpoint", "snapshot", "undo", "split", "merge", "change"] {
        let of_part = ALL.iter().filter(|point| point.name.starts_with(&format!("{part}."))).count();
        assert!(of_part > 1, "{part}: {of_part}");
    }
    let (code, _, said) = run("usage", &["--failpoint", "log.nowhere"]);
    assert!(code == Some(2) && said.contains("no failpoint is called `log.nowhere`"), "{said}");
}
