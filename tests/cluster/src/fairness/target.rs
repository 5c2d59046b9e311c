//! The cluster that is asked: three processes, with values that are dear to read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coppice_btree::Value;
use coppice_client::wire::{InitRequest, PartitionId};
use coppice_client::{Admin, Client, Config};
use coppice_testkit::random::Random;

use super::steps::Steps;
use crate::nodes::{Nodes, Plan, draw_ports};

const NODES: usize = 3;

/// How long anything may take that is no measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of the largest value that there may be.
pub const BIG: &[u8] = b"big";

/// Small pairs beside it.
const PAIRS: usize = 20_000;

/// A cluster.
pub struct Target {
    nodes: Nodes,
    directory: PathBuf,
}

/// What a hostile client knows of it.
#[derive(Clone, Debug)]
pub struct Victim {
    /// Where the leader of everything serves clients.
    pub leader: SocketAddr,
    /// Where it listens to other nodes.
    pub peer: SocketAddr,
    /// Draws counts and sizes.
    pub random: Random,
}

impl Target {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// In words.
    pub fn start(program: PathBuf, memory_limit_mib: u64) -> Result<Target, String> {
        let (ports, held) = draw_ports(NODES).map_err(|error| error.to_string())?;
        let own = format!("coppice-fairness-{}-{}", std::process::id(), ports[0].native);
        let directory = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let memory = format!("{memory_limit_mib}MiB");
        let flags = ["--memory-limit", &memory, "--log-disk-reserve", "0", "--handshake-timeout", "2s"];
        let plan = Plan {
            certs: None,
            program,
            directory: directory.clone(),
            ports,
            _held: held,
            hosts: Vec::new(),
            advertised: Vec::new(),
            overrides: vec![String::new(); NODES],
            flags: flags.map(str::to_owned).to_vec(),
            admin: true,
            failpoints: false,
        };
        let nodes = Nodes::start(plan).map_err(|error| error.to_string())?;
        let target = Target { nodes, directory };
        let init = InitRequest { partitions: 1, if_needed: true, ..InitRequest::default() };
        target.block(async |admin: Admin| admin.init(init).await.map(drop).map_err(|error| error.to_string()))?;
        Ok(target)
    }

    fn block<T>(&self, ask: impl AsyncFnOnce(Admin) -> Result<T, String>) -> Result<T, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let config = Config { timeout: PATIENCE, ..Config::default() };
        runtime.block_on(ask(Admin::new(self.endpoints(), config)))
    }

    /// Where clients reach the nodes.
    pub fn endpoints(&self) -> Vec<String> {
        (0..NODES).map(|node| self.nodes.native(node).to_string()).collect()
    }

    /// Writes what hostile clients read.
    ///
    /// # Errors
    /// In words.
    pub fn fill(&self, random: &mut Random) -> Result<(), String> {
        let big = vec![b'x'; (1 << 20) - random.below(4_096)];
        let endpoints = self.endpoints();
        self.block(async |_| {
            let client = Client::start(endpoints, Config { timeout: PATIENCE, ..Config::default() });
            client.put(BIG, big.as_slice()).await.map_err(|error| error.to_string())?;
            for first in (0..PAIRS).step_by(1_000) {
                let keys: Vec<String> = (first..first + 1_000).map(|at| format!("small{at:08}")).collect();
                let pairs = keys.iter().map(|key| (key.as_bytes().into(), [b's'; 100].as_slice().into()));
                client.load(pairs.collect::<Vec<(Value, Value)>>()).await.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }

    /// Who is attacked: the leader of the partition.
    ///
    /// # Errors
    /// Nobody leads.
    pub fn victim(&self, random: &mut Random) -> Result<Victim, String> {
        let leaders = self.block(async |admin: Admin| admin.map().await.map_err(|error| error.to_string()))?.leaders;
        let leader = leaders.iter().find(|(group, _)| *group == PartitionId(1)).map(|(_, node)| node.0 as usize - 1);
        let leader = leader.filter(|&leader| leader < NODES).ok_or("nobody leads p1")?;
        let (native, peer) = (self.nodes.native(leader), self.nodes.peer(leader));
        Ok(Victim { leader: native, peer, random: Random::new(random.next()) })
    }

    /// What the nodes tell of their workers' steps.
    ///
    /// # Errors
    /// One does not.
    pub fn steps(&self) -> Result<Steps, String> {
        let admins: Option<Vec<SocketAddr>> = (0..NODES).map(|node| self.admin(node)).collect();
        Steps::of(&admins.ok_or("a node does not say where its metrics are")?)
    }

    fn admin(&self, node: usize) -> Option<SocketAddr> {
        let text = std::fs::read_to_string(self.nodes.data(node).join("endpoints.json")).ok()?;
        let endpoints: serde_json::Value = serde_json::from_str(&text).ok()?;
        endpoints["admin"].as_str()?.parse().ok()
    }

    /// Ends a node, and waits until it serves again.
    ///
    /// # Errors
    /// It does not.
    pub fn restart(&mut self, address: SocketAddr) -> Result<(), String> {
        let node = (0..NODES).find(|&node| self.nodes.native(node) == address).ok_or("no such node")?;
        self.nodes.kill(node);
        self.nodes.relaunch(node).and_then(|()| self.nodes.ready(node)).map_err(|error| error.to_string())
    }

    /// Process numbers of the nodes.
    pub fn pids(&self) -> Arc<Vec<AtomicU32>> {
        self.nodes.pids()
    }

    /// A node that has ended, and how.
    pub fn fallen(&mut self) -> Option<String> {
        self.nodes.fallen()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.nodes.stop(Duration::from_secs(2));
        // Nothing is left to do about a directory that stays.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The most that one of these processes has held, bytes.
pub fn memory(pids: &[AtomicU32]) -> u64 {
    pids.iter().map(|pid| resident(pid.load(Ordering::Relaxed))).max().unwrap_or(0)
}

/// The most resident bytes of a process; 0: it has ended.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) << 10
}
