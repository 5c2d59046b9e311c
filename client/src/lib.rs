//! The client library of Coppice and its wire protocol.
//!
//! `wire` (the public protocol) and `map` (who serves which keys) are shared with the server. They are pure: no clock,
//! thread, socket or random source. The library knows nothing of Paxos, logs and files.
#![forbid(unsafe_code)]

pub mod map;
pub mod wire;
