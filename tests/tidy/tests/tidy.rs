//! The house is in order, and each rule is seen to complain about a house that is not.

use std::collections::BTreeSet;

use coppice_testkit::hazards::{HAZARDS, NOT_APPLICABLE};
use coppice_tidy::{self as tidy, Complaints, Metadata, Source};

/// Crates that a build of all programs may compile; 62 of them only for backups in an object store (feature `s3`).
const CRATES_MAX: usize = 247;
/// The same with all features.
const CRATES_ALL_FEATURES_MAX: usize = 257;

#[track_caller]
fn none(complaints: Complaints) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

fn sources() -> Vec<Source> {
    tidy::sources().expect("the repository can be read")
}

/// One file of a house in disorder.
fn file(path: &str, text: &str) -> Vec<Source> {
    vec![Source { path: path.into(), text: text.into() }]
}

#[test]
fn files_are_short_and_lines_are_narrow() {
    none(tidy::sizes(&sources()));
    assert_eq!(tidy::sizes(&file("a.rs", &"line\n".repeat(601))).len(), 1);
    assert_eq!(tidy::sizes(&file("a.rs", &"x".repeat(121))).len(), 1);
}

#[test]
fn nothing_unfinished_or_switched_off_stays_behind() {
    none(tidy::leftovers(&sources()));
    let words = [concat!("to", "do!()"), concat!("#[ig", "nore = \"slow\"]"), concat!("// FIX", "ME")];
    for word in words {
        assert_eq!(tidy::leftovers(&file("a.rs", word)).len(), 1, "{word}");
    }
    assert_eq!(tidy::leftovers(&file("README.md", concat!("cd /ho", "me/me"))).len(), 1);
    assert_eq!(tidy::leftovers(&file("a.rs", concat!("#[ig", "nore = \"long: every seed\"]"))).len(), 0);
    let run = sources().into_iter().find(|source| source.path == ".ci/run").expect(".ci/run is read");
    for section in ["run_test() {", "run_sim() {"] {
        let (_, body) = run.text.split_once(section).expect("a section");
        let (body, _) = body.split_once("\n}").expect("its end");
        assert!(body.contains("--include-ignored"), "{section} leaves out the long tests");
    }
}

#[test]
fn types_stay_small() {
    none(tidy::types(&sources()));
    let fields = |n: usize| (0..n).map(|i| format!("    field_{i}: u64,\n")).collect::<String>();
    let complaints = |text: &str| tidy::types(&file("btree/src/tree.rs", text)).len();
    let most = tidy::TYPE_FIELDS_MAX;
    assert_eq!(complaints(&format!("struct Giant {{\n{}}}\n", fields(most + 1))), 1);
    assert_eq!(complaints(&format!("struct Fits<T> {{\n{}}}\n", fields(most))), 0);
    assert_eq!(complaints(&format!("struct Record {{\n{}}}\n", fields(most + 1).replace("field_", "pub f"))), 0);
    let spread: Vec<Source> = (0..=tidy::METHOD_FILES_MAX)
        .map(|i| Source { path: format!("btree/src/part_{i}.rs"), text: "impl<'a> Wide<'a> {\n".into() })
        .collect();
    assert_eq!(tidy::types(&spread).len(), 1);
    assert_eq!(tidy::types(&spread[1..]).len(), 0);
}

#[test]
fn what_decides_is_pure() {
    none(tidy::purity(&sources()));
    for word in ["let now = Instant::now();", "use std::collections::HashMap;", "tokio::spawn(x);", "use rand::Rng;"] {
        assert_eq!(tidy::purity(&file("ordering/src/paxos.rs", word)).len(), 1, "{word}");
        assert_eq!(tidy::purity(&file("client/src/wire/frame.rs", word)).len(), 1, "{word}");
        assert!(tidy::purity(&file("server/src/worker_thread.rs", word)).is_empty(), "{word}");
    }
    assert!(tidy::purity(&file("btree/src/tree.rs", "// HashMap has another order\nlet operand = 1;")).is_empty());
}

