//! Batching and pipelining tune themselves (ordering.md 9, papers.md 2).
//!
//! [`model`] is the analytical model of *Tuning Paxos*: what a batch size and a window come to on given links and CPUs.
//! [`fit`] learns the costs that it needs from measured times. [`controller`] hands both what was measured of a group,
//! and changes the group's batches and window when that has changed. All of it is arithmetic: nothing here measures,
//! and time is an argument.

pub mod controller;
pub mod fit;
pub mod model;

pub use controller::{Account, Controller, Limits, Measured, StageCost, Tuning};
pub use fit::Fit;
pub use model::{Choice, Disk, InstanceCost, Link, MessageCost, Model, Network, Resource, Sizes};
