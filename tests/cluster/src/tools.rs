//! Tools of the system that make faults: found, and run.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether a program of this name is there.
pub fn runs(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.any(|place| place.join(program).is_file())
}

/// Runs a tool to its end.
///
/// # Errors
/// It is missing, or says what is wrong.
pub fn tool(program: &str, words: &[&str], paths: &[&Path]) -> io::Result<()> {
    told(program, words, paths, "")
}

/// Runs a tool to its end with `input` for it to read.
///
/// # Errors
/// It is missing, or says what is wrong.
pub fn told(program: &str, words: &[&str], paths: &[&Path], input: &str) -> io::Result<()> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(words).args(paths).env("PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let missing = |error| io::Error::other(format!("{program}: {error}"));
    let mut child = command.spawn().map_err(missing)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends without reading says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program}: {}", said.trim())))
}
