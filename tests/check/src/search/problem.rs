//! A history as the search wants it: what each operation must find and what it leaves, which ones must be placed and by
//! when, and what rules P3 and P4 need to know.

use super::super::certificate::LogFindings;
use super::super::event::NEVER;
use super::super::facts::{Facts, NOBODY};
use super::super::history::{History, Kind, Operation, Step};
use super::super::intern::{NONE, UNSAID};

/// How an operation is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Changes nothing.
    Read,
    /// Its effect is known before it is placed.
    Known,
    /// Unanswered: its effect depends on what it finds.
    Blind,
}

/// One operation of the search.
#[derive(Clone, Debug)]
pub struct Task {
    /// Index in the history.
    pub operation: u32,
    /// See [`Form`].
    pub form: Form,
    /// Must be placed; the others may be left out.
    pub mandatory: bool,
    /// When it was invoked, in nanoseconds.
    pub invoked: u64,
    /// Must be placed before what is invoked after this.
    pub returned: u64,
    /// Bounds of a range, whose checks are all pairs inside; else empty.
    pub low: u32,
    /// First key above the range, by rank.
    pub high: u32,
    checks: (u32, u32),
    writes: (u32, u32),
}

/// What P4 knows of the life of a key that a value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeEnd {
    /// When the delete that ends it was invoked.
    Invoked(u64),
    /// It never ends.
    Never,
    /// Not known (trap 1): no rule.
    Unknown,
}

/// All tasks.
pub struct Problem {
    /// In order of invocation.
    pub tasks: Vec<Task>,
    /// The mandatory ones, in order of their deadlines.
    pub by_return: Vec<u32>,
    /// Unanswered ones that may be left out, in order of invocation.
    pub optional: Vec<u32>,
    pairs: Vec<(u32, u32)>,
    /// Per value: the end of the life that it begins, if a write of it makes its key present.
    pub life_end: Vec<LifeEnd>,
    absent_start: Vec<u32>,
    absent: Vec<u32>,
    absent_least: Vec<u32>,
    seen: Vec<bool>,
    /// Per key: unanswered `many`s that may do something to it.
    pub blind: Vec<Vec<u32>>,
    /// Per key: writes that do not say what was there before.
    pub unchained: Vec<Vec<u32>>,
}

/// Pairs of a range and a key that it saw absent, beyond which P4 does without ranges: 8 bytes each.
const ABSENT_MAX: usize = 40_000_000;

impl Problem {
    /// The search problem of a history: what must be ordered, and what each operation saw.
    pub fn new(history: &History, facts: &Facts, judged: Option<&LogFindings>) -> Problem {
        let mut problem = Problem {
            tasks: Vec::with_capacity(history.operations.len()),
            by_return: Vec::new(),
            optional: Vec::new(),
            pairs: Vec::new(),
            life_end: Vec::new(),
            absent_start: Vec::new(),
            absent: Vec::new(),
            absent_least: Vec::new(),
            seen: facts.seen.iter().map(|seen| *seen != NEVER).collect(),
            blind: vec![Vec::new(); history.keys.len()],
            unchained: vec![Vec::new(); history.keys.len()],
        };
        for (index, operation) in history.operations.iter().enumerate() {
            let happened = judged.is_none_or(|judged| judged.counted[index].is_some());
            problem.add(history, facts, index as u32, operation, happened);
        }
        let tasks = &problem.tasks;
        problem.by_return = (0..tasks.len() as u32).filter(|task| tasks[*task as usize].returned != NEVER).collect();
        problem.by_return.sort_by_key(|task| tasks[*task as usize].returned);
        problem.optional = (0..tasks.len() as u32).filter(|task| !tasks[*task as usize].mandatory).collect();
        problem.life_ends(history, facts);
        problem.absences(history);
        problem
    }

    fn add(&mut self, history: &History, facts: &Facts, index: u32, operation: &Operation, happened: bool) {
        let deadline = facts.deadline(history, operation);
        let steps = history.steps(operation);
        let form = if operation.is_ok() {
            if steps.iter().any(|step| step.done) { Form::Known } else { Form::Read }
        } else if operation.status.is_some() || operation.is_read() {
            return;
        } else if deadline != NEVER && operation.kind() != Kind::Many {
            Form::Known
        } else if deadline != NEVER || (happened && steps.iter().any(|step| step.kind == Kind::Delete)) {
            Form::Blind
        } else {
            // Never seen: had it taken effect, the next answered operation there would have shown its value (E2).
            return;
        };
        let net = facts.net(history, operation).unwrap_or_default();
        let mut push = |pairs: &[(u32, u32)]| {
            let start = self.pairs.len() as u32;
            self.pairs.extend_from_slice(pairs);
            (start, self.pairs.len() as u32)
        };
        let range = operation.kind() == Kind::Range;
        let checks = push(if range { history.pairs(operation) } else { &net.checks });
        let writes = push(if form == Form::Blind { &[] } else { &net.writes });
        // An answered `many` may write and take back: then it changes nothing.
        let task = self.tasks.len() as u32;
        if form == Form::Blind && operation.kind() == Kind::Many {
            steps.iter().for_each(|step| self.blind[step.key as usize].push(task));
        } else if form == Form::Known && net.checks.is_empty() {
            self.unchained[operation.step.key as usize].push(task);
        }
        let form = if form == Form::Known && writes.0 == writes.1 { Form::Read } else { form };
        self.tasks.push(Task {
            operation: index,
            form,
            mandatory: operation.is_ok() || deadline != NEVER,
            invoked: operation.invoked,
            returned: deadline,
            low: if range { operation.step.key } else { 0 },
            high: if range { operation.high } else { 0 },
            checks,
            writes,
        });
    }

