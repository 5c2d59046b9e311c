//! Steps 3 to 6 of hazards.md 3.2: one order that agrees with every log and with real time. Edges are not stored: a
//! chain opens gap by gap, and time opens answer by answer.

use std::collections::VecDeque;

use super::super::event::NEVER;
use super::super::history::{History, Operation};
use super::super::verdict::Violation;
use super::changes::changing;
use super::explain;
use super::judge::LogFindings;

/// The chains as numbers: gap `k` of a chain lies before its node `k`; all gaps of all chains are numbered through.
///
/// A read stands behind the node before its gap, in each partition, and before the node that closes it. What was read
/// in several partitions without a ticket is one moment of its own: in each it stands between the nodes next to its
/// position that change what it read, and there may be others between (the client's `double_collect`).
pub struct Chains {
    /// Per gap: the node that closes it; `u32::MAX` behind the last node of a chain.
    pub closes: Vec<u32>,
    /// The partition of each chain, and its first gap.
    pub first: Vec<(u32, u32)>,
    /// The gaps of each read, `gaps[gap_start[read]..gap_start[read + 1]]`: where it may begin, and where it must end.
    gap_start: Vec<u32>,
    gaps: Vec<(u32, u32)>,
    begin: ReadsOf,
    end: ReadsOf,
}

/// The reads of each gap: `reads[start[gap]..start[gap + 1]]`.
struct ReadsOf {
    start: Vec<u32>,
    reads: Vec<u32>,
}

impl ReadsOf {
    fn new(gaps: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> ReadsOf {
        let mut start = vec![0; gaps + 1];
        pairs.clone().for_each(|(gap, _)| start[gap as usize + 1] += 1);
        for gap in 1..start.len() {
            start[gap] += start[gap - 1];
        }
        let (mut fill, mut reads) = (start.clone(), vec![0; start[gaps] as usize]);
        for (gap, read) in pairs {
            reads[fill[gap as usize] as usize] = read;
            fill[gap as usize] += 1;
        }
        ReadsOf { start, reads }
    }

    fn of(&self, gap: u32) -> &[u32] {
        &self.reads[self.start[gap as usize] as usize..self.start[gap as usize + 1] as usize]
    }
}

impl Chains {
    fn new(history: &History, judged: &LogFindings) -> Chains {
        let mut closes = Vec::with_capacity(history.operations.len() + judged.partitions.len());
        let mut first = Vec::new();
        for (number, partition) in &judged.partitions {
            first.push((*number, closes.len() as u32));
            closes.extend(partition.chain.iter().map(|(_, node)| *node));
            closes.push(u32::MAX);
        }
        let base = |number: u32| first[first.partition_point(|(each, _)| *each < number)].1;
        let mut gap_start = Vec::with_capacity(history.operations.len() + 1);
        let (mut gaps, mut reads) = (Vec::new(), Vec::new());
        let any = history.operations.iter().any(|operation| operation.is_ok() && is_collected(history, operation));
        let changing = if any { changing(history, judged) } else { Vec::new() };
        for (read, operation) in history.operations.iter().enumerate() {
            gap_start.push(gaps.len() as u32);
            if operation.is_read() && operation.is_ok() {
                let collected = is_collected(history, operation);
                gaps.extend(history.positions(operation).iter().map(|at| {
                    let gap = base(at.partition) + judged.partitions[&at.partition].gap(at.place()) as u32;
                    let first = base(at.partition);
                    if collected {
                        between_changes(history, operation, (&closes, &changing), (first, gap))
                    } else {
                        (gap, gap)
                    }
                }));
                reads.resize(gaps.len(), read as u32);
            }
        }
        gap_start.push(gaps.len() as u32);
        let begin = ReadsOf::new(closes.len(), gaps.iter().map(|(begin, _)| *begin).zip(reads.iter().copied()));
        let end = ReadsOf::new(closes.len(), gaps.iter().map(|(_, end)| *end).zip(reads.iter().copied()));
        Chains { closes, first, gap_start, gaps, begin, end }
    }

    /// The reads that may begin in a gap.
    pub fn reads(&self, gap: u32) -> &[u32] {
        self.begin.of(gap)
    }

    /// The reads that stand before the node that closes a gap.
    pub fn reads_before_close(&self, gap: u32) -> &[u32] {
        self.end.of(gap)
    }

