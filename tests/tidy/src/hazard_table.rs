//! The table of hazards against the tree: what is planted, what a test names, what has nothing to switch off.

use std::collections::BTreeMap;

use coppice_testkit::caught::CAUGHT;
use coppice_testkit::hazards::{CaughtBy, HAZARDS, OTHERS};

use super::{Complaints, Source, is_rust};

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HazardReport {
    /// Disagreements.
    pub complaints: Complaints,
    /// Mutants of the table that stand in the code and are named by a test.
    pub planted: Vec<&'static str>,
    /// Mutants of the table with nothing to switch off, by name.
    pub not_applicable: Vec<String>,
}

/// Compares the table with the code. `not_applicable` names the mutants that are known to have nothing to switch off.
pub fn hazard_table(sources: &[Source], not_applicable: &[&str]) -> HazardReport {
    let planted = planted(sources);
    let mut report = HazardReport::default();
    let table = || HAZARDS.iter().flat_map(|hazard| hazard.mutants.iter().map(move |mutant| (hazard, mutant.name)));
    for mutant in HAZARDS.iter().flat_map(|hazard| hazard.mutants).filter(|mutant| planted.contains_key(mutant.name)) {
        let listed = CAUGHT.iter().any(|caught| caught.name == mutant.name);
        if mutant.caught_by == CaughtBy::Simulator && !listed {
            report
                .complaints
                .push(format!("{}: `coppice-sim mutants` is to catch it, and does not list it", mutant.name));
        }
    }
    for (hazard, name) in table() {
        match (planted.get(name), not_applicable.contains(&name)) {
            (Some(place), true) => {
                report.complaints.push(format!("{name} is planted in {place}: take it off the list NOT_APPLICABLE"));
            }
            (Some(place), false) if !named_by_a_test(sources, name) => {
                report.complaints.push(format!("{name} is planted in {place}, but no test names it"));
            }
            (Some(_), false) => report.planted.push(name),
            (None, true) => report.not_applicable.push(format!("{} {name}", hazard.id)),
            (None, false) => report.complaints.push(format!("{name} ({}) is planted nowhere", hazard.id)),
        }
    }
    for (name, place) in &planted {
        if !table().any(|(_, known)| known == name) && !OTHERS.contains(&name.as_str()) {
            report.complaints.push(format!("{name} is planted in {place}, but not in the table of hazards"));
        }
    }
    for name in not_applicable.iter().filter(|name| !table().any(|(_, known)| known == **name)) {
        report.complaints.push(format!("{name} is on the list NOT_APPLICABLE, but not in the table of hazards"));
    }
    report
}

/// Names in `mutant!(name)` with the first place of each; comments and tests do not count.
fn planted(sources: &[Source]) -> BTreeMap<String, String> {
    let mut planted = BTreeMap::new();
    for source in sources.iter().filter(|source| is_rust(source) && source.path.contains("/src/")) {
        for (number, code) in super::code(&source.text) {
            for (at, open) in code.match_indices("mutant!(") {
                let name = &code[at + open.len()..];
                let name: String = name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if !name.is_empty() {
                    planted.entry(name).or_insert_with(|| format!("{}:{number}", source.path));
                }
            }
        }
    }
    planted
}

/// The test that catches the mutant, beside seeds of the simulator: `FILE: FUNCTION`.
pub fn directed_test(sources: &[Source], name: &str) -> Option<String> {
    let quoted = format!("\"{name}\"");
    let of_tests = |source: &Source| source.path.starts_with("tests/") && source.path.contains("/src/");
    let rust = || sources.iter().filter(|source| is_rust(source) && !of_tests(source));
    let named = |source: &Source, word: &str| {
        let part = test_part(source);
        let at = source.text.len() - part.len() + part.find(word)?;
        Some(format!("{}: {}", source.path, enclosing(&source.text[..at], "fn ")?))
    };
    let lists = |source: &&Source| source.path.ends_with("/src/mutants.rs");
    rust().filter(|source| !lists(source)).find_map(|source| named(source, &quoted)).or_else(|| {
        // A crate's list of its mutants, which a test of it walks through.
        let list = rust().filter(lists).find(|source| source.text.contains(&quoted))?;
        let constant = enclosing(&list.text[..list.text.find(&quoted)?], "const ")?;
        let of_crate = |source: &&Source| source.path.starts_with(list.path.trim_end_matches("src/mutants.rs"));
        let word = format!("mutants::{constant}");
        rust().filter(of_crate).find_map(|source| named(source, &word))
    })
}

/// What stands behind the last `keyword` of a text.
fn enclosing<'a>(before: &'a str, keyword: &str) -> Option<&'a str> {
    let (_, behind) = before.rsplit_once(keyword)?;
    Some(&behind[..behind.find(|c: char| !c.is_alphanumeric() && c != '_')?])
}

/// A test names a mutant as a string: where it activates it, or in a list of those that it must catch. The list of a
/// crate's mutants in its `src` catches nothing.
fn named_by_a_test(sources: &[Source], name: &str) -> bool {
    let quoted = format!("\"{name}\"");
    sources.iter().filter(|source| is_rust(source)).any(|source| test_part(source).contains(&quoted))
}

/// The part of a file that is test code.
fn test_part(source: &Source) -> &str {
    // The test of this very rule names mutants without catching any.
    if source.path == "tests/tidy/tests/tidy.rs" {
        return "";
    }
    // A crate's list of its mutants is what its test walks through, and so is that of the simulator.
    let list = source.path.ends_with("/src/mutants.rs") || source.path == "tests/testkit/src/caught.rs";
    if list || source.path.contains("/tests/") || source.path.ends_with("/tests.rs") {
        return &source.text;
    }
    source.text.find("\nmod tests {").map_or("", |at| &source.text[at..])
}
