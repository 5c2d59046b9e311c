//! The autopilot's eyes and hands (protocol.md 9): what its model needs to know of this program and this node.
//!
//! The model and what follows from it are `coppice_ordering::autopilot`: pure, without units of anybody's wire.

pub mod machine;
pub mod sizes;
