//! The acceptor: what this replica promised and accepted, and which of it is durable (protocol.md 1.3).
//!
//! It numbers all log records of the group. It does not know what is decided, nor who leads: the composition tells it
//! what to accept, and takes the votes out once their records are flushed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::Batch;
use crate::ids::{Ballot, Instance, Lsn, ReplicaId, Time};
use crate::slots::{Slot, Slots};
use crate::step::{Effect, Record};

/// A `Phase1a` that is answered once the promise is flushed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingPromise {
    pub to: ReplicaId,
    pub from: Instance,
}

/// A contiguous run of instances accepted in one ballot, all durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    pub ballot: Ballot,
    pub first: Instance,
    pub last: Instance,
}

impl Run {
    pub fn contains(&self, ballot: Ballot, instance: Instance) -> bool {
        self.ballot == ballot && self.first <= instance && instance <= self.last
    }
}

/// A promise to answer no other ballot's `Phase1a` (protocol.md 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LeasePromise {
    /// To the leader of this ballot; zero after a restart, when it is not known to whom.
    pub ballot: Ballot,
    pub until: Time,
}

/// Where in the log the batches are that memory holds no more, above the last snapshot that is durable here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct EvictedRuns {
    /// Each up to an instance, with its first record and its payload; ascending.
    runs: VecDeque<(Instance, Lsn, usize)>,
}

/// Payload of one run of evicted batches, in bytes: so few are noted however long the log is.
const EVICTED_RUN_BYTES: usize = 1 << 20;

impl EvictedRuns {
    fn push(&mut self, instance: Instance, lsn: Lsn, bytes: usize) {
        match self.runs.back_mut() {
            Some((upto, first, held)) if *held < EVICTED_RUN_BYTES => {
                (*upto, *first, *held) = (instance, lsn.min(*first), *held + bytes);
            }
            _ => self.runs.push_back((instance, lsn, bytes)),
        }
    }

    /// A snapshot covers everything up to `upto`.
    fn trim(&mut self, upto: Instance) {
        while self.runs.pop_front_if(|(last, ..)| *last <= upto).is_some() {}
    }

