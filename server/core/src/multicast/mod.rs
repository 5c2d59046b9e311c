//! Queries over several partitions, on their way between nodes (protocol.md 4).
//!
//! `letter` is what the coordinator and the partitions' leaders say to each other, as bytes; `share` is what one
//! partition is asked for a query. The rules are in `coppice_ordering::multicast`; this room knows no rule.

pub mod letter;
pub mod share;

pub use letter::{Letter, Word};
pub use share::Share;
