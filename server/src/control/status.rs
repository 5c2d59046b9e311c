//! What `coppice status` shows: what this node knows of itself, put together with what the others say.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coppice_client::map::{NodeInfo, NodeState, PartitionMap, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{
    AdminReply, MapVersion, NodeId, NodeStatus, PartitionId, PartitionStatus, ReplicaStatus, Status, StatusGet,
};
use coppice_core::digests::Digests;
use coppice_core::majority::{is_majority, voters_up};
use coppice_core::question::{Answer, Question};
use coppice_core::status::{Capacity, LocalReplica, LocalStatus};
use coppice_core::worker::GroupStatus;
use tokio::sync::oneshot;

use super::Control;
use super::coalesced;
use super::rates::{Rate, Sample};
use crate::log::FlushReport;
use crate::rpc::ask;
use crate::shared::Shared;
use crate::worker_thread::{self, Flushes, WorkerThread};

/// How long another node may take to say how it is; dead and paused ones are known by then.
const ASK_TIMEOUT: Duration = Duration::from_millis(450);

/// The newest flushes of the log, for a p99 without a histogram's memory.
#[derive(Debug, Default)]
pub struct FlushTimes {
    newest: Mutex<Vec<u32>>,
    count: AtomicU64,
    log_bytes: AtomicU64,
    pinned_by: Mutex<Vec<PartitionId>>,
    took_ns: AtomicU64,
}

/// Flushes that count as new.
const FLUSHES: usize = 1_000;

impl FlushTimes {
    /// One flush.
    pub fn note(&self, flushed: &FlushReport<'_>) {
        let FlushReport { took, log_bytes, pinned_by, .. } = *flushed;
        let mut pins = self.pinned_by.lock().unwrap_or_else(PoisonError::into_inner);
        if *pins != pinned_by {
            pins.clear();
            pins.extend_from_slice(pinned_by);
        }
        drop(pins);
        let at = self.count.fetch_add(1, Ordering::Relaxed) as usize % FLUSHES;
        self.log_bytes.store(log_bytes, Ordering::Relaxed);
        self.took_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.get_mut(at) {
            Some(slot) => *slot = micros,
            None => newest.push(micros),
        }
    }

    /// All flushes so far.
    pub fn all(&self) -> Flushes {
        let took = Duration::from_nanos(self.took_ns.load(Ordering::Relaxed));
        Flushes { count: self.count.load(Ordering::Relaxed), took }
    }

    /// Bytes of the log's files, as of the newest flush.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Groups whose batches keep the log's oldest segment, as of the newest flush.
    pub fn pinned_by(&self) -> Vec<PartitionId> {
        let pins = self.pinned_by.lock().unwrap_or_else(PoisonError::into_inner);
        pins.iter().map(|group| PartitionId(group.0)).collect()
    }

    fn p99_us(&self) -> u64 {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        newest.sort_unstable();
        newest.get(newest.len() * 99 / 100).or(newest.last()).map_or(0, |&micros| u64::from(micros))
    }
}

/// Linux on the machines that we run on.
const PAGE_BYTES: u64 = 4_096;

/// How often the other nodes are asked, in the looks around: while something is decided here, and while nothing is.
const SURVEY: Duration = Duration::from_secs(1);
const SURVEY_CALM: Duration = Duration::from_secs(5);

/// Memory of this process, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages: u64 = text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    pages * PAGE_BYTES
}

/// Has the worker threads tune their groups, publish their metrics, and say what rates are made of.
pub(super) fn sample_rates(control: &Control) {
    let flushes = control.storage.flush.all();
    control.outbox.on_all(|| {
        let shared = Arc::clone(&control.shared);
        move |thread: &mut WorkerThread| {
            worker_thread::tell_load(thread, flushes);
            worker_thread::publish(thread);
            let samples: Vec<Sample> =
                thread.worker.groups().iter().map(|(&id, group)| Sample::of(id, group)).collect();
            shared.call(move |control| control.rates.note(Instant::now(), &samples));
        }
    });
}

pub(super) fn answer_local_status(control: &mut Control, reply: oneshot::Sender<Answer>) {
    let local = local_status(control);
    crate::task::spawn(async move {
        _ = reply.send(Answer::Status(Box::new(local.await)));
    });
}

