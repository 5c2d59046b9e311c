//! The Coppice server, its operator tool and the demo.

pub mod admin_http;
pub mod config;
pub mod logging;
pub mod metrics;
