//! The words of the log: those of `coppice_ordering`, and the group.

use std::fmt;

pub use coppice_ordering::{Ballot, Batch, Commands, Configuration, Instance, Lsn, Record, ReplicaId, Round};

/// A group of replicas: that of partition `p4`, or the directory's, `p0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0)
    }
}
