//! Data in and out of a cluster: backups and restores, imports and exports. Everything here is a client like any other.
//!
//! | module | what it is |
//! |---|---|
//! | `text` | byte strings as people write them |
//! | `error` | how a transfer fails |
//! | `chunk` | pairs in key order with their checksums, and how files hold them |
//! | `storage` | where a backup lies: a directory, or a prefix of an object store |
//! | `manifest`, `directory` | what a backup is: its list of chunks, and its files |
//! | `load` | pairs into a cluster, many at a time, each at most once or over what is there |
//! | `backup`, `restore` | a cluster into a directory or an object store, and back |
//! | `rows` | the formats of `import` and `export` |
//! | `import`, `export` | rows into a cluster, and pairs into a file |
#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

pub mod backup;
pub mod chunk;
pub mod directory;
pub mod error;
pub mod export;
pub mod import;
pub mod load;
pub mod manifest;
pub mod restore;
pub mod rows;
pub mod storage;
pub mod text;

pub use error::{Error, Result};
pub use load::is_passing;
