//! The words of the log: those of `coppice_ordering`, and the group.

pub use coppice_client::wire::PartitionId;
pub use coppice_ordering::{Ballot, Batch, Commands, Configuration, Instance, Lsn, Record, ReplicaId, Round};
