//! A snapshot as a stream of chunks, and back. Pure: knows neither files nor peers.
//!
//! The stream is: the blobs, each a u64 length (little-endian) and its bytes, in the order of [`Blobs`]; then the
//! pairs in key order, each a varint key length, the key, a varint value length, the value. It is cut into chunks of
//! [`CHUNK_BYTES`] without regard to its content. A chunk's crc32c is seeded with cluster, partition, instance and
//! chunk number: an intact chunk in a wrong place does not fit (hazards.md ST8).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use coppice_btree::{Digest, Key, Value};
use coppice_core::snapshot::{BLOBS, Blobs, Head};

use super::manifest::Manifest;

/// Bytes of every chunk but the last: below the size from which sled would use side files, and one chunk per sled node.
pub const CHUNK_BYTES: usize = 8 << 10;

/// Limits of operations.md 3.
const KEY_BYTES_MAX: u64 = 4 << 10;
const VALUE_BYTES_MAX: u64 = 1 << 20; // below 2^21: a length has at most three bytes

/// A piece of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Counts from 0.
    pub number: u64,
    pub bytes: Bytes,
    /// Their crc32c, tied to their place.
    pub crc: u32,
}

/// The checksum of a chunk in its place.
pub fn chunk_crc(head: &Head, number: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 36];
    place[..16].copy_from_slice(&head.cluster.0.to_le_bytes());
    place[16..20].copy_from_slice(&head.partition.0.to_le_bytes());
    place[20..28].copy_from_slice(&head.instance.0.to_le_bytes());
    place[28..].copy_from_slice(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

/// Why chunks are not the snapshot that their manifest describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Bytes changed, or those of another place.
    #[error("the checksum of chunk {number} does not fit")]
    Checksum { number: u64 },
    /// Another chunk than the next.
    #[error("chunk {found} where {expected} comes next")]
    Order {
        /// The chunk's number.
        found: u64,
        /// The number that comes next.
        expected: u64,
    },
    /// Intact chunks that hold no snapshot: our bug, or a foreign writer's.
    #[error("the stream makes no sense at pair {pair}")]
    Content {
        /// How many pairs were good.
        pair: u64,
    },
    /// Chunks or pairs are missing, or too many.
    #[error("the snapshot is not the one that its manifest describes")]
    Incomplete,
    /// Everything is intact, but the pairs are not those that were in the tree.
    #[error("the digest of the pairs is {found}, the manifest says {expected}")]
    Digest {
        /// The digest of the pairs read.
        found: Digest,
        /// The digest stated.
        expected: Digest,
    },
}

/// Cuts a snapshot into chunks: an iterator of them, then [`Encoder::finish`].
#[derive(Debug)]
pub struct Encoder<I> {
    head: Head,
    pairs: I,
    /// Encoded and not cut yet.
    open: BytesMut,
    tally: Tally,
}

/// What was in the stream so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    chunks: u64,
    bytes: u64,
    crc: u32,
    pairs: u64,
    digest: Digest,
}

impl Tally {
    fn chunk(&mut self, bytes: &[u8]) {
        self.chunks += 1;
        self.bytes += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.pairs += 1;
        self.digest = self.digest.and(Digest::of_pair(key, value));
    }

    fn manifest(self, head: Head) -> Manifest {
        let Tally { chunks, bytes, crc, pairs, digest } = self;
        Manifest { head, chunks, bytes, crc, pairs, digest }
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V)>> Encoder<I> {
    /// The snapshot with these pairs, which ascend by key.
    pub fn new(head: Head, blobs: &Blobs, pairs: I) -> Encoder<I> {
        let mut open = BytesMut::with_capacity(4 * CHUNK_BYTES);
        for blob in blobs.all() {
            open.put_u64_le(blob.len() as u64);
            open.put_slice(blob);
        }
        Encoder { head, pairs, open, tally: Tally::default() }
    }

    /// The manifest of all that was given out.
    pub fn finish(self) -> Manifest {
        self.tally.manifest(self.head)
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V)>> Iterator for Encoder<I> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        while self.open.len() < CHUNK_BYTES
            && let Some((key, value)) = self.pairs.next()
        {
            let (key, value) = (key.as_ref(), value.as_ref());
            put_bytes(&mut self.open, key);
            put_bytes(&mut self.open, value);
            self.tally.pair(key, value);
        }
        if self.open.is_empty() {
            return None;
        }
        let bytes = self.open.split_to(CHUNK_BYTES.min(self.open.len())).freeze();
        let number = self.tally.chunks;
        self.tally.chunk(&bytes);
        let crc = chunk_crc(&self.head, number, &bytes);
        Some(Chunk { number, bytes, crc })
    }
}

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    let mut length = bytes.len() as u64;
    while length >= 0x80 {
        out.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    out.put_u8(length as u8);
    out.put_slice(bytes);
}

