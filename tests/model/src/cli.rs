//! `coppice-sim model`: searches small worlds whole, and says how far it came. Exit 0: no rule is broken, and no state
//! was left out unless a limit was given.

use std::process::ExitCode;
use std::time::Duration;

use super::search::{Found, Limits, Model, explore};
use super::{paxos, tickets};

/// Three numbers, as in 3x2x2.
type Shape = [u8; 3];

/// Above this no search ends.
const SHAPE_MAX: u8 = 8;

fn shape(text: &str) -> Result<Shape, String> {
    let numbers: Result<Vec<u8>, _> = text.split('x').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|numbers| Shape::try_from(numbers).ok());
    let numbers = numbers.ok_or_else(|| "three numbers, as in 3x2x2".to_owned())?;
    match numbers.iter().all(|number| (1..=SHAPE_MAX).contains(number)) {
        true => Ok(numbers),
        false => Err(format!("each number from 1 to {SHAPE_MAX}")),
    }
}

/// `model`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Worlds of one group: acceptors, proposers, instances [default: all worlds, 3x2x2 and 3x2x3].
    #[arg(long, value_parser = shape, value_name = "AxPxI")]
    paxos: Option<Shape>,
    /// Worlds of several partitions: how many, queries, writes.
    #[arg(long, value_parser = shape, value_name = "PxQxW")]
    tickets: Option<Shape>,
    /// Only worlds with this in their names.
    #[arg(long, default_value = "")]
    only: String,
    /// Stop after so many states of a world, which is not exhausted then. A state takes up to 40 bytes.
    #[arg(long)]
    states_max: Option<usize>,
}

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

fn tell(found: &Found) {
    eprintln!("  so far {found}");
}

/// Searches a world, if it is wanted. `must_break`: a rule that a search finds to be broken is what it is for; one that
/// finds none has failed.
fn search(
    name: &str,
    (bounds, must_break): (&str, bool),
    model: &impl Model,
    arguments: &Arguments,
) -> Option<SearchReport> {
    if !name.contains(&arguments.only) {
        return None;
    }
    println!("{name}: {bounds}");
    let limits = Limits { states_max: arguments.states_max.unwrap_or(usize::MAX), progress: Some((PROGRESS, tell)) };
    let found = explore(model, limits);
    let verdict = match (&found.violation, must_break, found.exhausted) {
        (Some((why, story)), true, _) => {
            println!("  broken after {} steps, as it must be: {why}", story.len());
            Verdict::Right
        }
        (Some((why, story)), false, _) => {
            println!("  VIOLATED: {why}; the way there:");
            story.iter().for_each(|line| println!("    {line}"));
            Verdict::Broken
        }
        (None, true, true) => {
            println!("  NOT FOUND to be broken, as it must be");
            Verdict::Broken
        }
        (None, _, false) => Verdict::Cut,
        (None, false, true) if found.ended == 0 => Verdict::Idle,
        (None, false, true) => Verdict::Right,
    };
    println!("  {}: {found}", if found.exhausted { "exhausted" } else { "NOT exhausted" });
    Some(SearchReport { states: found.states, verdict })
}

/// What became of a world.
struct SearchReport {
    states: usize,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Right,
    /// A rule is broken, or is not where it must be.
    Broken,
    /// Nothing ever ends in it.
    Idle,
    /// States were left out.
    Cut,
}

/// Runs the command.
pub fn main(arguments: &Arguments) -> ExitCode {
    let all = arguments.paxos.is_none() && arguments.tickets.is_none();
    let chosen = |shape: Option<Shape>, usual: Shape| shape.or_else(|| all.then_some(usual));
    let mut searched = Vec::new();
    if let Some([acceptors, proposers, instances]) = chosen(arguments.paxos, [3, 2, 2]) {
        if proposers > acceptors {
            eprintln!("error: {proposers} proposers among {acceptors} replicas");
            return ExitCode::from(2);
        }
        for (name, bounds) in paxos::worlds(acceptors.into(), proposers.into(), instances.into()) {
            let told = (&*bounds.to_string(), bounds.must_break());
            searched.extend(search(&format!("paxos, {name}"), told, &bounds, arguments));
        }
    }
    if let Some([partitions, queries, writes]) = chosen(arguments.tickets, [3, 2, 3]) {
        for (name, bounds) in tickets::worlds(partitions, queries.into(), writes) {
            searched.extend(search(&format!("tickets, {name}"), (&*bounds.to_string(), false), &bounds, arguments));
        }
    }
    for (name, bounds) in tickets::WORLDS.iter().filter(|_| all) {
        let bounds = bounds();
        searched.extend(search(&format!("tickets, {name}"), (&*bounds.to_string(), false), &bounds, arguments));
    }
    for (name, bounds) in tickets::WEAK.iter().filter(|_| all) {
        let bounds = bounds();
        searched.extend(search(&format!("tickets, {name}"), (&*bounds.to_string(), true), &bounds, arguments));
    }
    let states: usize = searched.iter().map(|searched| searched.states).sum();
    let count = |verdict| searched.iter().filter(|searched| searched.verdict == verdict).count();
    let (broken, idle, cut) = (count(Verdict::Broken), count(Verdict::Idle), count(Verdict::Cut));
    println!(
        "{} worlds, {states} states: {broken} break a rule, {idle} never end, {cut} not exhausted",
        searched.len()
    );
    // Who set a limit knows that it leaves states out.
    if searched.is_empty() || broken + idle > 0 || cut > 0 && arguments.states_max.is_none() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_three_small_numbers() {
        assert_eq!(shape("3x2x1"), Ok([3, 2, 1]));
        for wrong in ["3x2", "3x2x1x1", "3x2xb", "3x0x1", "9x1x1", ""] {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
    }
}
