//! What is printed: data on stdout, all else on stderr, in four formats (operations.md 2).

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::args::{Format, Global};
use super::failure::{Exit, Failure};
use crate::text::Coding;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// As asked for; none: by kind of verb and terminal.
    pub format: Option<Format>,
    /// How keys and values are written.
    pub coding: Coding,
    /// Nothing but data and errors.
    pub quiet: bool,
    /// Stdout is a terminal.
    pub terminal: bool,
    /// States are coloured: for a person who has not asked for plain text.
    pub color: bool,
}

impl Style {
    /// Of the process's own stdout.
    #[must_use]
    pub fn of_process(global: &Global) -> Self {
        let terminal = io::stdout().is_terminal();
        let color = terminal && !coppice_usage::wants_plain();
        Self { format: global.output, coding: global.coding(), quiet: global.quiet, terminal, color }
    }

    /// The format of verbs whose result is keys and values.
    #[must_use]
    pub fn data(&self) -> Format {
        self.format.unwrap_or(if self.terminal { Format::Table } else { Format::Raw })
    }

    /// The format of all other verbs.
    #[must_use]
    pub fn admin(&self) -> Format {
        self.format.unwrap_or(Format::Table)
    }

    /// Whether errors are objects.
    #[must_use]
    pub fn json_errors(&self) -> bool {
        matches!(self.format, Some(Format::Json | Format::Jsonl))
    }
}

/// Where things are printed and how.
pub struct Output<'a> {
    pub style: Style,
    /// Data: stdout.
    pub data: &'a mut dyn Write,
    /// All else: stderr.
    pub notes: &'a mut dyn Write,
}

