//! What a node and a cluster can be told, and where each value came from.
//!
//! Node settings are merged from flags, environment, file and defaults (operations.md 3): one name, three spellings.
//! Cluster settings live in replicated state; here stand their names, defaults and bounds. This module opens no socket
//! and creates no file.

mod address;
mod check;
mod environment;
mod error;
mod host;
mod load;
mod node;
mod table;
mod values;

pub use address::Address;
pub use error::ConfigError;
pub use load::{Effective, Loaded, Origin, Sources, load};
pub use node::{Advertise, CheckpointConfig, Flush, Keep, Limits, Listen, LogConfig, LogFormat, NodeConfig};
pub use table::{DefaultValue, NODE_SETTINGS, Setting, default_file, toml_value};
