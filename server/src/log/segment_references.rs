//! What each segment is still needed for. Pure: told of every record with its segment, it says which segments may go
//! and what must be written again before they do.
//!
//! A batch is needed until a durable checkpoint covers its instance. One that no checkpoint will cover for a while (it
//! is undecided, for its group has no quorum, or its replica awaits a snapshot) is carried too once most of the log is
//! kept for its sake ([`SegmentReferences::rewrite`]): else one such group would keep the log of all. Promises, create
//! requests, removals, trim positions and how far batches are decided are needed for ever, but only the highest of
//! them: they are *carried*, written again into the newest segment. A vote is a promise too, so the highest ballot that
//! a group voted in is carried as a promise when its batch goes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_core::replay::Entry;

use super::ids::{Ballot, Instance, PartitionId, Record, ReplicaId};
use super::record::entry_bytes;
use super::segment::SegmentNumber;

/// A value, and the lsn of the newest record that states it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stated<T> {
    lsn: u64,
    value: T,
}

/// `value` is stated by record `lsn`; only the highest value counts, and its newest statement.
fn raise<T: Ord>(stated: &mut Option<Stated<T>>, lsn: u64, value: T) {
    if stated.as_ref().is_none_or(|stated| stated.value <= value) {
        *stated = Some(Stated { lsn, value });
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupState {
    created: Option<Stated<(ReplicaId, Bytes)>>,
    removed: Option<Stated<ReplicaId>>,
    promised: Option<Stated<Ballot>>,
    lease: Option<Stated<Duration>>,
    trimmed: Option<Stated<Instance>>,
    /// A replica may be a voter only by a configuration that is decided, and nobody else may be left to say so.
    decided: Option<Stated<Instance>>,
    /// Records up to this lsn are those of an older replica, and void.
    void_upto: u64,
}

/// The batches of one group in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Batches {
    highest: Instance,
    bytes: u64,
}

/// A segment whose batches are to be carried, so that it can go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteTarget {
    /// Which one: the oldest.
    pub segment: SegmentNumber,
    /// The lsn of the first record that it does not hold.
    pub end_lsn: u64,
    /// The groups that need batches in it, those above these instances.
    pub needed: BTreeMap<PartitionId, Instance>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SegmentState {
    first_lsn: u64,
    /// Its length; 0 while it is the newest.
    bytes: u64,
    batches: BTreeMap<PartitionId, Batches>,
}

/// The needs of all groups, segment by segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentReferences {
    segments: BTreeMap<SegmentNumber, SegmentState>,
    groups: BTreeMap<PartitionId, GroupState>,
    kept: Option<Stated<SegmentNumber>>,
}

impl SegmentReferences {
    /// A new segment begins with `first_lsn`.
    pub fn begin_segment(&mut self, segment: SegmentNumber, first_lsn: u64) {
        self.segments.insert(segment, SegmentState { first_lsn, bytes: 0, batches: BTreeMap::new() });
    }

