//! What the threads of a node share beside the mailboxes: read often, written rarely, never on the data path's way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use coppice_client::map::PartitionMap;
use coppice_client::tls::Tls;
use coppice_client::wire::{LinkFault, NodeId, PartitionId};
use coppice_core::access::Access;
use coppice_core::cost::Budget;
use coppice_core::failure_detector::LastHeard;
use coppice_ordering::Time;
use tokio::sync::mpsc::UnboundedSender;

use crate::config::NodeConfig;
use crate::control::{Control, ToControl};
use crate::datadir::Identity;
use crate::datadir::claim::Claim;
use crate::datadir::witnesses::{MeetError, Witnesses};
use crate::durable::DurableUpto;
use crate::logging::Logging;
use crate::mailbox::Sender;
use crate::metrics;
use crate::net::clients::ClientConnections;
use crate::net::handshake::{self, Objection, PEER_PROTOCOL, PeerHello, Presence, Purpose};
use crate::net::peer_in::Places;
use crate::shard::ToShard;
use crate::vetting::Vetting;

/// Statuses that may be asked for at a time on the node: one answer serves all, so each costs little.
const STATUSES_MAX: usize = 4_096;

/// Verbs that may be under way on the node: most ask other nodes, over a connection each.
const VERBS_MAX: usize = 64;

/// What the log says of a node that has forgotten promises.
const COPY_FOUND: &str = "this node runs on a copy of its data directory: it votes no more";

/// A place among the control requests of the node, free again when dropped.
pub struct ControlPlace(Arc<AtomicUsize>);

