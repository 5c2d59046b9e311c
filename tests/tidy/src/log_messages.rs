//! What a program logs for its operators, and the table of it.

use std::collections::BTreeSet;

use super::{Complaints, Source, is_rust};

/// The page and the section that lists every message above `debug`.
const PAGE: &str = "docs/operations.md";
const SECTION: &str = "### 4.3 Logs";

/// Where messages come from.
const LOGGED_IN: [&str; 3] = ["server/src/", "server/core/src/", "client/src/"];

/// Messages that the table does not have at their level, and rows of which no source knows the message.
pub fn log_messages(sources: &[Source]) -> Complaints {
    let mut complaints = Complaints::new();
    let page = sources.iter().find(|source| source.path == PAGE);
    let section = page.and_then(|page| page.text.split_once(SECTION)).map_or("", |(_, section)| section);
    let rows = table(section.split("\n## ").next().unwrap_or_default());
    let mut logged: BTreeSet<(&str, String)> = BTreeSet::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        let is_test = source.path.contains("tests");
        if is_test || !LOGGED_IN.iter().any(|below| source.path.starts_with(below)) {
            continue;
        }
        for (level, message) in messages(&source.text) {
            let listed = rows.iter().any(|(of, row)| *of == level && *row == message);
            if !listed {
                complaints.push(format!("{}: {PAGE} 4.3 has no row `{message}` at {level}", source.path));
            }
            logged.insert((level, message));
        }
    }
    let gone = rows.iter().filter(|(level, row)| !logged.contains(&(*level, row.clone())));
    complaints.extend(gone.map(|(level, row)| format!("{PAGE}: nobody logs `{row}` at {level}")));
    complaints
}

/// The levels that people read.
const LEVELS: [&str; 3] = ["error", "warn", "info"];

/// Level and message of each row. What varies is `..` there.
fn table(section: &str) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    for line in section.lines() {
        let mut cells = line.split(" | ");
        let level = cells.next().and_then(|cell| cell.strip_prefix("| "));
        let Some(level) = LEVELS.into_iter().find(|known| Some(*known) == level) else { continue };
        let messages = cells.next().unwrap_or_default().split('`').skip(1).step_by(2);
        rows.extend(
            messages.map(|message| (level, message.trim_end_matches("..").trim_end_matches([':', ' ']).to_owned())),
        );
    }
    rows
}

/// Level and message of each event, up to what varies.
fn messages(text: &str) -> Vec<(&'static str, String)> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for level in LEVELS {
        for (at, begin) in text.match_indices(&format!("tracing::{level}!(")) {
            let Some(message) = last_literal(&text[at + begin.len()..]) else { continue };
            let message = if let Some(name) = message.strip_prefix('{') {
                constant(text, name.trim_end_matches('}')).unwrap_or_default()
            } else {
                message
            };
            let fixed = message.split('{').next().unwrap_or_default();
            found.push((level, fixed.trim_end_matches([':', ' ']).to_owned()));
        }
    }
    found
}

/// The last string of the arguments that `text` begins with.
fn last_literal(text: &str) -> Option<String> {
    let (mut depth, mut last, mut rest) = (1, None, text);
    while depth > 0 {
        let at = rest.find(['(', ')', '"'])?;
        let letter = rest.as_bytes()[at];
        rest = &rest[at + 1..];
        match letter {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {
                let found = literal(rest)?;
                (last, rest) = (Some(found), &rest[found.len() + 1..]);
            }
        }
    }
    // A line that ends with a backslash goes on behind the blanks of the next one.
    last.map(|literal| {
        literal.split("\\\n").enumerate().map(|(at, part)| if at > 0 { part.trim_start() } else { part }).collect()
    })
}

/// A string as it is written, up to its end.
fn literal(text: &str) -> Option<&str> {
    let mut escaped = false;
    let end = text.find(|letter| {
        let ends = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    })?;
    Some(&text[..end])
}

/// The text of a constant of the same file.
fn constant(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.split_once(&format!("const {name}: &str = \""))?;
    literal(value).map(str::to_owned)
}
