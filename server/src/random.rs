//! Random bits for names and seeds, from the operating system through the standard library's hasher keys.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 random bits: unpredictable enough for ids and election timeouts, not for secrets.
pub fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}
