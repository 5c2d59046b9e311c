//! What the threads of a node share beside the mailboxes: read often, written rarely, never on the data path's way.

mod cluster_view;
mod own;
mod partial_frame;
mod peers;
mod recovery;
mod usage;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coppice_client::tls::Tls;
use coppice_client::wire::NodeId;
use coppice_core::connection::ClientConnections;
use coppice_core::handshake::{Objection, PeerHello, Presence, Purpose, peer_protocol};
use coppice_core::settings::FEATURE_LEVEL;

pub use self::cluster_view::ClusterView;
pub use self::own::OwnNode;
pub use self::partial_frame::PartialFrame;
pub use self::peers::Peers;
pub use self::recovery::{Recovery, RecoveryStep};
pub use self::usage::{Place, STRANGER_WAITS, STRANGERS_MAX, Usage};
use crate::config::NodeConfig;
use crate::datadir::DataDirError;
use crate::logging::Logging;
use crate::messages::{TellControl, ToControl};
use crate::metrics;
use crate::net::peer_slots::PeerSlots;

/// Shared by all threads of a node.
pub struct Shared {
    /// This node's settings.
    pub config: NodeConfig,
    pub metrics: metrics::Node,
    /// This process among the nodes.
    pub own: OwnNode,
    /// The cluster as this node knows it.
    pub cluster: ClusterView,
    /// The other nodes.
    pub peers: Peers,
    /// What clients use of the node.
    pub usage: Usage,
    /// What this start has still to read and to execute.
    pub recovery: Recovery,
    control: TellControl,
    clients: Mutex<ClientConnections>,
    peer_slots: PeerSlots,
    durable_lsn: AtomicU64,
    /// Nanoseconds that threads spent looking for work.
    looked: AtomicU64,
    draining: AtomicBool,
    logging: Option<Logging>,
    /// Certificates; none: connections are in the clear.
    tls: Option<Tls>,
}

impl Shared {
    /// Shared state of a node.
    ///
    /// # Errors
    /// What the data directory remembers of other nodes cannot be read.
    pub fn new(
        config: NodeConfig,
        metrics: metrics::Node,
        control: TellControl,
        logging: Option<Logging>,
        tls: Option<Tls>,
    ) -> Result<Arc<Shared>, DataDirError> {
        Ok(Arc::new(Shared {
            own: OwnNode::new(&config.data_dir)?,
            cluster: ClusterView::default(),
            peers: Peers::default(),
            usage: Usage::new(&config.limits),
            recovery: Recovery::new(metrics.clone()),
            config,
            metrics,
            control,
            clients: Mutex::default(),
            peer_slots: PeerSlots::default(),
            durable_lsn: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            logging,
            tls,
        }))
    }

    /// The node's certificates; none: its connections are in the clear.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Tells the control thread; it bounds itself, since worker threads speak to it only on rare events.
    pub fn tell_control(&self, message: ToControl) {
        (self.control)(message);
    }

    /// The first frame of a connection to `to`.
    pub fn hello(&self, purpose: Purpose, to: Option<NodeId>) -> PeerHello {
        let level = match self.cluster.feature_level() {
            // Whoever forms a cluster gives it the newest level.
            0 if purpose == Purpose::Forming => FEATURE_LEVEL,
            level => level,
        };
        PeerHello { protocol: peer_protocol(level), purpose, from: self.own.presence(), to }
    }

    /// Whether the node is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The node is about to stop.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// How far this node's log is durable: told to others with every vote, so that they know an old copy of it.
    pub fn durable_lsn(&self) -> u64 {
        self.durable_lsn.load(Ordering::Relaxed)
    }

    /// Everything up to `lsn` of this node's log is durable.
    pub fn set_durable_lsn(&self, lsn: u64) {
        self.durable_lsn.store(lsn, Ordering::Relaxed);
    }

    /// A thread had nothing to do and looked for work for so long.
    pub fn looked(&self, took: Duration) {
        self.looked.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Time that all threads together spent looking for work so far.
    pub fn looked_so_far(&self) -> Duration {
        Duration::from_nanos(self.looked.load(Ordering::Relaxed))
    }

    /// Whether who is at the other end of a connection may talk: see [`coppice_core::handshake::MetNodes::judge`].
    ///
    /// # Errors
    /// For both.
    pub fn judge(&self, them: &Presence) -> Result<(), Objection> {
        self.own.incarnations.meet(them, &self.cluster.map())
    }

    /// Changes what this node logs.
    ///
    /// # Errors
    /// In words: the specification cannot be read, or the program set no log up.
    pub fn set_log_level(&self, spec: &str) -> Result<(), String> {
        match &self.logging {
            Some(logging) => logging.set_level(spec).map_err(|error| error.to_string()),
            None => Err("this process logs nothing".into()),
        }
    }

    /// What this node logs, if that was changed since it started.
    pub fn changed_log_level(&self) -> Option<String> {
        self.logging.as_ref()?.other_than(&self.config.log_level)
    }

    /// Shows what the log has held back and whose time has come.
    pub fn show_held_back(&self) {
        if let Some(logging) = &self.logging {
            logging.show_held_back();
        }
    }

    /// On which connection each client is reached.
    pub fn clients(&self) -> MutexGuard<'_, ClientConnections> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections of other nodes.
    pub fn peer_slots(&self) -> &PeerSlots {
        &self.peer_slots
    }
}
