//! The client library of Coppice and its wire protocol.
//!
//! [`Client`] is the handle for async code, [`blocking::Client`] for the rest; [`Admin`] has the operators' verbs.
//! Every call ends within [`Config::timeout`], with an answer or an [`Error`] of one of two kinds: it certainly had no
//! effect, or its outcome is not known.
//!
//! Modules that are not documented here (frames, sessions, channels) are for Coppice's own programs, and change with
//! them. The library knows nothing of Paxos, logs and files. What a caller names stands at the root of the crate.
//!
//! Keys and values are byte strings ([`Value`]). A call takes whatever becomes one: `&str`, `String`, `Vec<u8>`,
//! [`Bytes`], arrays and slices of bytes. An answer compares with all of these.
//!
//! ```no_run
//! # async fn example() -> Result<(), coppice_client::Error> {
//! let client = coppice_client::Client::connect(["127.0.0.1:7400"]).await?;
//! client.put("apple", "red").await?;
//! let answer = client.get("apple").await?;
//! assert_eq!(answer.output, Some("red".into()));
//! let mut pairs = client.range("a".."n").await?;
//! while let Some(pair) = pairs.next().await? {
//!     println!("{pair:?}");
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[macro_use]
extern crate planted;

pub mod admin;
pub mod blocking;
#[doc(hidden)]
pub mod channel;
mod client;
pub mod command;
pub mod config;
mod connection;
#[doc(hidden)]
pub mod dial;
#[doc(hidden)]
pub mod double_collect;
mod driver;
pub mod error;
mod handle;
mod ids;
pub mod map;
mod range;
#[doc(hidden)]
pub mod resolve;
pub mod resume;
#[doc(hidden)]
pub mod serde_bytes;
#[doc(hidden)]
pub mod session;
mod shared;
#[doc(hidden)]
pub mod time;
pub mod tls;
pub mod token;
#[doc(hidden)]
pub mod wire;

pub use admin::Admin;
pub use bytes::Bytes;
pub use client::{Cas, Client, Load, Look, ManyIf, Updated};
pub use command::{Answer, Command, Operation, Output, ReadMode};
pub use config::Config;
pub use coppice_btree::{Condition, Edit, Expiry, ExpiryCondition, OpResult, Returns, Update, UpdateOutcome, Value};
pub use error::{Cause, Error, Reason, Result};
pub use ids::{ClientId, ClusterId, MapVersion, NodeId, PartitionId, Position, ReplicaId, SessionId, Ticket};
pub use map::PartitionMap;
pub use range::{ComparedRange, Pairs, Range, RangeStream, Read};
pub use resume::ResumeToken;
pub use session::KEYS_MAX;
pub use shared::{Callback, Outcome};
pub use tls::Tls;
pub use token::Token;
pub use wire::{KEY_BYTES_MAX, MANY_OPERATIONS_MAX, VALUE_BYTES_MAX};
