//! Dump files of Redis (RDB), versions 1 to 12: keys of the type string of one database. Expiry times are passed over
//! and counted. Keys of other types are passed over too, and refused by name and count at the end.

use std::collections::BTreeMap;
use std::io::{self, Read};

use coppice_client::Value;
use coppice_client::wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::lzf;
use super::{Row, RowError, Rows};
use crate::text::Coding;

const VERSIONS: std::ops::RangeInclusive<u32> = 1..=12;
/// From this version on the file ends with a checksum.
const CHECKSUM_SINCE: u32 = 5;
/// Longest string that is kept: no key or value may be longer.
const STRING_BYTES_MAX: u64 = (VALUE_BYTES_MAX + KEY_BYTES_MAX) as u64;
/// What is passed over is read in pieces of this size.
const SKIP_BYTES: usize = 8 << 10;

// Opcodes.
const SLOT_INFO: u8 = 244;
const FUNCTION: u8 = 245;
const FUNCTION_OLD: u8 = 246;
const MODULE_AUX: u8 = 247;
const IDLE: u8 = 248;
const FREQUENCY: u8 = 249;
const AUX: u8 = 250;
const RESIZE: u8 = 251;
const EXPIRE_MS: u8 = 252;
const EXPIRE_S: u8 = 253;
const DATABASE: u8 = 254;
const END: u8 = 255;

/// Rows of a dump file.
pub struct RdbRows<R> {
    input: Summed<R>,
    version: u32,
    /// The database whose keys are wanted, and the one that is being read.
    wanted: u64,
    database: u64,
    ended: bool,
    expires: bool,
    expiring: u64,
    elsewhere: u64,
    others: BTreeMap<&'static str, (u64, String)>,
}

/// Reads, counts, and sums up what was read.
struct Summed<R> {
    input: R,
    offset: u64,
    crc: u64,
}

