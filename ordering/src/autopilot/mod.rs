//! Batching and pipelining tune themselves (ordering.md 9, papers.md 2).
//!
//! [`model`] is the analytical model of *Tuning Paxos*: what a batch size and a window come to on given links and CPUs.
//! Pure arithmetic, and nothing here measures: whoever runs it hands in what was measured.

pub mod model;

pub use model::{Choice, Disk, InstanceCost, Link, MessageCost, Model, Network, Resource, Sizes};
