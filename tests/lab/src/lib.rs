//! The laboratory: real nodes over links of a known rate, delay and queue, and what their settings come to there
//! (papers.md A13 to A15). The program is `coppice-lab`.
//!
//! `link` is the emulated link itself, pure; `relay` gives it sockets; `cluster` puts one between every two nodes.
#![forbid(unsafe_code)]

pub mod cli;
mod cluster;
mod figures;
pub mod link;
mod load;
mod relay;
mod scenes;
