//! One line per step, and a hash over all of them: two runs of one seed are equal if their hashes are.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// FNV-1a over what steps say of themselves: the same on every machine and in every process.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        for &byte in rest {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, word: u64) {
        // A word at a time: payloads come as bytes, but most of what is hashed are numbers.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Lines kept for a failure.
const LAST_LINES: usize = 200;

/// The trace of a run.
#[derive(Debug, Default)]
pub struct Trace {
    hash: Fingerprint,
    steps: u64,
    /// Lines are made: for a replay.
    wordy: bool,
    file: Option<BufWriter<File>>,
    last: std::collections::VecDeque<String>,
}

impl Trace {
    /// A trace that only hashes.
    pub fn silent() -> Trace {
        Trace::default()
    }

    /// A trace that keeps its last lines, and writes all of them to `path` if there is one.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn wordy(path: Option<&Path>) -> std::io::Result<Trace> {
        let file = path.map(File::create).transpose()?.map(BufWriter::new);
        Ok(Trace { wordy: true, file, ..Trace::default() })
    }

    /// Whether lines are made.
    pub fn is_wordy(&self) -> bool {
        self.wordy
    }

    /// Takes a step in: `what` goes into the hash, `words` into the line.
    pub fn step(&mut self, now: u64, what: &impl Hash, words: impl FnOnce(&mut String)) {
        self.steps += 1;
        self.hash.write_u64(now);
        what.hash(&mut self.hash);
        if !self.wordy {
            return;
        }
        let mut line = format!("{} {}.{:06} ", self.steps, now / 1_000_000, now % 1_000_000);
        words(&mut line);
        _ = write!(line, " #{:08x}", self.hash.finish() as u32);
        if let Some(file) = &mut self.file {
            _ = writeln!(file, "{line}");
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Over all steps so far.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The last lines.
    pub fn last(&self) -> impl Iterator<Item = &str> {
        self.last.iter().map(String::as_str)
    }
}
