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
//! From the lowest to the highest; a module imports from those below it only.
//!
//! | file | what it holds |
//! |---|---|
//! | `value`, `key` | owned byte strings; keys as integers, ranges |
//! | `digest`, `search` | the content digest; search in arrays of integers |
//! | `node` | inner nodes, fixed-size and variable leaves, the counted links between them (unsafe) and their safe twin |
//! | `capacity`, `fix`, `join`, `split`, `settle` | how wide nodes grow; putting subtrees right, together, apart |
//! | `descent`, `insert`, `remove` | keys on their way down; writing and removing one pair |
//! | `rank`, `check`, `run` | counting; every invariant; the pairs of one leaf |
//! | `undo`, `update`, `op` | taking commands back; how an update changes what is there; the commands |
//! | `snapshot`, `iter` | reading |
//! | `tree`, `execute`, `bulk`, `cursor` | changing; commands, alone and many at once; loading; walks that rest |
//! | `mutants` | planted bugs |
#![cfg_attr(feature = "safe", forbid(unsafe_code))]
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[macro_use]
extern crate planted;

pub mod mutants;

mod bulk;
mod capacity;
mod check;
mod cursor;
mod descent;
mod digest;
mod execute;
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
mod snapshot;
mod split;
mod tree;
mod undo;
mod update;
mod value;

pub use bulk::LoadError;
pub use capacity::Capacity;
pub use check::{Shape, Violation};
pub use cursor::{Cursor, Direction};
pub use digest::Digest;
pub use iter::{Range, RangeReverse, Runs, RunsReverse};
pub use key::{KeyRange, KeyRef};
pub use node::copied_bytes;
pub use op::{Op, OpResult};
pub use run::{FixedBuffer, FixedRun, Run, VariableRun};
pub use settle::SettleProgress;
pub use snapshot::Snapshot;
pub use tree::Tree;
pub use undo::{Undo, UndoMark};
pub use update::{Condition, EDITED_BYTES_MAX, Edit, Expiry, ExpiryCondition, Returns, Update, UpdateOutcome};
pub use value::{Key, Value};

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Tree>();
    is_send_and_sync::<Snapshot>();
    is_send_and_sync::<Cursor>();
    is_send_and_sync::<Undo>();
};
