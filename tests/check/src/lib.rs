//! Checkers of histories (hazards.md 3). They know no other code of Coppice: a history is all that they judge.
#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

pub mod beyond;
pub mod brute;
pub mod build;
pub mod certificate;
pub mod cli;
pub mod cycle;
pub mod diff;
pub mod event;
pub mod facts;
pub mod faults;
pub mod generate;
pub mod graph;
pub mod history;
pub mod intern;
pub mod json;
pub mod marks;
pub mod read;
pub mod record;
pub mod search;
pub mod state;
pub mod timeline;
pub mod verdict;
pub mod write;

#[cfg(test)]
mod tests;
