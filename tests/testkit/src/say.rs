//! What a program says: lines on its standard output. Whoever listens may go away, as `head` does: the rest is then
//! unheard, and the program ends as if it had been heard.

use std::fmt;
use std::io::{self, Write};

/// One line: what `say!` does.
pub fn line(words: fmt::Arguments<'_>) {
    // Nothing is left to do about it: exit codes say what matters.
    let _ = writeln!(io::stdout().lock(), "{words}");
}

/// What `Err` is worth if nobody listens.
///
/// # Errors
/// Any other one.
pub fn unheard(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
