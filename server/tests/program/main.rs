//! The program as its users have it: real processes, real signals, real files.

mod config;
mod demo;
mod nodes;
mod support;
mod verbs;
