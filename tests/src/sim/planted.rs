//! Shows that planted bugs are caught. A planted bug is on for a whole process, so each gets one of its own.

use std::process::{Command, ExitCode};
use std::time::SystemTime;

use crate::check::diff;
use crate::hazards::{HAZARDS, NOT_APPLICABLE, OTHERS};
use crate::tidy::directed_test;
use crate::variant::{manifest, run_with};

/// A planted bug that seeds of the simulator must catch (hazards.md 6).
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// Its name.
    pub name: &'static str,
    /// Seeds, from 0 on, of which one shows it.
    pub seeds: u64,
}

const fn planted(name: &'static str, seeds: u64) -> Planted {
    Planted { name, seeds }
}

/// Planted bugs that so many seeds show are looked for in plain `cargo test` too.
pub const QUICK_SEEDS: u64 = 200;

/// The one list of them.
pub const CAUGHT: &[Planted] = &[
    planted("vote_before_flush", 400),
    planted("round_in_memory", 400),
    planted("noop_early", 400),
    planted("decided_by_number", 400),
    planted("ack_over_gap", 400),
    planted("deaf_leader_stays", 400),
    planted("reply_at_execute", 400),
    planted("match_by_instance", 400),
    planted("retry_flush", 400),
    planted("no_dir_flush", 400),
    planted("checkpoint_unflushed", 400),
    planted("checkpoint_name_unflushed", 400),
    planted("present_name_unflushed", 4_000),
    planted("install_in_place", 400),
    planted("two_snapshots", 1_000),
    planted("trim_early", 400),
    planted("enospc_ignored", 400),
    planted("refuse_torn_tail", 400),
    planted("undo_insert", 400),
    planted("undo_put", 400),
    planted("undo_delete", 400),
    planted("client_retry_renumbered", 400),
    planted("client_unsure_is_sure", 400),
    planted("snapshot_at_tip", 200),
    planted("follower_no_wait", 200),
    planted("stale_from_tip", 200),
    planted("snap_no_sessions", 200),
    planted("limits_unlogged", 200),
    planted("undo_no_limits", 400),
    planted("install_default_limits", 400),
    planted("snap_no_ticket", 200),
    planted("snap_no_conf", 200),
    planted("undo_no_session", 200),
    planted("undo_no_ticket", 200),
    planted("highest_only", 200),
    planted("repeat_recomputed", 200),
    planted("gate_off", 200),
    planted("gate_skips_reads", 200),
    planted("follower_gate_at_told", 200),
    planted("part_undecided", 200),
    planted("part_at_tip", 200),
    planted("part_old", 200),
    planted("hash_order", 400),
    planted("dedupe_at_propose", 200),
    planted("acked_executes", 400),
    planted("session_reopened", 400),
    planted("expire_by_clock", 600),
    planted("refused_after_propose", 6_000),
    planted("gate_two_partition", 400),
    planted("rounds_begin_anew", 400),
    planted("executor_stands_still", 400),
    planted("fork_undecided", 400),
    planted("fork_no_ticket", 400),
    planted("fork_again", 400),
    planted("snapshot_skips_fork", 400),
    planted("bounds_at_routing", 400),
    planted("read_ignores_split", 400),
    planted("split_released_early", 400),
    planted("split_voided", 400),
    planted("one_ballot_field", 400),
    planted("first_value_wins", 400),
    planted("ignore_trimmed_upto", 400),
    planted("conf_in_pipe", 400),
    planted("old_quorum", 400),
    planted("learner_votes", 400),
    planted("removed_votes", 400),
    planted("removed_deleted_early", 400),
    planted("decision_held_in_memory", 400),
    planted("shed_unflushed", 400),
    planted("undo_unbounded", 400),
    planted("no_first_place", 400),
    planted("no_prev_check", 400),
    planted("no_void", 400),
    planted("place_twice", 400),
    planted("placed_above_hole", 400),
    planted("placed_once", 400),
    planted("prev_none_again", 400),
    planted("released_guessed", 400),
    planted("released_once", 400),
    planted("void_unlinked", 400),
    planted("merge_no_end", 400),
    planted("merge_drops_sessions", 400),
    planted("refusal_stored", 400),
    planted("old_ballot_counts", 400),
    planted("cut_by_other_map", 400),
    planted("cut_at_first_bad", 400),
    planted("round_reused", 6_000),
    planted("read_before_takeover", 600),
    planted("amnesiac_votes", 200),
    planted("catch_panic", 200),
    planted("gate_skips_repeats", 400),
    planted("late_placed_completes", 400),
    planted("void_moves_watermark", 400),
    planted("confirm_before_placed", 6_000),
    planted("conf_one_phase1", 6_000),
    planted("parts_by_query", 400),
    planted("client_no_complete", 2_000),
    planted("lease_survives_move", 1_000),
    planted("complete_unconfirmed", 6_000),
    planted("read_unconfirmed", 4_000),
    planted("collects_once", 400),
    planted("validates_anything", 400),
    planted("gathers_once", 400),
    planted("range_no_snapshot", 400),
    planted("undo_forward", 400),
    planted("checksum_no_position", 400),
    planted("wrong_file_unused", 200),
    planted("overwritten_is_heard", 400),
    planted("frame_checksum_unchecked", 400),
    planted("frame_length_unchecked", 400),
    planted("silent_responder", 400),
    planted("letters_end_at_worker", 400),
    planted("answers_end_at_worker", 400),
    planted("messages_end_at_worker", 400),
    planted("requests_end_at_worker", 400),
    planted("mute_speaks", 400),
    planted("places_unlearned", 400),
    planted("neighbours_end_at_worker", 400),
    planted("room_of_one", 400),
    planted("released_untold", 400),
    planted("map_before_changes", 400),
];

