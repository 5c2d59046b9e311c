//! Experiments with Coppice's load generator: the figures of two papers measured again, and comparisons with etcd and
//! Redis. They start the processes that they measure; the generator itself starts none.
#![forbid(unsafe_code)]

pub mod args;
pub mod paper;
mod site;
pub mod versus;

use std::process::ExitCode;

use args::{Cli, Command};
use coppice_loadgen::app::end;

/// Runs the program on this process's command line.
pub fn main() -> ExitCode {
    let line = std::env::args().collect::<Vec<_>>().join(" ");
    let cli: Cli = match coppice_usage::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let done = match &cli.command {
        Command::Paper(args) => paper::paper(args, &cli.global, &line),
        Command::Versus(args) => versus::versus(args, &cli.global, &line),
    };
    end(done, cli.global.output, &line)
}
