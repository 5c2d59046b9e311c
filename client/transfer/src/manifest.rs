//! The manifest of a backup: what it is, and where each of its chunks lies. It is written last, so that a directory or
//! a prefix with a manifest holds a whole backup.
//!
//! Lines of json: the [`Header`], a [`ChunkEntry`] for each chunk in key order, and an end with the count of chunks and
//! the crc32c of all lines before it.

use std::io::{self, BufRead, Write};
use std::path::Path;

use coppice_btree::Digest;
use coppice_client::wire::PairsSum;
use serde::{Deserialize, Serialize};

use crate::chunk::Summary;
use crate::error::{Refusal, Result, at, damaged};
use crate::storage::Storage;
use crate::text::{from_base64, to_base64};

/// Its name.
pub const NAME: &str = "manifest";
/// What its first line calls it.
const MAGIC: &str = "coppice backup";
/// The format that is written, and the only one that is read.
pub const FORMAT: u64 = 1;
/// Longest line: a header with very many partitions and files.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What a backup is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// `coppice backup`.
    pub magic: String,
    /// Number of the format.
    pub format: u64,
    /// Version of the program that wrote it.
    pub program: String,
    /// Tells backups apart, in hex.
    pub id: String,
    /// The cluster that it is of, in hex.
    pub cluster: String,
    /// When it was finished, in seconds of Unix time.
    pub finished: u64,
    /// The ticket that made it one moment, if one was needed.
    pub ticket: Option<String>,
    /// Where each partition was read, in key order.
    pub positions: Vec<String>,
    /// How many pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Digest of all pairs.
    pub digest: String,
    /// Earlier backups whose files hold some of the chunks.
    pub bases: Vec<Base>,
    /// The files that hold the chunks.
    pub files: Vec<FileEntry>,
}

/// An earlier backup that this one builds on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its directory or address; from this backup's one if it is relative.
    pub path: String,
    /// Its id.
    pub id: String,
}

/// A file with chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The base whose directory it lies in, from 0; none: this backup's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<usize>,
    /// Its name there.
    pub name: String,
    /// Its size, as far as chunks of this backup reach.
    pub bytes: u64,
}

/// Where a chunk lies, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    /// Its file, from 0.
    pub file: usize,
    /// Offset of its record.
    pub at: u64,
    eight: bool,
    bytes: u32,
    pairs: u32,
    crc: String,
    digest: String,
    low: String,
    /// Bytes of keys and values, and the hash of [`PairsSum`]; none: a program wrote it that did not know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct End {
    chunks: u64,
    crc32c: String,
}

impl ChunkEntry {
    /// The chunk with this summary, this sum and this first key, in a file at an offset.
    pub fn new(file: usize, at: u64, (summary, sum): (&Summary, &PairsSum), low: &[u8]) -> ChunkEntry {
        ChunkEntry {
            file,
            at,
            eight: summary.eight,
            bytes: summary.bytes,
            pairs: summary.pairs,
            crc: format!("{:08x}", summary.crc),
            digest: summary.digest.to_string(),
            low: to_base64(low),
            content: Some(sum.bytes),
            sha256: Some(sum.hash.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }

    /// What nodes compare the chunk by; none: it is not known, or makes no sense.
    pub fn sum(&self) -> Option<PairsSum> {
        let text = self.sha256.as_ref().filter(|text| text.len() == 64 && text.is_ascii())?;
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(PairsSum { pairs: u64::from(self.pairs), bytes: self.content?, hash })
    }

    /// What tells the chunk apart; none: the entry makes no sense.
    pub fn summary(&self) -> Option<Summary> {
        let crc = u32::from_str_radix(&self.crc, 16).ok()?;
        let digest = digest(&self.digest)?;
        Some(Summary { eight: self.eight, bytes: self.bytes, pairs: self.pairs, crc, digest })
    }

    /// The first key.
    pub fn low(&self) -> Option<Vec<u8>> {
        from_base64(self.low.as_bytes())
    }
}

/// A digest as it is written.
pub fn digest(text: &str) -> Option<Digest> {
    u64::from_str_radix(text, 16).ok().map(Digest)
}

/// A manifest that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What the backup is.
    pub header: Header,
    /// Its chunks in key order.
    pub chunks: Vec<ChunkEntry>,
}

impl Manifest {
    /// The name and the format of every header.
    pub fn magic() -> (String, u64) {
        (MAGIC.to_owned(), FORMAT)
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut crc = 0;
        let mut line = |text: String| {
            crc = crc32c::crc32c_append(crc, text.as_bytes());
            out.write_all(text.as_bytes())
        };
        line(format!("{}\n", serde_json::to_string(&self.header)?))?;
        for chunk in &self.chunks {
            line(format!("{}\n", serde_json::to_string(chunk)?))?;
        }
        let end = End { chunks: self.chunks.len() as u64, crc32c: format!("{crc:08x}") };
        writeln!(out, "{}", serde_json::to_string(&end)?)
    }

    /// Reads and checks the manifest of a backup.
    ///
    /// # Errors
    /// There is none, it is damaged, or its format is unknown.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Manifest> {
        match storage.open(NAME)? {
            None => Err(Refusal::NoBackup(storage.address().to_owned()).into()),
            Some(file) => Manifest::parse(&storage.address().join(NAME), &mut io::BufReader::new(file)),
        }
    }

