//! Step 7 of hazards.md 3.2: replay the order and compare every answer, each range in every pair. Stale reads are
//! compared when their partitions are at the positions that they name.

use std::collections::BTreeMap;

use super::super::history::{History, Kind, Operation};
use super::super::intern::{NONE, UNSAID};
use super::super::state::State;
use super::super::verdict::{Violation, describe};
use super::judge::{LogFindings, wrong};

/// The first answer that the order does not give.
pub fn replay(history: &History, judged: &LogFindings, order: &[u32]) -> Option<Box<Violation>> {
    let mut state = State::new(history.keys.len(), &history.state);
    let mut stale = StaleReads::new(history, judged);
    if let Some(violation) = stale.check_all(history, &state) {
        return Some(violation);
    }
    for &node in order {
        if let Some(operation) = history.operations.get(node as usize)
            && let Err((key, seen)) = execute(history, operation, &mut state)
        {
            return Some(differs(history, &state, node, key, seen));
        }
        if let Some(violation) = stale.pass(history, node, &state) {
            return Some(violation);
        }
    }
    None
}

/// Runs one operation; the error is a key and what the answer says of it.
pub fn execute(history: &History, operation: &Operation, state: &mut State) -> Result<(), (u32, u32)> {
    if operation.kind() == Kind::Range {
        return compare_range(history.pairs(operation), state, operation.step.key, operation.high);
    }
    for step in history.steps(operation) {
        let current = state.get(step.key);
        let change = step.execute(current);
        let said = operation.is_ok() && step.seen != UNSAID;
        if said && (current != step.seen || change != step.writes()) {
            return Err((step.key, step.seen));
        }
        if let Some(value) = change {
            state.set(step.key, value);
        }
    }
    Ok(())
}

fn compare_range(pairs: &[(u32, u32)], state: &State, low: u32, high: u32) -> Result<(), (u32, u32)> {
    let mut present = state.range(low, high);
    for &(key, value) in pairs {
        match present.next() {
            Some(pair) if pair == (key, value) => {}
            Some((earlier, _)) if earlier < key => return Err((earlier, NONE)),
            _ => return Err((key, value)),
        }
    }
    present.next().map_or(Ok(()), |(key, _)| Err((key, NONE)))
}

/// An answer that the order does not give. `state` is that after the operation: all writers so far are looked up.
fn differs(history: &History, state: &State, node: u32, key: u32, seen: u32) -> Box<Violation> {
    let name = history.key(key);
    let is = state.get(key);
    let what = format!(
        "an answer differs from what the logs give: {name} was seen as {}, and is {}",
        history.value(seen),
        history.value(is)
    );
    let writer = |value: u32| {
        let writes =
            |operation: &Operation| history.steps(operation).iter().any(|step| step.value == value && step.key == key);
        history.operations.iter().position(writes).filter(|_| value != NONE).map(|index| index as u32)
    };
    let mut about = vec![node];
    about.extend([writer(seen), writer(is)].into_iter().flatten().filter(|writer| *writer != node));
    wrong(what, about)
}

/// One part of a stale read: it must equal the keys of one partition when the chain of that partition has `gap` nodes.
struct StalePart {
    partition: u32,
    gap: usize,
    read: usize,
    /// Which one of its read, in the order of keys.
    number: usize,
    bounds: (u32, u32),
}

/// A stale read of partitions that were merged meanwhile. Where one of its parts ended and the next began only its
/// client knows: there must be places that make every part right.
struct MergedState {
    /// Of each part, in the order of keys, and of each key of the read: whether the part may have given it.
    right: Vec<Vec<bool>>,
    /// Parts that were not looked at yet.
    left: usize,
}

struct StaleReads {
    /// By partition and gap, the next one last.
    parts: Vec<StalePart>,
    /// By read.
    merged: BTreeMap<usize, MergedState>,
    /// Partition by number, and how many nodes of its chain were passed.
    passed: Vec<(u32, usize)>,
    /// The partitions of each node; empty when there are no stale reads.
    chains_of: Vec<Vec<u32>>,
}

