//! The demo's prompt language: faults, waiting, and every verb of the program.

use std::fmt;
use std::time::Duration;

use coppice_core::settings::{nearest, units};

use crate::cli::words::{join, split};

/// One line at the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptCommand {
    /// SIGKILL.
    Kill(u32),
    /// SIGSTOP: alive and silent.
    Pause(u32),
    /// SIGCONT.
    Resume(u32),
    /// Starts a node that is down, on its own data.
    Restart(u32),
    /// Nothing passes between the sides; nodes that are named on no side reach all.
    Cut(Vec<Vec<u32>>),
    /// Every message to and from a node takes so much longer.
    Slow(u32, Duration),
    /// Ends all cuts and delays.
    Heal,
    /// Waits until the cluster says so.
    Wait(Until),
    /// Load from the load generator, with its own arguments.
    Load(Vec<String>),
    /// A verb of the program.
    Verb(Vec<String>),
    /// What can be said here.
    Help,
    /// Ends the demo.
    Quit,
}

impl fmt::Display for PromptCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(node) => write!(f, "kill {node}"),
            Self::Pause(node) => write!(f, "pause {node}"),
            Self::Resume(node) => write!(f, "resume {node}"),
            Self::Restart(node) => write!(f, "restart {node}"),
            Self::Cut(sides) => {
                let side = |side: &Vec<u32>| side.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                write!(f, "cut {}", sides.iter().map(side).collect::<Vec<_>>().join("|"))
            }
            Self::Slow(node, delay) => write!(f, "slow {node} {}", units::show_time(*delay)),
            Self::Heal => f.write_str("heal"),
            Self::Wait(Until::Healthy) => f.write_str("wait healthy"),
            Self::Wait(Until::Degraded) => f.write_str("wait degraded"),
            Self::Wait(Until::Elapsed(time)) => write!(f, "wait {}", units::show_time(*time)),
            Self::Load(arguments) => {
                write!(f, "{}", join(std::iter::once("load").chain(arguments.iter().map(String::as_str))))
            }
            Self::Verb(words) => f.write_str(&join(words)),
            Self::Help => f.write_str("help"),
            Self::Quit => f.write_str("quit"),
        }
    }
}

/// What `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Every partition has all its replicas.
    Healthy,
    /// Some replica is missing.
    Degraded,
    /// Time passes.
    Elapsed(Duration),
}

/// The prompt's own words, with what follows them.
const WORDS: [(&str, &str); 11] = [
    ("kill N", "SIGKILL node N, and measure what it costs"),
    ("pause N", "SIGSTOP node N: alive and silent"),
    ("resume N", "SIGCONT node N"),
    ("restart N", "start node N again on its own data"),
    ("cut 1|2,3", "nothing passes between these nodes, in either direction"),
    ("slow N 50ms", "every message to and from node N takes so much longer"),
    ("heal", "end all cuts and delays, and wait for the nodes that run"),
    ("wait healthy|degraded|TIME", "until the cluster says so, or time passes"),
    ("load ARGS", "run coppice-load against this cluster"),
    ("help", "this"),
    ("quit", "stop all nodes"),
];

/// Reads a line, or a whole script: commands separated by `;` or line ends. All are read before any runs.
///
/// # Errors
/// A sentence about the first that is no command.
pub fn parse(script: &str, verbs: &[&str]) -> Result<Vec<PromptCommand>, String> {
    split(script)?.iter().map(|words| parse_words(words, verbs)).collect()
}

fn parse_words(words: &[String], verbs: &[&str]) -> Result<PromptCommand, String> {
    let Some((first, rest)) = words.split_first() else { return Err("a command is missing".to_owned()) };
    let node = || node_of(first, rest);
    Ok(match first.as_str() {
        "kill" => PromptCommand::Kill(node()?),
        "pause" => PromptCommand::Pause(node()?),
        "resume" => PromptCommand::Resume(node()?),
        "restart" => PromptCommand::Restart(node()?),
        "cut" => PromptCommand::Cut(sides(rest)?),
        "slow" => slow(rest)?,
        "heal" if rest.is_empty() => PromptCommand::Heal,
        "wait" => PromptCommand::Wait(until(rest)?),
        "load" => PromptCommand::Load(rest.to_vec()),
        "help" if rest.is_empty() => PromptCommand::Help,
        "quit" | "exit" if rest.is_empty() => PromptCommand::Quit,
        "heal" | "help" | "quit" | "exit" => return Err(format!("`{first}` stands alone (try: {first})")),
        // What is copied from a shell works here too.
        "coppice" => parse_verb(rest, verbs)?,
        _ => parse_verb(words, verbs)?,
    })
}

/// The words of the prompt itself.
pub fn own_words<'a>() -> impl Iterator<Item = &'a str> {
    WORDS.iter().filter_map(|(word, _)| word.split(' ').next())
}

/// What `help` prints.
#[must_use]
pub fn help(verbs: &[&str]) -> String {
    let mut text = String::new();
    for (word, meaning) in WORDS {
        text.push_str(&format!("  {word:28}{meaning}\n"));
    }
    text.push_str(&format!("  and every verb of coppice: {}\n", verbs.join(" ")));
    text
}

fn parse_verb(words: &[String], verbs: &[&str]) -> Result<PromptCommand, String> {
    let first = words.first().ok_or("a verb is missing (try: help)")?;
    if verbs.contains(&first.as_str()) {
        return Ok(PromptCommand::Verb(words.to_vec()));
    }
    Err(match nearest(first, own_words().chain(verbs.iter().copied())) {
        Some(near) => format!("no command `{first}`; did you mean `{near}`?"),
        None => format!("no command `{first}` (try: help)"),
    })
}

