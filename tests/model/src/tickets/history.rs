//! What clients saw, and whether one order explains it: a cycle of log edges and real-time edges is a violation
//! (protocol.md 5).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use coppice_ordering::PartitionId;

use super::partition::{Entry, Partition};

/// An operation, by its number; at most 64 in a world, so that sets of them are one word.
pub type Op = usize;

pub const OPS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Writes a key.
    Write { key: u8 },
    /// Reads these ranges `low..high`. Clients read one; more make the smaller worlds more wicked.
    Query { ranges: Vec<(u8, u8)> },
    /// Reads them without a ticket, twice.
    Collect { ranges: Vec<(u8, u8)> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Planned,
    Invoked,
    Answered,
    /// Queries only: no result, ever.
    Aborted,
}

/// One partition's share of a query's result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Position in the partition's log.
    pub instance: usize,
    pub ranges: Vec<(u8, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    pub kind: Kind,
    /// The same client asked for this before, and asks for nothing else until it is answered.
    pub after: Option<Op>,
    pub status: Status,
    /// Operations that were answered before this one was invoked.
    before: u64,
    pub parts: BTreeMap<PartitionId, Part>,
    /// Of a collect whose parts have all been read: how far each log was decided then.
    pub floors: BTreeMap<PartitionId, usize>,
    /// Of a collect: the partitions that have said that nothing of theirs has changed.
    pub unchanged: BTreeSet<PartitionId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    pub ops: Vec<Rc<Operation>>,
    answered: u64,
}

impl History {
    pub fn plan(&mut self, kind: Kind, after: Option<Op>) -> Op {
        assert!(self.ops.len() < OPS_MAX, "too many operations");
        let operation = Operation {
            kind,
            after,
            status: Status::Planned,
            before: 0,
            parts: BTreeMap::new(),
            floors: BTreeMap::new(),
            unchanged: BTreeSet::new(),
        };
        self.ops.push(Rc::new(operation));
        self.ops.len() - 1
    }

    /// Whether its client is free to ask for it now.
    pub fn may_invoke(&self, op: Op) -> bool {
        let ready = self.ops[op].after.is_none_or(|after| self.ops[after].status == Status::Answered);
        self.ops[op].status == Status::Planned && ready
    }

    pub fn invoke(&mut self, op: Op) {
        assert!(self.may_invoke(op), "{op} is not to be invoked");
        let answered = self.answered;
        let operation = self.change(op);
        (operation.status, operation.before) = (Status::Invoked, answered);
    }

    pub fn answer(&mut self, op: Op) {
        self.change(op).status = Status::Answered;
        self.answered |= 1 << op;
    }

    pub fn change(&mut self, op: Op) -> &mut Operation {
        Rc::make_mut(&mut self.ops[op])
    }

    pub fn key(&self, op: Op) -> u8 {
        match self.ops[op].kind {
            Kind::Write { key } => key,
            Kind::Query { .. } | Kind::Collect { .. } => panic!("{op} writes nothing"),
        }
    }

    /// What is read, by a query or a collect.
    fn read(&self, op: Op) -> &[(u8, u8)] {
        match &self.ops[op].kind {
            Kind::Query { ranges } | Kind::Collect { ranges } => ranges,
            Kind::Write { .. } => panic!("{op} reads nothing"),
        }
    }

    /// What it reads of `low..high`.
    pub fn ranges(&self, op: Op, (low, high): (u8, u8)) -> Vec<(u8, u8)> {
        let cut = self.read(op).iter().map(|(from, to)| (low.max(*from), high.min(*to)));
        cut.filter(|(from, to)| from < to).collect()
    }

