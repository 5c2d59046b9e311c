//! `coppice-check cluster` as a user calls it, with real processes and real faults: short forms of what a release runs
//! for hours (reliability.md 5, 9). Nodes run the server that is built into `coppice-check`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-cluster-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("data")).expect("a directory can be made");
        Place(path)
    }

    fn text(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The program and its words, with its files in here.
    fn command(&self, words: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_coppice-check");
        let mut command = Command::new(program);
        command.args(["cluster", "--bin", program, "--out", &self.text("out"), "--data", &self.text("data")]);
        command.args(words);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Number `field` of the last line that is JSON.
fn figure(said: &str, field: &str) -> u64 {
    let line = said.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    report[field].as_u64().unwrap_or_else(|| panic!("no {field} in {said}"))
}

#[test]
fn nothing_is_lost_invented_or_doubled_when_nodes_are_killed() {
    let place = Place::new("kills");
    let words = ["--nemesis", "kill", "--kills", "12", "--rate", "600", "--seed", "11", "-o", "json"];
    let (code, said) = run(place.command(&words));
    assert_eq!(code, Some(0), "{said}");
    assert!(figure(&said, "fault_count") >= 12 && figure(&said, "answered") > 500, "{said}");
    let left = fs::read_dir(place.0.join("data")).expect("it is there").count();
    assert_eq!(left, 0, "a clean run leaves no data behind");
    // The history and the logs can be judged again by anybody.
    let (history, logs) = (place.text("out/history.jsonl"), place.text("out/logs.jsonl"));
    let mut again = Command::new(env!("CARGO_BIN_EXE_coppice-check"));
    again.args(["history", &history, &logs]);
    let (code, said) = run(again);
    assert!(code == Some(0) && said.contains("tier 0   PASS"), "{said}");
}

#[test]
fn each_kill_of_the_leader_of_everything_is_measured() {
    let place = Place::new("gaps");
    let (code, said) = run(place.command(&["--nemesis", "gap", "--count", "2", "--rate", "500", "--seed", "13"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("service after each of 2 kills of the leader of everything: p50 "), "{said}");
}

#[test]
fn cuts_pauses_and_splits_leave_the_history_linearizable() {
    let place = Place::new("mixed");
    let words = ["--nemesis", "cut,pause,map,power", "--time", "8s", "--rate", "500", "--seed", "12"];
    let (code, said) = run(place.command(&words));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("linearizable: ") && said.contains("power    skipped"), "{said}");
}

#[test]
fn each_kind_of_cut_meets_each_kind_of_operation() {
    let place = Place::new("matrix");
    let (_, said) = run(place.command(&["--nemesis", "cut", "--matrix", "1", "--rate", "800", "--seed", "14"]));
    // How soon the full rate is back is the machine's to say, too: no matter of this test.
    let met = said.lines().find(|line| line.starts_with("matrix: 10 kinds of cuts, each met "));
    assert!(met.is_some_and(|line| !line.contains("each met 0 times")), "{said}");
    assert!(said.contains("coordinator alone") && !said.contains("VIOLATION"), "{said}");
}

#[test]
fn mistakes_of_the_caller_exit_with_2() {
    let place = Place::new("usage");
    let (code, said) = run(place.command(&["--nemesis", "kill", "--matrix", "1"]));
    assert!(code == Some(2) && said.contains("--nemesis cut"), "{said}");
    let (code, said) = run(place.command(&["--nemesis", "earthquake"]));
    assert!(code == Some(2) && said.contains("earthquake"), "{said}");
    let (code, said) = run(place.command(&["--endpoints", "127.0.0.1:1", "--nemesis", "none", "--time", "1s"]));
    assert!(code == Some(2) && said.contains("error: "), "{said}");
}