    /// The first record that is still needed.
    fn oldest(&self) -> Option<Lsn> {
        self.runs.iter().map(|(_, lsn, _)| *lsn).min()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Acceptor {
    /// No lower ballot gets a promise or a vote. At least the ballot of every slot's vote.
    promised: Ballot,
    /// The record that holds `promised`.
    promised_lsn: Lsn,
    /// Every record up to here is flushed. At most `last_lsn`.
    durable: Lsn,
    /// The newest record.
    last_lsn: Lsn,
    /// Accepted and learned batches.
    pub slots: Slots,
    /// Batches that only the log holds: decided, durable, and no longer in `slots`.
    evicted: EvictedRuns,
    /// Payload of accepted and undecided batches.
    undecided_bytes: usize,
    /// Everything decided up to here is on flushed records, or below the trim point.
    durable_upto: Instance,
    /// The record that says that the newest configuration is decided: without it nothing from there on counts as held.
    configured: (Instance, Lsn),
    /// Votes whose records are not flushed yet, in record order.
    pending_votes: VecDeque<(Lsn, Ballot, Instance)>,
    /// The run that the newest durable vote ends.
    run: Run,
    /// At most one: a candidate asks again. It waits for `promised_lsn`, and is of the ballot `promised`.
    pub pending_promise: Option<PendingPromise>,
    pub lease: LeasePromise,
    /// The longest lease that may be promised: on disk, or on the way there up to `lease_lsn`.
    lease_bound: Duration,
    lease_lsn: Lsn,
}

impl Acceptor {
    pub fn recovered(
        promised: Ballot,
        slots: Slots,
        decided_upto: Instance,
        last_lsn: Lsn,
        lease_bound: Duration,
        now: Time,
    ) -> Acceptor {
        let undecided_bytes = slots.iter_from(decided_upto.next()).map(|(_, slot)| slot.batch.len_bytes()).sum();
        let until = if mutant!(lease_forgotten) { now } else { now + lease_bound };
        Acceptor {
            promised,
            promised_lsn: last_lsn,
            durable: last_lsn,
            last_lsn,
            slots,
            undecided_bytes,
            lease: LeasePromise { ballot: Ballot::ZERO, until },
            lease_bound,
            lease_lsn: last_lsn,
            ..Acceptor::default()
        }
    }

    /// The log alone holds batches up to here, of so many bytes, since before this start: any of its records may.
    pub fn note_evicted(&mut self, upto: Instance, bytes: usize) {
        self.evicted.push(upto, Lsn(1), bytes);
    }

    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// Whether the promise on record is flushed.
    pub fn promise_is_durable(&self) -> bool {
        self.is_durable(self.promised_lsn)
    }

    pub fn is_durable(&self, lsn: Lsn) -> bool {
        lsn <= self.durable
    }

    /// Appends a record to the log.
    pub fn persist(&mut self, record: Record, effects: &mut Vec<Effect>) -> Lsn {
        self.last_lsn = self.last_lsn.next();
        effects.push(Effect::Persist { lsn: self.last_lsn, record });
        self.last_lsn
    }

    /// Promises `ballot`, which is higher than any before. Durable at the returned record.
    pub fn promise(&mut self, ballot: Ballot, effects: &mut Vec<Effect>) -> Lsn {
        assert!(ballot > self.promised, "promise {ballot} after {}", self.promised);
        self.promised = ballot;
        self.pending_promise = None;
        if mutant!(round_in_memory) {
            return self.durable;
        }
        self.promised_lsn = self.persist(Record::Promise { ballot }, effects);
        self.promised_lsn
    }

    /// Accepts `batch`; the vote comes out of `persisted`.
    pub fn accept(
        &mut self,
        ballot: Ballot,
        instance: Instance,
        batch: Batch,
        decided_upto: Instance,
        effects: &mut Vec<Effect>,
    ) {
        assert!(ballot >= self.promised, "accept in {ballot} after a promise of {}", self.promised);
        let record = Record::Accept { instance, ballot, decided_upto, batch: batch.clone() };
        let lsn = self.persist(record, effects);
        if ballot > self.promised {
            self.promised = ballot;
            self.promised_lsn = lsn;
            self.pending_promise = None;
        }
        self.pending_votes.push_back((lsn, ballot, instance));
        effects.push(Effect::Accepted { instance, ballot, batch: batch.clone() });
        self.undecided_bytes += batch.len_bytes();
        if let Some(replaced) = self.slots.set(instance, Slot { ballot, batch, lsn }) {
            self.undecided_bytes -= replaced.batch.len_bytes();
        }
    }

    /// A decided batch came from elsewhere: keeps it without a vote.
    pub fn learn(&mut self, instance: Instance, ballot: Ballot, batch: Batch, effects: &mut Vec<Effect>) {
        let lsn = self.persist(Record::Learned { instance, ballot, batch: batch.clone() }, effects);
        effects.push(Effect::Accepted { instance, ballot, batch: batch.clone() });
        self.undecided_bytes += batch.len_bytes();
        if let Some(replaced) = self.slots.set(instance, Slot { ballot, batch, lsn }) {
            self.undecided_bytes -= replaced.batch.len_bytes();
        }
    }

    /// Payload of accepted and undecided batches.
    pub fn undecided_bytes(&self) -> usize {
        self.undecided_bytes
    }

    /// So much of it is decided.
    pub fn decided_bytes(&mut self, bytes: usize) {
        self.undecided_bytes -= bytes;
    }

    /// A configuration is among what was decided up to `upto`: records that it is.
    pub fn note_configured(&mut self, upto: Instance, effects: &mut Vec<Effect>) {
        self.persist(Record::Decided { upto }, effects);
        // `Decided` is lazy, and this one is waited for: a promise repeated brings it to disk.
        let lsn = self.persist(Record::Promise { ballot: self.promised }, effects);
        self.configured = (upto, lsn);
    }

    /// How much of what is decided is on flushed records, and known there to be decided as far as configurations go.
    pub fn durable_upto(&mut self, decided_upto: Instance) -> Instance {
        let (configured, lsn) = self.configured;
        if lsn > self.durable && decided_upto >= configured && !mutant!(decision_held_in_memory) {
            // All of it or nothing: the configuration may be anywhere below.
            return self.durable_upto;
        }
        let mut upto = self.durable_upto.max(self.slots.trimmed_upto());
        while upto < decided_upto && self.slots.get(upto.next()).is_some_and(|slot| slot.lsn <= self.durable) {
            upto = upto.next();
        }
        self.durable_upto = upto;
        upto
    }

    /// Lets go of the oldest batches up to `upto`, which are decided and executed, while more than `retain` bytes are
    /// held: the log has them. What is not flushed stays.
    pub fn evict(&mut self, upto: Instance, decided_upto: Instance, retain: usize) {
        if self.slots.len_bytes() <= retain {
            return;
        }
        let durable = if mutant!(evict_unflushed) { decided_upto } else { self.durable_upto(decided_upto) };
        while self.slots.len_bytes() > retain && self.slots.trimmed_upto() < upto.min(durable) {
            let instance = self.slots.trimmed_upto().next();
            if let Some(slot) = self.slots.get(instance) {
                self.evicted.push(instance, slot.lsn, slot.batch.len_bytes());
            }
            self.slots.trim(instance);
        }
    }

    /// A durable snapshot covers everything up to `instance`.
    pub fn trim(&mut self, instance: Instance) {
        self.slots.trim(instance);
        self.evicted.trim(instance);
    }

    /// A snapshot at `instance` took the place of everything up to there.
    pub fn install(&mut self, instance: Instance) {
        self.trim(instance);
        self.undecided_bytes = self.slots.iter_from(instance.next()).map(|(_, slot)| slot.batch.len_bytes()).sum();
    }

    /// Records up to `lsn` are flushed: adds the runs of votes that this made durable.
    pub fn persisted(&mut self, lsn: Lsn, runs: &mut Vec<Run>) {
        assert!(lsn <= self.last_lsn, "{lsn} is flushed, but the last record is {}", self.last_lsn);
        self.durable = self.durable.max(lsn);
        self.take_votes(self.durable, runs);
    }

    /// Votes without waiting for the disk (hazards.md PX1): only a mutant does.
    pub fn take_votes_early(&mut self, runs: &mut Vec<Run>) {
        self.take_votes(self.last_lsn, runs);
    }

    fn take_votes(&mut self, upto: Lsn, runs: &mut Vec<Run>) {
        let mut changed = false;
        while let Some((_, ballot, instance)) = self.pending_votes.pop_front_if(|(lsn, ..)| *lsn <= upto) {
            // A vote for a ballot that a higher promise has ended helps nobody.
            if ballot != self.promised {
                continue;
            }
            let gap_ignored = mutant!(ack_over_gap) && self.run.last < instance;
            if self.run.ballot == ballot && (self.run.last.next() == instance || gap_ignored) {
                self.run.last = instance;
            } else {
                if changed {
                    runs.push(self.run);
                }
                self.run = Run { ballot, first: instance, last: instance };
            }
            changed = true;
        }
        if changed {
            runs.push(self.run);
        }
    }

    /// The votes to repeat for an instance that is accepted in `ballot`, if its record is flushed.
    pub fn repeat_vote(&self, ballot: Ballot, instance: Instance, lsn: Lsn) -> Option<Run> {
        if !self.is_durable(lsn) {
            return None;
        }
        let single = Run { ballot, first: instance, last: instance };
        Some(if self.run.contains(ballot, instance) { self.run } else { single })
    }

    /// Whether a lease keeps this replica from promising `ballot` (protocol.md 7).
    pub fn lease_forbids(&self, ballot: Ballot, transfer: Option<Ballot>, now: Time) -> bool {
        self.lease.until > now && self.lease.ballot != ballot && transfer != Some(self.lease.ballot)
    }

    /// Promises the leader of `ballot` as much of `wanted` as is on record, and records more for the next time.
    pub fn grant_lease(&mut self, ballot: Ballot, wanted: Duration, now: Time, effects: &mut Vec<Effect>) -> Duration {
        if wanted.is_zero() {
            return Duration::ZERO;
        }
        if wanted > self.lease_bound {
            self.lease_lsn = self.persist(Record::Lease { duration: wanted }, effects);
            self.lease_bound = wanted;
        }
        if !self.is_durable(self.lease_lsn) {
            return Duration::ZERO;
        }
        // An older promise to another ballot stays: it is kept by promising nothing to this one until it ends.
        if self.lease.until > now && self.lease.ballot != ballot {
            return Duration::ZERO;
        }
        self.lease = LeasePromise { ballot, until: (now + wanted).max(self.lease.until) };
        wanted
    }

    /// Repeats what must outlive the trimmed part of the log, and tells from where on the log is needed once that is
    /// flushed: `(flushed, below)`.
    pub fn repeat_standing(&mut self, effects: &mut Vec<Effect>) -> (Lsn, Lsn) {
        let first = self.last_lsn.next();
        self.promised_lsn = self.persist(Record::Promise { ballot: self.promised }, effects);
        if !self.lease_bound.is_zero() {
            self.persist(Record::Lease { duration: self.lease_bound }, effects);
        }
        let held = self.slots.iter_from(Instance::ZERO).map(|(_, slot)| slot.lsn).min();
        let oldest = held.into_iter().chain(self.evicted.oldest()).chain([first]).min();
        (self.last_lsn, oldest.unwrap_or(first))
    }

    pub fn assert_invariants(&self) {
        assert!(self.durable <= self.last_lsn);
        assert!(self.promised_lsn <= self.last_lsn);
        assert!(self.run.ballot <= self.promised);
        if let Some((lsn, ..)) = self.pending_votes.front() {
            assert!(*lsn > self.durable, "a vote at {lsn} waits although {} is flushed", self.durable);
        }
    }
}
