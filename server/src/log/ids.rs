//! The words of the log, as `coppice_ordering` defines them.

use std::collections::BTreeSet;
use std::fmt;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

/// A leadership attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Counts attempts.
    pub round: u64,
    /// Who attempts.
    pub replica: ReplicaId,
}

/// A position in a group's log, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub u64);

impl fmt::Display for Instance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{}", self.0)
    }
}

/// The number of a `Persist` effect of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Who votes and who only learns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Configuration {
    /// Replicas that are counted in quorums.
    pub voters: BTreeSet<ReplicaId>,
    /// Replicas that catch up.
    pub learners: BTreeSet<ReplicaId>,
}

/// Commands as they came in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commands {
    /// How many.
    pub count: u32,
    /// Their bytes.
    pub bytes: Bytes,
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

/// What an acceptor must not forget.
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
        /// For what.
        batch: Batch,
    },
    /// All up to `instance` are decided.
    Decided {
        /// The last one.
        instance: Instance,
    },
}
