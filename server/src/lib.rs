//! The Coppice server, its operator tool and the demo.

#[macro_use]
extern crate planted;

pub mod admin_http;
pub mod busy_poll;
pub mod certs;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod control;
pub mod cores;
pub mod datadir;
pub mod demo;
pub mod durable;
pub mod exit;
mod files;
pub mod local;
pub mod log;
pub mod logging;
pub mod mailbox;
pub mod messages;
pub mod metrics;
pub mod net;
pub mod node;
pub mod page;
mod process;
pub mod program;
pub mod random;
pub mod resp;
pub mod rpc;
pub mod shared;
pub mod start_error;
pub mod status_view;
pub mod task;
pub mod text;
pub mod worker_thread;
