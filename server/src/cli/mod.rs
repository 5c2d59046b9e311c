//! The command line: what can be said, how it is carried out, what is printed and how it exits (operations.md 2).
//!
//! Verbs talk to a cluster only through the client library.

pub mod args;
pub mod cert;
mod cluster;
mod config_verb;
mod connect;
mod data;
pub mod errors;
#[cfg(test)]
mod errors_tests;
pub mod failure;
#[cfg(test)]
mod golden;
mod input;
pub mod inspect;
mod local;
mod node_flags;
pub mod operate;
mod output;
#[cfg(test)]
mod output_tests;
mod page_token;
pub mod predict;
mod range;
mod run;
mod scan;
mod serve;
mod shape;
pub mod shape_args;
mod shape_tables;
mod shell;
mod start_failure;
pub mod status;
#[cfg(test)]
mod status_tests;
mod text;
pub mod tuning;
mod usage;
pub mod user;
pub mod verbs;
pub(crate) mod waits;
pub mod words;

pub use failure::{Exit, Failure};
pub use run::{at_prompt, main};
