//! Snapshots of etcd 3 (`etcdctl snapshot save`): the latest revision of each key that was not deleted.
//!
//! The bucket `key` holds all revisions that were not compacted, in their order: `u64 main, "_", u64 sub`, big-endian,
//! and a `t` behind them if the key was deleted; the value is a `mvccpb.KeyValue`. A first walk remembers the latest
//! revision of each live key, in memory; the second gives the pairs out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};

use coppice_client::Value;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use super::bbolt::{Bolt, Walk};
use super::{Row, RowError, Rows};
use crate::text::Coding;

/// A snapshot is sectors, and behind them the SHA-256 of all of them.
const SECTOR_BYTES: u64 = 512;
const BUCKET: &[u8] = b"key";

type Revision = (u64, u64);

/// Rows of a snapshot, in the order in which they were written.
pub struct EtcdRows {
    bolt: Bolt,
    walk: Walk,
    latest: HashMap<Value, Revision>,
    revision: u64,
    leased: u64,
}

impl EtcdRows {
    /// Checks a snapshot, and finds the latest revisions.
    ///
    /// # Errors
    /// It is no snapshot, or damaged.
    pub fn new(mut file: File) -> Result<EtcdRows, RowError> {
        let size = content(&mut file)?;
        let bolt = Bolt::open(file, size)?;
        let mut walk = bolt.bucket(BUCKET)?;
        let (mut latest, mut revision) = (HashMap::new(), 0);
        while let Some(element) = walk.step(&bolt)? {
            let damaged = |what: &str| RowError::byte(element.offset, what);
            let (of, deleted) = revision_of(&element.key).ok_or_else(|| damaged("a key that is no revision"))?;
            let pair = KeyValue::parse(&element.value).ok_or_else(|| damaged("a value that is no mvccpb.KeyValue"))?;
            revision = revision.max(of.0);
            if deleted {
                latest.remove(pair.key);
            } else {
                latest.insert(Value::from(pair.key), of);
            }
        }
        let walk = bolt.bucket(BUCKET)?;
        Ok(EtcdRows { bolt, walk, latest, revision, leased: 0 })
    }
}

/// How many bytes of a file are the store: a checksum behind them must be theirs.
fn content(file: &mut File) -> Result<u64, RowError> {
    let failed = |error: std::io::Error| RowError::byte(0, error.to_string());
    let size = file.metadata().map_err(failed)?.len();
    if size % SECTOR_BYTES != SHA256_OUTPUT_LEN as u64 {
        return Ok(size);
    }
    let size = size - SHA256_OUTPUT_LEN as u64;
    let (mut sum, mut left) = (Context::new(&SHA256), size);
    let mut buffer = vec![0; 1 << 18];
    file.rewind().map_err(failed)?;
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        file.read_exact(&mut buffer[..piece]).map_err(failed)?;
        sum.update(&buffer[..piece]);
        left -= piece as u64;
    }
    let mut written = [0; SHA256_OUTPUT_LEN];
    file.read_exact(&mut written).map_err(failed)?;
    if sum.finish().as_ref() != written {
        return Err(RowError::byte(size, "the checksum of the snapshot (SHA-256) differs"));
    }
    Ok(size)
}

/// The revision that a key of the bucket is, and whether it deletes.
fn revision_of(key: &[u8]) -> Option<(Revision, bool)> {
    let (main, rest) = key.split_first_chunk::<8>()?;
    let (sub, rest) = rest.strip_prefix(b"_")?.split_first_chunk::<8>()?;
    let deleted = match rest {
        [] => false,
        b"t" => true,
        _ => return None,
    };
    Some(((u64::from_be_bytes(*main), u64::from_be_bytes(*sub)), deleted))
}

/// What is wanted of a `mvccpb.KeyValue`.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeyValue<'a> {
    key: &'a [u8],
    value: &'a [u8],
    lease: u64,
}

