//! What clients use of the node, and how much of it there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use coppice_core::cost::Budget;

use crate::config::Limits;

/// Statuses that may be asked for at a time on the node: one answer serves all, so each costs little.
const STATUSES_MAX: usize = 4_096;

/// Verbs that may be under way on the node: most ask other nodes, over a connection each.
const VERBS_MAX: usize = 64;

/// Whoever shows wrong credentials waits so long for the answer. Less than a client waits for a connection, so that it
/// learns why; it holds no thread meanwhile, and is not read.
pub const STRANGER_WAITS: Duration = Duration::from_millis(500);

/// Connections of strangers that may wait at a node; beyond, they are closed at once and without an answer.
pub const STRANGERS_MAX: usize = 64;

/// A place among those of a kind that the node takes at a time, free again when dropped.
pub struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(places: &Arc<AtomicUsize>, most: usize) -> Option<Place> {
        let place = Place(Arc::clone(places));
        (places.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Of connections, requests, bytes and memory.
pub struct Usage {
    connections: AtomicUsize,
    /// Control requests of clients under way.
    statuses: Arc<AtomicUsize>,
    verbs: Arc<AtomicUsize>,
    /// Connections of strangers that wait for their answer.
    strangers: Arc<AtomicUsize>,
    /// Bytes of requests and answers on the node.
    budget: Arc<Budget>,
    /// Bytes of clients' frames that are not whole yet, and the most that the node takes.
    arriving_bytes: AtomicI64,
    node_bytes_max: u64,
    /// Bytes of range chunks that wait to be read by clients, and the most that the node takes.
    scan_bytes: AtomicI64,
    scan_bytes_max: u64,
    memory_full: AtomicBool,
    memory_spent: AtomicBool,
}

impl Usage {
    /// Nothing is used yet.
    pub fn new(limits: &Limits) -> Usage {
        Usage {
            connections: AtomicUsize::new(0),
            statuses: Arc::default(),
            verbs: Arc::default(),
            strangers: Arc::default(),
            budget: Budget::new(limits.node_bytes),
            arriving_bytes: AtomicI64::new(0),
            node_bytes_max: limits.node_bytes,
            scan_bytes: AtomicI64::new(0),
            scan_bytes_max: limits.scan_bytes,
            memory_full: AtomicBool::new(false),
            memory_spent: AtomicBool::new(false),
        }
    }

    /// Whether growing writes are refused for lack of memory.
    pub fn memory_is_full(&self) -> bool {
        self.memory_full.load(Ordering::Relaxed)
    }

    /// Whether so much memory is used that this node stops following leaders: one that is killed follows none
    /// either.
    pub fn memory_is_spent(&self) -> bool {
        self.memory_spent.load(Ordering::Relaxed)
    }

    /// So much memory is used; above the limit growing writes are refused, above nine eighths of it nothing is taken
    /// from other nodes that would make it more. No limit: 0.
    pub fn set_memory_used(&self, used: u64, limit: u64) {
        self.memory_full.store(limit > 0 && used > limit, Ordering::Relaxed);
        self.memory_spent.store(limit > 0 && used > limit.saturating_add(limit / 8), Ordering::Relaxed);
    }

    /// Bytes of requests and answers on the node, and how many more there may be (`limits.node_bytes`).
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Bytes of range chunks that wait to be read by clients.
    pub fn scan_bytes(&self) -> u64 {
        self.scan_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// So many bytes of range chunks wait for slow readers; negative: they wait no more.
    pub fn add_scan_bytes(&self, bytes: i64) {
        self.scan_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a connection on which `own` bytes of chunks wait may make more (`limits.scan_bytes`): one part in eight
    /// of what is left, so that readers that have stopped leave some to those that read.
    pub fn may_scan(&self, own: usize) -> bool {
        let left = self.scan_bytes_max as i64 - self.scan_bytes.load(Ordering::Relaxed);
        left > 0 && (own == 0 || (own as i64) < left / 8)
    }

    /// Bytes of frames that have begun to arrive: so many more, or fewer.
    pub fn add_arriving_bytes(&self, bytes: i64) {
        self.arriving_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether they are more than the node takes (`limits.node_bytes`).
    pub fn arrives_too_much(&self) -> bool {
        self.arriving_bytes.load(Ordering::Relaxed) > self.node_bytes_max as i64
    }

    /// A place for a stranger that waits [`STRANGER_WAITS`] for its answer; none: as many as may wait do.
    pub fn place_for_stranger(&self) -> Option<Place> {
        Place::take(&self.strangers, STRANGERS_MAX)
    }

    /// A place for a client's question for the status; none: as many are under way as the node takes.
    pub fn place_for_status(&self) -> Option<Place> {
        Place::take(&self.statuses, STATUSES_MAX)
    }

    /// The same for an operator's verb.
    pub fn place_for_verb(&self) -> Option<Place> {
        Place::take(&self.verbs, VERBS_MAX)
    }

    /// Client connections now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// A client connected.
    pub fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A client's connection ended.
    pub fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
