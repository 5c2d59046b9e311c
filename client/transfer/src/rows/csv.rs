//! CSV (RFC 4180): quoted where needed, any bytes inside. One column holds the keys, one the values.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coppice_client::Value;
use csv::{ByteRecord, QuoteStyle, ReaderBuilder, WriterBuilder};

use super::{Row, RowError, Rows, TextOptions, checked};
use crate::text::Coding;

/// Most bytes of one record: both longest fields, quoted and in hex, and what the reader takes ahead. A quote that is
/// never closed ends here.
const RECORD_BYTES_MAX: u64 = 16 << 20;

/// Rows of a CSV file.
pub struct CsvRows<R> {
    reader: csv::Reader<Bounded<R>>,
    record: ByteRecord,
    coding: Coding,
    columns: (usize, usize),
    left: Arc<AtomicU64>,
}

/// Ends a record that is too long.
struct Bounded<R> {
    input: R,
    left: Arc<AtomicU64>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!(
                "a record of more than {RECORD_BYTES_MAX} bytes: is a quote never closed?"
            )));
        }
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.input.read(&mut buffer[..most])?;
        self.left.store(left - count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: Read> CsvRows<R> {
    /// Reads the header, if there is one, and finds the columns.
    ///
    /// # Errors
    /// There are no such columns.
    pub fn new(input: R, options: &TextOptions) -> Result<CsvRows<R>, RowError> {
        let left = Arc::new(AtomicU64::new(RECORD_BYTES_MAX));
        let input = Bounded { input, left: Arc::clone(&left) };
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).delimiter(options.delimiter).buffer_capacity(1 << 18);
        let reader = builder.from_reader(input);
        let (record, coding) = (ByteRecord::new(), options.coding);
        let mut rows = CsvRows { reader, record, coding, columns: (0, 1), left };
        rows.columns = if options.header { rows.named(options)? } else { numbered(options)? };
        Ok(rows)
    }

    fn named(&mut self, options: &TextOptions) -> Result<(usize, usize), RowError> {
        if !self.read()? {
            // An empty file has no rows.
            return Ok((0, 1));
        }
        let place = |name: &str| {
            self.record.iter().position(|field| field.trim_ascii() == name.as_bytes()).ok_or_else(|| {
                let columns: Vec<_> = self.record.iter().map(|field| Coding::Plain.show(field)).collect();
                RowError::line(1, format!("no column is named `{name}`; the columns are {}", columns.join(", ")))
            })
        };
        Ok((place(&options.key)?, place(&options.value)?))
    }

    fn read(&mut self) -> Result<bool, RowError> {
        self.left.store(RECORD_BYTES_MAX, Ordering::Relaxed);
        let line = self.reader.position().line();
        self.reader.read_byte_record(&mut self.record).map_err(|error| RowError::line(line, error.to_string()))
    }

    fn field(&self, column: usize, line: u64) -> Result<Value, RowError> {
        let field = self.record.get(column).ok_or_else(|| {
            let (has, wants) = (self.record.len(), column + 1);
            RowError::line(line, format!("it has {has} columns, and number {wants} is wanted"))
        })?;
        match self.coding {
            Coding::Plain => Ok(field.into()),
            coding => match coding.decode(field) {
                Ok(bytes) => Ok(bytes.into()),
                Err(expected) => Err(RowError::line(line, format!("column {} must be {expected}", column + 1))),
            },
        }
    }
}

/// Columns that are given by their numbers; without any, the first two.
fn numbered(options: &TextOptions) -> Result<(usize, usize), RowError> {
    let place = |text: &str, name: &str, default: usize| match text.parse::<usize>() {
        Ok(number) if number > 0 => Ok(number - 1),
        _ if text == name => Ok(default),
        _ => Err(RowError::line(1, format!("without a header a column is a number from 1, not `{text}`"))),
    };
    Ok((place(&options.key, "key", 0)?, place(&options.value, "value", 1)?))
}

