//! The program as its users have it: real processes, real signals, real files.

mod broken_disks;
mod broken_peers;
mod config;
mod cuts;
mod demo;
mod nodes;
mod operate;
mod readme;
mod support;
mod verbs;
