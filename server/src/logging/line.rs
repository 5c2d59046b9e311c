//! One event as one line. Text escapes line breaks and control characters, so that nothing that came from the network
//! can forge a line or move a terminal's cursor.

use std::fmt::{Debug, Write};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Bytes of a message or of a field; the rest of it is left out.
const TEXT_BYTES_MAX: usize = 2_048;

/// An event, taken down.
#[derive(Clone, Debug)]
pub(super) struct Line {
    time: String,
    level: Level,
    target: &'static str,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Line {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut time = String::with_capacity(32);
        if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
            time = "-".to_owned();
        }
        let mut line = Self {
            time,
            level: *metadata.level(),
            target: metadata.target(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        line
    }

    /// What makes two events of one place in the code the same: all but their numbers.
    pub(super) fn identity(&self) -> String {
        let mut identity = self.message.clone();
        for (name, value) in &self.fields {
            if let Value::String(text) = value {
                let _ = write!(identity, "\0{name}={text}");
            }
        }
        identity
    }

    pub(super) fn json(&self, repeated: u64) -> String {
        let mut object = Map::new();
        object.insert("time".into(), self.time.as_str().into());
        object.insert("level".into(), self.level.as_str().to_ascii_lowercase().into());
        object.insert("target".into(), self.target.into());
        object.insert("message".into(), self.message.as_str().into());
        for (name, value) in &self.fields {
            object.entry(*name).or_insert_with(|| value.clone());
        }
        if repeated > 0 {
            object.insert("repeated".into(), repeated.into());
        }
        Value::Object(object).to_string() + "\n"
    }

    pub(super) fn text(&self, repeated: u64, color: bool) -> String {
        let (dim, bright, plain) = if color { ("\u{1b}[2m", bright(self.level), "\u{1b}[0m") } else { ("", "", "") };
        let mut out =
            format!("{dim}{}{plain} {bright}{:>5}{plain} {dim}{}:{plain} ", self.time, self.level, self.target);
        escape(&mut out, &self.message);
        for (name, value) in &self.fields {
            let _ = write!(out, " {dim}{name}={plain}");
            match value {
                Value::String(text) if text.contains([' ', '"', '=', '\\']) || text.is_empty() => {
                    out.push('"');
                    text.split_inclusive(['"', '\\']).for_each(|part| match part.strip_suffix(['"', '\\']) {
                        Some(before) => {
                            escape(&mut out, before);
                            out.push('\\');
                            out.push_str(&part[before.len()..]);
                        }
                        None => escape(&mut out, part),
                    });
                    out.push('"');
                }
                Value::String(text) => escape(&mut out, text),
                number => out.push_str(&number.to_string()),
            }
        }
        if repeated > 0 {
            let _ = write!(out, " {dim}repeated={plain}{repeated}");
        }
        out.push('\n');
        out
    }

    #[cfg(test)]
    pub(super) fn example(message: &str, node: &str, attempt: u64) -> Self {
        let fields = vec![("node", node.into()), ("attempt", attempt.into())];
        Self { time: "-".into(), level: Level::WARN, target: "test", message: message.into(), fields }
    }

    fn push(&mut self, field: &Field, mut value: Value) {
        if let Value::String(text) = &mut value
            && text.len() > TEXT_BYTES_MAX
        {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
            text.push_str("...");
        }
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

fn bright(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\u{1b}[31m",
        Level::WARN => "\u{1b}[33m",
        Level::INFO => "\u{1b}[32m",
        _ => "\u{1b}[34m",
    }
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.push(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of users come from the network. One that held a quote looked like fields of the node's own.
    #[test]
    fn what_comes_from_the_network_forges_no_field() {
        let text = |node: &str| Line::example("a verb", node, 1).text(0, false);
        assert!(text("n2").ends_with("a verb node=n2 attempt=1\n"));
        assert!(text(r#"x" user="root"#).contains(r#" node="x\" user=\"root" attempt=1"#));
        assert!(text("x=1").contains(r#" node="x=1" attempt=1"#));
        assert!(text(r"a\b").contains(r#" node="a\\b" attempt=1"#));
        assert!(text("a\nb").contains(r" node=a\nb attempt=1"));
    }
}
