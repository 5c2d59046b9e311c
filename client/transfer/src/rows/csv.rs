//! CSV (RFC 4180): quoted where needed, any bytes inside. One column holds the keys, one the values.

use std::io::{self, Read, Write};

use coppice_client::Value;
use csv_core::ReadRecordResult;

use super::{Row, RowError, Rows, TextOptions, checked};
use crate::text::Coding;

/// Most bytes of one record: both longest fields in hex, and other columns. A quote that is never closed ends here.
const RECORD_BYTES_MAX: usize = 8 << 20;
/// Most columns.
const COLUMNS_MAX: usize = 4_096;
/// Bytes that are read at a time.
const INPUT_BYTES: usize = 64 << 10;

/// Rows of a CSV file.
pub struct CsvRows<R> {
    input: R,
    /// What was read of the input, and how much of it was parsed.
    buffer: Vec<u8>,
    parsed: usize,
    parser: csv_core::Reader,
    /// The fields of the record, one behind the other, and where each ends.
    fields: Vec<u8>,
    ends: Vec<usize>,
    /// How many there are.
    count: usize,
    coding: Coding,
    columns: (usize, usize),
}

impl<R: Read> CsvRows<R> {
    /// Reads the header, if there is one, and finds the columns.
    ///
    /// # Errors
    /// There are no such columns.
    pub fn new(input: R, options: &TextOptions) -> Result<CsvRows<R>, RowError> {
        let parser = csv_core::ReaderBuilder::new().delimiter(options.delimiter).build();
        let (fields, ends) = (vec![0; 4_096], vec![0; 16]);
        let (coding, columns) = (options.coding, (0, 1));
        let mut rows =
            CsvRows { input, buffer: Vec::new(), parsed: 0, parser, fields, ends, count: 0, coding, columns };
        rows.columns = if options.header { rows.named(options)? } else { numbered(options)? };
        Ok(rows)
    }

    /// Reads the next record; `false` at the end.
    fn read(&mut self) -> Result<bool, RowError> {
        let (mut bytes, mut ended, first_line) = (0, false, self.parser.line());
        self.count = 0;
        loop {
            if self.parsed == self.buffer.len() && !ended {
                self.refill()?;
                ended = self.buffer.is_empty();
                if ended {
                    // A line break ends the last record, or stands in a quote. The parser takes an end for the quote.
                    self.buffer.push(b'\n');
                }
            }
            let input = &self.buffer[self.parsed..];
            let (found, read, written, fields) =
                self.parser.read_record(input, &mut self.fields[bytes..], &mut self.ends[self.count..]);
            self.parsed += read;
            bytes += written;
            self.count += fields;
            if ended && written > 0 {
                return Err(RowError::line(first_line, "the file ends inside of a quote: it is cut off".to_owned()));
            }
            let too_much = |what: String| RowError::line(self.parser.line(), what);
            match found {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => return Ok(true),
                ReadRecordResult::End => return Ok(false),
                ReadRecordResult::OutputFull if self.fields.len() < RECORD_BYTES_MAX => {
                    self.fields.resize(self.fields.len() * 2, 0);
                }
                ReadRecordResult::OutputFull => {
                    let what = format!("a record of more than {RECORD_BYTES_MAX} bytes: is a quote never closed?");
                    return Err(too_much(what));
                }
                ReadRecordResult::OutputEndsFull if self.ends.len() < COLUMNS_MAX => {
                    self.ends.resize(self.ends.len() * 2, 0);
                }
                ReadRecordResult::OutputEndsFull => {
                    return Err(too_much(format!("a record of more than {COLUMNS_MAX} columns")));
                }
            }
        }
    }

