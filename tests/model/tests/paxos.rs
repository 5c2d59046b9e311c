//! The short form of the exhaustive search of one group: worlds of one instance; `coppice-sim model` searches more of
//! them. And what it must find: planted bugs, and the voter that forgot what it promised (hazards.md 7).

use coppice_model::paxos::{Bounds, WORLDS_SMALL, worlds};
use coppice_model::search::{Found, Limits, explore};

fn world(name: &str) -> Bounds {
    let found = worlds(3, 2, 2).into_iter().find(|(world, _)| *world == name);
    found.expect("a world of this name").1
}

fn search(bounds: &Bounds) -> Found {
    let found = explore(bounds, Limits::NONE);
    println!("{bounds}: {found}");
    found
}

#[test]
#[ignore = "long: every order of all worlds"]
fn every_order_of_small_groups_decides_one_value() {
    for name in WORLDS_SMALL {
        let found = search(&world(name));
        if let Some((why, story)) = &found.violation {
            story.iter().for_each(|line| println!("  {line}"));
            panic!("{name}: {why}");
        }
        assert!(found.exhausted && found.ended > 0, "{name}: nothing ever ends");
    }
}

#[test]
#[ignore = "long: a world of many states"]
fn a_lost_disk_under_its_old_id_decides_twice() {
    let found = search(&world("a lost disk under its old id"));
    let (why, _) = found.violation.expect("a violation");
    assert!(why.contains("is decided again") || why.contains("takes a value for decided"), "{why}");
}

#[cfg(feature = "mutants")]
mod mutants {
    use std::process::Command;

    use super::{search, world};

    /// What the search must find, and in which world.
    const FOUND_IN: &[(&str, &str)] = &[
        ("vote_before_flush", "a crash"),
        ("round_in_memory", "a crash"),
        ("first_value_wins", "a third campaign"),
        ("noop_early", "all instances"),
        ("one_ballot_field", "a third campaign"),
        ("decided_by_number", "news from any replica"),
    ];

    /// Runs in the child process; prints what was found.
    #[cfg(feature = "mutants")]
    #[test]
    fn how_a_mutant_is_caught() {
        let Ok(mutant) = std::env::var("COPPICE_MUTANT") else { return };
        std::panic::set_hook(Box::new(|_| {}));
        let (_, name) = FOUND_IN.iter().find(|(name, _)| *name == mutant).expect("a line in FOUND_IN");
        if let Some((why, story)) = search(&world(name)).violation {
            println!("CAUGHT after {} actions: {}", story.len(), why.lines().next().unwrap_or_default());
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn every_mutant_is_caught_by_the_search() {
        if std::env::var("COPPICE_MUTANT").is_ok() {
            return;
        }
        let program = std::env::current_exe().expect("this program");
        let mut escaped = Vec::new();
        for (mutant, name) in FOUND_IN {
            let mut child = Command::new(&program);
            child.args(["--exact", "mutants::how_a_mutant_is_caught", "--nocapture"]).env("COPPICE_MUTANT", mutant);
            let output = child.output().expect("the search runs");
            let said = String::from_utf8_lossy(&output.stdout);
            match said.lines().find_map(|line| line.find("CAUGHT").map(|at| &line[at..])) {
                Some(line) => println!("{mutant}: in the world `{name}`: {line}"),
                None => escaped.push(*mutant),
            }
        }
        assert!(escaped.is_empty(), "not found: {escaped:?}");
    }
}
