//! The RESP port, without its sockets: what programs that speak Redis say becomes operations of the native client, and
//! their results become answers.
//!
//! | room | what |
//! |---|---|
//! | `parse`, `reply`, `number` | bytes and what they say |
//! | `commands` | the table of commands |
//! | `plan`, `strings`, `keyspace`, `glob`, `cursors` | a command as operations or a range, results as an answer |
//! | `pipeline` | requests under way, answers in their order |
//! | `transaction`, `identity`, `server` | MULTI and WATCH; who the client is; what it asks about the node |
//! | `connection` | one connection |
//!
//! It knows no partition's leader and no session: the client library does. It promises what that promises.

pub mod commands;
pub mod connection;
pub mod cursors;
mod errors;
mod glob;
pub mod identity;
mod keyspace;
mod number;
pub mod parse;
pub mod pipeline;
pub mod plan;
pub mod reply;
pub mod server;
mod strings;
#[cfg(test)]
mod tests;
mod transaction;

pub use connection::{Context, Effect, Input, NodeView, RespConnection};
