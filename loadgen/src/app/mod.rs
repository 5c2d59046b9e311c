//! The program: commands, their output and their exit codes.

pub mod args;
pub mod failure;
mod fill;
mod find_max;
mod plot;
mod progress;
mod run;
mod store;
mod unloaded;

use std::io::Write;
use std::process::ExitCode;

use args::{Cli, Command, Output};
use failure::{Exit, Failure};
pub use fill::fill_quietly;
pub use progress::Progress;
pub use run::{NOTHING_ANSWERED, measure};

use crate::say::{say, unsaid};

/// Runs the program on this process's command line.
pub fn main() -> ExitCode {
    let line = std::env::args().collect::<Vec<_>>().join(" ");
    let cli: Cli = match coppice_usage::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    end(carry_out(&cli, &line), cli.global.output, &line)
}

/// Says what came of a command, if it went wrong, and turns it into the program's exit status.
pub fn end(mut done: Result<Exit, Failure>, output: Output, line: &str) -> ExitCode {
    if let (Ok(_), Some(cause)) = (&done, unsaid()) {
        done = Err(Failure {
            exit: Exit::Failed,
            what: "it was carried out, and its result cannot be written".to_owned(),
            place: "stdout".to_owned(),
            cause: cause.to_owned(),
            attempt: line.to_owned(),
        });
    }
    match done {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            match output {
                Output::Json if unsaid().is_none() => say!("{}", failure.json()),
                // If nobody reads that either, the exit status is left.
                Output::Json | Output::Table => _ = write!(std::io::stderr(), "{}", failure.text()),
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn carry_out(cli: &Cli, line: &str) -> Result<Exit, Failure> {
    match &cli.command {
        Command::Run(args) => run::run(args, &cli.global, line),
        Command::Fill(args) => fill::fill(args, &cli.global),
        Command::Unloaded(args) => unloaded::unloaded(args, &cli.global),
        Command::Plot(args) => plot::plot(args),
    }
}
