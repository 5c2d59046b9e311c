//! What a history says without any search: who wrote each value, who saw it, who replaced it, and by when an unanswered
//! write must have happened because its value was seen. Shared by the search and the graph.

use super::event::{NEVER, Status};
use super::history::{History, Kind, Operation, Step};
use super::intern::{NONE, UNSAID};
use super::verdict::Violation;

pub const NOBODY: u32 = u32::MAX;
/// It was there at the start.
pub const START: u32 = u32::MAX - 1;

/// Per value, as numbered by the history.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Which operation writes it, if that has an effect; [`START`], [`NOBODY`].
    pub writer: Vec<u32>,
    /// The key that it is written to.
    pub key: Vec<u32>,
    /// The earliest answer of those that saw it; an unanswered cas that must have happened saw what it expected.
    /// `NEVER`: nobody did.
    pub seen: Vec<u64>,
    /// Which operation replaced or deleted it, according to that one's answer.
    pub next: Vec<u32>,
    /// What that one left: a value, or [`NONE`].
    pub next_value: Vec<u32>,
}

/// An operation's effect as a whole: what it must find, and what it leaves where that differs.
#[derive(Clone, Debug, Default)]
pub struct Net {
    /// Key and value (`NONE`: absent), each key once.
    pub checks: Vec<(u32, u32)>,
    /// Key and value (`NONE`: absent), each key once.
    pub writes: Vec<(u32, u32)>,
}

/// Facts, or the simplest kind of violation: a value from nowhere, two that replaced one value. `Err(Err(..))`: the
/// history breaks the rule of unique values (E1), so that these checks do not apply.
pub fn facts(history: &History) -> Result<Facts, Result<Box<Violation>, String>> {
    if let Some(complaint) = history.impossible.first() {
        return Err(Ok(violation(complaint.what.clone(), [complaint.operation])));
    }
    let values = history.values.len();
    let mut facts = Facts {
        writer: vec![NOBODY; values],
        key: vec![NONE; values],
        seen: vec![NEVER; values],
        next: vec![NOBODY; values],
        next_value: vec![NONE; values],
    };
    facts.writers(history).map_err(Err)?;
    facts.observers(history).map_err(Ok)?;
    facts.deadlines(history).map_err(Ok)?;
    facts.replaced(history).map_err(Ok)?;
    Ok(facts)
}

fn violation(what: String, about: impl IntoIterator<Item = u32>) -> Box<Violation> {
    Box::new(Violation { what, about: about.into_iter().collect(), ..Violation::default() })
}

/// Whether a step may have written its value.
fn may_write(operation: &Operation, step: &Step) -> bool {
    step.value != NONE && operation.status != Some(Status::No) && (step.done || !operation.is_ok())
}

impl Facts {
    fn writers(&mut self, history: &History) -> Result<(), String> {
        for &(key, value) in &history.state {
            if self.writer[value as usize] != NOBODY {
                return Err(format!("the value {} stands twice in the state at the start", history.value(value)));
            }
            (self.writer[value as usize], self.key[value as usize]) = (START, key);
        }
        for (index, operation) in history.operations.iter().enumerate() {
            for step in history.steps(operation).iter().filter(|step| may_write(operation, step)) {
                let writer = &mut self.writer[step.value as usize];
                if *writer != NOBODY {
                    let value = history.value(step.value);
                    return Err(format!("the value {value} is written twice: values must be unique (E1)"));
                }
                (*writer, self.key[step.value as usize]) = (index as u32, step.key);
            }
        }
        Ok(())
    }

    fn observers(&mut self, history: &History) -> Result<(), Box<Violation>> {
        for (index, operation) in history.operations.iter().enumerate().filter(|(_, operation)| operation.is_ok()) {
            let says = |step: &&Step| step.kind != Kind::Range && step.seen != UNSAID;
            let steps = history.steps(operation).iter().filter(says);
            let seen = steps.map(|step| (step.key, step.seen));
            for (key, value) in seen.chain(history.pairs(operation).iter().copied()).filter(|pair| pair.1 != NONE) {
                self.known(history, index as u32, key, value)?;
                let seen = &mut self.seen[value as usize];
                *seen = (*seen).min(operation.returned);
            }
        }
        Ok(())
    }

    /// A value that was seen at a key must have been written there.
    fn known(&self, history: &History, index: u32, key: u32, value: u32) -> Result<(), Box<Violation>> {
        let name = || history.value(value);
        if self.writer[value as usize] == NOBODY {
            let what =
                format!("{} was seen at {}, but nothing that may have happened wrote it", name(), history.key(key));
            return Err(violation(what, [index]));
        }
        if self.key[value as usize] != key {
            let written = history.key(self.key[value as usize]);
            let what = format!("{} was seen at {}, but written to {written}", name(), history.key(key));
            return Err(violation(what, [index]));
        }
        Ok(())
    }

