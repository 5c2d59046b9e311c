//! Shows that planted bugs are caught. A planted bug is on for a whole process, so each gets one of its own.

use std::process::{Command, ExitCode};

/// A planted bug that seeds of the simulator must catch (reliability.md 6).
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
    planted("expire_by_clock", 200),
    planted("refused_after_propose", 600),
    planted("gate_two_partition", 400),
    planted("rounds_begin_anew", 400),
    planted("executor_stands_still", 400),
    planted("install_default_limits", 400),
    planted("fork_undecided", 400),
    planted("fork_no_ticket", 400),
    planted("fork_no_sessions", 400),
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
];

/// Seeds for a planted bug that is not on the list.
const SEEDS: u64 = 200;

/// Runs a sweep under each planted bug and prints what caught it.
pub fn main(names: &[String], seeds: Option<u64>, jobs: usize) -> ExitCode {
    if !cfg!(feature = "mutants") {
        eprintln!("error: this program was built without planted bugs: build it with --features mutants");
        return ExitCode::from(2);
    }
    let known = |name: &str| CAUGHT.iter().find(|planted| planted.name == name).map(|planted| planted.seeds);
    let chosen: Vec<&str> = match names {
        [] => CAUGHT.iter().map(|planted| planted.name).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    let limit = |name: &str| seeds.or_else(|| known(name)).unwrap_or(SEEDS);
    let survived: Vec<&str> = chosen.iter().copied().filter(|name| !caught(name, limit(name), jobs)).collect();
    if survived.is_empty() {
        println!("{} planted bugs, all caught", chosen.len());
        return ExitCode::SUCCESS;
    }
    println!("{} of {} planted bugs survived: {}", survived.len(), chosen.len(), survived.join(" "));
    ExitCode::FAILURE
}

fn caught(name: &str, seeds: u64, jobs: usize) -> bool {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            println!("{name:<28} not run: {error}");
            return false;
        }
    };
    let mut command = Command::new(program);
    command.args(["sweep", "--first", "--count", &seeds.to_string(), "--jobs", &jobs.to_string()]);
    let output = match command.env("COPPICE_MUTANT", name).output() {
        Ok(output) => output,
        Err(error) => {
            println!("{name:<28} not run: {error}");
            return false;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = said.lines().find_map(|line| line.strip_prefix("seed ")?.split_once(" FAILED: "));
    match failed {
        Some((seed, what)) => {
            let what: String = what.chars().take(90).collect();
            println!("{name:<28} caught after {:>4} seeds by {what}", seed.parse().unwrap_or(0) + 1);
            true
        }
        None => {
            println!("{name:<28} SURVIVED {seeds} seeds");
            false
        }
    }
}