pub(super) fn answer_status(control: &mut Control, get: StatusGet, reply: oneshot::Sender<Arc<Status>>) {
    if get.local {
        let status = status(control, true);
        crate::task::spawn(async move { _ = reply.send(Arc::new(status.await)) });
    } else {
        let make = |control: &Control| {
            let status = status(control, false);
            async move { Arc::new(status.await) }
        };
        coalesced::ask(control, |questions| &mut questions.statuses, make, reply);
    }
}

fn status(control: &Control, local: bool) -> impl Future<Output = Status> + use<> {
    let (shared, gathered, warnings) = (Arc::clone(&control.shared), gather(control, local), warnings(control));
    async move {
        let known = gathered.await;
        let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        assemble(&shared, &shared.cluster.map(), own, &known, warnings)
    }
}

/// What every node that answers knows of itself, this one included. `local`: only this one.
pub(super) fn gather(control: &Control, local: bool) -> impl Future<Output = BTreeMap<NodeId, LocalStatus>> + use<> {
    let shared = Arc::clone(&control.shared);
    let status = local_status(control);
    async move {
        let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        let mut asked = Vec::new();
        if !local {
            let reached = |node: &&NodeInfo| node.state != NodeState::Removed && !shared.peers.is_cut_off(node.id);
            for node in shared.cluster.map().nodes.iter().filter(|node| node.id != own).filter(reached) {
                let (id, address, shared) = (node.id, node.addresses.peer.clone(), Arc::clone(&shared));
                let question =
                    async move { (id, ask(&shared, Some(id), &address, &Question::Status, ASK_TIMEOUT).await) };
                asked.push(crate::task::spawn(question));
            }
        }
        let mut known = BTreeMap::from([(own, status.await)]);
        for task in asked {
            // A process that lost its data, or has another node's, answers as somebody else: that node is not up.
            if let Ok((id, Ok(Answer::Status(status)))) = task.await
                && status.node.id == id
            {
                known.insert(id, *status);
            }
        }
        known
    }
}

/// Asks the others how they are, so that `tolerated_failures` is fresh without anybody asking for the status, and
/// compares the digests of replicas (hazards.md E6).
pub(super) fn survey_if_due(control: &mut Control, rests: bool) {
    let interval = if rests { SURVEY_CALM } else { SURVEY };
    if control.surveyed.is_none_or(|last| last.elapsed() >= interval) {
        control.surveyed = Some(Instant::now());
        survey(control);
    }
}

fn survey(control: &Control) {
    if control.shared.cluster.map().version.0 == 0 || control.shared.is_draining() {
        return;
    }
    let shared = Arc::clone(&control.shared);
    let gathered = gather(control, false);
    crate::task::spawn(async move {
        let known = gathered.await;
        let map = shared.cluster.map();
        shared.metrics.set_tolerated_failures(u32::try_from(tolerated_failures(&map, &known)).ok());
        let mut digests = Digests::default();
        digests.note(&known);
        if let AdminReply::Failed(AdminError::Mismatch(text)) = digests.compare(&map) {
            shared.metrics.digest_mismatch();
            tracing::error!("replicas differ: {text}");
        }
    });
}

fn warnings(control: &Control) -> Vec<String> {
    let config = &control.shared.config;
    let mut warnings = Vec::new();
    if config.insecure && control.shared.tls().is_none() {
        warnings.push(match control.shared.cluster.access().is_on() {
            false => "listens beyond loopback without TLS, and access control is off (insecure = true): whoever \
                      reaches the ports may do everything"
                .into(),
            true => "listens beyond loopback without TLS (insecure = true): tokens and data can be read on the \
                     way, and the peer port lets in whoever reaches it"
                .into(),
        });
    }
    if config.log.flush == crate::config::Flush::Off {
        warnings.push("log.flush is off: a power cut may lose answered writes".into());
    }
    if control.shared.usage.memory_is_full() {
        warnings.push("memory limit reached: writes that grow are refused".into());
    }
    if control.storage.space().is_some_and(|space| space.full) {
        warnings.push(DISK_WARNING.into());
    }
    if let Some(text) = control.shared.own.fence.with(|fence| fence.copy().map(str::to_owned)) {
        let own = control.shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        let next = config.replace_command(own);
        warnings.push(format!("{own} takes part in nothing: {text}; replace it: `{next}`"));
    }
    for (node, text) in control.shared.own.copies() {
        let map = control.shared.cluster.map();
        let address = map.node(node).map_or("ADDRESS", |info| info.addresses.peer.as_str());
        warnings.push(format!("{node} is not let in: {text}; replace it: `coppice node replace {node} {address}`"));
    }
    for partition in control.controller.replicas().awaiting_snapshot().keys() {
        warnings.push(format!("{partition}: checkpoints are damaged; its state is awaited from another node"));
    }
    warnings
}