    /// Reads it from its lines; `path` is what errors name.
    ///
    /// # Errors
    /// They are damaged, or of a version that is not known.
    pub fn parse(path: &Path, input: &mut impl BufRead) -> Result<Manifest> {
        let mut crc = 0;
        let mut offset = 0;
        let mut header: Option<Header> = None;
        let mut chunks = Vec::new();
        loop {
            let mut line = Vec::new();
            let count = io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(at(path))?;
            let what = |what: &str| damaged(path, offset, what);
            if line.last() != Some(&b'\n') {
                return Err(what("the manifest is cut off"));
            }
            let Some(known) = &header else {
                header = Some(read_header(path, &line)?);
                crc = crc32c::crc32c_append(crc, &line);
                offset += count as u64;
                continue;
            };
            if let Ok(entry) = serde_json::from_slice::<ChunkEntry>(&line) {
                if entry.file >= known.files.len() || entry.summary().is_none() || entry.low().is_none() {
                    return Err(what("an entry that makes no sense"));
                }
                chunks.push(entry);
                crc = crc32c::crc32c_append(crc, &line);
                offset += count as u64;
                continue;
            }
            let end: End = serde_json::from_slice(&line).map_err(|_| what("a line that is no entry"))?;
            if end.crc32c != format!("{crc:08x}") || end.chunks != chunks.len() as u64 {
                return Err(what("the checksum of the manifest differs"));
            }
            return Ok(Manifest { header: known.clone(), chunks });
        }
    }
}

fn read_header(path: &Path, line: &[u8]) -> Result<Header> {
    #[derive(Deserialize)]
    struct Any {
        magic: String,
        format: u64,
    }
    let any: Any = serde_json::from_slice(line).map_err(|_| damaged(path, 0, "this is no manifest of a backup"))?;
    if any.magic != MAGIC {
        return Err(damaged(path, 0, "this is no manifest of a backup"));
    }
    if any.format != FORMAT {
        return Err(Refusal::Format { path: path.to_owned(), format: any.format, known: FORMAT }.into());
    }
    let header: Header = serde_json::from_slice(line).map_err(|error| damaged(path, 0, error.to_string()))?;
    let sound = |file: &FileEntry| {
        let plain = !file.name.contains('/') && !file.name.starts_with('.') && !file.name.is_empty();
        plain && file.base.is_none_or(|base| base < header.bases.len())
    };
    if !header.files.iter().all(sound) || digest(&header.digest).is_none() {
        return Err(damaged(path, 0, "the header of the manifest makes no sense"));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn manifest() -> Manifest {
        let (magic, format) = Manifest::magic();
        let summary = Summary { eight: true, bytes: 160, pairs: 10, crc: 77, digest: Digest(1 << 60) };
        let header = Header {
            magic,
            format,
            program: "0.1.0".into(),
            id: "00".into(),
            cluster: "aa".into(),
            finished: 1,
            ticket: Some("~1.5".into()),
            positions: vec!["p1#4.0".into()],
            pairs: 10,
            bytes: 160,
            digest: Digest(5).to_string(),
            bases: vec![Base { path: "../monday".into(), id: "01".into() }],
            files: vec![
                FileEntry { base: None, name: "pairs-00001".into(), bytes: 500 },
                FileEntry { base: Some(0), name: "pairs-00001".into(), bytes: 900 },
            ],
        };
        Manifest {
            header,
            chunks: vec![
                ChunkEntry::new(0, 16, (&summary, &SUM), b"a\xff"),
                ChunkEntry::new(1, 16, (&summary, &SUM), b"b"),
            ],
        }
    }

    const SUM: PairsSum = PairsSum { pairs: 10, bytes: 140, hash: [0xa7; 32] };

    #[test]
    fn a_manifest_is_read_back() {
        let (manifest, mut text) = (manifest(), Vec::new());
        manifest.write(&mut text).expect("memory");
        assert_eq!(Manifest::parse(Path::new("m"), &mut &text[..]).expect("it is whole"), manifest);
        assert_eq!(manifest.chunks[0].low(), Some(b"a\xff".to_vec()));
        assert_eq!(manifest.chunks[0].sum(), Some(SUM));
    }

    /// Version 0.1 wrote no sums, and passes over those that are there.
    #[test]
    fn a_manifest_without_sums_is_read() {
        let (mut manifest, mut text) = (manifest(), Vec::new());
        manifest.chunks.iter_mut().for_each(|chunk| (chunk.content, chunk.sha256) = (None, None));
        manifest.write(&mut text).expect("memory");
        assert!(!String::from_utf8_lossy(&text).contains("sha256"));
        let read = Manifest::parse(Path::new("m"), &mut &text[..]).expect("it is whole");
        assert!(read == manifest && read.chunks[0].sum().is_none());
    }

    #[test]
    fn another_format_is_named() {
        let (mut manifest, mut text) = (manifest(), Vec::new());
        manifest.header.format = 9;
        manifest.write(&mut text).expect("memory");
        let error = Manifest::parse(Path::new("m"), &mut &text[..]).expect_err("unknown");
        assert_eq!(error.to_string(), "m has format 9, this program reads format 1");
    }

    proptest! {
        #[test]
        fn damage_is_found(at: usize, flip in 1u8.., cut: usize) {
            let mut text = Vec::new();
            manifest().write(&mut text).expect("memory");
            let mut changed = text.clone();
            let at = at % text.len();
            changed[at] ^= flip;
            prop_assert!(Manifest::parse(Path::new("m"), &mut &changed[..]).map_or(true, |read| read == manifest()));
            prop_assert!(Manifest::parse(Path::new("m"), &mut &text[..cut % text.len()]).is_err());
        }
    }
}
