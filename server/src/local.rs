//! A whole cluster inside one process, for tests and for programs that embed one: real sockets, real files, real
//! flushes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    AdminReply, AdminRequest, ClientId, FrameDecoder, Hello, InitRequest, Kind, NodeId, PROTOCOL, PartitionId,
};

use crate::config::{Address, Listen, NodeConfig};
use crate::node::{Node, StartError};

mod ports;

pub use ports::HeldPorts;

/// What a local cluster is made of.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Nodes, at least one.
    pub nodes: usize,
    /// Partitions at the beginning.
    pub partitions: u32,
    /// Cluster settings that differ from their defaults.
    pub settings: Vec<(String, String)>,
    /// Where the nodes' directories go; it must exist.
    pub directory: PathBuf,
    /// Settings of every node; names, directories, seeds and addresses are filled in.
    pub node: NodeConfig,
}

impl LocalOptions {
    /// Three nodes and one partition in `directory`, everything else at its default.
    pub fn new(directory: &Path) -> LocalOptions {
        let directory = directory.to_owned();
        LocalOptions { nodes: 3, partitions: 1, settings: Vec::new(), directory, node: NodeConfig::default() }
    }
}

/// Why a local cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A socket did not do its work.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// `init` failed.
    #[error("init: {0}")]
    Init(String),
}

/// A cluster in this process. Dropping it stops its nodes; the directory stays.
pub struct Cluster {
    configs: Vec<NodeConfig>,
    nodes: Vec<Option<Node>>,
    /// A node that is stopped finds its ports free when it comes back.
    ports: HeldPorts,
}

impl Cluster {
    /// Starts the nodes on free ports of the loopback address and forms a cluster of them; one that the directory holds
    /// already goes on.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub fn start_local(options: &LocalOptions) -> Result<Cluster, LocalError> {
        let ports = ports(options)?;
        let (natives, peers) = ports.numbers().split_at(options.nodes);
        let configs: Vec<NodeConfig> = (0..options.nodes)
            .map(|at| {
                local_config(&options.directory.join(format!("n{}", at + 1)), peers, natives[at], at, &options.node)
            })
            .collect();
        let mut nodes = Vec::new();
        for config in &configs {
            nodes.push(Some(start(config)?));
        }
        let cluster = Cluster { configs, nodes, ports };
        let request = InitRequest {
            partitions: options.partitions,
            settings: options.settings.clone(),
            if_needed: true,
            ..InitRequest::default()
        };
        match admin(cluster.endpoints()[0], AdminRequest::Init(request), Duration::from_secs(30))? {
            AdminReply::Initialized { .. } => Ok(cluster),
            AdminReply::Failed(error) => Err(LocalError::Init(error.to_string())),
            reply => Err(LocalError::Init(format!("{reply:?}"))),
        }
    }

    /// Where clients reach the nodes, those that are stopped too.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        self.configs.iter().filter_map(|config| config.listen.native.resolve().ok()).collect()
    }

    /// Starts one more process beside the cluster, which waits to be added; returns its place, counted from 0.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub fn start_waiting(&mut self) -> Result<usize, LocalError> {
        let at = self.configs.len();
        let ports = HeldPorts::draw(2)?;
        let [native, peer] = [0, 1].map(|which| Address::new("127.0.0.1", ports.numbers()[which]));
        let known = &self.configs[0];
        let parent = known.data_dir.parent().unwrap_or(&known.data_dir);
        let config = NodeConfig {
            name: format!("n{}", at + 1),
            data_dir: parent.join(format!("n{}", at + 1)),
            listen: Listen { native, peer, resp: None, admin: None },
            ..known.clone()
        };
        self.nodes.push(Some(start(&config)?));
        self.configs.push(config);
        self.ports.join(ports);
        Ok(at)
    }

    /// Who leads a group, as the first running node knows it.
    pub fn leader_of(&self, group: PartitionId) -> Option<NodeId> {
        self.nodes.iter().flatten().next()?.leader_of(group)
    }

    /// A running node, counted from 0.
    pub fn node(&self, at: usize) -> Option<&Node> {
        self.nodes.get(at).and_then(Option::as_ref)
    }

    /// Stops a node as SIGTERM does.
    pub fn stop(&mut self, at: usize) {
        if let Some(node) = self.nodes[at].take() {
            node.stop();
        }
    }

    /// Starts a stopped node again, on its old ports and directory.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn restart(&mut self, at: usize) -> Result<(), LocalError> {
        self.nodes[at] = Some(start(&self.configs[at])?);
        Ok(())
    }
}

fn start(config: &NodeConfig) -> Result<Node, StartError> {
    Node::start(config.clone(), None, |text| {
        eprintln!("the log failed, the process stops: {text}");
        std::process::abort();
    })
}

fn local_config(directory: &Path, peers: &[u16], native: u16, at: usize, node: &NodeConfig) -> NodeConfig {
    let local = |port: u16| Address::new("127.0.0.1", port);
    NodeConfig {
        name: format!("n{}", at + 1),
        data_dir: directory.to_owned(),
        seeds: peers.iter().map(|&port| local(port)).collect(),
        listen: Listen { native: local(native), peer: local(peers[at]), resp: None, admin: None },
        ..node.clone()
    }
}

/// The ports of the cluster in the directory, or free ones: first for clients, then for nodes.
fn ports(options: &LocalOptions) -> io::Result<HeldPorts> {
    let file = options.directory.join("ports");
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let known: Vec<u16> = known.split_whitespace().filter_map(|port| port.parse().ok()).collect();
    if known.len() == 2 * options.nodes {
        return Ok(HeldPorts::of(known));
    }
    let ports = HeldPorts::draw(2 * options.nodes)?;
    let text: Vec<String> = ports.numbers().iter().map(u16::to_string).collect();
    std::fs::write(file, text.join(" "))?;
    Ok(ports)
}

/// Carries an operator's verb out on the node at `address`, blocking.
///
/// # Errors
/// The socket's.
pub fn admin(address: SocketAddr, request: AdminRequest, timeout: Duration) -> io::Result<AdminReply> {
    let deadline = Instant::now() + timeout;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    let hello = Hello {
        protocol_min: *PROTOCOL.start(),
        protocol_max: *PROTOCOL.end(),
        client: ClientId(crate::random::draw()),
        ..Hello::default()
    };
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Hello, 1, &hello);
    encode_control(&mut out, Kind::Admin, 2, &request);
    stream.write_all(&out)?;
    let mut decoder = FrameDecoder::default();
    let mut buffer = [0; 4096];
    loop {
        while let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
            match Kind::from_u8(frame.kind) {
                Some(Kind::AdminReply) => return decode_control(&frame.body, "admin reply").map_err(io::Error::other),
                Some(Kind::Refused) => {
                    return Err(io::Error::other(coppice_core::handshake::refusal_text(&frame.body)));
                }
                _ => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => decoder.feed(&buffer[..count]),
        }
    }
}
