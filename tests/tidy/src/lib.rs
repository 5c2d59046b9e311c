//! House rules that no compiler checks, as functions from sources to complaints: direction of imports, purity, sizes,
//! leftovers, the shape of the workspace, the table of hazards, names. A rule that cannot be seen to fail is worth
//! nothing, so each takes its input as data and `tests/tidy.rs` also feeds it a house in disorder.
#![forbid(unsafe_code)]

mod citations;
mod failpoint_names;
mod hazard_table;
mod log_messages;
mod manifests;
mod mutant_names;
mod names;
mod rooms;
mod types;

use std::path::{Path, PathBuf};
use std::{fs, io};

pub use citations::{citations, cited_files};
pub use failpoint_names::{FAILPOINTS_MIN, failpoint_names};
pub use hazard_table::{HazardReport, directed_test, hazard_table};
pub use log_messages::log_messages;
pub use manifests::{Metadata, crate_counts, imports, workspace_shape};
pub use mutant_names::mutant_names;
pub use names::names;
pub use rooms::rooms;
pub use types::{METHOD_FILES_MAX, TYPE_FIELDS_MAX, types};

/// What is wrong, one line each, with the file first.
pub type Complaints = Vec<String>;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path from the root, with `/`.
    pub path: String,
    /// Content.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate lies two directories deep")
        .to_path_buf()
}

/// All text files of the repository that people write: sources, manifests, scripts, pages.
pub fn sources() -> io::Result<Vec<Source>> {
    let root = root();
    let mut found = Vec::new();
    let mut waiting = vec![root.clone()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type()?.is_dir() {
                // Only what is built or checked out is left out; `.ci` is ours. Cargo tags what it builds.
                let built = name.starts_with("target") && path.join("CACHEDIR.TAG").exists();
                if name != ".git" && name != "node_modules" && !built {
                    waiting.push(path);
                }
                continue;
            }
            let relative = path.strip_prefix(&root).expect("found below the root").to_string_lossy().replace('\\', "/");
            let written = ["rs", "toml", "md", "sh", "txt", "yml", "yaml", "js", "css", "html"];
            let known = written.iter().any(|ending| name.ends_with(&format!(".{ending}"))) || relative == ".ci/run";
            if known && let Ok(text) = fs::read_to_string(&path) {
                found.push(Source { path: relative, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn is_rust(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

/// The lines of a Rust file that are code, numbered from 1: without comments, and without the test module at its end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = text.lines().enumerate().peekable();
    let mut tests = false;
    std::iter::from_fn(move || {
        for (index, line) in lines.by_ref() {
            tests = tests || line == "mod tests {";
            let code = without_comment(line);
            if !tests && !code.trim().is_empty() {
                return Some((index + 1, code));
            }
        }
        None
    })
}

/// Cuts a line at `//`, unless that stands inside a string.
fn without_comment(line: &str) -> &str {
    let mut from = 0;
    while let Some(at) = line[from..].find("//").map(|at| at + from) {
        if line[..at].matches('"').count().is_multiple_of(2) {
            return &line[..at];
        }
        from = at + 2;
    }
    line
}

/// Whether `word` stands in `code` with no letter, digit or `_` before or after it.
fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Longest file, in lines.
pub const FILE_LINES_MAX: usize = 600;
/// Longest line, in characters.
pub const LINE_WIDTH_MAX: usize = 120;

/// Files and lines that grew too long.
pub fn sizes(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        let lines = source.text.lines().count();
        // A model of the world that tests drive is one story; it may be a little longer.
        let most = if source.path.contains("/tests/") { FILE_LINES_MAX * 5 / 4 } else { FILE_LINES_MAX };
        if lines > most {
            complaints.push(format!("{}: {lines} lines, at most {most}", source.path));
        }
    }
    for source in sources.iter().filter(|source| is_rust(source) || source.path == ".ci/run") {
        for (index, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            // A sentence in quotes, a table row, a line of a grammar: none reads better in two pieces.
            let whole =
                line.contains('"') || line.trim_start().starts_with("//! |") || line.trim_start().starts_with("/// |");
            if width > LINE_WIDTH_MAX && !whole {
                complaints.push(format!("{}:{}: {width} columns, at most {LINE_WIDTH_MAX}", source.path, index + 1));
            }
        }
    }
    complaints
}

/// Words that must not stay behind: unfinished work, switched-off tests, paths of one machine.
pub fn leftovers(sources: &[Source]) -> Complaints {
    // Written in pieces, so that this file does not complain about itself.
    let in_rust = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("db", "g!("),
        concat!("#[ig", "nore"),
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("XX", "X"),
    ];
    let anywhere = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    let mut complaints = Complaints::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            let rust = in_rust.iter().filter(|_| is_rust(source));
            // The section `test` of `.ci/run` runs long tests too.
            let long = line.trim_start().starts_with(concat!("#[ig", "nore = \"long: "));
            for word in rust.chain(&anywhere).filter(|word| !long && line.contains(**word)) {
                complaints.push(format!("{}:{}: {word}", source.path, index + 1));
            }
        }
    }
    complaints
}

/// Parts that decide and therefore touch nothing: no clock, thread, file, socket, chance or order of a hash map.
/// A path ends with `/` or names a module, as a file or as a directory.
const PURE: &[&str] =
    &["btree/src/", "ordering/src/", "client/src/wire", "client/src/map", "client/src/session", "server/core/src/"];

/// What pure code must not name.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "std::thread",
    "thread::spawn",
    "tokio",
    "rand",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
];

