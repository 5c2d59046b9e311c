//! The words of the log, as `coppice_ordering` defines them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// A group of replicas: partition `p4`, or the directory `p0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0)
    }
}

/// A replica of a group; counted up per group, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// The counting part of a ballot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

/// A leadership attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Counts attempts.
    pub round: Round,
    /// Who attempts.
    pub replica: ReplicaId,
}

impl Ballot {
    /// The ballot of `replica` in `round`.
    pub fn new(round: u64, replica: u32) -> Ballot {
        Ballot { round: Round(round), replica: ReplicaId(replica) }
    }
}

/// A position in a group's log, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub u64);

impl fmt::Display for Instance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{}", self.0)
    }
}

/// The number of a `Persist` effect of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Who votes and who only learns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Configuration {
    /// Replicas that are counted in quorums.
    pub voters: BTreeSet<ReplicaId>,
    /// Replicas that catch up.
    pub learners: BTreeSet<ReplicaId>,
    /// Replicas that this configuration removes.
    pub leaving: BTreeSet<ReplicaId>,
}

/// Commands as they came in.
#[derive(Clone, Debug, Hash)]
pub struct Commands {
    count: u32,
    parts: Vec<Bytes>,
}

impl PartialEq for Commands {
    fn eq(&self, other: &Commands) -> bool {
        self.count == other.count && self.parts.concat() == other.parts.concat()
    }
}

impl Eq for Commands {}

impl Commands {
    /// In pieces.
    pub fn from_parts(count: u32, parts: &mut Vec<Bytes>) -> Commands {
        Commands { count, parts: std::mem::take(parts) }
    }

    /// In one piece.
    pub fn new(count: u32, bytes: Bytes) -> Commands {
        Commands { count, parts: vec![bytes] }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Their bytes.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Length of all parts.
    pub fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// The value of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// Nothing.
    NoOp,
    /// Commands.
    Commands(Commands),
    /// A membership change, alone in its instance.
    Configuration(Configuration),
}

/// What a replica keeps on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// A promise, or a round of its own.
    Promise {
        /// No lower ballot any more.
        ballot: Ballot,
    },
    /// A vote.
    Accept {
        /// Where.
        instance: Instance,
        /// In which ballot.
        ballot: Ballot,
        /// What was known to be decided then.
        decided_upto: Instance,
        /// For what.
        batch: Batch,
    },
    /// A decided batch that came from another replica. No vote.
    Learned {
        /// Where.
        instance: Instance,
        /// In which ballot.
        ballot: Ballot,
        /// What.
        batch: Batch,
    },
    /// All up to `upto` are decided.
    Decided {
        /// The last one.
        upto: Instance,
    },
    /// Leases of at most this length are promised.
    Lease {
        /// How long.
        duration: Duration,
    },
}
