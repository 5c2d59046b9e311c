//! One round: a cluster of its own, clients, faults, and the judgement of what the clients were told.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coppice_check::event::{Head, Text};
use coppice_check::record::Recorder;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{ConfigRow, InitRequest, NodeId};
use coppice_client::{Admin, Client, Config, Operation, Range, ReadMode};
use coppice_server::demo::certs::{self, Certs};
use coppice_testkit::random::Random;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::counters::Counters;
use super::draw::Draw;
use super::judged::judge_round;
use super::kernel::Network;
use super::kinds::{Kind, Span};
use super::links::Links;
use super::nemesis::{Nemesis, RoundError};
use super::nodes::{Host, Nodes, Plan, draw_ports, local};
use super::power::Disks;
use super::proxy::Proxy;
use super::resources::{Sampler, Waiting, beyond, watch};
use super::resp::{RespClient, RespClients};
use super::setup::{RECOVERY_MAX, RoundResult, Setup};
use super::shape::{Changes, Operator, change};
use super::space::Space;
use super::workload::Workload;

/// How long one call of a client may take before it counts as unanswered.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// What waits for decisions and releases is over within this time of the last call.
const REST_WITHIN: Duration = Duration::from_secs(10);

/// A cluster of this program's own.
struct Own {
    nodes: Nodes,
    links: Links,
    disks: Disks,
    directories: Vec<PathBuf>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs one round to its end.
///
/// # Errors
/// This machine or the cluster that was named did not do what is needed to begin.
pub fn round(setup: &Setup) -> Result<RoundResult, String> {
    let ended = whole(setup);
    if ended.is_err() && setup.endpoints.is_empty() {
        // Nothing was found out: nothing is worth keeping.
        let _ = std::fs::remove_dir_all(&setup.directory);
    }
    ended
}

fn whole(setup: &Setup) -> Result<RoundResult, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let mut own = match setup.endpoints.is_empty() {
        true => Some(Own::start(setup, &runtime)?),
        false => None,
    };
    let endpoints = own.as_ref().map_or_else(|| setup.endpoints.clone(), |own| own.endpoints(setup));
    let config = client_config(own.as_ref());
    let prefix = if own.is_some() { String::new() } else { format!("check-{}/", setup.seed) };
    let space = Space::new(&prefix, setup.keys, setup.partitions as usize);
    let counters = Counters::new(&space);
    let start = if setup.resp { counters.start() } else { Vec::new() };
    let map = begin(&runtime, &endpoints, &config, own.is_some().then_some(&space), &start)?;
    let raw = setup.out.join("raw.jsonl");
    let settings = settings(&runtime, &endpoints, &config);
    let recorder = Recorder::create(&raw, head(setup, &settings, &start))
        .map_err(|error| format!("{}: {error}", raw.display()))?;
    let each = Duration::from_secs_f64(f64::from(setup.clients) / f64::from(setup.rate.max(1)));
    let pause = if setup.rate == 0 { Duration::ZERO } else { each };
    let workload = Workload::new(recorder, space, setup.seed, pause);
    let resp = own
        .as_ref()
        .filter(|_| setup.resp)
        .map(|own| Arc::new(RespClients::new(setup.clients, own.resp(setup), counters)));
    let load = Load { runtime: &runtime, endpoints, config, workload: Arc::clone(&workload), resp: resp.clone() };
    let mut ended = RoundResult::default();
    let sampler = own.as_ref().map(|own| Sampler::start(own.nodes.pids(), own.directories.clone()));
    let spans = load.run(setup, own.as_mut(), &mut ended)?;
    if let Some(sampler) = sampler {
        if !ended.is_bad() {
            ended.wrong.extend(load.at_rest());
            let growing = sampler.at_rest();
            // A node that has just come back owes its short log many checkpoints, and grows meanwhile: it is looked at
            // once more.
            let again = !growing.is_empty() && setup.kinds.contains(&Kind::Fail);
            ended.wrong.extend(if again { sampler.at_rest() } else { growing });
        }
        ended.held = sampler.finish();
        ended.wrong.extend(beyond(&ended.held, setup.memory_max));
    }
    if let Some(error) = workload.failure() {
        return Err(format!("{}: {error}", raw.display()));
    }
    workload.recorder.finish().map_err(|error| format!("{}: {error}", raw.display()))?;
    let digests = load.digests();
    let mut directories = None;
    if let Some(own) = &mut own {
        own.nodes.stop(Duration::from_secs(5));
        // Disks that were lost count too: what was decided may have stood on one of them alone, beside votes elsewhere.
        directories = Some([&own.directories, own.nodes.lost()].concat());
    }
    if own.is_none() {
        load.clear();
    }
    let judged = judge_round(setup, &map, directories, &workload.take_numbered(), &spans, &digests, &mut ended);
    let _ = std::fs::remove_file(&raw);
    drop(load);
    runtime.shutdown_timeout(Duration::from_secs(1));
    judged?;
    ended.lines.extend(resp.map(|resp| resp.seen()));
    if let Some(mut own) = own {
        if ended.is_bad() {
            own.disks.keep();
            ended.kept = Some(setup.directory.clone());
        } else {
            // File systems are taken down before their directory.
            drop(own);
            remove(&setup.directory)?;
        }
    }
    Ok(ended)
}

