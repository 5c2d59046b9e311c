//! The accepted batches of a replica: a ring indexed by instance, from just above the trim point.
//!
//! Knows neither ballots' meaning nor what is decided; the acceptor and the learner do.

use std::collections::VecDeque;

use crate::batch::Batch;
use crate::ids::{Ballot, Instance, Lsn};

/// One accepted or learned batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The ballot in which it was accepted.
    pub ballot: Ballot,
    /// The value.
    pub batch: Batch,
    /// The record that holds it.
    pub lsn: Lsn,
}

/// What a batch takes beside its payload, in bytes, about.
const AROUND_BYTES: usize = 128;

impl Slot {
    fn len_bytes(&self) -> usize {
        self.batch.len_bytes() + AROUND_BYTES
    }
}

/// Accepted batches by instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Everything up to here is forgotten, and decided.
    trimmed_upto: Instance,
    /// `ring[k]` is instance `trimmed_upto + 1 + k`. The last one, if any, is occupied.
    ring: VecDeque<Option<Slot>>,
    /// What all of them take.
    bytes: usize,
}

impl Slots {
    /// Empty, after `trimmed_upto`.
    pub fn after(trimmed_upto: Instance) -> Slots {
        Slots { trimmed_upto, ..Slots::default() }
    }

    /// What the held batches take: payload, and what surrounds it.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Everything up to here is forgotten.
    pub fn trimmed_upto(&self) -> Instance {
        self.trimmed_upto
    }

    /// The highest occupied instance, or the trim point.
    pub fn last(&self) -> Instance {
        Instance(self.trimmed_upto.0 + self.ring.len() as u64)
    }

    fn index(&self, instance: Instance) -> Option<usize> {
        instance.0.checked_sub(self.trimmed_upto.0 + 1).map(|k| k as usize)
    }

    /// What is accepted at `instance`.
    pub fn get(&self, instance: Instance) -> Option<&Slot> {
        self.ring.get(self.index(instance)?)?.as_ref()
    }

    /// Puts `slot` at `instance`, which is above the trim point; returns what was there.
    pub fn set(&mut self, instance: Instance, slot: Slot) -> Option<Slot> {
        let index = self.index(instance);
        let index = index.unwrap_or_else(|| panic!("{instance} is not above the trim point {}", self.trimmed_upto));
        if index >= self.ring.len() {
            self.ring.resize(index + 1, None);
        }
        self.bytes += slot.len_bytes();
        let replaced = self.ring[index].replace(slot);
        self.bytes -= replaced.as_ref().map_or(0, Slot::len_bytes);
        replaced
    }

    /// Occupied instances from `from` on, ascending.
    pub fn iter_from(&self, from: Instance) -> impl Iterator<Item = (Instance, &Slot)> {
        let skip = self.index(from).unwrap_or(0);
        let first = self.trimmed_upto.0 + 1;
        let numbered = self.ring.iter().enumerate().skip(skip);
        numbered.filter_map(move |(k, slot)| Some((Instance(first + k as u64), slot.as_ref()?)))
    }

    /// Forgets everything up to `upto`; does nothing if that is forgotten already.
    pub fn trim(&mut self, upto: Instance) {
        let Some(index) = self.index(upto) else { return };
        let trimmed = self.ring.drain(..self.ring.len().min(index + 1));
        self.bytes -= trimmed.flatten().map(|slot| slot.len_bytes()).sum::<usize>();
        self.trimmed_upto = upto;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(round: u64) -> Slot {
        Slot { ballot: Ballot::new(round, 0), batch: Batch::NoOp, lsn: Lsn(round) }
    }

    #[test]
    fn slots_keep_holes_and_forget_from_below() {
        let mut slots = Slots::after(Instance(10));
        assert_eq!(slots.last(), Instance(10));
        assert_eq!(slots.set(Instance(13), slot(1)), None);
        assert_eq!(slots.set(Instance(11), slot(2)), None);
        assert_eq!(slots.set(Instance(13), slot(3)), Some(slot(1)));
        assert_eq!(slots.get(Instance(10)), None);
        assert_eq!(slots.get(Instance(12)), None);
        let held: Vec<u64> = slots.iter_from(Instance(1)).map(|(i, _)| i.0).collect();
        assert_eq!(held, [11, 13]);
        slots.trim(Instance(12));
        assert_eq!(slots.get(Instance(13)), Some(&slot(3)));
        slots.trim(Instance(5));
        slots.trim(Instance(20));
        assert_eq!((slots.last(), slots.get(Instance(20))), (Instance(20), None));
    }
}
