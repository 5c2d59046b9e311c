//! Logs of a process: one event per line on stderr, text for a person on a terminal, json otherwise (operations.md 4).
//! An event that repeats is shown once per 10 s with its count. The level can be changed while the process runs. Lines
//! go straight to stderr: a line written before a crash is never lost in a buffer.
//!
//! ```no_run
//! use coppice_server::logging::{self, Format};
//!
//! let logging = logging::init(&logging::spec(None, "info"), Format::Auto)?;
//! tracing::info!(partition = "p1", "this node leads");
//! logging.set_level("info,coppice_server::log=debug")?;
//! # Ok::<(), logging::LogError>(())
//! ```

mod limiter;
mod line;

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use limiter::{Limiter, Verdict};
use line::Line;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::{Registry, reload};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text if stderr is a terminal, else json.
    #[default]
    Auto,
    /// Text, coloured on a terminal unless NO_COLOR is set.
    Text,
    /// One json object per line.
    Json,
}

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not of the form `info,coppice_server::log=debug`.
    #[error("bad log level {spec:?}: {cause}; it looks like info,coppice_server::log=debug")]
    Spec {
        /// What was given.
        spec: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Another part of the process has set up logging before.
    #[error("logging is set up already")]
    Twice,
}

/// The level to start with: the flag, else `COPPICE_LOG`, else the configured `log_level`.
pub fn spec(flag: Option<&str>, configured: &str) -> String {
    let environment = std::env::var("COPPICE_LOG").ok().filter(|spec| !spec.is_empty());
    flag.map(str::to_owned).or(environment).unwrap_or_else(|| configured.to_owned())
}

/// Sets up logging for the whole process, to stderr.
pub fn init(spec: &str, format: Format) -> Result<Logging, LogError> {
    let terminal = std::io::stderr().is_terminal();
    let json = match format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let write = |line: &str| {
        // One write per line keeps lines of several threads whole. Nobody is left to tell if stderr is closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    };
    let (logging, subscriber) = build(spec, Style { json, color: terminal && !no_color }, Box::new(write))?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)?;
    Ok(logging)
}

/// The running logs. Cheap to clone.
#[derive(Clone)]
pub struct Logging {
    filter: reload::Handle<Targets, Registry>,
    lines: Arc<Lines>,
}

impl std::fmt::Debug for Logging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logging({})", self.level())
    }
}

impl Logging {
    /// Changes what is shown, at once and for all threads (`coppice node log-level`).
    pub fn set_level(&self, spec: &str) -> Result<(), LogError> {
        let filter = parse(spec)?;
        self.filter.reload(filter).map_err(|_| LogError::Twice)
    }

    /// What is shown now.
    pub fn level(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }

    /// What is shown now, if that is something else than this.
    pub fn other_than(&self, spec: &str) -> Option<String> {
        let now = self.level();
        (parse(spec).is_ok_and(|spec| spec.to_string() != now)).then_some(now)
    }

    /// Shows events that were held back and whose 10 s are over. Call it every few seconds, or counts of events that
    /// stopped repeating appear only beside the next event.
    pub fn show_held_back(&self) {
        self.lines.show_held_back(Instant::now());
    }
}

fn parse(spec: &str) -> Result<Targets, LogError> {
    // `strict`: a misspelled level must not pass as the name of a module.
    let known = |part: &str| {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        level.parse::<tracing::level_filters::LevelFilter>().is_ok()
    };
    let bad = |cause: String| LogError::Spec { spec: spec.to_owned(), cause };
    let parts: Vec<&str> = spec.split(',').map(str::trim).collect();
    if let Some(part) = parts.iter().find(|part| part.is_empty() || !known(part)) {
        return Err(bad(format!("{part:?} has no level (off, error, warn, info, debug, trace)")));
    }
    parts.join(",").parse().map_err(|error: ParseError| bad(error.to_string()))
}

#[derive(Clone, Copy, Debug)]
struct Style {
    json: bool,
    color: bool,
}

type Write1 = Box<dyn Fn(&str) + Send + Sync>;

fn build(spec: &str, style: Style, write: Write1) -> Result<(Logging, impl Subscriber + Send + Sync), LogError> {
    let (filter, handle) = reload::Layer::new(parse(spec)?);
    let lines = Arc::new(Lines { style, write, limiter: Mutex::default() });
    let subscriber = Registry::default().with(filter).with(ToLines(Arc::clone(&lines)));
    Ok((Logging { filter: handle, lines }, subscriber))
}

/// Where events become lines.
struct Lines {
    style: Style,
    write: Write1,
    limiter: Mutex<Limiter>,
}

