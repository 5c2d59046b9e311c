//! What Tab offers at the demo's prompt: commands, verbs and flags as the program defines them, and the names that the
//! cluster has at this moment. Pure: a line and the names go in.

use clap::{Arg, Command};
use coppice_core::settings::CLUSTER_SETTINGS;

use super::prompt;

/// How a node's process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It runs.
    Up,
    /// It is stopped and says nothing.
    Paused,
    /// It has ended.
    Down,
}

/// What a cluster has that a line may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// All nodes, by number.
    pub nodes: Vec<(u32, NodeState)>,
    /// All partitions; the directory is 0.
    pub partitions: Vec<u32>,
}

/// Where the word begins that `line` ends with, and what it may become. `program` is built: its verbs have the global
/// flags too.
#[must_use]
pub fn candidates(line: &str, program: &Command, verbs: &[&str], names: &Names) -> (usize, Vec<String>) {
    let command = line.rfind(';').map_or(0, |at| at + 1);
    let start = line.rfind(|letter: char| letter.is_whitespace() || letter == ';').map_or(0, |at| at + 1);
    let (before, word) = (&line[command..start.max(command)], &line[start..]);
    let mut words: Vec<&str> = before.split_whitespace().collect();
    if words.first() == Some(&"coppice") {
        words.remove(0);
    }
    let mut offered = match words.split_first() {
        None => prompt::own_words().chain(verbs.iter().copied()).map(str::to_owned).collect(),
        Some((first, rest)) => match of_prompt(first, rest, word, names) {
            Some(offered) => offered,
            None if verbs.contains(first) => of_verb(&words, word, program, names),
            None => Vec::new(),
        },
    };
    // A list is completed behind its last comma.
    let listed = word.rfind(',').map_or(0, |at| at + 1);
    if offered.iter().any(|offer| offer.starts_with(&word[listed..])) && listed > 0 {
        let head = &word[..listed];
        offered = offered.into_iter().map(|offer| format!("{head}{offer}")).collect();
    }
    offered.retain(|offer| offer.starts_with(word));
    (start, offered)
}

/// What follows a word of the prompt itself; none: it is no such word.
fn of_prompt(first: &str, rest: &[&str], word: &str, names: &Names) -> Option<Vec<String>> {
    let nodes = |is_meant: fn(NodeState) -> bool| {
        let meant = names.nodes.iter().filter(|(_, state)| is_meant(*state));
        meant.map(|(number, _)| if word.starts_with('n') { format!("n{number}") } else { number.to_string() }).collect()
    };
    let offered = match first {
        "kill" => nodes(|state| state != NodeState::Down),
        "pause" => nodes(|state| state == NodeState::Up),
        "resume" => nodes(|state| state == NodeState::Paused),
        "restart" => nodes(|state| state == NodeState::Down),
        "slow" => nodes(|_| true),
        "cut" => cuts(names),
        "wait" => ["healthy", "degraded"].map(str::to_owned).into(),
        "load" => vec!["run".to_owned()],
        _ => return prompt::own_words().any(|own| own == first).then(Vec::new),
    };
    Some(if rest.is_empty() { offered } else { Vec::new() })
}

/// Each node alone on one side.
fn cuts(names: &Names) -> Vec<String> {
    let others = |alone: u32| {
        let others = names.nodes.iter().filter(|(number, _)| *number != alone);
        others.map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(",")
    };
    names.nodes.iter().map(|(number, _)| format!("{number}|{}", others(*number))).collect()
}

