//! Jobs by this program's own generator, as the command lines that a user would type. What is printed is what was run.

use clap::Parser;

use super::job::{Job, Measurement};
use super::{Column, Round};
use coppice_loadgen::app::args::{Cli, Command, Global};
use coppice_loadgen::app::failure::Failure;
use coppice_loadgen::app::{self, fill_quietly};
use coppice_loadgen::units::{print_count, print_duration, significant};

/// Loads the keys; `place` is flags that name the store. Returns how the store says that it flushes.
///
/// # Errors
/// In words: the store does not answer.
pub fn load(round: &Round, column: &mut Column, place: &str) -> Result<String, String> {
    let line = format!("coppice-load fill --entries {}{place}", round.entries);
    round.say(&line);
    let (Command::Fill(args), global) = parsed(&line, round)? else { return Err(format!("not a fill: {line}")) };
    let (filled, description, seconds) = fill_quietly(&args, &global).map_err(|e| in_words(&e))?;
    column.entries = filled.keys;
    column.commands.push(format!("{line}  # {} s", significant(seconds)));
    Ok(description.flush)
}

/// Carries a job out by these flags of `run`.
///
/// # Errors
/// In words: the store does not answer.
pub fn measure(round: &Round, column: &mut Column, job: Job, flags: &str, place: &str) -> Result<(), String> {
    let duration = print_duration(round.duration);
    let line = format!("coppice-load run {flags} --entries {} --duration {duration}{place}", round.entries);
    round.say(&line);
    let (Command::Run(args), global) = parsed(&line, round)? else { return Err(format!("not a run: {line}")) };
    let summary = app::measure(&args, &global).map_err(|e| in_words(&e))?;
    let errors = summary.failed + summary.busy + summary.unknown;
    if let (true, Some(error)) = (errors > 0, &summary.first_error) {
        column.notes.push(format!("{}: {} errors, the first: {error}", job.title(), print_count(errors)));
    }
    let (per_second, p50_ms, p99_ms) = (summary.throughput, summary.latency.p50_ms, summary.latency.p99_ms);
    column.commands.push(line.clone());
    column.jobs.insert(job, Measurement { per_second, p50_ms, p99_ms, errors, command: line });
    Ok(())
}

/// The line as our own command line is read; the flags that every command has follow those of `versus`.
fn parsed(line: &str, round: &Round) -> Result<(Command, Global), String> {
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|e| format!("{line}: {e}"))?;
    Ok((cli.command, Global { quiet: round.global.quiet, timeout: round.global.timeout, ..cli.global }))
}

/// A failure in one line.
pub fn in_words(failure: &Failure) -> String {
    format!("{}: {}: {}", failure.what, failure.place, failure.cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_a_command_line_with_the_clients_it_promises() {
        for job in Job::ALL {
            let line = format!("coppice-load run {} --entries 1M --duration 5s --endpoints a:1", job.flags());
            let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
            let Command::Run(args) = cli.command else { panic!("{line} is a run") };
            assert_eq!(args.clients, Some(job.clients().into()), "{line}");
        }
    }
}
