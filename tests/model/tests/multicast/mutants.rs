//! Every planted bug of the multicast is caught by the script that was written for it (hazards.md 6), and those of
//! the release rule by the exhaustive search too:
//! `cargo test -p coppice-model --features mutants --test multicast`.
//!
//! A mutant is on for a whole process, so this program starts itself once per mutant.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use coppice_model::tickets::scripts::SCRIPTS;
use coppice_ordering::mutants;

use crate::explore::search;
use crate::scripts::all;

/// Who must catch which.
const CAUGHT_BY: &[(&str, &str)] = &[
    ("gate_off", "a_two_partitions"),
    ("gate_two_partition", "b_three_partitions"),
    ("no_first_place", "tk04_a_coordinator_dies_in_mid_place"),
    ("complete_unconfirmed", "c_zombie"),
    ("confirm_before_placed", "c_zombie"),
    ("old_ballot_counts", "tk06_an_older_ballot_after_a_newer_one"),
    ("released_guessed", "tk07_a_new_leader_guesses_no_watermark"),
    ("placed_once", "tk08_a_lost_watermark_is_told_again"),
    ("released_once", "tk08_a_lost_watermark_is_told_again"),
    ("no_prev_check", "d_lost_in_the_pipe"),
    ("place_twice", "tk10_every_place_comes_twice"),
    ("prev_none_again", "tk10_every_place_comes_twice"),
    ("late_placed_completes", "e_voided"),
    ("part_at_last_executed", "f_a_part_that_is_read_late"),
    ("part_old", "f_a_part_that_is_read_late"),
    ("void_unlinked", "tk12_a_voided_ticket_stays_in_the_chain"),
    ("void_moves_watermark", "tk13_voiding_a_later_ticket_frees_no_earlier_one"),
    ("placed_above_hole", "tk14_nothing_is_told_before_it_is_decided"),
    ("no_void", "tk18_a_partition_without_a_majority_blocks_nobody"),
    ("cut_by_other_map", "mv01_a_query_is_cut_by_the_map_of_its_ticket"),
    ("fork_no_ticket", "mv04_a_child_starts_with_its_parents_last_ticket"),
    ("split_released_early", "mv06_a_split_is_released_by_parent_and_child"),
    ("split_voided", "mv09_a_split_is_never_voided"),
];

/// What the exhaustive search must find too, in which world: first of all the weakened release rules.
const FOUND_IN: &[(&str, &str)] = &[
    ("gate_off", "leaders"),
    ("gate_two_partition", "triangle"),
    ("complete_unconfirmed", "zombie"),
    ("confirm_before_placed", "zombie"),
    ("released_guessed", "leaders"),
    ("placed_above_hole", "leaders"),
    ("no_prev_check", "triangle"),
    ("late_placed_completes", "timeout"),
    ("fork_no_ticket", "split"),
    ("cut_by_other_map", "split"),
];

fn caught_by(what: impl FnOnce()) -> Option<String> {
    let why = catch_unwind(AssertUnwindSafe(what)).err()?;
    let text = why.downcast_ref::<String>().cloned();
    let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
    Some(text.lines().next().unwrap_or_default().to_owned())
}

/// Runs in the child process; prints how the mutant was caught.
#[test]
fn how_a_mutant_is_caught() {
    if std::env::var("COPPICE_MUTANT").is_err() {
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    for (name, script) in all() {
        if let Some(why) = caught_by(script) {
            println!("CAUGHT BY {name}: {why}");
        }
    }
    let mutant = std::env::var("COPPICE_MUTANT").unwrap_or_default();
    for (_, world) in FOUND_IN.iter().filter(|(name, _)| *name == mutant) {
        match caught_by(|| search(world)) {
            Some(why) => println!("FOUND IN {world}: {why}"),
            None => println!("NOT FOUND IN {world}"),
        }
    }
}

#[test]
fn every_mutant_is_caught_by_its_script() {
    if std::env::var("COPPICE_MUTANT").is_ok() {
        return;
    }
    let mut listed: Vec<&str> = CAUGHT_BY.iter().map(|(mutant, _)| *mutant).collect();
    // The gate is one of Paxos too, and parts are given by the server.
    let mut planted = [mutants::MULTICAST, &["gate_off", "part_at_last_executed", "part_old"]].concat();
    listed.sort_unstable();
    planted.sort_unstable();
    assert_eq!(listed, planted);
    for script in SCRIPTS {
        assert!(script.mutants.iter().all(|mutant| CAUGHT_BY.contains(&(mutant, script.name))), "{script:?}");
    }
    let program = std::env::current_exe().expect("this program");
    let mut escaped = Vec::new();
    for (mutant, script) in CAUGHT_BY {
        let mut child = Command::new(&program);
        let child = child
            .args(["--exact", "mutants::how_a_mutant_is_caught", "--nocapture"])
            .env("COPPICE_MUTANT", mutant)
            .output();
        let output = String::from_utf8_lossy(&child.expect("the hunt runs").stdout).into_owned();
        if let Some(line) = output.lines().find(|line| line.contains("FOUND IN")) {
            println!("{mutant}: {line}");
            if line.starts_with("NOT") {
                escaped.push(*mutant);
            }
        }
        let caught: Vec<&str> = output.lines().filter(|line| line.starts_with("CAUGHT BY")).collect();
        match caught.iter().find(|line| line.starts_with(&format!("CAUGHT BY {script}:"))) {
            Some(line) => println!("{mutant}: {line}; {} scripts", caught.len()),
            None => {
                println!("{mutant} ESCAPES {script}: {caught:#?}");
                escaped.push(*mutant);
            }
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}
