//! The demo's terminal: lines that are typed, and a live line above the prompt. Without a terminal: plain lines.

use std::io::{self, BufRead, IsTerminal, Write};

use tokio::sync::mpsc;

const PROMPT: &str = "coppice> ";

/// Lines read before they are carried out; beyond, stdin waits.
const LINES_AHEAD_MAX: usize = 64;

/// Stdin and stdout of a demo.
#[derive(Debug)]
pub struct Terminal {
    /// Both ends are a person's.
    interactive: bool,
    /// The live line and the prompt below it are on the screen.
    shown: bool,
    /// Lines are read from stdin: nobody else may.
    reads: bool,
}

impl Terminal {
    /// Of the process.
    #[must_use]
    pub fn of_process() -> Self {
        Self { interactive: io::stdin().is_terminal() && io::stdout().is_terminal(), shown: false, reads: false }
    }

    /// True if somebody may type.
    #[must_use]
    pub fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// True if stdin is the prompt's.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Lines of stdin, read on a thread of their own: a blocked read ends only with the process.
    #[must_use]
    pub fn lines(&mut self) -> mpsc::Receiver<Vec<u8>> {
        self.reads = true;
        let (lines, receiver) = mpsc::channel(LINES_AHEAD_MAX);
        std::thread::spawn(move || {
            for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// Says on stderr what is wrong with a command. If nobody reads that, the demo goes on.
    pub fn complain(&self, sentence: &dyn std::fmt::Display) {
        let _ = writeln!(io::stderr(), "error: {sentence}");
    }

    /// Prints a line. What stood on the prompt is overwritten.
    ///
    /// # Errors
    /// That of stdout.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if std::mem::take(&mut self.shown) {
            write!(out, "\r\x1b[2K")?;
        }
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Shows the live line and the prompt below it.
    ///
    /// # Errors
    /// That of stdout.
    pub fn prompt(&mut self, live: &str) -> io::Result<()> {
        if !self.interactive {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "{}\n{PROMPT}", fitted(live))?;
        self.shown = true;
        out.flush()
    }

    /// Renews the live line and leaves what is being typed alone.
    ///
    /// # Errors
    /// That of stdout.
    pub fn live(&mut self, live: &str) -> io::Result<()> {
        if !self.shown {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        // Save the cursor, one line up, clear it, write, restore.
        write!(out, "\x1b7\x1b[1A\r\x1b[2K{}\x1b8", fitted(live))?;
        out.flush()
    }

    /// Notes that a line was typed: the cursor stands at the beginning of a new one.
    pub fn typed(&mut self) {
        self.shown = false;
    }

    /// Echoes a command that nobody typed, as a transcript would show it.
    ///
    /// # Errors
    /// That of stdout.
    pub fn echo(&mut self, command: &str) -> io::Result<()> {
        self.line(&format!("{PROMPT}{command}"))
    }
}

/// A line that does not wrap: one that did could not be renewed in place.
fn fitted(text: &str) -> String {
    let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(80, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    text.chars().take(width.saturating_sub(1)).collect()
}