    /// What a task must find: key and value, or `NONE` for absent.
    pub fn checks(&self, task: &Task) -> &[(u32, u32)] {
        &self.pairs[task.checks.0 as usize..task.checks.1 as usize]
    }

    /// What a task leaves where it changes something.
    pub fn writes(&self, task: &Task) -> &[(u32, u32)] {
        &self.pairs[task.writes.0 as usize..task.writes.1 as usize]
    }

    /// Whether anybody saw a value.
    pub fn was_seen(&self, value: u32) -> bool {
        self.seen[value as usize]
    }

    /// Tasks that must see a key absent, in order of their deadlines; and for each the one invoked first among it and
    /// those behind it.
    pub fn absent(&self, key: u32) -> (&[u32], &[u32]) {
        let (from, to) = (self.absent_start[key as usize] as usize, self.absent_start[key as usize + 1] as usize);
        (&self.absent[from..to], &self.absent_least[from..to])
    }

    /// P4 and trap 1: follow the values that replaced each other.
    fn life_ends(&mut self, history: &History, facts: &Facts) {
        let mut unsaid_ends = vec![false; history.keys.len()];
        for task in &self.tasks {
            let operation = &history.operations[task.operation as usize];
            let unsaid = |step: &&Step| !operation.is_ok() || step.seen == UNSAID;
            history.steps(operation).iter().filter(unsaid).for_each(|step| unsaid_ends[step.key as usize] = true);
        }
        let values = facts.next.len();
        self.life_end = vec![LifeEnd::Unknown; values];
        // 0: not known yet, 1: on the path, 2: known.
        let mut state = vec![0_u8; values];
        for first in 0..values as u32 {
            let mut path = Vec::new();
            let mut value = first;
            let end = loop {
                match state[value as usize] {
                    2 => break self.life_end[value as usize],
                    1 => break LifeEnd::Unknown,
                    _ => {}
                }
                state[value as usize] = 1;
                path.push(value);
                let (next, left) = (facts.next[value as usize], facts.next_value[value as usize]);
                let key = facts.key[value as usize];
                if next == NOBODY {
                    let broken = key == NONE || unsaid_ends[key as usize];
                    break if broken && !mutant!(trap_broken_chain) { LifeEnd::Unknown } else { LifeEnd::Never };
                }
                if left == NONE {
                    break LifeEnd::Invoked(history.operations[next as usize].invoked);
                }
                value = left;
            };
            for value in path {
                state[value as usize] = 2;
                self.life_end[value as usize] = end;
            }
        }
    }

    fn absences(&mut self, history: &History) {
        let mut written = vec![false; history.keys.len()];
        for task in &self.tasks {
            let steps = history.steps(&history.operations[task.operation as usize]).iter();
            let changes = |step: &&Step| !matches!(step.kind, Kind::Get | Kind::Range);
            steps.filter(changes).for_each(|step| written[step.key as usize] = true);
        }
        let keys: Vec<u32> = (0..written.len() as u32).filter(|key| written[*key as usize]).collect();
        let mut ranges = true;
        loop {
            let mut counts = vec![0_u32; written.len() + 1];
            let total = self.each_absence(&keys, ranges, &mut |key, _| counts[key as usize + 1] += 1);
            if ranges && total > ABSENT_MAX {
                ranges = false;
                continue;
            }
            for key in 1..counts.len() {
                counts[key] += counts[key - 1];
            }
            let mut fill = counts.clone();
            let mut absent = vec![0; total];
            self.each_absence(&keys, ranges, &mut |key, task| {
                absent[fill[key as usize] as usize] = task;
                fill[key as usize] += 1;
            });
            // Tasks are numbered in order of invocation.
            let mut least = absent.clone();
            for key in 0..written.len() {
                for at in (counts[key] as usize..(counts[key + 1] as usize).saturating_sub(1)).rev() {
                    least[at] = least[at].min(least[at + 1]);
                }
            }
            (self.absent_start, self.absent, self.absent_least) = (counts, absent, least);
            return;
        }
    }

    /// Visits each key (of `keys`, sorted) and each mandatory task that must see it absent; returns how many.
    fn each_absence(&self, keys: &[u32], ranges: bool, visit: &mut dyn FnMut(u32, u32)) -> usize {
        let mut total = 0;
        for &index in &self.by_return {
            let task = &self.tasks[index as usize];
            if task.low < task.high {
                if !ranges {
                    continue;
                }
                let mut present = self.checks(task).iter().map(|pair| pair.0).peekable();
                let first = keys.partition_point(|key| *key < task.low);
                for &key in keys[first..].iter().take_while(|key| **key < task.high) {
                    while present.next_if(|seen| *seen < key).is_some() {}
                    if present.peek() != Some(&key) {
                        visit(key, index);
                        total += 1;
                    }
                }
                continue;
            }
            for (key, _) in self.checks(task).iter().filter(|check| check.1 == NONE) {
                visit(*key, index);
                total += 1;
            }
        }
        total
    }
}
