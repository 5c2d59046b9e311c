//! The line that a person types at the demo's prompt: editing, history, Tab, and the live line above it.
//!
//! The editor blocks, so it has a thread. It is asked for one line at a time: while a command runs, the terminal is an
//! ordinary one, and Ctrl-C a signal. What is printed while somebody types goes above the line (`print`).

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use clap::CommandFactory;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use rustyline::completion::Completer;
use rustyline::config::{BellStyle, ColorMode, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, ExternalPrinter, Helper};

use super::completion::{Names, candidates};
use super::terminal::{PROMPT, Typed};
use crate::cli::args::Cli;

/// Redraws the prompt in its place: a line printed above it that ends where it began.
const REDRAW: &str = "\x1b[A\n";

/// What the screen and Tab show, as of the last look at the cluster.
#[derive(Debug, Default)]
struct Shown {
    live: String,
    names: Names,
}

/// The editor, as the demo sees it.
#[derive(Debug)]
pub struct LineEditor {
    /// One for each line that is wanted.
    wanted: mpsc::Sender<()>,
    prints: mpsc::Sender<String>,
    shown: Arc<Mutex<Shown>>,
    /// Somebody may be typing.
    reads: Cell<bool>,
    /// The terminal as it was found.
    found: Termios,
}

impl LineEditor {
    /// Takes over the terminal of the process. What is typed arrives in `typed`; `history` is a file, kept from one
    /// demo in a directory to the next. None: this terminal can only do plain lines.
    pub fn start(typed: tokio::sync::mpsc::Sender<Typed>, verbs: Vec<String>, history: PathBuf) -> Option<Self> {
        let found = tcgetattr(io::stdin()).ok()?;
        let config = Config::builder()
            .auto_add_history(true)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .bell_style(BellStyle::None)
            // The live line is drawn as the prompt's colour would be; it has none.
            .color_mode(ColorMode::Forced)
            .build();
        let shown = Arc::new(Mutex::new(Shown::default()));
        let mut program = Cli::command();
        program.build();
        let assistant = Assistant { shown: Arc::clone(&shown), program, verbs, is_empty: Cell::new(true) };
        let mut editor: Editor<Assistant, FileHistory> = Editor::with_config(config).ok()?;
        editor.set_helper(Some(assistant));
        let mut printer = editor.create_external_printer().ok()?;
        // A new demo has none.
        let _ = editor.load_history(&history);
        let (wanted, wants) = mpsc::channel();
        let (prints, printed) = mpsc::channel::<String>();
        // While Tab or a search has the keyboard, what is printed waits: it must not hold up the demo.
        std::thread::spawn(move || printed.iter().try_for_each(|text| printer.print(text)));
        std::thread::spawn(move || {
            for () in wants {
                let line = read(&mut editor);
                // Whoever cannot keep a history types on.
                let _ = editor.append_history(&history);
                if typed.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Some(Self { wanted, prints, shown, reads: Cell::new(false), found })
    }

    /// Shows the prompt, unless it stands there.
    pub fn ask(&self) {
        if !self.reads.replace(true) {
            // Its thread ends only with the demo.
            let _ = self.wanted.send(());
        }
    }

    /// The line that was asked for has arrived.
    pub fn answered(&self) {
        self.reads.set(false);
    }

    /// True if the prompt is on the screen.
    pub fn reads(&self) -> bool {
        self.reads.get()
    }

    /// Prints a line above what is being typed.
    pub fn print(&self, text: &str) {
        let _ = self.prints.send(format!("{text}\n"));
    }

    /// What the live line says, and what Tab offers, from now on.
    pub fn show(&self, live: String, names: Names) {
        let mut shown = lock(&self.shown);
        let is_news = shown.live != live;
        *shown = Shown { live, names };
        if is_news && self.reads() {
            let _ = self.prints.send(REDRAW.to_owned());
        }
    }
}

impl Drop for LineEditor {
    /// The thread that reads ends with the process, which leaves the terminal as it found it.
    fn drop(&mut self) {
        if self.reads() {
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.found);
            // The terminal marks pasted text no longer.
            let _ = writeln!(io::stdout(), "\x1b[?2004l");
        }
    }
}

fn read(editor: &mut Editor<Assistant, FileHistory>) -> Typed {
    // The live line stands above: the prompt has two rows.
    match editor.readline(&format!("\n{PROMPT}")) {
        Ok(line) => Typed::Line(line.into_bytes()),
        Err(ReadlineError::Interrupted) => {
            Typed::Interrupt { was_empty: editor.helper().is_none_or(|assistant| assistant.is_empty.get()) }
        }
        Err(ReadlineError::Eof) => Typed::End,
        Err(error) => Typed::Failed(error.to_string()),
    }
}

fn lock(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the editor asks while a line is typed.
struct Assistant {
    shown: Arc<Mutex<Shown>>,
    program: clap::Command,
    verbs: Vec<String>,
    /// Nothing is typed yet.
    is_empty: Cell<bool>,
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let verbs: Vec<&str> = self.verbs.iter().map(String::as_str).collect();
        let (start, mut offered) = candidates(&line[..at], &self.program, &verbs, &lock(&self.shown).names);
        if let [only] = &mut offered[..] {
            only.push(' ');
        }
        Ok((start, offered))
    }
}

impl Highlighter for Assistant {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, default: bool) -> Cow<'b, str> {
        if default { Cow::Owned(format!("{}{prompt}", fitted(&lock(&self.shown).live))) } else { Cow::Borrowed(prompt) }
    }
}

impl Hinter for Assistant {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for Assistant {}

impl Helper for Assistant {}

/// A line that does not wrap: one that did could not be redrawn in place.
fn fitted(text: &str) -> String {
    let width = tcgetwinsize(io::stdout()).map_or(80, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    text.chars().take(width.saturating_sub(1)).collect()
}