pub(super) fn local_status(control: &Control) -> impl Future<Output = LocalStatus> + use<> {
    let shared = Arc::clone(&control.shared);
    let rates = control.rates.clone();
    let space = control.storage.space();
    let node = NodeStatus {
        id: shared.own.identity().map(|identity| identity.node).unwrap_or_default(),
        name: shared.config.name.clone(),
        address: control.announcement.addresses.native.clone(),
        up: true,
        incarnation: shared.own.identity().map_or(0, |identity| identity.incarnation),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_ms: control.started.elapsed().as_millis() as u64,
        flush_us_p99: control.storage.flush.p99_us(),
        log_bytes: control.storage.flush.log_bytes(),
        disk_free_bytes: space.map_or(0, |space| space.free_bytes),
        disk_full: space.is_some_and(|space| space.full),
        memory_bytes: resident_bytes(),
        connections: shared.usage.connections() as u32,
    };
    let warnings = warnings(control);
    let capacity = Capacity {
        replicas: control.controller.replicas().running().len(),
        replicas_max: control.shared.config.limits.partitions,
        disk_is_full: node.disk_full,
        memory_is_full: control.shared.usage.memory_is_full(),
    };
    let full = capacity.full();
    async move {
        let mut replicas = BTreeMap::new();
        for thread in 0..shared.workers.count() {
            let groups = shared.workers.ask(thread, ASK_TIMEOUT, |thread| {
                thread.worker.groups().iter().map(|(&id, group)| (id, group.status())).collect::<Vec<_>>()
            });
            for (id, group) in groups.await.unwrap_or_default() {
                replicas.insert(id, local_replica(&group, rates.get(id)));
            }
        }
        LocalStatus { node, map_version: shared.cluster.map().version.0, replicas, warnings, full }
    }
}

/// What a node says when its disk is filled to the reserve.
const DISK_WARNING: &str = "disk reserve reached: writes that grow are refused where a majority has no more room";

/// How many more nodes may be lost, as far as this node knows; -1: some partition has no quorum, or nobody who answers
/// knows a leader of it.
fn tolerated_failures(map: &PartitionMap, known: &BTreeMap<NodeId, LocalStatus>) -> i32 {
    let spare = |entry: &coppice_client::map::Entry| {
        let up = |node: NodeId| known.get(&node).is_some_and(|local| local.replicas.contains_key(&entry.partition));
        let (alive, all) = voters_up(entry, up);
        let mut replicas = known.values().filter_map(|local| local.replicas.get(&entry.partition));
        let led = replicas.any(|replica| replica.leads || replica.leader.is_some());
        if led { alive as i32 - (all as i32 / 2 + 1) } else { -1 }
    };
    map.directory.iter().chain(&map.partitions).map(spare).min().unwrap_or(-1).max(-1)
}

fn local_replica(group: &GroupStatus, rate: Option<&Rate>) -> LocalReplica {
    let commands_per_second = rate.map_or(0.0, |rate| rate.per_second);
    let batch_commands = rate.map_or(0.0, |rate| rate.batch);
    LocalReplica { commands_per_second, batch_commands, ..group.told() }
}

