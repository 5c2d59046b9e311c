//! The program `coppice-sim`. Exit 0: all checks passed; 1: one failed; 2: it was called wrongly.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use coppice_check::event::Event;
use coppice_check::write::write;
use coppice_model::cli as model;

use super::coverage::Coverage;
use super::panics::{catch_panics, run_plan};
use super::plan::{Plan, Verdicts};
use super::schedule::Schedule;
use super::sweep::{Changes, Sweep};
use super::trace::Trace;
use super::watch::Limits;
use super::{during, exhaustive, failing, planted, scripts, shrink};

/// Whole clusters of the real pure code, in one thread from one seed (hazards.md 4).
#[derive(Debug, Parser)]
#[command(name = "coppice-sim", version)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// A run that takes longer has failed, in seconds of real time: most take less than one.
    #[arg(long, global = true, default_value_t = 300)]
    seed_seconds: u64,
    /// Of more memory than this, in MiB, the longest run is taken for the cause, and fails: most take less than 100.
    #[arg(long, global = true, default_value_t = 4_096)]
    memory_mib: u64,
}

/// How far runs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Phase {
    /// Every operation ends after the faults.
    Liveness,
    /// And all replicas are equal, and the history is right.
    Audit,
}

/// A seed: a number, or one of base 16 behind `0x`.
fn seed(text: &str) -> Result<u64, String> {
    let (digits, base) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let seed = u64::from_str_radix(digits, base);
    seed.map_err(|error| format!("a seed is a number of 64 bits, as 8740 or 0x2224: {error}"))
}

/// A name and a value that fit a plan.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE")?;
    Plan::of(0).set(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run many seeds.
    Sweep {
        /// First seed.
        #[arg(long, default_value = "0", value_parser = seed)]
        from: u64,
        /// How many.
        #[arg(long, default_value_t = 1_000)]
        count: u64,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Run every seed twice and compare the hashes of their steps.
        #[arg(long)]
        twice: bool,
        /// Run every Nth seed twice and compare.
        #[arg(long, default_value_t = 0)]
        twice_every: u64,
        /// Stop at the first failure.
        #[arg(long)]
        first: bool,
        /// Judge by these: certificate, search; separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "certificate,search")]
        #[arg(value_parser = ["certificate", "search"])]
        checker: Vec<String>,
        /// How far each run goes: to the end of the liveness phase, or of the audit.
        #[arg(long, value_enum, default_value = "audit")]
        phase: Phase,
        /// Not as the seeds draw it, such as retries=50%, speculation=both, reads=lease; separated by commas.
        #[arg(long, value_delimiter = ',', value_parser = setting, value_name = "NAME=VALUE")]
        set: Vec<(String, String)>,
        /// Fail if a coverage mark was met less often, and print the rarest.
        #[arg(long)]
        coverage_min: Option<u64>,
    },
    /// Run one seed, or a schedule, again, with a trace.
    Replay {
        /// A seed, or the file of a schedule.
        what: String,
        /// Write every step there.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Write the history and the logs there, for `coppice-check`.
        #[arg(long)]
        history: Option<PathBuf>,
    },
    /// Make a failing seed's faults and operations few, then its clients, nodes, partitions and keys.
    Shrink {
        /// Which.
        #[arg(value_parser = seed)]
        seed: u64,
        /// Runs at most.
        #[arg(long, default_value_t = 2_000)]
        runs: u32,
        /// Write every step of the short run there.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Write the short run there [default: SEED.json]
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Play schedules A to F and those of the past, each also with its planted bugs, with which it must fail.
    Scripts(scripts::Arguments),
    /// A crash at every place of a small run: between every two effects.
    CrashEvery(exhaustive::CrashEvery),
    /// A fault of the disk at every place of a small run.
    IoEvery(exhaustive::IoEvery),
    /// One byte changed, at each offset of the logs and checkpoints that a small run leaves.
    Rot(exhaustive::Rot),
    /// The short form of crash-every and io-every: a crash between every two effects, an error at every I/O.
    Exhaustive {
        /// Operations of the run.
        #[arg(long, default_value_t = 40)]
        ops: u32,
        /// Only every so manieth place.
        #[arg(long, default_value_t = 1)]
        step: usize,
    },
    /// Show that planted bugs are caught: by which check, after how many seeds.
    Mutants(planted::Arguments),
    /// How long clients wait while a cut lasts that leaves a majority.
    Cuts(during::Arguments),
    /// Every order of every event of small worlds, over the real cores.
    Model(model::Arguments),
}

/// Runs the program.
pub fn main() -> ExitCode {
    catch_panics();
    let Args { verb, seed_seconds, memory_mib } = match coppice_usage::parse() {
        Ok(args) => args,
        Err(exit) => return exit,
    };
    Limits { seed: Duration::from_secs(seed_seconds), memory_mib }.watch();
    match verb {
        Verb::Sweep { from, count, jobs, twice, twice_every, first, checker, phase, set, coverage_min } => {
            let twice_every = if twice { 1 } else { twice_every };
            let judged_by = |name: &str| checker.iter().any(|checker| checker == name);
            let judged = Verdicts {
                audit: phase == Phase::Audit,
                certificate: judged_by("certificate"),
                search: judged_by("search"),
            };
            let changes = Changes { judged, set };
            sweep(&Sweep { from, count, jobs, twice_every, first, quiet: false, changes }, coverage_min)
        }
        Verb::Replay { what, trace, history } => match planned(&what) {
            Ok(plan) => replay(plan, trace, history),
            Err(error) => coppice_usage::refuse::<Args>(&error),
        },
        Verb::Shrink { seed, runs, trace, out } => match shrink::shrink(seed, runs) {
            Some(plan) => {
                let out = out.unwrap_or_else(|| format!("{seed}.json").into());
                // The environment names the planted bug, if it was one that failed.
                let mutant = std::env::var("COPPICE_MUTANT").ok().filter(|name| !name.is_empty());
                match Schedule::new(format!("seed {seed}"), mutant, plan.clone()).write(&out) {
                    Ok(()) => println!("replay with: coppice-sim replay {}", out.display()),
                    Err(error) => eprintln!("error: {error}"),
                }
                replay(plan, trace, None)
            }
            None => {
                println!("seed {seed} does not fail");
                ExitCode::SUCCESS
            }
        },
        Verb::Scripts(arguments) => scripts::main(&arguments),
        Verb::CrashEvery(arguments) => exhaustive::crash_every(&arguments),
        Verb::IoEvery(arguments) => exhaustive::io_every(&arguments),
        Verb::Rot(arguments) => exhaustive::rot(&arguments),
        Verb::Exhaustive { ops, step } => exhaustive::main(ops, step),
        Verb::Mutants(arguments) => planted::main(&arguments),
        Verb::Cuts(arguments) => during::main(&arguments),
        Verb::Model(arguments) => model::main(&arguments),
    }
}

/// The plan of a seed, or that in a file.
fn planned(what: &str) -> Result<Plan, String> {
    match seed(what) {
        Ok(seed) => Ok(Plan::of(seed)),
        Err(_) => Schedule::read(Path::new(what)).map(|schedule| schedule.plan),
    }
}

/// Prints what was met least often; false: something less often than `least`.
fn is_covered(coverage: &Coverage, least: u64) -> bool {
    let all = coverage.rarest();
    let rare: Vec<&str> = all.iter().filter(|(_, count)| *count < least).map(|(name, _)| *name).collect();
    all.iter().take(rare.len().max(8)).for_each(|(name, count)| println!("{count:>9}  {name}"));
    if !rare.is_empty() {
        println!("less than {least} times: {}", rare.join("; "));
    }
    rare.is_empty()
}

fn sweep(sweep: &Sweep, coverage_min: Option<u64>) -> ExitCode {
    // Jobs take numbers a little beyond the last.
    if sweep.from.checked_add(sweep.count).is_none_or(|end| end.checked_add(sweep.jobs as u64).is_none()) {
        let (from, count) = (sweep.from, sweep.count);
        let what = format!("--from {from} and --count {count} go beyond the last seed, {}", u64::MAX);
        return coppice_usage::refuse::<Args>(&what);
    }
    let report = sweep.run();
    let seconds = report.took.as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s ({:.1} seeds/s): {} steps, {} operations answered, {} faults, {} failed",
        report.seeds,
        report.seeds as f64 / seconds,
        report.steps,
        report.answered,
        report.faults,
        report.failed.len()
    );
    let enough = coverage_min.is_none_or(|least| is_covered(&report.coverage, least));
    if report.failed.is_empty() && enough {
        return ExitCode::SUCCESS;
    }
    for (seed, failure) in &report.failed {
        println!("seed {seed}: {}: replay with: coppice-sim replay {seed:#x} --trace {seed}.trace", failure.check);
    }
    ExitCode::FAILURE
}

