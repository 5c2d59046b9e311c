//! An export: the pairs of a range, as they are at one moment, into a file of rows.

use std::io::{self, Write};

use coppice_client::{Client, Range, RangeStream};

use crate::rows::TextOptions;
use crate::rows::bin::BinWriter;
use crate::rows::csv::CsvWriter;
use crate::rows::jsonl;
use crate::text::Coding;

/// The formats that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Csv,
    /// JSON lines.
    Jsonl,
    /// Coppice's own.
    Bin,
}

/// Why an export ended.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The cluster did not answer: an export is one moment, so it cannot go on.
    #[error("{0}")]
    Client(#[from] coppice_client::Error),
    /// The output takes no more.
    #[error("{0}")]
    Output(#[from] io::Error),
}

/// Writes rows in one of the formats.
enum Writer<W: Write> {
    Csv(CsvWriter<W>),
    Jsonl(W, Coding),
    Bin(BinWriter<W>),
}

impl<W: Write> Writer<W> {
    fn new(out: W, format: Format, options: &TextOptions) -> io::Result<Writer<W>> {
        Ok(match format {
            Format::Csv => Writer::Csv(CsvWriter::new(out, options)?),
            Format::Jsonl => Writer::Jsonl(out, options.coding),
            Format::Bin => Writer::Bin(BinWriter::new(out)?),
        })
    }

    fn row(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Writer::Csv(writer) => writer.row(key, value),
            Writer::Jsonl(out, coding) => jsonl::write_row(out, *coding, key, value),
            Writer::Bin(writer) => writer.row(key, value),
        }
    }

    fn finish(self) -> io::Result<W> {
        match self {
            Writer::Csv(writer) => Ok(writer.finish()),
            Writer::Jsonl(out, _) => Ok(out),
            Writer::Bin(writer) => writer.finish(),
        }
    }
}

/// Writes the pairs of a range; `told` hears how many so far. The stream says of which moment they are.
///
/// # Errors
/// See [`ExportError`].
pub async fn export(
    client: &Client,
    range: Range,
    out: impl Write,
    (format, options): (Format, &TextOptions),
    mut told: impl FnMut(u64),
) -> Result<(RangeStream, u64), ExportError> {
    let mut stream = client.range(range).await?;
    let mut writer = Writer::new(out, format, options)?;
    let mut rows = 0;
    while let Some((key, value)) = stream.next().await? {
        writer.row(key, value)?;
        rows += 1;
        if rows % 4_096 == 0 {
            told(rows);
        }
    }
    writer.finish()?.flush()?;
    told(rows);
    Ok((stream, rows))
}
