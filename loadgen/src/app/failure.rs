//! Errors in four lines, or as one object, with the exit codes of every Coppice program (operations.md 2).

use serde_json::json;

/// Exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// It was carried out and did not reach what was asked for.
    Failed = 1,
    /// The command line or a file given on it is wrong.
    Usage = 2,
    /// Nobody there, no quorum, or refused: nothing was answered.
    Unavailable = 3,
    /// Sent, and no answer: it may have happened.
    Unknown = 6,
}

/// What went wrong, where, why as far as known, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// First line.
    pub what: String,
    /// Second line.
    pub place: String,
    /// Third line.
    pub cause: String,
    /// Fourth line: a command.
    pub attempt: String,
}

impl Failure {
    /// A wrong command line.
    pub fn usage(what: impl Into<String>, cause: impl Into<String>, attempt: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Usage,
            what: what.into(),
            place: "the command line".into(),
            cause: cause.into(),
            attempt: attempt.into(),
        }
    }

    /// Nobody answers.
    pub fn unavailable(what: impl Into<String>, place: impl Into<String>, cause: impl Into<String>) -> Failure {
        Failure {
            exit: Exit::Unavailable,
            what: what.into(),
            place: place.into(),
            cause: cause.into(),
            attempt: "coppice status".into(),
        }
    }

    /// A file that cannot be read or written; `error` begins with its name.
    pub fn file(what: impl Into<String>, error: impl Into<String>, attempt: impl Into<String>) -> Failure {
        let error = error.into();
        let (place, cause) =
            error.split_once(": ").map_or((error.clone(), error.clone()), |(p, c)| (p.into(), c.into()));
        Failure { exit: Exit::Usage, what: what.into(), place, cause, attempt: attempt.into() }
    }

    /// For stderr.
    pub fn text(&self) -> String {
        let Failure { what, place, cause, attempt, .. } = self;
        format!("error: {what}\nwhere: {place}\ncause: {cause}\ntry:   {attempt}\n")
    }

    /// For stdout with `-o json`: one line.
    pub fn json(&self) -> String {
        let code = match self.exit {
            Exit::Done => "done",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::Unavailable => "unavailable",
            Exit::Unknown => "unknown",
        };
        json!({"v": 1, "error": {
            "code": code, "what": self.what, "where": self.place, "cause": self.cause, "try": self.attempt,
            "exit": self.exit as u8
        }})
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_four_lines_or_one_object() {
        let failure = Failure::unavailable("run: nobody answers", "127.0.0.1:7400", "connection refused");
        assert_eq!(
            failure.text(),
            "error: run: nobody answers\nwhere: 127.0.0.1:7400\ncause: connection refused\ntry:   coppice status\n"
        );
        let object: serde_json::Value = serde_json::from_str(&failure.json()).unwrap();
        assert_eq!((object["v"].as_u64(), object["error"]["exit"].as_u64()), (Some(1), Some(3)));
        assert_eq!(object["error"]["where"], "127.0.0.1:7400");
    }

    #[test]
    fn a_file_error_names_the_file() {
        let failure = Failure::file("plot", "x/run.json: no such file", "coppice-load run --out x");
        assert_eq!((failure.place.as_str(), failure.cause.as_str()), ("x/run.json", "no such file"));
    }
}
