//! Random bits for names and seeds, from the operating system through the standard library's hasher keys.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 random bits: unpredictable for whoever sees some of them, enough for ids, election timeouts and the log's salt.
/// Not for keys.
pub fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}
