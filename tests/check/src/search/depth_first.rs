//! The search itself: depth first over the operations that may come next, with undo, memory of configurations, and the
//! rules of hazards.md 3.3. It knows tasks, keys and values as numbers.

use std::time::{Duration, Instant};

use super::super::event::NEVER;
use super::super::history::{History, Step};
use super::super::intern::{FastSet, NONE};
use super::placement::Placement;
use super::problem::{Form, LifeEnd, Problem, Task};

/// When the search gives up: the history is then unknown, never a pass.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Candidates looked at.
    pub steps: u64,
    /// Wall clock.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { steps: 200_000_000, time: Duration::from_secs(60) }
    }
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All mandatory tasks are placed.
    Found,
    /// No order exists.
    Exhausted,
    /// Not known.
    OverLimits,
}

struct PlacedTask {
    task: u32,
    /// Without a branch (P2).
    eager: bool,
    /// Where its undo records begin.
    undo: u32,
}

/// Where to look for the next candidate.
#[derive(Clone, Copy)]
enum Cursor {
    /// At this mandatory task, then the optional ones.
    Mandatory(u32),
    /// At this place of the list of optional ones.
    Optional(u32),
}

pub struct Search<'a> {
    history: &'a History,
    problem: &'a Problem,
    budget: Budget,
    now: Placement,
    /// Per key: the first absent-observer whose deadline is not before the earliest one (P4); moves both ways.
    absent_at: Vec<u32>,
    /// Per task: the pair of a range that did not fit last time.
    misfit: Vec<u32>,
    stack: Vec<PlacedTask>,
    undo: Vec<(u32, u32)>,
    /// Configurations that were visited, by their hashes.
    seen: FastSet<u128>,
    /// Changes of a blind task: key, value before, value after.
    changes: Vec<(u32, u32, u32)>,
    best: DeadEnd,
}

/// What a search has used, of what it may.
struct Budget {
    limits: Limits,
    steps: u64,
    started: Instant,
}

impl Budget {
    fn is_over(&self) -> bool {
        self.steps > self.limits.steps || self.started.elapsed() > self.limits.time
    }
}

/// Where the search could not go on, with the fewest tasks left.
#[derive(Clone, Debug)]
pub struct DeadEnd {
    /// Mandatory tasks that were not placed.
    pub left: usize,
    /// The one that had to be next.
    pub task: Option<u32>,
    /// Keys that it found otherwise: key, value held, value wanted.
    pub misfits: Vec<(u32, u32, u32)>,
}