fn assemble(
    shared: &Shared,
    map: &PartitionMap,
    own: NodeId,
    known: &BTreeMap<NodeId, LocalStatus>,
    mut warnings: Vec<String>,
) -> Status {
    let members = map.nodes.iter().filter(|info| info.state != NodeState::Removed);
    let nodes = members.map(|info| match known.get(&info.id) {
        Some(local) => NodeStatus { id: info.id, ..local.node.clone() },
        None => NodeStatus {
            id: info.id,
            name: info.name.clone(),
            address: info.addresses.native.clone(),
            ..NodeStatus::default()
        },
    });
    let nodes: Vec<NodeStatus> = nodes.collect();
    let entries = map.directory.iter().chain(&map.partitions);
    let partitions = entries.map(|entry| partition_status(entry, known)).collect();
    let tolerated = tolerated_failures(map, known);
    for (node, local) in known {
        let of_others = local.warnings.iter().filter(|_| *node != own).map(|text| format!("{node}: {text}"));
        warnings.extend(of_others);
    }
    shared.metrics.set_tolerated_failures(u32::try_from(tolerated).ok());
    Status {
        cluster: shared.own.identity().map(|identity| identity.cluster),
        node: own,
        map_version: MapVersion(map.version.0),
        feature_level: coppice_core::settings::FEATURE_LEVEL,
        tolerated_failures: tolerated,
        tickets_in_flight: u32::try_from(shared.metrics.tickets_in_flight()).unwrap_or(u32::MAX),
        nodes,
        partitions,
        warnings,
        majority: is_majority(map, |node| known.contains_key(&node)),
    }
}

fn partition_status(entry: &coppice_client::map::Entry, known: &BTreeMap<NodeId, LocalStatus>) -> PartitionStatus {
    let local = |node: NodeId| known.get(&node).and_then(|node| node.replicas.get(&entry.partition));
    let leading = entry.replicas.iter().find(|info| local(info.node).is_some_and(|replica| replica.leads));
    let leader = leading.map(|info| info.node);
    let told = leader.and_then(local).or_else(|| entry.replicas.iter().find_map(|info| local(info.node)));
    let told = told.cloned().unwrap_or_default();
    let replicas = entry.replicas.iter().map(|info| {
        let replica = local(info.node);
        let lag = replica.map_or(0, |replica| told.decided_upto.saturating_sub(replica.decided_upto));
        ReplicaStatus {
            replica: info.replica,
            node: info.node,
            voter: info.role == Role::Voter,
            up: replica.is_some(),
            lag_instances: lag,
            lag_ms: told.lags.get(&info.node).map_or(0, |&(_, millis)| millis),
        }
    });
    PartitionStatus {
        id: entry.partition,
        low: entry.low.clone(),
        high: entry.high.clone(),
        leader,
        replicas: replicas.collect(),
        ballot: told.ballot,
        decided_upto: told.decided_upto,
        trimmed_upto: told.trimmed_upto,
        last_ticket: told.last_ticket,
        released: told.released,
        held: told.held,
        undo_bytes: told.undo_bytes,
        keys: told.keys,
        bytes: told.bytes,
        commands_per_second: told.commands_per_second,
        window: told.window,
        batch_commands: told.batch_commands,
        sessions: told.sessions,
        digest: told.digests.last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::{Entry, ReplicaInfo};
    use coppice_client::wire::ReplicaId;

    use super::*;

    #[test]
    fn a_partition_without_a_leader_survives_nothing() {
        let replica = |n: u32| ReplicaInfo { replica: ReplicaId(n), node: NodeId(n), role: Role::Voter };
        let entry = Entry { partition: PartitionId(1), replicas: (1..=3).map(replica).collect(), ..Entry::default() };
        let map = PartitionMap { partitions: vec![entry], ..PartitionMap::default() };
        let node = |leader| {
            let replica = LocalReplica { leader, ..LocalReplica::default() };
            LocalStatus { replicas: BTreeMap::from([(PartitionId(1), replica)]), ..LocalStatus::default() }
        };
        let of = |leaders: &[Option<NodeId>]| {
            let known = (1..).map(NodeId).zip(leaders.iter().map(|leader| node(*leader))).collect();
            tolerated_failures(&map, &known)
        };
        assert_eq!((of(&[Some(NodeId(1)); 3]), of(&[Some(NodeId(1)); 2]), of(&[Some(NodeId(1))])), (1, 0, -1));
        assert_eq!((of(&[None, Some(NodeId(1)), None]), of(&[None; 3])), (1, -1));
    }
}
