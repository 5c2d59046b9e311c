//! A cluster of real nodes with an emulated link between every two of them, and its settings. Clients reach the nodes
//! directly, as in the paper: only replicas are far from each other.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coppice_client::wire::{GroupTuning, InitRequest, PartitionId};
use coppice_client::{Admin, Client, Config};
use coppice_cluster::nodes::{Nodes, Plan, draw_ports, local};
use coppice_testkit::poll::holds_within;
use tokio::runtime::Runtime;

use super::link::{LinkCounters, Shape};
use super::relay::Relays;

/// Nodes, as in all experiments of the paper.
pub const NODES: usize = 3;

/// The partition that gets the load.
const PARTITION: PartitionId = PartitionId(1);

/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A setting that was decided is in force everywhere after so long: it is applied in a turn of the node.
const SETTLING: Duration = Duration::from_millis(500);

/// Ten round trips of the slowest link, so that a congested one is slow, and not without a leader.
const ELECTION_TIMEOUT: &str = "3s";

/// A cluster at work until this is dropped.
pub struct Cluster {
    // Nodes end before their links, and before their data is removed.
    nodes: Nodes,
    links: Relays,
    directory: PathBuf,
    runtime: Runtime,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.stop(Duration::from_secs(2));
        // What is left is in a directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Cluster {
    /// Starts and forms one, of one partition, with links of this shape. Data goes below `base`.
    ///
    /// # Errors
    /// In words: what this machine or the program did not do.
    pub fn start(program: &Path, base: &Path, shape: Shape, settings: &[(&str, &str)]) -> Result<Cluster, String> {
        let directory = base.join(format!("coppice-lab-{}-{}", std::process::id(), number()));
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let cluster = launch(program, &directory, shape);
        if cluster.is_err() {
            let _ = std::fs::remove_dir_all(&directory);
        }
        let cluster = cluster.map_err(|error| format!("the cluster did not start: {error}"))?;
        cluster.form(settings)?;
        Ok(cluster)
    }

    /// Where clients reach the nodes.
    pub fn endpoints(&self) -> Vec<String> {
        (0..NODES).map(|node| self.nodes.native(node).to_string()).collect()
    }

    /// All links are like this from now on.
    pub fn set_links(&self, shape: Shape) {
        self.links.set(shape);
    }

    /// What the links of the busiest sender, the leader, have carried, put together: bytes and times of congestion add
    /// up, the most undelivered is that of one link.
    pub fn carried(&self) -> LinkCounters {
        let mut senders = [LinkCounters::default(); NODES];
        for ((from, _), carried) in self.links.carried() {
            let sum = &mut senders[from];
            sum.bytes += carried.bytes;
            sum.undelivered += carried.undelivered;
            sum.undelivered_max = sum.undelivered_max.max(carried.undelivered_max);
            sum.congestions += carried.congestions;
            sum.congested += carried.congested;
        }
        senders.into_iter().max_by_key(|sum| sum.bytes).unwrap_or_default()
    }

    /// Waits until nothing is on its way but what an idle cluster says.
    pub fn rest(&self) {
        holds_within(PATIENCE, || self.carried().undelivered <= 4_096);
    }

    /// Changes settings of the cluster, and waits until they are in force.
    ///
    /// # Errors
    /// In words: nobody took it.
    pub fn set(&self, settings: &[(&str, String)]) -> Result<(), String> {
        let admin = self.admin();
        for (key, value) in settings {
            let set = self.runtime.block_on(admin.set_config(key, value));
            set.map_err(|error| format!("{key} cannot be set to {value}: {error}"))?;
        }
        std::thread::sleep(SETTLING);
        Ok(())
    }

    /// What the leader of the loaded partition measured, predicts and advises; none: it does not know yet.
    pub fn tuning(&self) -> Option<GroupTuning> {
        let report = self.runtime.block_on(self.admin().tuning()).ok()?;
        report.groups.into_iter().find(|group| group.partition == PARTITION)
    }

    /// A node that ended by itself.
    ///
    /// # Errors
    /// Which, and how.
    pub fn all_run(&mut self) -> Result<(), String> {
        self.nodes.fallen().map_or(Ok(()), Err)
    }

    fn admin(&self) -> Admin {
        Admin::new(self.endpoints(), Config { timeout: PATIENCE, ..Config::default() })
    }

    fn form(&self, settings: &[(&str, &str)]) -> Result<(), String> {
        let set = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let settings = [("election_timeout", ELECTION_TIMEOUT)].iter().chain(settings).map(set).collect();
        let request = InitRequest { partitions: 1, settings, ..InitRequest::default() };
        let formed = self.runtime.block_on(async {
            let admin =
                Admin::new([self.nodes.native(0).to_string()], Config { timeout: PATIENCE, ..Config::default() });
            admin.init(request).await
        });
        formed.map_err(|error| format!("the cluster cannot be formed: {error}"))?;
        // The first election is not what is measured either.
        let led = self.runtime.block_on(async {
            let config = Config { timeout: PATIENCE, ..Config::default() };
            Client::start(self.endpoints(), config).put("led", "").await
        });
        led.map(drop).map_err(|error| format!("the cluster has no leader: {error}"))
    }
}

fn launch(program: &Path, directory: &Path, shape: Shape) -> io::Result<Cluster> {
    let (ports, held) = draw_ports(NODES)?;
    let targets: Vec<_> = ports.iter().map(|ports| local(ports.peer)).collect();
    let links = Relays::start(&targets, shape)?;
    let overrides = (0..NODES).map(|from| {
        let dialled = (0..NODES).filter(|to| *to != from);
        dialled.map(|to| format!("n{}={}", to + 1, links.address((from, to)))).collect::<Vec<_>>().join(",")
    });
    let plan = Plan {
        certs: None,
        program: program.to_owned(),
        directory: directory.to_owned(),
        advertised: Vec::new(),
        overrides: overrides.collect(),
        hosts: Vec::new(),
        flags: Vec::new(),
        admin: false,
        ports,
        failpoints: false,
        _held: held,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(Cluster { nodes: Nodes::start(plan)?, links, directory: directory.to_owned(), runtime })
}

/// Of the clusters of this process.
fn number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
