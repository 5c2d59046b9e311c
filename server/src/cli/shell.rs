//! Completions and manual pages, made from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

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

/// Prints the manual page of the program or of one verb, in roff, or writes all of them into a directory.
///
/// # Errors
/// That of `to`. There is no such verb, or the directory takes no files.
pub fn man(args: &ManArgs, to: &mut dyn Write) -> io::Result<Result<Exit, Failure>> {
    let mut program = Cli::command();
    program.build();
    let mut pages = Vec::new();
    collect(&program, "coppice".to_owned(), &mut pages);
    if let Some(dir) = &args.dir {
        let written = pages.iter().try_for_each(|(words, command)| {
            let path = dir.join(format!("{}.1", words.replace(' ', "-")));
            fs::write(&path, roff(words, command)?).map_err(|error| unwritten(&path, &error))
        });
        return Ok(written.map(|()| Exit::Done));
    }
    let wanted = [vec!["coppice".to_owned()], args.verb.clone()].concat().join(" ");
    let page = match pages.iter().find(|(words, _)| *words == wanted) {
        Some((words, command)) => roff(words, command),
        None => Err(unknown(&args.verb.join(" "), &pages)),
    };
    match page {
        Ok(page) => to.write_all(&page).map(|()| Ok(Exit::Done)),
        Err(failure) => Ok(Err(failure)),
    }
}

/// A command and those below it, each with the words that call it.
fn collect<'a>(command: &'a Command, words: String, found: &mut Vec<(String, &'a Command)>) {
    // `help` repeats all others.
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        collect(below, format!("{words} {}", below.get_name()), found);
    }
    found.push((words, command));
}

fn roff(words: &str, command: &Command) -> Result<Vec<u8>, Failure> {
    let name = words.replace(' ', "-");
    let command = command.clone().name(name.clone()).display_name(name).bin_name(words.to_owned());
    let mut roff = Vec::new();
    clap_mangen::Man::new(command).render(&mut roff).map_err(|error| Failure {
        exit: Exit::Failed,
        code: "man",
        what: format!("man: the page cannot be made: {error}"),
        place: "memory".to_owned(),
        cause: "a definition that has no page".to_owned(),
        next: "coppice help".to_owned(),
    })?;
    Ok(roff)
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure {
        exit: Exit::Failed,
        code: "man",
        what: format!("man: a page cannot be written: {error}"),
        place: path.display().to_string(),
        cause: "the directory does not exist, or nobody may write there".to_owned(),
        next: "coppice man".to_owned(),
    }
}

fn unknown(verb: &str, pages: &[(String, &Command)]) -> Failure {
    let near = nearest(verb, pages.iter().filter_map(|(words, _)| words.strip_prefix("coppice ")));
    let cause = near.map_or_else(|| "no verb has this name".to_owned(), |near| format!("did you mean `{near}`?"));
    let next = near.map_or_else(|| "coppice help".to_owned(), |near| format!("coppice man {near}"));
    Failure { exit: Exit::NotFound, ..Failure::usage(format!("man: no verb `{verb}`"), cause, next) }
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

    fn page(verb: &str) -> Result<String, Failure> {
        let verb = verb.split_whitespace().map(str::to_owned).collect();
        let mut roff = Vec::new();
        let ended = man(&ManArgs { verb, dir: None }, &mut roff).expect("memory takes it");
        ended.map(|_| String::from_utf8_lossy(&roff).into_owned())
    }

    #[test]
    fn every_verb_has_a_page_and_a_wrong_one_names_the_nearest() {
        let dir = std::env::temp_dir().join(format!("coppice-man-{}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        let all = ManArgs { verb: Vec::new(), dir: Some(dir.clone()) };
        assert_eq!(man(&all, &mut Vec::new()).expect("nothing is printed"), Ok(Exit::Done));
        let mut program = Cli::command();
        program.build();
        let mut pages = Vec::new();
        collect(&program, "coppice".to_owned(), &mut pages);
        assert!(pages.iter().any(|(words, _)| words == "coppice node add"));
        for (words, _) in &pages {
            let text = page(words.strip_prefix("coppice").expect("it begins so")).expect("a page");
            assert!(text.contains(".SH SYNOPSIS") && text.contains(&words.replace('-', "\\-")), "{words}");
            let path = dir.join(format!("{}.1", words.replace(' ', "-")));
            assert_eq!(fs::read_to_string(&path).expect("a file"), text, "{words}");
        }
        fs::remove_dir_all(&dir).expect("it is ours");
        let failure = man(&all, &mut Vec::new()).expect("nothing is printed").expect_err("no such directory");
        assert_eq!(failure.exit, Exit::Failed);
        let failure = page("staus").expect_err("no such verb");
        assert_eq!((failure.exit, failure.next.as_str()), (Exit::NotFound, "coppice man status"));
        assert_eq!(page("node ad").expect_err("no such verb").next, "coppice man node add");
    }
}
