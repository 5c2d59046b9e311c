//! Everything that is decided before a run begins. Shape, workload and each kind of fault have a generator of their
//! own, so that taking one fault out leaves the rest as it was.

pub mod fault;
mod in_file;

use std::sync::Arc;
use std::time::Duration;

use coppice_btree::Capacity;
use coppice_core::executor::ExecutorSettings;
use coppice_core::reshape::Pace;
use coppice_core::sessions::SessionLimits;
use coppice_core::settings::FEATURE_LEVEL;
use coppice_core::worker::WorkerSettings;
use coppice_ordering::{CoordinatorSettings, Reads, Settings};
use coppice_testkit::random::Random;
use serde::{Deserialize, Serialize};

use fault::{Fault, Kind};

/// Nanoseconds of simulated time.
pub type Nanos = u64;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// Nodes that are added to a run, at most.
pub const JOINS_MAX: usize = 3;

/// What each generator is for.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Purpose {
    Shape = 1,
    Settings,
    Network,
    Disk,
    Replicas,
    World,
    Retain,
    Coordinator,
    Damage,
    Sessions,
    Told,
    Misread,
    Rest,
    Wide,
    ReadErrors,
    Capacity,
    /// When the acts of a checkpoint's life are done.
    Acts,
    /// 18 is free: a seed draws the same whatever is taken out.
    Collects = 19,
    Collecting,
    Copies,
    Workers,
    Balance,
    Updates,
    /// Plus the number of the kind of fault.
    Faults = 32,
    /// Plus the number of the client.
    Client = 1_024,
    /// Plus the number of the node: what a loss of power leaves of checkpoints.
    Checkpoints = 1 << 20,
    /// Plus the number of the node: what its starts draw.
    Starts = 1 << 21,
}

/// A generator for one purpose of one seed.
pub(super) fn random(seed: u64, purpose: Purpose, number: u64) -> Random {
    Random::of(seed, purpose as u64 + number)
}

/// Everything that a seed decides before the run begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    /// Data partitions; the directory comes on top.
    pub partitions: u32,
    /// Voters of each group.
    pub replicas: u32,
    pub nodes: u32,
    /// What clients ask for.
    pub workload: Workload,
    /// Limits and intervals of all groups.
    #[serde(with = "in_file::SettingsInFile")]
    pub settings: Settings,
    /// What nodes run with beside that.
    pub server: ServerPlan,
    /// What the cluster begins by itself.
    #[serde(default)]
    pub balance: Balance,
    pub network: Network,
    /// The disks.
    pub disk: DiskPlan,
    /// Rates of the nodes' clocks, per mille of true time.
    pub clock_rates: Vec<u32>,
    /// What goes wrong, in order of time.
    pub faults: Vec<Fault>,
    /// Effects of one step are carried out in a drawn order.
    pub shuffle: bool,
    /// During the liveness phase only a majority of each group runs.
    pub minority_down: bool,
    /// What the run is judged by.
    pub judged: Verdicts,
}

/// Clients, and what they ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    pub clients: u32,
    /// Operations in flight per client.
    pub in_flight: usize,
    /// Operations of all clients together.
    pub operations: u32,
    /// Keys in use.
    pub keys: u32,
    /// Operations of a client are at most so far apart.
    pub think: Nanos,
    /// Calls with a short deadline, whose outcome may stay unknown, per mille.
    pub impatient: u32,
    /// Which clients collect ranges across partitions before they ask for a ticket, one bit each.
    pub collectors: u32,
    /// Operations whose effect depends on what is there, per mille.
    #[serde(default)]
    pub updates: u32,
}

/// What the cluster begins by itself while nothing is healed, in a hurry. Clients ask for other keys most from time to
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// Settings of the cluster; none: it begins nothing.
    pub settings: Vec<(String, String)>,
    /// The keys that are asked for most stay the same for so long; 0: for ever.
    pub hot_for: Nanos,
}

impl Balance {
    /// Runs take seconds, of some hundred operations.
    pub const PACE: Pace = Pace {
        look: Duration::from_millis(200),
        watch: Duration::from_millis(400),
        between: Duration::from_millis(200),
        settle: Duration::from_secs(3),
        merge_after: Duration::from_secs(1),
        operations_least: 5.0,
    };

    /// Whether it merges neighbours.
    pub fn merges(&self) -> bool {
        self.settings.iter().any(|(key, value)| key == "auto_merge" && value == "on")
    }

    /// Whether it begins anything.
    pub fn is_on(&self) -> bool {
        !self.settings.is_empty()
    }
}

/// What nodes run with, beside the settings of groups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Workers of each node.
    pub workers: u32,
    /// Which nodes speculate, one bit each.
    pub speculation: u32,
    /// Which nodes collect ranges across partitions for clients, one bit each.
    pub collecting: u32,
    /// Sessions per partition.
    pub sessions_max: usize,
    /// A session that ordered nothing for so many instances ends.
    pub expiry_instances: u64,
    /// A snapshot is written each so many instances; in some seeds none ever is because of their number.
    pub snapshot_instances: u64,
    /// Instances that an executor takes ahead of the decided one.
    pub ahead_max: usize,
    /// Pairs per leaf and children per inner node of the trees of all nodes whose number is 0, 1, 2 modulo 3: replicas
    /// of one group have trees of other shapes.
    pub capacities: [usize; 3],
    /// The coordinator voids a ticket after so long.
    pub place_timeout: Nanos,
}

