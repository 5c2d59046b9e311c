//! `coppice-check security`: the expectations of hazards.md 8, each with the tests that hold it, or why nothing
//! does yet. The tests are those of the server's crate; cargo runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// What holds an expectation.
enum By {
    /// Tests: package, target, part of their names.
    Tests(&'static [Test]),
    /// The part does not exist.
    Missing(&'static str),
}

/// The package without `coppice-`, its test target (`lib`: its unit tests), and what stands in the tests' names.
type Test = (&'static str, &'static str, &'static str);

/// The rows, in order; what a row expects beyond what exists is a row of its own.
const ROWS: &[(&str, By)] = &[
    (
        "nodes speak TLS and know each other by certificate: none, foreign, expired and misnamed ones are refused",
        By::Tests(&[
            ("client", "lib", "certificates_that_prove_nothing_are_refused_in_words"),
            ("client", "lib", "who_speaks_no_tls_is_told_so_and_the_reverse"),
            ("server/core", "lib", "a_certificate_is_that_of_the_node_that_shows_it"),
            ("server", "program", "clients_and_nodes_that_prove_nothing_are_told_what_is_wrong"),
            ("server", "program", "a_node_is_who_its_certificate_says"),
        ]),
    ),
    (
        "keys are files of their owner, and are never printed or overwritten",
        By::Tests(&[("server", "lib", "what_an_authority_signs_is_used_by_its_owner_alone_and_never_overwritten")]),
    ),
    (
        "clients have roles, for all keys or for a prefix: each role and each request, ranges across a boundary",
        By::Tests(&[
            ("server/core", "lib", "each_role_may_ask_what_it_includes_and_nothing_else"),
            ("server/core", "lib", "a_range_across_the_boundary_of_a_prefix_is_denied_whole"),
            ("server/core", "lib", "a_session_serves_its_own_user_only"),
            ("server", "program", "each_role_does_what_it_includes_over_the_wire"),
            ("client", "session_denied", "a_denied_call_takes_no_other_one_with_it"),
        ]),
    ),
    (
        "a certificate stands for a user",
        By::Tests(&[("server", "program", "a_certificate_stands_for_the_user_who_was_added_with_it")]),
    ),
    (
        "admin operations need the admin role; changes of users are judged where they are executed",
        By::Tests(&[
            ("server", "program", "users_are_managed_by_verbs"),
            ("server/core", "lib", "only_admins_change_users_and_those_of_a_prefix_only_within_it"),
            ("server/core", "lib", "users_change_under_the_maps_version_and_come_back_by_undo"),
        ]),
    ),
    (
        "who loses a role loses it while connected, on every node, and after a restart",
        By::Tests(&[
            ("server", "program", "a_removed_user_is_out_while_connected"),
            ("server", "program", "a_node_that_was_away_hears_of_users_when_it_is_back"),
            ("server/core", "lib", "a_connection_ends_when_its_user_goes_or_may_do_less"),
            ("server/core", "lib", "a_snapshot_of_the_directory_holds_the_users"),
        ]),
    ),
    (
        "wrong credentials cost the asker time",
        By::Tests(&[("server", "program", "wrong_credentials_cost_the_asker_time_and_not_the_server")]),
    ),
    (
        "beyond this machine the admin port asks for a user",
        By::Tests(&[("server", "lib", "beyond_this_machine_users_see_what_their_role_allows")]),
    ),
    (
        "node messages have their own port; what belongs to the other one, and garbage at any, harms nothing",
        By::Tests(&[
            ("server", "program", "garbage_at_the_port_is_answered_and_the_node_goes_on"),
            ("server", "program", "a_message_at_the_wrong_port_is_refused"),
        ]),
    ),
    (
        "hello comes first: other clusters and old copies are refused",
        By::Tests(&[
            ("server", "program", "a_client_of_another_cluster_is_told_both_ids"),
            ("server", "program", "a_node_of_another_cluster_is_refused_with_both_ids"),
            ("server", "program", "an_old_copy_of_a_data_directory_is_found_out_by_the_others"),
        ]),
    ),
    (
        "every connection between nodes begins with who is at both ends: nothing of another cluster is believed",
        By::Tests(&[
            ("server/core", "lib", "only_a_node_of_the_cluster_that_means_this_one_is_let_in"),
            ("server/core", "lib", "only_who_is_meant_is_believed"),
            ("server", "lib", "nothing_is_sent_to_who_is_not_meant"),
            ("server/core", "lib", "a_map_of_another_cluster_is_not_adopted"),
            ("server", "checkpoint", "a_snapshot_of_another_cluster_is_neither_received_nor_loaded"),
            ("server", "program", "a_snapshot_of_another_cluster_is_never_taken"),
            ("server", "program", "a_map_of_another_cluster_is_never_adopted"),
            ("server", "program", "a_first_seed_without_its_disk_forms_no_second_cluster"),
            ("client", "leaders_told", "a_map_of_another_cluster_is_not_taken"),
        ]),
    ),
    (
        "what a node says is tied to that node and to the map, and bounded; whoever proves nothing is few and short",
        By::Tests(&[
            ("server/core", "lib", "a_replica_is_heard_from_its_own_node_only"),
            ("server/core", "lib", "what_changes_something_is_for_nodes_of_the_map"),
            ("server", "bounds", "a_batch_that_no_leader_may_propose_is_refused"),
            ("server", "fuzz", "a_proven_peer_that_says_anything_ends_no_node"),
            ("server", "fuzz", "silent_connections_at_the_peer_port_are_few_and_keep_nobody_out"),
        ]),
    ),
    (
        "frames, keys and values are checked before anything is allocated",
        By::Tests(&[
            ("server", "program", "garbage_and_oversized_frames_get_a_readable_error_and_take_no_memory"),
            ("server", "program", "what_is_too_large_is_refused_before_it_is_sent"),
            ("client", "wire_fuzz", "lengths_that_lie_get_no_memory"),
        ]),
    ),
    (
        "connections and what each may send are capped: slow senders, more connections than allowed",
        By::Tests(&[(
            "server",
            "program",
            "slow_senders_and_more_connections_than_allowed_take_no_memory_and_no_room_for_long",
        )]),
    ),
    (
        "sessions are capped, and their answers",
        By::Tests(&[
            ("server/core", "lib", "answers_that_nobody_acknowledges_are_bounded_by_the_sessions_that_left_them"),
            ("server/core", "lib", "bounds_of_sessions_are_those_of_the_log_and_not_those_that_a_node_has_heard_of"),
        ]),
    ),
    (
        "slow readers take bounded memory, and get all of a range or an error",
        By::Tests(&[
            ("server", "program", "slow_readers_of_everything_take_bounded_memory_and_get_all_or_an_error"),
            ("server", "lib", "answers_that_nobody_reads_stay_out_of_the_kernel"),
            ("server", "program", "scans_beyond_the_nodes_limit_wait_and_come_whole"),
        ]),
    ),
    (
        "before authentication only the hello is decoded; decoders take any bytes",
        By::Tests(&[
            ("client", "wire_fuzz", "a_hello_above_its_limit_is_refused_undecoded"),
            ("client", "wire_fuzz", "no_decoder"),
            ("server", "fuzz", ""),
        ]),
    ),
    ("noise at line rate harms nobody", By::Tests(&[("server", "program", "noise_at_every_port_harms_nobody")])),
    (
        "certificates are reloaded: no operation fails, and what cannot be used is not taken up",
        By::Tests(&[
            ("server", "program", "certificates_and_their_authority_are_replaced_under_load"),
            ("client", "lib", "files_that_change_count_for_new_connections_and_bad_ones_do_not"),
        ]),
    ),
    (
        "a data directory belongs to one process and to no other user",
        By::Tests(&[
            ("server", "datadir", "a_second_process_is_refused_and_told_who_has_the_directory"),
            ("server", "datadir", "nothing_is_open_to_other_users"),
        ]),
    ),
    (
        "no key and no value in the logs",
        By::Tests(&[
            ("server", "program", "a_slow_request_logs_the_time_of_each_stage"),
            ("server/core", "lib", "verbs_that_change_something_are_logged_without_keys"),
        ]),
    ),
    (
        "secrets are compared in constant time, and printed nowhere",
        By::Tests(&[("client", "lib", "a_token_is_read_as_it_was_shown_and_prints_as_nothing")]),
    ),
    (
        "records in the wrong place, old or damaged are found",
        By::Tests(&[
            ("server", "log", "every_flipped_byte_is_cut_off_at_the_tail_or_refused_by_file_and_offset"),
            ("server", "log", "a_lost_sector"),
        ]),
    ),
    ("dependencies are pinned and audited", By::Missing("that is .ci/run deny")),
];

/// Runs the tests of every row and prints one line each; how many failed, and how many were skipped. `count`: so many
/// images for each decoder that is fuzzed. Where the tests ran already, only the hostile clients are left.
///
/// # Errors
/// In words: cargo cannot be run.
pub fn run(count: Option<u64>, tests_ran: bool) -> Result<(usize, usize), String> {
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, target, name) in ROWS.iter().filter(|_| !tests_ran).flat_map(|(_, by)| by.tests()) {
        wanted.entry(target).or_default().insert(name);
    }
    eprintln!("building and running {} test programs; cargo says how far it is", wanted.len());
    let mut passed = BTreeMap::new();
    for (target, names) in wanted {
        passed.insert(target, tests(target, &names, count)?);
    }
    let unfair = crate::fairness::run(&crate::fairness::Arguments::short())?;
    let (mut failed, mut skipped) = (0, 0);
    match unfair {
        0 => println!("ok       no hostile client takes a node, its memory, or the others' answers"),
        kinds => {
            failed += 1;
            println!("FAILED   no hostile client takes a node, its memory, or the others' answers: {kinds} kinds");
        }
    }
    for (what, by) in ROWS {
        if let By::Missing(why) = by {
            skipped += 1;
            println!("skipped  {what}: {why}");
            continue;
        }
        if tests_ran {
            println!("ran      {what}: {} tests", by.tests().count());
            continue;
        }
        let holds = |(_, target, name): &Test| {
            let mut ran = passed[target].iter().filter(|(test, _)| test.contains(name)).peekable();
            ran.peek().is_some() && ran.all(|(_, right)| *right)
        };
        let broken: Vec<&str> = by.tests().filter(|test| !holds(test)).map(|(_, _, name)| *name).collect();
        failed += usize::from(!broken.is_empty());
        match broken.is_empty() {
            true => println!("ok       {what}: {} tests", by.tests().count()),
            false => println!("FAILED   {what}: {}", broken.join(" ")),
        }
    }
    Ok((failed, skipped))
}

impl By {
    fn tests(&self) -> impl Iterator<Item = &'static Test> + use<> {
        let tests: &'static [Test] = match self {
            By::Tests(tests) => tests,
            By::Missing(_) => &[],
        };
        tests.iter()
    }
}