#[test]
fn no_module_imports_from_one_above_it() {
    none(tidy::rooms(&sources()));
    let complaints = |path: &str, text: &str| tidy::rooms(&file(path, text)).len();
    assert_eq!(complaints("server/core/src/machine/mod.rs", "use crate::worker::Worker;"), 1);
    assert_eq!(complaints("server/core/src/worker/mod.rs", "use crate::machine::Machine;"), 0);
    assert_eq!(complaints("server/core/src/attic.rs", ""), 1, "it has no place");
    assert_eq!(complaints("server/src/net/link.rs", "use super::super::control::Control;"), 1);
    assert_eq!(complaints("server/src/net/link.rs", "use super::control::Control;"), 0, "a part of net");
    assert_eq!(complaints("server/src/mailbox.rs", "use super::{metrics, node};"), 1);
}

#[test]
fn only_the_checkpoints_name_sled() {
    none(tidy::sled_in_one_place(&sources()));
    assert_eq!(tidy::sled_in_one_place(&file("server/src/log/mod.rs", "use sled::Db;")).len(), 1);
    assert!(tidy::sled_in_one_place(&file("server/src/checkpoint.rs", "use sled::Db;")).is_empty());
}

#[test]
fn unsafe_code_stays_in_one_module_of_the_tree() {
    none(tidy::unsafe_code(&sources()));
    let allow = concat!("#![allow(uns", "afe_code)]");
    assert_eq!(tidy::unsafe_code(&file("server/src/net.rs", allow)).len(), 1);
    let two = [file("btree/src/a.rs", allow), file("btree/src/b.rs", allow)].concat();
    assert_eq!(tidy::unsafe_code(&two).len(), 1);
}

#[test]
fn the_readme_opens_with_the_two_commands() {
    none(tidy::readme(&sources()));
    assert_eq!(tidy::readme(&file("README.md", "nothing")).len(), 2);
    assert_eq!(tidy::readme(&[]).len(), 1);
}

#[test]
fn what_is_cited_exists() {
    none(tidy::citations(&sources()));
    let pages = [
        file("docs/protocol.md", "## 4. Tickets\n\n4.2 **A new coordinator.** It starts anew.\n"),
        file("docs/hazards.md", "| id | hazard |\n|---|---|\n| PX12 | a copy returns |\n"),
        file("loadgen/README.md", "See [tickets](../docs/protocol.md).\n"),
    ];
    let complaints = |text: &str| tidy::citations(&[pages.concat(), file("server/src/a.rs", text)].concat());
    for right in [
        "// It holds (protocol.md 4.2).",
        "//! Which one (`protocol.md`\n//! 4).",
        "// A copy (hazards.md PX12).",
        "// See loadgen/README.md.",
        "// See docs/protocol.md for 7 reasons.",
    ] {
        assert!(complaints(right).is_empty(), "{right}: {:?}", complaints(right));
    }
    for wrong in [
        "// It holds (order.md 4.2).",
        "// It holds (protocol.md\n// 4.3).",
        "// It holds (protocol.md 2).",
        "// A copy (hazards.md PX1).",
        "// See ../README.md.",
    ] {
        assert_eq!(complaints(wrong).len(), 1, "{wrong}");
    }
}

#[test]
fn the_manual_lists_what_is_logged() {
    none(tidy::log_messages(&sources()));
    let page = "### 4.3 Logs\n\n| info | `a node is up`, `it differs: ..` | when |\n\
                | warn | `it is full (a (b))` | then |\n\n## 5";
    let complaints =
        |text: &str| tidy::log_messages(&[file("docs/operations.md", page), file("server/src/a.rs", text)].concat());
    let right = "tracing::info!(%node, x = f(\"b\"), \"a node is up\");\ntracing::info!(\"it differs: {text}\");\n\
                 tracing::warn!(\"it is \\\n    full (a (b))\");\ntracing::debug!(\"inside\");";
    assert_eq!(complaints(right), [""; 0]);
    let other = right.replace("a node is up", "a node is here");
    assert_eq!(
        complaints(&other),
        [
            "server/src/a.rs: docs/operations.md 4.3 has no row `a node is here` at info",
            "docs/operations.md: nobody logs `a node is up` at info"
        ]
    );
    assert_eq!(complaints(&right.replace("warn!", "info!")).len(), 2, "at another level");
}