/// What follows the words of a verb.
fn of_verb(words: &[&str], word: &str, program: &Command, names: &Names) -> Vec<String> {
    let (mut command, mut given, mut flag) = (program, 0, None);
    for word in words {
        let long = word.strip_prefix("--");
        if flag.take().is_some() {
            continue;
        } else if let Some(inner) = command.find_subcommand(word).filter(|_| given == 0) {
            command = inner;
        } else if let Some(name) = long {
            flag = command.get_arguments().find(|arg| arg.get_long() == Some(name)).filter(|arg| takes_value(arg));
        } else if !word.starts_with('-') {
            given += 1;
        }
    }
    if let Some(flag) = flag {
        return values(flag, command, names);
    }
    if word.starts_with('-') {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        return shown.filter_map(Arg::get_long).map(|long| format!("--{long}")).collect();
    }
    let inner = command.get_subcommands().filter(|inner| given == 0 && !inner.is_hide_set());
    let inner = inner.map(|inner| inner.get_name().to_owned()).filter(|name| name != "help");
    let value = command.get_positionals().nth(given).map(|arg| values(arg, command, names));
    inner.chain(value.unwrap_or_default()).collect()
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// What an argument may be, as far as that is known.
fn values(arg: &Arg, command: &Command, names: &Names) -> Vec<String> {
    let possible = arg.get_possible_values();
    if !possible.is_empty() && takes_value(arg) {
        return possible.iter().map(|value| value.get_name().to_owned()).collect();
    }
    let named = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_ascii_lowercase());
    match named.as_deref().unwrap_or(arg.get_id().as_str()) {
        "node" | "old" => names.nodes.iter().map(|(number, _)| format!("n{number}")).collect(),
        "partition" => {
            // The directory is neither cut nor merged.
            let is_meant = |number: &&u32| **number > 0 || !["merge", "split"].contains(&command.get_name());
            names.partitions.iter().filter(is_meant).map(|number| format!("p{number}")).collect()
        }
        "key" if ["get", "set"].contains(&command.get_name()) && is_of_config(command) => {
            CLUSTER_SETTINGS.iter().map(|setting| setting.key.to_owned()).collect()
        }
        _ => Vec::new(),
    }
}

/// `get KEY` reads data, `config get KEY` a setting.
fn is_of_config(command: &Command) -> bool {
    command.get_bin_name().is_some_and(|name| name.split(' ').any(|word| word == "config"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::args::Cli;

    fn offered(line: &str) -> Vec<String> {
        let mut program = Cli::command();
        program.build();
        let names = Names {
            nodes: vec![(1, NodeState::Up), (2, NodeState::Paused), (3, NodeState::Down)],
            partitions: vec![0, 1, 12],
        };
        let verbs = ["get", "put", "partition", "config", "leader", "node", "tuning", "status", "scan"];
        candidates(line, &program, &verbs, &names).1
    }

    #[test]
    fn a_line_begins_with_a_command_or_a_verb() {
        assert_eq!(offered("re"), ["resume", "restart"]);
        assert_eq!(offered("kill 1; hea"), ["heal"]);
        assert_eq!(offered("coppice par"), ["partition"]);
        assert_eq!(offered("xyz"), [""; 0]);
        assert!(offered("").contains(&"status".to_owned()));
    }

    #[test]
    fn faults_are_offered_the_nodes_that_they_can_strike() {
        assert_eq!(offered("kill "), ["1", "2"]);
        assert_eq!(offered("kill n"), ["n1", "n2"]);
        assert_eq!(
            (offered("pause "), offered("resume "), offered("restart ")),
            (strings(&["1"]), strings(&["2"]), strings(&["3"]))
        );
        assert_eq!(offered("cut 2"), ["2|1,3"]);
        assert_eq!(offered("wait h"), ["healthy"]);
        assert_eq!(offered("kill 1 "), [""; 0]);
    }

    #[test]
    fn verbs_are_offered_what_they_take_of_what_there_is() {
        assert_eq!(offered("partition m"), ["merge", "move"]);
        assert_eq!(offered("partition merge p1"), ["p1", "p12"]);
        assert_eq!(offered("leader transfer p1 n"), ["n1", "n2", "n3"]);
        assert_eq!(offered("leader transfer --deadline 2s p1 n3"), ["n3"]);
        assert_eq!(offered("partition move p1 --from n1 --to n2,n"), ["n2,n1", "n2,n2", "n2,n3"]);
        assert_eq!(offered("partition merge p1 --into "), ["p1", "p12"]);
        assert_eq!(offered("config set leader_transfer"), ["leader_transfer_timeout"]);
        assert_eq!(offered("config set window "), [""; 0]);
        assert_eq!(offered("get w"), [""; 0], "keys of the data are nobody's to guess");
        assert_eq!(
            (offered("status --wa"), offered("get k --timeo")),
            (strings(&["--watch"]), strings(&["--timeout"]))
        );
        assert_eq!(offered("status --output js"), ["json", "jsonl"]);
        assert_eq!(offered("tuning p"), ["predict", "p0", "p1", "p12"]);
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }
}
