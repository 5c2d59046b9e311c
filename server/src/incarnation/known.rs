//! What this node remembers of the others: a small file, written whenever a start of another node is met for the first
//! time, before that node is let in ([`super::claim`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_client::wire::NodeId;

use super::claim::{ClaimError, IncarnationClaim, Judgement, KnownIncarnation};
use crate::files::replace;

/// Its name in the data directory.
const FILE: &str = "incarnations";

/// First bytes of the file: its format.
const FORMAT: &[u8; 8] = b"COPPWIT\x01";

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

/// What is remembered of every node that was met. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncarnationTable(BTreeMap<NodeId, KnownIncarnation>);

impl IncarnationTable {
    /// What the file says; none: there is none. One that is damaged says nothing, and is written anew.
    pub fn read(file: Option<&[u8]>) -> IncarnationTable {
        if mutant!(incarnation_table_forgotten) {
            return IncarnationTable::default();
        }
        let Some(bytes) = file else { return IncarnationTable::default() };
        decode(bytes).unwrap_or_else(|| {
            tracing::warn!(file = FILE, "the file of known incarnations is damaged and begins empty");
            IncarnationTable::default()
        })
    }

    /// What the file is to say.
    pub fn file(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(&self.0).expect("plain data");
        [&FORMAT[..], &crc32c::crc32c(&body).to_le_bytes(), &body].concat()
    }

    /// Whether `node` may talk, which claims this. If it is a start that was not met before, returns what is to be
    /// remembered, durably, before it is let in.
    ///
    /// # Errors
    /// Refuse it.
    pub fn judge(&self, node: NodeId, claim: &IncarnationClaim) -> Result<Option<IncarnationTable>, ClaimError> {
        let known = self.0.get(&node).copied().unwrap_or_default();
        Ok(match known.judge(claim)? {
            Judgement::Known => None,
            Judgement::New(met) => {
                let mut newer = self.clone();
                newer.0.insert(node, met);
                Some(newer)
            }
        })
    }

    /// Takes over what `newer` says of `node`.
    fn take(&mut self, node: NodeId, mut newer: IncarnationTable) {
        if let Some(met) = newer.0.remove(&node) {
            self.0.insert(node, met);
        }
    }

    /// `node` said how far its log is durable, on a connection that was let in.
    pub fn told(&mut self, node: NodeId, durable_lsn: u64) {
        if let Some(met) = self.0.get_mut(&node) {
            met.told(durable_lsn);
        }
    }

    /// Whether this is the newest start of `node` that was let in; none was: yes.
    pub fn is_newest(&self, node: NodeId, boot_id: u64) -> bool {
        self.0.get(&node).is_none_or(|met| met.is(boot_id))
    }

    /// Whether nobody was met.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn decode(bytes: &[u8]) -> Option<IncarnationTable> {
    let (crc, body) = bytes.strip_prefix(FORMAT)?.split_at_checked(4)?;
    if crc != crc32c::crc32c(body).to_le_bytes() {
        return None;
    }
    postcard::from_bytes(body).ok().map(IncarnationTable)
}

/// The same in a file of the data directory. Any thread may ask.
#[derive(Debug)]
pub struct KnownIncarnations {
    dir: PathBuf,
    known: Mutex<IncarnationTable>,
    /// Held while a start is met: of two of the same node, one comes first.
    meeting: Mutex<()>,
}

impl KnownIncarnations {
    /// What the data directory at `dir` says.
    pub fn open(dir: &Path) -> KnownIncarnations {
        let known = IncarnationTable::read(std::fs::read(dir.join(FILE)).ok().as_deref());
        KnownIncarnations { dir: dir.to_owned(), known: Mutex::new(known), meeting: Mutex::default() }
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
            // Only this one: the others may have said meanwhile how far they are durable.
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
