//! The pairs of a checkpoint, as they are read.

use coppice_btree::{Key, Value};
use coppice_core::snapshot::{self, Blobs, LoadedSnapshot};

use super::stream::Decoder;
use super::{Checkpoint, CheckpointError, Chunk, Manifest, StreamError};

/// Whoever restores a checkpoint is told of its progress each time that so many bytes are read.
const TOLD_BYTES: u64 = 4 << 20;

impl Checkpoint {
    /// The state that it holds. `read` is told now and then how many bytes of keys and values were read.
    ///
    /// # Errors
    /// [`CheckpointError::Stream`], [`CheckpointError::Store`].
    pub fn restore(&self, mut read: impl FnMut(u64)) -> Result<LoadedSnapshot, CheckpointError> {
        let (blobs, mut pairs) = self.contents()?;
        let (mut bytes, mut told) = (0, 0);
        let observed = pairs.by_ref().inspect(|(key, value)| {
            bytes += (key.len() + value.len()) as u64;
            if bytes - told >= TOLD_BYTES {
                told = bytes;
                read(bytes);
            }
        });
        let loaded = snapshot::restore(&self.manifest.head, &blobs, observed);
        pairs.finish()?;
        loaded.map_err(|_| StreamError::Incomplete.into())
    }
}

/// The pairs of a checkpoint. Ends early if something is wrong; [`Pairs::finish`] says so.
pub struct Pairs {
    chunks: Box<dyn Iterator<Item = Result<Chunk, CheckpointError>> + Send>,
    decoder: Decoder,
    manifest: Manifest,
    error: Option<CheckpointError>,
}

impl Pairs {
    /// Reads the blobs that come first; the pairs are what is left.
    pub(super) fn behind_blobs(
        chunks: impl Iterator<Item = Result<Chunk, CheckpointError>> + Send + 'static,
        manifest: Manifest,
    ) -> Result<(Blobs, Pairs), CheckpointError> {
        let decoder = Decoder::new(manifest.head.clone());
        let mut pairs = Pairs { chunks: Box::new(chunks), decoder, manifest, error: None };
        loop {
            if let Some(blobs) = pairs.decoder.blobs()? {
                return Ok((blobs, pairs));
            }
            if !pairs.read_chunk()? {
                return Err(StreamError::Incomplete.into());
            }
        }
    }

    /// After the last pair: whether they were all there, and the right ones.
    ///
    /// # Errors
    /// What ended them early; [`CheckpointError::Stream`] if they are not those of the manifest.
    pub fn finish(self) -> Result<(), CheckpointError> {
        self.error.map_or(Ok(()), Err)?;
        Ok(self.decoder.finish(&self.manifest)?)
    }

    fn read_chunk(&mut self) -> Result<bool, CheckpointError> {
        let Some(chunk) = self.chunks.next() else { return Ok(false) };
        let Chunk { number, bytes, crc } = chunk?;
        self.decoder.push(number, &bytes, crc)?;
        Ok(true)
    }

    fn next_pair(&mut self) -> Result<Option<(Key, Value)>, CheckpointError> {
        loop {
            if let Some(pair) = self.decoder.next_pair()? {
                return Ok(Some(pair));
            }
            if !self.read_chunk()? {
                return Ok(None);
            }
        }
    }
}

impl std::fmt::Debug for Pairs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pairs").field("manifest", &self.manifest).field("error", &self.error).finish_non_exhaustive()
    }
}

impl Iterator for Pairs {
    type Item = (Key, Value);

    fn next(&mut self) -> Option<(Key, Value)> {
        if self.error.is_some() {
            return None;
        }
        self.next_pair().unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }
}
