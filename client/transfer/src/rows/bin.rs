//! Coppice's own format: a file of chunks with an end that counts them.

use std::io::{self, Read, Write};

use coppice_btree::Digest;
use coppice_client::Value;

use super::{Row, RowError, Rows};
use crate::chunk::{self, Cutter, FILE_HEADER_BYTES, Record};

/// Rows of such a file.
pub struct BinRows<R> {
    input: R,
    rows: std::vec::IntoIter<Row>,
    pairs: u64,
    digest: Digest,
    offset: u64,
    ended: bool,
}

impl<R: Read> BinRows<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no such file.
    pub fn new(mut input: R) -> Result<BinRows<R>, RowError> {
        let mut header = [0; FILE_HEADER_BYTES as usize];
        let read = chunk::fill(&mut input, &mut header).map_err(|error| RowError::byte(0, error.to_string()))?;
        match chunk::format_of(&header[..read]) {
            Some(chunk::FORMAT) => {}
            Some(format) => {
                let known = chunk::FORMAT;
                return Err(RowError::byte(0, format!("it has format {format}, this program reads format {known}")));
            }
            None => return Err(RowError::byte(0, "this is no file that `coppice export --format bin` wrote")),
        }
        let (rows, digest) = (Vec::new().into_iter(), Digest::default());
        Ok(BinRows { input, rows, pairs: 0, digest, offset: FILE_HEADER_BYTES, ended: false })
    }
}

impl<R: Read> Rows for BinRows<R> {
    fn next(&mut self) -> Result<Option<Row>, RowError> {
        loop {
            if let Some(row) = self.rows.next() {
                return Ok(Some(row));
            }
            if self.ended {
                return Ok(None);
            }
            let wrong = |what: String| RowError::byte(self.offset, what);
            match chunk::read_record(&mut self.input).map_err(|error| wrong(error.to_string()))? {
                Some(Record::Chunk(chunk)) => {
                    let rows: Vec<Row> = chunk.pairs().map(|(k, v)| (Value::from(k), Value::from(v))).collect();
                    self.pairs += rows.len() as u64;
                    self.digest = self.digest.and(chunk.summary().digest);
                    self.offset += chunk::HEADER_BYTES + u64::from(chunk.summary().bytes);
                    self.rows = rows.into_iter();
                }
                Some(Record::End { pairs, digest }) if (pairs, digest) == (self.pairs, self.digest) => {
                    self.ended = true;
                }
                Some(Record::End { .. }) => return Err(wrong("the pairs are not those that were counted".to_owned())),
                None => return Err(wrong("the file is cut off: its end is not there".to_owned())),
            }
        }
    }
}

/// Writes such a file; the pairs must ascend.
pub struct BinWriter<W> {
    out: W,
    cutter: Cutter,
    pairs: u64,
    digest: Digest,
}

impl<W: Write> BinWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// That of `out`.
    pub fn new(mut out: W) -> io::Result<BinWriter<W>> {
        out.write_all(&chunk::file_header())?;
        Ok(BinWriter { out, cutter: Cutter::default(), pairs: 0, digest: Digest::default() })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// That of the output.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.cutter.push(key, value) {
            Some(chunk) => self.write(&chunk),
            None => Ok(()),
        }
    }

    fn write(&mut self, chunk: &chunk::Chunk) -> io::Result<()> {
        self.pairs += u64::from(chunk.summary().pairs);
        self.digest = self.digest.and(chunk.summary().digest);
        chunk.write(&mut self.out).map(|_| ())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// That of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(chunk) = self.cutter.finish() {
            self.write(&chunk)?;
        }
        chunk::write_end(&mut self.out, self.pairs, self.digest)?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back_and_damage_is_found(
            rows in proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 0..12), proptest::collection::vec(any::<u8>(), 0..12), 0..30),
            at: usize, flip in 1u8.., cut: usize,
        ) {
            let mut writer = BinWriter::new(Vec::new()).expect("memory");
            for (key, value) in &rows {
                writer.row(key, value).expect("memory");
            }
            let file = writer.finish().expect("memory");
            let read = |file: &[u8]| {
                let mut reader = BinRows::new(file)?;
                let mut found = Vec::new();
                while let Some((key, value)) = reader.next()? {
                    found.push((key.to_vec(), value.to_vec()));
                }
                Ok::<_, RowError>(found)
            };
            prop_assert_eq!(read(&file).expect("our own file"), rows.into_iter().collect::<Vec<_>>());
            let mut changed = file.clone();
            let at = at % file.len();
            changed[at] ^= flip;
            prop_assert!(read(&changed).is_err());
            prop_assert!(read(&file[..cut % file.len()]).is_err());
        }
    }
}