    /// A segment is written no more; it has `bytes`.
    pub fn end_segment(&mut self, segment: SegmentNumber, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.bytes = bytes;
        }
    }

    /// Bytes of all segments but the newest.
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Takes note of one record of `segment`. Carried records only move what they state.
    pub fn note(&mut self, segment: SegmentNumber, lsn: u64, carried: bool, entry: &Entry) {
        match entry {
            Entry::Group { group, record } => self.note_record(segment, lsn, *group, record, entry_bytes(entry)),
            Entry::Created { group, replica, create } => {
                let state = self.groups.entry(*group).or_default();
                if !carried {
                    // What an older replica of the group left here is void.
                    let removed = state.removed.take();
                    *state = GroupState { removed, void_upto: lsn, ..GroupState::default() };
                    self.segments.values_mut().for_each(|segment| _ = segment.batches.remove(group));
                }
                let state = self.groups.entry(*group).or_default();
                state.created = Some(Stated { lsn, value: (*replica, create.clone()) });
            }
            Entry::Removed { group, replica } => {
                let state = self.groups.entry(*group).or_default();
                if !carried {
                    *state = GroupState { void_upto: lsn, ..GroupState::default() };
                    self.segments.values_mut().for_each(|segment| _ = segment.batches.remove(group));
                }
                let state = self.groups.entry(*group).or_default();
                state.removed = Some(Stated { lsn, value: *replica });
            }
            Entry::Trimmed { group, upto } => {
                raise(&mut self.groups.entry(*group).or_default().trimmed, lsn, *upto);
            }
            Entry::Kept { segment } => raise(&mut self.kept, lsn, *segment),
        }
    }

    fn note_record(&mut self, segment: SegmentNumber, lsn: u64, group: PartitionId, record: &Record, bytes: usize) {
        let state = self.groups.entry(group).or_default();
        let promised = match record {
            Record::Promise { ballot } | Record::Accept { ballot, .. } => Some(*ballot),
            Record::Lease { duration } => {
                raise(&mut state.lease, lsn, *duration);
                None
            }
            Record::Learned { .. } | Record::Decided { .. } => None,
        };
        if let Some(ballot) = promised {
            raise(&mut state.promised, lsn, ballot);
        }
        if let Record::Decided { upto } | Record::Accept { decided_upto: upto, .. } = record {
            raise(&mut state.decided, lsn, *upto);
        }
        if let Record::Accept { instance, .. } | Record::Learned { instance, .. } = record
            && let Some(segment) = self.segments.get_mut(&segment)
        {
            let batches = segment.batches.entry(group).or_default();
            batches.highest = batches.highest.max(*instance);
            batches.bytes += bytes as u64;
        }
    }

    /// Whether the batch of this record still counts: of a group's present replica, and in no checkpoint.
    pub fn needs(&self, lsn: u64, group: PartitionId, instance: Instance) -> bool {
        let Some(state) = self.groups.get(&group) else { return false };
        lsn > state.void_upto && state.trimmed.as_ref().is_none_or(|trimmed| trimmed.value < instance)
    }

    /// The oldest segment, if the batches that keep it are to be carried: where the segments hold more than
    /// `spare_bytes` and twice what is needed in them. So whatever is carried, as much was written for the first time.
    pub fn rewrite(&self, spare_bytes: u64) -> Option<RewriteTarget> {
        let (number, oldest) = self.segments.first_key_value()?;
        let (_, next) = self.segments.range(number + 1..).next()?;
        let needed: BTreeMap<PartitionId, Instance> =
            self.holders(oldest).map(|group| (group, self.trimmed(group))).collect();
        if needed.is_empty() || self.bytes() <= spare_bytes + 2 * self.needed_bytes() {
            return None;
        }
        Some(RewriteTarget { segment: *number, end_lsn: next.first_lsn, needed })
    }

    /// Bytes of the batches that are needed, at least: those of a group count whole where a part of them is.
    pub fn needed_bytes(&self) -> u64 {
        let of_segment = |segment| self.holders(segment).filter_map(|group| segment.batches.get(&group));
        self.segments.values().flat_map(of_segment).map(|batches| batches.bytes).sum()
    }

    /// All batches of `segment` that were needed stand in newer segments too.
    pub fn carried(&mut self, segment: SegmentNumber) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.batches.clear();
        }
    }

    /// Whether this segment is in use.
    pub fn holds(&self, segment: SegmentNumber) -> bool {
        self.segments.contains_key(&segment)
    }

    fn trimmed(&self, group: PartitionId) -> Instance {
        let trimmed = self.groups.get(&group).and_then(|state| state.trimmed.as_ref());
        trimmed.map_or(Instance::ZERO, |trimmed| trimmed.value)
    }

    /// The oldest segment that must stay: all below may go once [`SegmentReferences::carry`] is durable. The newest
    /// always stays.
    pub fn first_needed(&self) -> SegmentNumber {
        let needed = |(number, segment): &(&SegmentNumber, &SegmentState)| {
            self.segments.last_key_value().is_none_or(|(newest, _)| newest == *number)
                || self.holders(segment).next().is_some()
        };
        self.segments.iter().find(needed).map_or(0, |(number, _)| *number)
    }

    /// The oldest segment, when it is older than the newest, and the groups whose batches keep it: a checkpoint of each
    /// would let it go.
    pub fn oldest(&self) -> Option<(SegmentNumber, Vec<PartitionId>)> {
        if self.segments.len() < 2 {
            return None;
        }
        self.segments.first_key_value().map(|(number, segment)| (*number, self.holders(segment).collect()))
    }

    fn holders<'a>(&'a self, segment: &'a SegmentState) -> impl Iterator<Item = PartitionId> + 'a {
        let holds = |(group, batches): &(&PartitionId, &Batches)| self.trimmed(**group) < batches.highest;
        segment.batches.iter().filter(holds).map(|(group, _)| *group)
    }

    /// What must be written again before the segments below `first_kept` go, the new `Kept` record included.
    pub fn carry(&self, first_kept: SegmentNumber, out: &mut Vec<Entry>) {
        let Some(first_lsn) = self.segments.get(&first_kept).map(|segment| segment.first_lsn) else { return };
        let mut leave = |lsn: u64, entry: Entry| {
            if lsn < first_lsn {
                out.push(entry);
            }
        };
        for (&group, state) in &self.groups {
            if let Some(Stated { lsn, value }) = &state.removed {
                leave(*lsn, Entry::Removed { group, replica: *value });
            }
            if let Some(Stated { lsn, value: (replica, create) }) = &state.created {
                leave(*lsn, Entry::Created { group, replica: *replica, create: create.clone() });
            }
            if let Some(Stated { lsn, value }) = &state.promised {
                leave(*lsn, Entry::Group { group, record: Record::Promise { ballot: *value } });
            }
            if let Some(Stated { lsn, value }) = &state.lease {
                leave(*lsn, Entry::Group { group, record: Record::Lease { duration: *value } });
            }
            if let Some(Stated { lsn, value }) = &state.trimmed {
                leave(*lsn, Entry::Trimmed { group, upto: *value });
            }
            if let Some(Stated { lsn, value }) = &state.decided
                && *value > self.trimmed(group)
                && !mutant!(decided_uncarried)
            {
                leave(*lsn, Entry::Group { group, record: Record::Decided { upto: *value } });
            }
        }
        out.push(Entry::Kept { segment: first_kept });
    }

    /// Forgets the segments below `first_kept`, and names them.
    pub fn drop_below(&mut self, first_kept: SegmentNumber) -> Vec<SegmentNumber> {
        let kept = self.segments.split_off(&first_kept);
        std::mem::replace(&mut self.segments, kept).into_keys().collect()
    }

    /// The newest `Kept` record: older segments are gone on purpose.
    pub fn kept(&self) -> SegmentNumber {
        self.kept.as_ref().map_or(1, |kept| kept.value)
    }

    /// How many segments are in use.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }
}
