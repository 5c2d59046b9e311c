//! Every planted bug is caught (hazards.md 6). `cargo test -p coppice-ordering --features mutants --test mutants
//! -- --include-ignored`.
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

/// Who must catch which: a script, the gate's schedule, or random schedules alone.
const CAUGHT_BY: &[(&str, &str)] = &[
    ("vote_before_flush", "px01_no_vote_before_it_is_durable"),
    ("round_in_memory", "px02_no_round_before_it_is_durable"),
    ("one_ballot_field", "px04_the_highest_ballot_wins"),
    ("first_value_wins", "px04_the_highest_ballot_wins"),
    ("noop_early", "px05_a_hole_is_declared_by_a_quorum"),
    ("ignore_trimmed_upto", "px06_trimmed_is_not_a_hole"),
    ("decided_by_number", "px07_decided_upto_is_of_one_ballot"),
    ("ack_over_gap", "px08_a_vote_covers_no_gap"),
    ("conf_in_flight", "px18_phase1_again_under_an_adopted_configuration"),
    ("old_quorum", "px19_removed_replicas_stay_until_they_are_replaced"),
    ("learner_votes", "px10_learners_are_in_no_quorum"),
    ("removed_votes", "px19_removed_replicas_stay_until_they_are_replaced"),
    ("rounds_begin_anew", "px20_a_configuration_outranks_what_was_proposed_beside_it"),
    ("install_moves_no_executor", "a_snapshot_takes_the_place_of_what_the_executor_waits_at"),
    ("deaf_leader_stays", "px13_a_deaf_leader_resigns"),
    ("conf_one_phase1", "px18_phase1_again_under_an_adopted_configuration"),
    ("removed_deleted_early", "px19_removed_replicas_stay_until_they_are_replaced"),
    ("undo_unbounded", "sp09_a_leader_without_a_quorum_fills_its_window_and_no_more"),
    ("lease_survives_move", "mv07_a_removed_leader_has_no_lease"),
    ("wait_own_flush", "st11_the_leaders_slow_disk_holds_nobody_back"),
    ("reply_at_execute", "gate"),
    ("gate_off", "gate"),
    ("read_unconfirmed", "rd01_a_deposed_leader_answers_no_read"),
    ("round_reused", "rd02_an_acknowledgement_of_an_earlier_round_confirms_nothing"),
    ("late_ack_counts", "rd02_an_acknowledgement_of_an_earlier_round_confirms_nothing"),
    ("any_decision_confirms", "rd03_a_decision_of_an_earlier_instance_confirms_nothing"),
    ("read_before_takeover", "rd05_a_new_leader_reads_nothing_before_it_has_executed_all"),
    ("lease_no_margin", "rd06_a_lease_ends_early_enough"),
    ("foreign_decision_confirms", "rd11_a_decision_of_another_ballot_confirms_nothing"),
    ("lease_forgotten", "rd12_a_lease_outlives_a_restart"),
    ("lease_survives_transfer", "rd06_a_lease_ends_with_a_leader_transfer"),
    ("transfer_unanswered", "leader_transfer"),
    ("transfer_pauses_on", "leader_transfer"),
    ("decision_held_in_memory", "seed"),
    ("serves_twice_in_a_ballot", "a_leader_serves_once_in_a_ballot"),
    ("quiescence_outlives_leader", "a_group_with_nothing_to_do_quiesces"),
    ("quiescence_is_silence", "a_group_with_nothing_to_do_quiesces"),
    ("quiesces_without_the_lost", "a_leader_does_not_quiesce_without_those_that_it_lost"),
    ("stands_without_room", "st10_a_leader_stays_while_no_log_has_room"),
    ("late_position_counts", "rd02_an_answer_to_an_earlier_run_answers_nothing"),
    ("question_of_another_ballot", "rd15_a_question_confirms_no_leader_whom_the_asker_has_left"),
    ("leader_deaf_to_watermarks", "a_follower_tells_its_leader_what_is_released"),
    ("deaf_leader_is_mute", "px13_a_deaf_leader_resigns"),
    ("few_asked_for_ever", "reads_are_confirmed"),
];

/// They break liveness: a script that prints something else has caught them.
const LIVENESS: &[&str] = &[
    "deaf_leader_stays",
    "install_moves_no_executor",
    "wait_own_flush",
    "serves_twice_in_a_ballot",
    "quiescence_outlives_leader",
    "quiescence_is_silence",
    "quiesces_without_the_lost",
    "stands_without_room",
    "question_of_another_ballot",
    "leader_deaf_to_watermarks",
    "deaf_leader_is_mute",
    "transfer_unanswered",
    "transfer_pauses_on",
    "few_asked_for_ever",
];

fn scripts() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).expect("scripts").map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).expect("a script"))).collect()
}

/// Schedule A of hazards.md 6 at P1, and a write that is not decided.
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
fn how_a_mutant_is_caught() {
    let Ok(mutant) = std::env::var("COPPICE_MUTANT") else { return };
    std::panic::set_hook(Box::new(|_| {}));
    let mut caught = caught_by(play_gate).map(|why| format!("gate: {why}")).into_iter().collect::<Vec<String>>();
    // HUNT_RANDOM=1 leaves the scripts out: how good are the random schedules alone?
    let random_only = std::env::var("HUNT_RANDOM").is_ok();
    for (name, text) in scripts().into_iter().filter(|_| !random_only) {
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
    let (_, who) = CAUGHT_BY.iter().find(|(name, _)| *name == mutant).expect("a line in CAUGHT_BY");
    let who = if random_only { "seed" } else { who };
    if let Some(how) = caught.iter().find(|how| how.starts_with(who)) {
        let random = caught.get(by_hand).map_or("no seed", String::as_str);
        println!("CAUGHT {mutant}: {how}; {by_hand} scripts; {random}");
    } else {
        println!("NOT BY {who}: {caught:?}");
    }
}

#[test]
fn every_mutant_is_to_be_caught_by_somebody() {
    let listed: Vec<&str> = CAUGHT_BY.iter().map(|(mutant, _)| *mutant).collect();
    assert_eq!(listed, mutants::PAXOS);
}

#[test]
#[ignore = "long: every planted bug, each in a process of its own"]
fn every_mutant_is_caught() {
    if std::env::var("COPPICE_MUTANT").is_ok() {
        return;
    }
    let only = std::env::var("HUNT_ONLY").unwrap_or_default();
    let mut escaped = Vec::new();
    for mutant in mutants::PAXOS.iter().filter(|mutant| mutant.contains(&only)) {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "how_a_mutant_is_caught", "--nocapture"])
            .env("COPPICE_MUTANT", mutant)
            .output();
        let output = String::from_utf8_lossy(&child.expect("the hunt runs").stdout).into_owned();
        match output.lines().find_map(|line| line.find("CAUGHT").map(|at| &line[at..])) {
            Some(line) => println!("{line}"),
            None => {
                println!("ESCAPED {mutant}: {}", output.lines().find(|line| line.contains("NOT BY")).unwrap_or(""));
                escaped.push(*mutant);
            }
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}
