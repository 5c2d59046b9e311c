//! What a log keeps for its callers, and what of it a start needs. Pure: `coppice-server`'s log writes and reads the
//! bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_ordering::{Ballot, Batch, Instance, Lsn, Record, ReplicaId};

/// What a batch takes beside its payload, in bytes, about.
const AROUND_BYTES: usize = 128;

/// What the log keeps for its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A promise, vote or decision of one group's replica.
    Group {
        group: PartitionId,
        /// What `coppice_ordering` asked to persist.
        record: Record,
    },
    /// A replica of `group` starts here; anything the log holds of an older replica of the group is void.
    Created {
        group: PartitionId,
        /// As which replica: above any earlier one of the group.
        replica: ReplicaId,
        /// What it starts from, for the caller to read again; at most 16 MiB.
        create: Bytes,
    },
    /// The replica is removed, and must not be started again (protocol.md 8: a replayed split starts nothing twice).
    Removed { group: PartitionId, replica: ReplicaId },
    /// A durable, verified checkpoint holds everything up to `upto`: older batches may go.
    Trimmed {
        group: PartitionId,
        /// The checkpoint's instance.
        upto: Instance,
    },
    /// Segments below `segment` were dropped on purpose; all others must be there. Written by the log itself.
    Kept {
        /// The oldest segment left.
        segment: u64,
    },
}

impl Entry {
    /// The group concerned; `None` for records of the node.
    pub fn group(&self) -> Option<PartitionId> {
        match self {
            Entry::Group { group, .. }
            | Entry::Created { group, .. }
            | Entry::Removed { group, .. }
            | Entry::Trimmed { group, .. } => Some(*group),
            Entry::Kept { .. } => None,
        }
    }

    /// Whose batch it holds, and where, if it does.
    pub fn batch(&self) -> Option<(PartitionId, Instance)> {
        match self {
            Entry::Group { group, record: Record::Accept { instance, .. } | Record::Learned { instance, .. } } => {
                Some((*group, *instance))
            }
            _ => None,
        }
    }
}

/// One group's records, as a start needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupReplay {
    /// The replica that runs here and what it started from; `None` if the log never said, or after its removal.
    pub created: Option<(ReplicaId, Bytes)>,
    /// The newest replica of the group that was removed here: no create request of it may be replayed (protocol.md 8).
    pub removed: Option<ReplicaId>,
    /// A durable checkpoint holds everything up to here.
    pub trimmed: Option<Instance>,
    /// A state that the start has at hand holds everything up to here: that of a snapshot, or what it was rolled
    /// forward to.
    state: Instance,
    /// Batches up to here, above the snapshot and with so many bytes of payload, are in that state and not in memory.
    pub(crate) evicted: Option<(Instance, usize)>,
    /// Batches in log order.
    batches: Vec<Record>,
    /// Carried copies of batches: of each instance the vote of the highest ballot, then what was learned.
    carried: BTreeMap<BatchKey, Record>,
    /// The highest ballot promised or voted in, votes for batches that are not needed included.
    promised: Ballot,
    /// How far the log says that its batches are decided, those that are not needed included.
    decided: Instance,
    /// The longest lease promised.
    lease: Duration,
}

impl GroupReplay {
    /// The records as `coppice_ordering::RecoveredGroup::apply` takes them, numbered anew from 1: the highest promise,
    /// carried batches, all others in log order, then what is decided. Leaves no batches.
    ///
    /// A carried batch stands in the log behind records that are newer than it. Where one of these is about the same
    /// instance, that counts: while an older one was still in the log, so was what the carried batch is a copy of.
    pub fn take_records(&mut self) -> impl Iterator<Item = (Lsn, Record)> {
        let promise = (self.promised > Ballot::ZERO).then_some(Record::Promise { ballot: self.promised });
        let mut carried: Vec<Record> = std::mem::take(&mut self.carried).into_values().collect();
        let mut batches = std::mem::take(&mut self.batches);
        if mutant!(carried_vote_wins) {
            std::mem::swap(&mut carried, &mut batches);
        }
        let decided = (self.decided > Instance::ZERO).then_some(Record::Decided { upto: self.decided });
        let lease = (self.lease > Duration::ZERO).then_some(Record::Lease { duration: self.lease });
        (1..).map(Lsn).zip(promise.into_iter().chain(carried).chain(batches).chain(decided).chain(lease))
    }

    /// Takes out the batches that come next after the state at hand and are decided, ascending: of each instance the
    /// newest record, as [`GroupReplay::take_records`] would have it. Linear in what is held, and the rest stays.
    ///
    /// None: the state cannot go on before all of the log is read. Of a batch that is missing the log may hold carried
    /// copies, and the one that counts further on; a trim position above the state says that batches are gone.
    pub(crate) fn take_decided(&mut self) -> Option<Vec<Record>> {
        if self.trimmed.is_some_and(|trimmed| trimmed > self.state) {
            return None;
        }
        let decided = if mutant!(rolls_undecided) { Instance(u64::MAX) } else { self.decided };
        let (mut next, mut rest) = (BTreeMap::new(), Vec::new());
        for record in std::mem::take(&mut self.batches) {
            match batch_instance(&record) {
                Some(instance) if instance <= decided => _ = next.insert(instance, record),
                _ => rest.push(record),
            }
        }
        let follow = next.keys().zip(self.state.0 + 1..).all(|(instance, expected)| instance.0 == expected);
        if !follow {
            self.batches = next.into_values().chain(rest).collect();
            return None;
        }
        self.batches = rest;
        Some(next.into_values().collect())
    }

