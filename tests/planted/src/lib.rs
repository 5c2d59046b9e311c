//! Bugs and faults that tests switch on by name: [`mutant!`] and [`failpoint!`].
//!
//! A crate that plants some has a feature `mutants` or `failpoints`, which no release has; in a build without it both
//! macros are nothing at all. This crate knows no crate of ours, and every crate of ours may know it.
#![forbid(unsafe_code)]

pub mod failpoints;
mod mutants;

pub use mutants::{activate, active, assert_caught};
