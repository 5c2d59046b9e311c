//! Mistakes on the command line, from the parser's words into our four lines.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use super::args::Cli;
use super::failure::Failure;

/// What a parser's refusal comes to.
pub enum Refusal {
    /// Help or version was asked for: text for stdout.
    Asked(StyledStr),
    /// Nothing was said: help, on stderr, as a usage error.
    Nothing(StyledStr),
    /// A mistake.
    Mistake(Failure),
}

/// Sorts a refusal of the parser. `line` is the command line, for the verb to name.
#[must_use]
pub fn refusal(error: &clap::Error, line: &[String]) -> Refusal {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Refusal::Asked(error.render()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Refusal::Nothing(error.render()),
        _ => Refusal::Mistake(mistake(error, line)),
    }
}

fn mistake(error: &clap::Error, line: &[String]) -> Failure {
    // A verb that is hidden from the help is none to name.
    let text = error.render().to_string().replace(", demo-guard", "");
    let mut paragraphs = text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let first = paragraphs.next().unwrap_or_default();
    let rest: Vec<String> = paragraphs.collect();
    let tip = rest.iter().find_map(|paragraph| paragraph.strip_prefix("tip: "));
    let usage = rest.iter().find_map(|paragraph| paragraph.strip_prefix("Usage: "));
    let cause = match (tip, usage) {
        (Some(tip), _) => tip.to_owned(),
        (None, Some(usage)) => format!("it is used as: {usage}"),
        (None, None) => "it does not match the definition of the verb".to_owned(),
    };
    let verb = verb_of(line);
    let what = first.strip_prefix("error: ").unwrap_or(&first);
    let what = verb.as_ref().map_or_else(|| what.to_owned(), |verb| format!("{verb}: {what}"));
    let next = match (suggested(error), &verb) {
        (Some(suggested), None) if suggested.bytes().all(|b| b.is_ascii_lowercase()) => {
            format!("coppice {suggested} --help")
        }
        (_, Some(verb)) => format!("coppice {verb} --help"),
        (_, None) => "coppice --help".to_owned(),
    };
    Failure::usage(what, cause, next)
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
fn verb_of(line: &[String]) -> Option<String> {
    let program = Cli::command();
    let mut words = line.iter().skip(1);
    let verb = words.find_map(|word| find(&program, word))?;
    let below = words.find_map(|word| find(verb, word));
    Some(below.map_or_else(|| verb.get_name().to_owned(), |below| format!("{} {}", verb.get_name(), below.get_name())))
}

fn find<'a>(command: &'a Command, word: &str) -> Option<&'a Command> {
    command.get_subcommands().find(|below| below.get_name() == word)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn mistake_of(line: &str) -> Failure {
        let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match refusal(&Cli::try_parse_from(&line).expect_err("a refusal"), &line) {
            Refusal::Mistake(failure) => failure,
            Refusal::Asked(text) | Refusal::Nothing(text) => panic!("{text}"),
        }
    }

    #[test]
    fn mistakes_are_told_in_four_lines_and_name_the_next_command() {
        let cases = [
            ("coppice get", "error: get: the following required arguments were not provided: <KEY>"),
            ("coppice gte a", "error: unrecognized subcommand 'gte'"),
            ("coppice put a", "error: put: the following required arguments were not provided: <VALUE>"),
            ("coppice get a --stal3", "error: get: unexpected argument '--stal3' found"),
            ("coppice get a --timeout 5", "error: get: invalid value '5' for '--timeout <TIME>': a time with its unit"),
            ("coppice get a --hex --int", "error: get: the argument '--hex' cannot be used with '--int'"),
            ("coppice serve --log-flsh off", "error: serve: unexpected argument '--log-flsh' found"),
            ("coppice demo --nodes 0", "error: demo: invalid value '0' for '--nodes <N>': 0 is not in 1..=9"),
            (
                "coppice -q",
                "error: 'coppice' requires a subcommand but one was not provided [subcommands: demo, serve,",
            ),
            ("coppice config chek f", "error: config: unrecognized subcommand 'chek'"),
        ];
        for (line, expected) in cases {
            let failure = mistake_of(line);
            let text = failure.to_string();
            assert!(text.starts_with(expected), "{line}: {text}");
            assert_eq!(text.lines().count(), 4, "{text}");
            assert!(!text.contains("guard"), "{text}");
            let next: Vec<&str> = failure.next.split(' ').collect();
            let help = Cli::try_parse_from(&next).expect_err("help is told as an error");
            assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{}", failure.next);
        }
    }

    #[test]
    fn help_and_version_go_to_stdout() {
        for line in ["coppice --help", "coppice -V", "coppice help get"] {
            let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Cli::try_parse_from(&line).expect_err("told as an error");
            assert!(matches!(refusal(&error, &line), Refusal::Asked(_)));
        }
    }
}
