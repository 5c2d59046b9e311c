//! The list of failpoints and the failpoints in the sources are the same: a list that lies would have a test arm what
//! is nowhere, or leave out what is somewhere.

use std::collections::BTreeMap;

use super::{Complaints, Source, code, is_rust};

/// Failpoints that there are at least (hazards.md 2, E10).
pub const FAILPOINTS_MIN: usize = 40;

/// The file that lists them.
const LIST: &str = "tests/planted/src/failpoints.rs";

/// Names listed that are nowhere, names somewhere that are not listed, names that stand twice, and a list too short.
pub fn failpoint_names(sources: &[Source], listed: &[&str]) -> Complaints {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_rust(source) && source.path != LIST) {
        if source.path.starts_with("tests/") {
            continue;
        }
        let text: String = code(&source.text).flat_map(|(_, code)| [code, "\n"]).collect();
        for words in text.split("failpoint!(").skip(1) {
            let name = words.split('"').nth(1).unwrap_or_default();
            found.entry(name.to_owned()).or_default().push(source.path.clone());
        }
    }
    let mut complaints = Complaints::new();
    for name in listed.iter().filter(|name| !found.contains_key(**name)) {
        complaints.push(format!("{LIST}: {name} is listed and stands nowhere"));
    }
    for (name, places) in &found {
        let places = places.join(", ");
        match listed.iter().filter(|known| *known == name).count() {
            0 => complaints.push(format!("{places}: failpoint {name} is not listed")),
            1 => {}
            _ => complaints.push(format!("{LIST}: {name} is listed twice")),
        }
        if places.contains(", ") {
            complaints.push(format!("{name} stands more than once: {places}"));
        }
    }
    if listed.len() < FAILPOINTS_MIN {
        complaints.push(format!("{LIST}: {} failpoints, {FAILPOINTS_MIN} at least", listed.len()));
    }
    complaints
}
