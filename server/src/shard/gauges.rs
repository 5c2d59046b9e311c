//! What a shard publishes of itself a few times a second: queues, lags, and how long a slow request took where.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_client::wire::PartitionId;
use coppice_core::replica::DecidedBatch;
use coppice_ordering::{Instance, Time};

use super::{Group, Shard};
use crate::metrics::{CloseReason, Op, Outcome, Partition, PartitionSample, Queue};

/// Instances whose times are remembered, for requests that turn out to be slow.
const TIMES_KEPT: usize = 1_024;

/// What is published of a group, and remembered for that.
pub struct Observed {
    /// Closed batches as they were last published: full, idle, due.
    closed: [u64; 3],
    /// How it is tuned, while it leads and the autopilot is on.
    pub(super) tuned: Option<super::Tuned>,
    /// Where its values are published.
    pub(super) metrics: Partition,
    /// When the newest instances were proposed and decided, where this one led.
    times: VecDeque<DecidedBatch>,
}

const CLOSE_REASONS: [CloseReason; 3] = [CloseReason::Bytes, CloseReason::Idle, CloseReason::Delay];

impl Shard {
    /// Takes what the groups measured in the last step.
    pub(super) fn note_samples(&mut self) {
        for index in 0..self.worker.stepped().len() {
            let id = self.worker.stepped()[index];
            let Some(group) = self.worker.groups_mut().get_mut(&id) else { continue };
            group.replica.take_samples(&mut self.samples);
            for batch in &self.samples.proposed {
                self.metrics.batch_proposed(batch.bytes, batch.commands);
            }
            self.samples.gate_waits.iter().for_each(|took| self.metrics.reply_held(*took));
            self.samples.decided.iter().for_each(|decided| self.metrics.instance_decided(decided.took()));
            if let Some(observed) = self.observed.get_mut(&id) {
                observed.note_times(&self.samples.decided);
            }
        }
    }

    /// Entries that wait in this shard's queues now.
    pub fn publish_queues(&self) {
        let metrics = &self.metrics;
        metrics.set_queue_depth(Queue::Mailbox, self.shared.sender(self.index).len() as u64);
        let batched: usize = self.worker.groups().values().map(|group| group.replica.queued()).sum();
        metrics.set_queue_depth(Queue::Batcher, batched as u64);
        let pieces: usize = self.links.values().map(|link| link.waiting()).sum();
        metrics.set_queue_depth(Queue::Peers, pieces as u64);
        let waiting = self.connections.values().map(|connection| connection.waiting());
        let (replies, scans, inflight) =
            waiting.fold((0, 0, 0), |sum, now| (sum.0 + now.replies, sum.1 + now.scans, sum.2 + now.inflight));
        metrics.set_queue_depth(Queue::Replies, replies as u64);
        metrics.set_queue_depth(Queue::Scans, scans as u64);
        metrics.set_queue_depth(Queue::Inflight, inflight as u64);
        metrics.set_queue_depth(Queue::Connections, self.connections.len() as u64);
        if self.index == 0 {
            // Of the whole node: shown once.
            metrics.set_queue_depth(Queue::NodeBytes, self.shared.budget().bytes());
        }
    }

    /// Logs a request that took longer than `slow_request`, with the time of each stage as far as it is known here.
    pub fn slow_request(&self, id: PartitionId, op: Op, outcome: Outcome, instance: Option<Instance>, took: Duration) {
        let took_ms = took.as_secs_f64() * 1e3;
        let times = instance.and_then(|instance| self.observed.get(&id)?.times_of(instance));
        let Some(times) = times else {
            let (op, outcome) = (op.text(), outcome.text());
            tracing::warn!(partition = %id, op, outcome, took_ms, "slow request");
            return;
        };
        let now = self.now();
        let received = Time(now.0.saturating_sub(took.as_nanos() as u64));
        let since = |time: Time| time.since(received).as_secs_f64() * 1e3;
        tracing::warn!(
            partition = %id, op = op.text(), outcome = outcome.text(), instance = %times.instance, took_ms,
            proposed_ms = since(times.proposed), executed_ms = since(times.proposed), decided_ms = since(times.decided),
            released_ms = took_ms, "slow request"
        );
    }
}

impl Observed {
    /// Of a group whose values are published there.
    pub fn new(metrics: Partition) -> Observed {
        Observed { closed: [0; 3], tuned: None, metrics, times: VecDeque::new() }
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
    pub fn publish(&mut self, group: &Group, shard: &crate::metrics::Shard) {
        let counters = group.replica.paxos().counters();
        let closed = [counters.batches_closed_full, counters.batches_closed_idle, counters.batches_closed_due];
        for ((reason, now), before) in CLOSE_REASONS.into_iter().zip(closed).zip(self.closed) {
            shard.batches_closed(reason, now - before);
        }
        self.closed = closed;
        let paxos = group.replica.paxos();
        let executor = group.replica.executor();
        let counters = paxos.counters();
        let (keys, bytes) = group.size();
        let sessions = executor.machine().partition().map_or(0, |shard| shard.sessions().len() as u64);
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
            bytes,
            leads: group.replica.is_leading(),
            decided_instance: executor.decided().0,
            sessions,
            replies_held: group.replica.held() as u64,
        });
        for (&node, lag) in &group.lags {
            self.metrics.peer(node).set_lag(lag.instances(), lag.behind_for());
        }
    }
}