/// Puts chunks together again and checks everything on the way.
#[derive(Debug)]
pub struct Decoder {
    head: Head,
    open: BytesMut,
    blobs: Vec<Bytes>,
    last_key: Option<Key>,
    tally: Tally,
}

impl Decoder {
    /// For chunks of the snapshot that `head` describes.
    pub fn new(head: Head) -> Decoder {
        Decoder { head, open: BytesMut::new(), blobs: Vec::new(), last_key: None, tally: Tally::default() }
    }

    /// Takes the next chunk in.
    ///
    /// # Errors
    /// [`StreamError::Order`], [`StreamError::Checksum`]; the decoder is as before then.
    pub fn push(&mut self, number: u64, bytes: &[u8], crc: u32) -> Result<(), StreamError> {
        let expected = self.tally.chunks;
        if number != expected {
            return Err(StreamError::Order { found: number, expected });
        }
        if chunk_crc(&self.head, number, bytes) != crc {
            return Err(StreamError::Checksum { number });
        }
        self.tally.chunk(bytes);
        self.open.put_slice(bytes);
        Ok(())
    }

    /// The next pair, if the chunks so far hold all of it.
    ///
    /// # Errors
    /// [`StreamError::Content`].
    pub fn next_pair(&mut self) -> Result<Option<(Key, Value)>, StreamError> {
        if !self.take_blobs()? {
            return Ok(None);
        }
        let content = StreamError::Content { pair: self.tally.pairs };
        let mut rest = &self.open[..];
        let Some(key) = get_bytes(&mut rest, KEY_BYTES_MAX).map_err(|Malformed| content)? else { return Ok(None) };
        let Some(value) = get_bytes(&mut rest, VALUE_BYTES_MAX).map_err(|Malformed| content)? else { return Ok(None) };
        let fits = key >= &self.head.low[..] && self.head.high.as_ref().is_none_or(|high| key < &high[..]);
        if !fits || self.last_key.as_ref().is_some_and(|last| last.as_slice() >= key) {
            return Err(content);
        }
        self.tally.pair(key, value);
        let pair = (Key::from(key), Value::from(value));
        self.last_key = Some(pair.0.clone());
        let taken = self.open.len() - rest.len();
        self.open.advance(taken);
        Ok(Some(pair))
    }

    /// Takes the blobs off the start of the stream; false while they are not complete.
    fn take_blobs(&mut self) -> Result<bool, StreamError> {
        while self.blobs.len() < BLOBS {
            let Some(length) = self.open.first_chunk::<8>() else { return Ok(false) };
            let length = u64::from_le_bytes(*length);
            let all = length.checked_add(8).ok_or(StreamError::Content { pair: 0 })?;
            if (self.open.len() as u64) < all {
                return Ok(false);
            }
            self.open.advance(8);
            self.blobs.push(self.open.split_to(length as usize).freeze());
        }
        Ok(true)
    }

    /// The blobs, as soon as the chunks so far hold them.
    ///
    /// # Errors
    /// [`StreamError::Content`].
    pub fn blobs(&mut self) -> Result<Option<Blobs>, StreamError> {
        if !self.take_blobs()? {
            return Ok(None);
        }
        let blob = |at: usize| self.blobs[at].clone();
        Ok(Some(Blobs { sessions: blob(0), changes: blob(1), configuration: blob(2), directory: blob(3) }))
    }

