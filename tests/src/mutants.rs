//! Which planted bug of this crate is on. At most one per process, chosen once, from `--mutant` or the environment.

use std::sync::OnceLock;

static ACTIVE: OnceLock<String> = OnceLock::new();

/// Turns one planted bug on for the rest of the process. False: another one was already on.
pub fn activate(name: &str) -> bool {
    ACTIVE.set(name.to_string()).is_ok()
}

/// Whether `name` is the planted bug that is on: given by [`activate`], else by `COPPICE_MUTANT`.
pub fn active(name: &str) -> bool {
    ACTIVE.get_or_init(|| std::env::var("COPPICE_MUTANT").unwrap_or_default()) == name
}
