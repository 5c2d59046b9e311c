//! The deterministic simulator: whole clusters of the real pure code in one thread, from one seed (hazards.md 4).
//!
//! What is real: workers (replicas with Paxos, executor, sessions and gate; the coordinator; queries; room on disks),
//! the directory and its changes, what decides which replicas a node has, client sessions, the wire protocol, the log
//! with its recovery, the snapshot format. What is simulated: the network, disks, clocks, crashes, threads, and the few
//! lines of a node that move bytes between these. Nothing here asks for the time or for outside randomness: the same
//! seed is the same run, step by step ([`trace`]).
//!
//! | room | what |
//! |---|---|
//! | [`plan`], `draw`, `wide` | a run before it begins; what a seed draws of it: shape, settings, workload, faults |
//! | `events`, `world`, `phases` | the heap of events, the phases |
//! | `node`, `steps`, `workers`, `processes`, `stops`, `snapshots` | a node and what it does; its workers, its starts and ends, its checkpoints |
//! | `store`, `lines`, `endpoints` | its disk, its client connections |
//! | `control_thread`, `control` | its map, the replicas that come and go |
//! | `members`, `operators` | growing and shrinking, and who asks for it |
//! | `net`, `damage` | messages on their way, and damaged there |
//! | `faults`, `harm`, `triggers` | what went wrong so far; how each fault is made; those that wait for their moment |
//! | `incarnations`, `copies` | disks put back as they were, and what nodes know of each other's boot ids |
//! | `forming` | `init`, over processes without a cluster |
//! | `client`, `clients` | client sessions and their workload |
//! | [`during`] | what clients get while a cut lasts |
//! | `observe`, `oracle`, `known`, `groups`, `tickets`, `ledger`, `watermarks`, `positions`, `found` | invariants after every step, from the simulator's own knowledge |
//! | `account` | the history and the logs, for the checkers |
//! | `exhaustive` | one fault at every place of a small run |
//! | `schedule`, `scripts` | runs as files, some with planted bugs; these, and schedules A to F, played |
//! | `coverage` | rare conditions that a sweep must meet |
//! | `sweep`, `panics`, `failing`, `shrink`, `planted` | many seeds; those that panic; what is said of one that fails; one made short; planted bugs |
//! | `trace`, `fingerprint` | a line per step; what of it goes into its hash |
//! | `cli`, `watch` | the program; what it may take |
#![forbid(unsafe_code)]

mod account;
pub mod cli;
mod client;
mod clients;
mod content;
mod control;
mod control_thread;
mod copies;
pub mod coverage;
mod damage;
mod draw;
pub mod during;
mod endpoints;
mod events;
mod exhaustive;
mod failing;
mod faults;
mod fingerprint;
#[cfg(test)]
mod forming;
mod found;
mod groups;
mod harm;
mod incarnations;
mod known;
mod ledger;
mod lines;
mod members;
mod net;
mod node;
mod observe;
mod operators;
mod oracle;
mod panics;
mod phases;
pub mod plan;
pub mod planted;
mod positions;
mod processes;
mod schedule;
mod scripts;
mod shrink;
mod snapshots;
mod steps;
mod stops;
mod store;
pub mod sweep;
mod tickets;
pub mod trace;
mod triggers;
mod watch;
mod watermarks;
mod wide;
mod workers;
mod world;

pub use plan::Plan;
pub use world::{Failure, Outcome, run};