fn replay(plan: Plan, file: Option<PathBuf>, history: Option<PathBuf>) -> ExitCode {
    println!("{plan:#?}");
    let trace = match Trace::wordy(file.as_deref()) {
        Ok(trace) => trace,
        Err(error) => {
            eprintln!("error: {}: {error}", file.unwrap_or_default().display());
            return ExitCode::from(2);
        }
    };
    let outcome = run_plan(plan, trace);
    print!("{}", failing::lines(&outcome.last));
    if let Some(path) = history
        && let Err(error) = keep(&path, &outcome.history)
    {
        eprintln!("error: {}: {error}", path.display());
        return ExitCode::from(2);
    }
    let (steps, answered, hash) = (outcome.steps, outcome.answered, outcome.hash);
    println!("{steps} steps, {answered} operations answered, {} faults, hash {hash:016x}", outcome.faults);
    match outcome.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("FAILED at step {} ({} ns): {}: {}", failure.step, failure.at, failure.check, failure.what);
            ExitCode::FAILURE
        }
    }
}

fn keep(path: &Path, history: &[Event<'static>]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    history.iter().try_for_each(|event| write(&mut out, event))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_written_in_either_base() {
        assert_eq!((seed("8740"), seed("0x2224"), seed("0xFFFFFFFFFFFFFFFF")), (Ok(8740), Ok(0x2224), Ok(u64::MAX)));
        assert!(seed("0x").is_err() && seed("x1").is_err() && seed("0x1_0000").is_err() && seed("-1").is_err());
        let told = planned("8741x").expect_err("neither a seed nor a file");
        assert!(told.contains("8741x"), "{told}");
    }
}