fn remove(directory: &Path) -> Result<(), String> {
    std::fs::remove_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn head(setup: &Setup, settings: &[ConfigRow], start: &[(String, String)]) -> Head<'static> {
    let text = |text: String| Text::Owned(text.into_bytes());
    let value = |key: &str| settings.iter().find(|row| row.key == key).map(|row| row.value.clone());
    Head {
        commit: text(crate::COMMIT.to_owned()),
        seed: text(setup.seed.to_string()),
        reads: text("quorum".to_owned()),
        speculation: value("speculation").map(|value| value == "on"),
        state: start.iter().cloned().map(|(key, value)| (text(key), text(value))).collect(),
    }
}

/// The settings of the cluster, as far as it tells.
fn settings(runtime: &Runtime, endpoints: &[String], config: &Config) -> Vec<ConfigRow> {
    let admin = Admin::new(endpoints.to_vec(), Config { timeout: CALL_TIMEOUT, ..config.clone() });
    runtime.block_on(admin.config()).unwrap_or_default()
}

fn client_config(own: Option<&Own>) -> Config {
    let dial_override = own.map_or_else(Vec::new, |own| {
        let Links::Proxies { clients, .. } = &own.links else { return Vec::new() };
        let proxies = clients.iter().enumerate();
        proxies.map(|(node, proxy)| (NodeId(node as u32 + 1), proxy.address().to_string())).collect()
    });
    // A number is kept until the end of the round: its write is repeated as long.
    let config = certs::config(own.and_then(|own| own.nodes.certs()));
    Config { timeout: CALL_TIMEOUT, resume_keep: Duration::from_secs(3_600), dial_override, ..config }
}

/// Forms a cluster of our own, and writes what is there at the start; the map that the run begins with.
fn begin(
    runtime: &Runtime,
    endpoints: &[String],
    config: &Config,
    own: Option<&Space>,
    start: &[(String, String)],
) -> Result<PartitionMap, String> {
    runtime.block_on(async {
        // A cluster that runs answers at once; one that has just started elects its leaders first.
        let timeout = if own.is_some() { RECOVERY_MAX } else { CALL_TIMEOUT };
        let patient = Config { timeout, ..config.clone() };
        if let Some(space) = own {
            let request = InitRequest {
                partitions: space.regions() as u32,
                split_keys: space.boundaries(),
                // Small, so that the nodes compare their states with each other many times.
                settings: vec![("digest_interval".into(), "100".into())],
                ..InitRequest::default()
            };
            let admin = Admin::new([endpoints[0].clone()], patient.clone());
            admin.init(request).await.map_err(|error| format!("the cluster cannot be formed: {error}"))?;
        }
        let what = |error| format!("the map of the cluster cannot be read from {}: {error}", endpoints.join(","));
        let client = Client::connect_with(endpoints.to_vec(), patient).await.map_err(what)?;
        let map = client.map().await.map_err(what)?;
        for (key, value) in start {
            client.put(&**key, &**value).await.map_err(|error| format!("{key} cannot be written: {error}"))?;
        }
        Ok((*map).clone())
    })
}