impl<'a> Search<'a> {
    pub fn new(history: &'a History, problem: &'a Problem, limits: Limits) -> Search<'a> {
        let (tasks, keys) = (problem.tasks.len(), history.keys.len());
        Search {
            history,
            problem,
            budget: Budget { limits, steps: 0, started: Instant::now() },
            now: Placement::new(history, problem),
            absent_at: vec![0; keys],
            misfit: vec![0; tasks],
            stack: Vec::with_capacity(tasks),
            undo: Vec::new(),
            seen: FastSet::default(),
            changes: Vec::new(),
            best: DeadEnd { left: usize::MAX, task: None, misfits: Vec::new() },
        }
    }

    /// The order found.
    pub fn order(&self) -> impl Iterator<Item = u32> + '_ {
        self.stack.iter().map(|placed| placed.task)
    }

    /// Candidates looked at.
    pub fn steps(&self) -> u64 {
        self.budget.steps
    }

    /// The dead end with the fewest tasks left.
    pub fn best(&self) -> &DeadEnd {
        &self.best
    }

    pub fn run(&mut self) -> Outcome {
        let mut cursor = self.arrive();
        let mut checked = 0;
        loop {
            if self.now.left == 0 {
                return Outcome::Found;
            }
            if self.budget.steps - checked > 1 << 20 {
                checked = self.budget.steps;
                if self.budget.is_over() {
                    return Outcome::OverLimits;
                }
            }
            if let Some(task) = self.next_write(cursor) {
                self.place(task, false);
                cursor = self.arrive();
                if self.seen.insert(self.now.hash) {
                    continue;
                }
            } else {
                self.note_dead_end();
            }
            match self.back() {
                Some(next) => cursor = next,
                None => return Outcome::Exhausted,
            }
        }
    }

    /// Until when tasks may have been invoked to be candidates: the earliest deadline left.
    fn bound(&self) -> u64 {
        self.problem.tasks.get(self.now.due.first() as usize).map_or(NEVER, |task| task.returned)
    }

    /// P2 and P6: takes all that can be taken without a branch, again and again until nothing more can.
    fn arrive(&mut self) -> Cursor {
        let mut changed = true;
        while std::mem::take(&mut changed) {
            let mut at = self.now.open.first();
            while let Some(task) = self.problem.tasks.get(at as usize)
                && task.invoked <= self.bound()
            {
                self.budget.steps += 1;
                let next = self.now.open.next[at as usize];
                match task.form {
                    Form::Read if self.fits(at, task) || mutant!(eager_misfits) => self.place(at, true),
                    Form::Known if self.may_place(at, task) && self.is_eager(at, task) => {
                        self.place(at, true);
                        // What did not fit may fit now.
                        changed = true;
                    }
                    _ => {}
                }
                at = next;
            }
        }
        Cursor::Mandatory(self.now.open.first())
    }

    /// P6: whether a write that may be placed can as well be placed at once. Replacing a value that was seen disturbs
    /// nobody: nobody else must still see it (P3), and nothing else can happen to the key before, for values never
    /// return. Making a key present disturbs who must see it absent, unless real time has all of those later.
    fn is_eager(&mut self, index: u32, task: &Task) -> bool {
        if mutant!(eager_births) {
            return true;
        }
        // Not every write says what must be there before it.
        if self.problem.checks(task).is_empty() {
            return false;
        }
        for at in 0..self.changes.len() {
            let (key, old, _) = self.changes[at];
            if self.may_come_before(&self.problem.blind[key as usize], index, task) {
                return false;
            }
            if old == NONE
                && (self.may_come_before(&self.problem.unchained[key as usize], index, task)
                    || !self.is_before_all_absent(index, task, key))
            {
                return false;
            }
        }
        true
    }

    /// Whether one of `others` that is not placed was invoked before this task was answered.
    fn may_come_before(&self, others: &[u32], index: u32, task: &Task) -> bool {
        let problem = self.problem;
        let mut others = others.iter().filter(|other| **other != index && !self.now.placed[**other as usize]);
        others.any(|other| problem.tasks[*other as usize].invoked <= task.returned)
    }

    /// Whether all that must see a key absent and is not placed was invoked after this task was answered.
    fn is_before_all_absent(&mut self, index: u32, task: &Task, key: u32) -> bool {
        self.first_absent(key, index);
        let problem = self.problem;
        let after = |other: u32| problem.tasks[other as usize].invoked > task.returned;
        let (observers, least) = problem.absent(key);
        for at in self.absent_at[key as usize] as usize..observers.len() {
            if after(least[at]) {
                break;
            }
            self.budget.steps += 1;
            let other = observers[at];
            if other != index && !self.now.placed[other as usize] && !after(other) {
                return false;
            }
        }
        true
    }

    fn next_write(&mut self, cursor: Cursor) -> Option<u32> {
        let bound = self.bound();
        let mut optional = 0;
        match cursor {
            Cursor::Optional(from) => optional = from as usize,
            Cursor::Mandatory(mut at) => {
                while let Some(task) = self.problem.tasks.get(at as usize)
                    && task.invoked <= bound
                {
                    self.budget.steps += 1;
                    if task.form != Form::Read && self.may_place(at, task) {
                        return Some(at);
                    }
                    at = self.now.open.next[at as usize];
                }
            }
        }
        while let Some(&at) = self.problem.optional.get(optional) {
            let task = &self.problem.tasks[at as usize];
            if task.invoked > bound {
                break;
            }
            self.budget.steps += 1;
            if !self.now.placed[at as usize] && self.may_place(at, task) && self.is_useful() {
                return Some(at);
            }
            optional += 1;
        }
        None
    }

    /// Whether the state gives what a task with known checks must find.
    fn fits(&mut self, index: u32, task: &Task) -> bool {
        let checks = self.problem.checks(task);
        let fits = |(key, value): &(u32, u32)| self.now.values[*key as usize] == *value;
        if task.low >= task.high {
            return checks.iter().all(fits);
        }
        if checks.get(self.misfit[index as usize] as usize).is_some_and(|check| !fits(check)) {
            return false;
        }
        if (self.now.present.below(task.high) - self.now.present.below(task.low)) as usize != checks.len() {
            return false;
        }
        match checks.iter().position(|check| !fits(check)) {
            None => true,
            Some(at) => {
                self.misfit[index as usize] = at as u32;
                false
            }
        }
    }

    /// P3, P4 and P5. Leaves the changes that it would make in `self.changes`.
    fn may_place(&mut self, index: u32, task: &Task) -> bool {
        // P5: what it saw must be there.
        if !(self.fits(index, task) || mutant!(version_chain_unchecked)) {
            return false;
        }
        self.changes.clear();
        if task.form == Form::Blind {
            if !self.run_blind(task) {
                return false;
            }
        } else {
            let writes = self.problem.writes(task);
            self.changes.extend(writes.iter().map(|(key, value)| (*key, self.now.values[*key as usize], *value)));
        }
        for at in 0..self.changes.len() {
            let (key, old, new) = self.changes[at];
            let allowed = match (old, new) {
                (NONE, NONE) => true,
                (NONE, _) => self.gap_is_over(index, key, new),
                _ => self.is_last_observer(task, old),
            };
            if !allowed {
                return false;
            }
        }
        true
    }

    /// P3: nobody else must still see the value that this task replaces. Trap 2: a task that did not see it counts as
    /// none.
    fn is_last_observer(&self, task: &Task, old: u32) -> bool {
        let saw = task.mandatory && self.problem.checks(task).iter().any(|check| check.1 == old);
        let answered = self.history.operations[task.operation as usize].is_ok();
        let itself = if mutant!(last_observer_counts_itself) {
            0
        } else if mutant!(trap_unanswered_observer) && !answered {
            1
        } else {
            u32::from(saw)
        };
        self.now.needed[old as usize] == itself
    }

    /// P4: nobody else must see the key absent and is due before the delete that ends this life of it is invoked.
    fn gap_is_over(&mut self, index: u32, key: u32, value: u32) -> bool {
        let until = match self.problem.life_end[value as usize] {
            LifeEnd::Unknown => return true,
            LifeEnd::Invoked(_) if mutant!(absence_gap_endless) => NEVER,
            LifeEnd::Invoked(at) => at,
            LifeEnd::Never => NEVER,
        };
        self.first_absent(key, index).is_none_or(|due| until != NEVER && due >= until)
    }

    /// The earliest deadline of tasks to place, but for `except`, that must see `key` absent.
    fn first_absent(&mut self, key: u32, except: u32) -> Option<u64> {
        let due = |task: u32| self.problem.tasks[task as usize].returned;
        let observers = self.problem.absent(key).0;
        let bound = self.bound();
        let at = &mut self.absent_at[key as usize];
        // All whose deadline is before the earliest one left are placed.
        while (*at as usize) < observers.len() && due(observers[*at as usize]) < bound {
            *at += 1;
        }
        while *at > 0 && due(observers[*at as usize - 1]) >= bound {
            *at -= 1;
        }
        let left = |task: &&u32| !self.now.placed[**task as usize] && **task != except;
        observers[*at as usize..].iter().find(left).map(|task| due(*task))
    }

    /// An optional task is only worth placing if it makes a key absent that somebody must see absent. (What an
    /// unanswered `many` must see is not always known.)
    fn is_useful(&mut self) -> bool {
        let changes = std::mem::take(&mut self.changes);
        let useful = changes.iter().any(|(key, _, new)| {
            *new != NONE || !self.problem.blind[*key as usize].is_empty() || self.first_absent(*key, u32::MAX).is_some()
        });
        self.changes = changes;
        useful
    }

    /// What an unanswered task would do here. False: it cannot stand here, or does nothing although it may be left out.
    fn run_blind(&mut self, task: &Task) -> bool {
        let history = self.history;
        for step in history.steps(&history.operations[task.operation as usize]) {
            let at = self.changes.iter().position(|change| change.0 == step.key);
            let current = at.map_or(self.now.values[step.key as usize], |at| self.changes[at].2);
            let Some(new) = step.execute(current) else {
                if self.must_write(step) {
                    return false;
                }
                continue;
            };
            match at {
                Some(at) => self.changes[at].2 = new,
                None => self.changes.push((step.key, current, new)),
            }
        }
        self.changes.retain(|change| change.1 != change.2);
        task.mandatory || !self.changes.is_empty()
    }

    /// Whether a step's value was seen, so that it did write it.
    fn must_write(&self, step: &Step) -> bool {
        step.value != NONE && self.problem.was_seen(step.value)
    }

    /// Places a task. What it changes stands in `self.changes`, unless it is a read.
    fn place(&mut self, index: u32, eager: bool) {
        let task = &self.problem.tasks[index as usize];
        self.stack.push(PlacedTask { task: index, eager, undo: self.undo.len() as u32 });
        self.now.mark(self.problem, index, true);
        match task.form {
            Form::Read => {}
            Form::Known => {
                for &(key, value) in self.problem.writes(task) {
                    let old = self.now.set(key, value);
                    self.undo.push((key, old));
                }
            }
            Form::Blind => {
                for at in 0..self.changes.len() {
                    let (key, _, new) = self.changes[at];
                    let old = self.now.set(key, new);
                    self.undo.push((key, old));
                }
            }
        }
    }

    /// Takes back the last write and all after it; where to look for its next sibling.
    fn back(&mut self) -> Option<Cursor> {
        while let Some(PlacedTask { task: index, eager, undo }) = self.stack.pop() {
            let task = &self.problem.tasks[index as usize];
            while self.undo.len() > undo as usize {
                if let Some((key, old)) = self.undo.pop() {
                    self.now.set(key, old);
                }
            }
            self.now.mark(self.problem, index, false);
            if eager {
                continue;
            }
            if task.mandatory {
                return Some(Cursor::Mandatory(self.now.open.next[index as usize]));
            }
            let at = self.problem.optional.partition_point(|each| *each < index);
            return Some(Cursor::Optional(at as u32 + 1));
        }
        None
    }

    fn note_dead_end(&mut self) {
        if self.now.left >= self.best.left {
            return;
        }
        let first = self.now.due.first();
        let mut misfits = Vec::new();
        if let Some(task) = self.problem.tasks.get(first as usize) {
            let differs = |check: &&(u32, u32)| self.now.values[check.0 as usize] != check.1;
            let checks = self.problem.checks(task).iter().filter(differs).take(4);
            misfits.extend(checks.map(|(key, value)| (*key, self.now.values[*key as usize], *value)));
        }
        let task = ((first as usize) < self.problem.tasks.len()).then_some(first);
        self.best = DeadEnd { left: self.now.left, task, misfits };
    }
}
