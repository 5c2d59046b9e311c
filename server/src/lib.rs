//! Coppice.

pub mod admin_http;
pub mod logging;
pub mod metrics;