#[test]
fn source_files_that_comments_and_pages_name_exist() {
    none(tidy::cited_files(&sources()));
    let places = [file("server/src/net/link.rs", ""), file("server/src/net/dial.rs", "")].concat();
    let complaints = |path: &str, text: &str| tidy::cited_files(&[places.clone(), file(path, text)].concat()).len();
    for right in ["// See `net/link.rs`.", "//! `server/src/net/{link,dial}.rs`", "let x = \"a/b.rs\";", "// In b.rs."]
    {
        assert_eq!(complaints("server/src/a.rs", right), 0, "{right}");
    }
    for wrong in ["// See net/public.rs.", "let x; // et/link.rs", "//! `server/src/net/{link,gone}.rs`"] {
        assert_eq!(complaints("server/src/a.rs", wrong), 1, "{wrong}");
    }
    assert_eq!(complaints("README.md", "It is in `net/gone.rs`."), 1);
}

#[test]
fn from_the_root_no_package_need_be_named() {
    none(tidy::workspace_shape(&sources()));
    let lints = "[lints]\nworkspace = true\n";
    let root = file("Cargo.toml", "[workspace]\ndefault-members = [\"server\"]\n");
    let server = file("server/Cargo.toml", lints);
    let load = file("loadgen/Cargo.toml", &format!("default-run = \"coppice\"\n{lints}"));
    assert_eq!(tidy::workspace_shape(&[root, server, load].concat()).len(), 3);
}

#[test]
fn crates_import_in_one_direction() {
    let metadata = Metadata::read(&["--no-deps"]).expect("cargo metadata");
    none(tidy::imports(&metadata));
    let disorder = serde_json::json!({
        "workspace_members": ["o", "s"],
        "packages": [
            { "id": "o", "name": "coppice-ordering", "dependencies": [
                { "name": "coppice-btree", "kind": null },
                { "name": "tokio", "kind": null },
                { "name": "proptest", "kind": "dev" },
            ] },
            { "id": "s", "name": "coppice-server", "dependencies": [
                { "name": "coppice-sim", "kind": "dev" },
                { "name": "coppice-loadgen", "kind": null },
            ] },
        ],
    });
    let complaints = tidy::imports(&Metadata(disorder));
    assert_eq!(complaints.len(), 4, "{complaints:?}");
}

#[test]
fn a_build_compiles_few_crates() {
    let default = tidy::crate_counts(&Metadata::read(&[]).expect("cargo metadata"));
    println!("{default} crates by default");
    assert!((50..=CRATES_MAX).contains(&default), "{default} crates by default, at most {CRATES_MAX}");
    // Optional crates are not fetched by a plain build: without a network there is nothing to count.
    match Metadata::read(&["--all-features"]) {
        Ok(metadata) => {
            let all = tidy::crate_counts(&metadata);
            println!("{all} crates with all features");
            assert!((default..=CRATES_ALL_FEATURES_MAX).contains(&all), "{all} crates with all features");
        }
        Err(error) => println!("skipped: crates with all features: {error}"),
    }
}

#[test]
fn replaced_names_do_not_come_back() {
    none(tidy::names(&sources()));
    let complaints = |text: &str| tidy::names(&file("server/src/a.rs", text)).len();
    for wrong in ["let trouble = 1;", "struct ShardStart;", "const HANDOVER_MAX: u8 = 1;", "fn look_around() {}"] {
        assert_eq!(complaints(wrong), 1, "{wrong}");
    }
    for right in ["let plane = 1;", "// a desk", "let word = \"shard\";", "fn look() {}", "troubleshoot();"] {
        assert_eq!(complaints(right), 0, "{right}");
    }
}

