//! The words of the log: those of `coppice_ordering`, and the group.

/// A group of replicas: that of partition `p4`, or the directory's, `p0`.
pub use coppice_client::wire::PartitionId as GroupId;
pub use coppice_ordering::{Ballot, Batch, Commands, Configuration, Instance, Lsn, Record, ReplicaId, Round};