/// What a run is judged by, beside the invariants after every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdicts {
    /// The audit: all nodes run, replicas become equal, and the history is checked. Else the run ends with the liveness
    /// phase.
    pub audit: bool,
    /// By the logs, exactly (hazards.md 3.2).
    pub certificate: bool,
    /// By the answers alone (hazards.md 3.3).
    pub search: bool,
}

impl Default for Verdicts {
    fn default() -> Verdicts {
        Verdicts { audit: true, certificate: true, search: true }
    }
}

/// How messages travel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Network {
    /// Shortest way.
    pub delay_min: Nanos,
    /// Mean of what comes on top.
    pub delay_mean: Nanos,
    /// Per mille of messages that take up to two seconds.
    pub tail: u32,
    /// Per mille of messages between nodes that get lost.
    pub loss: u32,
    /// Per mille of messages between nodes that come twice, the copy up to a minute late.
    pub duplicates: u32,
    /// Per mille of frames after which a client's connection breaks.
    pub client_cut: u32,
    /// Per mille of connection attempts that fail or hang.
    pub connect_fails: u32,
    /// Of 10,000 messages between nodes, so many arrive damaged.
    pub damaged: u32,
}

/// How disks behave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskPlan {
    /// Bytes of a log segment.
    pub segment_bytes: u64,
    /// Shortest flush.
    pub flush_min: Nanos,
    /// Longest flush.
    pub flush_max: Nanos,
    /// At a crash unflushed sectors are old, new or garbage; else the page cache survives.
    pub power: bool,
    /// A snapshot takes up to so long to be durable.
    pub snapshot_max: Nanos,
    /// Of 100 starts so many are given a block or a file of the log that is another's, or an old one.
    pub misread: u32,
    /// Of 100 starts in so many a read of the log fails.
    pub read_errors: u32,
}

impl Plan {
    /// Sets something that was drawn to a value of its own, as `sweep --set NAME=VALUE` does.
    ///
    /// # Errors
    /// In words: there is no such name, or no such value of it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |most: u32| {
            let number = value.trim_end_matches('%').parse::<u32>().ok().filter(|number| *number <= most);
            number.ok_or_else(|| format!("{name}: a number up to {most}, not `{value}`"))
        };
        match (name, value) {
            // A connection that breaks takes the replies on it: each is asked for again.
            ("retries", _) => self.network.client_cut = number(50)? * 10,
            ("loss", _) => self.network.loss = number(30)? * 10,
            ("duplicates", _) => self.network.duplicates = number(50)? * 10,
            ("operations", _) => self.workload.operations = number(100_000)?.max(self.workload.clients),
            ("retain", _) => self.settings.retain_bytes_min = number(u32::MAX)? as usize,
            ("speculation", "on") => self.server.speculation = u32::MAX,
            ("speculation", "off") => self.server.speculation = 0,
            // Replicas beside each other do and do not: their states are compared at every instance.
            ("speculation", "both") => self.server.speculation = 0x5555_5555,
            ("reads", "quorum") => self.settings.reads = Reads::Quorum,
            ("reads", "lease") => {
                self.settings.reads = Reads::Lease;
                self.clock_rates.iter_mut().for_each(|rate| *rate = 1_000);
            }
            ("speculation", _) => return Err(format!("speculation: on, off or both, not `{value}`")),
            ("reads", _) => return Err(format!("reads: quorum or lease, not `{value}`")),
            _ => {
                let known = "retries, loss, duplicates, operations, retain, speculation, reads";
                return Err(format!("nothing is called `{name}`; there are {known}"));
            }
        }
        Ok(())
    }

    /// What the workers of a node go by, once an operator's limits are told there, and before.
    pub fn worker_settings(&self, node: usize, sessions: Option<SessionLimits>) -> Arc<WorkerSettings> {
        let coordinator = CoordinatorSettings {
            place_timeout: Duration::from_nanos(self.server.place_timeout),
            ..CoordinatorSettings::default()
        };
        let executing = ExecutorSettings {
            speculation: self.speculates(node),
            deferred: self.defers(node),
            ahead_max: self.server.ahead_max,
            // So few that batches wait for further steps all the time.
            step_work_max: if self.defers(node) { 3 } else { u64::MAX },
        };
        let (group, known) = (self.settings.clone(), WorkerSettings::default());
        let feature_level = FEATURE_LEVEL;
        Arc::new(WorkerSettings { feature_level, group, executing, digest_interval: 1, sessions, coordinator, ..known })
    }

    /// Whether a node executes before it is decided.
    pub fn speculates(&self, node: usize) -> bool {
        self.server.speculation >> (node % 32) & 1 == 1
    }

    /// How wide the nodes of a node's trees grow.
    pub fn capacity(&self, node: usize) -> Capacity {
        Capacity::new(self.server.capacities[node % 3])
    }

    /// Voters of a group at least, at any time: the directory lets none have fewer than the setting says.
    pub fn voters_least(&self) -> u32 {
        let set = self.faults.iter().filter_map(|fault| match fault.kind {
            Kind::Replicas { count } => Some(count),
            _ => None,
        });
        set.chain([self.replicas]).min().unwrap_or(self.replicas)
    }

    /// Whether a node that does so sends and writes first what orders a batch.
    pub fn defers(&self, node: usize) -> bool {
        node % 2 == 1
    }
}
