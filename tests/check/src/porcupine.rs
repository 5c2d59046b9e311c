//! Histories for an independent judge (hazards.md 3.5): cut into islands, written as numbers, with the Go program
//! that judges them.

use std::fs::{File, create_dir_all, write};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Command;

use super::cli::Line;
use super::event::{NEVER, Status};
use super::generate::{Shape, events};
use super::history::{History, Kind, Operation, Step};
use super::intern::NONE;
use super::random::Random;
use super::tier1::{self, Limits};
use super::verdict::Verdict;

/// The Go program and what it needs.
const FILES: [(&str, &str); 4] = [
    ("main.go", include_str!("../../porcupine/main.go")),
    ("go.mod", include_str!("../../porcupine/go.mod")),
    ("go.sum", include_str!("../../porcupine/go.sum")),
    ("README.md", include_str!("../../porcupine/README.md")),
];

fn prepare(directory: &Path) -> io::Result<BufWriter<File>> {
    create_dir_all(directory)?;
    for (name, text) in FILES {
        write(directory.join(name), text)?;
    }
    Ok(BufWriter::new(File::create(directory.join("histories.jsonl"))?))
}

/// Writes each island of a history; returns how many operations each has.
pub fn export(history: &History, directory: &Path) -> io::Result<Vec<usize>> {
    let mut out = prepare(directory)?;
    let mut sizes = Vec::new();
    for (number, keys) in islands(history).iter().enumerate() {
        sizes.push(island(&mut out, history, keys, &format!("island-{number}"), "pass")?);
    }
    out.flush()?;
    Ok(sizes)
}

/// Tier 2: writes the islands, and hands them to the program built from `tests/porcupine` if there is one.
///
/// # Errors
/// The files cannot be written, or the program cannot be run.
pub fn judge(history: &History, directory: &Path, judge: Option<&Path>) -> io::Result<Line> {
    let sizes = export(history, directory)?;
    let largest = sizes.iter().max().copied().unwrap_or(0);
    let what = format!("{} islands of at most {largest} operations, in {}", sizes.len(), directory.display());
    let line = |verdict, what| Ok(Line { check: "tier 2".into(), verdict, what });
    let Some(judge) = judge else { return line("skipped", format!("{what}; no --judge")) };
    let output = Command::new(judge.canonicalize()?).current_dir(directory).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("nothing said").to_owned();
    match output.status.code() {
        Some(0) => line("PASS", format!("{what}: {last}")),
        Some(1) => line("FAIL", format!("{what}: {}", said.lines().next().unwrap_or("nothing said"))),
        Some(6) => line("UNKNOWN", format!("{what}: {last}")),
        _ => Err(io::Error::other(format!("{} ended with {}: {last}", judge.display(), output.status))),
    }
}

/// Writes random histories of up to 50 operations with tier 1's verdicts; returns how many.
pub fn export_diff(from: u64, count: u64, directory: &Path) -> io::Result<usize> {
    let mut out = prepare(directory)?;
    let mut written = 0;
    for seed in from..from + count {
        let Some(history) = medium_history(seed) else { continue };
        let expect = match tier1::check(&history, None, Limits::default()) {
            Verdict::Pass => "pass",
            Verdict::Fail(_) => "fail",
            Verdict::Unknown(_) => continue,
        };
        let keys: Vec<u32> = (0..history.keys.len() as u32).collect();
        island(&mut out, &history, &keys, &format!("seed-{seed}"), expect)?;
        written += 1;
    }
    out.flush()?;
    Ok(written)
}

fn medium_history(seed: u64) -> Option<History> {
    let mut random = Random::of(seed, 3);
    let keys = 2 + random.below(7) as u32;
    let shape = Shape {
        seed: random.next(),
        operations: 10 + random.below(41),
        clients: 2 + random.below(9) as u32,
        keys,
        partitions: 1 + random.below(keys.min(3) as usize) as u32,
        ranges: 150,
        whole: 400,
        many: 50,
        unanswered: [0, 0, 100, 250][random.below(4)],
        coordinators: 10,
        ..Shape::default()
    };
    let mut events = events(&shape);
    if random.chance(600) {
        super::diff::plant(&mut events, &mut random);
    }
    History::from_events(&events).ok()
}