/// Seeds for a planted bug that is not on the list.
const SEEDS: u64 = 200;

/// Always part of `--smoke`: one of each kind of rule, both wrong gates among them.
const SMOKE: [&str; 12] = [
    "gate_off",
    "gate_two_partition",
    "vote_before_flush",
    "round_in_memory",
    "first_value_wins",
    "decided_by_number",
    "reply_at_execute",
    "undo_no_session",
    "fork_no_ticket",
    "snap_no_sessions",
    "dedupe_at_propose",
    "follower_no_wait",
];
/// Others in a run of `--smoke`, of another part of the list each day.
const SMOKE_ROTATING: usize = 8;
/// Those that take more seeds than this are for a whole run: a smoke test takes minutes.
const SMOKE_SEEDS_MAX: u64 = 600;

/// `mutants`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these, separated by commas.
    #[arg(long, alias = "only", value_delimiter = ',')]
    names: Vec<String>,
    /// Twelve of them, and eight that are others each day.
    #[arg(long, conflicts_with = "names")]
    smoke: bool,
    /// Seeds per planted bug at most, instead of those that the list gives it.
    #[arg(long, alias = "seeds-max")]
    seeds: Option<u64>,
    /// Threads per planted bug.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Also run the directed tests, which have to catch the others: `cargo test --features mutants -- caught`.
    #[arg(long, conflicts_with = "smoke")]
    directed: bool,
}

