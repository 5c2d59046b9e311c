//! `coppice-check security`: the expectations of reliability.md 8, each with the tests that hold it, or why nothing
//! does yet. The tests are those of the server's crate; cargo runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// What holds an expectation.
enum By {
    /// Tests of the server: target, names.
    Tests(&'static str, &'static [&'static str]),
    /// The part does not exist.
    Missing(&'static str),
}

const NO_TLS: &str = "there are no certificates: beyond loopback a node listens with insecure = true only";
const NO_ROLES: &str = "there are no certificates, so no roles";

/// The rows, in order.
const ROWS: &[(&str, By)] = &[
    ("nodes speak TLS and know each other by certificate", By::Missing(NO_TLS)),
    ("clients have roles by certificate", By::Missing(NO_ROLES)),
    ("admin operations need the admin role", By::Missing(NO_ROLES)),
    ("certificates are reloaded", By::Missing(NO_TLS)),
    (
        "hello comes first: other clusters and old copies are refused",
        By::Tests(
            "program",
            &[
                "a_client_of_another_cluster_is_told_both_ids",
                "a_node_of_another_cluster_is_refused_with_both_ids",
                "an_old_copy_of_a_data_directory_is_found_out_by_the_others",
            ],
        ),
    ),
    (
        "frames are checked before anything is allocated",
        By::Tests("program", &["garbage_and_oversized_frames_get_a_readable_error_and_take_no_memory"]),
    ),
    (
        "node messages have their own port; garbage at any port harms nothing",
        By::Tests("program", &["garbage_at_the_port_is_answered_and_the_node_goes_on"]),
    ),
    ("decoders take any bytes", By::Tests("fuzz", &[""])),
    (
        "a data directory belongs to one process",
        By::Tests("datadir", &["a_second_process_is_refused_and_told_who_has_the_directory"]),
    ),
    (
        "records in the wrong place, old or damaged are found",
        By::Tests(
            "log_damage",
            &["every_flipped_byte_is_cut_off_at_the_tail_or_refused_by_file_and_offset", "a_lost_sector"],
        ),
    ),
    ("dependencies are pinned and audited", By::Missing("that is .ci/run deny")),
];

/// Runs the tests of every row and prints one line each; how many failed, and how many were skipped.
///
/// # Errors
/// In words: cargo cannot be run.
pub fn run() -> Result<(usize, usize), String> {
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, by) in ROWS {
        if let By::Tests(target, names) = by {
            wanted.entry(target).or_default().extend(*names);
        }
    }
    eprintln!("building and running {} test programs of the server; cargo says how far it is", wanted.len());
    let mut passed = BTreeMap::new();
    for (target, names) in wanted {
        passed.insert(target, tests(target, &names)?);
    }
    let (mut failed, mut skipped) = (0, 0);
    for (what, by) in ROWS {
        match by {
            By::Missing(why) => {
                skipped += 1;
                say!("skipped  {what}: {why}");
            }
            By::Tests(target, names) => {
                let ran = &passed[target];
                let of = |name: &str| ran.iter().filter(|(test, _)| test.contains(name)).collect::<Vec<_>>();
                let right = names.iter().all(|name| !of(name).is_empty() && of(name).iter().all(|(_, ok)| *ok));
                failed += usize::from(!right);
                say!("{}  {what}: {} tests of {target}", if right { "ok     " } else { "FAILED " }, names.len());
            }
        }
    }
    Ok((failed, skipped))
}

/// The tests of a target whose names hold one of these, and whether each passed.
fn tests(target: &str, names: &BTreeSet<&str>) -> Result<Vec<(String, bool)>, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "-p", "coppice-server", "--test", target, "--manifest-path"]).arg(manifest);
    let output = cargo.arg("--").args(names).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let found: Vec<(String, bool)> = lines.map(|(name, end)| (name.to_owned(), end.trim() == "ok")).collect();
    match found.is_empty() {
        true => Err(format!("no test of {target} ran")),
        false => Ok(found),
    }
}
