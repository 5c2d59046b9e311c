//! The small worlds of the multicast, each searched whole.

use coppice_model::search::{Limits, explore};
use coppice_model::tickets::{WEAK, WORLDS};

/// Walks through the world of this name; panics where a rule is broken, with the way there.
pub fn search(name: &str) {
    let (_, bounds) = WORLDS.iter().find(|(world, _)| *world == name).expect("a world of this name");
    let found = explore(&bounds(), Limits::NONE);
    println!("{name}: {found}");
    if let Some((why, story)) = &found.violation {
        story.iter().for_each(|line| println!("  {line}"));
        panic!("{why}");
    }
    assert!(found.exhausted && found.ended > 0, "{name}: nothing ever ends");
}

#[test]
fn every_order_of_a_coordinator_that_times_out_is_linearizable() {
    search("timeout");
}

/// The largest world has a test of its own, so that it runs beside the others.
#[test]
#[ignore = "long: the world of most states"]
fn every_order_of_a_zombie_coordinator_is_linearizable() {
    search("zombie");
}

/// But for the two of three partitions with most states, which `coppice-sim model` alone searches, with all
/// optimisations: `read twice, of three` in `.ci/run`, `lazy of three` takes two minutes.
#[test]
#[ignore = "long: every order of all worlds"]
fn every_order_of_the_other_small_worlds_is_linearizable() {
    let others = WORLDS
        .iter()
        .filter(|(name, _)| !["timeout", "zombie", "lazy of three", "read twice, of three"].contains(name));
    others.for_each(|(name, _)| search(name));
}

/// Ranges that are read twice need the second reading, all of the first before it, its confirmation, and the gate.
#[test]
#[ignore = "long: every order of weakened worlds"]
fn ranges_read_twice_without_what_it_takes_are_found_out() {
    for (name, bounds) in WEAK {
        let found = explore(&bounds(), Limits::NONE);
        println!("{name}: {found}");
        let (why, _) = found.violation.unwrap_or_else(|| panic!("{name}: nothing found"));
        assert!(why.contains("no order explains"), "{name}: {why}");
    }
}
