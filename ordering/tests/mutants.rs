//! Every planted bug is caught (reliability.md 6). `cargo test -p coppice-ordering --features mutants --test mutants`.
//!
//! A mutant is on for a whole process, so this program starts itself once per mutant. There the scripts are played and
//! random schedules run until the judge of `tests/cluster` finds a broken invariant. Output that only differs from a
//! script counts for the mutants that break liveness and no safety.
#![cfg(feature = "mutants")]

mod cluster;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use cluster::fuzz::Fuzz;
use coppice_ordering::{Ballot, Gate, Instance, Ticket, mutants};

/// Random schedules per mutant that no script catches.
const SEEDS_MAX: u64 = 3_000;

/// They break liveness, or only print something else in a script.
const LIVENESS: &[&str] = &["deaf_leader_stays"];

fn scripts() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).expect("scripts").map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).expect("a script"))).collect()
}

/// Schedule A of reliability.md 6 at P1, and a write that is not decided.
fn play_gate() {
    let ticket = Ticket { ballot: Ballot::new(1, 0), n: 1 };
    let mut gate = Gate::default();
    gate.hold(Instance(1), None, "w");
    gate.hold(Instance(2), Some(ticket), "x");
    assert_eq!(gate.pop(), None, "I9: a reply left before its instance was decided");
    gate.decided(Instance(2));
    assert_eq!(gate.pop(), Some("w"));
    assert_eq!(gate.pop(), None, "I9: a reply left before a ticket before it was released");
    gate.released(ticket);
    assert_eq!(gate.pop(), Some("x"));
}

fn caught_by(what: impl FnOnce()) -> Option<String> {
    let why = catch_unwind(AssertUnwindSafe(what)).err()?;
    let text = why.downcast_ref::<String>().cloned();
    let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
    Some(text.lines().next().unwrap_or_default().to_owned())
}

/// Runs in the child process; prints how the mutant was caught.
#[test]
fn hunt() {
    let Ok(mutant) = std::env::var("COPPICE_MUTANT") else { return };
    std::panic::set_hook(Box::new(|_| {}));
    let mut caught = caught_by(play_gate).map(|why| format!("gate: {why}")).into_iter().collect::<Vec<String>>();
    for (name, text) in scripts() {
        let mut printed = String::new();
        if let Some(why) = caught_by(|| printed = cluster::script::run(&text)) {
            caught.push(format!("{name}: {why}"));
        } else if printed != text && LIVENESS.contains(&mutant.as_str()) {
            caught.push(format!("{name}: it prints something else"));
        }
    }
    let by_hand = caught.len();
    let seeds = std::env::var("HUNT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS_MAX);
    // Random schedules always get a try; most of them only when nothing else found it.
    let seeds = if caught.is_empty() { seeds } else { seeds / 20 };
    for seed in 0..seeds {
        if let Some(why) = caught_by(|| Fuzz::new(seed).run()) {
            caught.push(format!("seed {seed}: {why}"));
            break;
        }
    }
    if let Some(first) = caught.first() {
        let random = caught.get(by_hand).map_or("no seed", String::as_str);
        println!("CAUGHT {mutant}: {by_hand} scripts, {first}; {random}");
    }
}

#[test]
fn every_mutant_is_caught() {
    if std::env::var("COPPICE_MUTANT").is_ok() {
        return;
    }
    let only = std::env::var("HUNT_ONLY").unwrap_or_default();
    let mut escaped = Vec::new();
    for mutant in mutants::ALL.iter().filter(|mutant| mutant.contains(&only)) {
        let program = std::env::current_exe().expect("this program");
        let child =
            Command::new(program).args(["--exact", "hunt", "--nocapture"]).env("COPPICE_MUTANT", mutant).output();
        let output = String::from_utf8_lossy(&child.expect("the hunt runs").stdout).into_owned();
        match output.lines().find_map(|line| line.find("CAUGHT").map(|at| &line[at..])) {
            Some(line) => println!("{line}"),
            None => {
                println!("ESCAPED {mutant}");
                escaped.push(*mutant);
            }
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}
