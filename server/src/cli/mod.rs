//! The command line: what can be said, how it is carried out, what is printed and how it exits (operations.md 2).
//!
//! Verbs talk to a cluster only through the client library.

pub mod args;
pub mod cert;
mod cluster;
mod config_verb;
pub(crate) mod connect;
mod data;
pub mod errors;
#[cfg(test)]
mod errors_tests;
pub mod failure;
#[cfg(test)]
mod golden;
mod input;
pub mod inspect;
pub(crate) mod latency_probe;
mod local;
mod node_flags;
pub mod operate;
pub(crate) mod output;
#[cfg(test)]
mod output_tests;
mod page_token;
pub mod predict;
mod progress;
mod range;
pub mod rows;
pub(crate) mod run;
mod scan;
pub(crate) mod serve;
mod settings;
mod shape;
pub mod shape_args;
mod shape_tables;
mod shell;
mod start_failure;
#[cfg(test)]
mod status_tests;
pub mod transfer;
pub mod tuning;
mod usage;
pub mod user;
pub mod verbs;
pub mod words;

pub use failure::{Exit, Failure};
pub use run::at_prompt;
