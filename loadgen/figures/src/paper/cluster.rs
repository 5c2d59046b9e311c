//! Clusters of real node processes for the points of a figure: started, formed, filled, ended. Data and processes are
//! those of a [`Site`], so both are gone at the end, whatever that is.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use coppice_client::wire::{ChangeId, InitRequest, NodeId, PartitionId, ReshapeRequest, reshape};
use coppice_client::{Admin, Config};
use coppice_testkit::serve::{Place, WAITING, serve};
use tokio::runtime::Runtime;

use super::point::{Shape, Terms};
use crate::args::Global;
use crate::site::{Site, free_ports};
use coppice_loadgen::app::args::{Cli, Command as Verb, Global as LoadGlobal};
use coppice_loadgen::app::fill_quietly;
use coppice_loadgen::{machine, metrics};

/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A setting that was decided is in force everywhere after so long: nodes apply it in a turn of theirs.
const SETTLING: Duration = Duration::from_millis(300);

/// How often a change of the cluster's shape is asked for, until it is done.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// A port that was free may be taken before a node listens on it.
const ATTEMPTS: u32 = 3;

/// Where the programs are, and what all clusters have in common.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// Processes and data.
    pub site: &'a Site,
    /// The program `coppice`.
    pub program: &'a Path,
    /// How it is measured.
    pub terms: &'a Terms,
    /// Flags of the caller.
    pub global: &'a Global,
}

/// The clusters that run.
pub struct Pool<'a> {
    ground: Ground<'a>,
    clusters: BTreeMap<Shape, Cluster>,
    started: u32,
}

