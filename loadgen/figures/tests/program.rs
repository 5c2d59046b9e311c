//! The program as its users have it, as far as it needs no cluster.

use std::fs::OpenOptions;
use std::process::Command;

/// A full device ended the program with a backtrace.
#[test]
fn output_that_cannot_be_written_is_told_in_four_lines() {
    for words in ["paper smr --list", "paper smr --list -o json"] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-figures"));
        command.args(words.split(' ')).current_dir(env!("CARGO_TARGET_TMPDIR"));
        let said = command.stdout(full).output().expect("the program starts");
        let err = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{err}");
        let what = "error: it was carried out, and its result cannot be written\nwhere: stdout\n";
        assert!(err.starts_with(what) && err.lines().count() == 4, "{err}");
    }
}
