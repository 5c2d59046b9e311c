//! Checks beyond linearizability that need only a history and its dumps (hazards.md 3.6, B1 to B6). Each says pass,
//! fail, or that there is nothing to check.

use std::collections::BTreeMap;

use super::certificate::LogFindings;
use super::event::{NEVER, Position};
use super::history::{History, Kind, LogKind, Operation};
use super::intern::NONE;
use super::verdict::{describe, short};

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Checked so many things, all right.
    Pass(u64),
    /// The history has nothing that this check is about.
    Nothing,
    /// What is wrong.
    Fail(String),
}

/// The id of each check, what it is, and what it found. `judged`: the logs, if they could be judged.
pub fn checks(history: &History, judged: Option<&LogFindings>) -> Vec<(&'static str, &'static str, Finding)> {
    vec![
        ("B1", "replicas agree on logs and digests", agreement(history)),
        ("B2", "tickets increase, and stand in one order in all logs", tickets(history, judged)),
        ("B3", "every repeated answer is identical", repeats(history)),
        ("B4", "positions never go back", positions(history)),
        ("B5", "ladders: a range that shows a step shows all before it", ladders(history)),
        ("B6", "tokens: never two, never none", tokens(history)),
    ]
}

fn found(count: u64) -> Finding {
    if count == 0 { Finding::Nothing } else { Finding::Pass(count) }
}

/// B1: equal entries at every common instance, equal digests after it. What the certificate needs of it, it checks by
/// itself.
pub fn agreement(history: &History) -> Finding {
    let mut count = 0;
    for place in history.log.chunk_by(|a, b| a.position == b.position) {
        if let Some(odd) = place.iter().find(|entry| (entry.kind, entry.hit) != (place[0].kind, place[0].hit)) {
            let at = odd.position;
            return Finding::Fail(format!("replicas {} and {} disagree on {at}", place[0].replica, odd.replica));
        }
        count += u64::from(place.len() > 1);
    }
    let mut digests = BTreeMap::new();
    for digest in &history.digests {
        let at = (digest.partition, digest.instance);
        let first = *digests.entry(at).or_insert(digest);
        let replica = first.replica;
        let trees = first.tree.as_ref().zip(digest.tree.as_ref());
        if first.state != digest.state || trees.is_some_and(|(one, other)| one != other) {
            let (partition, instance) = at;
            let what =
                format!("the digests of replicas {replica} and {} after p{partition}#{instance}", digest.replica);
            return Finding::Fail(format!("{what} differ"));
        }
        count += u64::from(replica != digest.replica);
    }
    found(count)
}

/// B2. That each `prev` fits and tickets increase is part of judging the logs.
fn tickets(history: &History, judged: Option<&LogFindings>) -> Finding {
    let Some(judged) = judged else {
        let places = history.log_kinds.iter().filter(|kind| matches!(kind, LogKind::Place { .. })).count();
        return if places == 0 { Finding::Nothing } else { Finding::Fail("the logs could not be judged".into()) };
    };
    let mut count = 0;
    for (number, partition) in &judged.partitions {
        count += partition.tickets.len() as u64;
        if let Some(pair) = partition.tickets.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
            return Finding::Fail(format!("p{number} has {} before {}", pair[0].1, pair[1].1));
        }
    }
    found(count)
}

fn repeats(history: &History) -> Finding {
    match history.unequal.first() {
        Some(complaint) => {
            let operation = &history.operations[complaint.operation as usize];
            Finding::Fail(format!("{}: {}", describe(history, operation), complaint.what))
        }
        None => {
            let writes = history.operations.iter().filter(|operation| operation.is_ok() && !operation.is_read());
            found(writes.count() as u64)
        }
    }
}

/// B4: no position of a partition is below one answered before the operation was invoked (I17 of hazards.md 4).
fn positions(history: &History) -> Finding {
    let mut highest: BTreeMap<u32, ((u64, u32), u32)> = BTreeMap::new();
    // What was highest, per operation and position, when the operation was invoked.
    let mut floor: Vec<Vec<((u64, u32), u32)>> = vec![Vec::new(); history.operations.len()];
    let mut returns = history.returns.iter().copied().peekable();
    let mut count = 0;
    for (index, operation) in history.operations.iter().enumerate().filter(|(_, operation)| operation.is_ok()) {
        while let Some(earlier) =
            returns.next_if(|earlier| history.operations[*earlier as usize].returned < operation.invoked)
        {
            let answered = &history.operations[earlier as usize];
            for at in history.positions(answered).iter().filter(|_| answered.is_ok()) {
                let top = highest.entry(at.partition).or_insert((at.place(), earlier));
                *top = (*top).max((at.place(), earlier));
            }
        }
        let floors =
            history.positions(operation).iter().map(|at| highest.get(&at.partition).copied().unwrap_or_default());
        floor[index] = floors.collect();
        for (at, (floor, earlier)) in history.positions(operation).iter().zip(&floor[index]) {
            count += 1;
            if reached(history, operation, *at) < *floor {
                let (later, earlier) = (short(history, index as u32), short(history, *earlier));
                let seen = format!("p{}#{}.{}", at.partition, floor.0, floor.1);
                return Finding::Fail(format!("{later} has {at}, but {earlier}, answered before, has {seen}"));
            }
        }
    }
    found(count)
}

