//! A chunk: pairs in key order with their checksums, the unit in which files hold pairs.
//!
//! ```text
//! file   = "coppice pairs\n", u16 format, records
//! record = u8 kind (1 pairs, 2 pairs of 8 bytes and 8, 3 end), u8[3] zero, u32 body bytes, u32 pairs,
//!          u32 crc32c of the body, u64 digest of the pairs, u32 zero, u32 crc32c of these 28 bytes; body
//! body   = (varint length, key, varint length, value).. | (key, value).. | u64 pairs of the file
//! ```
//!
//! Integers are little-endian. A chunk ends where its keys and sizes say ([`Cutter`]), and where a partition or a chunk
//! that is there already begins: two readings of a store that has changed in few places have most chunks in common.

use std::io::{self, Read, Write};

use bytes::{BufMut, BytesMut};
use coppice_btree::Digest;
use coppice_client::wire::{KEY_BYTES_MAX, PairsSum, Reader, VALUE_BYTES_MAX, put_varint};

/// The beginning of a file, without its format.
pub const MAGIC: &[u8; 14] = b"coppice pairs\n";
/// The format that is written, and the only one that is read.
pub const FORMAT: u16 = 1;
/// Bytes before the first record.
pub const FILE_HEADER_BYTES: u64 = 16;
/// Bytes of a record before its body.
pub const HEADER_BYTES: u64 = 32;

/// No chunk ends below this size, but the last one.
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// About how many bytes follow until a key ends the chunk: with [`CHUNK_BYTES_MIN`] chunks have 256 KiB on average, the
/// size of a bulk load of small pairs.
const CHUNK_BYTES_MORE: u64 = 192 << 10;
/// A chunk that has reached this size ends.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest body: a chunk that is nearly full takes one more pair.
const BODY_BYTES_MAX: usize = CHUNK_BYTES_MAX + KEY_BYTES_MAX + VALUE_BYTES_MAX + 16;

const KIND_PAIRS: u8 = 1;
const KIND_EIGHT: u8 = 2;
const KIND_END: u8 = 3;

/// What tells chunks apart. Equal summaries mean equal pairs: it guards against accidents, not against an adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summary {
    /// Whether all keys and values have 8 bytes.
    pub eight: bool,
    /// Bytes of the body.
    pub bytes: u32,
    /// How many pairs.
    pub pairs: u32,
    /// crc32c of the body.
    pub crc: u32,
    /// Digest of the pairs.
    pub digest: Digest,
}

/// Pairs in key order, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    summary: Summary,
    body: Vec<u8>,
}

/// Why bytes are no chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(pub &'static str);

impl Chunk {
    /// What tells it apart.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The first key.
    pub fn low(&self) -> &[u8] {
        self.pairs().next().map_or(&[], |(key, _)| key)
    }

    /// The last key.
    pub fn last(&self) -> &[u8] {
        self.pairs().last().map_or(&[], |(key, _)| key)
    }

    /// What nodes compare it by. O(bytes).
    pub fn sum(&self) -> PairsSum {
        PairsSum::of(self.pairs())
    }

    /// The pairs in key order.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (mut reader, eight) = (Reader::new(&self.body), self.summary.eight);
        std::iter::from_fn(move || read_pair(&mut reader, eight))
    }

    /// The chunk with this summary, whose body was read from a file. Checks everything.
    fn checked(summary: Summary, body: Vec<u8>) -> Result<Chunk, Damage> {
        if mutant!(chunk_unchecked) {
            return Ok(Chunk { summary, body });
        }
        if crc32c::crc32c(&body) != summary.crc {
            return Err(Damage("the checksum of the pairs differs"));
        }
        let chunk = Chunk { summary, body };
        let (mut pairs, mut bytes, mut digest) = (0, 0, Digest::default());
        let mut last: Option<&[u8]> = None;
        let mut reader = Reader::new(&chunk.body);
        while let Some((key, value)) = read_pair(&mut reader, summary.eight) {
            if last.is_some_and(|last| last >= key) {
                return Err(Damage("the keys do not ascend"));
            }
            (last, pairs, digest) = (Some(key), pairs + 1, digest.and(Digest::of_pair(key, value)));
            bytes = chunk.body.len() - reader.rest().len();
        }
        if (pairs, bytes, digest) != (summary.pairs, chunk.body.len(), summary.digest) || pairs == 0 {
            return Err(Damage("the pairs are not those that were counted"));
        }
        Ok(chunk)
    }

    /// Writes the record; returns its size.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<u64> {
        let kind = if self.summary.eight { KIND_EIGHT } else { KIND_PAIRS };
        out.write_all(&header(kind, &self.summary))?;
        out.write_all(&self.body)?;
        Ok(HEADER_BYTES + self.body.len() as u64)
    }
}

