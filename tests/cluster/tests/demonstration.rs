//! The demonstrations of `tests/demonstration` as a reader of the first page calls them, in their short forms.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory of its own, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("coppice-demonstration-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("bin")).expect("a directory can be made");
        fs::create_dir_all(path.join("tmp")).expect("a directory can be made");
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a script with the programs that were built with this test: `coppice-check` is all of them, by the name that it
/// is called by. What the script said, and whether it was content.
fn run(place: &Place, script: &str, words: &[&str]) -> (bool, String) {
    let bin = place.0.join("bin");
    for name in ["coppice", "coppice-load", "coppice-check"] {
        let (program, link) = (env!("CARGO_BIN_EXE_coppice-check"), bin.join(name));
        if !link.exists() {
            symlink(program, link).expect("a link can be made");
        }
    }
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demonstration");
    let mut command = Command::new("bash");
    command.arg(scripts.join(script)).arg("--bin").arg(bin).args(words);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COPPICE_")) {
        command.env_remove(name);
    }
    let output = command.env("TMPDIR", place.0.join("tmp")).stdin(Stdio::null()).output().expect("bash runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
#[ignore = "long: real processes under load"]
fn a_cluster_grows_and_shrinks_under_load_and_no_command_fails() {
    let place = Place::new("grow");
    // The changes take a third of this on an idle machine. Where they take longer than the load, it is given more.
    let said = ["30", "120", "480"].into_iter().find_map(|seconds| {
        let words = ["--short", "--seconds", seconds, "--patience", "120s"];
        let (content, said) = run(&place, "grow.sh", &words);
        assert!(content || said.contains("the load ended before the changes did"), "{said}");
        content.then_some(said)
    });
    let said = said.expect("the changes are done while the load runs");
    let told = said.lines().find_map(|line| line.strip_prefix("linearizable: ")).unwrap_or_default();
    let operations: u64 = told.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default();
    assert!(operations > 500, "{said}");
    assert!(told.ends_with("operations, none failed, from 1 partition on 3 nodes to 4 on 4 and back"), "{said}");
    let left = fs::read_dir(place.0.join("tmp")).expect("it is there").count();
    assert_eq!(left, 0, "a clean run leaves no data behind: {said}");
}
