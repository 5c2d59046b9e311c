//! Runs a directed test with a planted bug (hazards.md 6). A planted bug is on for a whole process, so the program
//! that is running starts itself.

use std::process::Command;

/// Each of these planted bugs makes the test beside it fail, which passes without.
#[track_caller]
pub fn assert_caught(planted: &[(&str, &str)]) {
    if std::env::var("COPPICE_MUTANT").is_ok() {
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let passes = |test: &str, mutant: &str| {
        let mut command = Command::new(&program);
        let output = command
            .args(["--exact", "--include-ignored", test])
            .env("COPPICE_MUTANT", mutant)
            .output()
            .expect("the test runs");
        assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "there is no {test}");
        output.status.success()
    };
    for (mutant, test) in planted {
        assert!(passes(test, "none"), "{test} fails by itself");
        assert!(!passes(test, mutant), "{mutant} escapes {test}");
    }
}