impl Lines {
    fn event(&self, event: &Event<'_>, now: Instant) {
        let line = Line::of(event);
        // Who asks for debug wants all of it.
        if *event.metadata().level() > Level::INFO {
            return self.show(&line, 0);
        }
        let place = std::ptr::from_ref(event.metadata().callsite().0).cast::<()>().addr();
        let verdict = self.limiter().verdict(place, &line, now);
        self.show_held_back(now);
        if let Verdict::Show { held_back } = verdict {
            self.show(&line, held_back);
        }
    }

    fn show_held_back(&self, now: Instant) {
        let due = self.limiter().due(now);
        for (line, held_back) in due {
            self.show(&line, held_back);
        }
    }

    fn show(&self, line: &Line, repeated: u64) {
        let text = if self.style.json { line.json(repeated) } else { line.text(repeated, self.style.color) };
        (self.write)(&text);
    }

    fn limiter(&self) -> std::sync::MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct ToLines(Arc<Lines>);

impl<S: Subscriber> Layer<S> for ToLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        self.0.event(event, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Shown = Arc<Mutex<Vec<String>>>;

    /// Logs to memory while `body` runs; what was shown, line by line.
    fn logged(spec: &str, style: Style, body: impl FnOnce(&Logging)) -> Vec<String> {
        let shown = Shown::default();
        let sink = Arc::clone(&shown);
        let write = Box::new(move |line: &str| sink.lock().expect("no panic").push(line.to_owned()));
        let (logging, subscriber) = build(spec, style, write).expect("a good level");
        tracing::subscriber::with_default(subscriber, || body(&logging));
        let lines = shown.lock().expect("no panic");
        lines.clone()
    }

    const TEXT: Style = Style { json: false, color: false };
    const JSON: Style = Style { json: true, color: false };

    #[test]
    fn an_event_is_one_line_of_text() {
        let lines = logged("info", TEXT, |_| tracing::info!(partition = %"p1", took_ms = 3, "leads\nnow"));
        assert_eq!(lines.len(), 1);
        let (time, rest) = lines[0].split_once(' ').expect("a time first");
        assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
        assert_eq!(rest, " INFO coppice_server::logging::tests: leads\\nnow partition=p1 took_ms=3\n");
    }

    #[test]
    fn an_event_is_one_object_of_json() {
        let lines = logged("info", JSON, |_| tracing::warn!(node = %"n2", lag = 7u64, ok = false, "is \"behind\""));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("}\n"));
        let line: serde_json::Value = serde_json::from_str(&lines[0]).expect("json");
        assert_eq!(line["level"], "warn");
        assert_eq!(line["message"], "is \"behind\"");
        assert_eq!((&line["node"], &line["lag"], &line["ok"]), (&"n2".into(), &7.into(), &false.into()));
        assert_eq!(line["target"], "coppice_server::logging::tests");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')));
        assert!(line.get("repeated").is_none());
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        let hello = |color| logged("info", Style { json: false, color }, |_| tracing::error!("hello")).concat();
        assert!(hello(true).contains("\u{1b}["));
        assert!(!hello(false).contains('\u{1b}'));
    }

    #[test]
    fn the_level_can_be_changed_while_it_runs() {
        let lines = logged("warn", TEXT, |logging| {
            tracing::info!("one");
            logging.set_level("warn, coppice_server::logging=debug").expect("a good level");
            tracing::debug!("two");
            assert_eq!(logging.level(), "coppice_server::logging=debug,warn");
            logging.set_level("off").expect("a good level");
            tracing::error!("three");
        });
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("two"));
    }

    #[test]
    fn a_bad_level_is_refused_and_changes_nothing() {
        logged("info", TEXT, |logging| {
            for bad in ["loud", "info,coppice=loud", "", "coppice_server"] {
                let error = logging.set_level(bad).expect_err(bad).to_string();
                assert!(error.contains("info,coppice_server::log=debug"), "{error}");
            }
            assert_eq!(logging.level(), "info");
        });
    }

    #[test]
    fn a_repeated_event_is_shown_once_and_others_are_not_held_back() {
        let lines = logged("info", TEXT, |_| {
            for n in 0..100 {
                tracing::warn!(peer = %"n2", attempt = n, "cannot connect");
            }
            for partition in ["p1", "p2"] {
                tracing::info!(%partition, "leads");
            }
        });
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn debug_events_are_all_shown() {
        let lines = logged("debug", TEXT, |_| (0..100).for_each(|_| tracing::debug!("step")));
        assert_eq!(lines.len(), 100);
    }
}