    fn refill(&mut self) -> Result<(), RowError> {
        self.buffer.resize(INPUT_BYTES, 0);
        let read = loop {
            match self.input.read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| RowError::line(self.parser.line(), error.to_string()))?,
            }
        };
        self.buffer.truncate(read);
        self.parsed = 0;
        Ok(())
    }

    /// A field of the record.
    fn get(&self, column: usize) -> Option<&[u8]> {
        let ends = &self.ends[..self.count];
        let begin = if column == 0 { 0 } else { *ends.get(column - 1)? };
        self.fields.get(begin..*ends.get(column)?)
    }

    fn named(&mut self, options: &TextOptions) -> Result<(usize, usize), RowError> {
        if !self.read()? {
            // An empty file has no rows.
            return Ok((0, 1));
        }
        let place = |name: &str| {
            let mut fields = (0..self.count).filter_map(|column| self.get(column));
            fields.position(|field| field.trim_ascii() == name.as_bytes()).ok_or_else(|| {
                let fields = (0..self.count).filter_map(|column| self.get(column));
                let columns: Vec<_> = fields.map(|field| Coding::Plain.show(field)).collect();
                RowError::line(1, format!("no column is named `{name}`; the columns are {}", columns.join(", ")))
            })
        };
        Ok((place(&options.key)?, place(&options.value)?))
    }

    fn field(&self, column: usize, line: u64) -> Result<Value, RowError> {
        let field = self.get(column).ok_or_else(|| {
            let (has, s, wants) = (self.count, if self.count == 1 { "" } else { "s" }, column + 1);
            RowError::line(line, format!("it has {has} column{s}, and number {wants} is wanted"))
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
        let line = self.parser.line();
        if !self.read()? {
            return Ok(None);
        }
        let (key, value) = (self.field(self.columns.0, line)?, self.field(self.columns.1, line)?);
        checked(key, value).map(Some).map_err(|what| RowError::line(line, what))
    }
}

/// Writes rows as CSV, with a header if it is wanted.
pub struct CsvWriter<W> {
    out: W,
    coding: Coding,
    delimiter: u8,
}

impl<W: Write> CsvWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// That of `out`.
    pub fn new(out: W, options: &TextOptions) -> io::Result<CsvWriter<W>> {
        let mut writer = CsvWriter { out, coding: options.coding, delimiter: options.delimiter };
        if options.header {
            writer.record(options.key.as_bytes(), options.value.as_bytes())?;
        }
        Ok(writer)
    }

    /// Writes a row.
    ///
    /// # Errors
    /// That of the output.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.coding {
            Coding::Plain => self.record(key, value),
            coding => self.record(coding.show(key).as_bytes(), coding.show(value).as_bytes()),
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.field(key)?;
        self.out.write_all(&[self.delimiter])?;
        self.field(value)?;
        self.out.write_all(b"\n")
    }

    fn field(&mut self, field: &[u8]) -> io::Result<()> {
        if !field.iter().any(|byte| [b'"', b'\r', b'\n', self.delimiter].contains(byte)) {
            return self.out.write_all(field);
        }
        let quoted = field.split(|byte| *byte == b'"').collect::<Vec<_>>().join(&b"\"\""[..]);
        self.out.write_all(b"\"")?;
        self.out.write_all(&quoted)?;
        self.out.write_all(b"\"")
    }

    /// Ends the file.
    pub fn finish(self) -> W {
        self.out
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
        assert_eq!(error, Err("line 3: it has 1 column, and number 2 is wanted".to_owned()));
    }

    #[test]
    fn a_file_that_ends_inside_of_a_quote_is_cut_off() {
        let options = TextOptions::default();
        for (text, line) in
            [("key,value\na,1\nb,\"x", 3), ("key,value\n\"b\n", 2), ("key,value\na,\"", 2), ("\"key", 1)]
        {
            let error = format!("line {line}: the file ends inside of a quote: it is cut off");
            assert_eq!(read(text.as_bytes(), &options), Err(error), "{text}");
        }
        for (text, value) in
            [("\"x\"", "x"), ("\"\"", ""), ("\"x\"\"\"", "x\""), ("x\"y", "x\"y"), ("x\r\n", "x"), ("", "")]
        {
            assert_eq!(read(format!("key,value\na,{text}").as_bytes(), &options), pairs(&[("a", value)]), "{text}");
        }
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
            let text = writer.finish();
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
