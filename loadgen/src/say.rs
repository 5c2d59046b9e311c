//! What goes to stdout. A reader that has gone has what it wanted; any other error is told at the end, once.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

static UNSAID: OnceLock<String> = OnceLock::new();

/// Writes, and remembers that it could not.
pub fn write(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => _ = UNSAID.set(error.to_string()),
        _ => {}
    }
}

/// Why something could not be written.
pub fn unsaid() -> Option<&'static str> {
    UNSAID.get().map(String::as_str)
}

/// A line on stdout.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::write(format_args!("{}\n", format_args!($($text)*))) };
}
pub use say;
