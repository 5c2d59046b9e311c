//! Who this process is, whom it lets in, and whether others let it in.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use coppice_core::handshake::Presence;
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::IncarnationClaim;

use crate::datadir::DataDirError;
use crate::datadir::known_incarnations::KnownIncarnations;

/// This process among the nodes.
pub struct OwnNode {
    identity: RwLock<Option<Identity>>,
    /// What this start says of its log.
    claim: RwLock<IncarnationClaim>,
    /// What is remembered of each node that was met, to tell a copy of its directory (hazards.md PX12).
    pub incarnations: KnownIncarnations,
    may_speak: AtomicBool,
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

    /// What this start says of its log. Set once, when the log is open.
    pub fn set_claim(&self, claim: IncarnationClaim) {
        *self.claim.write().unwrap_or_else(PoisonError::into_inner) = claim;
    }
}
