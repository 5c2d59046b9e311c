//! What a seed draws (hazards.md 4, the table of draws).

mod faults;
mod members;
mod scenarios;

use std::time::Duration;

use coppice_ordering::{CoordinatorSettings, Reads, Settings};
use coppice_testkit::random::Random;

use crate::plan::{Balance, DiskPlan, MS, Nanos, Network, Plan, Purpose, ServerPlan, Verdicts, Workload, random};
use crate::wide::{expiry_least, widen};
use faults::schedule;

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
                updates: updates(seed),
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
            balance: balance(seed, quiet),
            network: network(seed, quiet),
            disk: disk(seed, quiet, 24 << (10 + shape.below(4))),
            clock_rates: Vec::new(),
            faults: Vec::new(),
            shuffle: shape.below(2) == 0,
            minority_down: replicas > 1 && shape.below(2) == 0,
            judged: Verdicts::default(),
        };
        // Neighbours are merged only while there are more partitions than nodes.
        if plan.balance.merges() && plan.workload.keys >= 64 {
            plan.partitions = plan.nodes + 1;
        }
        if !quiet {
            widen(&mut plan);
        }
        plan.clock_rates = clock_rates(&plan, quiet);
        if !quiet {
            plan.faults = schedule(&plan);
        }
        if plan.balance.is_on() {
            calm(&mut plan);
        }
        plan.settings.retain_bytes_min = retain(seed);
        plan.server.expiry_instances = expiry(seed).unwrap_or(plan.server.expiry_instances).max(expiry_least(&plan));
        plan
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

/// In half of the seeds there are some that depend on what is there.
fn updates(seed: u64) -> u32 {
    [0, 0, 150, 500][random(seed, Purpose::Updates, 0).below(4)]
}

/// In a quarter of the seeds the cluster balances, splits or merges by itself.
fn balance(seed: u64, quiet: bool) -> Balance {
    let mut random = random(seed, Purpose::Balance, 0);
    if quiet || random.below(4) > 0 {
        return Balance::default();
    }
    let rebalance = ["auto", "auto", "off"][random.below(3)];
    let split = ["off", "load", "size:1KiB"][random.below(3)];
    let merge = ["off", "on"][random.below(2)];
    let pairs = [("rebalance", rebalance), ("auto_split", split), ("auto_merge", merge)];
    let settings = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Balance { settings, hot_for: [0, 2_000, 6_000][random.below(3)] * MS }
}

/// What a cluster begins by itself it begins where nothing else is under way, and loads are watched for a while.
fn calm(plan: &mut Plan) {
    let mut random = random(plan.seed, Purpose::Balance, 1);
    let one_of = [1, 8, 32][random.below(3)];
    plan.faults.retain(|_| random.below(one_of) == 0);
    plan.workload.operations += 1_500;
    if plan.balance.merges() {
        // Else no partition is ever cold.
        plan.workload.in_flight = 1;
        plan.workload.think = 200 * MS;
    } else {
        plan.workload.think = plan.workload.think.min(20 * MS);
    }
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
