//! The names of things: replicas, ballots, instances, log records, moments, tickets.
//!
//! Every id is a newtype, so that two integers cannot be swapped; each prints the way the pages and traces write it.
//! This file knows nothing of the protocol.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A replica of one group. Ids count up per group and are never reused: a disk that lost its state comes back under a
/// new one (protocol.md 1.5). Prints `r1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u32);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The counting part of a ballot. Durable before it is used (protocol.md 1); 0 is used by nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Round(pub u64);

impl Round {
    /// The round after this one; the last one has none.
    pub fn next(self) -> Round {
        Round(self.0.saturating_add(1))
    }
}

/// A leadership: `(round, replica)`, totally ordered, never reused (protocol.md 1). Prints `3.r1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Compared first.
    pub round: Round,
    /// The replica that leads in this ballot, the only one that ever proposes in it.
    pub replica: ReplicaId,
}

impl Ballot {
    /// Below every ballot that is ever used.
    pub const ZERO: Ballot = Ballot { round: Round(0), replica: ReplicaId(0) };

    /// The ballot of `replica` in `round`.
    pub fn new(round: u64, replica: u32) -> Ballot {
        Ballot { round: Round(round), replica: ReplicaId(replica) }
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.round.0, self.replica)
    }
}

/// A position in a group's log, from 1; 0 means "before the first". Prints `#42`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance(pub u64);

impl Instance {
    /// Before the first instance.
    pub const ZERO: Instance = Instance(0);

    /// The instance after this one; the last one has none.
    pub fn next(self) -> Instance {
        Instance(self.0.saturating_add(1))
    }

    /// The instance before this one; that of 0 is 0.
    pub fn previous(self) -> Instance {
        Instance(self.0.saturating_sub(1))
    }

    /// How many instances this one is ahead of `other`; 0 if it is not.
    pub fn ahead_of(self, other: Instance) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Number of a log record of one group at one replica, from 1, ascending in the order of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The record after this one.
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lsn {}", self.0)
    }
}

/// A moment of the replica's own monotonic clock, in nanoseconds since an arbitrary start. Never compared between
/// replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The arbitrary start.
    pub const ZERO: Time = Time(0);

    /// The moment that many milliseconds after the start.
    pub fn from_millis(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// The first multiple of `step` after this: whatever is due then is due together.
    pub(crate) fn next_multiple(self, step: Duration) -> Time {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX).max(1);
        Time((self.0 / step).saturating_add(1).saturating_mul(step))
    }

    /// The time that passed since `earlier`; zero if that is later.
    #[inline]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    #[inline]
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}

/// A multicast ticket: `n` counts within a ballot of the directory (protocol.md 4). Prints `~3.57`.
///
/// Tickets of a later coordinator are greater than all of an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The coordinator's ballot in the directory group.
    pub ballot: Ballot,
    /// Counts the tickets of this ballot, from 1.
    pub n: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "~{}.{}", self.ballot.round.0, self.n)
    }
}

/// A partition: a key range with a group of its own (protocol.md, words). Prints `p4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// Version of the partition map. Ascends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MapVersion(pub u64);

impl fmt::Display for MapVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// One attempt at a query over several partitions, named by the coordinator's driver. Never used twice in a run of the
/// process. Prints `q7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueryId(pub u64);

impl fmt::Display for QueryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}", self.0)
    }
}

/// A change of the map, as the directory decided it; never reused (protocol.md 8). Prints `c3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChangeId(pub u64);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// Names a confirmation of the coordinator's leadership. Ascends within a run of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConfirmToken(pub u64);

impl ConfirmToken {
    /// The token after this one.
    pub fn next(self) -> ConfirmToken {
        ConfirmToken(self.0 + 1)
    }
}

/// Names a read, or all reads that the driver waits for at one moment. Tokens ascend within a run of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReadToken(pub u64);

/// Number of a heartbeat round within its ballot, from 1. A number is never given to two rounds (hazards.md RD2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeartbeatRound(pub u64);

impl HeartbeatRound {
    /// The round after this one.
    pub fn next(self) -> HeartbeatRound {
        HeartbeatRound(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_as_the_pages_write_them() {
        let ballot = Ballot::new(3, 1);
        assert_eq!(ballot.to_string(), "3.r1");
        assert_eq!(Instance(42).to_string(), "#42");
        assert_eq!(Ticket { ballot, n: 57 }.to_string(), "~3.57");
    }

    #[test]
    fn ballots_compare_by_round_then_by_replica() {
        assert!(Ballot::new(2, 9) < Ballot::new(3, 0));
        assert!(Ballot::new(3, 0) < Ballot::new(3, 1));
        assert!(Ballot::ZERO < Ballot::new(1, 0));
    }

    #[test]
    fn time_never_runs_below_its_start() {
        assert_eq!(Time(5) - Time(9), Duration::ZERO);
        assert_eq!(Time(u64::MAX) + Duration::from_secs(1), Time(u64::MAX));
    }
}