impl<R: Read> Rows for CsvRows<R> {
    fn next(&mut self) -> Result<Option<Row>, RowError> {
        if !self.read()? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        let (key, value) = (self.field(self.columns.0, line)?, self.field(self.columns.1, line)?);
        checked(key, value).map(Some).map_err(|what| RowError::line(line, what))
    }
}

/// Writes rows as CSV, with a header if it is wanted.
pub struct CsvWriter<W: Write> {
    writer: csv::Writer<W>,
    coding: Coding,
}

impl<W: Write> CsvWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// That of `out`.
    pub fn new(out: W, options: &TextOptions) -> io::Result<CsvWriter<W>> {
        let mut builder = WriterBuilder::new();
        builder.delimiter(options.delimiter).quote_style(QuoteStyle::Necessary).buffer_capacity(1 << 18);
        let mut writer = builder.from_writer(out);
        if options.header {
            writer.write_record([&options.key, &options.value])?;
        }
        Ok(CsvWriter { writer, coding: options.coding })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// That of the output.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.coding {
            Coding::Plain => self.writer.write_record([key, value])?,
            coding => self.writer.write_record([coding.show(key), coding.show(value)])?,
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// That of the output.
    pub fn finish(self) -> io::Result<W> {
        self.writer.into_inner().map_err(csv::IntoInnerError::into_error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8], options: &TextOptions) -> Result<Vec<(String, String)>, String> {
        let mut rows = CsvRows::new(text, options).map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        let show = |value: Value| String::from_utf8_lossy(&value).into_owned();
        while let Some((key, value)) = rows.next().map_err(|error| error.to_string())? {
            found.push((show(key), show(value)));
        }
        Ok(found)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn columns_are_found_by_name_or_number() {
        let options = TextOptions::default();
        assert_eq!(
            read(b"key,value\na,1\n\"b,c\",\"2\n\"\"3\"\"\"\n", &options),
            pairs(&[("a", "1"), ("b,c", "2\n\"3\"")])
        );
        assert_eq!(read(b"id,value,key\n7,1,a\n", &options), pairs(&[("a", "1")]));
        let error = read(b"id,name\n1,a\n", &options);
        assert_eq!(error, Err("line 1: no column is named `key`; the columns are id, name".to_owned()));
        let bare = TextOptions { header: false, ..options.clone() };
        assert_eq!(read(b"a,1\r\nb,2\r\n", &bare), pairs(&[("a", "1"), ("b", "2")]));
        let swapped = TextOptions { key: "2".into(), value: "1".into(), delimiter: b';', ..bare };
        assert_eq!(read(b"a;1\n", &swapped), pairs(&[("1", "a")]));
        assert_eq!(read(b"", &options), pairs(&[]));
        let error = read(b"key,value\na,1\nb\n", &options);
        assert_eq!(error, Err("line 3: it has 1 columns, and number 2 is wanted".to_owned()));
    }

    #[test]
    fn a_quote_that_is_never_closed_is_bounded() {
        let mut text = b"key,value\na,\"".to_vec();
        text.resize(17 << 20, b'x');
        let error = read(&text, &TextOptions::default()).expect_err("a record without end");
        assert!(error.contains("is a quote never closed?"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            rows in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..12), proptest::collection::vec(any::<u8>(), 0..12)), 0..12),
            header: bool, hex: bool,
        ) {
            let coding = if hex { Coding::Hex } else { Coding::Plain };
            let options = TextOptions { header, coding, ..TextOptions::default() };
            let mut writer = CsvWriter::new(Vec::new(), &options).expect("memory");
            for (key, value) in &rows {
                writer.row(key, value).expect("memory");
            }
            let text = writer.finish().expect("memory");
            let mut reader = CsvRows::new(&text[..], &options).expect("our own file");
            for (key, value) in &rows {
                let (read_key, read_value) = reader.next().expect("our own file").expect("a row");
                prop_assert_eq!((&read_key[..], &read_value[..]), (&key[..], &value[..]));
            }
            prop_assert!(reader.next().expect("the end").is_none());
        }

        #[test]
        fn no_bytes_make_it_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&text, &TextOptions { header: false, ..TextOptions::default() });
        }
    }
}
