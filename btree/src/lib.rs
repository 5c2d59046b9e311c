//! An in-memory, copy-on-write B+ tree over byte strings, and the commands that run on it.
//!
//! It knows keys, values, ranges, snapshots, splits and undo. It refuses to know partitions, replication, sessions,
//! time, threads and files.
#![forbid(unsafe_code)]

pub mod op;

pub use op::{Op, OpResult, Value};
