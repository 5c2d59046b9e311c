//! Ranges that are read twice, without a ticket, by the rules of the client's `double_collect`: a first
//! reading in each partition, of any state that was decided when it was answered, behind the gate; when all have been
//! read, a linearizable read in each which says whether anything of it has changed since.

use std::collections::BTreeSet;
use std::rc::Rc;

use coppice_ordering::PartitionId;

use super::history::{Kind, Op, Part, Status};
use super::partition::{Entry, Partition};
use super::world::World;

/// How ranges are read twice: as they should, or without something that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collecting {
    AsItShould,
    /// Nobody asks whether anything has changed.
    Once,
    /// Each part is validated as soon as it has been read, whatever the others do.
    PartByPart,
    /// A partition validates as of a position from before all parts had been read.
    Unconfirmed,
    /// Neither reading waits for the gate.
    Ungated,
}

impl std::fmt::Display for Collecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Collecting::AsItShould => "",
            Collecting::Once => ", or rather once",
            Collecting::PartByPart => ", each part for itself",
            Collecting::Unconfirmed => ", the second time at any position",
            Collecting::Ungated => ", past the gate",
        })
    }
}

impl World {
    /// The positions at which a partition may answer next what a collect asks it.
    pub fn positions(&self, op: Op, id: PartitionId) -> Vec<usize> {
        let (operation, partition) = (&self.history.ops[op], &self.partitions[&id]);
        let open = matches!(operation.status, Status::Planned | Status::Invoked);
        if !open || self.history.ranges(op, partition.bounds()).is_empty() || operation.unchanged.contains(&id) {
            return Vec::new();
        }
        let from = match operation.parts.get(&id) {
            // Whatever it has decided, and however long ago: nobody asks for the newest.
            None => Some(0),
            Some(part) if self.collecting == Collecting::Unconfirmed => {
                operation.floors.get(&id).and(Some(part.instance))
            }
            // All that was answered by then is decided, and a linearizable read has it.
            Some(_) => operation.floors.get(&id).copied(),
        };
        let ungated = self.collecting == Collecting::Ungated;
        let leaves = |position: &usize| ungated || partition.lets_out(*position);
        from.map_or(Vec::new(), |from| (from..=partition.decided).filter(leaves).collect())
    }

    /// A partition answers at one of these.
    pub fn collect(&mut self, op: Op, id: PartitionId, position: usize) {
        // As late as possible: when it is answered for the first time.
        if self.history.ops[op].status == Status::Planned {
            self.history.invoke(op);
        }
        if self.history.ops[op].parts.contains_key(&id) {
            return self.validated(op, id, position);
        }
        let ranges = self.history.ranges(op, self.partitions[&id].bounds());
        self.history.change(op).parts.insert(id, Part { instance: position, ranges });
        let asked = self.asked(op);
        let each = self.collecting == Collecting::PartByPart;
        if each || self.history.ops[op].parts.len() == asked.len() {
            let decided = |id: PartitionId| (id, self.partitions[&id].decided);
            let floors = if each { vec![decided(id)] } else { asked.into_iter().map(decided).collect() };
            self.history.change(op).floors.extend(floors);
            if self.collecting == Collecting::Once {
                self.end(op);
            }
        }
    }

    fn validated(&mut self, op: Op, id: PartitionId, position: usize) {
        let part = &self.history.ops[op].parts[&id];
        let seen = part.instance.min(position)..position;
        if self.changes(&self.partitions[&id], seen, part) {
            self.history.change(op).status = Status::Aborted;
            return;
        }
        self.history.change(op).unchanged.insert(id);
        if self.history.ops[op].unchanged.len() == self.asked(op).len() {
            self.end(op);
        }
    }

    /// Whether these entries of a log changed anything of a part.
    fn changes(&self, partition: &Rc<Partition>, entries: std::ops::Range<usize>, part: &Part) -> bool {
        let hits = partition.log[entries.clone()].iter().zip(&partition.hits[entries]).filter(|(_, hit)| **hit);
        let mut keys = hits.filter_map(|(entry, _)| match entry {
            Entry::Write(op) => Some(self.history.key(*op)),
            Entry::Place(_) | Entry::NoOp => None,
        });
        keys.any(|key| part.ranges.iter().any(|(low, high)| (*low..*high).contains(&key)))
    }

    fn asked(&self, op: Op) -> BTreeSet<PartitionId> {
        let has_some = |partition: &Rc<Partition>| !self.history.ranges(op, partition.bounds()).is_empty();
        self.partitions.iter().filter(|(_, partition)| has_some(partition)).map(|(id, _)| *id).collect()
    }

    fn end(&mut self, op: Op) {
        assert!(matches!(self.history.ops[op].kind, Kind::Collect { .. }));
        self.history.tiles(op).unwrap_or_else(|why| panic!("{why}"));
        self.history.answer(op);
        self.judge();
    }
}