    fn gaps(&self, read: u32) -> std::ops::Range<usize> {
        self.gap_start[read as usize] as usize..self.gap_start[read as usize + 1] as usize
    }
}

/// Several parts, and no ticket that makes them one moment.
fn is_collected(history: &History, operation: &Operation) -> bool {
    operation.is_read() && history.positions(operation).len() > 1 && history.ticket(operation).is_none()
}

/// The first and the last gap around `gap` with no node between them that changes something of the range. `first` is
/// the chain's first gap.
fn between_changes(
    history: &History,
    range: &Operation,
    (closes, changing): (&[u32], &[bool]),
    (first, gap): (u32, u32),
) -> (u32, u32) {
    let changes = |gap: u32| match history.operations.get(closes[gap as usize] as usize) {
        Some(operation) => {
            let mut keys = history.steps(operation).iter().map(|step| step.key);
            changing[closes[gap as usize] as usize] && keys.any(|key| range.step.key <= key && key < range.high)
        }
        // The end of a chain, or a boundary that moves.
        None => true,
    };
    let (mut begin, mut end) = (gap, gap);
    while begin > first && !changes(begin - 1) {
        begin -= 1;
    }
    while !changes(end) {
        end += 1;
    }
    (begin, end)
}

/// Kahn's algorithm.
pub struct Sort<'a> {
    history: &'a History,
    pub chains: Chains,
    /// Per node: how much must still come first. A node of a chain waits for its gap to open, for each read in it, and
    /// for time; a read for its gaps to open and for time; a joint for its gaps and their reads.
    waits: Vec<u32>,
    /// The gap that each operation closes, if it is in a chain.
    gap_of: Vec<u32>,
    /// The gaps that each joint closes.
    joints: Vec<Vec<u32>>,
    ready: VecDeque<u32>,
    order: Vec<u32>,
    /// Per node: it is in the order.
    pub placed: Vec<bool>,
    /// Per node: it happened.
    pub takes_part: Vec<bool>,
    next_return: usize,
    next_invoke: usize,
}

/// One order, or the shortest cycle.
pub fn sort(history: &History, judged: &LogFindings) -> Result<Vec<u32>, Box<Violation>> {
    let mut sort = Sort::new(history, judged);
    let count = sort.takes_part.iter().filter(|takes_part| **takes_part).count();
    sort.run();
    if sort.order.len() == count { Ok(sort.order) } else { Err(explain::cycle(history, &sort)) }
}

impl<'a> Sort<'a> {
    fn new(history: &'a History, judged: &LogFindings) -> Sort<'a> {
        let operations = history.operations.len();
        let nodes = operations + judged.joints as usize;
        let chains = Chains::new(history, judged);
        let mut takes_part = vec![true; nodes];
        let mut waits = vec![0; nodes];
        for (index, operation) in history.operations.iter().enumerate() {
            takes_part[index] = if operation.is_read() { operation.is_ok() } else { judged.counted[index].is_some() };
            waits[index] = 1 + chains.gaps(index as u32).len() as u32;
        }
        let mut gap_of = vec![u32::MAX; operations];
        let mut joints = vec![Vec::new(); judged.joints as usize];
        for (gap, node) in chains.closes.iter().enumerate().filter(|(_, node)| **node != u32::MAX) {
            match gap_of.get_mut(*node as usize) {
                Some(gap_of) => *gap_of = gap as u32,
                None => joints[*node as usize - operations].push(gap as u32),
            }
            waits[*node as usize] += 1 + chains.reads_before_close(gap as u32).len() as u32;
        }
        Sort {
            history,
            chains,
            waits,
            gap_of,
            joints,
            ready: VecDeque::new(),
            order: Vec::with_capacity(nodes),
            placed: vec![false; nodes],
            takes_part,
            next_return: 0,
            next_invoke: 0,
        }
    }

    fn run(&mut self) {
        for at in 0..self.chains.first.len() {
            self.open_gap(self.chains.first[at].1);
        }
        self.pass_time();
        while let Some(node) = self.ready.pop_front() {
            self.place(node);
        }
    }

    fn release(&mut self, node: u32) {
        let waits = &mut self.waits[node as usize];
        *waits -= 1;
        if *waits == 0 {
            self.ready.push_back(node);
        }
    }

    /// All before the gap is placed.
    fn open_gap(&mut self, gap: u32) {
        for at in 0..self.chains.reads(gap).len() {
            self.release(self.chains.reads(gap)[at]);
        }
        self.release_closing(gap);
    }

    fn release_closing(&mut self, gap: u32) {
        let closes = self.chains.closes[gap as usize];
        if closes != u32::MAX {
            self.release(closes);
        }
    }

    fn place(&mut self, node: u32) {
        self.placed[node as usize] = true;
        self.order.push(node);
        match self.gap_of.get(node as usize) {
            None => {
                for gap in std::mem::take(&mut self.joints[node as usize - self.gap_of.len()]) {
                    self.open_gap(gap + 1);
                }
                return;
            }
            Some(&u32::MAX) => {
                for at in self.chains.gaps(node) {
                    self.release_closing(self.chains.gaps[at].1);
                }
            }
            Some(&gap) => self.open_gap(gap + 1),
        }
        self.pass_time();
    }

    /// What was invoked no later than the first answer that is not placed yet waits for no answer.
    fn pass_time(&mut self) {
        let history = self.history;
        while let Some(&index) = history.returns.get(self.next_return)
            && (self.placed[index as usize] || !self.takes_part[index as usize])
        {
            self.next_return += 1;
        }
        let first = history.returns.get(self.next_return);
        let until = first.map_or(NEVER, |index| history.operations[*index as usize].returned);
        while let Some(operation) = history.operations.get(self.next_invoke)
            && operation.invoked <= until
        {
            if self.takes_part[self.next_invoke] {
                self.release(self.next_invoke as u32);
            }
            self.next_invoke += 1;
        }
    }
}