    /// All chunks are in and all pairs are out: is it what the manifest says?
    ///
    /// # Errors
    /// [`StreamError::Incomplete`], [`StreamError::Digest`].
    pub fn finish(self, manifest: &Manifest) -> Result<(), StreamError> {
        let found = self.tally.manifest(self.head);
        let Manifest { digest, .. } = *manifest;
        if !self.open.is_empty() || self.blobs.len() < BLOBS || (Manifest { digest, ..found.clone() }) != *manifest {
            return Err(StreamError::Incomplete);
        }
        if found.digest != digest {
            return Err(StreamError::Digest { found: found.digest, expected: digest });
        }
        Ok(())
    }
}

/// A length that no key or value has.
struct Malformed;

/// Takes a byte string off `rest`; `None` if it is not complete.
fn get_bytes<'a>(rest: &mut &'a [u8], max: u64) -> Result<Option<&'a [u8]>, Malformed> {
    let mut length = 0_u64;
    for shift in [0, 7, 14] {
        let Ok(byte) = rest.try_get_u8() else { return Ok(None) };
        length |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            if length > max {
                return Err(Malformed);
            }
            let Some((bytes, after)) = rest.split_at_checked(length as usize) else { return Ok(None) };
            *rest = after;
            return Ok(Some(bytes));
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{ClusterId, PartitionId};
    use coppice_ordering::Instance;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn head(partition: u32) -> Head {
        Head { partition: PartitionId(partition), instance: Instance(77), ..Head::default() }
    }

    type Pairs = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

    fn decode(head: &Head, chunks: &[Chunk], manifest: &Manifest) -> Result<(Blobs, Pairs), StreamError> {
        let mut decoder = Decoder::new(head.clone());
        let mut pairs = Pairs::new();
        for chunk in chunks {
            decoder.push(chunk.number, &chunk.bytes, chunk.crc)?;
            while let Some((key, value)) = decoder.next_pair()? {
                pairs.insert(key.to_vec(), value.to_vec());
            }
        }
        let blobs = decoder.blobs()?.ok_or(StreamError::Incomplete)?;
        decoder.finish(manifest)?;
        Ok((blobs, pairs))
    }

    fn blobs() -> impl Strategy<Value = Blobs> {
        let blob = |max| vec(any::<u8>(), 0..max).prop_map(Bytes::from);
        (blob(20_000), blob(50), blob(50), blob(9_000)).prop_map(|(sessions, changes, configuration, directory)| {
            Blobs { sessions, changes, configuration, directory }
        })
    }

    fn pairs() -> impl Strategy<Value = Pairs> {
        let value = prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 5_000..20_000)];
        btree_map(vec(any::<u8>(), 0..300), value, 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_snapshot_reads_back(blobs in blobs(), pairs in pairs()) {
            let mut encoder = Encoder::new(head(3), &blobs, pairs.iter());
            let chunks: Vec<Chunk> = encoder.by_ref().collect();
            let manifest = encoder.finish();
            prop_assert_eq!(manifest.chunks, chunks.len() as u64);
            prop_assert!(chunks.iter().rev().skip(1).all(|chunk| chunk.bytes.len() == CHUNK_BYTES));
            prop_assert_eq!(decode(&head(3), &chunks, &manifest), Ok((blobs, pairs)));
            prop_assert!(decode(&head(4), &chunks, &manifest).is_err(), "of another partition");
            let foreign = Head { cluster: ClusterId(9), ..head(3) };
            prop_assert!(decode(&foreign, &chunks, &manifest).is_err(), "of another cluster");
            prop_assert!(decode(&head(3), &chunks[..chunks.len() - 1], &manifest).is_err(), "a chunk is missing");
            let other = Manifest { digest: Digest(manifest.digest.0 ^ 1), ..manifest };
            let found = decode(&head(3), &chunks, &other);
            prop_assert!(matches!(found, Err(StreamError::Digest { .. })), "another digest");
        }

        #[test]
        fn any_bytes_in_good_chunks_are_read_without_a_panic(stream in vec(any::<u8>(), 0..400), zeros in 0..33_usize) {
            let mut bytes = vec![0; zeros];
            bytes.extend(stream);
            let mut decoder = Decoder::new(head(3));
            let crc = chunk_crc(&head(3), 0, &bytes);
            decoder.push(0, &bytes, crc).expect("good");
            while let Ok(Some(_)) = decoder.next_pair() {}
            _ = decoder.blobs();
        }
    }
}
