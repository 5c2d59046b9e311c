//! The time of a partition, as who leads it counts it, and the keys that are due by it (protocol.md 11).
//!
//! A leader takes the time of the decided log where its leadership begins, and counts on from there by its own
//! monotonic clock; what it then executes may say that it is later. So the time passes at most as fast as a clock:
//! between two entries of the log it counts what passed at their leaders, and what nobody counted is lost. Keys expire
//! late, never early.

use std::time::Duration;

use coppice_client::wire::OPERATION_WORK;
use coppice_ordering::{Ballot, Time};

use super::Replica;
use super::step::Effect;
use crate::machine::Machine;
use crate::machine::entry::{self, Expire, Said};
use crate::machine::partition::{DueKeys, Expiry, Partition};
use crate::request::Origin;

/// Keys that one entry expires at most, and their bytes.
const KEYS_MAX: usize = 512;
const KEY_BYTES_MAX: usize = 64 << 10;

/// Between two entries that expire keys, unless more are due than one holds.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(100);

/// Between two looks at what is due, while more are due than one entry holds.
const NEXT_INTERVAL: Duration = Duration::from_millis(2);

/// While keys expire, the log says the time so often: an election costs so much of it.
const TIME_INTERVAL: Duration = Duration::from_secs(1);

/// What a leader counts.
#[derive(Debug, Default)]
pub(super) struct Elapsed {
    /// The time of the partition at a moment of this node's clock; none: this replica does not lead.
    base: Option<(u64, Time)>,
    /// In which ballot.
    ballot: Ballot,
    /// What the log says at least where the next entry of this leader will stand.
    said: u64,
    /// The time that was last proposed, and when.
    proposed: Option<(u64, Time)>,
    /// When to look next.
    again: Option<Time>,
}

impl Elapsed {
    /// When a tick is next wanted.
    pub fn again(&self) -> Option<Time> {
        self.again
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Replica {
    /// Leadership begins: what is executed and not decided may yet be taken back, and says nothing.
    pub(super) fn begin_elapsed(&mut self, ballot: Ballot) {
        let decided = self.executor.decided_view();
        let time = decided.partition().map_or(0, |partition| partition.expiry().time());
        let time = if mutant!(time_goes_back_at_election) { 0 } else { time };
        self.proposals.elapsed = Elapsed { base: Some((time, self.now)), ballot, said: time, ..Elapsed::default() };
    }

    /// Goes back to what the log says where the next entry stands. If that brings a neighbour's keys, and says no time,
    /// they count from there, and would go early by what this leader has counted since.
    pub(super) fn forget_counted(&mut self, now: Time) {
        let elapsed = &mut self.proposals.elapsed;
        if elapsed.base.is_some() && !mutant!(merge_counts_on) {
            elapsed.base = Some((elapsed.said, now));
        }
    }

    /// A pack that asks for the time.
    pub(super) fn submit_timed(
        &mut self,
        now: Time,
        origin: Origin,
        pack: &[u8],
        cost: (u32, u32),
        effects: &mut Vec<Effect>,
    ) {
        let time = self.elapsed(now);
        let said = Said { by: self.proposals.elapsed.ballot, time };
        if self.submit(now, origin, entry::timed(said, pack), cost, effects) {
            self.proposals.elapsed.said = time;
        }
    }

    /// Leadership ends.
    pub(super) fn end_elapsed(&mut self) {
        self.proposals.elapsed = Elapsed::default();
        if let Some(expiry) = self.executor.expiry_mut() {
            expiry.forget_due();
        }
    }

    /// The time of the partition, as this leader counts it; of a replica that does not lead, what it executed. It
    /// stands still while no key expires: nothing is logged then, and the next leader would know nothing of it.
    pub(super) fn elapsed(&mut self, now: Time) -> u64 {
        let expiry = self.executor.machine().partition().map(Partition::expiry);
        let (executed, stands_still) = (expiry.map_or(0, Expiry::time), expiry.is_none_or(Expiry::is_empty));
        if stands_still {
            self.forget_counted(now);
        }
        let Some((time, at)) = self.proposals.elapsed.base else { return executed };
        let counted = time.saturating_add(milliseconds(now - at));
        if executed > counted && !mutant!(time_goes_back_at_election) {
            (self.proposals.elapsed.base, self.proposals.elapsed.said) = (Some((executed, now)), executed);
            return executed;
        }
        counted
    }

    /// Proposes to expire what is due, where this replica leads and keys expire.
    pub(super) fn propose_expiry(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.proposals.elapsed.again = None;
        let Machine::Partition(partition) = self.executor.machine() else { return };
        let expiry = partition.expiry();
        if !self.leadership.is_own || expiry.is_empty() || partition.sealed().is_some() {
            return;
        }
        let (executed, next) = (expiry.time(), expiry.next_due());
        let time = self.elapsed(now);
        // One at a time, unless it was lost.
        let proposed =
            self.proposals.elapsed.proposed.filter(|&(proposed, at)| proposed > executed && now < at + TIME_INTERVAL);
        let at_least = self.proposals.elapsed.proposed.map_or(now, |(_, at)| at + EXPIRE_INTERVAL);
        let until_due = next.map_or(Duration::ZERO, |next| Duration::from_millis(next.saturating_sub(time)));
        let until_said = self.proposals.elapsed.proposed.map_or(Duration::ZERO, |(_, at)| (at + TIME_INTERVAL) - now);
        let wake = (now + until_due.min(until_said)).max(at_least);
        if proposed.is_some() || wake > now && !self.has_backlog(time) {
            self.proposals.elapsed.again =
                Some(if proposed.is_some() { now + EXPIRE_INTERVAL } else { wake.max(now + NEXT_INTERVAL) });
            return;
        }
        let Some(expiry) = self.executor.expiry_mut() else { return };
        let DueKeys { keys, more } = expiry.due(time, KEYS_MAX, KEY_BYTES_MAX);
        if !keys.is_empty() || until_said.is_zero() {
            self.proposals.elapsed.proposed = Some((time, now));
            let work = (keys.len() as u32 + 1) * OPERATION_WORK;
            let due = Expire { time, keys: keys.iter().map(|key| key[..].into()).collect() };
            self.proposals.elapsed.again = Some(now + if more { NEXT_INTERVAL } else { EXPIRE_INTERVAL });
            let entry = entry::expire(self.proposals.elapsed.ballot, &due);
            if self.submit(now, Origin::Nobody, entry, (1, work), effects) {
                self.proposals.elapsed.said = time;
            }
        } else {
            self.proposals.elapsed.again = Some(now + NEXT_INTERVAL);
        }
    }

    /// Whether so many keys were due for so long that they wait for no interval, or may be: not all deadlines are read.
    fn has_backlog(&self, time: u64) -> bool {
        let next = self.executor.machine().partition().and_then(|partition| partition.expiry().next_due());
        next.is_none_or(|next| next.saturating_add(milliseconds(EXPIRE_INTERVAL)) < time)
    }
}
