//! Tells the programs which commit they are built from, for the heads of histories and for what a failure prints:
//! `COPPICE_COMMIT` of the environment, else what git says of this directory, else nothing. The build script of each
//! crate that has such a program.

use std::process::Command;

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=COPPICE_COMMIT");
    println!("cargo::rerun-if-changed=../build.rs");
    // Written to whenever HEAD goes elsewhere.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let said = std::env::var("COPPICE_COMMIT").ok().filter(|said| !said.is_empty());
    let commit = said.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])).unwrap_or_default();
    println!("cargo::rustc-env=COPPICE_COMMIT={commit}");
}