    /// The newest batches that the state holds, for replicas that are a little behind, or those that it could not
    /// execute: they stand in front of all others.
    pub(crate) fn put_back(&mut self, records: impl IntoIterator<Item = Record>) {
        self.batches.splice(..0, records);
    }

    /// The state that the start has at hand holds everything up to here.
    pub fn state(&self) -> Instance {
        self.state
    }

    /// Batches up to here are in that state, and of this replay no more.
    pub fn evicted_upto(&self) -> Instance {
        self.evicted.map_or(Instance::ZERO, |(upto, _)| upto)
    }

    /// How far the log says that it holds what was decided.
    pub fn decided(&self) -> Instance {
        self.decided.max(self.trimmed.unwrap_or_default())
    }

    /// Takes in a record; batches that a snapshot holds are not kept.
    fn apply(&mut self, carried: bool, record: Record) {
        match &record {
            Record::Promise { ballot } => self.promised = self.promised.max(*ballot),
            Record::Accept { ballot, decided_upto, .. } => {
                self.promised = self.promised.max(*ballot);
                self.decided = self.decided.max(*decided_upto);
            }
            Record::Learned { instance, .. } => self.decided = self.decided.max(*instance),
            Record::Decided { upto } => self.decided = self.decided.max(*upto),
            Record::Lease { duration } => self.lease = self.lease.max(*duration),
        }
        let Some(key) = batch_key(&record).filter(|(instance, _)| *instance > self.needless()) else { return };
        if !carried {
            self.batches.push(record);
        } else if self.carried.get(&key).is_none_or(|known| batch_ballot(known) <= batch_ballot(&record)) {
            self.carried.insert(key, record);
        }
    }

    /// No batch up to here is needed.
    fn needless(&self) -> Instance {
        self.state.max(self.trimmed.unwrap_or_default())
    }
}

/// Takes in a log as it is read.
pub trait ReadsLog {
    /// The next record, and whether it is a carried copy.
    fn apply(&mut self, carried: bool, entry: Entry);
}

/// Everything durable, by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The groups that the log knows.
    pub groups: BTreeMap<PartitionId, GroupReplay>,
    states: BTreeMap<PartitionId, Instance>,
}

impl Replay {
    /// For a start that has states of these instances at hand: batches up to there are passed over, so that memory
    /// holds only what is replayed.
    pub fn above(states: BTreeMap<PartitionId, Instance>) -> Replay {
        Replay { groups: BTreeMap::new(), states }
    }

    /// The state of a group at hand is that of this instance from now on.
    pub(crate) fn set_state(&mut self, group: PartitionId, instance: Instance) {
        self.states.insert(group, instance);
        if let Some(replay) = self.groups.get_mut(&group) {
            replay.state = instance;
        }
    }
}

impl ReadsLog for Replay {
    fn apply(&mut self, carried: bool, entry: Entry) {
        let Some(group) = entry.group() else { return };
        let state = self.states.get(&group).copied().unwrap_or_default();
        let nothing = GroupReplay { state, ..GroupReplay::default() };
        let state = self.groups.entry(group).or_insert_with(|| nothing.clone());
        match entry {
            Entry::Group { record, .. } => state.apply(carried, record),
            Entry::Created { replica, create, .. } => {
                if !carried {
                    *state = GroupReplay { removed: state.removed, ..nothing };
                }
                state.created = Some((replica, create));
            }
            Entry::Removed { replica, .. } => {
                if !carried {
                    *state = nothing;
                }
                state.removed = Some(replica);
            }
            Entry::Trimmed { upto, .. } => {
                state.trimmed = state.trimmed.max(Some(upto));
                state.batches.retain(|record| batch_instance(record).is_none_or(|instance| instance > upto));
                state.carried.retain(|(instance, _), _| *instance > upto);
            }
            Entry::Kept { .. } => {}
        }
    }
}

/// Where the record holds a batch, if it does.
fn batch_instance(record: &Record) -> Option<Instance> {
    batch_of(record).map(|(instance, _)| instance)
}

/// The batch that the record holds, and where, if it does.
pub(crate) fn batch_of(record: &Record) -> Option<(Instance, &Batch)> {
    match record {
        Record::Accept { instance, batch, .. } | Record::Learned { instance, batch, .. } => Some((*instance, batch)),
        Record::Promise { .. } | Record::Decided { .. } | Record::Lease { .. } => None,
    }
}

/// What the record's batch takes in memory, in bytes, about.
pub(crate) fn batch_bytes(record: &Record) -> usize {
    batch_of(record).map_or(0, |(_, batch)| batch.len_bytes() + AROUND_BYTES)
}

/// An instance, and whether its batch was learned to be decided. A vote stays one beside what was learned later.
pub type BatchKey = (Instance, bool);

/// Where the record holds a batch, and whether it was learned to be decided.
pub fn batch_key(record: &Record) -> Option<BatchKey> {
    Some((batch_instance(record)?, matches!(record, Record::Learned { .. })))
}

/// The ballot of a batch's record.
pub fn batch_ballot(record: &Record) -> Ballot {
    match record {
        Record::Accept { ballot, .. } | Record::Learned { ballot, .. } => *ballot,
        Record::Promise { .. } | Record::Decided { .. } | Record::Lease { .. } => Ballot::ZERO,
    }
}
