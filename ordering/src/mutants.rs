//! Planted bugs, each of which removes one protection (reliability.md 6). Compiled in with the feature `mutants` only,
//! which no released program has; at most one is active in a process.

use std::sync::OnceLock;

static ACTIVE: OnceLock<String> = OnceLock::new();

/// Switches `name` on for the rest of the process. The first call wins; the environment variable `COPPICE_MUTANT` does the
/// same at the first use.
pub fn activate(name: &str) {
    let _ = ACTIVE.set(name.to_owned());
}

/// Whether `name` is switched on.
pub fn active(name: &str) -> bool {
    ACTIVE.get_or_init(|| std::env::var("COPPICE_MUTANT").unwrap_or_default()) == name
}

/// Every mutant of this crate.
pub const ALL: &[&str] = &[];