impl<'a> Pool<'a> {
    /// None yet.
    pub fn new(ground: Ground<'a>) -> Pool<'a> {
        Pool { ground, clusters: BTreeMap::new(), started: 0 }
    }

    /// Has these run and no others: an idle cluster takes processor time too.
    ///
    /// # Errors
    /// In words: one does not start.
    pub fn need(&mut self, shapes: &[Shape]) -> Result<(), String> {
        let gone: Vec<Shape> = self.clusters.keys().filter(|shape| !shapes.contains(shape)).copied().collect();
        for shape in gone {
            if let Some(cluster) = self.clusters.remove(&shape) {
                cluster.end(self.ground.site);
            }
        }
        for &shape in shapes {
            if !self.clusters.contains_key(&shape) {
                self.started += 1;
                let cluster = Cluster::start(&self.ground, shape, &format!("c{}", self.started));
                self.clusters.insert(shape, cluster.map_err(|error| format!("a cluster of {shape}: {error}"))?);
            }
        }
        Ok(())
    }

    /// One that runs.
    pub fn cluster(&mut self, shape: Shape) -> Option<&mut Cluster> {
        self.clusters.get_mut(&shape)
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// Of the files that its process writes to.
    name: String,
    place: Place,
    process: u32,
}

/// What one node has used up since it started.
#[derive(Clone, Debug, Default)]
pub struct NodeUsage {
    /// Processor time in seconds.
    pub cpu_s: f64,
    /// Seconds in each stage.
    pub stages: BTreeMap<String, f64>,
}

/// A cluster at work.
pub struct Cluster {
    nodes: Vec<Node>,
    runtime: Runtime,
    speculation: bool,
}

impl Cluster {
    fn start(ground: &Ground<'_>, shape: Shape, name: &str) -> Result<Cluster, String> {
        let mut attempt = 1;
        loop {
            let mut cluster = Cluster::launch(ground, shape, &format!("{name}.{attempt}"))?;
            let up = cluster.form(ground, shape).and_then(|()| cluster.fill(ground));
            match up {
                Ok(()) => return Ok(cluster),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(_) => cluster.end(ground.site),
            }
            attempt += 1;
        }
    }

    /// Starts the processes.
    fn launch(ground: &Ground<'_>, shape: Shape, name: &str) -> Result<Cluster, String> {
        let count = shape.nodes() as usize;
        let ports = free_ports(3 * count)?;
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let seeds: Vec<SocketAddr> = ports.chunks_exact(3).map(|ports| local(ports[1])).collect();
        let mut nodes = Vec::new();
        for (number, ports) in (1..).zip(ports.chunks_exact(3)) {
            let name = format!("{name}.n{number}");
            let place = Place {
                name: format!("n{number}"),
                data: ground.site.path(&name),
                native: local(ports[0]),
                peer: local(ports[1]),
                admin: Some(local(ports[2])),
            };
            let mut command = Command::new(ground.program);
            serve(&mut command, &place, &seeds);
            command.args(["--log-level", "warn"]);
            if !ground.terms.flush {
                command.args(["--log-flush", "off", "--unsafe-no-flush=true"]);
            }
            let process = ground.site.start(&name, command)?;
            nodes.push(Node { name, place, process });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no event loop: {error}"))?;
        Ok(Cluster { nodes, runtime, speculation: true })
    }

    /// Makes one cluster of them, with every partition on nodes of its own.
    fn form(&mut self, ground: &Ground<'_>, shape: Shape) -> Result<(), String> {
        let processes: Vec<(String, u32)> = self.nodes.iter().map(|n| (n.name.clone(), n.process)).collect();
        let spoken = || self.nodes.iter().all(|node| ground.site.said(node.process).contains(WAITING));
        ground.site.wait(&processes, PATIENCE, spoken)?;
        let settings = vec![("replicas".to_owned(), shape.replicas.to_string())];
        let request = InitRequest { partitions: shape.partitions, settings, ..InitRequest::default() };
        let admin = self.admin();
        let formed = self.runtime.block_on(async {
            admin.init(request).await?;
            for partition in 1..=shape.partitions {
                let first = (partition - 1) * shape.replicas;
                let to = (first + 1..=first + shape.replicas).map(NodeId).collect();
                settle(&admin, PartitionId(partition), to).await?;
            }
            Ok::<(), coppice_client::admin::Error>(())
        });
        formed.map_err(|error| format!("it cannot be formed: {error}"))
    }

    fn fill(&self, ground: &Ground<'_>) -> Result<(), String> {
        let line = format!("coppice-load fill --entries {} --endpoints {}", ground.terms.entries, self.endpoints());
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| format!("{line}: {error}"))?;
        let Verb::Fill(args) = &cli.command else { return Err(format!("not a fill: {line}")) };
        let global = LoadGlobal { quiet: true, timeout: PATIENCE, ..cli.global.clone() };
        let filled = fill_quietly(args, &global);
        filled.map(drop).map_err(|failure| format!("it cannot be filled: {}: {}", failure.what, failure.cause))
    }

    fn admin(&self) -> Admin {
        let config = Config { timeout: PATIENCE, ..Config::default() };
        Admin::new(self.nodes.iter().map(|node| node.place.native.to_string()), config)
    }

    /// As flags have them.
    pub fn endpoints(&self) -> String {
        self.nodes.iter().map(|node| node.place.native.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Has batches run before they are decided, or not.
    ///
    /// # Errors
    /// In words: nobody took it.
    pub fn set_speculation(&mut self, on: bool) -> Result<(), String> {
        if self.speculation == on {
            return Ok(());
        }
        let admin = self.admin();
        let value = if on { "on" } else { "off" };
        let set = self.runtime.block_on(admin.set_config("speculation", value));
        set.map_err(|error| format!("speculation cannot be set: {error}"))?;
        std::thread::sleep(SETTLING);
        self.speculation = on;
        Ok(())
    }

    /// What each node has used up so far.
    pub fn used(&self) -> Vec<NodeUsage> {
        let used = |node: &Node| NodeUsage {
            cpu_s: machine::cpu_time_of(node.process).unwrap_or_default().as_secs_f64(),
            stages: node.place.admin.map(|admin| metrics::stages(&admin.to_string())).unwrap_or_default(),
        };
        self.nodes.iter().map(used).collect()
    }

    /// Whether a node has ended by itself.
    ///
    /// # Errors
    /// Which, and what it said last.
    pub fn all_run(&self, site: &Site) -> Result<(), String> {
        for node in &self.nodes {
            if let Some(how) = site.ended(node.process) {
                return Err(format!("{}: {how}", node.name));
            }
        }
        Ok(())
    }

    fn end(self, site: &Site) {
        let processes: Vec<u32> = self.nodes.iter().map(|node| node.process).collect();
        site.end(&processes);
        for node in &self.nodes {
            // What stays goes with the site's directory.
            _ = std::fs::remove_dir_all(&node.place.data);
        }
    }
}

/// Has exactly these nodes replicate a partition.
async fn settle(admin: &Admin, partition: PartitionId, to: Vec<NodeId>) -> Result<(), coppice_client::admin::Error> {
    let map = admin.map().await?.map;
    let entry = map.iter().flat_map(|map| &map.partitions).find(|entry| entry.partition == partition);
    let nodes: Option<Vec<NodeId>> = entry.map(|entry| entry.replicas.iter().map(|info| info.node).collect());
    if nodes.is_some_and(|mut nodes| {
        nodes.sort_unstable();
        nodes == to
    }) {
        return Ok(());
    }
    let shape = reshape::Shape::Move { partition, from: Vec::new(), to };
    let request = ReshapeRequest {
        change: ChangeId(u64::from(partition.0) + 1),
        shape,
        dry_run: false,
        force: true,
        within: None,
    };
    let deadline = Instant::now() + PATIENCE;
    while !admin.reshape(request.clone()).await?.done && Instant::now() < deadline {
        tokio::time::sleep(ASK_INTERVAL).await;
    }
    Ok(())
}
