//! The demo's terminal: lines that are typed, and a live line above the prompt. Without a terminal: plain lines.

use std::io::{self, BufRead, IsTerminal, Write};

use tokio::sync::mpsc;

const PROMPT: &str = "coppice> ";

/// Stdin and stdout of a demo.
#[derive(Debug)]
pub struct Terminal {
    /// Both ends are a person's.
    interactive: bool,
    /// The live line and the prompt below it are on the screen.
    shown: bool,
}

impl Terminal {
    /// Of the process.
    #[must_use]
    pub fn of_process() -> Self {
        Self { interactive: io::stdin().is_terminal() && io::stdout().is_terminal(), shown: false }
    }

    /// True if somebody may type.
    #[must_use]
    pub fn is_interactive(&self) -> bool {
        self.interactive
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

/// Lines of stdin, read on a thread of their own: a blocked read ends only with the process.
#[must_use]
pub fn lines() -> mpsc::UnboundedReceiver<String> {
    let (lines, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A line that does not wrap: one that did could not be renewed in place.
fn fitted(text: &str) -> String {
    let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(80, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    text.chars().take(width.saturating_sub(1)).collect()
}