/// Groups of keys that no range and no `many` connects. A group that nothing was written to is left out.
fn islands(history: &History) -> Vec<Vec<u32>> {
    // Keys are joined to the next one if a range covers both; a `many` joins by a union of sets.
    let mut sets: Vec<u32> = (0..history.keys.len() as u32).collect();
    fn root(sets: &mut [u32], mut key: u32) -> u32 {
        while sets[key as usize] != key {
            sets[key as usize] = sets[sets[key as usize] as usize];
            key = sets[key as usize];
        }
        key
    }
    let mut reach: Vec<u32> = (0..history.keys.len() as u32).collect();
    for operation in happened(history) {
        if operation.kind() == Kind::Range {
            let last = operation.high.min(history.keys.len() as u32).saturating_sub(1);
            if let Some(reach) = reach.get_mut(operation.step.key as usize) {
                *reach = (*reach).max(last);
            }
        }
        for pair in history.steps(operation).windows(2) {
            let (one, other) = (root(&mut sets, pair[0].key), root(&mut sets, pair[1].key));
            sets[one as usize] = other;
        }
    }
    let mut far = 0;
    for key in 0..reach.len() as u32 {
        if key > 0 && far >= key {
            let (one, other) = (root(&mut sets, key - 1), root(&mut sets, key));
            sets[one as usize] = other;
        }
        far = far.max(reach[key as usize]);
    }
    let mut touched = vec![false; reach.len()];
    for operation in happened(history).filter(|operation| operation.kind() != Kind::Range) {
        history.steps(operation).iter().for_each(|step| touched[step.key as usize] = true);
    }
    let mut islands: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    for key in 0..reach.len() as u32 {
        islands.entry(root(&mut sets, key)).or_default().push(key);
    }
    islands.into_values().filter(|keys| keys.iter().any(|key| touched[*key as usize])).collect()
}

fn happened(history: &History) -> impl Iterator<Item = &Operation> {
    let drop = |operation: &&Operation| {
        operation.status == Some(Status::No) || (operation.status.is_none() && operation.is_read())
    };
    history.operations.iter().filter(move |operation| !drop(operation))
}

/// One history in one line: the operations on `keys` (sorted), which nothing connects to others. Returns how many.
fn island(out: &mut impl Write, history: &History, keys: &[u32], name: &str, expect: &str) -> io::Result<usize> {
    let number = |key: u32| keys.partition_point(|each| *each < key);
    let inside = |operation: &&Operation| match operation.kind() {
        // A range is answered by the keys inside of it; without any it says nothing, unless it claims one.
        Kind::Range => {
            let claimed = history.pairs(operation).iter().any(|pair| keys.binary_search(&pair.0).is_ok());
            number(operation.step.key) < number(operation.high) || claimed
        }
        _ => history.steps(operation).first().is_some_and(|step| keys.binary_search(&step.key).is_ok()),
    };
    let operations: Vec<&Operation> = happened(history).filter(inside).collect();
    let mut clients: Vec<u64> = operations.iter().map(|operation| operation.client).collect();
    clients.sort_unstable();
    clients.dedup();
    let mut times: Vec<(u64, bool, usize)> = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        times.push((operation.invoked, false, index));
        times.push((operation.returned, true, index));
    }
    // Invocations first on equal times; unanswered operations return last.
    times.sort_unstable();
    let mut ranks = vec![(0, 0); operations.len()];
    for (rank, (_, is_return, index)) in times.iter().enumerate() {
        if *is_return {
            ranks[*index].1 = rank;
        } else {
            ranks[*index].0 = rank;
        }
    }
    write!(out, "{{\"name\":\"{name}\",\"expect\":\"{expect}\",\"keys\":{},\"state\":[", keys.len())?;
    let state = history.state.iter().filter(|pair| keys.binary_search(&pair.0).is_ok());
    let state: Vec<String> = state.map(|(key, value)| format!("[{},{value}]", number(*key))).collect();
    write!(out, "{}],\"operations\":[", state.join(","))?;
    for (index, operation) in operations.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let (call, back) = ranks[index];
        let answered = operation.returned != NEVER;
        // A client has one operation at a time; one without an end is its own client. Names of clients need 64 bits,
        // their numbers here few.
        let client = clients.partition_point(|each| *each < operation.client);
        let client = if answered { client } else { clients.len() + index };
        let low = number(operation.step.key);
        let high = number(operation.high).max(low);
        let pairs = history.pairs(operation).iter().map(|(key, value)| format!("[{},{value}]", number(*key)));
        let pairs: Vec<String> = pairs.collect();
        let steps: Vec<String> =
            history.steps(operation).iter().map(|step| step_text(step, number(step.key))).collect();
        write!(out, "{comma}{{\"id\":{},\"client\":{client},\"call\":{call},\"return\":{back},", operation.id)?;
        write!(out, "\"answered\":{answered},\"low\":{low},\"high\":{high},\"pairs\":[{}],", pairs.join(","))?;
        write!(out, "\"steps\":[{}]}}", steps.join(","))?;
    }
    out.write_all(b"]}\n")?;
    Ok(operations.len())
}

fn step_text(step: &Step, key: usize) -> String {
    let kind = match step.kind {
        Kind::Get => 0,
        Kind::Put => 1,
        Kind::Insert => 2,
        Kind::Delete => 3,
        Kind::Cas => 4,
        Kind::Range | Kind::Many => 5,
    };
    let value = |value: u32| if value == NONE { -1 } else { i64::from(value) };
    let (new, old, seen, done) = (value(step.value), value(step.old), value(step.seen), step.done);
    format!("{{\"kind\":{kind},\"key\":{key},\"value\":{new},\"old\":{old},\"seen\":{seen},\"done\":{done}}}")
}
