//! What a seed draws (hazards.md 4, the table of draws). Shape, workload and each kind of fault have a generator of
//! their own, so that taking one fault out leaves the rest as it was.

use std::sync::Arc;
use std::time::Duration;

use coppice_btree::Capacity;
use coppice_core::executor::ExecutorSettings;
use coppice_core::sessions::SessionLimits;
use coppice_core::worker::WorkerSettings;
use coppice_ordering::{CoordinatorSettings, Reads, Settings};
use coppice_testkit::random::Random;
use serde::{Deserialize, Serialize};

use super::faults::{Fault, schedule};
use super::wide::{expiry_least, widen};

/// Nanoseconds of simulated time.
pub type Nanos = u64;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

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
    #[serde(with = "super::schedule::SettingsInFile")]
    pub settings: Settings,
    /// What nodes run with beside that.
    pub server: ServerPlan,
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
    /// Draws everything of `seed`.
    pub fn of(seed: u64) -> Plan {
        let mut shape = random(seed, Purpose::Shape, 0);
        let replicas = [1, 3, 3, 3, 3, 3, 3, 5, 5, 5][shape.below(10)];
        let nodes = (3 + shape.below(5) as u32).max(replicas);
        let clients = 1 + log_draw(&mut shape, 12) as u32;
        let quiet = shape.below(20) == 0;
        let mut plan = Plan {
            seed,
            partitions: 1 + shape.below(5) as u32,
            replicas,
            nodes,
            workload: Workload {
                clients,
                in_flight: 1 + shape.below((48 / clients as usize).clamp(1, 12)),
                operations: 100 + log_draw(&mut shape, 900) as u32,
                keys: 8 + log_draw(&mut shape, 500) as u32,
                think: [0, 2, 20, 60][shape.below(4)] * MS,
                impatient: [0, 0, 50, 200][shape.below(4)],
                collectors: collectors(seed),
            },
            settings: settings(seed),
            server: ServerPlan {
                workers: workers(seed),
                speculation: if shape.below(5) == 0 { shape.next() as u32 } else { u32::MAX },
                collecting: collecting(seed),
                sessions_max: if shape.below(8) == 0 { clients as usize + shape.below(3) } else { 100_000 },
                expiry_instances: if shape.below(8) == 0 { 20 + shape.below(400) as u64 } else { 1_000_000 },
                snapshot_instances: if shape.below(4) == 0 { u64::MAX } else { 10 + log_draw(&mut shape, 1_000) },
                ahead_max: if shape.below(2) == 0 { 1_024 } else { 1 + log_draw(&mut shape, 64) as usize },
                capacities: capacities(seed),
                place_timeout: place_timeout(seed),
            },
            network: network(seed, quiet),
            disk: disk(seed, quiet, 24 << (10 + shape.below(4))),
            clock_rates: Vec::new(),
            faults: Vec::new(),
            shuffle: shape.below(2) == 0,
            minority_down: replicas > 1 && shape.below(2) == 0,
            judged: Verdicts::default(),
        };
        if !quiet {
            widen(&mut plan);
        }
        plan.clock_rates = clock_rates(&plan, quiet);
        if !quiet {
            plan.faults = schedule(&plan);
        }
        plan.settings.retain_bytes_min = retain(seed);
        plan.server.expiry_instances = expiry(seed).unwrap_or(plan.server.expiry_instances).max(expiry_least(&plan));
        plan
    }

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
        Arc::new(WorkerSettings { group, executing, digest_interval: 1, sessions, coordinator, ..known })
    }

    /// Whether a node executes before it is decided.
    pub fn speculates(&self, node: usize) -> bool {
        self.server.speculation >> (node % 32) & 1 == 1
    }

    /// How wide the nodes of a node's trees grow.
    pub fn capacity(&self, node: usize) -> Capacity {
        Capacity::new(self.server.capacities[node % 3])
    }

    /// Whether a node that does so sends and writes first what orders a batch.
    pub fn defers(&self, node: usize) -> bool {
        node % 2 == 1
    }
}

/// From 0 up to `max`, small numbers as likely as large ones.
fn log_draw(random: &mut Random, max: u64) -> u64 {
    let bits = u64::BITS - max.leading_zeros();
    let shift = random.below(bits as usize + 1) as u32;
    random.next() % (max >> shift).max(1)
}

fn settings(seed: u64) -> Settings {
    let mut random = random(seed, Purpose::Settings, 0);
    let election_timeout = Duration::from_millis(100 + random.below(300) as u64);
    let window = 1 + log_draw(&mut random, 64) as u32;
    Settings {
        window,
        batch_bytes_max: 64 << random.below(11),
        batch_delay_max: Duration::from_micros(random.below(5_000) as u64),
        eager_window: [0, 1, 1, window][random.below(4)],
        window_bytes_max: 512 << random.below(12),
        apply_lag_max: 1 + log_draw(&mut random, 128),
        catch_up_bytes_max: 200 << random.below(13),
        phase1b_bytes_max: 200 << random.below(13),
        accept_ahead_max: if random.below(4) == 0 { 1 } else { 1_024 },
        queue_submissions_max: if random.below(8) == 0 { 2 } else { 8_192 },
        election_timeout,
        quiesce_heartbeat_interval: quiesce_heartbeat_interval(seed, election_timeout),
        heartbeat_interval: election_timeout / (3 + random.below(5) as u32),
        announce_delay: Duration::from_micros(random.below(3_000) as u64),
        retransmit_max: Duration::from_millis(50 + random.below(300) as u64),
        reads: if random.below(4) == 0 { Reads::Lease } else { Reads::Quorum },
        lease_duration: election_timeout * 2 / 3,
        ..Settings::default()
    }
}

