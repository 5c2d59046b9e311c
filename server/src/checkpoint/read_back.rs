//! A staging is read back before it counts: as a start would, in little memory, and no faster than it was written.

use super::stream::StreamError;
use super::{CHUNK_BYTES, Checkpoint, CheckpointError, Manifest, Pairs, SnapshotWriter, Step};

/// Chunks that are read before the store is opened anew, 32 MiB. sled lets nothing go that it read less often than 64
/// times, and the memory for all of a large checkpoint, fresh from the system, costs more than all of its reading.
const PART_CHUNKS: usize = (32 << 20) / CHUNK_BYTES;

/// Bytes between two looks at the pace.
const LOOK_BYTES: u64 = 256 << 10;

/// Opens the staging as a start would, and reads all of it.
pub(super) fn read_back(staging: &mut SnapshotWriter, manifest: &Manifest) -> Result<(), CheckpointError> {
    let (path, options) = (staging.staging.clone(), staging.checkpoints.options);
    let found = Checkpoint::read_store(&path, &options)?.manifest;
    if found != *manifest || manifest.head != staging.head {
        return Err(StreamError::Incomplete.into());
    }
    let parts = (0..manifest.chunks).step_by(PART_CHUNKS);
    let chunks = parts.flat_map(move |from| {
        let (chunks, failed) = match Checkpoint::read_store(&path, &options) {
            Ok(checkpoint) => (Some(checkpoint.chunks(from).take(PART_CHUNKS)), None),
            Err(error) => (None, Some(Err(error))),
        };
        chunks.into_iter().flatten().chain(failed)
    });
    let (_, mut pairs) = Pairs::behind_blobs(chunks, manifest.clone())?;
    staging.pace.restart();
    let mut unseen = 0;
    for (key, value) in pairs.by_ref() {
        unseen += (key.len() + value.len()) as u64;
        if unseen >= LOOK_BYTES {
            staging.pace.read(unseen);
            staging.step(Step::Reading)?;
            unseen = 0;
        }
    }
    pairs.finish()
}
