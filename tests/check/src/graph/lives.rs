//! The graph of a history (hazards.md 3.4): known edges from values, lives of keys, and the open choices between
//! them. Looks at no logs.

use super::super::cycle::Graph;
use super::super::event::NEVER;
use super::super::facts::{Facts, NOBODY, START};
use super::super::history::History;
use super::super::intern::NONE;
use super::super::search::problem::{Form, Problem};
use super::super::verdict::{Why, short};

/// An edge that would settle a choice.
pub type Edge = (u32, u32, Why);

/// One of two edges must hold; `None`: that side is impossible.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub first: Option<Edge>,
    pub second: Option<Edge>,
    /// What it is about: a key, who made it present, and who saw it absent or made it present too.
    key: u32,
    present: u32,
    other: u32,
}

impl Choice {
    /// A choice that has no side at all, in words, and the operations that it is about.
    pub fn explain(&self, history: &History) -> (String, Vec<u32>) {
        let operation = |index: &u32| (*index as usize) < history.operations.len();
        let about: Vec<u32> = [self.present, self.other].into_iter().filter(operation).collect();
        let key = history.key(self.key);
        let present = match self.present {
            START => format!("{key} was there at the start and never deleted"),
            present => format!("{} made {key} present, and it was never deleted", short(history, present)),
        };
        (format!("{present}, but {} did not find it", short(history, self.other)), about)
    }
}

/// A stretch of time in which a key is present.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// Who made it present; `START`: nobody did.
    first: u32,
    /// Who deleted it; `NOBODY`: nobody did.
    end: u32,
    /// When `first` was invoked and `end` answered; the whole of time where there is none.
    from: u64,
    until: u64,
}

/// A history as a graph.
pub struct Lives {
    /// Nodes are the tasks that must be placed.
    pub graph: Graph,
    pub choices: Vec<Choice>,
    /// Some write has an unknown outcome: then no answer but "fail" is sure.
    pub clouded: bool,
}

struct Builder<'a> {
    history: &'a History,
    facts: &'a Facts,
    problem: &'a Problem,
    /// Node of each task.
    node: Vec<u32>,
    /// Task of each operation.
    task: Vec<u32>,
    clouded: Vec<bool>,
    lives: Lives,
}

/// Builds the graph.
pub fn lives(history: &History, facts: &Facts, problem: &Problem) -> Lives {
    let mut builder = Builder {
        history,
        facts,
        problem,
        node: vec![NOBODY; problem.tasks.len()],
        task: vec![NOBODY; history.operations.len()],
        clouded: vec![false; history.keys.len()],
        lives: Lives { graph: Graph::default(), choices: Vec::new(), clouded: false },
    };
    builder.nodes();
    builder.known_edges();
    let lives = builder.all_lives();
    builder.choices_of_lives(&lives);
    builder.choices_of_absence(&lives);
    builder.lives
}

