//! The deciding parts of a node: no socket, file, thread, clock or random source, and cargo keeps it so.
//!
//! The simulator runs this crate as it serves; `coppice-server` carries out what it asks for.
#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

pub mod access;
pub mod bootstrap;
pub mod bounds;
pub mod checkpoint_due;
pub mod collects;
pub mod connection;
pub mod controller;
pub mod cost;
pub mod digests;
pub mod executor;
pub mod failure_detector;
pub mod handshake;
pub mod ids;
pub mod incarnation;
pub mod machine;
pub mod majority;
pub mod multicast;
pub mod question;
pub mod replay;
pub mod replica;
pub mod replica_manager;
pub mod request;
pub mod reshape;
pub mod resp;
pub mod roll_forward;
pub mod scan;
pub mod sessions;
pub mod settings;
pub mod sizes;
pub mod snapshot;
pub mod status;
pub mod survey;
pub mod wire;
pub mod wire_reply;
pub mod worker;
