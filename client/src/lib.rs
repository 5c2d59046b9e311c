//! The client library of Coppice and its wire protocol.
//!
//! `wire` (the public protocol), `map` (who serves which keys) and `session` (numbers, packs, retries) are pure: no
//! clock, thread, socket or random source. The library knows nothing of Paxos, logs and files.
//!
//! ```no_run
//! # async fn example() -> Result<(), coppice_client::Error> {
//! let client = coppice_client::Client::connect(["127.0.0.1:7400"]).await?;
//! client.put("apple", "red").await?;
//! let answer = client.get("apple").await?;
//! assert_eq!(answer.output.as_deref(), Some(&b"red"[..]));
//! let mut pairs = client.range("a".."n").await?;
//! while let Some(pair) = pairs.next().await? {
//!     println!("{pair:?}");
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

pub mod admin;
pub mod blocking;
pub mod channel;
mod client;
pub mod command;
pub mod config;
mod connection;
pub mod dial;
pub mod double_collect;
mod driver;
pub mod error;
mod handle;
mod ids;
pub mod map;
mod range;
pub mod resume;
pub mod serde_bytes;
pub mod session;
mod shared;
pub mod time;
pub mod tls;
pub mod token;
pub mod wire;

pub use admin::Admin;
pub use client::{Cas, Client, Load};
pub use command::{Answer, Command, Operation, Output, ReadMode};
pub use config::Config;
pub use error::Error;
pub use range::{Range, RangeStream};
pub use resume::ResumeToken;
pub use shared::{Callback, Outcome};
pub use token::Token;
