//! From a command line to an exit status.

use std::io::{self, IsTerminal, Write};

use clap::Parser;
use coppice_usage::{drawn, wants_json};

use super::args::Cli;
use super::connect::context_of;
use super::errors::Context;
use super::failure::{Exit, Failure};
use super::output::{Output, Style};
use super::usage::{Refusal, refusal};
use super::{errors, verbs, words};

/// Whoever read our output has gone, as `head` does: it has what it wanted.
pub(crate) fn reader_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

pub(crate) fn unprinted(verb: &str, line: &[String], error: &io::Error) -> Failure {
    let words = ["coppice"].into_iter().chain(line.iter().skip(1).map(String::as_str));
    Failure {
        exit: Exit::Failed,
        code: "output",
        what: format!("{verb}: it ends here: {error}"),
        place: "stdout, or the process itself".to_owned(),
        cause: "the device behind stdout takes no more, or a limit of the process is reached (ulimit -a)".to_owned(),
        next: words::join(words),
    }
}

/// Carries out the words of a verb at the prompt of a demo whose nodes are reached with the flags `access`, and prints
/// as for a person.
/// Stdin is not the verb's if the prompt reads it.
///
/// # Errors
/// That of stdout or stderr.
pub async fn at_prompt(words: &[String], access: &[String], prompt_reads: bool) -> io::Result<Exit> {
    let mut line = vec!["coppice".to_owned()];
    line.extend_from_slice(words);
    let mut whole = line.clone();
    if !words.iter().any(|word| word.starts_with("--end")) {
        whole.splice(1..1, access.iter().cloned());
    }
    let mut cli = match Cli::try_parse_from(&whole) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &line),
    };
    let loaded = cli.global.load_tls(cli.verb.name());
    let style = Style { terminal: true, ..Style::of_process(&cli.global) };
    // What is suggested next is said at the prompt too, where the endpoints are known.
    let context = Context { default_endpoints: true, may_read_stdin: !prompt_reads, ..context_of(&cli, &line) };
    let mut streams = Streams::new(style);
    if let Err(failure) = loaded {
        return streams.told(Err(failure));
    }
    if prompt_reads && words.iter().any(|word| word == "-") {
        let what = format!("{}: `-` is stdin, and that is read by the prompt", context.verb);
        return streams.told(Err(Failure::usage(what, "every line of it is a command", words::join(&whole))));
    }
    let result = verbs::run(&cli, context, &mut streams.output()).await?;
    streams.told(result)
}

/// The process's own stdout and stderr. Not locked: a node's threads log to stderr meanwhile.
pub(crate) struct Streams {
    style: Style,
    data: io::BufWriter<io::Stdout>,
    notes: Notes,
}

/// Stderr. If nobody reads it there is nobody to tell, and how a command ended is still its exit status.
pub(crate) struct Notes(pub(crate) io::Stderr);

impl Notes {
    pub(crate) fn say(&mut self, text: &dyn std::fmt::Display) {
        let _ = writeln!(self.0, "{text}");
    }
}

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

impl Streams {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, data: io::BufWriter::new(io::stdout()), notes: Notes(io::stderr()) }
    }

    pub(crate) fn output(&mut self) -> Output<'_> {
        Output { style: self.style, data: &mut self.data, notes: &mut self.notes }
    }

    /// Prints a failure, if it is one, behind all data.
    fn told(mut self, result: Result<Exit, Failure>) -> io::Result<Exit> {
        self.data.flush()?;
        match result {
            Ok(exit) => Ok(exit),
            Err(failure) => self.output().failure(&failure).map(|()| failure.exit),
        }
    }

    /// The exit status of a process that did all that it could: a failure is told even where its data is not taken.
    pub(crate) fn ended(mut self, result: io::Result<Result<Exit, Failure>>, cli: &Cli, line: &[String]) -> Exit {
        let failure = match (result, self.data.flush()) {
            (Ok(Ok(exit)), Ok(())) => return exit,
            (Ok(Ok(exit)), Err(error)) if reader_gone(&error) => return exit,
            (Err(error), _) if reader_gone(&error) => return Exit::Done,
            (Ok(Err(failure)), _) => failure,
            (Ok(Ok(_)), Err(error)) => {
                let failure = unprinted(cli.verb.name(), line, &error);
                let what = format!("{}: it was carried out, and stdout cannot be written: {error}", cli.verb.name());
                let next = errors::read_back(&context_of(cli, line)).unwrap_or_else(|| failure.next.clone());
                Failure { what, next, ..failure }
            }
            (Err(error), _) => unprinted(cli.verb.name(), line, &error),
        };
        // Notes never fail.
        let _ = self.output().failure(&failure);
        failure.exit
    }
}

pub(crate) fn refuse(error: &clap::Error, line: &[String]) -> io::Result<Exit> {
    let (mut data, mut notes) = (io::stdout(), Notes(io::stderr()));
    match refusal(error, line) {
        Refusal::Asked(text) => {
            let text = drawn(&text, data.is_terminal());
            write!(data, "{text}").map(|()| Exit::Done)
        }
        Refusal::Nothing(text) => {
            let text = drawn(&text, notes.0.is_terminal());
            write!(notes, "{text}").map(|()| Exit::Usage)
        }
        Refusal::Mistake(failure) => {
            if wants_json(line) {
                notes.say(&failure.to_json());
            } else {
                notes.say(&failure);
            }
            Ok(failure.exit)
        }
    }
}