fn read_pair<'a>(reader: &mut Reader<'a>, eight: bool) -> Option<(&'a [u8], &'a [u8])> {
    if eight {
        return Some((reader.array::<8>().ok()?, reader.array::<8>().ok()?));
    }
    let key = reader.bytes("key length", KEY_BYTES_MAX).ok()?;
    Some((key, reader.bytes("value length", VALUE_BYTES_MAX).ok()?))
}

fn header(kind: u8, summary: &Summary) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[0] = kind;
    header[4..8].copy_from_slice(&summary.bytes.to_le_bytes());
    header[8..12].copy_from_slice(&summary.pairs.to_le_bytes());
    header[12..16].copy_from_slice(&summary.crc.to_le_bytes());
    header[16..24].copy_from_slice(&summary.digest.0.to_le_bytes());
    let crc = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// What stands before the first record.
pub fn file_header() -> [u8; FILE_HEADER_BYTES as usize] {
    let mut header = [0; FILE_HEADER_BYTES as usize];
    header[..14].copy_from_slice(MAGIC);
    header[14..].copy_from_slice(&FORMAT.to_le_bytes());
    header
}

/// The format of a file that begins so; none: it is no such file.
pub fn format_of(header: &[u8]) -> Option<u16> {
    let format = header.strip_prefix(MAGIC)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*format))
}

/// Writes the record that ends a file which stands alone.
///
/// # Errors
/// Those of `out`.
pub fn write_end(out: &mut impl Write, pairs: u64, digest: Digest) -> io::Result<()> {
    let body = pairs.to_le_bytes();
    let summary = Summary { eight: false, bytes: 8, pairs: 0, crc: crc32c::crc32c(&body), digest };
    out.write_all(&header(KIND_END, &summary))?;
    out.write_all(&body)
}

/// A record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Pairs.
    Chunk(Chunk),
    /// The last one: how many pairs the file holds, and their digest.
    End {
        /// How many.
        pairs: u64,
        /// Of all of them.
        digest: Digest,
    },
}

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file ends inside of a record.
    #[error("the file ends inside of a chunk")]
    CutOff,
    /// What was read is no record.
    #[error("{0}")]
    Damaged(#[from] Damage),
}

/// Reads the next record; none at the end of the file. Everything is checked before it is believed, and nothing larger
/// than a chunk is allocated.
///
/// # Errors
/// See [`ReadError`].
pub fn read_record(input: &mut impl Read) -> Result<Option<Record>, ReadError> {
    let mut header = [0; HEADER_BYTES as usize];
    match fill(input, &mut header)? {
        0 => return Ok(None),
        HEADER_LEN => {}
        _ => return Err(ReadError::CutOff),
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if crc32c::crc32c(&header[..28]) != word(28) {
        return Err(Damage("the checksum of a chunk's header differs").into());
    }
    let digest = Digest(u64::from(word(16)) | u64::from(word(20)) << 32);
    let eight = header[0] == KIND_EIGHT;
    let summary = Summary { eight, bytes: word(4), pairs: word(8), crc: word(12), digest };
    if summary.bytes as usize > BODY_BYTES_MAX || !(KIND_PAIRS..=KIND_END).contains(&header[0]) {
        return Err(Damage("a chunk of a kind or size that no program writes").into());
    }
    let mut body = vec![0; summary.bytes as usize];
    if fill(input, &mut body)? < body.len() {
        return Err(ReadError::CutOff);
    }
    if header[0] != KIND_END {
        return Ok(Some(Record::Chunk(Chunk::checked(summary, body)?)));
    }
    match <[u8; 8]>::try_from(&body[..]) {
        Ok(pairs) if crc32c::crc32c(&body) == summary.crc => {
            Ok(Some(Record::End { pairs: u64::from_le_bytes(pairs), digest }))
        }
        _ => Err(Damage("the end of the file is damaged").into()),
    }
}

const HEADER_LEN: usize = HEADER_BYTES as usize;

/// Fills `buffer` as far as the input reaches.
pub(crate) fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Cuts ascending pairs into chunks. A key ends a chunk if its hash says so, the more likely the larger the pair is.
#[derive(Debug, Default)]
pub struct Cutter {
    body: BytesMut,
    general: bool,
    pairs: u32,
    digest: Digest,
}

impl Cutter {
    /// Takes the next pair; returns the chunk that it ends.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Option<Chunk> {
        let eight = key.len() == 8 && value.len() == 8;
        if !eight && !self.general {
            self.generalize();
        }
        if !self.general {
            self.body.put_slice(key);
            self.body.put_slice(value);
        } else {
            put_pair(&mut self.body, key, value);
        }
        self.pairs += 1;
        self.digest = self.digest.and(Digest::of_pair(key, value));
        let size = (key.len() + value.len()) as u64;
        let ends_here = Digest::of_pair(key, &[]).0 < (u64::MAX / CHUNK_BYTES_MORE).saturating_mul(size);
        let full = self.body.len() >= CHUNK_BYTES_MAX;
        if full || (ends_here && self.body.len() >= CHUNK_BYTES_MIN) { self.finish() } else { None }
    }

    /// The chunk of what is left.
    pub fn finish(&mut self) -> Option<Chunk> {
        let Cutter { body, general, pairs, digest } = std::mem::take(self);
        let (bytes, crc) = (body.len() as u32, crc32c::crc32c(&body));
        let summary = Summary { eight: !general, bytes, pairs, crc, digest };
        (pairs > 0).then(|| Chunk { summary, body: body.into() })
    }

    /// The first pair that is not of 8 bytes and 8: all before it get lengths.
    fn generalize(&mut self) {
        let words = std::mem::take(&mut self.body);
        for pair in words.chunks_exact(16) {
            put_pair(&mut self.body, &pair[..8], &pair[8..]);
        }
        self.general = true;
    }
}

