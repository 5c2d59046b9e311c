//! The program as its users have it: real processes, real signals, real files.

mod backups;
mod broken_disks;
mod broken_peers;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod copies;
mod crowds;
mod cuts;
mod demo;
mod foreign_nodes;
mod forming;
mod full_disks;
mod logs;
mod lost_quorum;
mod membership;
mod names;
mod nodes;
#[cfg(feature = "s3")]
mod object_stores;
mod operate;
mod ops;
mod packaged;
mod prompt;
mod readme;
#[cfg(feature = "failpoints")]
mod recovery;
mod reshaping;
mod resp;
mod rows;
mod settings;
mod support;
mod tls;
mod upgrade;
mod users;
mod verbs;
