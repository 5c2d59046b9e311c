//! The client library of Coppice and its wire protocol.
//!
//! `wire` (the public protocol), `map` (who serves which keys) and `session` (numbers, packs, retries) are pure: no
//! clock, thread, socket or random source. The library knows nothing of Paxos, logs and files.
#![forbid(unsafe_code)]

/// Whether the named bug is planted; always `false` without the feature `mutants`.
macro_rules! mutant {
    ($name:ident) => {
        cfg!(feature = "mutants") && crate::mutants::active(stringify!($name))
    };
}

pub mod command;
pub mod config;
pub mod error;
pub mod map;
pub mod mutants;
pub mod resume;
pub mod session;
pub mod time;
pub mod wire;
