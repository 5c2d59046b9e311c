//! Shows that planted bugs are caught. A planted bug is on for a whole process, so each gets one of its own.

use std::process::{Command, ExitCode};
use std::time::SystemTime;

use coppice_check::diff;
pub use coppice_testkit::caught::{CAUGHT, Planted, QUICK_SEEDS};
use coppice_testkit::hazards::{HAZARDS, NOT_APPLICABLE, OTHERS};
use coppice_testkit::variant::{manifest, run_with};
use coppice_tidy::directed_test;

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
    /// Also run the directed tests, which have to catch the others: `cargo test --features mutants -- --include-ignored
    /// caught`.
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
    let sources = coppice_tidy::sources().unwrap_or_default();
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
    let sources = coppice_tidy::sources().unwrap_or_default();
    let (mut directed, mut unknown) = (0, 0);
    for (id, name) in everybody().filter(|(_, name)| !CAUGHT.iter().any(|planted| planted.name == *name)) {
        if let Some((_, why)) = NOT_APPLICABLE.iter().find(|(known, _)| *known == name) {
            println!("{name:<28} not applicable: {why}");
        } else if diff::MUTANTS.contains(&name) {
            directed += 1;
            println!("{name:<28} by `coppice-check diff --mutants`, and tests/cluster/tests/checker_mutants.rs");
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
    let ended = cargo.args(["--", "--include-ignored", "caught"]).status();
    ended.inspect_err(|error| println!("cargo: {error}")).is_ok_and(|status| status.success())
}

/// Builds this program with planted bugs, and runs that with the same words.
pub(super) fn with_mutants() -> ExitCode {
    ExitCode::from(run_with("mutants", env!("CARGO_PKG_NAME"), "coppice-sim", "planted bugs"))
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
        let sources = coppice_tidy::sources().expect("sources");
        let place = |name| directed_test(&sources, name).expect("a test");
        assert_eq!(place("no_lock"), "server/tests/datadir.rs: every_planted_bug_is_caught");
        assert_eq!(place("hint_unverified"), "btree/tests/mutants.rs: every_mutant_is_caught");
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