    /// An unanswered cas whose value was seen did happen, so it saw what it expected: that value's writer did, too.
    fn deadlines(&mut self, history: &History) -> Result<(), Box<Violation>> {
        let mut changed = true;
        while changed {
            changed = false;
            let operations = history.operations.iter().enumerate();
            for (index, operation) in operations.filter(|(_, operation)| operation.status.is_none()) {
                let deadline = self.deadline(history, operation);
                for step in history.steps(operation).iter().filter(|step| step.kind == Kind::Cas) {
                    if self.seen[step.value as usize] != NEVER && self.seen[step.old as usize] > deadline {
                        self.known(history, index as u32, step.key, step.old)?;
                        self.seen[step.old as usize] = deadline;
                        changed = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// By when an operation must have happened: its answer, or that of the first that saw what it wrote.
    pub fn deadline(&self, history: &History, operation: &Operation) -> u64 {
        if operation.status.is_some() {
            return operation.returned;
        }
        let steps = history.steps(operation).iter().filter(|step| step.value != NONE);
        steps.map(|step| self.seen[step.value as usize]).min().unwrap_or(NEVER)
    }

    fn replaced(&mut self, history: &History) -> Result<(), Box<Violation>> {
        for (index, operation) in history.operations.iter().enumerate() {
            if operation.is_read() || !(operation.is_ok() || self.deadline(history, operation) != NEVER) {
                continue;
            }
            let net = self.net(history, operation).map_err(|what| violation(what, [index as u32]))?;
            let own = |check: &&(u32, u32)| check.1 != NONE && self.writer[check.1 as usize] == index as u32;
            if let Some(check) = net.checks.iter().find(own) {
                let what = format!("it saw its own value {} before it wrote it", history.value(check.1));
                return Err(violation(what, [index as u32]));
            }
            for &(key, value) in &net.writes {
                let found = net.checks.iter().find(|check| check.0 == key && check.1 != NONE);
                let Some(&(_, old)) = found else { continue };
                let next = &mut self.next[old as usize];
                if *next != NOBODY {
                    let (old, key) = (history.value(old), history.key(key));
                    let what = format!("two operations replaced the value {old} of {key}: an update was lost");
                    return Err(violation(what, [*next, index as u32]));
                }
                (*next, self.next_value[old as usize]) = (index as u32, value);
            }
        }
        Ok(())
    }

    /// The whole effect of an answered operation, or what is sure of an unanswered one that happened. The error: its
    /// own results contradict each other.
    pub fn net(&self, history: &History, operation: &Operation) -> Result<Net, String> {
        let mut net = Net::default();
        // What each key holds between the steps, as far as it is known.
        let mut now: Vec<(u32, Option<u32>)> = Vec::new();
        let unknown = |step: &&Step| step.kind == Kind::Range || (step.kind == Kind::Get && !operation.is_ok());
        for step in history.steps(operation).iter().filter(|step| !unknown(step)) {
            let at = now.iter().position(|(key, _)| *key == step.key);
            let before = at.map(|at| now[at].1);
            let (check, after) = self.effect(operation, step, before.flatten());
            match (before, check) {
                (None, Some(seen)) => net.checks.push((step.key, seen)),
                (Some(Some(before)), Some(seen)) if before != seen => {
                    return Err(format!("its own steps contradict each other at {}", history.key(step.key)));
                }
                _ => {}
            }
            match at {
                Some(at) => now[at].1 = after,
                None => now.push((step.key, after)),
            }
        }
        for (key, after) in now {
            let before = net.checks.iter().find(|check| check.0 == key).map(|check| check.1);
            match after {
                Some(after) if Some(after) != before => net.writes.push((key, after)),
                _ => {}
            }
        }
        Ok(net)
    }

    /// What a step must find, and what it leaves; `None`: not known.
    fn effect(&self, operation: &Operation, step: &Step, before: Option<u32>) -> (Option<u32>, Option<u32>) {
        if operation.is_ok() {
            let seen = (step.seen != UNSAID).then_some(step.seen);
            return (seen, step.writes().or(seen));
        }
        let happened = step.value != NONE && self.seen[step.value as usize] != NEVER;
        match step.kind {
            Kind::Put => (None, Some(step.value)),
            Kind::Delete => (None, Some(NONE)),
            Kind::Insert if happened => (Some(NONE), Some(step.value)),
            Kind::Cas if happened => (Some(step.old), Some(step.value)),
            _ => (None, before.map(|before| step.execute(before).unwrap_or(before))),
        }
    }
}
