//! Planted bugs: each switches one protection off, so that a test can prove that it would notice (hazards.md 6).
//!
//! One per process may be active.

use std::process::Command;
use std::sync::OnceLock;

/// True when the planted bug `$name` is switched on; always false, and free, where the crate's feature `mutants` is
/// off.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        cfg!(feature = "mutants") && $crate::active(stringify!($name))
    };
}

static ACTIVE: OnceLock<String> = OnceLock::new();

/// Switches a planted bug on for the rest of the process. The first call wins, over `COPPICE_MUTANT` too.
///
/// # Errors
/// Another one was switched on, or asked for, before.
pub fn activate(name: &str) -> Result<(), String> {
    let active = ACTIVE.get_or_init(|| name.to_owned());
    if active == name { Ok(()) } else { Err(format!("the planted bug {active:?} is active already")) }
}

/// Whether `name` is the active planted bug: that of [`activate`], else of the environment variable `COPPICE_MUTANT`.
pub fn active(name: &str) -> bool {
    ACTIVE.get_or_init(|| std::env::var("COPPICE_MUTANT").unwrap_or_default()) == name
}

/// Runs `test` of this test program, by its whole path, under a planted bug, in a process of its own, since a bug is on
/// for a whole process: it must fail (hazards.md 6).
///
/// # Panics
/// If there is no such test, or it passes.
#[track_caller]
pub fn assert_caught(mutant: &str, test: &str) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--include-ignored"]).env("COPPICE_MUTANT", mutant);
    // What a planted bug makes fail is no regression to keep.
    let output = command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "no test {test}");
    assert!(!output.status.success(), "{mutant} is not caught by {test}: {said}");
}
