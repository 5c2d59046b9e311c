//! The program as its users have it, as far as it needs no cluster.

use std::process::Command;

fn program(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-load"));
    command.args(words.split(' ')).env_remove("COPPICE_ENDPOINTS").current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

/// A report that could not be written was noticed after the run, and what had been measured was gone.
#[test]
fn a_report_is_refused_before_the_run_if_it_cannot_be_written() {
    let said = program("run --endpoints 127.0.0.1:1 --out /dev/null").output().expect("the program starts");
    let err = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(2), "{err}");
    assert!(err.starts_with("error: the report cannot be written\nwhere: /dev/null\n"), "{err}");
}