    /// The parts of a completed query tile its range: nothing twice, nothing missing (hazards.md I13).
    pub fn tiles(&self, op: Op) -> Result<(), String> {
        let parts = &self.ops[op].parts;
        let mut pieces: Vec<(u8, u8)> = parts.values().flat_map(|part| part.ranges.iter().copied()).collect();
        pieces.sort_unstable();
        // Neighbouring ranges are one for this purpose.
        let tidy = |ranges: &[(u8, u8)]| {
            let mut joined: Vec<(u8, u8)> = Vec::new();
            for (low, high) in ranges {
                match joined.last_mut() {
                    Some(last) if last.1 == *low => last.1 = *high,
                    _ => joined.push((*low, *high)),
                }
            }
            joined
        };
        let ranges = self.read(op);
        if tidy(&pieces) == tidy(ranges) { Ok(()) } else { Err(format!("I13: {op} reads {ranges:?}, gets {parts:?}")) }
    }

    /// Everything that was answered, and every write that is decided, fits one order that keeps each log and real time.
    pub fn check(&self, partitions: &BTreeMap<PartitionId, Rc<Partition>>) -> Result<(), String> {
        let mut pred = [0_u64; OPS_MAX];
        let mut nodes = self.answered;
        // The last node of a log at each position at which another log goes on from it.
        let mut last_of: BTreeMap<(PartitionId, usize), Option<Op>> = BTreeMap::new();
        for (id, partition) in partitions {
            let mut last = partition.born.and_then(|born| last_of.get(&born).copied().flatten());
            for (index, entry) in partition.log[..partition.decided].iter().enumerate() {
                if let (Entry::Write(write), true) = (entry, partition.hits[index]) {
                    self.place_collects(*id, index + 1, *write, &mut pred);
                }
                for op in self.nodes_of(*id, index + 1, entry, partition.hits[index]) {
                    nodes |= 1 << op;
                    pred[op] |= last.map_or(0, |last: Op| 1 << last);
                    last = Some(op);
                }
                last_of.insert((*id, index + 1), last);
            }
        }
        for (op, operation) in self.ops.iter().enumerate() {
            pred[op] |= operation.before;
        }
        let mut left = nodes;
        while left != 0 {
            let free: u64 = (0..self.ops.len())
                .filter(|op| left & 1 << op != 0 && pred[*op] & left & !(1 << op) == 0)
                .fold(0, |mask, op| mask | 1 << op);
            if free == 0 {
                return Err(format!("no order explains {}", self.names(left)));
            }
            left &= !free;
        }
        Ok(())
    }

    /// A collect saw a write of its ranges, or did not: it stands in no log, but behind the one and before the other.
    fn place_collects(&self, partition: PartitionId, instance: usize, write: Op, pred: &mut [u64; OPS_MAX]) {
        let key = self.key(write);
        for (op, operation) in self.ops.iter().enumerate() {
            let answered = operation.status == Status::Answered && matches!(operation.kind, Kind::Collect { .. });
            let Some(part) = operation.parts.get(&partition).filter(|_| answered) else { continue };
            if part.ranges.iter().any(|(low, high)| (*low..*high).contains(&key)) {
                let (first, then) = if instance <= part.instance { (write, op) } else { (op, write) };
                pred[then] |= 1 << first;
            }
        }
    }

    /// The operations that have their place at this entry. Queries that share a ticket see the same; they may stand in
    /// any order, so this takes the one of their numbers everywhere.
    fn nodes_of(&self, partition: PartitionId, instance: usize, entry: &Entry, hit: bool) -> Vec<Op> {
        match entry {
            Entry::Write(op) if hit => vec![*op],
            Entry::Place(place) => {
                let mut queries: Vec<Op> = Entry::queries(place).collect();
                let here = |op: &Op| self.ops[*op].parts.get(&partition).is_some_and(|part| part.instance == instance);
                queries.retain(|op| self.ops[*op].status == Status::Answered && here(op));
                queries.sort_unstable();
                queries
            }
            Entry::Write(_) | Entry::NoOp => Vec::new(),
        }
    }

    fn names(&self, mask: u64) -> String {
        let ops = (0..self.ops.len()).filter(|op| mask & 1 << op != 0);
        let names: Vec<String> = ops.map(|op| format!("{op}:{:?}", self.ops[op].kind)).collect();
        names.join(" ")
    }
}
