//! The program: from a command line to an exit status.

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::args::Cli;
use crate::cli::connect::context_of;
use crate::cli::output::Style;
use crate::cli::run::{Notes, Streams, reader_gone, refuse, unprinted};
use crate::cli::verbs::{self, Verb};
use crate::cli::{Exit, serve};

/// The program: reads the process's arguments, does what they say, and gives its exit status.
#[must_use]
pub fn main() -> ExitCode {
    let line: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let exit = match Cli::try_parse() {
        Ok(mut cli) => as_process(&mut cli, &line),
        Err(error) => match refuse(&error, &line) {
            Err(error) if !reader_gone(&error) => {
                Notes(io::stderr()).say(&unprinted("coppice", &line, &error));
                Exit::Failed
            }
            refused => refused.unwrap_or(Exit::Done),
        },
    };
    ExitCode::from(exit as u8)
}

/// Carries out what a process was started for.
fn as_process(cli: &mut Cli, line: &[String]) -> Exit {
    let mut streams = Streams::new(Style::of_process(&cli.global));
    let loaded = if cli.verb.asks_nodes() { cli.global.load_tls(cli.verb.name()) } else { Ok(()) };
    let cli = &*cli;
    if let Err(failure) = loaded {
        return streams.ended(Ok(Err(failure)), cli, line);
    }
    let result = match &cli.verb {
        // These bring threads and runtimes of their own.
        Verb::Serve(args) => serve::run(args, &mut streams.output()),
        Verb::Demo(args) => crate::demo::run(args),
        Verb::DemoGuard(args) => {
            crate::demo::reaper::run(args);
            Ok(Ok(Exit::Done))
        }
        _ => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .and_then(|runtime| runtime.block_on(verbs::run(cli, context_of(cli, line), &mut streams.output()))),
    };
    streams.ended(result, cli, line)
}
