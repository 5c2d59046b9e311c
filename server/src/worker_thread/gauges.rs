//! What a worker thread publishes of itself a few times a second: queues, lags, and how long a slow request took where.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use coppice_client::wire::PartitionId;
use coppice_core::replica::{DecidedBatch, Samples};
use coppice_core::worker::Worker;
use coppice_ordering::{Instance, Time};

use super::load::LoadMeter;
use super::{Group, WorkerThread};
use crate::metrics::{self, Area, CloseReason, Op, Outcome, Partition, PartitionSample, Queue, Tuned};

/// Instances whose times are remembered, for requests that turn out to be slow.
const TIMES_KEPT: usize = 1_024;

/// What is published of a group, and remembered for that.
pub struct GroupMetrics {
    /// Closed batches as they were last published: full, idle, due.
    closed: [u64; 3],
    /// Where its values are published.
    metrics: Partition,
    /// When the newest instances were proposed and decided, where this one led.
    times: VecDeque<DecidedBatch>,
}

const CLOSE_REASONS: [CloseReason; 3] = [CloseReason::Bytes, CloseReason::Idle, CloseReason::Delay];

/// What a worker thread measures and publishes.
pub(crate) struct ThreadMetrics {
    /// Of the thread itself.
    pub(super) worker: metrics::Worker,
    /// Of each group.
    pub(super) groups: BTreeMap<PartitionId, GroupMetrics>,
    pub(super) load: LoadMeter,
    samples: Samples,
}

impl ThreadMetrics {
    pub(super) fn new(worker: metrics::Worker) -> ThreadMetrics {
        ThreadMetrics { worker, groups: BTreeMap::new(), load: LoadMeter::default(), samples: Samples::default() }
    }

    /// Takes what the groups measured in the last step.
    pub(super) fn note_samples(&mut self, worker: &mut Worker) {
        for index in 0..worker.stepped().len() {
            let id = worker.stepped()[index];
            worker.take_samples(id, &mut self.samples);
            for batch in &self.samples.proposed {
                self.worker.batch_proposed(batch.bytes, batch.commands);
            }
            self.samples.gate_waits.iter().for_each(|took| self.worker.reply_held(*took));
            self.samples.decided.iter().for_each(|decided| self.worker.instance_decided(decided.took()));
            if let Some(observed) = self.groups.get_mut(&id) {
                observed.note_times(&self.samples.decided);
            }
        }
    }

    /// Logs a request that took longer than `slow_request`, with the time of each stage as far as it is known here.
    pub(super) fn slow_request(
        &self,
        now: Time,
        id: PartitionId,
        op: Op,
        outcome: Outcome,
        instance: Option<Instance>,
        took: Duration,
    ) {
        let took_ms = took.as_secs_f64() * 1e3;
        let times = instance.and_then(|instance| self.groups.get(&id)?.times_of(instance));
        let Some(times) = times else {
            let (op, outcome) = (op.text(), outcome.text());
            tracing::warn!(partition = %id, op, outcome, took_ms, "slow request");
            return;
        };
        let received = Time(now.0.saturating_sub(took.as_nanos() as u64));
        let since = |time: Time| time.since(received).as_secs_f64() * 1e3;
        tracing::warn!(
            partition = %id, op = op.text(), outcome = outcome.text(), instance = %times.instance, took_ms,
            proposed_ms = since(times.proposed), executed_ms = since(times.proposed), decided_ms = since(times.decided),
            released_ms = took_ms, "slow request"
        );
    }
}

