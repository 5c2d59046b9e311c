//! What this node remembers of the others: a small file, written whenever a life of another node is met for the first
//! time, before that node is let in ([`super::claim`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use coppice_client::wire::NodeId;

use super::claim::{Claim, ClaimError, Met, Witness};
use super::replace;

/// Its name in the data directory.
const FILE: &str = "witnesses";

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

/// What is remembered of every node that was met. Any thread may ask.
#[derive(Debug)]
pub struct Witnesses {
    dir: PathBuf,
    known: Mutex<BTreeMap<NodeId, Witness>>,
    /// Held while a life is met: of two of the same node, one comes first.
    meeting: Mutex<()>,
}

impl Witnesses {
    /// What the data directory at `dir` says. A file that is damaged says nothing, and is written anew.
    pub fn open(dir: &Path) -> Witnesses {
        let known = match std::fs::read(dir.join(FILE)) {
            Ok(bytes) => decode(&bytes).unwrap_or_else(|| {
                tracing::warn!(file = FILE, "what is remembered of other nodes is damaged, and begins anew");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        let known = if crate::mutant!(witness_forgets) { BTreeMap::new() } else { known };
        Witnesses { dir: dir.to_owned(), known: Mutex::new(known), meeting: Mutex::default() }
    }

    /// Whether `node` may talk, which claims this. If it is a life that was not met before, that is durable when this
    /// returns: it takes a flush then.
    ///
    /// # Errors
    /// [`MeetError`]: refuse it.
    pub fn meet(&self, node: NodeId, claim: &Claim) -> Result<(), MeetError> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = self.known().get(&node).copied().unwrap_or_default().judge(claim)?;
        if let Met::New(witness) = judged {
            let mut newer = self.known().clone();
            newer.insert(node, witness);
            replace(&self.dir, FILE, &encode(&newer))?;
            self.known().insert(node, witness);
        }
        Ok(())
    }

    /// `node` said how far its log is durable, on a connection that was let in.
    pub fn told(&self, node: NodeId, durable_lsn: u64) {
        if let Some(witness) = self.known().get_mut(&node) {
            witness.told(durable_lsn);
        }
    }

    /// Whether this is the newest life of `node` that was let in: connections of older ones are over.
    pub fn is_newest(&self, node: NodeId, life: u64) -> bool {
        self.known().get(&node).is_none_or(|witness| witness.is(life))
    }

    /// Writes down how far the others were durable too: at an orderly end.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self) -> io::Result<()> {
        let _meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known().clone();
        if known.is_empty() { Ok(()) } else { replace(&self.dir, FILE, &encode(&known)) }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NodeId, Witness>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode(known: &BTreeMap<NodeId, Witness>) -> Vec<u8> {
    let body = postcard::to_stdvec(known).expect("plain data");
    [&FORMAT[..], &crc32c::crc32c(&body).to_le_bytes(), &body].concat()
}

fn decode(bytes: &[u8]) -> Option<BTreeMap<NodeId, Witness>> {
    let (crc, body) = bytes.strip_prefix(FORMAT)?.split_at_checked(4)?;
    if crc != crc32c::crc32c(body).to_le_bytes() {
        return None;
    }
    postcard::from_bytes(body).ok()
}
