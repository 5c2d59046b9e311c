//! Pages that code and documents cite (`protocol.md 4.2`, `hazards.md PX12`) exist, and so do their sections and rows,
//! and source files that comments and documents name by a path (`server/src/node.rs`).

use std::collections::BTreeMap;

use super::{Complaints, Source, is_rust, without_comment};

/// Pages that programs write, and code names.
const WRITTEN: &[&str] = &["versus.md"];

/// Citations of pages, sections and rows that do not exist. A page is named from the root, from the file that names it,
/// or, in `docs/`, by its name alone.
pub fn citations(sources: &[Source]) -> Complaints {
    let pages: BTreeMap<&str, &str> = sources
        .iter()
        .filter(|source| source.path.ends_with(".md"))
        .map(|source| (source.path.as_str(), source.text.as_str()))
        .collect();
    let mut complaints = Complaints::new();
    // The tests of this rule cite what does not exist.
    for source in sources.iter().filter(|source| !source.path.ends_with("tests/tidy.rs")) {
        let text = prose(&source.text);
        for (at, _) in text.match_indices(".md") {
            let name = page_before(&text[..at]);
            let behind = &text[at + ".md".len()..];
            if name.is_empty() || behind.starts_with(|c: char| c.is_alphanumeric()) {
                continue;
            }
            let name = format!("{name}.md");
            if WRITTEN.contains(&name.as_str()) {
                continue;
            }
            let Some(page) = find(&pages, &source.path, &name) else {
                complaints.push(format!("{}: {name} does not exist", source.path));
                continue;
            };
            if let Some(part) = part_after(behind)
                && !has_part(page, part)
            {
                complaints.push(format!("{}: {name} has no {part}", source.path));
            }
        }
    }
    complaints.dedup();
    complaints
}

/// Source files that comments and pages name and that do not exist. A path has a slash, and ends as the path of some
/// file does; `{a,b}` stands for `a` and `b`.
pub fn cited_files(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let files: Vec<String> =
        sources.iter().filter(|source| is_rust(source)).map(|source| format!("/{}", source.path)).collect();
    let exists = |name: &str| files.iter().any(|path| path.ends_with(&format!("/{name}")));
    // The tests of this rule cite what does not exist.
    for source in sources.iter().filter(|source| !source.path.ends_with("tests/tidy.rs")) {
        for (index, line) in source.text.lines().enumerate() {
            let prose = match is_rust(source) {
                true => &line[without_comment(line).len()..],
                false => line,
            };
            for name in prose.match_indices(".rs").flat_map(|(at, _)| files_before(&prose[..at], &prose[at + 3..])) {
                if !exists(&name) {
                    complaints.push(format!("{}:{}: {name} does not exist", source.path, index + 1));
                }
            }
        }
    }
    complaints
}

/// The paths that end here with `.rs`; none for a file that is named without a directory.
fn files_before(text: &str, behind: &str) -> Vec<String> {
    if behind.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
        return Vec::new();
    }
    let (before, names) = match text.strip_suffix('}').and_then(|text| text.rsplit_once('{')) {
        Some((before, names)) => (page_before(before), names),
        None => ("", page_before(text)),
    };
    let paths = names.split(',').map(|name| format!("{before}{name}.rs"));
    paths.map(|path| path.trim_start_matches(['.', '/']).to_owned()).filter(|path| path.contains('/')).collect()
}

/// The text in one line, without the marks of comments: citations are wrapped like all prose.
fn prose(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        let marks = ["//!", "///", "//", "#"];
        marks.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).trim()
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// The path that ends here.
fn page_before(text: &str) -> &str {
    let part = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let from = text.char_indices().rev().take_while(|&(_, c)| part(c)).last().map_or(text.len(), |(at, _)| at);
    &text[from..]
}

fn find<'a>(pages: &BTreeMap<&str, &'a str>, from: &str, name: &str) -> Option<&'a str> {
    let mut beside: Vec<&str> = from.split('/').collect();
    beside.pop();
    for part in name.split('/') {
        match part {
            ".." => _ = beside.pop(),
            "." => {}
            part => beside.push(part),
        }
    }
    let places = [beside.join("/"), name.to_owned(), format!("docs/{name}")];
    places.iter().find_map(|place| pages.get(place.as_str())).copied()
}

/// The section or row that is named right behind a page.
fn part_after(behind: &str) -> Option<&str> {
    let behind = behind.trim_start_matches('`').strip_prefix(' ')?;
    let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(behind.len());
    let part = behind[..end].trim_end_matches('.');
    let letters = part.chars().take_while(char::is_ascii_uppercase).count();
    let digit = part[letters..].starts_with(|c: char| c.is_ascii_digit());
    (digit && letters <= 2).then_some(part)
}

/// Whether a heading, a paragraph or a row of a page begins with this number or name.
fn has_part(page: &str, part: &str) -> bool {
    page.lines().any(|line| {
        let begin = line.trim_start_matches(['#', ' ', '|', '-', '*']);
        let rest = begin.strip_prefix(part);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) && !is_finer(rest))
    })
}

/// `.2` behind `4`: another section.
fn is_finer(rest: &str) -> bool {
    rest.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