impl ControlPlace {
    fn take(places: &Arc<AtomicUsize>, most: usize) -> Option<ControlPlace> {
        let place = ControlPlace(Arc::clone(places));
        (places.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for ControlPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shared by all threads of a node.
pub struct Shared {
    /// This node's settings.
    pub config: NodeConfig,
    /// Its metrics.
    pub metrics: metrics::Node,
    durable_upto: Vec<DurableUpto>,
    senders: Vec<Sender<ToShard>>,
    control: UnboundedSender<ToControl>,
    identity: RwLock<Option<Identity>>,
    /// What this start says of its log.
    claim: RwLock<Claim>,
    map: RwLock<Arc<PartitionMap>>,
    /// The users as this node knows them: read when a connection greets and when they change.
    access: RwLock<Arc<Access>>,
    /// Leaders as this node knows them.
    leaders: Mutex<BTreeMap<PartitionId, NodeId>>,
    leaders_version: AtomicU64,
    /// What is remembered of each node that was met, to tell a copy of its directory (hazards.md PX12).
    pub witnesses: Witnesses,
    /// Whether this process may speak for its replicas.
    pub vetting: Vetting,
    /// Nodes that run on copies of their directories, as this one found out, and why.
    copies: Mutex<BTreeMap<NodeId, String>>,
    /// What was heard of the other nodes, by any shard.
    heard: Mutex<BTreeMap<NodeId, LastHeard>>,
    /// Other nodes that said that they have no room, on disk or in memory.
    full_nodes: Mutex<BTreeSet<NodeId>>,
    /// Whether there are any: asked for every write.
    any_full_node: AtomicBool,
    /// Peer addresses of the other nodes.
    peers: Mutex<BTreeMap<NodeId, String>>,
    clients: ClientConnections,
    places: Places,
    connections: AtomicUsize,
    /// Control requests of clients under way.
    statuses: Arc<AtomicUsize>,
    verbs: Arc<AtomicUsize>,
    /// Connections of strangers that wait for their answer.
    strangers: AtomicUsize,
    /// Bytes of requests and answers on the node.
    budget: Arc<Budget>,
    /// Bytes of clients' frames that are not whole yet.
    arriving_bytes: AtomicI64,
    /// Bytes of range chunks that wait to be read by clients.
    scan_bytes: AtomicI64,
    durable_lsn: AtomicU64,
    /// Nanoseconds that threads spent looking for work.
    looked: AtomicU64,
    memory_full: AtomicBool,
    memory_spent: AtomicBool,
    draining: AtomicBool,
    logging: Option<Logging>,
    /// Certificates; none: connections are in the clear.
    tls: Option<Tls>,
    /// Faults of the ways to other nodes.
    faults: Mutex<BTreeMap<NodeId, LinkFault>>,
}

impl Shared {
    /// Shared state of a node with these shard mailboxes.
    pub fn new(
        config: NodeConfig,
        metrics: metrics::Node,
        senders: Vec<Sender<ToShard>>,
        control: UnboundedSender<ToControl>,
        logging: Option<Logging>,
        tls: Option<Tls>,
    ) -> Arc<Shared> {
        let witnesses = Witnesses::open(&config.data_dir);
        Arc::new(Shared {
            budget: Budget::new(config.limits.node_bytes),
            config,
            witnesses,
            vetting: Vetting::default(),
            copies: Mutex::default(),
            metrics,
            durable_upto: senders.iter().map(|_| DurableUpto::default()).collect(),
            senders,
            control,
            identity: RwLock::default(),
            claim: RwLock::default(),
            map: RwLock::default(),
            access: RwLock::default(),
            leaders: Mutex::default(),
            leaders_version: AtomicU64::new(0),
            heard: Mutex::default(),
            full_nodes: Mutex::default(),
            any_full_node: AtomicBool::new(false),
            peers: Mutex::default(),
            clients: ClientConnections::default(),
            places: Places::default(),
            connections: AtomicUsize::new(0),
            statuses: Arc::default(),
            verbs: Arc::default(),
            strangers: AtomicUsize::new(0),
            arriving_bytes: AtomicI64::new(0),
            scan_bytes: AtomicI64::new(0),
            durable_lsn: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            memory_full: AtomicBool::new(false),
            memory_spent: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            logging,
            tls,
            faults: Mutex::default(),
        })
    }

    /// The node's certificates; none: its connections are in the clear.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.senders.len()
    }

    /// How far the log is durable for the groups of a shard, as that has not heard yet.
    pub fn durable_upto(&self, shard: usize) -> &DurableUpto {
        &self.durable_upto[shard]
    }

    /// The mailbox of a shard.
    pub fn sender(&self, shard: usize) -> &Sender<ToShard> {
        &self.senders[shard]
    }

    /// The mailbox of the shard that owns `group`.
    pub fn owner(&self, group: PartitionId) -> &Sender<ToShard> {
        &self.senders[group.0 as usize % self.senders.len()]
    }

    /// Tells the control thread; it bounds itself, since shards speak to it only on rare events.
    pub fn tell_control(&self, message: ToControl) {
        _ = self.control.send(message);
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

    /// The first frame of a connection to `to`.
    pub fn hello(&self, purpose: Purpose, to: Option<NodeId>) -> PeerHello {
        PeerHello { protocol: PEER_PROTOCOL, purpose, from: self.presence(), to }
    }

    /// Set once, by `init` or at start.
    pub fn set_identity(&self, identity: Identity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    /// The newest map that this node knows; version 0 before there is one.
    pub fn map(&self) -> Arc<PartitionMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses `map` from now on if it is newer.
    pub fn set_map(&self, map: Arc<PartitionMap>) -> bool {
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let newer = map.version > current.version;
        if newer {
            *current = map;
        }
        newer
    }

    /// The users as this node knows them.
    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Goes by `access` from now on: whoever connects at once, and each connection that stands when its shard is told.
    pub fn set_access(&self, access: Access) -> Arc<Access> {
        let access = Arc::new(access);
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&access);
        access
    }

    /// The leader of `group`, as this node knows it.
    pub fn leader(&self, group: PartitionId) -> Option<NodeId> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).get(&group).copied()
    }

    /// All leaders that this node knows.
    pub fn leaders(&self) -> BTreeMap<PartitionId, NodeId> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes who leads `group`; whether that is news.
    pub fn set_leader(&self, group: PartitionId, leader: Option<NodeId>) -> bool {
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match leader {
            Some(leader) => leaders.insert(group, leader),
            None => leaders.remove(&group),
        };
        if before != leader {
            self.leaders_version.fetch_add(1, Ordering::Relaxed);
        }
        before != leader
    }

    /// Counts changes of leaders. Costs a load.
    pub fn leaders_version(&self) -> u64 {
        self.leaders_version.load(Ordering::Relaxed)
    }

    /// Whether growing writes are refused for lack of memory.
    pub fn memory_is_full(&self) -> bool {
        self.memory_full.load(Ordering::Relaxed)
    }

    /// Whether so much memory is used that this node follows no leader any more: one that is killed follows none
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

    /// Whether the node is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The node is about to stop.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Where other nodes reach `node`.
    pub fn peer_address(&self, node: NodeId) -> Option<String> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    /// Other nodes reach `node` there: told by `init`, later by the map.
    pub fn set_peer_address(&self, node: NodeId, address: &str) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(node, address.to_owned());
    }