/// How far an answer at this position has seen. A read without a ticket saw all of its instance, but nodes name the
/// first place of it: they do not keep how much an instance held. A part of a query stands exactly at its ticket.
fn reached(history: &History, operation: &Operation, at: Position) -> (u64, u32) {
    let whole = operation.is_read() && history.ticket(operation).is_none();
    (at.instance, if whole { u32::MAX } else { at.index })
}

/// The name of a ladder's or a token's keys (`marks.rs` makes them): `..~L<id>.<step>`, `..~T<id>`, `..~U<id>`. What is
/// before `~` decides the partition.
fn mark(key: &[u8]) -> Option<(u8, u64, u64)> {
    let at = key.iter().rposition(|byte| *byte == b'~')?;
    let (kind, rest) = (*key.get(at + 1)?, std::str::from_utf8(&key[at + 2..]).ok()?);
    let (id, step) = rest.split_once('.').unwrap_or((rest, "0"));
    Some((kind, id.parse().ok()?, step.parse().ok()?))
}

/// The history's keys of one kind: by id, and in order of steps.
fn marked(history: &History, wanted: u8) -> BTreeMap<u64, Vec<u32>> {
    let mut marked: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
    for key in 0..history.keys.len() as u32 {
        if let Some((kind, id, step)) = mark(history.keys.get(key)).filter(|(kind, _, _)| *kind == wanted) {
            debug_assert_eq!(kind, wanted);
            marked.entry(id).or_default().push((step, key));
        }
    }
    let sorted = marked.into_iter().map(|(id, mut keys)| {
        keys.sort_unstable();
        (id, keys.into_iter().map(|(_, key)| key).collect())
    });
    sorted.collect()
}

fn ranges(history: &History) -> impl Iterator<Item = (u32, &Operation)> {
    let ranges = history.operations.iter().enumerate();
    ranges.filter(|(_, range)| range.kind() == Kind::Range && range.is_ok()).map(|(index, range)| (index as u32, range))
}

/// B5. A ladder is inserted step by step and deleted from its top, each after the last answer.
fn ladders(history: &History) -> Finding {
    let ladders = marked(history, b'L');
    let mut count = 0;
    for (index, range) in ranges(history) {
        let pairs = history.pairs(range);
        let inside = |key: u32| key >= range.step.key && key < range.high;
        let shown = |key: u32| pairs.binary_search_by_key(&key, |pair| pair.0).is_ok();
        for (id, steps) in &ladders {
            let Some(top) = steps.iter().rposition(|key| shown(*key)) else { continue };
            count += 1;
            if let Some(missing) = steps[..top].iter().find(|key| inside(**key) && !shown(**key)) {
                let (top, missing) = (history.key(steps[top]), history.key(*missing));
                let range = short(history, index);
                return Finding::Fail(format!(
                    "{range} shows {top} of ladder {id}, but not {missing}, inserted before"
                ));
            }
        }
    }
    found(count)
}

/// B6. `~T`: deleted at one place, then inserted at another: never two. `~U`: inserted first: never none, once the
/// first insert was answered.
fn tokens(history: &History) -> Finding {
    let mut count = 0;
    for (kind, none_is_wrong) in [(b'T', false), (b'U', true)] {
        for (id, places) in marked(history, kind) {
            let born = first_answer(history, &places);
            for (index, range) in ranges(history) {
                let covered = places.iter().all(|key| *key >= range.step.key && *key < range.high);
                let pairs = history.pairs(range);
                let shown = |key: &&u32| pairs.binary_search_by_key(*key, |pair| pair.0).is_ok();
                let shown = places.iter().filter(shown).count();
                let seen = covered && range.invoked > born;
                let wrong = if none_is_wrong { shown == 0 && seen } else { shown > 1 };
                count += u64::from(seen);
                if wrong {
                    return Finding::Fail(format!("{} shows token {id} at {shown} places", short(history, index)));
                }
            }
        }
    }
    found(count)
}

/// When a key of these was first known to be present.
fn first_answer(history: &History, keys: &[u32]) -> u64 {
    if history.state.iter().any(|pair| keys.contains(&pair.0)) {
        return 0;
    }
    let writes = |operation: &&Operation| {
        operation.is_ok()
            && history.steps(operation).iter().any(|step| step.done && step.value != NONE && keys.contains(&step.key))
    };
    history.operations.iter().filter(writes).map(|operation| operation.returned).min().unwrap_or(NEVER)
}