fn node_of(word: &str, rest: &[String]) -> Result<u32, String> {
    let expected = || format!("which node? (try: {word} 1)");
    let [number] = rest else { return Err(expected()) };
    number.strip_prefix('n').unwrap_or(number).parse().map_err(|_| expected())
}

fn sides(rest: &[String]) -> Result<Vec<Vec<u32>>, String> {
    let expected = || "between which nodes? (try: cut 1|2,3)".to_owned();
    let [text] = rest else { return Err(expected()) };
    let number = |word: &str| word.trim().trim_start_matches('n').parse().map_err(|_| expected());
    let side = |side: &str| side.split(',').map(number).collect::<Result<Vec<u32>, String>>();
    let sides = text.split('|').map(side).collect::<Result<Vec<_>, _>>()?;
    let mut named: Vec<u32> = sides.concat();
    named.sort_unstable();
    if sides.len() < 2 || named.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(expected());
    }
    Ok(sides)
}

/// A minute: beyond it nobody waits for the effect.
const DELAY_MAX: Duration = Duration::from_secs(60);

fn slow(rest: &[String]) -> Result<PromptCommand, String> {
    let expected = || "which node, by how much? (try: slow 2 50ms)".to_owned();
    let [node, delay] = rest else { return Err(expected()) };
    let node = node.strip_prefix('n').unwrap_or(node).parse().map_err(|_| expected())?;
    match units::parse_time(delay) {
        Ok(delay) if delay <= DELAY_MAX => Ok(PromptCommand::Slow(node, delay)),
        _ => Err(expected()),
    }
}

fn until(rest: &[String]) -> Result<Until, String> {
    let expected = || "until what? (try: wait healthy)".to_owned();
    let [what] = rest else { return Err(expected()) };
    match what.as_str() {
        "healthy" => Ok(Until::Healthy),
        "degraded" => Ok(Until::Degraded),
        time => units::parse_time(time).map(Until::Elapsed).map_err(|_| expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERBS: [&str; 3] = ["put", "get", "status"];

    fn command(line: &str) -> Option<PromptCommand> {
        parse(line, &VERBS).expect("a command").pop()
    }

    fn refused(line: &str) -> String {
        parse(line, &VERBS).expect_err("a refusal")
    }

    #[test]
    fn the_prompt_knows_its_own_words_and_every_verb() {
        assert_eq!(command("kill 2"), Some(PromptCommand::Kill(2)));
        assert_eq!(command(" restart n3 "), Some(PromptCommand::Restart(3)));
        assert_eq!(command("cut 1|2,n3"), Some(PromptCommand::Cut(vec![vec![1], vec![2, 3]])));
        assert_eq!(command("slow 2 50ms"), Some(PromptCommand::Slow(2, Duration::from_millis(50))));
        assert_eq!(command("heal"), Some(PromptCommand::Heal));
        assert_eq!(command("wait degraded"), Some(PromptCommand::Wait(Until::Degraded)));
        assert_eq!(command("wait 2s"), Some(PromptCommand::Wait(Until::Elapsed(Duration::from_secs(2)))));
        let put = |value: &str| Some(PromptCommand::Verb(vec!["put".into(), "apple".into(), value.into()]));
        assert_eq!(command("put apple 'dark red'"), put("dark red"));
        assert_eq!(command(r#"coppice put apple "a \" b""#), put("a \" b"));
        assert_eq!(command(r"put apple ''"), put(""));
        assert_eq!(command("  "), None);
        assert_eq!(command("quit"), Some(PromptCommand::Quit));
    }

    #[test]
    fn commands_print_as_they_are_typed() {
        for line in [
            "kill 1",
            "cut 1|2,3",
            "slow 2 50ms",
            "heal",
            "wait 1500ms",
            "wait healthy",
            "put apple 'dark red'",
            "load run --clients 4",
            "quit",
        ] {
            assert_eq!(command(line).map(|command| command.to_string()).as_deref(), Some(line));
        }
    }

    #[test]
    fn what_is_no_command_is_answered_with_the_nearest() {
        assert_eq!(refused("kil 2"), "no command `kil`; did you mean `kill`?");
        assert_eq!(refused("sttus"), "no command `sttus`; did you mean `status`?");
        assert_eq!(refused("kill"), "which node? (try: kill 1)");
        assert_eq!(refused("kill all"), "which node? (try: kill 1)");
        for line in ["cut", "cut 1", "cut 1|x", "cut 1|2,1", "cut 1 | 2"] {
            assert_eq!(refused(line), "between which nodes? (try: cut 1|2,3)", "{line}");
        }
        assert_eq!(refused("slow 2 fast"), "which node, by how much? (try: slow 2 50ms)");
        assert_eq!(refused("heal 1"), "`heal` stands alone (try: heal)");
        assert_eq!(refused("quit now"), "`quit` stands alone (try: quit)");
        assert_eq!(refused("wait forever"), "until what? (try: wait healthy)");
        assert_eq!(refused("put 'a"), "a ' is not closed");
    }

    #[test]
    fn scripts_are_read_whole_before_they_run() {
        let script = parse("kill 1; wait degraded;\nput 'a;b' c;", &VERBS).expect("a script");
        assert_eq!(script.len(), 3);
        assert_eq!(script[1], PromptCommand::Wait(Until::Degraded));
        assert_eq!(script[2], PromptCommand::Verb(vec!["put".into(), "a;b".into(), "c".into()]));
        assert!(parse("kill 1; rstart 1", &VERBS).is_err());
    }
}