/// The tests of a target whose names hold one of these, and whether each passed. Of the whole workspace: crates built
/// with other features than for `cargo test --workspace` would be built once more.
fn tests(target: &str, names: &BTreeSet<&str>, count: Option<u64>) -> Result<Vec<(String, bool)>, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--locked", "--workspace"]);
    match target {
        "lib" => cargo.arg("--lib"),
        _ => cargo.args(["--test", target]),
    };
    if let Some(count) = count {
        cargo.arg("--release").env("COPPICE_FUZZ_RUNS", count.to_string());
        cargo.env("COPPICE_FUZZ_NODE_RUNS", (count / 1_000).max(1).to_string());
    }
    // One by one: each of them measures memory, or keeps the machine busy.
    cargo.arg("--manifest-path").arg(manifest).args(["--", "--test-threads=1", "--include-ignored"]).args(names);
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let found: Vec<(String, bool)> = lines.map(|(name, end)| (name.to_owned(), end.trim() == "ok")).collect();
    match found.is_empty() {
        true => Err(format!("no test of {target} ran")),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that was renamed would fail its row only when all have been built and run.
    #[test]
    fn every_test_of_a_row_exists() {
        let sources = coppice_tidy::sources().expect("sources");
        for (package, target, name) in ROWS.iter().flat_map(|(_, by)| by.tests()) {
            let (file, room) = match *target {
                "lib" => (format!("{package}/src/lib.rs"), format!("{package}/src/")),
                "fuzz" => (format!("{package}/tests/fuzz.rs"), format!("{package}/tests/fuzz_targets/")),
                _ => (format!("{package}/tests/{target}.rs"), format!("{package}/tests/{target}/")),
            };
            let mut files = sources.iter().filter(|source| source.path == file || source.path.starts_with(&room));
            let named = |text: &str| text.lines().any(|line| line.contains("fn ") && line.contains(name));
            assert!(files.any(|source| named(&source.text)), "no test of {file} is called {name}");
        }
    }
}