impl Output<'_> {
    /// A line for the operator, unless quiet.
    ///
    /// # Errors
    /// That of stderr.
    pub fn note(&mut self, line: &str) -> io::Result<()> {
        if self.style.quiet { Ok(()) } else { writeln!(self.notes, "{line}") }
    }

    /// A failure: four lines, or one object with `-o json`.
    ///
    /// # Errors
    /// That of stderr.
    pub fn failure(&mut self, failure: &Failure) -> io::Result<()> {
        if self.style.json_errors() {
            writeln!(self.notes, "{}", failure.to_json())
        } else {
            writeln!(self.notes, "{failure}")
        }
    }

    fn object(&mut self, fields: Map<String, Value>) -> io::Result<()> {
        writeln!(self.data, "{}", Value::Object(fields))
    }

    /// A value alone: exactly its bytes in raw output, else a line.
    fn value(&mut self, value: &[u8]) -> io::Result<()> {
        match (self.style.data(), self.style.coding) {
            (Format::Raw, Coding::Plain) => self.data.write_all(value),
            (_, coding) => writeln!(self.data, "{}", coding.show(value)),
        }
    }

    /// The answer to `get`.
    ///
    /// # Errors
    /// That of stdout or stderr.
    pub fn get(&mut self, key: &[u8], value: Option<&[u8]>, position: &str) -> io::Result<Exit> {
        let exit = if value.is_some() { Exit::Done } else { Exit::NotFound };
        if is_json(self.style.data()) {
            let mut fields = opening();
            self.style.coding.put_field(&mut fields, "key", Some(key));
            fields.insert("found".to_owned(), value.is_some().into());
            if value.is_some() {
                self.style.coding.put_field(&mut fields, "value", value);
            }
            fields.insert("position".to_owned(), position.into());
            self.object(fields)?;
        } else if let Some(value) = value {
            self.value(value)?;
        } else {
            writeln!(self.notes, "not found: {}", self.style.coding.show(key))?;
        }
        Ok(exit)
    }

    /// The answer to `ttl`. `left`: none of an absent key, `Some(None)` of one that does not expire.
    ///
    /// # Errors
    /// That of stdout or stderr.
    pub fn ttl(&mut self, key: &[u8], left: Option<Option<Duration>>, position: &str) -> io::Result<Exit> {
        if is_json(self.style.data()) {
            let mut fields = opening();
            self.style.coding.put_field(&mut fields, "key", Some(key));
            fields.insert("found".to_owned(), left.is_some().into());
            if let Some(left) = left {
                let milliseconds = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                fields.insert("ttl_ms".to_owned(), milliseconds.into());
            }
            fields.insert("position".to_owned(), position.into());
            self.object(fields)?;
        } else {
            match left {
                Some(Some(left)) => writeln!(self.data, "{}", time_left(left))?,
                Some(None) => writeln!(self.data, "does not expire")?,
                None => writeln!(self.notes, "not found: {}", self.style.coding.show(key))?,
            }
        }
        Ok(if left.is_some() { Exit::Done } else { Exit::NotFound })
    }

    /// The answer to a write.
    ///
    /// # Errors
    /// That of stdout or stderr.
    pub fn write(&mut self, key: &[u8], outcome: &WriteOutcome<'_>, position: &str) -> io::Result<Exit> {
        let json = is_json(self.style.data());
        let printed =
            if json { self.write_json(key, outcome, position) } else { self.write_text(key, outcome, position) };
        match printed {
            // A long value is written past the buffer: whoever does not read it learns the outcome nevertheless.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(outcome.exit()),
        }
    }

    fn write_text(&mut self, key: &[u8], outcome: &WriteOutcome<'_>, position: &str) -> io::Result<()> {
        let coding = self.style.coding;
        match outcome {
            WriteOutcome::Done { previous: None } => writeln!(self.data, "ok  {position}")?,
            WriteOutcome::Done { previous: Some(value) } => {
                writeln!(self.data, "ok  {position}  was {}", coding.show(value))?;
            }
            WriteOutcome::NotFound => writeln!(self.notes, "not found: {}", coding.show(key))?,
            WriteOutcome::Refused { word, current } => {
                writeln!(self.notes, "{word}: {}  {position}", coding.show(key))?;
                match current {
                    Some(current) => self.value(current)?,
                    None => writeln!(self.notes, "not found: {}", coding.show(key))?,
                }
            }
        }
        Ok(())
    }

    fn write_json(&mut self, key: &[u8], outcome: &WriteOutcome<'_>, position: &str) -> io::Result<()> {
        let coding = self.style.coding;
        let mut fields = opening();
        fields.insert("ok".to_owned(), (outcome.exit() == Exit::Done).into());
        coding.put_field(&mut fields, "key", Some(key));
        match outcome {
            WriteOutcome::Done { previous } => coding.put_field(&mut fields, "previous", *previous),
            WriteOutcome::NotFound => {
                fields.insert("found".to_owned(), false.into());
            }
            WriteOutcome::Refused { current, .. } => coding.put_field(&mut fields, "current", *current),
        }
        fields.insert("position".to_owned(), position.into());
        self.object(fields)
    }

    /// Begins the answer to a scan.
    ///
    /// # Errors
    /// That of stdout.
    pub fn scan_begin(&mut self) -> io::Result<()> {
        if self.style.data() == Format::Json { write!(self.data, r#"{{"v":1,"pairs":["#) } else { Ok(()) }
    }

    /// One pair of a scan; `value` is none with `--keys-only`, `first` for the first pair.
    ///
    /// # Errors
    /// That of stdout.
    pub fn scan_pair(&mut self, first: bool, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let coding = self.style.coding;
        let format = self.style.data();
        if is_json(format) {
            let mut fields = if format == Format::Jsonl { opening() } else { Map::new() };
            coding.put_field(&mut fields, "key", Some(key));
            if value.is_some() {
                coding.put_field(&mut fields, "value", value);
            }
            let comma = if format == Format::Json && !first { "," } else { "" };
            let end = if format == Format::Jsonl { "\n" } else { "" };
            return write!(self.data, "{comma}{}{end}", Value::Object(fields));
        }
        let raw = format == Format::Raw && coding == Coding::Plain;
        let mut part = |bytes: &[u8]| {
            if raw { self.data.write_all(bytes) } else { self.data.write_all(coding.show(bytes).as_bytes()) }
        };
        part(key)?;
        if let Some(value) = value {
            self.data.write_all(if raw { b"\t" } else { b"  " })?;
            let mut part = |bytes: &[u8]| {
                if raw { self.data.write_all(bytes) } else { self.data.write_all(coding.show(bytes).as_bytes()) }
            };
            part(value)?;
        }
        self.data.write_all(b"\n")
    }

    /// Ends the answer to a scan: how many, from where, as of when, and where to go on.
    ///
    /// # Errors
    /// That of stdout or stderr.
    pub fn scan_end(&mut self, end: &ScanEnd, count_only: bool) -> io::Result<()> {
        let format = self.style.data();
        if format == Format::Json || (is_json(format) && count_only) {
            let mut fields = if count_only { opening() } else { Map::new() };
            fields.insert("count".to_owned(), end.count.into());
            fields.insert("positions".to_owned(), json!(end.positions));
            fields.insert("ticket".to_owned(), json!(end.ticket));
            fields.insert("stale".to_owned(), end.stale.into());
            fields.insert("after".to_owned(), json!(end.after));
            let object = Value::Object(fields).to_string();
            return if count_only {
                writeln!(self.data, "{object}")
            } else {
                writeln!(self.data, "],{}", &object[1..])
            };
        }
        if count_only {
            writeln!(self.data, "{}", end.count)?;
        }
        self.note(&end.sentence())?;
        match &end.after {
            Some(token) => self.note(&format!("more: --after {token}")),
            None => Ok(()),
        }
    }
}

/// How a write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome<'a> {
    /// It happened.
    Done {
        /// What was there before.
        previous: Option<&'a [u8]>,
    },
    /// There was nothing to remove.
    NotFound,
    /// Its condition did not hold.
    Refused {
        /// `exists` or `mismatch`.
        word: &'static str,
        /// What is there.
        current: Option<&'a [u8]>,
    },
}

