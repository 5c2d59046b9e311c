//! `SUMS`: our own checksums of every file in a checkpoint's directory, block by block.
//!
//! They are checked before sled sees the files, so that sled never reads a damaged one, and damage is named by file and
//! offset. Opening an intact checkpoint changes none of its files: a test holds sled to that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use bytes::{Buf, BufMut};

use crate::files;

/// Name of the file.
pub(super) const NAME: &str = "SUMS";

const MAGIC: [u8; 8] = *b"COPPSUMS";

/// Format of the file. Version N reads N and N-1.
const FORMAT: u32 = 2;

/// Bytes under one checksum: damage is located to this.
const BLOCK_BYTES: usize = 64 << 10;

/// Where a checkpoint is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadFile {
    pub(super) file: String,
    pub(super) offset: u64,
    pub(super) reason: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
struct FileSum {
    bytes: u64,
    crcs: Vec<u32>,
}

/// Checksums of all files of a checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Checksums(BTreeMap<String, FileSum>);

impl Checksums {
    /// The checksums of what is there.
    pub(super) fn of(dir: &Path) -> io::Result<Checksums> {
        let mut sums = Checksums::default();
        for name in names(dir)? {
            sums.0.insert(name.clone(), sum(&dir.join(name))?);
        }
        Ok(sums)
    }

    /// Writes `SUMS` into `dir`, durably.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        files::replace(dir, NAME, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_slice(&MAGIC);
        out.put_u32_le(FORMAT);
        out.put_u32_le(self.0.len() as u32);
        for (name, FileSum { bytes, crcs }) in &self.0 {
            out.put_u32_le(name.len() as u32);
            out.put_slice(name.as_bytes());
            out.put_u64_le(*bytes);
            crcs.iter().for_each(|crc| out.put_u32_le(*crc));
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out
    }

    /// Reads `SUMS`; `None` if there is none that makes sense.
    fn read(dir: &Path) -> io::Result<Option<Checksums>> {
        match fs::read(dir.join(NAME)) {
            Ok(bytes) => Ok(Checksums::decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Checksums> {
        let (mut rest, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) || !rest.starts_with(&MAGIC) {
            return None;
        }
        let rest = &mut rest;
        rest.advance(MAGIC.len());
        if rest.try_get_u32_le().ok()? != FORMAT {
            return None;
        }
        let mut sums = Checksums::default();
        for _ in 0..rest.try_get_u32_le().ok()? {
            let length = rest.try_get_u32_le().ok()? as usize;
            let (name, after) = rest.split_at_checked(length)?;
            *rest = after;
            let name = String::from_utf8(name.to_vec()).ok()?;
            let bytes = rest.try_get_u64_le().ok()?;
            let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
            let crcs = (0..blocks).map(|_| rest.try_get_u32_le().ok()).collect::<Option<Vec<u32>>>()?;
            sums.0.insert(name, FileSum { bytes, crcs });
        }
        rest.is_empty().then_some(sums)
    }
}

/// Compares the directory with its `SUMS`.
pub(super) fn check(dir: &Path) -> io::Result<Result<(), BadFile>> {
    let bad = |file: &str, offset, reason| Ok(Err(BadFile { file: file.to_owned(), offset, reason }));
    let Some(sums) = Checksums::read(dir)? else {
        return bad(NAME, 0, "the checksums of this checkpoint are missing or damaged");
    };
    let there: BTreeSet<String> = names(dir)?.into_iter().collect();
    if let Some(name) = there.iter().find(|name| !sums.0.contains_key(*name)) {
        return bad(name, 0, "this file is not part of the checkpoint");
    }
    for (name, stated) in &sums.0 {
        if !there.contains(name) {
            return bad(name, 0, "this file is missing");
        }
        let found = sum(&dir.join(name))?;
        let block = stated.crcs.iter().zip(&found.crcs).position(|(stated, found)| stated != found);
        if let Some(block) = block {
            return bad(name, (block * BLOCK_BYTES) as u64, "the checksum of these 64 KiB does not fit");
        }
        if found.bytes != stated.bytes {
            return bad(name, found.bytes.min(stated.bytes), "the file has another length");
        }
    }
    Ok(Ok(()))
}

/// Flushes every file of `dir` and its directories: sled's own flush does not. Takes others' rights.
pub(super) fn flush_all(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for name in names(dir)? {
        let file = File::open(dir.join(name))?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.sync_all()?;
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            files::flush_dir(&path)?;
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    files::flush_dir(dir)
}

/// Every file but `SUMS`, relative to `dir`, sorted. sled makes at most one level of directories.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            for inner in fs::read_dir(entry.path())? {
                names.push(format!("{name}/{}", inner?.file_name().to_string_lossy()));
            }
        } else if name != NAME {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn sum(path: &Path) -> io::Result<FileSum> {
    let mut file = File::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut sum = FileSum { bytes: 0, crcs: Vec::new() };
    loop {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match file.read(&mut block[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            return Ok(sum);
        }
        sum.bytes += filled as u64;
        sum.crcs.push(crc32c::crc32c(&block[..filled]));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums() -> Checksums {
        let sum = |bytes: u64| FileSum { bytes, crcs: (0..bytes.div_ceil(BLOCK_BYTES as u64) as u32).collect() };
        Checksums([("conf".into(), sum(9)), ("db".into(), sum(200_000)), ("blobs/1".into(), sum(0))].into())
    }

    #[test]
    fn sums_read_back() {
        assert_eq!(Checksums::decode(&sums().encode()), Some(sums()));
    }

    proptest! {
        /// Behind a checksum that fits, lengths lie and bytes are moved, missing and doubled.
        #[test]
        fn damaged_sums_are_none_or_some_that_read_back(
            places in proptest::collection::vec((any::<prop::sample::Index>(), 0..6, 0..8_usize), 1..4),
        ) {
            let mut bytes = sums().encode();
            bytes.truncate(bytes.len() - 4);
            for (at, how, number) in places {
                let at = at.index(bytes.len());
                let number = [0, 1, u64::MAX, u64::MAX - 1, 1 << 31, 1 << 32, 65_536, 65_537][number];
                let width = (bytes.len() - at).min(if how < 2 { 4 } else { 8 });
                match how {
                    0..4 => bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]),
                    4 => drop(bytes.drain(at..at + width)),
                    _ => bytes.splice(at..at, bytes[at..at + width].to_vec()).for_each(drop),
                }
                if bytes.is_empty() {
                    bytes.push(0);
                }
            }
            let crc = crc32c::crc32c(&bytes);
            bytes.put_u32_le(crc);
            if let Some(sums) = Checksums::decode(&bytes) {
                prop_assert_eq!(Checksums::decode(&sums.encode()), Some(sums));
            }
        }
    }
}