impl Own {
    fn start(setup: &Setup, runtime: &Runtime) -> Result<Own, String> {
        let place = |error: io::Error| format!("{}: {error}", setup.directory.display());
        std::fs::create_dir_all(&setup.directory).map_err(place)?;
        let started = Own::launch(setup, runtime);
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&setup.directory);
        }
        started.map_err(|error| format!("the cluster did not start: {error}"))
    }

    fn launch(setup: &Setup, runtime: &Runtime) -> io::Result<Own> {
        let (ports, held) = draw_ports(setup.nodes)?;
        let cuts = [Kind::Cut, Kind::Fail].iter().any(|kind| setup.kinds.contains(kind));
        let links = match (cuts, setup.kernel) {
            (false, _) => Links::Direct,
            (true, true) => Links::Kernel(Network::start(setup.nodes)?),
            (true, false) => runtime.block_on(async {
                let (mut peers, mut clients, mut resp) = (BTreeMap::new(), Vec::new(), Vec::new());
                for (from, to) in (0..setup.nodes).flat_map(|from| (0..setup.nodes).map(move |to| (from, to))) {
                    if from != to {
                        peers.insert((from, to), Proxy::start(local(ports[to].peer)).await?);
                    }
                }
                for ports in &ports {
                    clients.push(Proxy::start(local(ports.native)).await?);
                    resp.push(Proxy::start(local(ports.resp)).await?);
                }
                io::Result::Ok(Links::Proxies { peers, clients, resp })
            })?,
        };
        let hosts = match &links {
            Links::Kernel(network) => (0..setup.nodes)
                .map(|node| Host { namespace: network.namespace(node), address: network.node(node) })
                .collect(),
            _ => Vec::new(),
        };
        let no_peers = BTreeMap::new();
        let peers = if let Links::Proxies { peers, .. } = &links { peers } else { &no_peers };
        let overrides = (0..setup.nodes).map(|from| {
            let dialled = peers.iter().filter(|((of, _), _)| *of == from);
            dialled.map(|((_, to), proxy)| format!("n{}={}", to + 1, proxy.address())).collect::<Vec<_>>().join(",")
        });
        let directories: Vec<PathBuf> =
            (0..setup.nodes).map(|node| super::nodes::data(&setup.directory, node)).collect();
        let disks = match setup.kinds.contains(&Kind::Power) {
            true => Disks::loops(&directories)?,
            false => Disks::plain(),
        };
        // Small segments and checkpoints, so that trimming and snapshots are common; what is trimmed is kept for the
        // judge.
        // Where a node is to be ended at each step of both, smaller ones.
        let (segment, checkpoint) =
            if setup.kinds.contains(&Kind::Fail) { ("128KiB", "256KiB") } else { ("1MiB", "2MiB") };
        let flags = [["--log-keep", "all"], ["--log-segment-bytes", segment], ["--checkpoint-log-bytes", checkpoint]];
        let host = |number: u32| hosts.get(number as usize - 1).map(|host: &Host| host.address.to_string());
        let certificates = setup.directory.join("certs");
        let of_hosts = |number| host(number).into_iter().collect();
        let certs = setup.tls.then(|| Certs::of(&certificates, setup.nodes as u32, of_hosts)).transpose();
        let certs = certs.map_err(io::Error::other)?;
        let plan = Plan {
            certs,
            program: setup.program.clone(),
            directory: setup.directory.clone(),
            advertised: match &links {
                // The clients in the nodes, through which the RESP port asks, are cut off as all others are.
                Links::Proxies { clients, .. } if setup.resp => clients.iter().map(Proxy::address).collect(),
                _ => Vec::new(),
            },
            overrides: overrides.collect(),
            hosts,
            flags: flags.iter().flatten().map(|word| (*word).to_owned()).collect(),
            admin: false,
            failpoints: setup.kinds.contains(&Kind::Fail),
            ports,
            _held: held,
        };
        Ok(Own { nodes: Nodes::start(plan)?, links, disks, directories })
    }

    /// Where clients that speak RESP reach the nodes.
    fn resp(&self, setup: &Setup) -> Vec<SocketAddr> {
        match &self.links {
            Links::Proxies { resp, .. } => resp.iter().map(Proxy::address).collect(),
            _ => (0..setup.nodes).map(|node| self.nodes.resp(node)).collect(),
        }
    }

    fn endpoints(&self, setup: &Setup) -> Vec<String> {
        match &self.links {
            Links::Proxies { clients, .. } => clients.iter().map(|proxy| proxy.address().to_string()).collect(),
            _ => (0..setup.nodes).map(|node| self.nodes.native(node).to_string()).collect(),
        }
    }
}

