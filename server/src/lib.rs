//! The Coppice server, its operator tool and the demo.

pub mod admin_http;
pub mod checkpoint;
pub mod config;
pub mod datadir;
pub mod log;
pub mod logging;
pub mod metrics;
pub mod mutants;
