//! The first page tells the truth: its commands run, and say what it shows. Digits are wildcards.

use std::collections::BTreeSet;

use crate::support::{Cluster, Said, demo_alone, program, run, run_at};

const README: &str = include_str!("../../../README.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// The fenced blocks without a language, line by line.
fn blocks() -> Vec<Vec<&'static str>> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, Vec<&str>)> = None;
    for line in README.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.is_empty(), Vec::new())),
            (Some(_), Some(_)) => {
                let (plain, lines) = open.take().expect("open");
                blocks.extend(plain.then_some(lines));
            }
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

/// Numbers, digests, nodes, and how many partitions stand in a row, are not promised; nor whether a moment of several
/// partitions took a ticket.
fn shape(line: &str) -> String {
    let line = match line.split_once("one moment: ") {
        Some((scan, _)) if scan.matches(" p").count() > 1 => &format!("{scan}one moment of all"),
        _ => line,
    };
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        if word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            words.push("digest".to_owned());
            continue;
        }
        let mut shape = String::new();
        for letter in word.chars() {
            match letter {
                '0'..='9' if shape.ends_with('#') => {}
                '0'..='9' => shape.push('#'),
                letter => shape.push(letter),
            }
        }
        let partition = |word: &str| word.trim_end_matches(['.', ':']) == "p#";
        if partition(&shape) && words.last().is_some_and(|last| last == "p#") {
            words.pop();
        }
        words.push(shape);
    }
    words.join(" ")
}

/// A line of a page without its remark, and the exit status that the remark promises.
fn remark(line: &str) -> (&str, Option<i32>) {
    match line.split_once("   # ") {
        Some((line, remark)) => {
            let code = remark.trim().strip_prefix("exit status ");
            let code = code.and_then(|code| code.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok());
            (line.trim_end(), code)
        }
        None => (line.trim_end(), None),
    }
}

#[track_caller]
fn same_shape(expected: &[&str], found: &str, what: &str) {
    let expected: Vec<String> = expected.iter().map(|line| shape(line)).collect();
    let found: Vec<String> = found.lines().map(shape).collect();
    assert_eq!(expected, found, "{what}");
}

#[test]
fn every_session_of_the_first_page_says_what_it_shows() {
    let cluster = Cluster::formed(3, "g,n,t");
    let endpoints = cluster.endpoints();
    let mut sessions = 0;
    for block in blocks().iter().filter(|block| block.iter().any(|line| line.starts_with("$ "))) {
        let mut lines = block.iter().peekable();
        while let Some(line) = lines.next() {
            let (command, mut code) = remark(line.strip_prefix("$ ").expect("a session begins with a command"));
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                let (line, promised) = remark(line);
                code = code.or(promised);
                expected.push(line);
            }
            let mut said = Said { code: 0, out: String::new(), err: String::new() };
            for verb in command.split("; ") {
                let words = verb.strip_prefix("coppice ").unwrap_or_else(|| panic!("`{verb}` is no verb of ours"));
                let words: Vec<&str> = words.split(' ').collect();
                let one = run_at(&endpoints, &[&["--output", "table"], &words[..]].concat(), b"");
                said.out += &format!("{}{}", one.out, one.err);
                said.code = one.code;
            }
            assert_eq!(said.code, code.unwrap_or(0), "{command}: {}", said.out);
            // What follows names the endpoints that the reader need not name.
            let shown = said.out.replace(&format!(" --endpoints {endpoints}"), "").replace(
                &format!("where: {}", endpoints.replace(',', ", ")),
                "where: 127.0.0.1:7400, 127.0.0.1:7410, 127.0.0.1:7420",
            );
            let shown = shown.replace("coppice --output table ", "coppice ");
            same_shape(&expected, &shown, command);
            sessions += 1;
        }
    }
    assert!(sessions >= 5, "{sessions} commands were found");
}

#[test]
fn the_demo_of_the_first_page_says_what_it_shows() {
    let _alone = demo_alone();
    let prompt = "coppice> ";
    let all = blocks();
    let block = all.iter().find(|block| block.iter().any(|line| line.starts_with(prompt))).expect("a demo");
    let script: Vec<&str> = block.iter().filter_map(|line| line.strip_prefix(prompt)).collect();
    let missing = || {
        let mut command = program();
        let output = command.args(["demo", "--exec", &script.join("; ")]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        // Where the usual ports are taken it prints a line more.
        let mut found = said.lines().map(shape);
        let mut lines = block.iter().filter(|line| !line.starts_with(prompt)).map(|line| remark(line).0);
        let line = lines.find(|line| !found.any(|found| found == shape(line)))?;
        Some(format!("no line `{line}` in its place:\n{said}"))
    };
    // On a busy machine leaders move by themselves, and the demo tells so; the page shows one that is not.
    let mut missing = std::iter::repeat_with(missing).take(5);
    let first = missing.next().expect("five times");
    assert!(first.is_none() || missing.any(|missing| missing.is_none()), "{}", first.unwrap_or_default());
}

#[test]
fn every_other_command_of_the_first_page_is_one_that_exists() {
    let known = ["cargo run -- demo", "cargo test --workspace"];
    for block in blocks() {
        let session = block.iter().any(|line| line.starts_with("$ ") || line.starts_with("coppice> "));
        for line in block.iter().filter(|_| !session) {
            let (line, _) = remark(line);
            let ours = line.strip_prefix("coppice ").map(|words| {
                let verb = words.split(' ').next().expect("a word");
                run(&[verb, "--help"]).code == 0
            });
            assert!(ours == Some(true) || known.contains(&line), "`{line}` is run by nobody");
        }
    }
}

/// The manual's table of metrics, and a live node's page.
#[test]
fn every_metric_of_the_manual_is_on_a_live_node() {
    let cluster = Cluster::formed(1, "");
    let page = cluster.page(0, "/metrics");
    let is_metric = |name: &&str| name.starts_with("coppice_") || name.starts_with("process_");
    let rows = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: BTreeSet<&str> = rows.map(|(name, _)| name.trim_end_matches("_info")).filter(is_metric).collect();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let shown: BTreeSet<&str> =
        families.map(|(name, _)| name.trim_end_matches("_total").trim_end_matches("_info")).collect();
    assert_eq!(listed, shown);
}

/// The library's example is the one of its own page, which is compiled.
#[test]
fn the_readme_example_of_the_library_compiles() {
    let block =
        README.split_once("```rust,no_run\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
    let page = include_str!("../../../client/src/lib.rs");
    let lines: Vec<String> = block.lines().map(|line| format!("//! {line}")).collect();
    assert!(page.contains(&lines.join("\n")), "not in client/src/lib.rs:\n{block}");
}
