//! Nodes and the links between them. A node that more than one link reaches never changes: who wants to change it
//! copies it first (hazards.md ST12). Knows nothing of commands.
//!
//! The benchmark `twins` lists these files too, with the safe links in the place of the others.

mod copied;
mod fixed_leaf;
mod inner;
mod kinds;
#[cfg_attr(feature = "safe", path = "link_safe.rs")]
mod link;
mod variable_leaf;

pub use self::copied::copied_bytes;
pub(crate) use self::fixed_leaf::{BLOCKS, FIXED_SLOTS, FixedLeaf, Slot};
pub(crate) use self::inner::{INNER_HEAD_LINES, INNER_SLOTS, Inner};
pub(crate) use self::kinds::{Node, NodeMut, OwnedNode, Split, Summary};
pub(crate) use self::link::{Children, Link, LinkMut, Owners, prefetch};
pub(crate) use self::variable_leaf::VariableLeaf;
