//! Who this process is, whom it lets in, and whether others let it in.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use coppice_client::map::PartitionMap;
use coppice_client::wire::NodeId;
use coppice_core::handshake::{self, Objection, Presence};
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::IncarnationClaim;

use crate::datadir::DataDirError;
use crate::datadir::known_incarnations::{KnownIncarnations, MeetError};

/// This process among the nodes.
pub struct OwnNode {
    identity: RwLock<Option<Identity>>,
    /// What this start says of its log.
    claim: RwLock<IncarnationClaim>,
    /// What is remembered of each node that was met, to tell a copy of its directory (hazards.md PX12).
    pub incarnations: KnownIncarnations,
    may_speak: AtomicBool,
    /// Nodes that run on copies of their directories, as this one found out, and why.
    copies: Mutex<BTreeMap<NodeId, String>>,
}

impl OwnNode {
    /// Of the data directory at `dir`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(dir: &Path) -> Result<OwnNode, DataDirError> {
        Ok(OwnNode {
            identity: RwLock::default(),
            claim: RwLock::default(),
            incarnations: KnownIncarnations::open(dir)?,
            may_speak: AtomicBool::new(true),
            copies: Mutex::default(),
        })
    }

    /// Whether this process may speak for its replicas: asked before every message. Costs a load.
    pub fn may_speak(&self) -> bool {
        self.may_speak.load(Ordering::Acquire)
    }

    /// The controller says so.
    pub fn set_may_speak(&self, may: bool) {
        self.may_speak.store(may, Ordering::Release);
    }

    /// Who this node is.
    pub fn identity(&self) -> Option<Identity> {
        *self.identity.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this process says of itself to other nodes; none: it belongs to no cluster yet.
    pub fn presence(&self) -> Option<Presence> {
        let Identity { cluster, node, .. } = self.identity()?;
        let claim = *self.claim.read().unwrap_or_else(PoisonError::into_inner);
        Some(Presence { cluster, node, claim })
    }

    /// Set once, by `init` or at start.
    pub fn set_identity(&self, identity: Identity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    /// Whether who is at the other end of a connection may talk in this life. Of nodes that the map does not know
    /// nothing is remembered.
    ///
    /// # Errors
    /// For both: its claim contradicts what was met before, so it runs on a copy of its directory. Or it cannot be
    /// written down whom this node met.
    pub fn judge(&self, them: &Presence, map: &PartitionMap) -> Result<(), Objection> {
        if handshake::standing(them.node, map).is_err() {
            return Ok(());
        }
        let met = self.incarnations.meet(them.node, &them.claim);
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        match met {
            Ok(()) => {
                copies.remove(&them.node);
                Ok(())
            }
            Err(MeetError::Unwritten(error)) => Err(Objection::Other(MeetError::Unwritten(error).to_string())),
            Err(MeetError::Copy(error)) => {
                copies.insert(them.node, error.to_string());
                Err(Objection::Copy(error.to_string()))
            }
        }
    }

    /// Nodes that run on copies of their directories, as this one found out, and why.
    pub fn copies(&self) -> BTreeMap<NodeId, String> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What this start says of its log. Set once, when the log is open.
    pub fn set_claim(&self, claim: IncarnationClaim) {
        *self.claim.write().unwrap_or_else(PoisonError::into_inner) = claim;
    }
}
