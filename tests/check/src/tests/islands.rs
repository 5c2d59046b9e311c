//! Islands for another judge, and what becomes of its verdict.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::super::history::History;
use super::super::porcupine::judge;
use super::script::history;

/// Two islands: no range and no `many` connects `a` and `b` to `m` and `n`.
fn two_islands() -> History {
    history(
        "c1 10 20 put a=x -> -
         c1 30 40 put b=y -> -
         c2 35 50 range a..c -> [a=x b=y]
         c2 60 70 put m=z -> -
         c1 60 75 insert n=w -> -
         c18446744073709551000 80 90 range k..p -> [m=z n=w]",
    )
}

struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_judge_is_run_where_the_islands_are_and_believed() {
    let place = Place(std::env::temp_dir().join(format!("coppice-islands-{}", std::process::id())));
    fs::create_dir_all(&place.0).expect("a directory");
    let history = two_islands();
    let line = judge(&history, &place.0.join("none"), None).expect("written");
    assert_eq!((line.check.as_str(), line.verdict), ("tier 2", "skipped"));
    assert!(line.what.starts_with("2 islands of at most 3 operations"), "{}", line.what);
    // No island holds what another one answered.
    let written = fs::read_to_string(place.0.join("none/histories.jsonl")).expect("written");
    let ranges = written.lines().map(|line| line.matches("\"kind\":5").count());
    assert_eq!(ranges.collect::<Vec<_>>(), [1, 1], "{written}");
    // Clients are named by 64 bits in histories, and by few here.
    assert!(!written.contains("18446744073709551"), "{written}");
    let program = place.0.join("judge");
    for (code, verdict) in [(0, Some("PASS")), (1, Some("FAIL")), (6, Some("UNKNOWN")), (3, None)] {
        let script = format!("#!/bin/sh\ngrep -c island histories.jsonl || exit 9\nexit {code}\n");
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("ours");
        let judged = judge(&history, &place.0.join("islands"), Some(&program));
        assert_eq!(judged.as_ref().ok().map(|line| line.verdict), verdict, "{judged:?}");
    }
    assert!(judge(&history, &place.0, Some(&place.0.join("missing"))).is_err());
}
