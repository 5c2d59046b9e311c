//! `coppice-check history` and `diff` as a user calls them: verdicts, exits, files.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-checker-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory can be made");
        Place(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_coppice-check")).args(arguments).output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[test]
fn a_right_history_passes_and_exits_with_0() {
    let place = Place::new("right");
    let file = place.file("history.jsonl");
    assert_eq!(check(&["generate", &file, "--ops", "3000", "--replicas", "2", "--unanswered", "10"]).0, Some(0));
    let (code, said) = check(&["history", &file]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("certificate PASS") && said.contains("search      PASS") && said.contains("B2          PASS"),
        "{said}"
    );
    let (code, said) = check(&["history", &file, "-o", "json"]);
    assert_eq!(code, Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!((&report["v"], &report["checks"][0]["verdict"]), (&1.into(), &"PASS".into()));
}

#[test]
fn nobody_has_to_listen_to_the_end() {
    let place = Place::new("unheard");
    let file = place.file("history.jsonl");
    check(&["generate", &file, "--ops", "2000"]);
    for words in [&["history", &file][..], &["history", &file, "-o", "json"], &["generate", "-", "--ops", "20000"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-check"));
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(child.stdout.take());
        let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(0) && said.is_empty(), "{words:?}: {status}, {said}");
    }
}

#[test]
fn a_history_without_operations_is_no_right_one() {
    let place = Place::new("empty");
    let file = place.file("history.jsonl");
    fs::write(&file, "").expect("written");
    let (code, said) = check(&["history", &file]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("nothing to judge"), "{said}");
}

#[test]
fn a_wrong_history_exits_with_1_and_leaves_a_timeline() {
    let place = Place::new("wrong");
    let file = place.file("history.jsonl");
    check(&["generate", &file, "--ops", "3000", "--gate", "off", "--ranges", "300"]);
    for checker in ["certificate", "search", "graph"] {
        let page = place.file(&format!("{checker}.html"));
        let (code, said) = check(&["history", &file, "--checker", checker, "--html", &page]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("Each of these is before the next, and the last before the first:"), "{said}");
        assert!(fs::read_to_string(&page).expect("the timeline is there").contains("class=\"arrow\""));
    }
}

#[test]
fn mistakes_of_the_caller_exit_with_2() {
    let place = Place::new("usage");
    let (code, said) = check(&["history", &place.file("none.jsonl")]);
    assert!(code == Some(2) && said.contains("none.jsonl"), "{said}");
    let broken = place.file("broken.jsonl");
    fs::write(&broken, "{\"e\":\"head\",\"v\":1}\n{\"e\":\n").expect("written");
    let (code, said) = check(&["history", &broken]);
    assert!(code == Some(2) && said.contains("line 2: column 7: expected a string"), "{said}");
    assert_eq!(check(&["history", &broken, "--checker", "oracle"]).0, Some(2));
}

#[test]
fn what_is_not_known_exits_with_6_and_is_never_a_pass() {
    let place = Place::new("unknown");
    let file = place.file("history.jsonl");
    check(&["generate", &file, "--ops", "100", "--no-logs"]);
    let (code, said) = check(&["history", &file, "--checker", "certificate"]);
    assert!(code == Some(6) && said.contains("UNKNOWN"), "{said}");
    assert_eq!(check(&["history", &file, "--checker", "certificate", "--strict"]).0, Some(1));
    assert_eq!(check(&["history", &file]).0, Some(0), "without logs the search is the judge");
}

#[test]
fn diff_finds_no_disagreement() {
    let (code, said) = check(&["diff", "--count", "3000", "--from", "5000000"]);
    assert!(code == Some(0) && said.starts_with("PASS     3000 histories"), "{said}");
}
