//! Planted bugs, for the tests that prove that tests find them (hazards.md 6). Behind the feature `mutants`.

use std::sync::OnceLock;

static ACTIVE: OnceLock<String> = OnceLock::new();

/// Plants the bug with this name in this process. The first call decides.
pub fn activate(name: &str) {
    let _ = ACTIVE.set(name.to_string());
}

/// Whether the bug with this name is planted: by [`activate`], else by the environment variable `COPPICE_MUTANT`.
pub fn active(name: &str) -> bool {
    ACTIVE.get_or_init(|| std::env::var("COPPICE_MUTANT").unwrap_or_default()) == name
}
