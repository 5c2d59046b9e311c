//! How large a type may be: a reader holds few fields, and methods in few files, in mind at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Complaints, Source, is_rust};

/// Most fields of a type that keeps some of them to itself. A record, whose fields are all open to others, is a list.
pub const TYPE_FIELDS_MAX: usize = 16;
/// Most files in which the methods of one type may lie.
pub const METHOD_FILES_MAX: usize = 4;

/// Types whose methods may lie in more files, with the reason.
const SPREAD: &[(&str, &str, &str)] = &[
    ("ordering/src/", "Paxos", "one state machine; a file for each phase of the protocol"),
    ("client/src/", "Session", "one state machine; a file for each kind of call"),
    ("server/core/src/", "Replica", "one state machine; a file for each kind of input"),
    ("server/core/src/", "Worker", "one state machine; a file for each kind of input"),
    ("tests/sim/src/", "World", "one simulated world; a file for each kind of event"),
];

/// Types with too many fields, or with methods in too many files.
pub fn types(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let mut files: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_rust(source) && !source.path.ends_with("/tests.rs")) {
        let Some(at) = source.path.find("/src/") else { continue };
        let below = &source.path[..at + "/src/".len()];
        for (name, fields) in structs(&source.text) {
            if fields > TYPE_FIELDS_MAX {
                complaints.push(format!("{}: {name} has {fields} fields, at most {TYPE_FIELDS_MAX}", source.path));
            }
        }
        for line in source.text.lines() {
            if let Some(name) = implemented(line) {
                files.entry((below, name)).or_default().insert(&source.path);
            }
        }
    }
    for ((below, name), files) in files {
        if files.len() > METHOD_FILES_MAX && !SPREAD.iter().any(|(at, of, _)| *at == below && *of == name) {
            complaints.push(format!("{below}: methods of {name} in {} files, at most {METHOD_FILES_MAX}", files.len()));
        }
    }
    complaints
}

/// Structs that keep fields to themselves, with the count of all their fields.
fn structs(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    // Name, the indent of its fields, how many there are, how many of them are private.
    let mut open: Option<(&str, usize, usize, usize)> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let words = line.trim_start();
        if let Some((name, inside, fields, private)) = &mut open {
            if indent + 4 == *inside && words.starts_with('}') {
                if *private > 0 {
                    found.push((*name, *fields));
                }
                open = None;
            } else if indent == *inside && field(words) {
                *fields += 1;
                *private += usize::from(!words.starts_with("pub"));
            }
        } else if words.ends_with('{')
            && let Some(rest) = visible(words).strip_prefix("struct ")
        {
            open = Some((word(rest), indent + 4, 0, 0));
        }
    }
    found
}

/// Whether a line begins a field: `name: Type`, perhaps with a visibility before it.
fn field(words: &str) -> bool {
    let rest = visible(words);
    let name = word(rest);
    !name.is_empty() && rest[name.len()..].starts_with(": ")
}

/// A line behind its visibility.
fn visible(words: &str) -> &str {
    let Some(rest) = words.strip_prefix("pub") else { return words };
    let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
    rest.trim_start()
}

/// The name at the beginning of a line.
fn word(rest: &str) -> &str {
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    &rest[..end]
}

/// The type whose methods a line begins: `impl Type {`, but not `impl Trait for Type {`.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => {
            let mut depth = 1;
            let end = generic.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            &generic[end + 1..]
        }
        None => rest,
    };
    let name = word(rest.strip_prefix(' ')?);
    (!name.is_empty() && !rest.contains(" for ")).then_some(name)
}
