//! The file of what this node remembers of the others, written before a start that was not met yet is let in.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_client::map::PartitionMap;
use coppice_client::wire::NodeId;
use coppice_core::handshake::{MetNodes, Objection, Presence};

use super::DataDirError;
use crate::files::replace;

/// Its name in the data directory.
const FILE: &str = "incarnations";

/// [`MetNodes`] in their file. Any thread may ask.
#[derive(Debug)]
pub struct KnownIncarnations {
    dir: PathBuf,
    known: Mutex<MetNodes>,
    /// Held while a start is met: of two of the same node, one comes first.
    meeting: Mutex<()>,
}

impl KnownIncarnations {
    /// What the data directory at `dir` says.
    ///
    /// # Errors
    /// The file is there, and the system does not read it: a node that begins without it lets copies in.
    pub fn open(dir: &Path) -> Result<KnownIncarnations, DataDirError> {
        let path = dir.join(FILE);
        let file = match std::fs::read(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(DataDirError::Io { path, error }),
        };
        let (known, is_damaged) = MetNodes::read(file.as_deref());
        if is_damaged {
            tracing::warn!(file = FILE, "the file of known incarnations is damaged and begins empty");
        }
        Ok(KnownIncarnations { dir: dir.to_owned(), known: Mutex::new(known), meeting: Mutex::default() })
    }

    /// Whether who is at the other end of a connection may talk: see [`MetNodes::judge`]. If it is a start that was not
    /// met before, that is durable when this returns: it takes a flush then.
    ///
    /// # Errors
    /// For both. One that cannot be remembered is not let in: another one could take its place later.
    pub fn meet(&self, them: &Presence, map: &PartitionMap) -> Result<(), Objection> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = self.known().judge(them, map)?;
        if let Some(start) = judged {
            let unwritten = |error| Objection::Other(format!("this node cannot write down whom it meets: {error}"));
            replace(&self.dir, FILE, &start.file()).map_err(unwritten)?;
            self.known().take(start);
        }
        Ok(())
    }

    /// See [`MetNodes::copies`].
    pub fn copies(&self) -> BTreeMap<NodeId, String> {
        self.known().copies().clone()
    }

    /// See [`MetNodes::raise_durable`].
    pub fn raise_durable(&self, node: NodeId, durable_lsn: u64) {
        self.known().raise_durable(node, durable_lsn);
    }

    /// Whether this is the newest start of `node` that was let in: connections of older starts are over.
    pub fn is_newest(&self, node: NodeId, boot_id: u64) -> bool {
        self.known().table().is_newest(node, boot_id)
    }

    /// Writes down how far the others were durable too: at an orderly end.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self) -> io::Result<()> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known().table().clone();
        if known.is_empty() { Ok(()) } else { replace(&self.dir, FILE, &known.file()) }
    }

    fn known(&self) -> MutexGuard<'_, MetNodes> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
