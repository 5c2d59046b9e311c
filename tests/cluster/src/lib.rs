//! `coppice-check cluster`: real processes under load and faults, and an exact judgement of everything that their
//! clients were told (hazards.md 5).
//!
//! A run is a number of rounds. Each has a cluster of its own: clients ask through the client library and write the
//! history down, faults are made and healed, the whole map is read, the nodes end, their logs are read back, and the
//! checkers judge. So neither memory nor disk grows with the length of a run.
//!
//! Beside it: what one hostile client costs the others ([`fairness`]), the expectations of security ([`security`]), and
//! the program itself ([`cli`]).
#![forbid(unsafe_code)]

/// The last commit of the sources that this program was built from; empty: it was built outside of git.
pub const COMMIT: &str = env!("COPPICE_COMMIT");

pub mod cli;
pub mod command;
mod counters;
mod cuts;
mod disk_faults;
mod draw;
mod dump;
mod effects;
mod fail;
mod failpoints;
pub mod fairness;
mod figures;
mod harm;
mod judged;
mod kernel;
mod kinds;
mod links;
mod mark_mover;
mod matrix;
mod nemesis;
pub mod nodes;
mod power;
pub mod proxy;
mod report;
mod resources;
mod resp;
mod round;
pub mod security;
mod setup;
mod shape;
mod space;
mod strace;
mod tools;
mod workload;

pub use command::{Arguments, run};
