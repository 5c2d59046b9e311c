//! The shortest cycle of a graph of operations. Edges of real time are not stored: they follow from the times. Knows
//! graphs, not histories.

use super::event::NEVER;
use super::verdict::{Link, Why};

/// Steps of search after which the best cycle so far is taken.
const STEPS_MAX: u64 = 100_000_000;

/// Nodes with times, and edges with reasons.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The operation of each node; `u32::MAX`: none. Nameless nodes cost nothing and have no time.
    pub names: Vec<u32>,
    /// When each was invoked.
    pub invoked: Vec<u64>,
    /// When each was answered; `NEVER`: it is before nothing by real time.
    pub returned: Vec<u64>,
    /// `from` is before `to`.
    pub edges: Vec<(u32, u32, Why)>,
}

impl Graph {
    /// Adds a node, returns its number.
    pub fn node(&mut self, name: u32, invoked: u64, returned: u64) -> u32 {
        self.names.push(name);
        self.invoked.push(invoked);
        self.returned.push(returned);
        self.names.len() as u32 - 1
    }

    /// The shortest cycle (if the graph is large: a short one), as links between operations. Empty: there is none.
    pub fn shortest_cycle(&self) -> Vec<Link> {
        let index = Index::new(self);
        let component = index.components(self);
        let mut search = Search::new(self, &index, &component);
        for start in search.starts() {
            search.from(start);
            if search.steps > STEPS_MAX || search.best_length == 2 {
                break;
            }
        }
        self.links(&search.best)
    }

    /// Leaves out nodes that are no operations.
    fn links(&self, cycle: &[(u32, Why)]) -> Vec<Link> {
        let mut nodes: Vec<(u32, Why)> = cycle.to_vec();
        let Some(first) = nodes.iter().position(|(node, _)| self.names[*node as usize] != u32::MAX) else {
            return Vec::new();
        };
        nodes.rotate_left(first);
        let kept: Vec<(u32, Why)> = nodes
            .into_iter()
            .map(|(node, why)| (self.names[node as usize], why))
            .filter(|(name, _)| *name != u32::MAX)
            .collect();
        let next = |at: usize| kept[(at + 1) % kept.len()].0;
        kept.iter().enumerate().map(|(at, (from, why))| Link { from: *from, to: next(at), why: *why }).collect()
    }
}

/// Edges by their source, and nodes by time.
struct Index {
    first: Vec<u32>,
    targets: Vec<(u32, Why)>,
    by_invoked: Vec<u32>,
}