fn put_pair(body: &mut BytesMut, key: &[u8], value: &[u8]) {
    for part in [key, value] {
        put_varint(body, part.len() as u64);
        body.put_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunks<'a>(pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<Chunk> {
        let mut cutter = Cutter::default();
        let mut chunks: Vec<Chunk> = pairs.into_iter().filter_map(|(key, value)| cutter.push(key, value)).collect();
        chunks.extend(cutter.finish());
        chunks
    }

    fn words(from: u64, to: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        (from..to).map(|n| (n.to_be_bytes().to_vec(), (n * 7).to_le_bytes().to_vec())).collect()
    }

    fn borrowed(pairs: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = (&[u8], &[u8])> {
        pairs.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    #[test]
    fn few_changes_leave_most_chunks_as_they_are() {
        let mut pairs = words(0, 200_000);
        let before = chunks(borrowed(&pairs));
        assert!((8..40).contains(&before.len()), "{}", before.len());
        pairs[77_777].1 = b"other".to_vec();
        pairs.insert(150_000, (b"\0\0\0\0\0\x02\x49\xf0\0".to_vec(), b"new".to_vec()));
        pairs.sort();
        pairs.remove(10);
        let after = chunks(borrowed(&pairs));
        let kept = after.iter().filter(|chunk| before.contains(chunk)).count();
        assert!(kept + 8 >= after.len(), "{kept} of {}", after.len());
    }

    #[test]
    fn a_chunk_is_bounded_whatever_the_pairs() {
        let large: Vec<_> = (0..40u8).map(|n| (vec![n; 4096], vec![n; 1 << 20])).collect();
        for chunk in chunks(borrowed(&large)) {
            assert!(chunk.body.len() <= BODY_BYTES_MAX);
            let mut file = Vec::new();
            chunk.write(&mut file).expect("memory");
            let read = read_record(&mut &file[..]).expect("our own record");
            assert_eq!(read, Some(Record::Chunk(chunk)));
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_reader_that_believes_what_it_reads_is_caught() {
        planted::assert_caught("chunk_unchecked", "chunk::tests::damage_is_found");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            pairs in proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 0..12), proptest::collection::vec(any::<u8>(), 0..40), 1..60),
            words in 0u64..50,
        ) {
            let mut all = pairs;
            all.extend((0..words).map(|n| ((n << 56).to_be_bytes().to_vec(), n.to_le_bytes().to_vec())));
            let all: Vec<_> = all.into_iter().collect();
            let mut file = Vec::new();
            for chunk in chunks(borrowed(&all)) {
                chunk.write(&mut file).expect("memory");
            }
            write_end(&mut file, all.len() as u64, Digest(7)).expect("memory");
            let mut input = &file[..];
            let mut read = Vec::new();
            while let Some(record) = read_record(&mut input).expect("our own records") {
                match record {
                    Record::Chunk(chunk) => read.extend(chunk.pairs().map(|(k, v)| (k.to_vec(), v.to_vec()))),
                    Record::End { pairs, digest } => prop_assert_eq!((pairs, digest), (all.len() as u64, Digest(7))),
                }
            }
            prop_assert_eq!(read, all);
        }

        /// A changed or missing byte is found, and no bytes make the reader panic.
        #[test]
        fn damage_is_found(
            at: usize, flip in 1u8.., cut: usize, noise in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let pairs = words(0, 40);
            let mut file = Vec::new();
            chunks(borrowed(&pairs))[0].write(&mut file).expect("memory");
            let mut changed = file.clone();
            let at = at % file.len();
            changed[at] ^= flip;
            prop_assert!(read_record(&mut &changed[..]).is_err());
            let cut = 1 + cut % (file.len() - 1);
            prop_assert!(read_record(&mut &file[..cut]).is_err());
            let _ = read_record(&mut &noise[..]);
        }
    }
}