impl StaleReads {
    fn new(history: &History, judged: &LogFindings) -> StaleReads {
        let (mut parts, mut merged) = (Vec::new(), BTreeMap::new());
        for (read, operation) in history.stale.iter().enumerate().filter(|(_, operation)| operation.is_ok()) {
            let first = parts.len();
            for at in history.positions(operation) {
                let partition = &judged.partitions[&at.partition];
                let gap = partition.gap(at.place());
                let bounds = partition.bounds_at(at.place());
                parts.push(StalePart { partition: at.partition, gap, read, number: 0, bounds });
            }
            let of_read = &mut parts[first..];
            if operation.reverse {
                of_read.reverse();
            }
            (0..).zip(&mut *of_read).for_each(|(number, part)| part.number = number);
            // The next one is behind this one, or a part of what this one was before a split that it has not seen.
            let split = |one: (u32, u32), next: (u32, u32)| one.0 < next.0 && (one.1 <= next.0 || next.1 <= one.1);
            if of_read.windows(2).any(|pair| !split(pair[0].bounds, pair[1].bounds)) {
                merged.insert(read, MergedState { right: vec![Vec::new(); of_read.len()], left: of_read.len() });
                continue;
            }
            // Where the next part begins, this one ends.
            for next in 1..of_read.len() {
                of_read[next - 1].bounds.1 = of_read[next - 1].bounds.1.min(of_read[next].bounds.0);
            }
        }
        parts.sort_by_key(|part| std::cmp::Reverse((part.partition, part.gap)));
        let mut chains_of = Vec::new();
        if !parts.is_empty() {
            chains_of = vec![Vec::new(); history.operations.len() + judged.joints as usize];
            for (number, partition) in &judged.partitions {
                partition.chain.iter().for_each(|(_, node)| chains_of[*node as usize].push(*number));
            }
        }
        let passed = judged.partitions.keys().map(|number| (*number, 0)).collect();
        StaleReads { parts, merged, passed, chains_of }
    }

    /// After `node` was replayed.
    fn pass(&mut self, history: &History, node: u32, state: &State) -> Option<Box<Violation>> {
        let chains = std::mem::take(self.chains_of.get_mut(node as usize)?);
        for number in chains {
            let at = self.passed.partition_point(|(each, _)| *each < number);
            self.passed[at].1 += 1;
            let gap = self.passed[at].1;
            if let Some(violation) = self.check(history, number, gap, state) {
                return Some(violation);
            }
        }
        None
    }

    fn check_all(&mut self, history: &History, state: &State) -> Option<Box<Violation>> {
        let numbers: Vec<u32> = self.passed.iter().map(|(number, _)| *number).collect();
        numbers.into_iter().find_map(|number| self.check(history, number, 0, state))
    }

    fn check(&mut self, history: &History, partition: u32, gap: usize, state: &State) -> Option<Box<Violation>> {
        let key = |part: &StalePart| std::cmp::Reverse((part.partition, part.gap));
        let wanted = std::cmp::Reverse((partition, gap));
        let from = self.parts.partition_point(|part| key(part) < wanted);
        let to = self.parts.partition_point(|part| key(part) <= wanted);
        let merged = &mut self.merged;
        self.parts[from..to].iter().find_map(|part| match merged.get_mut(&part.read) {
            Some(merged) => merged.check(history, part, state),
            None => check_stale(history, part, state),
        })
    }
}

impl MergedState {
    /// Looks at one part; the violation is known with the last one.
    fn check(&mut self, history: &History, part: &StalePart, state: &State) -> Option<Box<Violation>> {
        let operation = &history.stale[part.read];
        let (low, high) = (operation.step.key, operation.high.min(history.keys.len() as u32));
        let pairs = history.pairs(operation);
        let seen = |key: u32| pairs.binary_search_by_key(&key, |pair| pair.0).map_or(NONE, |at| pairs[at].1);
        let inside = |key: u32| part.bounds.0 <= key && key < part.bounds.1;
        self.right[part.number] = (low..high).map(|key| inside(key) && state.get(key) == seen(key)).collect();
        self.left -= 1;
        let keys = (high.saturating_sub(low)) as usize;
        if self.left > 0 || self.tiles(keys) {
            return None;
        }
        let what = "no places where its parts may meet make a stale read right at the positions that it names";
        Some(wrong(format!("{what}: {}", describe(history, operation)), []))
    }

    /// Whether the parts, in their order, can cover so many keys.
    fn tiles(&self, keys: usize) -> bool {
        // Where the parts so far may end, counted in keys.
        let mut ends = vec![false; keys + 1];
        ends[0] = true;
        for right in &self.right {
            let mut covers = false;
            for at in 0..=keys {
                covers = ends[at] || (covers && right[at - 1]);
                ends[at] = covers;
            }
        }
        ends[keys]
    }
}

fn check_stale(history: &History, part: &StalePart, state: &State) -> Option<Box<Violation>> {
    let operation = &history.stale[part.read];
    let result = if operation.kind() == Kind::Get {
        let current = state.get(operation.step.key);
        if current == operation.step.seen { Ok(()) } else { Err((operation.step.key, operation.step.seen)) }
    } else {
        let low = part.bounds.0.max(operation.step.key);
        let high = part.bounds.1.min(operation.high);
        let pairs = history.pairs(operation);
        let from = pairs.partition_point(|pair| pair.0 < low);
        let to = pairs.partition_point(|pair| pair.0 < high);
        compare_range(&pairs[from..to.max(from)], state, low, high)
    };
    let (key, seen) = result.err()?;
    let what = format!(
        "a stale read differs from the state of p{} at its position: {} was seen as {}, and is {}: {}",
        part.partition,
        history.key(key),
        history.value(seen),
        history.value(state.get(key)),
        describe(history, operation)
    );
    Some(wrong(what, []))
}
