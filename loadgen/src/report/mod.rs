//! What a run leaves behind: text for people, one line of JSON for programs, a directory of files for later.

pub mod files;
pub mod plot;
pub mod summary;
pub mod text;

pub use files::RunFile;
pub use summary::{Latency, Point, Setup, Summary};

/// One compact object, for stdout with `-o json`.
pub fn json(summary: &Summary) -> String {
    serde_json::to_string(summary).expect("numbers and texts are always JSON")
}

#[cfg(test)]
mod tests;
