//! Completions and manual pages, made from the definition of the command line.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use coppice_core::settings::nearest;

use super::args::{Cli, CompletionsArgs, ManArgs, Shell};
use super::failure::{Exit, Failure};

/// Writes the completion script of a shell.
///
/// # Errors
/// That of `to`.
pub fn completions(args: &CompletionsArgs, to: &mut dyn Write) -> io::Result<()> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // Into memory first: the generator panics when its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "coppice", &mut script);
    to.write_all(&script)
}

/// The manual page of the program or of one verb, in roff.
///
/// # Errors
/// There is no such verb.
pub fn man(args: &ManArgs) -> Result<Vec<u8>, Failure> {
    let mut program = Cli::command();
    program.build();
    let page = match &args.verb {
        None => program,
        Some(verb) => page_of(&program, verb)?,
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page).render(&mut roff).map_err(|error| Failure {
        exit: Exit::Failed,
        code: "man",
        what: format!("man: the page cannot be made: {error}"),
        place: "memory".to_owned(),
        cause: "a definition that has no page".to_owned(),
        next: "coppice help".to_owned(),
    })?;
    Ok(roff)
}

fn page_of(program: &Command, verb: &str) -> Result<Command, Failure> {
    let verbs = || program.get_subcommands().filter(|command| !command.is_hide_set());
    let found = verbs().find(|command| command.get_name() == verb);
    let Some(command) = found else {
        let near = nearest(verb, verbs().map(Command::get_name));
        let cause = near.map_or_else(|| "no verb has this name".to_owned(), |near| format!("did you mean `{near}`?"));
        let next = near.map_or_else(|| "coppice help".to_owned(), |near| format!("coppice man {near}"));
        return Err(Failure { exit: Exit::NotFound, ..Failure::usage(format!("man: no verb `{verb}`"), cause, next) });
    };
    let name = format!("coppice-{verb}");
    Ok(command.clone().name(name.clone()).display_name(name).bin_name(format!("coppice {verb}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            completions(&CompletionsArgs { shell }, &mut script).expect("memory takes it");
            let script = String::from_utf8_lossy(&script);
            for verb in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(verb.get_name()), "{shell:?} {}", verb.get_name());
            }
        }
    }

    #[test]
    fn every_verb_has_a_page_and_a_wrong_one_names_the_nearest() {
        for verb in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = man(&ManArgs { verb: Some(verb.get_name().to_owned()) }).expect("a page");
            let page = String::from_utf8_lossy(&page).into_owned();
            assert!(
                page.contains(".SH SYNOPSIS")
                    && page.contains(&format!("coppice {}", verb.get_name()).replace('-', "\\-"))
            );
        }
        assert!(man(&ManArgs { verb: None }).is_ok());
        let failure = man(&ManArgs { verb: Some("staus".to_owned()) }).expect_err("no such verb");
        assert_eq!((failure.exit, failure.next.as_str()), (Exit::NotFound, "coppice man status"));
    }
}