/// In two seeds of three groups rest, for less or more than an election takes.
fn quiesce_heartbeat_interval(seed: u64, election_timeout: Duration) -> Duration {
    let mut random = random(seed, Purpose::Rest, 0);
    election_timeout * [0, 1, 4][random.below(3)]
}

/// The coordinator's own, of a plan that names none.
fn place_timeout_usual() -> Nanos {
    CoordinatorSettings::default().place_timeout.as_nanos() as Nanos
}

/// In half of the seeds the usual one; else 50 ms to 2 s.
fn place_timeout(seed: u64) -> Nanos {
    let mut random = random(seed, Purpose::Coordinator, 0);
    match random.below(2) {
        0 => place_timeout_usual(),
        _ => (50 << random.below(6)) * MS + random.below(400) as Nanos * MS,
    }
}

/// The widest, of a plan that names none.
fn capacities_usual() -> [usize; 3] {
    [usize::from(u16::MAX); 3]
}

/// In half of the seeds the narrowest there are, in one of eight the widest; else 4 to 64, as a rule not the same for
/// all.
fn capacities(seed: u64) -> [usize; 3] {
    let mut random = random(seed, Purpose::Capacity, 0);
    let mut draw = || 4 + log_draw(&mut random, 61) as usize;
    let drawn = [draw(), draw(), draw()];
    [[4; 3], [4; 3], [4; 3], [4; 3], [drawn[0]; 3], drawn, capacities_usual(), [4, drawn[0], 64]][random.below(8)]
}

/// In a quarter of the seeds no client collects, in another quarter all do.
fn collectors(seed: u64) -> u32 {
    let mut random = random(seed, Purpose::Collects, 0);
    let some = random.next() as u32;
    [0, some, some, u32::MAX][random.below(4)]
}

/// One in a third of the seeds, else two or three.
fn workers(seed: u64) -> u32 {
    1 + random(seed, Purpose::Workers, 0).below(3) as u32
}

/// In a quarter of the seeds no node collects, in another quarter all do.
fn collecting(seed: u64) -> u32 {
    let mut random = random(seed, Purpose::Collecting, 0);
    let some = random.next() as u32;
    [0, some, some, u32::MAX][random.below(4)]
}

/// In half of the seeds replicas keep so little of their log in memory that whoever lags needs a snapshot.
fn retain(seed: u64) -> usize {
    let mut random = random(seed, Purpose::Retain, 0);
    if random.below(2) == 0 { Settings::default().retain_bytes_min } else { 256 << random.below(8) }
}

/// In one seed of eight sessions end so soon that a client which is away for a second or two has none any more.
fn expiry(seed: u64) -> Option<u64> {
    let mut random = random(seed, Purpose::Sessions, 0);
    (random.below(8) == 0).then(|| 10 + random.below(60) as u64)
}

/// One of `values`, or the first half of the time: each kind of fault is on in half of the seeds.
fn sometimes(random: &mut Random, values: &[u32]) -> u32 {
    if random.below(2) == 0 { 0 } else { values[random.below(values.len())] }
}

fn network(seed: u64, quiet: bool) -> Network {
    let mut random = random(seed, Purpose::Network, 1);
    let delay_min = [50_000, 200_000, MS, 3 * MS][random.below(4)];
    let delay_mean = delay_min * random.below(4) as u64;
    let mut network = Network {
        delay_min,
        delay_mean,
        tail: sometimes(&mut random, &[1, 5, 10]),
        loss: sometimes(&mut random, &[5, 30, 100, 300]),
        duplicates: sometimes(&mut random, &[10, 50, 300]),
        client_cut: sometimes(&mut random, &[2, 10, 50]),
        connect_fails: sometimes(&mut random, &[20, 200]),
        damaged: sometimes(&mut self::random(seed, Purpose::Damage, 0), &[1, 10, 100]),
    };
    if quiet {
        network = Network { tail: 0, loss: 0, duplicates: 0, client_cut: 0, connect_fails: 0, damaged: 0, ..network };
    }
    network
}

fn disk(seed: u64, quiet: bool, segment_bytes: u64) -> DiskPlan {
    let mut random = random(seed, Purpose::Disk, 1);
    let flush_min = [20_000, 100_000, MS][random.below(3)];
    DiskPlan {
        segment_bytes,
        flush_min,
        flush_max: flush_min * [1, 2, 10, 50][random.below(4)],
        power: !quiet && random.below(5) > 0,
        snapshot_max: [MS, 30 * MS, 500 * MS][random.below(3)],
        misread: if quiet { 0 } else { sometimes(&mut self::random(seed, Purpose::Misread, 0), &[10, 50]) },
        read_errors: 0,
    }
}

/// Leases rest on clocks that agree within the bound; without them any rate will do.
fn clock_rates(plan: &Plan, quiet: bool) -> Vec<u32> {
    let mut random = random(plan.seed, Purpose::Faults, 1);
    let off = quiet || random.below(2) == 0;
    let bound = plan.settings.clock_rate_bound_percent;
    let rate = |_| match plan.settings.reads {
        _ if off => 1_000,
        // Two clocks that differ by the bound: the faster runs at most so much faster than the slower.
        Reads::Lease => 1_000 + random.below(10 * bound as usize + 1) as u32,
        Reads::Quorum => 500 + random.below(1_501) as u32,
    };
    (0..plan.nodes).map(rate).collect()
}
