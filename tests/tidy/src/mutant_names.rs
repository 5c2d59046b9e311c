//! Tests that plant bugs have a word in their names, so that `cargo test --features mutants -- caught` runs them and no
//! other: the rest of the suite is the same with and without that feature.

use std::collections::BTreeSet;

use super::{Complaints, Source, is_rust};

const WORD: &str = "caught";

/// What makes a test one that plants bugs.
const GATE: &str = "#[cfg(feature = \"mutants\")]";

/// Tests under the feature `mutants` without the word, and others with it.
pub fn mutant_names(sources: &[Source]) -> Complaints {
    let gated = gated_files(sources);
    let mut complaints = Complaints::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        for (name, line, is_gated) in tests(&source.text) {
            let is_gated = is_gated || gated.contains(source.path.as_str());
            let place = format!("{}:{line}: {name}", source.path);
            match (is_gated, name.contains(WORD)) {
                (true, false) => complaints.push(format!("{place}: it plants bugs and has no `{WORD}` in its name")),
                (false, true) => complaints.push(format!("{place}: it has `{WORD}` in its name and plants no bugs")),
                _ => {}
            }
        }
    }
    complaints
}

/// Files that exist under the feature only: by their own first words, or by those of the file that names the module.
fn gated_files(sources: &[Source]) -> BTreeSet<String> {
    let mut gated = BTreeSet::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        if source.text.lines().any(|line| line == "#![cfg(feature = \"mutants\")]") {
            gated.insert(source.path.clone());
        }
        let directory = source.path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let lines: Vec<&str> = source.text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[0].trim() == GATE) {
            let module = pair[1].trim().trim_start_matches("pub ").strip_prefix("mod ");
            if let Some(module) = module.and_then(|module| module.strip_suffix(';')) {
                gated.insert(format!("{directory}/{module}.rs"));
                gated.insert(format!("{directory}/{module}/mod.rs"));
            }
        }
    }
    gated
}

/// The tests of a file: name, line, and whether it is gated itself. Attributes and comments stand above it, in any
/// order.
fn tests(text: &str) -> Vec<(String, usize, bool)> {
    let mut found = Vec::new();
    let (mut is_test, mut is_gated) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        is_gated |= line == GATE;
        if line.starts_with("#[") || line.starts_with("//") {
            continue;
        }
        let name = line.split_once("fn ").and_then(|(_, rest)| rest.split(['(', '<']).next());
        if let Some(name) = name.filter(|_| is_test) {
            found.push((name.to_owned(), index + 1, is_gated));
        }
        (is_test, is_gated) = (false, false);
    }
    found
}