#[test]
fn tests_that_plant_bugs_are_told_by_their_names() {
    none(tidy::mutant_names(&sources()));
    let gated = "#[cfg(feature = \"mutants\")]\n";
    let whole = "#![cfg(feature = \"mutants\")]\n";
    let test = |name: &str| format!("#[test]\nfn {name}() {{}}\n");
    for (text, wrong) in [
        (format!("/// Why.\n{gated}{}", test("it_is_caught")), 0),
        (format!("{gated}/// Why.\n{}", test("it_is_noticed")), 1),
        (format!("#[test]\n{gated}fn it_is_noticed() {{}}\n"), 1),
        (format!("{whole}{}", test("it_is_noticed")), 1),
        (format!("{gated}fn helper() {{}}\n\n{}", test("it_is_right")), 0),
        (test("it_is_caught"), 1),
    ] {
        assert_eq!(tidy::mutant_names(&file("server/tests/a.rs", &text)).len(), wrong, "{text}");
    }
    for module in ["b.rs", "b/mod.rs"] {
        let house = [
            file("server/tests/a/main.rs", &format!("{gated}mod b;\n")),
            file(&format!("server/tests/a/{module}"), ""),
        ];
        let mut house = house.concat();
        house[1].text = test("it_is_noticed");
        assert_eq!(tidy::mutant_names(&house).len(), 1, "{module}");
    }
}

#[test]
fn every_failpoint_stands_in_one_place_and_in_the_list() {
    let names: Vec<&str> = planted::failpoints::ALL.iter().map(|point| point.name).collect();
    println!("{} failpoints", names.len());
    none(tidy::failpoint_names(&sources(), &names));
    let place = |text: &str| file("server/src/log/a.rs", text);
    let complaints = |text: &str, listed: &[&str]| {
        // As many others as there must be, each in its place.
        let others: Vec<String> = (0..tidy::FAILPOINTS_MIN).map(|number| format!("other.{number}")).collect();
        let text = others.iter().fold(text.to_owned(), |text, name| text + &format!("failpoint!(\"{name}\");\n"));
        let listed: Vec<&str> = others.iter().map(String::as_str).chain(listed.iter().copied()).collect();
        tidy::failpoint_names(&place(&text), &listed).len()
    };
    assert_eq!(complaints("failpoint!(io \"log.a\")?;\nfailpoint!(\n    \"log.b\"\n);\n", &["log.a", "log.b"]), 0);
    assert_eq!(complaints("failpoint!(\"log.a\");\n", &[]), 1, "not listed");
    assert_eq!(complaints("// failpoint!(\"log.a\");\n", &["log.a"]), 1, "nowhere");
    assert_eq!(complaints("failpoint!(\"log.a\");\n", &["log.a", "log.a"]), 1, "listed twice");
    assert_eq!(complaints("failpoint!(\"log.a\"); failpoint!(\"log.a\");\n", &["log.a"]), 1, "in two places");
    assert_eq!(tidy::failpoint_names(&place("failpoint!(\"log.a\");"), &["log.a"]).len(), 1, "too few");
}

#[test]
fn the_table_of_hazards_the_mutants_and_the_tests_agree() {
    let names: Vec<&str> = NOT_APPLICABLE.iter().map(|(name, _)| *name).collect();
    let report = tidy::hazard_table(&sources(), &names);
    println!("{} mutants planted and named by a test", report.planted.len());
    for (name, why) in report.not_applicable.iter().zip(NOT_APPLICABLE.iter().map(|(_, why)| why)) {
        println!("not applicable: {name}: {why}");
    }
    none(report.complaints);
}

#[test]
fn the_table_of_hazards_complains_about_each_kind_of_disagreement() {
    let all: Vec<&str> = HAZARDS.iter().flat_map(|hazard| hazard.mutants).map(|mutant| mutant.name).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a mutant stands in two rows");
    let but = |name: &str| -> Vec<&str> { all.iter().copied().filter(|known| *known != name).collect() };
    let planted = file("ordering/src/paxos.rs", "if mutant!(noop_early) { x }");
    let tested = [planted.clone(), file("ordering/tests/mutants.rs", "catches(\"noop_early\");")].concat();

    assert!(tidy::hazard_table(&tested, &but("noop_early")).complaints.is_empty());
    assert_eq!(tidy::hazard_table(&tested, &all).complaints.len(), 1, "planted and said not to be");
    assert_eq!(tidy::hazard_table(&planted, &but("noop_early")).complaints.len(), 1, "named by no test");
    assert_eq!(tidy::hazard_table(&[], &but("noop_early")).complaints.len(), 1, "planted nowhere");
    let unknown = file("ordering/src/paxos.rs", "if mutant!(own_idea) { x }");
    assert_eq!(tidy::hazard_table(&unknown, &all).complaints.len(), 1, "not in the table");
}
