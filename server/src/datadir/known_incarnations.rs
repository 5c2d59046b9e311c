//! The file of what this node remembers of the others, written before a start that was not met yet is let in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_client::wire::NodeId;
use coppice_core::incarnation::claim::{ClaimError, IncarnationClaim};
use coppice_core::incarnation::table::IncarnationTable;

use super::DataDirError;
use crate::files::replace;

/// Its name in the data directory.
const FILE: &str = "incarnations";

/// Why a node is not let in.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// It runs on a copy of its directory, or another process does.
    #[error(transparent)]
    Copy(#[from] ClaimError),
    /// It cannot be remembered, and so another one could take its place later.
    #[error("this node cannot write down whom it meets: {0}")]
    Unwritten(#[from] io::Error),
}

/// An [`IncarnationTable`] in its file. Any thread may ask.
#[derive(Debug)]
pub struct KnownIncarnations {
    dir: PathBuf,
    known: Mutex<IncarnationTable>,
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
        let (known, is_damaged) = IncarnationTable::read(file.as_deref());
        if is_damaged {
            tracing::warn!(file = FILE, "the file of known incarnations is damaged and begins empty");
        }
        Ok(KnownIncarnations { dir: dir.to_owned(), known: Mutex::new(known), meeting: Mutex::default() })
    }

    /// Whether `node` may talk, which claims this. If it is a start that was not met before, that is durable when this
    /// returns: it takes a flush then.
    ///
    /// # Errors
    /// [`MeetError`]: refuse it.
    pub fn meet(&self, node: NodeId, claim: &IncarnationClaim) -> Result<(), MeetError> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = self.known().judge(node, claim)?;
        if let Some(newer) = judged {
            replace(&self.dir, FILE, &newer.file())?;
            self.known().take(node, newer);
        }
        Ok(())
    }

    /// See [`IncarnationTable::told`].
    pub fn told(&self, node: NodeId, durable_lsn: u64) {
        self.known().told(node, durable_lsn);
    }

    /// See [`IncarnationTable::is_newest`]: connections of older starts are over.
    pub fn is_newest(&self, node: NodeId, boot_id: u64) -> bool {
        self.known().is_newest(node, boot_id)
    }

    /// Writes down how far the others were durable too: at an orderly end.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self) -> io::Result<()> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known().clone();
        if known.is_empty() { Ok(()) } else { replace(&self.dir, FILE, &known.file()) }
    }

    fn known(&self) -> MutexGuard<'_, IncarnationTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
