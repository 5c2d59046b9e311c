//! A whole cluster on one machine, to try it and to break it: `demo`.
//!
//! The nodes are real processes of this same program. Everything that is done to the cluster goes over the wire or is
//! a real signal; the demo knows nothing of how a node works.

mod availability_probe;
pub mod certs;
mod completion;
mod cuts;
mod faults;
mod home;
mod line_editor;
mod measure;
mod nodes;
mod page;
mod ports;
mod prompt;
pub mod reaper;
mod run;
mod split_keys;
mod start;
mod terminal;

pub use run::run;
