//! Checking the checkers (hazards.md 3.7): small random histories, legal ones and ones with a planted fault, with
//! and without unanswered operations. Brute force judges; the checkers must agree with it.

use std::fmt;

use super::brute::is_linearizable;
use super::event::{Event, Invoke, NEVER, Output, Return, Status};
use super::generate::{Gate, Shape, events};
use super::history::History;
use super::search::Limits;
use super::verdict::Verdict;
use super::{certificate, graph, search};
use coppice_testkit::random::Random;

/// Names of the planted bugs of the checkers, each of which `diff` must catch.
pub const MUTANTS: [&str; 7] = [
    "eager_misfits",
    "eager_births",
    "last_observer_counts_itself",
    "absence_gap_endless",
    "version_chain_unchecked",
    "trap_broken_chain",
    "trap_unanswered_observer",
];

/// What a comparison of many histories found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Histories compared.
    pub histories: u64,
    /// Not linearizable.
    pub illegal: u64,
    /// With unanswered operations.
    pub unanswered: u64,
    /// With operations of unknown outcome, so that the graph could not pass them.
    pub clouded: u64,
    /// Passed by the certificate.
    pub certified: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { histories, illegal, unanswered, clouded, certified } = self;
        write!(
            f,
            "{histories} histories ({illegal} illegal, {unanswered} with unanswered operations): the search agrees with \
             brute force in all, the graph in all but the {clouded} that it left open, the certificate passed {certified}"
        )
    }
}

#[derive(Clone, Debug)]
pub struct Disagreement {
    /// Of the history, for [`small_history`].
    pub seed: u64,
    /// In words.
    pub what: String,
}

/// Compares the histories of `seeds`; stops at the first disagreement.
pub fn compare_all(seeds: std::ops::Range<u64>) -> Result<Tally, Disagreement> {
    let mut tally = Tally::default();
    for seed in seeds {
        compare(seed, &mut tally).map_err(|what| Disagreement { seed, what })?;
    }
    Ok(tally)
}

fn compare(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let (events, planted) = small_history(seed);
    let history = History::from_events(&events)?;
    let legal = is_linearizable(&history);
    tally.histories += 1;
    tally.illegal += u64::from(!legal);
    tally.unanswered += u64::from(history.operations.iter().any(|operation| operation.status.is_none()));
    let found = certificate::check(&history);
    tally.certified += u64::from(found.verdict.is_pass());
    if !planted && !found.verdict.is_pass() {
        return Err(format!("the certificate does not pass a correct history: {:?}", found.verdict));
    }
    if found.verdict.is_pass() && !legal {
        return Err("the certificate passes an illegal history".into());
    }
    agrees("search", &search::check(&history, None, Limits::default()), legal)?;
    match graph::check(&history, None) {
        Verdict::Unknown(_) => tally.clouded += 1,
        verdict => agrees("the graph", &verdict, legal)?,
    }
    if !planted {
        let judged = found.judged.as_ref();
        agrees("the search with logs", &search::check(&history, judged, Limits::default()), legal)?;
    }
    Ok(())
}

fn agrees(checker: &str, verdict: &Verdict, legal: bool) -> Result<(), String> {
    match verdict {
        Verdict::Pass if legal => Ok(()),
        Verdict::Fail(_) if !legal => Ok(()),
        _ => Err(format!("{checker} says {verdict:?}, brute force says legal = {legal}")),
    }
}

/// A history of at most eight operations, and whether a fault was planted in it.
pub fn small_history(seed: u64) -> (Vec<Event<'static>>, bool) {
    let mut random = Random::of(seed, 1);
    let shape = Shape {
        seed: random.next(),
        operations: 3 + random.below(6),
        clients: 2 + random.below(4) as u32,
        keys: 1 + random.below(4) as u32,
        partitions: 1,
        gets: 150,
        ranges: 200,
        whole: 500,
        many: 60,
        filled: 300,
        unanswered: [0, 0, 100, 250][random.below(4)],
        refused: [0, 50][random.below(2)],
        repeats: 50,
        batch: 3,
        changes: [0, 30][random.below(2)],
        coordinators: [0, 20][random.below(2)],
        gate: [Gate::Right, Gate::Right, Gate::Right, Gate::Off][random.below(4)],
        ..Shape::default()
    };
    let shape = Shape { partitions: 1 + random.below(shape.keys.min(3) as usize) as u32, ..shape };
    let mut events = events(&shape);
    let mut planted = shape.gate != Gate::Right;
    if random.chance(750) {
        for _ in 0..1 + random.below(3) {
            plant(&mut events, &mut random);
        }
        planted = true;
    }
    (events, planted)
}

