//! Settles the choices of a graph, or finds the contradiction. Per node it keeps the latest invocation among what is
//! before it and the earliest answer among what is behind it: if a node's latest invocation is after another's earliest
//! answer, a path with a real-time edge leads from the other to it. Paths without one are looked for directly.

use super::super::cycle::Graph;
use super::super::intern::FastMap;
use super::lives::{Choice, Edge};

/// Steps after which the solver gives up.
const STEPS_MAX: u64 = 400_000_000;

/// How it ended.
pub enum Solution {
    /// Every choice is settled, without a cycle.
    Yes,
    /// The edges settled so far contradict each other, or a choice has two impossible sides.
    No(Contradiction),
    /// Over the limit.
    Unknown,
}

/// What cannot be.
pub struct Contradiction {
    /// Settled edges, beside those of the graph.
    pub edges: Vec<Edge>,
    /// The choice both of whose sides close a cycle.
    pub choice: Option<Choice>,
    /// How often a side was chosen that nothing forced.
    pub guesses: u64,
}

/// What can be undone.
enum Change {
    Latest(u32, u64),
    Earliest(u32, u64),
    Edge,
    Settled(u32),
}

/// No way out of a choice, or (`None`) of the edges as they are.
type Conflict = Option<Choice>;

pub struct Solver<'a> {
    graph: &'a Graph,
    choices: &'a [Choice],
    edges: Edges,
    latest: Vec<u64>,
    earliest: Vec<u64>,
    settled: Vec<bool>,
    choices_of: Lists,
    changes: Vec<Change>,
    again: Again,
    visited: Visited,
    steps: u64,
    guesses: u64,
}

/// Edges of the graph, and settled ones beside them, by source and by target.
struct Edges {
    forward: Lists,
    backward: Lists,
    more_forward: FastMap<u32, Vec<u32>>,
    more_backward: FastMap<u32, Vec<u32>>,
    settled: Vec<Edge>,
}

impl Edges {
    fn new(graph: &Graph) -> Edges {
        let (count, edges) = (graph.names.len(), graph.edges.iter());
        Edges {
            forward: Lists::new(count, edges.clone().map(|(from, to, _)| (*from, *to))),
            backward: Lists::new(count, edges.map(|(from, to, _)| (*to, *from))),
            more_forward: FastMap::default(),
            more_backward: FastMap::default(),
            settled: Vec::new(),
        }
    }

    fn after(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        self.forward.of(node).iter().chain(self.more_forward.get(&node).into_iter().flatten()).copied()
    }

    fn before(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        self.backward.of(node).iter().chain(self.more_backward.get(&node).into_iter().flatten()).copied()
    }

    fn push(&mut self, edge: Edge) {
        let (from, to, _) = edge;
        self.settled.push(edge);
        self.more_forward.entry(from).or_default().push(to);
        self.more_backward.entry(to).or_default().push(from);
    }

    fn pop(&mut self) {
        if let Some((from, to, _)) = self.settled.pop() {
            self.more_forward.entry(from).or_default().pop();
            self.more_backward.entry(to).or_default().pop();
        }
    }
}

/// Choices to look at again, each once.
struct Again {
    list: Vec<u32>,
    is_listed: Vec<bool>,
}

impl Again {
    fn push(&mut self, choice: u32) {
        if !std::mem::replace(&mut self.is_listed[choice as usize], true) {
            self.list.push(choice);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let choice = self.list.pop()?;
        self.is_listed[choice as usize] = false;
        Some(choice)
    }

    fn clear(&mut self) {
        self.list.drain(..).for_each(|choice| self.is_listed[choice as usize] = false);
    }
}

/// Nodes that a walk has met, by the number of the walk.
struct Visited {
    in_walk: Vec<u32>,
    walks: u32,
}

impl Visited {
    fn begin(&mut self) {
        self.walks += 1;
    }

