//! The program `coppice-sim`. Exit 0: all checks passed; 1: one failed; 2: it was called wrongly.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::plan::Plan;
use super::sweep::{Sweep, catch_panics, run_plan};
use super::trace::Trace;
use super::watch::Limits;
use super::{exhaustive, planted, shrink};
use crate::check::event::Event;
use crate::check::write::write;

/// Whole clusters of the real pure code, in one thread from one seed (reliability.md 4).
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

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run many seeds.
    Sweep {
        /// First seed.
        #[arg(long, default_value_t = 0)]
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
        /// Run every so manieth seed twice.
        #[arg(long, default_value_t = 0)]
        twice_every: u64,
        /// Stop at the first failure.
        #[arg(long)]
        first: bool,
    },
    /// Run one seed again, with a trace.
    Replay {
        /// Which.
        seed: u64,
        /// Write every step there.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Write the history and the logs there, for `coppice-check`.
        #[arg(long)]
        history: Option<PathBuf>,
    },
    /// Make a failing seed's faults and operations few.
    Shrink {
        /// Which.
        seed: u64,
        /// Runs at most.
        #[arg(long, default_value_t = 400)]
        runs: u32,
        /// Write every step of the short run there.
        #[arg(long)]
        trace: Option<PathBuf>,
    },
    /// One fault at every place of a small run: a crash between every two effects, an error at every I/O.
    Exhaustive {
        /// Operations of the run.
        #[arg(long, default_value_t = 40)]
        ops: u32,
        /// Only every so manieth place.
        #[arg(long, default_value_t = 1)]
        step: usize,
    },
    /// Show that planted bugs are caught: by which check, after how many seeds.
    Mutants {
        /// Only these, separated by commas.
        #[arg(long, value_delimiter = ',')]
        names: Vec<String>,
        /// Seeds per mutant at most, instead of those that the list gives it.
        #[arg(long)]
        seeds: Option<u64>,
        /// Threads per mutant.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
}

/// Runs the program.
pub fn main() -> ExitCode {
    catch_panics();
    let Args { verb, seed_seconds, memory_mib } = Args::parse();
    Limits { seed: Duration::from_secs(seed_seconds), memory_mib }.watch();
    match verb {
        Verb::Sweep { from, count, jobs, twice, twice_every, first } => {
            let twice_every = if twice { 1 } else { twice_every };
            sweep(Sweep { from, count, jobs, twice_every, first, quiet: false })
        }
        Verb::Replay { seed, trace, history } => replay(Plan::of(seed), trace, history),
        Verb::Shrink { seed, runs, trace } => match shrink::shrink(seed, runs) {
            Some(plan) => replay(plan, trace, None),
            None => {
                println!("seed {seed} does not fail");
                ExitCode::SUCCESS
            }
        },
        Verb::Exhaustive { ops, step } => exhaustive::main(ops, step),
        Verb::Mutants { names, seeds, jobs } => planted::main(&names, seeds, jobs),
    }
}

fn sweep(sweep: Sweep) -> ExitCode {
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
    if report.failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    for (seed, failure) in &report.failed {
        println!("seed {seed}: {}: replay with: coppice-sim replay {seed} --trace {seed}.trace", failure.check);
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
    for line in &outcome.last {
        println!("{}", line.chars().take(400).collect::<String>());
    }
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