impl<R: Read> Summed<R> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), RowError> {
        let begin = self.offset;
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => RowError::byte(begin, "the file is cut off"),
            _ => RowError::byte(begin, error.to_string()),
        })?;
        self.offset += buffer.len() as u64;
        self.crc = crc64(self.crc, buffer);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RowError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, RowError> {
        Ok(self.array::<1>()?[0])
    }

    fn wrong(&self, what: impl Into<String>) -> RowError {
        RowError::byte(self.offset, what)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), RowError> {
        let mut buffer = [0; SKIP_BYTES];
        let mut left = bytes;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(SKIP_BYTES).min(SKIP_BYTES);
            self.fill(&mut buffer[..piece])?;
            left -= piece as u64;
        }
        Ok(())
    }

    /// A length, or the number of a special encoding.
    fn length_or_encoding(&mut self) -> Result<Result<u64, u8>, RowError> {
        let first = self.byte()?;
        Ok(Ok(match first >> 6 {
            0 => u64::from(first),
            1 => u64::from(first & 63) << 8 | u64::from(self.byte()?),
            3 => return Ok(Err(first & 63)),
            _ if first == 0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            _ if first == 0x81 => u64::from_be_bytes(self.array()?),
            _ => return Err(self.wrong(format!("a length cannot begin with {first:#04x}"))),
        }))
    }

    fn length(&mut self) -> Result<u64, RowError> {
        self.length_or_encoding()?.map_err(|code| self.wrong(format!("an encoding {code} where a length is wanted")))
    }

    /// A string in any of its encodings.
    fn string(&mut self) -> Result<Vec<u8>, RowError> {
        let code = match self.length_or_encoding()? {
            Ok(length) => {
                self.check(length)?;
                let mut bytes = vec![0; length as usize];
                self.fill(&mut bytes)?;
                return Ok(bytes);
            }
            Err(code) => code,
        };
        Ok(match code {
            0 => i8::from_le_bytes(self.array()?).to_string().into_bytes(),
            1 => i16::from_le_bytes(self.array()?).to_string().into_bytes(),
            2 => i32::from_le_bytes(self.array()?).to_string().into_bytes(),
            3 => {
                let (packed, size) = (self.length()?, self.length()?);
                self.check(packed)?;
                self.check(size)?;
                let mut bytes = vec![0; packed as usize];
                self.fill(&mut bytes)?;
                lzf::decompress(&bytes, size as usize).ok_or_else(|| self.wrong("a compressed string is damaged"))?
            }
            _ => return Err(self.wrong(format!("a string cannot have the encoding {code}"))),
        })
    }

    fn check(&self, length: u64) -> Result<(), RowError> {
        if length > STRING_BYTES_MAX {
            return Err(self.wrong(format!("a string of {length} bytes is above the limit of {VALUE_BYTES_MAX}")));
        }
        Ok(())
    }

    fn skip_string(&mut self) -> Result<(), RowError> {
        match self.length_or_encoding()? {
            Ok(length) => self.skip(length),
            Err(code @ 0..=2) => self.skip(1 << code),
            Err(3) => {
                let packed = self.length()?;
                self.length()?;
                self.skip(packed)
            }
            Err(code) => Err(self.wrong(format!("a string cannot have the encoding {code}"))),
        }
    }

    fn skip_strings(&mut self, count: u64) -> Result<(), RowError> {
        (0..count).try_for_each(|_| self.skip_string())
    }

    fn skip_lengths(&mut self, count: u64) -> Result<(), RowError> {
        (0..count).try_for_each(|_| self.length().map(|_| ()))
    }

    /// A number as older dumps write it: as text, or one byte for what is no number.
    fn skip_old_number(&mut self) -> Result<(), RowError> {
        match self.byte()? {
            253..=255 => Ok(()),
            length => self.skip(u64::from(length)),
        }
    }

    /// What a module has written, up to its end.
    fn skip_module(&mut self) -> Result<(), RowError> {
        loop {
            match self.length()? {
                0 => return Ok(()),
                1 | 2 => self.skip_lengths(1)?,
                3 => self.skip(4)?,
                4 => self.skip(8)?,
                5 => self.skip_string()?,
                code => return Err(self.wrong(format!("a module cannot have written a {code}"))),
            }
        }
    }

    fn skip_stream(&mut self, kind: u8) -> Result<(), RowError> {
        let nodes = self.length()?;
        (0..nodes).try_for_each(|_| self.skip_strings(2))?;
        self.skip_lengths(if kind == STREAM_1 { 3 } else { 8 })?;
        for _ in 0..self.length()? {
            self.skip_string()?;
            self.skip_lengths(if kind == STREAM_1 { 2 } else { 3 })?;
            for _ in 0..self.length()? {
                self.skip(16 + 8)?;
                self.skip_lengths(1)?;
            }
            for _ in 0..self.length()? {
                self.skip_string()?;
                self.skip(if kind == STREAM_3 { 16 } else { 8 })?;
                let pending = self.length()?;
                (0..pending).try_for_each(|_| self.skip(16))?;
            }
        }
        Ok(())
    }

    /// Passes over a value that is no string.
    fn skip_value(&mut self, kind: u8) -> Result<(), RowError> {
        match kind {
            LIST | SET | QUICKLIST => {
                let count = self.length()?;
                self.skip_strings(count)
            }
            ZSET_OLD | ZSET => {
                let count = self.length()?;
                (0..count).try_for_each(|_| {
                    self.skip_string()?;
                    if kind == ZSET { self.skip(8) } else { self.skip_old_number() }
                })
            }
            HASH => {
                let count = self.length()?;
                (0..count).try_for_each(|_| self.skip_strings(2))
            }
            MODULE => {
                self.skip_lengths(1)?;
                self.skip_module()
            }
            9..=13 | 16 | 17 | 20 => self.skip_string(),
            QUICKLIST_2 => {
                let count = self.length()?;
                (0..count).try_for_each(|_| {
                    self.skip_lengths(1)?;
                    self.skip_string()
                })
            }
            STREAM_1 | STREAM_2 | STREAM_3 => self.skip_stream(kind),
            HASH_EXPIRING => {
                self.skip(8)?;
                let count = self.length()?;
                (0..count).try_for_each(|_| {
                    self.skip_lengths(1)?;
                    self.skip_strings(2)
                })
            }
            HASH_EXPIRING_PACKED => {
                self.skip(8)?;
                self.skip_string()
            }
            _ => Err(self.wrong(format!("a value of the type {kind}, which this program does not know"))),
        }
    }
}

// Types of values.
const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const ZSET_OLD: u8 = 3;
const HASH: u8 = 4;
const ZSET: u8 = 5;
const MODULE: u8 = 7;
const QUICKLIST: u8 = 14;
const STREAM_1: u8 = 15;
const QUICKLIST_2: u8 = 18;
const STREAM_2: u8 = 19;
const STREAM_3: u8 = 21;
const HASH_EXPIRING: u8 = 24;
const HASH_EXPIRING_PACKED: u8 = 25;

fn name_of(kind: u8) -> &'static str {
    match kind {
        LIST | 10 | QUICKLIST | QUICKLIST_2 => "list",
        SET | 11 | 20 => "set",
        ZSET_OLD | ZSET | 12 | 17 => "sorted set",
        HASH | 9 | 13 | 16 | HASH_EXPIRING | HASH_EXPIRING_PACKED => "hash",
        STREAM_1 | STREAM_2 | STREAM_3 => "stream",
        _ => "module type",
    }
}

