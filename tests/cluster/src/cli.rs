//! The program `coppice-check`: what it is called with, and its exit codes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exits (operations.md 2).
const FAILED: u8 = 1;

/// Checks histories of Coppice, and the checkers themselves.
#[derive(Parser)]
#[command(name = "coppice-check", version, infer_long_args = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Check(coppice_check::cli::Command),
    /// Is a real cluster linearizable, under load and faults? Exit 0: yes, 1: no, 6: not known.
    Cluster(Box<crate::Arguments>),
    /// What does one hostile client of each kind cost the others?
    Fairness(crate::fairness::Arguments),
    /// Are the expectations of security held? Needs this repository and cargo.
    Security {
        /// What is skipped is a failure.
        #[arg(long)]
        strict: bool,
        /// Fuzz each decoder with so many images, and whole nodes with a thousandth of that, in a release build.
        #[arg(long)]
        count: Option<u64>,
        /// The tests of all rows ran already, with `cargo test`: only the hostile clients are left
        #[arg(long, conflicts_with = "count")]
        tests_ran: bool,
    },
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli: Cli = match coppice_usage::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let code = match cli.command {
        Command::Check(command) => coppice_check::cli::run(&command),
        Command::Cluster(arguments) => crate::run(&arguments),
        Command::Fairness(arguments) => {
            crate::fairness::run(&arguments).map(|failed| if failed == 0 { 0 } else { FAILED })
        }
        Command::Security { strict, count, tests_ran } => {
            super::security::run(count, tests_ran).map(|(failed, skipped)| match (failed, skipped) {
                (0, 0) => 0,
                (0, _) if !strict => 0,
                _ => FAILED,
            })
        }
    };
    match code {
        Ok(code) => ExitCode::from(code),
        Err(what) => coppice_usage::refuse::<Cli>(&what.to_string()),
    }
}
