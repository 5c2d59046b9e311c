//! Coppice's load generator: the papers' workloads, YCSB's, closed and open loops, honest percentiles.
//!
//! It knows requests, time and what came back. It refuses to know how a store works inside: it uses the client library
//! as any program would.
#![forbid(unsafe_code)]

pub mod app;
pub mod machine;
pub mod metrics;
pub mod random;
pub mod record;
pub mod report;
pub mod runner;
pub mod say;
pub mod svg;
pub mod target;
pub mod units;
pub mod workload;