impl Index {
    fn new(graph: &Graph) -> Index {
        let mut first = vec![0; graph.names.len() + 1];
        for (from, _, _) in &graph.edges {
            first[*from as usize + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let mut fill = first.clone();
        let mut targets = vec![(0, Why::Time); graph.edges.len()];
        for (from, to, why) in &graph.edges {
            let slot = &mut fill[*from as usize];
            targets[*slot as usize] = (*to, *why);
            *slot += 1;
        }
        let mut by_invoked: Vec<u32> = (0..graph.names.len() as u32).collect();
        by_invoked.sort_by_key(|node| graph.invoked[*node as usize]);
        Index { first, targets, by_invoked }
    }

    fn of(&self, node: u32) -> &[(u32, Why)] {
        &self.targets[self.first[node as usize] as usize..self.first[node as usize + 1] as usize]
    }

    /// Strongly connected components (Tarjan), by number; nodes in none but their own get `u32::MAX`. Real time stands
    /// as a chain of moments: node `count + j` is just after the j-th answer.
    fn components(&self, graph: &Graph) -> Vec<u32> {
        let count = graph.names.len();
        let mut by_returned: Vec<u32> =
            (0..count as u32).filter(|node| graph.returned[*node as usize] != NEVER).collect();
        by_returned.sort_by_key(|node| graph.returned[*node as usize]);
        let mut moment = vec![u32::MAX; count];
        for (at, node) in by_returned.iter().enumerate() {
            moment[*node as usize] = (count + at) as u32;
        }
        // The first node invoked after the j-th answer.
        let after = |at: usize| {
            let returned = by_returned.get(at).map_or(NEVER, |node| graph.returned[*node as usize]);
            self.by_invoked.partition_point(|node| graph.invoked[*node as usize] <= returned)
        };
        let moments: Vec<(u32, u32)> =
            (0..by_returned.len()).map(|at| (after(at) as u32, after(at + 1) as u32)).collect();
        let successor = |node: u32, at: usize| -> Option<u32> {
            if let Some(&(from, to)) = (node as usize).checked_sub(count).and_then(|at| moments.get(at)) {
                let invoked = (to - from) as usize;
                return if at < invoked {
                    Some(self.by_invoked[from as usize + at])
                } else {
                    (at == invoked && node as usize + 1 < count + moments.len()).then_some(node + 1)
                };
            }
            let edges = self.of(node);
            match edges.get(at) {
                Some((to, _)) => Some(*to),
                None => (at == edges.len() && moment[node as usize] != u32::MAX).then(|| moment[node as usize]),
            }
        };
        let mut component = tarjan(count + moments.len(), successor);
        component.truncate(count);
        let mut sizes = std::collections::BTreeMap::new();
        component.iter().for_each(|number| *sizes.entry(*number).or_insert(0) += 1);
        component.iter_mut().filter(|number| sizes[*number] < 2).for_each(|number| *number = u32::MAX);
        component
    }
}

/// Tarjan's algorithm without recursion: the component number of each node.
fn tarjan(count: usize, successor: impl Fn(u32, usize) -> Option<u32>) -> Vec<u32> {
    const UNSEEN: u32 = u32::MAX;
    let (mut number, mut low) = (vec![UNSEEN; count], vec![0; count]);
    let mut component = vec![UNSEEN; count];
    let mut open = Vec::new();
    let mut path: Vec<(u32, usize)> = Vec::new();
    let (mut numbered, mut components) = (0, 0);
    for root in 0..count as u32 {
        if number[root as usize] != UNSEEN {
            continue;
        }
        path.push((root, 0));
        while let Some(top) = path.last_mut() {
            let (node, at) = (top.0 as usize, top.1);
            if at == 0 {
                number[node] = numbered;
                low[node] = numbered;
                numbered += 1;
                open.push(node as u32);
            }
            top.1 += 1;
            match successor(node as u32, at) {
                Some(next) if number[next as usize] == UNSEEN => path.push((next, 0)),
                Some(next) if component[next as usize] == UNSEEN => low[node] = low[node].min(number[next as usize]),
                Some(_) => {}
                None => {
                    path.pop();
                    if let Some((parent, _)) = path.last() {
                        low[*parent as usize] = low[*parent as usize].min(low[node]);
                    }
                    if low[node] == number[node] {
                        while let Some(member) = open.pop() {
                            component[member as usize] = components;
                            if member as usize == node {
                                break;
                            }
                        }
                        components += 1;
                    }
                }
            }
        }
    }
    component
}

/// Breadth-first searches inside components.
struct Search<'a> {
    graph: &'a Graph,
    index: &'a Index,
    component: &'a [u32],
    /// The cycle found so far: nodes, each with the reason why it is before the next.
    best: Vec<(u32, Why)>,
    /// How many of those have names.
    best_length: usize,
    /// Which search saw a node last, from where, and why.
    seen: Vec<(u32, u32, Why)>,
    searches: u32,
    steps: u64,
    /// Members of each component in order of invocation; found on demand.
    members: Vec<u32>,
    members_of: u32,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, index: &'a Index, component: &'a [u32]) -> Search<'a> {
        let seen = vec![(0, 0, Why::Time); graph.names.len()];
        Search {
            graph,
            index,
            component,
            best: Vec::new(),
            best_length: usize::MAX,
            seen,
            searches: 0,
            steps: 0,
            members: Vec::new(),
            members_of: u32::MAX,
        }
    }

    /// Nodes to start from: those that an edge contradicts real time at once first, then component by component.
    fn starts(&self) -> Vec<u32> {
        let backward = |node: u32| {
            let invoked = self.graph.invoked[node as usize];
            self.index.of(node).iter().any(|(to, _)| self.graph.returned[*to as usize] < invoked)
        };
        let mut starts: Vec<u32> =
            (0..self.graph.names.len() as u32).filter(|node| self.component[*node as usize] != u32::MAX).collect();
        starts.retain(|node| self.graph.names[*node as usize] != u32::MAX);
        starts.sort_by_cached_key(|node| (!backward(*node), self.component[*node as usize], *node));
        starts
    }

    fn from(&mut self, start: u32) {
        let component = self.component[start as usize];
        if self.members_of != component {
            let inside = |node: &u32| self.component[*node as usize] == component;
            self.members = self.index.by_invoked.iter().copied().filter(inside).collect();
            self.members_of = component;
        }
        self.searches += 1;
        let graph = self.graph;
        // All members from here on, by invocation, are reached by real time already.
        let mut reached = self.members.len();
        let mut level = vec![start];
        let mut depth = 0;
        while !level.is_empty() && depth + 1 < self.best_length {
            let mut next = Vec::new();
            for &node in &level {
                if self.expand(node, start, &mut next) {
                    return;
                }
                let returned = graph.returned[node as usize];
                if graph.invoked[start as usize] > returned {
                    return self.found(start, node, Why::Time);
                }
                while reached > 0 && graph.invoked[self.members[reached - 1] as usize] > returned {
                    reached -= 1;
                    self.visit(self.members[reached], node, Why::Time, &mut next);
                }
            }
            let mut at = 0;
            while let Some(&node) = next.get(at) {
                at += 1;
                if graph.names[node as usize] == u32::MAX && self.expand(node, start, &mut next) {
                    return;
                }
            }
            next.retain(|node| graph.names[*node as usize] != u32::MAX);
            level = next;
            depth += 1;
        }
    }

    /// Follows the edges of a node. True: a cycle was closed.
    fn expand(&mut self, node: u32, start: u32, next: &mut Vec<u32>) -> bool {
        let index = self.index;
        for &(to, why) in index.of(node) {
            if to == start {
                self.found(start, node, why);
                return true;
            }
            if self.component[to as usize] == self.members_of {
                self.visit(to, node, why, next);
            }
        }
        false
    }

    fn visit(&mut self, to: u32, from: u32, why: Why, next: &mut Vec<u32>) {
        self.steps += 1;
        if self.seen[to as usize].0 != self.searches {
            self.seen[to as usize] = (self.searches, from, why);
            next.push(to);
        }
    }

    fn found(&mut self, start: u32, last: u32, why: Why) {
        let mut cycle = vec![(last, why)];
        let mut node = last;
        while node != start {
            let (_, before, why) = self.seen[node as usize];
            cycle.push((before, why));
            node = before;
        }
        cycle.reverse();
        let length = cycle.iter().filter(|(node, _)| self.graph.names[*node as usize] != u32::MAX).count();
        if length < self.best_length {
            self.best_length = length;
            self.best = cycle;
        }
    }
}
