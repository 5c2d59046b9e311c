//! What went wrong, in four lines: what, where, the likely cause, the next command (operations.md 2).

use std::fmt;

pub use crate::exit::Exit;

/// An error as a person reads it: never without the command that comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How the program exits.
    pub exit: Exit,
    /// A word for programs, stable across versions.
    pub code: &'static str,
    /// What failed, beginning with the verb.
    pub what: String,
    /// Where: nodes, files, arguments.
    pub place: String,
    /// The likely cause.
    pub cause: String,
    /// The command to run next.
    pub next: String,
}

impl Failure {
    /// A mistake in how a command was written.
    pub fn usage(what: impl Into<String>, cause: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            code: "usage",
            what: what.into(),
            place: "the command line".to_owned(),
            cause: cause.into(),
            next: next.into(),
        }
    }

    /// The error as one json object.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "v": 1, "error": {
            "code": self.code,
            "what": self.what,
            "where": self.place,
            "cause": self.cause,
            "try": self.next,
            "exit": self.exit as u8,
        }})
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a node said is in it, and a terminal obeys control characters.
        let shown = |text: &str| text.replace(char::is_control, "?");
        let [what, place, cause, next] = [&self.what, &self.place, &self.cause, &self.next].map(|text| shown(text));
        write!(f, "error: {what}\nwhere: {place}\ncause: {cause}\ntry:   {next}")
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_four_lines_and_one_object() {
        let failure = Failure::usage("scan: `b..a` ends before it begins", "the ends are swapped", "coppice scan a..b");
        assert_eq!(
            failure.to_string(),
            "error: scan: `b..a` ends before it begins\nwhere: the command line\ncause: the ends are swapped\n\
             try:   coppice scan a..b"
        );
        assert_eq!(failure.to_json()["error"]["exit"], 2);
        let hostile = Failure::usage("x", "\u{1b}]0;title\u{7}\n", "y").to_string();
        assert_eq!(hostile.lines().nth(2), Some("cause: ?]0;title??"));
        assert_eq!(failure.to_json()["v"], 1);
    }
}