    /// Whether who is at the other end of a connection may talk in this life. Of nodes that the map does not know
    /// nothing is remembered.
    ///
    /// # Errors
    /// For both: its claim contradicts what was met before, so it runs on a copy of its directory. Or it cannot be
    /// written down whom this node met.
    pub fn judge(&self, them: &Presence) -> Result<(), Objection> {
        if handshake::standing(them.node, &self.map()).is_err() {
            return Ok(());
        }
        let met = self.witnesses.meet(them.node, &them.claim);
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

    /// Node `by` says that this one runs on a copy of its directory. It takes part in nothing any more, and says so.
    pub fn found_out(&self, by: NodeId, text: &str) {
        if self.vetting.is_copy(text) {
            tracing::error!(%by, reason = text, next = %self.instead_of_copy(), "{COPY_FOUND}");
            self.tell_control(ToControl::Call(Box::new(Control::stop_as_copy)));
        }
    }

    /// A node said so to a process that used this directory before.
    pub fn was_found_out(&self, text: &str) {
        self.vetting.is_copy(text);
        tracing::error!(reason = text, next = %self.instead_of_copy(), "{COPY_FOUND}");
    }

    /// The command that comes next where this node runs on a copy.
    fn instead_of_copy(&self) -> String {
        self.identity().map(|own| self.config.replace_command(own.node)).unwrap_or_default()
    }

    /// Something came from `node`, on a new connection or on one that stands.
    pub fn heard(&self, node: NodeId, now: Time, anew: bool) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = heard.entry(node).or_default();
        heard.at = heard.at.max(now);
        heard.life += u64::from(anew);
    }

    /// Another node says whether its disk is filled to the reserve, or its memory to the limit.
    pub fn set_node_full(&self, node: NodeId, full: bool) {
        let mut nodes = self.full_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if full {
            nodes.insert(node);
        } else {
            nodes.remove(&node);
        }
        self.any_full_node.store(!nodes.is_empty(), Ordering::Relaxed);
    }

    /// Other nodes that have no room, as they said last. Costs a load where all have.
    pub fn full_nodes(&self) -> BTreeSet<NodeId> {
        match self.any_full_node.load(Ordering::Relaxed) {
            true => self.full_nodes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            false => BTreeSet::new(),
        }
    }

    /// What was heard of each node so far.
    pub fn heard_of(&self) -> Vec<(NodeId, LastHeard)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().map(|(node, heard)| (*node, *heard)).collect()
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

    /// What this start says of its log. Set once, when the log is open.
    pub fn set_claim(&self, claim: Claim) {
        *self.claim.write().unwrap_or_else(PoisonError::into_inner) = claim;
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

    /// What is done to messages from here to others (`allow_faults`).
    pub fn set_faults(&self, faults: Vec<LinkFault>) {
        let faults = faults.into_iter().map(|fault| (fault.to, fault)).collect();
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Whether nothing may pass from here to `node`.
    pub fn is_cut_off(&self, node: NodeId) -> bool {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.get(&node).is_some_and(|fault| fault.cut)
    }

    /// Bytes of requests and answers on the node, and how many more there may be (`limits.node_bytes`).
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// So many bytes of range chunks wait for slow readers; negative: they wait no more.
    pub fn add_scan_bytes(&self, bytes: i64) {
        self.scan_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a connection on which `own` bytes of chunks wait may make more (`limits.scan_bytes`): one part in eight
    /// of what is left, so that readers that have stopped leave some to those that read.
    pub fn may_scan(&self, own: usize) -> bool {
        let left = self.config.limits.scan_bytes as i64 - self.scan_bytes.load(Ordering::Relaxed);
        left > 0 && (own == 0 || (own as i64) < left / 8)
    }

    /// Shows what the log has held back and whose time has come.
    pub fn show_held_back(&self) {
        if let Some(logging) = &self.logging {
            logging.show_held_back();
        }
    }

    /// On which connection each client is reached.
    pub fn clients(&self) -> &ClientConnections {
        &self.clients
    }

    /// Connections of other nodes.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Bytes of frames that have begun to arrive: so many more, or fewer.
    pub fn add_arriving_bytes(&self, bytes: i64) {
        self.arriving_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether they are more than the node takes (`limits.node_bytes`).
    pub fn arrives_too_much(&self) -> bool {
        self.arriving_bytes.load(Ordering::Relaxed) > self.config.limits.node_bytes as i64
    }

    /// A stranger is to wait for an answer; `false`: as many as may wait do.
    pub fn stranger_waits(&self, most: usize) -> bool {
        let more = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.strangers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A stranger has waited.
    pub fn stranger_goes(&self) {
        self.strangers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A place for a client's question for the status; none: as many are under way as the node takes.
    pub fn place_for_status(self: &Arc<Shared>) -> Option<ControlPlace> {
        ControlPlace::take(&self.statuses, STATUSES_MAX)
    }

    /// The same for an operator's verb.
    pub fn place_for_verb(self: &Arc<Shared>) -> Option<ControlPlace> {
        ControlPlace::take(&self.verbs, VERBS_MAX)
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
