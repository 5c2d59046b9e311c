//! Coppice.

pub mod hazards;
pub mod tidy;
