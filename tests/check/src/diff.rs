//! Checking the checkers (hazards.md 3.7): small random histories, legal ones and ones with a planted fault, with
//! and without unanswered operations. Brute force judges; the checkers must agree with it.

use std::fmt;

use super::brute::is_linearizable;
use super::event::{Call, Event, Invoke, Output, Return, Status};
use super::faults::plant;
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
    let unsaid = [0, 0, 300, 900][random.below(4)];
    leave_unsaid(&mut events, unsaid, &mut random);
    if random.chance(750) {
        for _ in 0..1 + random.below(3) {
            plant(&mut events, &mut random);
        }
        planted = true;
    }
    (events, planted)
}

/// Of 1,000 answers to puts and deletes, so many do not say what was there before.
fn leave_unsaid(events: &mut [Event<'static>], per_mille: u32, random: &mut Random) {
    let mut writes = std::collections::BTreeSet::new();
    for event in events {
        match event {
            Event::Invoke(Invoke { id, call: Call::Put { .. } | Call::Delete { .. }, .. }) => _ = writes.insert(*id),
            Event::Return(Return { id, status: Status::Ok, output, .. })
                if writes.contains(id) && random.chance(per_mille) =>
            {
                *output = Output::Done;
            }
            _ => {}
        }
    }
}
