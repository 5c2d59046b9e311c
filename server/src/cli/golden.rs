//! Outputs held against files: `UPDATE=1 cargo test` rewrites them, and a rewritten diff is read like code.

use std::path::PathBuf;

/// Compares `text` with `golden/NAME.txt`.
///
/// # Panics
/// They differ.
#[track_caller]
pub fn check(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/cli/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).expect("the golden file is writable");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} differs (UPDATE=1 rewrites it)\n--- expected\n{expected}\n--- is\n{text}");
}
