//! What `coppice status` shows: what this node knows of itself, put together with what the others say.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coppice_client::wire::{NodeId, NodeStatus, PartitionId, Status, StatusGet};
use coppice_core::controller::reasons_against_readiness;
use coppice_core::digests::{Comparison, Digests};
use coppice_core::question::{Answer, Question};
use coppice_core::status::{Capacity, Condition, LocalReplica, LocalStatus, overview, tolerated_failures};
use coppice_core::survey::{self, NodeNews};
use coppice_core::worker::{Group, GroupStatus};
use tokio::sync::oneshot;

use super::Control;
use super::coalesced;
use super::rates::{Rate, Sample};
use super::survey::survey;
use crate::log::FlushReport;
use crate::process::resident_bytes;
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
            let index = thread.index;
            shared.call(move |control| control.note_samples(index, &samples));
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

/// Asks the worker threads how their replicas are, and says what keeps this node from being ready.
pub(super) fn answer_readiness(control: &Control, reply: oneshot::Sender<Vec<String>>) {
    let shared = Arc::clone(&control.shared);
    crate::task::spawn(async move {
        let mut heard = Vec::new();
        for thread in 0..shared.workers.count() {
            let replicas = shared.workers.ask(thread, ASK_TIMEOUT, |thread| {
                thread.worker.groups().iter().map(|(&id, group)| (id, group.readiness())).collect()
            });
            heard.push(replicas.await);
        }
        shared.call(move |control| _ = reply.send(reasons_against_readiness(&control.controller, &heard)));
    });
}

fn status(control: &Control, local: bool) -> impl Future<Output = Status> + use<> {
    let (shared, gathered) = (Arc::clone(&control.shared), gather(control, local));
    let settings = (!local).then(|| control.controller.settings().clone());
    async move {
        let known = gathered.await;
        let identity = shared.own.identity().map(|identity| (identity.cluster, identity.node));
        let (cluster, own) = identity.map_or_else(Default::default, |(cluster, own)| (Some(cluster), own));
        let tickets = u32::try_from(shared.metrics.tickets_in_flight()).unwrap_or(u32::MAX);
        let status = overview(
            &shared.cluster.map(),
            (cluster, own),
            &known,
            (settings.as_ref(), tickets),
            &shared.peers.excuses(),
        );
        shared.metrics.set_tolerated_failures(u32::try_from(status.tolerated_failures).ok());
        status
    }
}

/// What every node that answers knows of itself, this one included. `local`: only this one.
pub(super) fn gather(control: &Control, local: bool) -> impl Future<Output = BTreeMap<NodeId, LocalStatus>> + use<> {
    let shared = Arc::clone(&control.shared);
    let status = local_status(control);
    async move {
        let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        let others = (!local).then(|| survey(&shared, &Question::Status, ASK_TIMEOUT, survey::status));
        let status = status.await;
        let mut known = match others {
            Some(others) => others.await.heard,
            None => BTreeMap::new(),
        };
        known.insert(own, status);
        known
    }
}

/// Asks the others how they are, so that `tolerated_failures` is fresh without anybody asking for the status, and
/// compares the digests of replicas (hazards.md E6).
pub(super) fn survey_if_due(control: &mut Control, rests: bool) {
    let (shared, now) = (Arc::clone(&control.shared), control.now());
    if !control.surveys.is_due(now, &shared.cluster.map(), rests, shared.is_draining()) {
        return;
    }
    let gathered = gather(control, false);
    crate::task::spawn(async move {
        let known = gathered.await;
        let map = shared.cluster.map();
        shared.metrics.set_tolerated_failures(u32::try_from(tolerated_failures(&map, &known)).ok());
        if let ControlFlow::Break(Comparison::Mismatch(text)) = Digests::default().look(&map, &known) {
            shared.metrics.digest_mismatch();
            tracing::error!("replicas differ: {text}");
        }
        let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        shared.call(move |control| {
            for NodeNews { node, is_up } in control.surveys.note(&map, own, |node| known.contains_key(&node)) {
                match is_up {
                    true => tracing::info!(%node, "a node is up again"),
                    false => tracing::warn!(%node, "a node is down: it does not answer"),
                }
            }
        });
    });
}

/// What may be wrong with this node.
pub(super) fn condition(control: &Control) -> Condition {
    let (config, shared) = (&control.shared.config, &control.shared);
    let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
    let space = control.storage.space();
    let copy = control.controller.fence().copy().map(str::to_owned);
    Condition {
        is_insecure: config.insecure && shared.tls().is_none(),
        access_is_on: shared.cluster.access().is_on(),
        flush_is_off: config.log.flush == crate::config::Flush::Off,
        memory_is_full: shared.usage.memory_is_full(),
        memory: (resident_bytes(), config.memory_limit),
        disk_is_full: space.is_some_and(|space| space.full),
        disk: space.map_or((0, 0), |space| (space.free_bytes, space.reserve_bytes)),
        copy: copy.map(|why| (own, why, config.replace_command(own))),
        copies: shared.own.incarnations.copies(),
        recovering: shared.recovery.lines(),
        damaged: control.controller.replicas().awaiting_snapshot().keys().copied().collect(),
    }
}

pub(super) fn local_status(control: &Control) -> impl Future<Output = LocalStatus> + use<> {
    let shared = Arc::clone(&control.shared);
    let rates = control.rates.clone();
    let space = control.storage.space();
    let condition = condition(control);
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
        disk_full: condition.disk_is_full,
        memory_full: condition.memory_is_full,
        memory_bytes: resident_bytes(),
        connections: shared.usage.connections() as u32,
    };
    let warnings = condition.warnings(&control.shared.cluster.map());
    let capacity = Capacity {
        replicas: control.controller.replicas().running().len(),
        replicas_max: control.shared.config.limits.partitions,
        disk_is_full: condition.disk_is_full,
        memory_is_full: condition.memory_is_full,
    };
    let (full, changes) = (capacity.full(), control.controller.changes_under_way());
    async move {
        let mut replicas = BTreeMap::new();
        for thread in 0..shared.workers.count() {
            let groups = shared.workers.ask(thread, ASK_TIMEOUT, |thread| {
                let worker = &thread.worker;
                let told = |(&id, group): (&PartitionId, &Group)| (id, group.status(), worker.fullness(id));
                worker.groups().iter().map(told).collect::<Vec<_>>()
            });
            for (id, group, full) in groups.await.unwrap_or_default() {
                let refuses = full.map(|why| why.to_string());
                replicas.insert(id, LocalReplica { refuses, ..local_replica(&group, rates.get(id)) });
            }
        }
        LocalStatus { node, map_version: shared.cluster.map().version.0, replicas, warnings, full, changes }
    }
}

fn local_replica(group: &GroupStatus, rate: Option<&Rate>) -> LocalReplica {
    let commands_per_second = rate.map_or(0.0, |rate| rate.per_second);
    let batch_commands = rate.map_or(0.0, |rate| rate.batch);
    LocalReplica { commands_per_second, batch_commands, ..group.told() }
}
