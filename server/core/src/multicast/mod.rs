//! Queries over several partitions, on their way between nodes (protocol.md 4).
//!
//! `message` is what the coordinator and the partitions' leaders say to each other, as bytes; `partition_query` is what
//! one partition is asked for a query. The rules are in `coppice_ordering::multicast`; this room knows no rule.

pub mod message;
pub mod partition_query;

pub use message::{MulticastBody, MulticastMessage};
pub use partition_query::PartitionQuery;
