//! Mistakes on the command line, from the parser's words into our four lines.

use clap::CommandFactory;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use coppice_usage::{Mistake, unknown_verb, verb_of};

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
    let program = Cli::command();
    let word = unknown_verb(error).filter(|_| verb_of(&program, line).is_none());
    if let Some((word, verb, cause)) = word.and_then(|word| {
        let meant = ELSEWHERE.iter().find(|(words, ..)| words.contains(&&*word));
        meant.map(|(_, verb, cause)| (word.clone(), *verb, *cause))
    }) {
        return Failure::usage(format!("there is no verb `{word}`"), cause, format!("coppice {verb} --help"));
    }
    let Mistake { what, cause, next } = Mistake::of(error, &program, line);
    let failure = Failure::usage(what, cause, next);
    let place = variable_of(error, &program, line).unwrap_or_else(|| failure.place.clone());
    Failure { place, ..failure }
}

/// The variable that the wrong value of a flag comes from, if the line does not have the flag.
fn variable_of(error: &clap::Error, program: &clap::Command, line: &[String]) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split(' ').next()?;
    let given =
        line.iter().any(|word| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')));
    let is_meant = |arg: &&clap::Arg| arg.get_long() == flag.strip_prefix("--");
    let variable = program.get_arguments().find(is_meant)?.get_env()?.to_str()?;
    (!given).then(|| format!("the environment variable {variable}"))
}

/// Words that other programs have for what a verb does here, the verb, and what is said of it.
const ELSEWHERE: &[(&[&str], &str, &str)] = &[
    (
        &["ls", "keys", "dir"],
        "scan",
        "`coppice scan ..` prints keys, `coppice node ls` nodes, `coppice partition ls` partitions",
    ),
    (
        &["info", "health", "ping", "top"],
        "status",
        "`coppice status` shows how the cluster is, `coppice status --watch` each second",
    ),
    (
        &["start", "server", "run"],
        "serve",
        "`coppice serve` runs one node, `coppice demo` a whole cluster on this machine",
    ),
    (
        &["nodes", "members", "add", "drain", "undrain", "remove", "replace"],
        "node",
        "`coppice node ls` lists nodes; `node add`, `drain`, `remove` and `replace` change them",
    ),
    (
        &["partitions", "split", "merge", "move"],
        "partition",
        "`coppice partition ls` lists partitions; `partition split`, `merge` and `move` change them",
    ),
    (
        &["users", "grant", "revoke"],
        "user",
        "`coppice user ls` lists users; `user add`, `grant` and `revoke` change them",
    ),
    (&["settings"], "config", "`coppice config get` prints the cluster's settings, `config show` those of a node"),
    (&["transfer"], "leader", "`coppice leader transfer P N` moves a leadership"),
    (&["verify"], "check", "`coppice check replicas` compares the replicas"),
    (&["load", "bench"], "demo", "the load generator is a program of its own: coppice-load run"),
];

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
            (
                "coppice ls",
                "error: there is no verb `ls`\nwhere: the command line\ncause: `coppice scan ..` prints keys",
            ),
            ("coppice set a", "error: put: the following required arguments were not provided: <VALUE>"),
            ("coppice rm", "error: delete: the following required arguments were not provided: <KEY>"),
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
    fn a_wrong_value_of_the_environment_names_its_variable() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = words("coppice get a --token-file /none");
        let error = Cli::try_parse_from(&line).expect_err("no such file");
        assert_eq!(mistake(&error, &line).place, "the command line");
        assert_eq!(mistake(&error, &words("coppice get a")).place, "the environment variable COPPICE_TOKEN_FILE");
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
