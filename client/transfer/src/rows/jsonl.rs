//! JSON lines, as `scan -o jsonl` prints them: an object a line with `key` or `key_b64` or `key_hex`, and so for the
//! value.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, Write};

use coppice_client::Value;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Map;

use super::{Row, RowError, Rows, TextOptions, checked};
use crate::text::{Coding, from_base64, from_hex};

/// Longest line: both longest fields, each byte escaped.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// Rows of a file of JSON lines.
pub struct JsonlRows<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    coding: Coding,
}

/// What stands in a field.
enum Field<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Field<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Field<'a>, D::Error> {
        struct Found;
        impl<'de> Visitor<'de> for Found {
            type Value = Field<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a number with --int")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Field<'de>, E> {
                Ok(Field::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Field<'de>, E> {
                Ok(Field::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Field<'de>, E> {
                Ok(Field::Number(number))
            }
        }
        deserializer.deserialize_any(Found)
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    key: Option<Field<'a>>,
    key_b64: Option<String>,
    key_hex: Option<String>,
    #[serde(borrow)]
    value: Option<Field<'a>>,
    value_b64: Option<String>,
    value_hex: Option<String>,
}

impl<R: BufRead> JsonlRows<R> {
    /// Of a file.
    pub fn new(input: R, options: &TextOptions) -> JsonlRows<R> {
        JsonlRows { input, line: Vec::new(), number: 0, coding: options.coding }
    }

    fn read(&mut self) -> Result<bool, RowError> {
        loop {
            self.line.clear();
            self.number += 1;
            let mut line = io::Read::take(&mut self.input, LINE_BYTES_MAX + 1);
            let count = line
                .read_until(b'\n', &mut self.line)
                .map_err(|error| RowError::line(self.number, error.to_string()))?;
            if count as u64 > LINE_BYTES_MAX {
                return Err(RowError::line(self.number, format!("it is longer than {LINE_BYTES_MAX} bytes")));
            }
            if count == 0 || !self.line.trim_ascii().is_empty() {
                return Ok(count > 0);
            }
        }
    }
}

/// The bytes of a key or a value that is written in one of three ways.
fn bytes(
    name: &str,
    (plain, base64, hex): (Option<Field<'_>>, Option<String>, Option<String>),
    coding: Coding,
) -> Result<Value, String> {
    match (plain, base64, hex) {
        (Some(Field::Text(text)), None, None) => match coding {
            Coding::Plain => Ok(Value::from(text.as_bytes())),
            coding => {
                coding.decode(text.as_bytes()).map(Value::from).map_err(|want| format!("`{name}` must be {want}"))
            }
        },
        (Some(Field::Number(number)), None, None) if coding == Coding::Int => Ok(number.to_be_bytes().into()),
        (Some(Field::Number(_)), None, None) => Err(format!("`{name}` is a number; with --int it is one of 8 bytes")),
        (None, Some(text), None) => {
            from_base64(text.as_bytes()).map(Value::from).ok_or_else(|| format!("`{name}_b64` is no base64"))
        }
        (None, None, Some(text)) => {
            from_hex(text.as_bytes()).map(Value::from).ok_or_else(|| format!("`{name}_hex` is no hex"))
        }
        (None, None, None) => Err(format!("it has no `{name}`, `{name}_b64` or `{name}_hex`")),
        _ => Err(format!("it has `{name}` in two ways")),
    }
}

impl<R: BufRead> Rows for JsonlRows<R> {
    fn next(&mut self) -> Result<Option<Row>, RowError> {
        if !self.read()? {
            return Ok(None);
        }
        let wrong = |what: String| RowError::line(self.number, what);
        let line: Line<'_> = serde_json::from_slice(&self.line).map_err(|error| wrong(plain(&error)))?;
        let key = bytes("key", (line.key, line.key_b64, line.key_hex), self.coding).map_err(wrong)?;
        let value = bytes("value", (line.value, line.value_b64, line.value_hex), self.coding).map_err(wrong)?;
        checked(key, value).map(Some).map_err(wrong)
    }
}

/// The parser's words without its place: each line is a text of its own.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.find(" at line ").unwrap_or(text.len());
    let begin = if error.is_data() { "" } else { "no json: " };
    format!("{begin}{} at column {}", &text[..end], error.column())
}

/// Writes a row as a line.
///
/// # Errors
/// That of `out`.
pub fn write_row(out: &mut impl Write, coding: Coding, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut fields = Map::new();
    coding.put_field(&mut fields, "key", Some(key));
    coding.put_field(&mut fields, "value", Some(value));
    serde_json::to_writer(&mut *out, &fields)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn read(text: &[u8], coding: Coding) -> Result<Pairs, String> {
        let mut rows = JsonlRows::new(text, &TextOptions { coding, ..TextOptions::default() });
        let mut found = Vec::new();
        while let Some((key, value)) = rows.next().map_err(|error| error.to_string())? {
            found.push((key.to_vec(), value.to_vec()));
        }
        Ok(found)
    }

    #[test]
    fn fields_are_text_numbers_hex_or_base64() {
        let text = br#"{"v":1,"key":"a","value":"1"}

{"key_hex":"00ff","value_b64":"/wB4","more":[1,{}]}"#;
        let rows = vec![(b"a".to_vec(), b"1".to_vec()), (vec![0, 255], vec![255, 0, b'x'])];
        assert_eq!(read(text, Coding::Plain), Ok(rows));
        let number = 7u64.to_be_bytes().to_vec();
        assert_eq!(read(br#"{"key":7,"value":"7"}"#, Coding::Int), Ok(vec![(number.clone(), number)]));
        let wrong = |text: &[u8]| read(text, Coding::Plain).expect_err("no row");
        assert_eq!(wrong(br#"{"key":7,"value":"7"}"#), "line 1: `key` is a number; with --int it is one of 8 bytes");
        assert_eq!(wrong(b"{\"key\":\"a\"}\n"), "line 1: it has no `value`, `value_b64` or `value_hex`");
        assert_eq!(wrong(br#"{"key":"a","key_b64":"YQ==","value":""}"#), "line 1: it has `key` in two ways");
        assert_eq!(wrong(b"{\"key\":\"a\",\"value\":\"1\"}\nx"), "line 2: no json: expected value at column 1");
        assert_eq!(wrong(b"none"), "line 1: no json: expected ident at column 2");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            rows in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..12), proptest::collection::vec(any::<u8>(), 0..12)), 0..12),
            hex: bool,
        ) {
            let coding = if hex { Coding::Hex } else { Coding::Plain };
            let mut text = Vec::new();
            for (key, value) in &rows {
                write_row(&mut text, coding, key, value).expect("memory");
            }
            prop_assert_eq!(read(&text, coding), Ok(rows));
        }

        #[test]
        fn no_bytes_make_it_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&text, Coding::Plain);
        }
    }
}