/// Runs a sweep under each planted bug and prints what caught it. Needs the feature `mutants`: a program without it
/// builds one that has it, and runs that.
pub fn main(arguments: &Arguments) -> ExitCode {
    let chosen = chosen(arguments);
    if let Some(strange) = chosen.iter().find(|name| !everybody().any(|(_, known)| known == **name)) {
        eprintln!("error: no planted bug is called `{strange}`; `coppice-sim mutants` without names lists all");
        return ExitCode::from(2);
    }
    if !cfg!(feature = "mutants") {
        return with_mutants();
    }
    let known = |name: &str| CAUGHT.iter().find(|planted| planted.name == name).map(|planted| planted.seeds);
    let limit = |name: &str| arguments.seeds.or_else(|| known(name)).unwrap_or(SEEDS);
    let (mut survived, mut after) = (Vec::new(), Vec::new());
    for name in &chosen {
        match caught(name, limit(name), arguments.jobs) {
            Some(seeds) => after.push(seeds),
            None => survived.push(*name),
        }
    }
    after.sort_unstable();
    let whole = arguments.names.is_empty() && !arguments.smoke;
    let known = !whole || others();
    let (median, most) = (after.get(after.len() / 2).copied().unwrap_or(0), after.last().copied().unwrap_or(0));
    let directed = !arguments.directed || directed_tests();
    if survived.is_empty() {
        println!("{} planted bugs, all caught: after {median} seeds in the median, {most} at most", chosen.len());
        return if directed && known { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    println!("{} of {} planted bugs survived: {}", survived.len(), chosen.len(), survived.join(" "));
    let sources = crate::tidy::sources().unwrap_or_default();
    for name in survived {
        if let Some(place) = directed_test(&sources, name) {
            println!("{name:<28} is caught by a directed test: {place}");
        }
    }
    ExitCode::FAILURE
}

fn chosen(arguments: &Arguments) -> Vec<&str> {
    if !arguments.names.is_empty() {
        return arguments.names.iter().map(String::as_str).collect();
    }
    if !arguments.smoke {
        return CAUGHT.iter().map(|planted| planted.name).collect();
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    smoke((since.as_secs() / 86_400) as usize)
}

/// The usual ones, and those of this day.
fn smoke(day: usize) -> Vec<&'static str> {
    let quick = CAUGHT.iter().filter(|planted| planted.seeds <= SMOKE_SEEDS_MAX).map(|planted| planted.name);
    let rest: Vec<&str> = quick.filter(|name| !SMOKE.contains(name)).collect();
    let turning = (0..SMOKE_ROTATING).map(|number| rest[(day * SMOKE_ROTATING + number) % rest.len()]);
    SMOKE.into_iter().chain(turning).collect()
}

/// All planted bugs, each with the row of the table that it belongs to, if to any.
fn everybody() -> impl Iterator<Item = (&'static str, &'static str)> {
    let table = HAZARDS.iter().flat_map(|hazard| hazard.mutants.iter().map(move |mutant| (hazard.id, mutant.name)));
    table.chain(OTHERS.iter().map(|name| ("", *name)))
}

/// Those that the simulator does not look for: who catches them, or why there is nothing to catch. False: nobody knows.
fn others() -> bool {
    let sources = crate::tidy::sources().unwrap_or_default();
    let (mut directed, mut unknown) = (0, 0);
    for (id, name) in everybody().filter(|(_, name)| !CAUGHT.iter().any(|planted| planted.name == *name)) {
        if let Some((_, why)) = NOT_APPLICABLE.iter().find(|(known, _)| *known == name) {
            println!("{name:<28} not applicable: {why}");
        } else if diff::MUTANTS.contains(&name) {
            directed += 1;
            println!("{name:<28} by `coppice-check diff --mutants`, and tests/tests/checker_mutants.rs");
        } else if let Some(place) = directed_test(&sources, name) {
            directed += 1;
            println!("{name:<28} by a directed test{}{id}: {place}", if id.is_empty() { "" } else { " of " });
        } else {
            unknown += 1;
            println!("{name:<28} NOTHING is known to catch it");
        }
    }
    println!("{directed} planted bugs are caught by directed tests, not by seeds: run them with --directed");
    unknown == 0
}

fn directed_tests() -> bool {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--workspace", "--features", "mutants", "--locked", "--manifest-path"]).arg(manifest());
    let ended = cargo.args(["--", "caught"]).status();
    ended.inspect_err(|error| println!("cargo: {error}")).is_ok_and(|status| status.success())
}

/// Builds this program with planted bugs, and runs that with the same words.
pub(super) fn with_mutants() -> ExitCode {
    ExitCode::from(run_with("mutants", "coppice-sim", "planted bugs"))
}

/// After how many seeds it is caught. A seed that fails without the planted bug too has found something else.
fn caught(name: &str, seeds: u64, jobs: usize) -> Option<u64> {
    let sweep = ["sweep", "--first", "--count", &seeds.to_string(), "--jobs", &jobs.to_string()];
    let (_, said) = run(name, Some(name), &sweep)?;
    let failed = said.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(" FAILED: "));
    let Some((seed, what)) = failed else {
        println!("{name:<28} SURVIVED {seeds} seeds");
        return None;
    };
    let what: String = what.chars().take(90).collect();
    if !run(name, None, &["replay", seed])?.0 {
        println!("{name:<28} NOT CAUGHT: seed {seed} fails without it too; with it by {what}");
        return None;
    }
    let seeds = seed.parse().unwrap_or(0) + 1;
    println!("{name:<28} caught after {seeds:>4} seeds by {what}");
    Some(seeds)
}

/// Runs this program with these words, under a planted bug or none: whether all went well, and what it said.
fn run(name: &str, planted: Option<&str>, words: &[&str]) -> Option<(bool, String)> {
    let output = std::env::current_exe().and_then(|program| {
        Command::new(program).args(words).env("COPPICE_MUTANT", planted.unwrap_or_default()).output()
    });
    match output {
        Ok(output) => Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) => {
            println!("{name:<28} not run: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_planted_bug_it_is_known_what_catches_it() {
        assert!(others());
        let sources = crate::tidy::sources().expect("sources");
        let place = |name| directed_test(&sources, name).expect("a test");
        assert_eq!(place("no_lock"), "server/tests/datadir.rs: every_planted_bug_is_caught");
        assert_eq!(place("way_unverified"), "btree/tests/mutants.rs: every_mutant_is_caught");
    }

    #[test]
    fn smoke_turns_through_all_that_few_seeds_show() {
        let met: std::collections::BTreeSet<&str> = (0..CAUGHT.len()).flat_map(smoke).collect();
        let few = |planted: &&Planted| planted.seeds <= SMOKE_SEEDS_MAX;
        let quick: std::collections::BTreeSet<&str> = CAUGHT.iter().filter(few).map(|planted| planted.name).collect();
        assert_eq!(met, quick);
        assert!((0..30).all(|day| smoke(day).len() == SMOKE.len() + SMOKE_ROTATING));
    }
}
