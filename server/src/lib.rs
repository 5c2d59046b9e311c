//! The Coppice server, its operator tool and the demo.

#[macro_use]
extern crate planted;

pub mod admin_http;
pub mod certs;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod control;
pub mod cores;
pub mod datadir;
pub mod demo;
pub mod durable;
pub mod local;
pub mod log;
pub mod logging;
pub mod mailbox;
pub mod metrics;
pub mod net;
pub mod node;
pub mod random;
pub mod shard;
pub mod shared;
pub mod spin;
pub mod task;
pub mod vetting;
