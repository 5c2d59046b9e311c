//! What a shard publishes of itself a few times a second: queues, lags, and how long a slow request took where.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_client::wire::PartitionId;
use coppice_core::replica::Decided;
use coppice_ordering::{Instance, Time};

use super::{Group, Shard};
use crate::metrics::{Op, Outcome, Queue};

/// Lags are looked at this often at most: a look costs a few loads per replica.
const LAG_INTERVAL: Duration = Duration::from_millis(10);

/// Instances whose times are remembered, for requests that turn out to be slow.
const TIMES_KEPT: usize = 1_024;

impl Shard {
    /// Entries that wait in this shard's queues now.
    pub fn publish_queues(&self) {
        let metrics = &self.metrics;
        metrics.set_queue_depth(Queue::Mailbox, self.shared.sender(self.index).len() as u64);
        let batched: usize = self.groups.values().map(|group| group.replica.queued()).sum();
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

    /// Looks how far the other replicas of the groups led here are, every now and then.
    pub(super) fn look_at_lags(&mut self) {
        let now = self.now();
        if now.since(self.lags_at) < LAG_INTERVAL {
            return;
        }
        self.lags_at = now;
        self.groups.values_mut().for_each(|group| group.look_at_lags(now));
    }

    /// Logs a request that took longer than `slow_request`, with the time of each stage as far as it is known here.
    pub fn slow_request(&self, id: PartitionId, op: Op, outcome: Outcome, instance: Option<Instance>, took: Duration) {
        let took_ms = took.as_secs_f64() * 1e3;
        let times = instance.and_then(|instance| self.groups.get(&id)?.times_of(instance));
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

impl Group {
    fn look_at_lags(&mut self, now: Time) {
        if !self.replica.is_leading() {
            self.lags.clear();
            return;
        }
        let decided = self.replica.executor().decided();
        let Group { lags, nodes, replica, me, .. } = self;
        lags.retain(|node, _| nodes.values().any(|known| known == node));
        for (&id, &node) in nodes.iter().filter(|(id, _)| *id != me) {
            let Some(durable) = replica.paxos().durable_upto(id) else { continue };
            lags.entry(node).or_insert_with(|| super::lag::Lag::new(now, decided)).observe(now, decided, durable);
        }
    }

    /// Remembers when these instances were proposed and decided.
    pub(super) fn note_times(&mut self, decided: &[Decided]) {
        for &times in decided {
            if self.times.len() == TIMES_KEPT {
                self.times.pop_front();
            }
            self.times.push_back(times);
        }
    }

    fn times_of(&self, instance: Instance) -> Option<Decided> {
        let times: &VecDeque<Decided> = &self.times;
        times.iter().rev().find(|times| times.instance == instance).copied()
    }
}
