//! Mistakes on the command lines of Coppice's programs: what is wrong, where, why, and the next command, in four lines
//! or as one object with `-o json`. The parser's words become these here, so that all programs answer alike.
#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};

/// How a program exits that was called wrongly (operations.md 2.3).
pub const USAGE: u8 = 2;

/// A mistake in how a command was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// What is wrong, beginning with the verb.
    pub what: String,
    /// The likely cause: what was meant, or how it is used.
    pub cause: String,
    /// The command to run next.
    pub next: String,
}

impl Mistake {
    /// What the parser of `program` refuses in a command line.
    #[must_use]
    pub fn of(error: &clap::Error, program: &Command, line: &[String]) -> Self {
        let mut text = error.render().to_string();
        // A verb that is hidden from the help is none to name.
        for hidden in program.get_subcommands().filter(|verb| verb.is_hide_set()) {
            text = text.replace(&format!(", {}", hidden.get_name()), "");
        }
        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
        let paragraphs: Vec<String> = paragraphs.collect();
        let beginning = |with: &str| paragraphs.iter().find_map(|paragraph| paragraph.strip_prefix(with));
        let cause = match (beginning("tip: "), beginning("Usage: ")) {
            (Some(tip), _) => tip.to_owned(),
            (None, Some(usage)) => format!("it is used as: {usage}"),
            (None, None) => "that argument does not take this value".to_owned(),
        };
        let verb = verb_of(program, line);
        let what = beginning("error: ").or(paragraphs.first().map(String::as_str)).unwrap_or_default();
        let what = verb.as_ref().map_or_else(|| what.to_owned(), |verb| format!("{verb}: {what}"));
        let meant = suggested(error).filter(|meant| meant.bytes().all(|byte| byte.is_ascii_lowercase()));
        let name = program.get_name();
        let next = match verb.or(meant) {
            Some(verb) => format!("{name} {verb} --help"),
            None => format!("{name} --help"),
        };
        Self { what, cause, next }
    }

    /// What only the program itself finds wrong with a command line.
    #[must_use]
    pub fn named(program: &Command, line: &[String], what: &str) -> Self {
        let verb = verb_of(program, line).unwrap_or_default();
        let what = if verb.is_empty() { what.to_owned() } else { format!("{verb}: {what}") };
        let next = format!("{} {verb} --help", program.get_name()).replace("  ", " ");
        Self { what, cause: "what the command line names is not there, or does not fit".to_owned(), next }
    }

    /// As one object.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let Self { what, cause, next } = self;
        serde_json::json!({ "v": 1, "error": {
            "code": "usage", "what": what, "where": "the command line", "cause": cause, "try": next, "exit": USAGE,
        }})
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| text.replace(char::is_control, "?");
        let [what, cause, next] = [&self.what, &self.cause, &self.next].map(|text| shown(text));
        write!(f, "error: {what}\nwhere: the command line\ncause: {cause}\ntry:   {next}")
    }
}

/// The command line of this process; else the exit status of a process that has said why there is none.
///
/// # Errors
/// 0: help or the version was asked for, and is printed; 2: a mistake.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    let line: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let error = match C::try_parse() {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = drawn(&error.render(), io::stdout().is_terminal());
            _ = write!(io::stdout(), "{text}");
            return Err(ExitCode::SUCCESS);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let text = drawn(&error.render(), io::stderr().is_terminal());
            _ = write!(io::stderr(), "{text}");
        }
        _ => {
            tell(&Mistake::of(&error, &C::command(), &line), &line);
        }
    }
    Err(ExitCode::from(USAGE))
}

/// Says what is wrong with a command line that could be parsed, and gives the exit status.
#[must_use]
pub fn refuse<C: Parser>(what: &str) -> ExitCode {
    let line: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    tell(&Mistake::named(&C::command(), &line, what), &line);
    ExitCode::from(USAGE)
}

fn tell(mistake: &Mistake, line: &[String]) {
    // Nobody is told where nobody reads; the exit status is left.
    _ = match wants_json(line) {
        true => writeln!(io::stderr(), "{}", mistake.to_json()),
        false => writeln!(io::stderr(), "{mistake}"),
    };
}

/// Help as it is printed: bold and underlined only for people, and only if they have not asked for plain text.
#[must_use]
pub fn drawn(text: &StyledStr, terminal: bool) -> String {
    if terminal && !wants_plain() { text.ansi().to_string() } else { text.to_string() }
}

/// Whether whoever runs this wants no colours (<https://no-color.org>).
#[must_use]
pub fn wants_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether errors shall be objects, where the line as a whole cannot be understood.
#[must_use]
pub fn wants_json(line: &[String]) -> bool {
    let is_json = |word: &str| word == "json" || word == "jsonl";
    let joined = |word: &str| {
        let value =
            word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o=")).or_else(|| word.strip_prefix("-o"));
        value.is_some_and(is_json)
    };
    let apart = |pair: &[String]| (pair[0] == "-o" || pair[0] == "--output") && is_json(&pair[1]);
    line.iter().any(|word| joined(word)) || line.windows(2).any(apart)
}

/// The word that is no verb, if that is the mistake.
#[must_use]
pub fn unknown_verb(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    }
}

/// The verb that the parser thinks was meant.
fn suggested(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(all) => all.first().cloned(),
        _ => None,
    }
}

/// The first word of the line that is a verb, with the verb below it if it has any.
#[must_use]
pub fn verb_of(program: &Command, line: &[String]) -> Option<String> {
    let mut words = line.iter().skip(1);
    let verb = words.find_map(|word| program.find_subcommand(word))?;
    let below = words.find_map(|word| verb.find_subcommand(word));
    Some(below.map_or_else(|| verb.get_name().to_owned(), |below| format!("{} {}", verb.get_name(), below.get_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_objects_where_json_was_asked_for_in_any_spelling() {
        let wants = |line: &str| wants_json(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["-o json get", "-ojson get", "get --output=jsonl", "get --output json"] {
            assert!(wants(line), "{line}");
        }
        assert!(!wants("get json") && !wants("-o table put o json"));
    }

    #[derive(Debug, Parser)]
    #[command(name = "coppice-test")]
    enum Cli {
        Run {
            #[arg(long)]
            duration: Option<u32>,
        },
    }

    #[test]
    fn a_mistake_names_the_verb_the_nearest_flag_and_the_help() {
        let line = ["coppice-test", "run", "--duratoin", "1"].map(str::to_owned);
        let error = Cli::try_parse_from(&line).expect_err("no such flag");
        let mistake = Mistake::of(&error, &<Cli as clap::CommandFactory>::command(), &line);
        assert_eq!(
            mistake.to_string(),
            "error: run: unexpected argument '--duratoin' found\nwhere: the command line\n\
             cause: a similar argument exists: '--duration'\ntry:   coppice-test run --help"
        );
        assert_eq!(mistake.to_json()["error"]["exit"], 2);
        let found = Mistake::named(&<Cli as clap::CommandFactory>::command(), &line, "no file x");
        assert_eq!((found.what.as_str(), found.next.as_str()), ("run: no file x", "coppice-test run --help"));
    }
}
