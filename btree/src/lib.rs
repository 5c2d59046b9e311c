//! An in-memory, copy-on-write B+ tree over byte strings, and the commands that run on it.
//!
//! It knows keys, values, ranges, snapshots, splits and undo. It refuses to know partitions, replication, sessions,
//! time, threads and files.
//!
//! ```
//! use coppice_btree::{KeyRange, Op, OpResult, Tree, Undo};
//!
//! let (mut tree, mut undo) = (Tree::new(), Undo::new());
//! let before = undo.mark();
//! let result = tree.execute(Op::Insert { key: b"key", value: b"value" }, &mut undo);
//! assert_eq!(result, OpResult::Insert { present: None });
//!
//! let snapshot = tree.snapshot();
//! tree.undo_to(&mut undo, before);
//! assert!(tree.is_empty());
//! let (key, value) = snapshot.range(&KeyRange::prefix(b"k")).next().unwrap();
//! assert_eq!((&*key, value), (&b"key"[..], &b"value"[..]));
//! ```
//!
//! # Map of the crate
//!
//! | file | what it holds |
//! |---|---|
//! | `value`, `key` | owned byte strings; keys as integers, ranges |
//! | `digest` | the content digest |
//! | `search` | search in arrays of integers |
//! | `shared`, `shared_safe` | counted references to nodes, and who lends them (unsafe); their safe twin |
//! | `node`, `words`, `wide` | links and inner nodes; the fast and the general leaf |
//! | `snapshot`, `iter`, `run`, `cursor`, `rank` | reading |
//! | `tree` | the tree; below it `insert`, `remove`, `fix`, `split`, `join`, `bulk`, `settle` |
//! | `op`, `undo`, `batch` | commands, taking them back, many at once |
//! | `check`, `mutants` | every invariant; planted bugs |
#![cfg_attr(feature = "safe", forbid(unsafe_code))]
#![deny(unsafe_code)]

#[macro_use]
extern crate planted;

pub mod mutants;

mod batch;
mod bulk;
mod capacity;
mod check;
mod copied;
mod cursor;
mod digest;
mod fix;
mod insert;
mod iter;
mod join;
mod key;
mod node;
mod op;
mod rank;
mod remove;
mod run;
mod search;
mod settle;
#[cfg_attr(feature = "safe", path = "shared_safe.rs")]
mod shared;
mod snapshot;
mod split;
mod tree;
mod undo;
mod value;
mod wide;
mod words;

pub use bulk::LoadError;
pub use capacity::Capacity;
pub use check::{Shape, Violation};
pub use copied::copied_bytes;
pub use cursor::{Cursor, Direction};
pub use digest::Digest;
pub use iter::{Range, RangeReverse, Runs, RunsReverse};
pub use key::{KeyRange, KeyRef};
pub use op::{Op, OpResult};
pub use run::{Run, WideRun, WordsBuffer, WordsRun};
pub use settle::Settled;
pub use snapshot::Snapshot;
pub use tree::Tree;
pub use undo::{Undo, UndoMark};
pub use value::{Key, Value};

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Tree>();
    is_send_and_sync::<Snapshot>();
    is_send_and_sync::<Cursor>();
    is_send_and_sync::<Undo>();
};
