//! Shows that planted bugs are caught. A planted bug is on for a whole process, so each gets one of its own.

use std::process::{Command, ExitCode};

/// Planted bugs that seeds of the simulator must catch (reliability.md 6).
pub const CAUGHT: &[&str] = &[
    "vote_before_flush",
    "round_in_memory",
    "noop_early",
    "decided_by_number",
    "ack_over_gap",
    "deaf_leader_stays",
    "reply_at_execute",
    "match_by_instance",
    "retry_flush",
    "no_dir_flush",
    "trim_early",
    "enospc_ignored",
    "refuse_torn_tail",
    "undo_insert",
    "undo_put",
    "undo_delete",
    "client_retry_renumbered",
    "client_unsure_is_sure",
    "snapshot_at_tip",
    "follower_no_wait",
    "stale_from_tip",
    "snap_no_sessions",
    "snap_no_ticket",
    "snap_no_conf",
    "undo_no_session",
    "undo_no_ticket",
    "highest_only",
    "repeat_recomputed",
    "gate_off",
    "gate_two_partition",
];

/// Runs a sweep under each planted bug and prints what caught it.
pub fn main(names: &[String], seeds: u64, jobs: usize) -> ExitCode {
    if !cfg!(feature = "mutants") {
        eprintln!("error: this program was built without planted bugs: build it with --features mutants");
        return ExitCode::from(2);
    }
    let chosen: Vec<&str> = match names {
        [] => CAUGHT.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    let survived: Vec<&str> = chosen.iter().copied().filter(|name| !caught(name, seeds, jobs)).collect();
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
