//! Byte strings as people write and read them, on the command line as in files.

pub use coppice_transfer::text::{Coding, from_base64, from_hex, to_base64, to_hex};
