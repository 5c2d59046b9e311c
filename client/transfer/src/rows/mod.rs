//! The formats of `import` and `export`: rows of a key and a value, one after the other, in bounded memory.

pub mod bbolt;
pub mod bin;
pub mod csv;
pub mod etcd;
pub mod jsonl;
mod lzf;
pub mod rdb;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coppice_client::Value;
use coppice_client::wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use serde::Serialize;

/// A key and its value.
pub type Row = (Value, Value);

/// Why there is no row, and where.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {what}")]
pub struct RowError {
    /// A line, or an offset.
    pub place: String,
    /// What was found.
    pub what: String,
}

impl RowError {
    fn new(place: impl Into<String>, what: impl Into<String>) -> RowError {
        RowError { place: place.into(), what: what.into() }
    }

    fn line(number: u64, what: impl Into<String>) -> RowError {
        RowError::new(format!("line {number}"), what)
    }

    fn byte(offset: u64, what: impl Into<String>) -> RowError {
        RowError::new(format!("byte {offset}"), what)
    }
}

/// Rows of a file.
pub trait Rows {
    /// The next one, in the order of the file; where a key comes again, the later row counts.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    fn next(&mut self) -> Result<Option<Row>, RowError>;

    /// What was left out, to be told at the end.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What was refused: an import that leaves it out has not done all that it was asked for.
    fn refused(&self) -> Option<String> {
        None
    }
}

/// How rows are written as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextOptions {
    /// How keys and values are written.
    pub coding: crate::text::Coding,
    /// What stands between the fields of a CSV file.
    pub delimiter: u8,
    /// Whether the first line of a CSV file names its columns.
    pub header: bool,
    /// The column of keys: its name, or its number from 1 where there is no header.
    pub key: String,
    /// The column of values.
    pub value: String,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        let (key, value) = ("key".to_owned(), "value".to_owned());
        TextOptions { coding: Default::default(), delimiter: b',', header: true, key, value }
    }
}

/// Refuses keys and values that no node takes.
fn checked(key: Value, value: Value) -> Result<Row, String> {
    for (name, found, most) in [("key", key.len(), KEY_BYTES_MAX), ("value", value.len(), VALUE_BYTES_MAX)] {
        if found > most {
            return Err(format!("a {name} of {found} bytes is above the limit of {most}"));
        }
    }
    Ok((key, value))
}

/// Counts the bytes that are read, for whoever shows how far it is.
#[derive(Debug)]
pub struct Counted<R> {
    input: R,
    read: Arc<AtomicU64>,
}

impl<R> Counted<R> {
    /// Counts in `read`.
    pub fn new(input: R, read: Arc<AtomicU64>) -> Counted<R> {
        Counted { input, read }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