impl<R: Read> RdbRows<R> {
    /// Reads the beginning of a file, of which the keys of one database are wanted.
    ///
    /// # Errors
    /// It is no dump, or of a version that is not known.
    pub fn new(input: R, database: u64) -> Result<RdbRows<R>, RowError> {
        let mut input = Summed { input, offset: 0, crc: 0 };
        let no_dump = || RowError::byte(0, "this is no dump file of Redis (dump.rdb)");
        let magic: [u8; 9] = input.array().map_err(|_| no_dump())?;
        let digits = magic.strip_prefix(b"REDIS").ok_or_else(no_dump)?;
        let version = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or_else(no_dump)?;
        if !VERSIONS.contains(&version) {
            let what = format!("a dump of version {version}; this program reads 1 to {}", VERSIONS.end());
            return Err(RowError::byte(5, what));
        }
        let others = BTreeMap::new();
        let (wanted, database) = (database, 0);
        Ok(RdbRows {
            input,
            version,
            wanted,
            database,
            ended: false,
            expires: false,
            expiring: 0,
            elsewhere: 0,
            others,
        })
    }

    /// What stands between keys; `false`: it is the type of a value.
    fn passed_over(&mut self, code: u8) -> Result<bool, RowError> {
        let input = &mut self.input;
        match code {
            SLOT_INFO => input.skip_lengths(3)?,
            FUNCTION => input.skip_string()?,
            FUNCTION_OLD => return Err(input.wrong("functions in the format of a preview of Redis 7")),
            MODULE_AUX => {
                input.skip_lengths(3)?;
                input.skip_module()?;
            }
            IDLE => input.skip_lengths(1)?,
            FREQUENCY => input.skip(1)?,
            AUX => input.skip_strings(2)?,
            RESIZE => input.skip_lengths(2)?,
            EXPIRE_MS | EXPIRE_S => {
                input.skip(if code == EXPIRE_MS { 8 } else { 4 })?;
                self.expires = true;
            }
            DATABASE => self.database = input.length()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn end(&mut self) -> Result<(), RowError> {
        self.ended = true;
        if self.version < CHECKSUM_SINCE {
            return Ok(());
        }
        let computed = self.input.crc;
        let written = u64::from_le_bytes(self.input.array()?);
        // Zero: Redis was told to compute none.
        if written != 0 && written != computed {
            return Err(self.input.wrong("the checksum of the file differs"));
        }
        Ok(())
    }
}

impl<R: Read> Rows for RdbRows<R> {
    fn next(&mut self) -> Result<Option<Row>, RowError> {
        while !self.ended {
            let code = self.input.byte()?;
            if code == END {
                self.end()?;
                break;
            }
            if self.passed_over(code)? {
                continue;
            }
            let expires = std::mem::take(&mut self.expires);
            let here = self.database == self.wanted;
            let key = self.input.string()?;
            if !here {
                self.elsewhere += 1;
            }
            if code != STRING {
                self.input.skip_value(code)?;
                if here {
                    let first = || (0, Coding::Plain.show(&key));
                    self.others.entry(name_of(code)).or_insert_with(first).0 += 1;
                }
                continue;
            }
            if !here {
                self.input.skip_string()?;
                continue;
            }
            let value = self.input.string()?;
            self.expiring += u64::from(expires);
            let shown = Coding::Plain.show(&key);
            return super::checked(Value::from(key), Value::from(value))
                .map(Some)
                .map_err(|what| self.input.wrong(format!("{what}; the key is {shown}")));
        }
        Ok(None)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.expiring > 0 {
            notes.push(format!("keys with an expiry time: {}; it is not imported, they stay", self.expiring));
        }
        if self.elsewhere > 0 {
            notes
                .push(format!("keys in other databases than {}: {}; --db N imports them", self.wanted, self.elsewhere));
        }
        notes
    }

    fn refused(&self) -> Option<String> {
        let others = self.others.iter().map(|(name, (count, first))| format!("{count} of type {name} (as {first})"));
        let others: Vec<String> = others.collect();
        (!others.is_empty()).then(|| format!("keys that are no strings were not imported: {}", others.join(", ")))
    }
}

/// The checksum of dump files: CRC-64 with the polynomial of Jones, reflected, begun with 0.
fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(crc, |crc, byte| CRC64[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

static CRC64: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A dump with these bytes between its beginning and its end.
    fn dump(version: u32, body: &[u8]) -> Vec<u8> {
        let mut file = format!("REDIS{version:04}").into_bytes();
        file.extend(body);
        file.push(END);
        if version >= CHECKSUM_SINCE {
            let crc = crc64(0, &file);
            file.extend(crc.to_le_bytes());
        }
        file
    }

    type Texts = Vec<(String, String)>;

    fn read(file: &[u8]) -> Result<(Texts, Vec<String>, Option<String>), String> {
        let mut rows = RdbRows::new(file, 0).map_err(|error| error.to_string())?;
        let mut found = Texts::new();
        while let Some((key, value)) = rows.next().map_err(|error| error.to_string())? {
            found.push([key, value].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).into());
        }
        Ok((found, rows.notes(), rows.refused()))
    }

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = vec![text.len() as u8];
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn strings_are_read_in_all_their_encodings() {
        let mut body = [&[AUX][..], &text("redis-ver"), &text("7.4.0"), &[DATABASE, 0, RESIZE, 6, 1]].concat();
        body.extend([&[STRING][..], &text("raw"), &text("value")].concat());
        body.extend([&[STRING][..], &text("int8"), &[0xc0, 0x85]].concat());
        body.extend([&[STRING][..], &text("int16"), &[0xc1, 0x39, 0x30]].concat());
        body.extend([&[EXPIRE_MS][..], &[1; 8], &[STRING], &text("int32"), &[0xc2, 0, 0, 0, 0x80]].concat());
        body.extend([&[IDLE, 5, FREQUENCY, 9, STRING][..], &text("lzf"), &[0xc3, 4, 9, 0, b'a', 6 << 5, 0]].concat());
        body.extend([&[STRING, 0x40, 3][..], b"far", &[0x80, 0, 0, 0, 1, b'x']].concat());
        body.extend([&[SLOT_INFO, 1, 2, 3, DATABASE, 3, STRING][..], &text("elsewhere"), &text("x")].concat());
        let wanted: Vec<(String, String)> = [
            ("raw", "value"),
            ("int8", "-123"),
            ("int16", "12345"),
            ("int32", "-2147483648"),
            ("lzf", "aaaaaaaaa"),
            ("far", "x"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        for version in [4, 9, 12] {
            let (rows, notes, refused) = read(&dump(version, &body)).expect("a dump");
            assert_eq!((rows, refused), (wanted.clone(), None));
            assert_eq!(notes.len(), 2, "{notes:?}");
        }
        let mut damaged = dump(9, &body);
        let at = damaged.len() - 20;
        damaged[at] ^= 1;
        assert!(read(&damaged).is_err());
        assert!(read(&dump(13, &body)).expect_err("unknown").contains("version 13"));
    }

    #[test]
    fn other_types_are_passed_over_and_refused_by_name() {
        let mut body = Vec::new();
        let mut add = |kind: u8, key: &str, value: &[u8]| body.extend([&[kind][..], &text(key), value].concat());
        add(LIST, "l", &[&[2][..], &text("a"), &text("b")].concat());
        add(ZSET, "z", &[&[1][..], &text("a"), &[0; 8]].concat());
        add(ZSET_OLD, "zo", &[&[2][..], &text("a"), &[1, b'7'], &text("b"), &[254]].concat());
        add(HASH, "h", &[&[1][..], &text("f"), &text("v")].concat());
        add(HASH_EXPIRING, "hx", &[&[0; 8][..], &[1, 0], &text("f"), &text("v")].concat());
        add(20, "s", &text("packed"));
        add(QUICKLIST_2, "q", &[&[1, 2][..], &text("packed")].concat());
        add(MODULE, "m", &[&[0x81][..], &[7; 8], &[2, 9, 5], &text("x"), &[4], &[0; 8], &[0]].concat());
        let group = [&text("g")[..], &[1, 2, 3, 1], &[0; 24], &[4, 1], &text("c"), &[0; 16], &[1], &[0; 16]].concat();
        add(STREAM_3, "st", &[&[1][..], &text("id"), &text("packed"), &[1, 2, 3, 4, 5, 6, 7, 8, 1], &group].concat());
        add(STRING, "k", &text("v"));
        let (rows, _, refused) = read(&dump(12, &body)).expect("a dump");
        assert_eq!(rows, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(
            refused.as_deref(),
            Some(
                "keys that are no strings were not imported: 2 of type hash (as h), 2 of type list (as l), 1 of type \
                 module type (as m), 1 of type set (as s), 2 of type sorted set (as z), 1 of type stream (as st)"
            )
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_take_memory(
            body in proptest::collection::vec(any::<u8>(), 0..300), version in 1u32..13,
        ) {
            let _ = read(&dump(version, &body));
            let _ = read(&body);
        }

        #[test]
        fn damage_is_found(at: usize, flip in 1u8..) {
            let body = [&[STRING][..], &text("key"), &text("value"), &[STRING], &text("other"), &[0xc0, 5]].concat();
            let mut file = dump(9, &body);
            // Not the version: the oldest have no checksum.
            let at = 9 + at % (file.len() - 9 - 8);
            file[at] ^= flip;
            prop_assert!(read(&file).is_err());
        }
    }
}