impl<'a> KeyValue<'a> {
    fn parse(mut bytes: &'a [u8]) -> Option<KeyValue<'a>> {
        let mut pair = KeyValue::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            match (tag >> 3, tag & 7) {
                (field, 0) => {
                    let number = varint(&mut bytes)?;
                    if field == 6 {
                        pair.lease = number;
                    }
                }
                (field, 2) => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    let (content, rest) = bytes.split_at_checked(length)?;
                    bytes = rest;
                    match field {
                        1 => pair.key = content,
                        5 => pair.value = content,
                        _ => {}
                    }
                }
                (_, 1) => bytes = bytes.get(8..)?,
                (_, 5) => bytes = bytes.get(4..)?,
                _ => return None,
            }
        }
        Some(pair)
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << (7 * place);
        if byte & 128 == 0 {
            return Some(number);
        }
    }
    None
}

impl Rows for EtcdRows {
    fn next(&mut self) -> Result<Option<Row>, RowError> {
        while let Some(element) = self.walk.step(&self.bolt)? {
            let damaged = || RowError::byte(element.offset, "the file changes while it is read");
            let (of, deleted) = revision_of(&element.key).ok_or_else(damaged)?;
            let pair = KeyValue::parse(&element.value).ok_or_else(damaged)?;
            if deleted || self.latest.get(pair.key) != Some(&of) {
                continue;
            }
            self.leased += u64::from(pair.lease != 0);
            let shown = || Coding::Plain.show(pair.key);
            return super::checked(pair.key.into(), pair.value.into())
                .map(Some)
                .map_err(|what| RowError::byte(element.offset, format!("{what}; the key is {}", shown())));
        }
        Ok(None)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("the snapshot is of revision {}", self.revision)];
        if self.leased > 0 {
            notes.push(format!("keys with a lease: {}; it is not imported, they stay", self.leased));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bbolt::tests::{file, opened};
    use super::*;

    fn element(revision: Revision, deleted: bool, key: &str, value: &str, lease: u8) -> (Vec<u8>, Vec<u8>) {
        let mut name = [&revision.0.to_be_bytes()[..], b"_", &revision.1.to_be_bytes()].concat();
        if deleted {
            name.push(b't');
        }
        let mut pair = [&[10, key.len() as u8][..], key.as_bytes()].concat();
        if !deleted {
            pair.extend([&[16, 1, 24, 2, 32, 1, 42, value.len() as u8][..], value.as_bytes(), &[48, lease]].concat());
        }
        (name, pair)
    }

    fn snapshot() -> Vec<u8> {
        file(&[
            element((2, 0), false, "a", "old", 0),
            element((3, 0), false, "b", "1", 9),
            element((4, 0), true, "a", "", 0),
            element((5, 0), false, "c", "1", 0),
            element((5, 1), false, "a", "new", 0),
            element((6, 0), false, "c", "2", 0),
            element((7, 0), true, "d", "", 0),
        ])
    }

    type Texts = Vec<(String, String)>;

    fn read(bytes: &[u8]) -> Result<(Texts, Vec<String>), RowError> {
        let mut rows = EtcdRows::new(opened(bytes))?;
        let mut found = Texts::new();
        while let Some((key, value)) = rows.next()? {
            found.push([key, value].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).into());
        }
        Ok((found, rows.notes()))
    }

    #[test]
    fn the_latest_revision_of_each_live_key_counts() {
        let mut bytes = snapshot();
        let wanted = [("b", "1"), ("a", "new"), ("c", "2")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let (rows, notes) = read(&bytes).expect("a snapshot");
        assert_eq!(rows, wanted);
        assert_eq!(
            notes.join("; "),
            "the snapshot is of revision 7; keys with a lease: 1; it is not imported, they stay"
        );
        // With the checksum that `etcdctl snapshot save` puts behind it.
        let sum = ring::digest::digest(&SHA256, &bytes);
        bytes.extend(sum.as_ref());
        assert_eq!(read(&bytes).expect("a snapshot").0, wanted);
        bytes[700] ^= 1;
        assert!(read(&bytes).expect_err("damage").what.contains("SHA-256"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_pages_never_make_it_panic_or_hang(
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8), cut: usize,
        ) {
            let mut bytes = snapshot();
            for (at, byte) in changes {
                // The root pages stay whole: damaged, they would hide the pages behind them.
                let at = 1024 + at % (bytes.len() - 1024);
                bytes[at] = byte;
            }
            let _ = read(&bytes);
            bytes.truncate(cut % bytes.len());
            let _ = read(&bytes);
        }

        #[test]
        fn no_bytes_make_a_pair_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = KeyValue::parse(&bytes);
        }
    }
}