    /// True for the first visit of a walk.
    fn visit(&mut self, node: u32) -> bool {
        std::mem::replace(&mut self.in_walk[node as usize], self.walks) != self.walks
    }
}

/// Lists of numbers, one per node.
struct Lists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn new(count: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Lists {
        let mut start = vec![0; count + 1];
        pairs.clone().for_each(|(node, _)| start[node as usize + 1] += 1);
        for at in 1..start.len() {
            start[at] += start[at - 1];
        }
        let mut fill = start.clone();
        let mut items = vec![0; start[count] as usize];
        for (node, item) in pairs {
            items[fill[node as usize] as usize] = item;
            fill[node as usize] += 1;
        }
        Lists { start, items }
    }

    fn of(&self, node: u32) -> &[u32] {
        &self.items[self.start[node as usize] as usize..self.start[node as usize + 1] as usize]
    }
}

impl<'a> Solver<'a> {
    pub fn new(graph: &'a Graph, choices: &'a [Choice]) -> Solver<'a> {
        let count = graph.names.len();
        let of_choices = choices.iter().enumerate().flat_map(|(index, choice)| {
            let sides = choice.first.into_iter().chain(choice.second);
            sides.flat_map(move |(from, to, _)| [(from, index as u32), (to, index as u32)])
        });
        Solver {
            graph,
            choices,
            edges: Edges::new(graph),
            latest: graph.invoked.clone(),
            earliest: graph.returned.clone(),
            settled: vec![false; choices.len()],
            choices_of: Lists::new(count, of_choices),
            changes: Vec::new(),
            again: Again { list: Vec::new(), is_listed: vec![false; choices.len()] },
            visited: Visited { in_walk: vec![0; count], walks: 0 },
            steps: 0,
            guesses: 0,
        }
    }

    pub fn solve(mut self) -> Solution {
        if !self.spread_all() {
            return self.contradiction(None);
        }
        (0..self.choices.len() as u32).rev().for_each(|choice| self.look_again(choice));
        // Guesses that may still be turned: the choice, its other side, the changes before it.
        let mut open: Vec<(u32, Edge, usize)> = Vec::new();
        let mut next = 0;
        let mut outcome = self.settle();
        loop {
            if self.steps > STEPS_MAX {
                return Solution::Unknown;
            }
            if let Err(conflict) = outcome {
                let Some((choice, other, mark)) = open.pop() else { return self.contradiction(conflict) };
                self.undo(mark);
                next = next.min(choice);
                outcome = self.take(choice, Some(other)).and_then(|()| self.settle());
                continue;
            }
            while self.settled.get(next as usize) == Some(&true) {
                next += 1;
            }
            let Some(choice) = self.choices.get(next as usize) else { return Solution::Yes };
            outcome = match self.sides(choice) {
                (Some(first), Some(second)) => {
                    let (guess, other) = if self.is_natural(first) { (first, second) } else { (second, first) };
                    self.guesses += 1;
                    open.push((next, other, self.changes.len()));
                    self.take(next, Some(guess))
                }
                (None, None) => Err(Some(*choice)),
                (one, other) => self.take(next, one.or(other)),
            }
            .and_then(|()| self.settle());
        }
    }

    fn contradiction(self, choice: Option<Choice>) -> Solution {
        Solution::No(Contradiction { edges: self.edges.settled, choice, guesses: self.guesses })
    }

    /// The bounds that follow from the graph's own edges. False: they contradict each other.
    fn spread_all(&mut self) -> bool {
        let count = self.graph.names.len();
        let mut waits: Vec<u32> = (0..count as u32).map(|node| self.edges.backward.of(node).len() as u32).collect();
        let mut order: Vec<u32> = (0..count as u32).filter(|node| waits[*node as usize] == 0).collect();
        let mut at = 0;
        while let Some(&node) = order.get(at) {
            at += 1;
            for &to in self.edges.forward.of(node) {
                self.latest[to as usize] = self.latest[to as usize].max(self.latest[node as usize]);
                waits[to as usize] -= 1;
                if waits[to as usize] == 0 {
                    order.push(to);
                }
            }
        }
        for &node in order.iter().rev() {
            for &from in self.edges.backward.of(node) {
                self.earliest[from as usize] = self.earliest[from as usize].min(self.earliest[node as usize]);
            }
        }
        order.len() == count && (0..count).all(|node| self.latest[node] <= self.earliest[node])
    }

    fn look_again(&mut self, choice: u32) {
        if !self.settled[choice as usize] {
            self.again.push(choice);
        }
    }

