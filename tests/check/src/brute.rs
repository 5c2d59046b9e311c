//! The judge of small histories: tries every order. Shares nothing with the checkers but the history: no rules, no
//! memory, no prior reasoning. At most about eight operations.

use std::collections::BTreeMap;

use super::event::Status;
use super::history::{History, Kind, Operation, Step};
use super::intern::{NONE, UNSAID};

/// Whether some order of the operations, unanswered ones in it or not, respects real time and gives every answer.
pub fn is_linearizable(history: &History) -> bool {
    let state: BTreeMap<u32, u32> = history.state.iter().copied().collect();
    let refused = |operation: &Operation| operation.status == Some(Status::No);
    let done = history.operations.iter().map(refused).collect();
    Brute { history, done }.search(&state)
}

struct Brute<'a> {
    history: &'a History,
    done: Vec<bool>,
}

impl Brute<'_> {
    fn search(&mut self, state: &BTreeMap<u32, u32>) -> bool {
        let operations = &self.history.operations;
        let left = |index: &usize| !self.done[*index];
        let answered = |index: &usize| operations[*index].status == Some(Status::Ok);
        let first = (0..operations.len()).filter(left).filter(answered).map(|index| operations[index].returned).min();
        let Some(first) = first else { return true };
        for index in (0..operations.len()).filter(|index| !self.done[*index]).collect::<Vec<_>>() {
            let operation = &operations[index];
            if operation.invoked > first {
                continue;
            }
            if let Some(after) = run(self.history, operation, state) {
                self.done[index] = true;
                if self.search(&after) {
                    return true;
                }
                self.done[index] = false;
            }
        }
        false
    }
}

/// The state after an operation, if its answer (where it has one) is right.
fn run(history: &History, operation: &Operation, state: &BTreeMap<u32, u32>) -> Option<BTreeMap<u32, u32>> {
    let answered = operation.status == Some(Status::Ok);
    let mut state = state.clone();
    if operation.kind() == Kind::Range {
        let (low, high) = (operation.step.key, operation.high);
        let found = state.iter().filter(|(key, _)| **key >= low && **key < high);
        let right = found.map(|(key, value)| (*key, *value)).eq(history.pairs(operation).iter().copied());
        return (right || !answered).then_some(state);
    }
    for step in history.steps(operation) {
        let (seen, done) = run_step(step, &mut state);
        let fits = seen == step.seen || step.seen == UNSAID;
        if answered && !(fits && (step.kind != Kind::Cas || done == step.done)) {
            return None;
        }
    }
    Some(state)
}

fn run_step(step: &Step, state: &mut BTreeMap<u32, u32>) -> (u32, bool) {
    let seen = state.get(&step.key).copied();
    let done = match step.kind {
        Kind::Put => {
            state.insert(step.key, step.value);
            true
        }
        Kind::Insert if seen.is_none() => {
            state.insert(step.key, step.value);
            true
        }
        Kind::Delete => state.remove(&step.key).is_some(),
        Kind::Cas if seen == Some(step.old) => {
            state.insert(step.key, step.value);
            true
        }
        _ => false,
    };
    (seen.unwrap_or(NONE), done)
}
