//! The Coppice server, its operator tool and the demo.

pub mod admin_http;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod control;
pub mod datadir;
pub mod demo;
pub mod entry;
pub mod executor;
pub mod local;
pub mod log;
pub mod logging;
pub mod machine;
pub mod mailbox;
pub mod metrics;
pub mod multicast;
pub mod mutants;
pub mod net;
pub mod node;
pub mod random;
pub mod replica;
pub mod request;
pub mod sessions;
pub mod shard;
pub mod shared;
pub mod snapshot;
