//! A checkpoint as it lies on a node's disk, or travels, by the code that writes and reads checkpoints.

use coppice_btree::Capacity;
use coppice_core::snapshot::{self, LoadedSnapshot, TakenSnapshot};
use coppice_ordering::Instance;
use coppice_server::checkpoint::stream::{Decoder, Encoder};
use coppice_server::checkpoint::{Chunk, Manifest};

/// A snapshot as it lies on disk, or travels.
#[derive(Clone, Debug)]
pub struct SavedSnapshot {
    /// Where it was taken.
    pub instance: Instance,
    chunks: Vec<Chunk>,
    manifest: Vec<u8>,
}

impl SavedSnapshot {
    /// Encodes a state, by the code that writes checkpoints.
    pub fn of(taken: TakenSnapshot) -> SavedSnapshot {
        let instance = taken.head.instance;
        let snapshot = taken.tree.snapshot();
        let mut encoder = Encoder::new(taken.head, &taken.blobs.write(), snapshot.iter());
        let chunks = encoder.by_ref().collect();
        SavedSnapshot { instance, chunks, manifest: encoder.finish().encode() }
    }

    /// Reads it back into a tree with nodes of this width, by the code that reads checkpoints: in words what is wrong
    /// with it.
    pub fn load(&self, capacity: Capacity) -> Result<LoadedSnapshot, String> {
        let manifest = Manifest::decode(&self.manifest).ok_or("the manifest is damaged")?;
        let mut decoder = Decoder::new(manifest.head.clone());
        let mut pairs = Vec::new();
        for chunk in &self.chunks {
            decoder.push(chunk.number, &chunk.bytes, chunk.crc).map_err(|error| error.to_string())?;
            while let Some(pair) = decoder.next_pair().map_err(|error| error.to_string())? {
                pairs.push(pair);
            }
        }
        let blobs = decoder.blobs().map_err(|error| error.to_string())?.ok_or("the blobs are not complete")?;
        decoder.finish(&manifest).map_err(|error| error.to_string())?;
        let loaded = snapshot::restore_with_capacity(&manifest.head, &blobs, pairs.into_iter(), capacity);
        loaded.map_err(|error| error.to_string())
    }

    /// All its bytes, to damage one: chunks with their checksums, then the manifest.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len() + 4).sum::<usize>() + self.manifest.len()
    }

    /// The same with one byte changed.
    pub fn flipped(&self, mut at: usize) -> SavedSnapshot {
        let mut saved = self.clone();
        for chunk in &mut saved.chunks {
            if at < chunk.bytes.len() {
                let mut bytes = chunk.bytes.to_vec();
                bytes[at] ^= 0x40;
                chunk.bytes = bytes::Bytes::from(bytes);
                return saved;
            }
            at -= chunk.bytes.len();
            if at < 4 {
                chunk.crc ^= 0x40 << (8 * at);
                return saved;
            }
            at -= 4;
        }
        saved.manifest[at] ^= 0x40;
        saved
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_btree::{Op, Undo};
    use coppice_client::wire::PartitionId;

    use super::*;

    /// hazards.md G8: one flipped byte at every offset of a checkpoint.
    #[test]
    fn a_checkpoint_with_any_byte_changed_is_refused() {
        let mut tree = coppice_btree::Tree::new();
        let mut undo = Undo::default();
        for number in 0..600 {
            let (key, value) = (format!("k{number:04}"), format!("value {number}"));
            tree.execute(Op::Put { key: key.as_bytes(), value: value.as_bytes() }, &mut undo);
        }
        let configuration = coppice_ordering::Configuration::of_voters([coppice_ordering::ReplicaId(0)]);
        let plain = "plain data";
        type Changes = (Option<coppice_core::machine::partition::Seal>, coppice_core::sessions::SessionLimits);
        let blobs = coppice_server::checkpoint::Blobs {
            configuration: postcard::to_stdvec(&(configuration, Instance(3), coppice_ordering::Ballot::ZERO))
                .expect(plain)
                .into(),
            sessions: postcard::to_stdvec(&coppice_core::sessions::Sessions::default().export()).expect(plain).into(),
            changes: postcard::to_stdvec(&Changes::default()).expect(plain).into(),
            ..Default::default()
        };
        let head = coppice_server::checkpoint::Head {
            partition: PartitionId(2),
            instance: Instance(70),
            low: Bytes::from_static(b"k"),
            ..Default::default()
        };
        let saved = SavedSnapshot::of(TakenSnapshot { head, blobs: blobs.into(), tree });
        assert!(
            saved.load(Capacity::TINY).is_ok() && saved.bytes() > 8_192,
            "{:?} {}",
            saved.load(Capacity::TINY).map(|_| ()),
            saved.bytes()
        );
        for at in 0..saved.bytes() {
            assert!(saved.flipped(at).load(Capacity::TINY).is_err(), "byte {at} was changed and nothing noticed");
        }
    }
}