    /// Settles what has only one possible side, until nothing changes.
    fn settle(&mut self) -> Result<(), Conflict> {
        while let Some(index) = self.again.pop() {
            if self.settled[index as usize] {
                continue;
            }
            let choice = self.choices[index as usize];
            if [choice.first, choice.second].into_iter().flatten().any(|(from, to, _)| self.is_known(from, to)) {
                self.take(index, None)?;
                continue;
            }
            match self.sides(&choice) {
                (Some(_), Some(_)) => {}
                (None, None) => return Err(Some(choice)),
                (one, other) => self.take(index, one.or(other))?,
            }
        }
        Ok(())
    }

    /// Settles a choice, with an edge if one is needed.
    fn take(&mut self, choice: u32, edge: Option<Edge>) -> Result<(), Conflict> {
        self.settled[choice as usize] = true;
        self.changes.push(Change::Settled(choice));
        match edge {
            Some(edge) if !self.is_possible(edge) || !self.add(edge) => Err(Some(self.choices[choice as usize])),
            _ => Ok(()),
        }
    }

    /// The sides of a choice that close no cycle.
    fn sides(&mut self, choice: &Choice) -> (Option<Edge>, Option<Edge>) {
        let first = choice.first.filter(|edge| self.is_possible(*edge));
        let second = choice.second.filter(|edge| self.is_possible(*edge));
        (first, second)
    }

    /// Whether real time already has `from` before `to`.
    fn is_known(&self, from: u32, to: u32) -> bool {
        self.latest[to as usize] > self.earliest[from as usize]
    }

    fn is_possible(&mut self, (from, to, _): Edge) -> bool {
        !self.is_known(to, from) && !self.reaches(to, from)
    }

    /// Of two possible sides, the one whose operations are in that order by their bounds.
    fn is_natural(&self, (from, to, _): Edge) -> bool {
        let middle = |node: u32| u128::from(self.latest[node as usize]) + u128::from(self.earliest[node as usize]);
        middle(from) <= middle(to)
    }

    /// Whether edges lead from one node to another. Only nodes whose bounds allow it are visited.
    fn reaches(&mut self, from: u32, to: u32) -> bool {
        self.visited.begin();
        let (latest, earliest) = (self.latest[to as usize], self.earliest[to as usize]);
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            for next in self.edges.after(node) {
                self.steps += 1;
                if next == to {
                    return true;
                }
                let at = next as usize;
                if self.latest[at] <= latest && self.earliest[at] <= earliest && self.visited.visit(next) {
                    open.push(next);
                }
            }
        }
        false
    }

    /// Adds an edge and what follows from it for the bounds. False: they contradict each other.
    fn add(&mut self, edge: Edge) -> bool {
        let (from, to, _) = edge;
        self.edges.push(edge);
        self.changes.push(Change::Edge);
        let mut fits = self.raise(to, self.latest[from as usize]);
        fits &= self.lower(from, self.earliest[to as usize]);
        fits
    }

    fn raise(&mut self, node: u32, latest: u64) -> bool {
        let mut fits = true;
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            let bound = &mut self.latest[node as usize];
            if *bound >= latest {
                continue;
            }
            self.changes.push(Change::Latest(node, *bound));
            *bound = latest;
            fits &= latest <= self.earliest[node as usize];
            open.extend(self.edges.after(node));
            self.changed(node);
        }
        fits
    }

    fn lower(&mut self, node: u32, earliest: u64) -> bool {
        let mut fits = true;
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            let bound = &mut self.earliest[node as usize];
            if *bound <= earliest {
                continue;
            }
            self.changes.push(Change::Earliest(node, *bound));
            *bound = earliest;
            fits &= self.latest[node as usize] <= earliest;
            open.extend(self.edges.before(node));
            self.changed(node);
        }
        fits
    }

    fn changed(&mut self, node: u32) {
        for at in self.choices_of.start[node as usize]..self.choices_of.start[node as usize + 1] {
            self.steps += 1;
            self.look_again(self.choices_of.items[at as usize]);
        }
    }

    fn undo(&mut self, mark: usize) {
        self.again.clear();
        for change in self.changes.drain(mark..).rev() {
            match change {
                Change::Latest(node, before) => self.latest[node as usize] = before,
                Change::Earliest(node, before) => self.earliest[node as usize] = before,
                Change::Settled(choice) => self.settled[choice as usize] = false,
                Change::Edge => self.edges.pop(),
            }
        }
    }
}
