//! The settings of one node, typed. Which name sets which field stands in `table`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use coppice_client::tls::{Files, Own};
use coppice_client::wire::NodeId;

use super::{Address, Origin};

/// Everything that one node is told at start. Topology is not here: it lives in replicated state (operations.md 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// A label for people; the directory gives ids.
    pub name: String,
    /// The only directory that the node writes to.
    pub data_dir: PathBuf,
    /// Peer addresses of the nodes that form the cluster, the same list on all of them. Empty: the node is its own
    /// seed.
    pub seeds: Vec<Address>,
    /// Where the node listens.
    pub listen: Listen,
    /// What others are told to dial, where that differs from `listen`.
    pub advertise: Advertise,
    /// Certificates of the node; without them it speaks in the clear.
    pub tls: TlsFiles,
    /// Allows listening beyond loopback without TLS and without an access file.
    pub insecure: bool,
    /// Allows the faults of the peer layer (cut, slow) and `dial_override`; loopback only.
    pub allow_faults: bool,
    /// Node number to the address that is dialled instead of that node's own; only with `allow_faults`.
    pub dial_override: BTreeMap<u32, Address>,
    /// Allows `log.flush = off`.
    pub unsafe_no_flush: bool,
    /// The acceptor log.
    pub log: LogConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Bytes of memory above which growing writes are refused.
    pub memory_limit: u64,
    /// Bounds of what the node takes on.
    pub limits: Limits,
    /// A connection without a complete handshake by then is closed.
    pub handshake_timeout: Duration,
    /// An idle connection is probed this often.
    pub keepalive: Duration,
    /// How long a stop waits for leaderships to move.
    pub drain_timeout: Duration,
    /// Threads that own replicas.
    pub worker_threads: usize,
    /// Pins each worker thread to a core.
    pub pin_threads: bool,
    /// How long an idle thread polls for work before it sleeps, where that pays (`crate::busy_poll`).
    pub busy_poll: Duration,
    /// A filter as `info` or `info,coppice_server::log=debug`.
    pub log_level: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Requests slower than this are logged with the time of each stage.
    pub slow_request: Duration,
    /// Where each value comes from that is no default, by the name of its setting.
    pub origins: BTreeMap<&'static str, Origin>,
}

/// Where the node listens. Port 0 takes any free port; `endpoints.json` then tells which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Clients and operators.
    pub native: Address,
    /// Other nodes.
    pub peer: Address,
    /// Clients that speak RESP; none if `off`.
    pub resp: Option<Address>,
    /// Health and metrics over HTTP; none if `off`.
    pub admin: Option<Address>,
}

/// Addresses that others dial. None: the one of `listen`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Advertise {
    /// For clients.
    pub native: Option<Address>,
    /// For other nodes.
    pub peer: Option<Address>,
    /// For clients that speak RESP.
    pub resp: Option<Address>,
    /// For browsers and scrapers.
    pub admin: Option<Address>,
}

/// Where the certificates of a node are: all of them are given, or none is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsFiles {
    /// Authorities.
    pub ca: Option<PathBuf>,
    /// The node's certificate.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// For the library that reads them; none: the node speaks in the clear.
    #[must_use]
    pub fn files(&self) -> Option<Files> {
        let (ca, cert, key) = (self.ca.clone()?, self.cert.clone()?, self.key.clone()?);
        Some(Files { ca, own: Some(Own { cert, key }) })
    }
}

/// The acceptor log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments that are zeroed before they are needed.
    pub segments_ahead: usize,
    /// How a record becomes durable.
    pub flush: Flush,
    /// Bytes of the disk that stay free: below, growing writes are refused.
    pub disk_reserve: u64,
    /// What happens to segments that are no longer needed.
    pub keep: Keep,
}

/// How a record becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Every answered write was flushed to the device.
    Fdatasync,
    /// Nothing is flushed: a power cut may lose answered writes. Only with `unsafe_no_flush`.
    Off,
}

/// What happens to segments that are no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// They are deleted.
    Trim,
    /// They are moved aside, for tests that read whole logs.
    All,
}

/// Checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Bytes of log after which a new one is written; never less often than the last one's size asks.
    pub log_bytes: u64,
    /// Bytes per second that writing one may take from the disk.
    pub rate: u64,
    /// Bytes of cache while one is written or read.
    pub cache: u64,
}