fn is_pure(path: &str) -> bool {
    let below = |part: &str| {
        let rest = path.strip_prefix(part);
        rest.is_some_and(|rest| part.ends_with('/') || rest.starts_with('/') || rest == ".rs")
    };
    let apart = path.ends_with("/tests.rs") || path.contains("/tests/");
    PURE.iter().any(|part| below(part)) && !apart
}

/// Pure code that reaches for the world.
pub fn purity(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    for source in sources.iter().filter(|source| is_rust(source) && is_pure(&source.path)) {
        for (number, code) in code(&source.text) {
            for word in IMPURE.iter().filter(|word| has_word(code, word)) {
                complaints.push(format!("{}:{number}: {word} in pure code", source.path));
            }
        }
    }
    complaints
}

/// Pure parts for which there is no file: a renamed module must not slip out of the rule.
pub fn pure_parts_without_files(sources: &[Source]) -> Vec<&'static str> {
    let exists = |part: &str| sources.iter().any(|source| source.path.starts_with(part));
    PURE.iter().copied().filter(|part| !exists(part)).collect()
}

/// sled is named by the checkpoints alone; a bench may compare with it.
pub fn sled_in_one_place(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    for source in sources.iter().filter(|source| is_rust(source) && source.path.contains("/src/")) {
        if source.path == "server/src/checkpoint.rs" || source.path.starts_with("tests/") {
            continue;
        }
        for (number, _) in code(&source.text).filter(|(_, code)| has_word(code, "sled")) {
            complaints.push(format!("{}:{number}: sled belongs to server/src/checkpoint.rs alone", source.path));
        }
    }
    complaints
}

/// `unsafe` is allowed in one module of btree at most, and nowhere else.
pub fn unsafe_code(sources: &[Source]) -> Complaints {
    let word = concat!("allow(uns", "afe_code)");
    let files: Vec<&str> = sources
        .iter()
        .filter(|source| is_rust(source) && source.text.contains(word))
        .map(|source| source.path.as_str())
        .collect();
    let mut complaints: Complaints = files
        .iter()
        .filter(|path| !path.starts_with("btree/src/"))
        .map(|path| format!("{path}: unsafe code outside btree"))
        .collect();
    if files.len() > 1 {
        complaints.push(format!("unsafe code in more than one file: {}", files.join(", ")));
    }
    complaints
}

/// The two commands that a newcomer needs, in the README's first screen.
pub fn readme(sources: &[Source]) -> Complaints {
    let Some(readme) = sources.iter().find(|source| source.path == "README.md") else {
        return vec!["README.md is missing".into()];
    };
    let first_screen: Vec<&str> = readme.text.lines().take(40).collect();
    ["cargo run -- demo", "cargo test --workspace"]
        .into_iter()
        .filter(|command| !first_screen.iter().any(|line| line.trim_start_matches("$ ").starts_with(command)))
        .map(|command| format!("README.md: `{command}` is not in its first 40 lines"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_test_modules_are_no_code() {
        let text =
            "use a; // HashMap\nlet url = \"http://x\"; // y\n/// doc\n#[cfg(test)]\nmod tests {\n    use b;\n}\n";
        let lines: Vec<_> = code(text).map(|(number, code)| (number, code.trim_end())).collect();
        assert_eq!(lines, [(1, "use a;"), (2, "let url = \"http://x\";"), (4, "#[cfg(test)]")]);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_word() {
        assert!(has_word("use rand::Rng;", "rand"));
        assert!(!has_word("let operand = 1;", "rand"));
        assert!(!has_word("let rand_seed = 1;", "rand"));
    }
}
