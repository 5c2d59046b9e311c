//! The log on a disk that fails, that loses power, that holds foreign bytes.

mod carry;
mod crash;
mod damage;
mod forged;
#[path = "../log_common/mod.rs"]
mod log_common;
mod records;