/// Bounds of what the node takes on. What is beyond is answered `Busy`, or waits in the socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Client connections.
    pub connections: usize,
    /// Requests in flight per connection.
    pub inflight: usize,
    /// Bytes of requests in flight per connection.
    pub inflight_bytes: u64,
    /// Bytes of requests in flight on the node.
    pub node_bytes: u64,
    /// Bytes of scan parts under way on the node.
    pub scan_bytes: u64,
    /// Inputs that the mailbox of one worker holds.
    pub mailbox: usize,
    /// How long a client may take nothing of what waits for it.
    pub stalled_reader: Duration,
    /// How long a scan may hold its snapshot.
    pub scan_snapshot_max_age: Duration,
    /// Memory that the snapshot of a scan may keep alive.
    pub scan_snapshot_bytes: u64,
    /// Replicas that the node may hold.
    pub partitions: usize,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else json.
    Auto,
    /// For people.
    Pretty,
    /// One object per line.
    Json,
}

impl Default for NodeConfig {
    /// Every setting at its default, without looking at environment or file.
    fn default() -> Self {
        super::table::defaults()
    }
}

impl NodeConfig {
    /// What gives the place of this node, which is `node`, to an empty one at the same address.
    pub fn replace_command(&self, node: NodeId) -> String {
        let address = self.advertise.peer.as_ref().unwrap_or(&self.listen.peer);
        format!("coppice node replace {node} {address}")
    }

    /// A value for the table to fill; never seen outside of this module.
    pub(super) fn blank() -> Self {
        let nowhere = || Address::new("", 0);
        Self {
            name: String::new(),
            data_dir: PathBuf::new(),
            seeds: Vec::new(),
            listen: Listen { native: nowhere(), peer: nowhere(), resp: None, admin: None },
            advertise: Advertise::default(),
            tls: TlsFiles::default(),
            insecure: false,
            allow_faults: false,
            dial_override: BTreeMap::new(),
            unsafe_no_flush: false,
            log: LogConfig {
                segment_bytes: 0,
                segments_ahead: 0,
                flush: Flush::Fdatasync,
                disk_reserve: 0,
                keep: Keep::Trim,
            },
            checkpoint: CheckpointConfig { log_bytes: 0, rate: 0, cache: 0 },
            memory_limit: 0,
            limits: Limits::default(),
            handshake_timeout: Duration::ZERO,
            keepalive: Duration::ZERO,
            drain_timeout: Duration::ZERO,
            worker_threads: 0,
            pin_threads: false,
            busy_poll: Duration::ZERO,
            log_level: String::new(),
            log_format: LogFormat::Auto,
            slow_request: Duration::ZERO,
            origins: BTreeMap::new(),
        }
    }

    /// What clients are told to dial, given the address that is really listened on (port 0 has become a port).
    #[must_use]
    pub fn advertised_native(&self, bound: std::net::SocketAddr) -> Address {
        advertised(self.advertise.native.as_ref(), &self.listen.native, bound)
    }

    /// What other nodes are told to dial, given the address that is really listened on.
    #[must_use]
    pub fn advertised_peer(&self, bound: std::net::SocketAddr) -> Address {
        advertised(self.advertise.peer.as_ref(), &self.listen.peer, bound)
    }

    /// What RESP clients are told to dial, given the address that is really listened on; none if that is off.
    #[must_use]
    pub fn advertised_resp(&self, bound: std::net::SocketAddr) -> Option<Address> {
        let listen = self.listen.resp.as_ref()?;
        Some(advertised(self.advertise.resp.as_ref(), listen, bound))
    }

    /// Where health and metrics are found, given the address that is really listened on; none if they are off.
    #[must_use]
    pub fn advertised_admin(&self, bound: std::net::SocketAddr) -> Option<Address> {
        let listen = self.listen.admin.as_ref()?;
        Some(advertised(self.advertise.admin.as_ref(), listen, bound))
    }
}

/// A configured name stays a name; only a port 0 is replaced by what the system gave.
fn advertised(advertise: Option<&Address>, listen: &Address, bound: std::net::SocketAddr) -> Address {
    let address = advertise.unwrap_or(listen);
    if address.port() == 0 { address.with_port(bound.port()) } else { address.clone() }
}
