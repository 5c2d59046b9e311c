//! Builds programs with a feature that no release has, in a target directory of their own, and runs them in this one's
//! place.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The manifest of the workspace.
pub fn manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")
}

/// Builds `program` of `package` with `feature`, which gives it `what`, and runs it with the words that this one was
/// called with: its exit status.
pub fn run_with(feature: &str, package: &str, program: &str, what: &str) -> u8 {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| manifest().with_file_name("target"), Into::into);
    let target = target.join(feature);
    eprintln!("building a program with {what} in {}", target.display());
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--profile", "sim", "--features", feature, "-p", package, "--bin", program, "--locked"]);
    cargo.arg("--manifest-path").arg(manifest()).arg("--target-dir").arg(&target);
    let built = cargo.status();
    if !built.as_ref().is_ok_and(|status| status.success()) {
        let why = built.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!("error: a program with {what} cannot be built: cargo: {why}");
        return 2;
    }
    match Command::new(target.join("sim").join(program)).args(std::env::args_os().skip(1)).status() {
        Ok(status) => status.code().unwrap_or(1) as u8,
        Err(error) => {
            eprintln!("error: {}: {error}", target.display());
            2
        }
    }
}
