//! The demo's terminal. A person's has a line editor and a live line above its prompt; without one: plain lines.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use tokio::sync::mpsc;

use super::completion::Names;
use super::line_editor::LineEditor;

/// What stands before a command.
pub(super) const PROMPT: &str = "coppice> ";

/// Lines read before they are carried out; beyond, stdin waits.
const LINES_AHEAD_MAX: usize = 64;

/// What came from stdin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// A line, without its end.
    Line(Vec<u8>),
    /// Ctrl-C instead of a line.
    Interrupt {
        /// Nothing was typed.
        was_empty: bool,
    },
    /// Ctrl-D, or the end of stdin.
    End,
    /// The terminal fails.
    Failed(String),
}

/// Stdin and stdout of a demo.
#[derive(Debug)]
pub struct Terminal {
    /// A person's, and what edits the line there.
    editor: Option<LineEditor>,
    /// Lines are read from stdin: nobody else may.
    reads: bool,
}

impl Terminal {
    /// Of the process, not read yet.
    #[must_use]
    pub fn of_process() -> Self {
        Self { editor: None, reads: false }
    }

    /// True if somebody may type.
    #[must_use]
    pub fn is_interactive(&self) -> bool {
        self.editor.is_some()
    }

    /// True if stdin is the prompt's.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Reads stdin from now on: by an editor that keeps its `history` in that file if a person sits there, else line by
    /// line, on a thread of its own: a blocked read ends only with the process.
    #[must_use]
    pub fn typed(&mut self, verbs: &[&str], history: &Path) -> mpsc::Receiver<Typed> {
        self.reads = true;
        let (typed, receiver) = mpsc::channel(LINES_AHEAD_MAX);
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            self.editor = LineEditor::start(typed.clone(), verbs, history.to_owned());
        }
        if self.editor.is_none() {
            std::thread::spawn(move || {
                for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
                    if typed.blocking_send(Typed::Line(line)).is_err() {
                        return;
                    }
                }
            });
        }
        receiver
    }

    /// Shows the prompt to a person, unless it stands there.
    pub fn prompt(&self) {
        if let Some(editor) = &self.editor {
            editor.ask();
        }
    }

    /// What was typed has arrived: the cursor stands at the beginning of a new line.
    pub fn answered(&self) {
        if let Some(editor) = &self.editor {
            editor.answered();
        }
    }

    /// What the live line says, and what Tab offers.
    pub fn show(&self, live: String, names: Names) {
        if let Some(editor) = &self.editor {
            editor.show(live, names);
        }
    }

    /// Says on stderr what is wrong with a command. If nobody reads that, the demo goes on.
    pub fn complain(&self, sentence: &dyn std::fmt::Display) {
        let _ = writeln!(io::stderr(), "error: {sentence}");
    }

    /// Prints a line, above what is being typed.
    ///
    /// # Errors
    /// That of stdout.
    pub fn line(&self, text: &str) -> io::Result<()> {
        if let Some(editor) = self.editor.as_ref().filter(|editor| editor.reads()) {
            editor.print(text);
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Echoes a command that nobody typed, as a transcript would show it.
    ///
    /// # Errors
    /// That of stdout.
    pub fn echo(&self, command: &str) -> io::Result<()> {
        self.line(&format!("{PROMPT}{command}"))
    }
}