/// Plants one fault: something that a wrong server might have answered.
pub fn plant(events: &mut [Event<'static>], random: &mut Random) {
    let answers: Vec<usize> = (0..events.len())
        .filter(|index| matches!(&events[*index], Event::Return(answer) if answer.status == Status::Ok))
        .collect();
    if answers.is_empty() {
        return;
    }
    let one = answers[random.below(answers.len())];
    let other = answers[random.below(answers.len())];
    match random.below(5) {
        0 => swap_outputs(events, one, other),
        1 => return_early(events, one, random),
        2 => mix_parts(events, one, other, random),
        3 => drop_write(events, one),
        _ => see_another_value(events, one, other, random),
    }
}

fn answer<'a>(events: &'a mut [Event<'static>], index: usize) -> Option<&'a mut Return<'static>> {
    match &mut events[index] {
        Event::Return(answer) => Some(answer),
        _ => None,
    }
}

/// Two answers of one shape change places.
fn swap_outputs(events: &mut [Event<'static>], one: usize, other: usize) {
    let output = |events: &mut [Event<'static>], index| answer(events, index).map(|answer| answer.output.clone());
    let (Some(first), Some(second)) = (output(events, one), output(events, other)) else { return };
    if std::mem::discriminant(&first) != std::mem::discriminant(&second) || matches!(first, Output::List(_)) {
        return;
    }
    if let Some(answer) = answer(events, one) {
        answer.output = second;
    }
    if let Some(answer) = answer(events, other) {
        answer.output = first;
    }
}

/// An answer leaves before the operation was executed.
fn return_early(events: &mut [Event<'static>], one: usize, random: &mut Random) {
    let Some(Return { id, .. }) = answer(events, one).cloned() else { return };
    let invoked = events.iter().find_map(|event| match event {
        Event::Invoke(Invoke { id: other, at, .. }) if *other == id => Some(*at),
        _ => None,
    });
    if let (Some(invoked), Some(answer)) = (invoked, answer(events, one)) {
        let span = (answer.at - invoked) as usize;
        answer.at = invoked + random.below(span.min(NEVER as usize - 1) / 2 + 1) as u64;
    }
}

/// A range gets the right end of another's pairs: a part from another position.
fn mix_parts(events: &mut [Event<'static>], one: usize, other: usize, random: &mut Random) {
    let Some(Output::Pairs(from)) = answer(events, other).map(|answer| answer.output.clone()) else { return };
    let Some(Output::Pairs(pairs)) = answer(events, one).map(|answer| &mut answer.output) else { return };
    let all: Vec<_> = pairs.iter().chain(&from).map(|pair| pair.0.clone()).collect();
    if all.is_empty() {
        return;
    }
    let cut = all[random.below(all.len())].clone();
    pairs.retain(|pair| pair.0 < cut);
    pairs.extend(from.into_iter().filter(|pair| pair.0 >= cut));
}

/// A write that happened is said to be refused.
fn drop_write(events: &mut [Event<'static>], one: usize) {
    if let Some(answer) = answer(events, one)
        && !matches!(answer.output, Output::Pairs(_))
    {
        (answer.status, answer.output) = (Status::No, Output::Value(None));
    }
}

/// An answer has the value of another one, or none.
fn see_another_value(events: &mut [Event<'static>], one: usize, other: usize, random: &mut Random) {
    let seen = match answer(events, other).map(|answer| answer.output.clone()) {
        Some(Output::Value(seen) | Output::Cas(_, seen)) if !random.chance(300) => seen,
        _ => None,
    };
    match answer(events, one).map(|answer| &mut answer.output) {
        Some(Output::Value(value)) => *value = seen,
        Some(Output::Pairs(pairs)) if !pairs.is_empty() => {
            let at = random.below(pairs.len());
            match seen {
                Some(seen) => pairs[at].1 = seen,
                None => drop(pairs.remove(at)),
            }
        }
        _ => {}
    }
}