impl Builder<'_> {
    fn nodes(&mut self) {
        for (index, task) in self.problem.tasks.iter().enumerate() {
            let operation = &self.history.operations[task.operation as usize];
            self.task[task.operation as usize] = index as u32;
            if task.mandatory {
                self.node[index] = self.lives.graph.node(task.operation, operation.invoked, operation.returned);
            }
            let steps = self.history.steps(operation);
            let checked = |key: u32| self.problem.checks(task).iter().any(|check| check.0 == key);
            for step in steps.iter().filter(|_| task.form != Form::Read) {
                if task.form == Form::Blind || !checked(step.key) {
                    self.clouded[step.key as usize] = true;
                    self.lives.clouded = true;
                }
            }
        }
    }

    /// The node of an operation; `NOBODY` for nobody, and for the start.
    fn node_of(&self, operation: u32) -> u32 {
        let task = self.task.get(operation as usize).copied().unwrap_or(NOBODY);
        self.node.get(task as usize).copied().unwrap_or(NOBODY)
    }

    fn edge(&mut self, from: u32, to: u32, why: Why) {
        if from != NOBODY && to != NOBODY && from != to {
            self.lives.graph.edges.push((from, to, why));
        }
    }

    fn known_edges(&mut self) {
        for value in 0..self.facts.writer.len() {
            let (writer, next) = (self.node_of(self.facts.writer[value]), self.node_of(self.facts.next[value]));
            self.edge(writer, next, Why::Replaced(self.facts.key[value]));
        }
        for (index, task) in self.problem.tasks.iter().enumerate().filter(|(_, task)| task.mandatory) {
            let node = self.node[index];
            for &(key, value) in self.problem.checks(task).iter().filter(|check| check.1 != NONE) {
                let (writer, next) = (self.facts.writer[value as usize], self.facts.next[value as usize]);
                if next != task.operation {
                    self.edge(self.node_of(writer), node, Why::Seen(key));
                    self.edge(node, self.node_of(next), Why::Overwritten(key));
                }
            }
        }
    }

    /// Per key, in order of their ends. None for keys with an unknown outcome.
    fn all_lives(&self) -> Vec<Vec<Life>> {
        let mut lives = vec![Vec::new(); self.history.keys.len()];
        for value in 0..self.facts.writer.len() as u32 {
            let key = self.facts.key[value as usize];
            if key == NONE || self.clouded[key as usize] || !self.begins_life(value, key) {
                continue;
            }
            let (mut last, mut end) = (value, NOBODY);
            // A history that is wrong may have values that replace each other in a circle: a bounded walk.
            for _ in 0..self.facts.writer.len() {
                if self.facts.next[last as usize] == NOBODY {
                    break;
                }
                if self.facts.next_value[last as usize] == NONE {
                    end = self.facts.next[last as usize];
                    break;
                }
                last = self.facts.next_value[last as usize];
            }
            let operation = |index: u32| self.history.operations.get(index as usize);
            let first = self.facts.writer[value as usize];
            lives[key as usize].push(Life {
                first,
                end,
                from: operation(first).map_or(0, |operation| operation.invoked),
                until: operation(end).map_or(NEVER, |operation| operation.returned),
            });
        }
        lives.iter_mut().for_each(|lives| lives.sort_by_key(|life| life.until));
        lives
    }

    /// Whether a value was written onto absence.
    fn begins_life(&self, value: u32, key: u32) -> bool {
        let writer = self.facts.writer[value as usize];
        if writer == START {
            return true;
        }
        let Some(&task) = self.task.get(writer as usize).filter(|task| **task != NOBODY) else { return false };
        let task = &self.problem.tasks[task as usize];
        self.problem.writes(task).contains(&(key, value)) && self.problem.checks(task).contains(&(key, NONE))
    }

    /// `end` of one life before `first` of another, if both exist.
    fn between(&self, earlier: &Life, later: &Life, key: u32) -> Option<Edge> {
        let (end, first) = (self.node_of(earlier.end), self.node_of(later.first));
        (end != NOBODY && first != NOBODY).then_some((end, first, Why::Lives(key)))
    }

    fn choices_of_lives(&mut self, lives: &[Vec<Life>]) {
        for (key, lives) in lives.iter().enumerate() {
            for (at, one) in lives.iter().enumerate() {
                // In order of their ends: what ended before this one began is before it by real time.
                for other in lives[..at].iter().rev() {
                    if other.until < one.from {
                        break;
                    }
                    let first = self.between(other, one, key as u32);
                    let second = self.between(one, other, key as u32);
                    // One that was there at the start is not what found the key absent.
                    let (present, other) =
                        if other.first == START { (other.first, one.first) } else { (one.first, other.first) };
                    self.lives.choices.push(Choice { first, second, key: key as u32, present, other });
                }
            }
        }
    }

    fn choices_of_absence(&mut self, lives: &[Vec<Life>]) {
        // The earliest begin among a life and those that end later.
        let earliest: Vec<Vec<u64>> = lives
            .iter()
            .map(|lives| {
                let mut least = NEVER;
                let mut earliest: Vec<u64> = lives
                    .iter()
                    .rev()
                    .map(|life| {
                        least = least.min(life.from);
                        least
                    })
                    .collect();
                earliest.reverse();
                earliest
            })
            .collect();
        let keys: Vec<u32> = (0..lives.len() as u32).filter(|key| !lives[*key as usize].is_empty()).collect();
        for (index, task) in self.problem.tasks.iter().enumerate().filter(|(_, task)| task.mandatory) {
            if task.low < task.high {
                let mut present = self.problem.checks(task).iter().map(|pair| pair.0).peekable();
                let first = keys.partition_point(|key| *key < task.low);
                for &key in keys[first..].iter().take_while(|key| **key < task.high) {
                    while present.next_if(|seen| *seen < key).is_some() {}
                    if present.peek() != Some(&key) {
                        self.absence(index, key, &lives[key as usize], &earliest[key as usize]);
                    }
                }
                continue;
            }
            let absent = self.problem.checks(task).iter().filter(|check| check.1 == NONE);
            for &(key, _) in absent.filter(|check| self.problem.writes(task).iter().all(|write| write.0 != check.0)) {
                self.absence(index, key, &lives[key as usize], &earliest[key as usize]);
            }
        }
    }

    /// An operation that saw a key absent, and each life of the key that real time does not settle.
    fn absence(&mut self, task: usize, key: u32, lives: &[Life], earliest: &[u64]) {
        let node = self.node[task];
        let operation = &self.history.operations[self.problem.tasks[task].operation as usize];
        let from = lives.partition_point(|life| life.until < operation.invoked);
        for (life, earliest) in lives[from..].iter().zip(&earliest[from..]) {
            if *earliest > operation.returned {
                break;
            }
            if life.from > operation.returned {
                continue;
            }
            let (first, end) = (self.node_of(life.first), self.node_of(life.end));
            let before = (first != NOBODY).then_some((node, first, Why::NotYet(key)));
            let after = (end != NOBODY).then_some((end, node, Why::Gone(key)));
            let (present, other) = (life.first, self.problem.tasks[task].operation);
            self.lives.choices.push(Choice { first: before, second: after, key, present, other });
        }
    }
}