/// Publishes what waits in the queues of a thread, and the values of its groups.
pub(crate) fn publish(thread: &mut WorkerThread) {
    let metrics = &thread.metrics.worker;
    metrics.set_queue_depth(Queue::Mailbox, thread.mailboxes.waiting(thread.index) as u64);
    let batched: usize = thread.worker.groups().values().map(|group| group.replica.queued()).sum();
    metrics.set_queue_depth(Queue::Batcher, batched as u64);
    let pieces: usize = thread.links.values().map(|link| link.waiting()).sum();
    metrics.set_queue_depth(Queue::Peers, pieces as u64);
    let waiting = thread.connections.iter().map(|connection| connection.waiting());
    let (replies, scans, inflight) =
        waiting.fold((0, 0, 0), |sum, now| (sum.0 + now.replies, sum.1 + now.scans, sum.2 + now.inflight));
    metrics.set_queue_depth(Queue::Replies, replies as u64);
    metrics.set_queue_depth(Queue::Scans, scans as u64);
    metrics.set_queue_depth(Queue::Inflight, inflight as u64);
    metrics.set_queue_depth(Queue::Connections, thread.connections.len() as u64);
    if thread.index == 0 {
        // Of the whole node: shown once.
        let usage = &thread.shared.usage;
        metrics.set_queue_depth(Queue::NodeBytes, usage.budget().bytes());
        metrics.set_memory(Area::Requests, usage.budget().bytes());
        metrics.set_memory(Area::Scans, usage.scan_bytes());
    }
    let bytes = |of: fn(&Group) -> u64| thread.worker.groups().values().map(of).sum();
    metrics.set_memory(Area::Trees, bytes(|group| group.size().1));
    metrics.set_memory(Area::Logs, bytes(|group| group.replica.paxos().kept_bytes() as u64));
    metrics.set_memory(Area::Sessions, bytes(|group| group.sessions().map_or(0, |sessions| sessions.bytes() as u64)));
    metrics.set_memory(Area::Undo, bytes(|group| group.replica.executor().undo_bytes()));
    for (id, group) in thread.worker.groups() {
        if let Some(observed) = thread.metrics.groups.get_mut(id) {
            observed.publish(group, &thread.metrics.worker);
        }
    }
}

impl GroupMetrics {
    /// Of a group whose values are published there.
    pub fn new(metrics: Partition) -> GroupMetrics {
        GroupMetrics { closed: [0; 3], metrics, times: VecDeque::new() }
    }

    /// Remembers when these instances were proposed and decided.
    fn note_times(&mut self, decided: &[DecidedBatch]) {
        for &times in decided {
            if self.times.len() == TIMES_KEPT {
                self.times.pop_front();
            }
            self.times.push_back(times);
        }
    }

    fn times_of(&self, instance: Instance) -> Option<DecidedBatch> {
        let times: &VecDeque<DecidedBatch> = &self.times;
        times.iter().rev().find(|times| times.instance == instance).copied()
    }

    /// Publishes the values of `/metrics`.
    fn publish(&mut self, group: &Group, thread: &crate::metrics::Worker) {
        let counters = group.replica.paxos().counters();
        let closed = [counters.batches_closed_full, counters.batches_closed_idle, counters.batches_closed_due];
        for ((reason, now), before) in CLOSE_REASONS.into_iter().zip(closed).zip(self.closed) {
            thread.batches_closed(reason, now - before);
        }
        self.closed = closed;
        let paxos = group.replica.paxos();
        let executor = group.replica.executor();
        let counters = paxos.counters();
        let (keys, bytes) = group.size();
        let expiry = executor.machine().partition().map(|partition| partition.expiry());
        let sessions = group.sessions().map_or(0, |sessions| sessions.len() as u64);
        self.metrics.publish(&PartitionSample {
            commands_decided: counters.commands_decided,
            instances_decided: counters.instances_decided,
            window_instances: paxos.in_flight().0 as u64,
            window_limit: u64::from(paxos.settings().window),
            window_instance_nanos: counters.window_instance_ns,
            speculation_rollbacks: executor.counters().rollbacks,
            speculation_undone_commands: executor.counters().undone_commands,
            speculative_instances: executor.last_executed().ahead_of(executor.decided()),
            leader_changes: group.replica.leader_changes(),
            keys,
            keys_expiring: expiry.map_or(0, |expiry| expiry.len()),
            keys_expired: expiry.map_or(0, |expiry| expiry.expired()),
            bytes,
            leads: group.replica.is_leading(),
            decided_instance: executor.decided().0,
            sessions,
            replies_held: group.replica.held() as u64,
        });
        let tuning = group.tuner.as_ref().and_then(|tuner| Some((tuner.account()?, tuner.batch_bytes())));
        self.metrics.publish_tuning(tuning.map(|(account, batch_bytes)| {
            move |value| match value {
                Tuned::ThroughputPredicted => account.predicted_throughput,
                Tuned::ThroughputMeasured => account.measured_throughput,
                Tuned::WindowPredicted => account.predicted_window,
                Tuned::WindowMeasured => account.measured_window,
                Tuned::WindowChosen => f64::from(account.tuning.window),
                Tuned::BatchMeasured => batch_bytes,
                Tuned::BatchChosen => account.tuning.batch_bytes_max as f64,
            }
        }));
        for (&node, lag) in &group.lags {
            self.metrics.peer(node).set_lag(lag.instances(), lag.behind_for());
        }
    }
}
