//! Coppice.

pub mod metrics;