/// Clients of a round.
struct Load<'a> {
    runtime: &'a Runtime,
    endpoints: Vec<String>,
    config: Config,
    workload: Arc<Workload>,
    /// For those that speak RESP; none: no client does.
    resp: Option<Arc<RespClients>>,
}

impl Load<'_> {
    /// Clients, faults, changes; then the last words. The faults that were made.
    fn run(&self, setup: &Setup, own: Option<&mut Own>, ended: &mut RoundResult) -> Result<Vec<Span>, String> {
        let started = Instant::now();
        let clients: Vec<JoinHandle<()>> = (0..setup.clients).map(|number| self.client(number)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let watching = own.is_some().then(|| {
            let _inside = self.runtime.enter();
            self.runtime.spawn(watch(self.endpoints.clone(), self.config.clone(), Arc::clone(&stop)))
        });
        let moves = [Kind::Map, Kind::Fail].iter().any(|kind| setup.kinds.contains(kind));
        let changes: Option<JoinHandle<Changes>> = moves.then(|| {
            let workload = Arc::clone(&self.workload);
            self.runtime.spawn(change(
                (self.endpoints.clone(), self.config.clone()),
                workload,
                setup.seed,
                Arc::clone(&stop),
            ))
        });
        let limits = setup.limits;
        let enough = |count: u64| {
            setup.interrupted.load(Ordering::Relaxed)
                || limits.time.is_some_and(|time| started.elapsed() >= time)
                || limits.ops.is_some_and(|ops| self.workload.asked() >= ops)
                || limits.count.is_some_and(|limit| count >= limit)
        };
        let mut spans = self.faults(setup, own, ended, enough)?;
        ended.ended_at = self.workload.recorder.now();
        stop.store(true, Ordering::Relaxed);
        if let Some(changes) = changes {
            let changes = self.runtime.block_on(changes).map_err(text)?;
            // Asked for by nobody, they only lead nodes to their failpoints.
            if setup.kinds.contains(&Kind::Map) {
                ended.count += changes.done.values().sum::<u64>();
                spans.extend(changes.spans);
            }
            ended.changes = (changes.done, changes.not_done);
        }
        if let Some(watching) = watching {
            ended.waiting = self.runtime.block_on(watching).map_err(text)?;
        }
        self.workload.stop();
        self.last_words(clients, ended)?;
        Ok(spans)
    }

    fn client(&self, number: u32) -> JoinHandle<()> {
        if let (Some(resp), true) = (&self.resp, matches!(number % 4, 1 | 2)) {
            let client = RespClient::new(Arc::clone(&self.workload), Arc::clone(resp), number);
            return self.runtime.spawn_blocking(|| client.run());
        }
        let _inside = self.runtime.enter();
        // Every fourth client takes a ticket for each range across partitions.
        let config = Config { optimistic_scans: !number.is_multiple_of(4), ..self.config.clone() };
        let client = Client::start(self.endpoints.clone(), config);
        self.runtime.spawn(Arc::clone(&self.workload).client(number, client))
    }

    fn faults(
        &self,
        setup: &Setup,
        own: Option<&mut Own>,
        ended: &mut RoundResult,
        mut enough: impl FnMut(u64) -> bool,
    ) -> Result<Vec<Span>, String> {
        let Some(own) = own else {
            while !enough(0) {
                std::thread::sleep(Duration::from_millis(20));
            }
            return Ok(Vec::new());
        };
        let mut nemesis = Nemesis {
            nodes: &mut own.nodes,
            links: &own.links,
            disks: &own.disks,
            operator: Operator {
                runtime: self.runtime,
                admin: Admin::new(self.endpoints.clone(), Config { timeout: CALL_TIMEOUT, ..self.config.clone() }),
            },
            workload: &self.workload,
            random: Random::of(setup.seed, 0xfa17),
            kinds: setup.kinds.iter().copied().filter(|kind| *kind != Kind::Map).collect(),
            matrix: setup.matrix.clone(),
            failpoints: setup.failpoints.clone(),
            until: setup.limits.time.map(|time| Instant::now() + time),
            spans: Vec::new(),
            kills: Vec::new(),
            count: 0,
        };
        let outcome = nemesis.run(enough);
        let (spans, count) = (nemesis.spans, nemesis.count);
        ended.kills = nemesis.kills;
        ended.failpoints = nemesis.failpoints;
        ended.failpoints.close(&own.nodes.all_seen());
        let healed = own.links.heal();
        ended.count += count;
        match outcome.and(healed.map_err(RoundError::Machine)) {
            Ok(()) => {}
            Err(RoundError::Node(how)) => ended.wrong.push(how),
            Err(RoundError::Machine(error)) => return Err(format!("a fault could not be made: {error}")),
        }
        Ok(spans)
    }

    /// Everything is healed: every write gets its answer, and the whole map is read.
    fn last_words(&self, clients: Vec<JoinHandle<()>>, ended: &mut RoundResult) -> Result<(), String> {
        let begun = Instant::now();
        let deadline = tokio::time::Instant::from_std(begun + RECOVERY_MAX);
        self.runtime.block_on(async {
            let mut open = 0;
            for mut client in clients {
                if tokio::time::timeout_at(deadline, &mut client).await.is_err() {
                    open += 1;
                    self.workload.give_up();
                    // What it waits for ends with the call's own timeout.
                    let _ = client.await;
                }
            }
            if open > 0 {
                ended.wrong.push(format!("{open} clients waited for {RECOVERY_MAX:?} after the last fault"));
            }
            let client = Client::start(self.endpoints.clone(), self.config.clone());
            let deadline = Instant::now() + RECOVERY_MAX;
            let (low, high) = self.workload.space.bounds();
            let whole = Draw::Range { low, high, limit: 0, reverse: false, mode: ReadMode::Leader };
            while !self.workload.range(&client, &whole).await.map_err(text)? {
                if Instant::now() > deadline {
                    let what = format!("the whole map could not be read within {RECOVERY_MAX:?} of the last fault");
                    ended.wrong.push(what);
                    return Ok(());
                }
            }
            let Some(resp) = &self.resp else { return Ok(()) };
            ended.wrong.extend(resp.take_wrong());
            let mut last = Vec::new();
            for key in resp.counters.keys() {
                let number = loop {
                    match self.workload.number(&client, key).await.map_err(text)? {
                        Some(number) => break number,
                        None if Instant::now() > deadline => {
                            ended.wrong.push(format!("the counter {key} held no number within {RECOVERY_MAX:?}"));
                            return Ok(());
                        }
                        None => {}
                    }
                };
                last.push(number);
            }
            ended.wrong.extend(resp.counters.settle(&self.workload.recorder, &last).map_err(text)?);
            Ok(())
        })
    }

    /// Removes the run's keys from a cluster that is not ours, as far as it answers.
    fn clear(&self) {
        let client = {
            let _inside = self.runtime.enter();
            Client::start(self.endpoints.clone(), self.config.clone())
        };
        let (low, high) = self.workload.space.bounds();
        self.runtime.block_on(async {
            let Ok(mut stream) = client.range(Range::between(&low, high.as_deref())).await else { return };
            let mut deletes = Vec::new();
            while let Ok(Some((key, _))) = stream.next().await {
                deletes.push(Operation::delete(key));
            }
            client.execute(deletes).await;
        });
    }

    /// What still waits although nobody asks for anything, in words.
    fn at_rest(&self) -> Option<String> {
        let admin = Admin::new(self.endpoints.clone(), Config { timeout: CALL_TIMEOUT, ..self.config.clone() });
        let deadline = Instant::now() + REST_WITHIN;
        loop {
            let Ok(status) = self.runtime.block_on(admin.status(false)) else { return None };
            let waiting = Waiting::of(&status);
            if waiting.is_over() {
                return None;
            }
            if Instant::now() > deadline {
                return Some(format!("{REST_WITHIN:?} after the last call, {waiting}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the nodes say of their states: partition, instance, digest.
    fn digests(&self) -> Vec<(u32, u64, u64)> {
        let admin = Admin::new(self.endpoints.clone(), Config { timeout: CALL_TIMEOUT, ..self.config.clone() });
        let Ok(status) = self.runtime.block_on(admin.status(false)) else { return Vec::new() };
        let partitions = status.partitions.iter();
        partitions.filter_map(|of| of.digest.map(|(instance, digest)| (of.id.0, instance, digest))).collect()
    }
}