impl WriteOutcome<'_> {
    fn exit(&self) -> Exit {
        match self {
            Self::Done { .. } => Exit::Done,
            Self::NotFound => Exit::NotFound,
            Self::Refused { .. } => Exit::Condition,
        }
    }
}

/// What a scan says when it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanEnd {
    /// Pairs found.
    pub count: u64,
    /// Where each partition was read, as `p1#13.0`.
    pub positions: Vec<String>,
    /// The ticket, of a scan over several partitions that took one.
    pub ticket: Option<String>,
    /// Each partition at a moment of its own, perhaps not the newest.
    pub stale: bool,
    /// The token of the next page, if a limit ended this one.
    pub after: Option<String>,
}

impl ScanEnd {
    /// In words.
    pub(super) fn sentence(&self) -> String {
        if self.positions.is_empty() {
            return "0 keys: nothing lies between the ends".to_owned();
        }
        let keys = if self.count == 1 { "1 key".to_owned() } else { format!("{} keys", self.count) };
        let partitions: Vec<&str> = self.positions.iter().filter_map(|position| position.split('#').next()).collect();
        let moment = match (&self.ticket, self.stale) {
            (_, true) => format!("stale, each as of its own moment: {}", self.positions.join(" ")),
            (Some(ticket), false) => format!("one moment: ticket {ticket}"),
            (None, false) => format!("one moment: {}", self.positions.join(" ")),
        };
        format!("{keys} from {}, {moment}", partitions.join(" "))
    }
}

fn is_json(format: Format) -> bool {
    matches!(format, Format::Json | Format::Jsonl)
}

fn opening() -> Map<String, Value> {
    Map::from_iter([("v".to_owned(), 1.into())])
}

/// How long a key stays, for people: in whole seconds, its last one in milliseconds.
pub(super) fn time_left(left: Duration) -> String {
    match left.as_millis() {
        left @ 0..1_000 => format!("{left} ms"),
        left => format!("{} s", (left + 500) / 1_000),
    }
}
