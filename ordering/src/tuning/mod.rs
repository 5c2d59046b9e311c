//! Batching and pipelining tune themselves (protocol.md 9, papers.md 2).
//!
//! [`model`] is the analytical model of *Tuning Paxos*: what a batch size and a window come to on given links and CPUs.
//! [`costs`] learns what it needs from measured times, by [`fit`]. [`controller`] hands the model what was measured of
//! a group, and changes the group's batches and window when that has changed; a saturated group tries out whether the
//! model is right, and what else might be better (`hill_climb`). All of it is arithmetic: nothing here measures, and
//! time is an argument.

pub mod controller;
pub mod costs;
pub mod fit;
mod hill_climb;
mod inputs;
mod limits;
pub mod model;
pub mod terms;

pub use controller::Controller;
pub use costs::Costs;
pub use fit::Fit;
pub use model::{Choice, Disk, InstanceCost, Link, MessageCost, Model, Network, Resource, Sizes};
pub use terms::{Account, Limits, Measurement, StageCost, Tuning};
