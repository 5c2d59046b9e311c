//! Tuning at work (protocol.md 9): what this thread measures of the groups that it leads, twice a second, and
//! what their controllers make of it. The stage whose cost counts is this thread, which receives, orders, executes and
//! answers, or all cores of the machine together, if these are busier: other nodes and clients may be on them as well.
//! The log's device is the other one.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_client::wire::{BatchAndWindow, Bottleneck, GroupTuning, PartitionId, TuningAccount};
use coppice_core::settings::ClusterSettings;
use coppice_core::sizes;
use coppice_core::worker::Worker;
use coppice_ordering::tuning::{Account, Controller, Costs, Limits, Measurement, Resource, StageCost, Tuning};
use coppice_ordering::{Counters, Time};

use super::{Group, GroupMetrics, WorkerThread};
use crate::cores::Cores;
use crate::metrics::{Partition, Tuned as Value};

/// What is published of each group.
type Groups = BTreeMap<PartitionId, GroupMetrics>;

/// Measures one thread.
#[derive(Debug)]
pub(super) struct Tuner {
    /// Whether groups get what their controllers advise; if not, they are measured all the same.
    on: bool,
    /// Within which its groups are tuned.
    limits: Limits,
    /// What the thread spends, and what all cores spend, each counted as long as if it were one.
    thread: Costs,
    machine: Costs,
    cores: Cores,
    /// Time that the node's threads had spent looking for work where the last interval ended.
    looked: Duration,
    /// How busy both were, smoothed.
    busy: (f64, f64),
    /// Where the last interval ended, how busy the thread had been until then, and the log.
    last: Option<(Time, Duration, Flushes)>,
    /// Steps of followed groups, and reads, until then.
    others: u64,
    batch_header_bytes: f64,
}

/// What is remembered of a led group between two intervals.
#[derive(Debug)]
pub struct GroupTuner {
    controller: Controller,
    before: Counters,
}

/// Flushes of the node's log since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushes {
    pub count: u64,
    /// Time of all of them.
    pub took: Duration,
}

/// What an interval counts for in which stage is the busier one.
const BUSY_SMOOTHING: f64 = 0.2;
/// A thread that is busier has its part in what all cores do.
const SHARED_MIN: f64 = 0.15;
/// A stage that was less busy than this share of an interval did too little to tell what anything costs.
const BUSY_MIN: f64 = 0.01;

impl Tuner {
    pub(super) fn new() -> Tuner {
        let batch_header_bytes = sizes::of_commands(16, 1).map_or(0.0, |sizes| sizes.batch_header);
        let limits = limits(&ClusterSettings::default());
        Tuner {
            on: false,
            limits,
            thread: Costs::default(),
            machine: Costs::default(),
            cores: Cores::default(),
            looked: Duration::ZERO,
            busy: (0.0, 0.0),
            last: None,
            others: 0,
            batch_header_bytes,
        }
    }

    /// Takes an interval in: what the busier stage spends, and how busy it was.
    fn learn(&mut self, done: [f64; 4], interval: Duration, thread: f64, machine: f64) -> (StageCost, f64) {
        if thread >= BUSY_MIN {
            self.thread.learn(done, interval.mul_f64(thread));
        }
        // What keeps the cores busy while this thread does next to nothing is not the price of that.
        if thread >= SHARED_MIN {
            self.machine.learn(done, interval.mul_f64(machine));
        }
        let smooth = |old: &mut f64, new: f64| *old += BUSY_SMOOTHING * (new - *old);
        smooth(&mut self.busy.0, thread);
        smooth(&mut self.busy.1, machine);
        // Where this thread has next to nothing to do, it is others that keep the cores busy.
        let shared = self.busy.1 > self.busy.0 && self.busy.0 >= SHARED_MIN;
        if shared { (self.machine.stage(), machine) } else { (self.thread.stage(), thread) }
    }
}

/// The limits that `settings` leave: a value that was set stays, the others are chosen (operations.md 3).
fn limits(settings: &ClusterSettings) -> Limits {
    let (free, standard) = (Limits::default(), ClusterSettings::default());
    let bytes = |set: u64| (set as usize, set as usize);
    Limits {
        batch_bytes: match settings.batch_bytes_max {
            set if set == standard.batch_bytes_max => free.batch_bytes,
            set => bytes(set),
        },
        window: match settings.window {
            set if set == standard.window => free.window,
            set => (set, set),
        },
        window_bytes: match settings.window_bytes_max {
            set if set == standard.window_bytes_max => free.window_bytes,
            set => bytes(set),
        },
        batch_delay_max: settings.batch_delay_max,
    }
}

fn since(now: &Counters, before: &Counters, of: fn(&Counters) -> u64) -> u64 {
    of(now).saturating_sub(of(before))
}

impl Tuner {
    /// Tunes by these settings from now on. The groups have just been given the fixed ones.
    pub(super) fn set_settings(&mut self, settings: &ClusterSettings, worker: &mut Worker, groups: &mut Groups) {
        (self.on, self.limits) = (settings.auto_tuning, limits(settings));
        for (id, observed) in groups {
            let Some(group) = worker.groups_mut().get_mut(id) else { continue };
            let Some(tuned) = &mut observed.tuned else { continue };
            tuned.controller.set_limits(self.limits);
            if self.on {
                let tuning = tuned.controller.tuning().unwrap_or(Tuning::first(&self.limits));
                apply(group, &tuning);
            }
        }
    }

    /// Twice a second: what the interval came to, for every group that this thread leads. `all`: flushes so far.
    /// `busy`: how long the thread was busy so far; `all_looked`: how long all threads of the node looked for work.
    fn tune_groups(
        &mut self,
        (now, busy, all_looked): (Time, Duration, Duration),
        all: Flushes,
        worker: &mut Worker,
        groups: &mut Groups,
    ) {
        let limits = self.limits;
        let Some((at, busy_before, before)) = self.last.replace((now, busy, all)) else { return };
        let flushes =
            Flushes { count: all.count.saturating_sub(before.count), took: all.took.saturating_sub(before.took) };
        let (interval, busy) = (now.since(at), busy.saturating_sub(busy_before));
        if interval.is_zero() {
            return;
        }
        let mut measured = Vec::new();
        for (&id, group) in worker.groups_mut() {
            let Some(observed) = groups.get_mut(&id) else { continue };
            if let Some(of_group) = measure(group, observed, limits, interval) {
                measured.push((id, of_group));
            } else if self.on && observed.tuned.is_some() {
                // It has just begun to lead.
                apply(group, &Tuning::first(&limits));
            }
        }
        let total = |of: fn(&Measurement) -> u64| measured.iter().map(|(_, measured)| of(measured)).sum::<u64>();
        let (batches, commands, bytes) = (total(|m| m.batches), total(|m| m.commands), total(|m| m.bytes));
        let all_others = worker.counters().other_steps;
        let others = all_others - std::mem::replace(&mut self.others, all_others);
        let share_busy = busy.as_secs_f64() / interval.as_secs_f64();
        let looked = all_looked.saturating_sub(std::mem::replace(&mut self.looked, all_looked));
        let machine = self.cores.busy(looked.as_secs_f64() / interval.as_secs_f64()).unwrap_or(0.0);
        let done = [batches as f64, commands as f64, bytes as f64, others as f64];
        let (cost, cpu_busy) = self.learn(done, interval, share_busy, machine);
        let header = self.batch_header_bytes;
        let flush = (flushes.count > 0).then(|| flushes.took / u32::try_from(flushes.count).unwrap_or(u32::MAX));
        for (id, of_group) in &mut measured {
            let measured = Measurement {
                batch_header_bytes: header,
                flush,
                batches_per_flush: batches as f64 / flushes.count.max(1) as f64,
                cost: Some(cost),
                cpu_busy,
                disk_busy: flushes.took.as_secs_f64() / interval.as_secs_f64(),
                share: of_group.commands as f64 / commands.max(1) as f64,
                ..*of_group
            };
            self.tune(*id, &measured, worker, groups);
        }
    }

    fn tune(&self, id: PartitionId, measured: &Measurement, worker: &mut Worker, groups: &mut Groups) {
        let Some(group) = worker.groups_mut().get_mut(&id) else { return };
        let Some(GroupMetrics { tuned: Some(tuned), metrics, .. }) = groups.get_mut(&id) else { return };
        let advised = tuned.controller.step(measured);
        publish(tuned, metrics, measured);
        let Some(tuning) = advised.filter(|_| self.on) else { return };
        if let Some(Account { choice, bottleneck, command_bytes, cost, round_trip_ms, flush_ms, .. }) =
            tuned.controller.account()
        {
            tracing::debug!(
                partition = %id, ?tuning, ?choice, ?bottleneck, command_bytes, ?cost, round_trip_ms, flush_ms,
                "batches and window are set"
            );
        }
        apply(group, &tuning);
    }
}

/// Twice a second: tunes the groups of a thread. `all`: flushes so far.
pub(crate) fn tune(thread: &mut WorkerThread, all: Flushes) {
    let awake = tokio::runtime::Handle::current().metrics().worker_total_busy_duration(0);
    let busy = awake.saturating_sub(thread.idle.looked());
    let times = (thread.now(), busy, thread.shared.looked_so_far());
    thread.tuner.tune_groups(times, all, &mut thread.worker, &mut thread.metrics.groups);
}

/// How the groups led here are tuned, and why.
pub(crate) fn tunings(thread: &WorkerThread) -> Vec<GroupTuning> {
    let node = thread.shared.own.identity().map(|identity| identity.node).unwrap_or_default();
    let led = thread.worker.groups().iter().filter(|(_, group)| group.replica.is_leading());
    let tuned = |id: PartitionId| thread.metrics.groups.get(&id).and_then(|observed| observed.tuned.as_ref());
    let tuning = led.map(|(&partition, group)| GroupTuning {
        partition,
        leader: node,
        in_force: told(&Tuning::of(group.replica.paxos().settings())),
        account: tuned(partition).and_then(|tuned| tuned.controller.account()).as_ref().map(account),
    });
    tuning.collect()
}

fn told(tuning: &Tuning) -> BatchAndWindow {
    BatchAndWindow {
        batch_bytes_max: tuning.batch_bytes_max as u64,
        window: tuning.window,
        window_bytes_max: tuning.window_bytes_max as u64,
    }
}

fn account(account: &Account) -> TuningAccount {
    TuningAccount {
        advised: told(&account.tuning),
        advised_batch_commands: account.choice.requests,
        advised_share: account.choice.share,
        command_bytes: account.command_bytes,
        batch_cpu_ms: account.cost.per_batch_ms,
        command_cpu_ms: account.cost.per_request_ms,
        round_trip_ms: account.round_trip_ms,
        flush_ms: account.flush_ms,
        batches_per_flush: account.batches_per_flush,
        link_bytes_per_ms: account.link_bytes_per_ms,
        batch_commands: account.batch_commands,
        predicted_throughput: account.predicted_throughput,
        measured_throughput: account.measured_throughput,
        predicted_window: account.predicted_window,
        measured_window: account.measured_window,
        bottleneck: match account.bottleneck {
            Resource::Cpu => Bottleneck::Cpu,
            Resource::Network => Bottleneck::Network,
            Resource::Disk => Bottleneck::Disk,
        },
    }
}

fn publish(tuned: &GroupTuner, metrics: &Partition, measured: &Measurement) {
    let batch_bytes = measured.bytes as f64 / measured.batches.max(1) as f64;
    let account = tuned.controller.account();
    metrics.publish_tuning(account.map(|account| {
        move |value| match value {
            Value::ThroughputPredicted => account.predicted_throughput,
            Value::ThroughputMeasured => account.measured_throughput,
            Value::WindowPredicted => account.predicted_window,
            Value::WindowMeasured => account.measured_window,
            Value::WindowChosen => f64::from(account.tuning.window),
            Value::BatchMeasured => batch_bytes,
            Value::BatchChosen => account.tuning.batch_bytes_max as f64,
        }
    }));
}

fn apply(group: &mut Group, tuning: &Tuning) {
    let paxos = group.replica.paxos_mut();
    let mut settings = paxos.settings().clone();
    tuning.apply(&mut settings);
    paxos.set_settings(settings);
}

/// What a led group did since the last interval; none: it does not lead, or has led for less than one.
fn measure(group: &Group, observed: &mut GroupMetrics, limits: Limits, interval: Duration) -> Option<Measurement> {
    if !group.replica.is_leading() {
        if observed.tuned.take().is_some() {
            observed.metrics.publish_tuning(None::<fn(Value) -> f64>);
        }
        return None;
    }
    let paxos = group.replica.paxos();
    let now = paxos.counters().clone();
    let Some(tuned) = &mut observed.tuned else {
        observed.tuned = Some(GroupTuner { controller: Controller::new(limits), before: now });
        return None;
    };
    let before = std::mem::replace(&mut tuned.before, now.clone());
    let samples = since(&now, &before, |counters| counters.instance_latency_samples);
    let latency_ns = since(&now, &before, |counters| counters.instance_latency_ns);
    let window_ns = since(&now, &before, |counters| counters.window_instance_ns);
    Some(Measurement {
        interval,
        replicas: paxos.configuration().0.voters.len() as u32,
        batches: since(&now, &before, |counters| counters.instances_decided),
        commands: since(&now, &before, |counters| counters.commands_decided),
        bytes: since(&now, &before, |counters| counters.bytes_decided),
        window: window_ns as f64 / interval.as_nanos().max(1) as f64,
        instance: (samples > 0).then(|| Duration::from_nanos(latency_ns / samples)),
        round_trip: paxos.round_trip(),
        in_force: Some(Tuning::of(paxos.settings())),
        ..Measurement::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_the_cores_busy_beside_an_idle_group_is_not_its_price() {
        let mut tuner = Tuner::new();
        let interval = Duration::from_millis(500);
        // A few commands on a busy machine must not count the machine's load as their cost.
        for _ in 0..20 {
            tuner.learn([4.0, 4.0, 4e3, 20.0], interval, 0.02, 1.0);
        }
        let (load, mut cost) = ([600.0, 30e3, 30e6, 20.0], StageCost::default());
        for _ in 0..10 {
            cost = tuner.learn(load, interval, 0.4, 0.9).0;
        }
        let instance = cost.per_batch_ms + 50.0 * (cost.per_command_ms + 1e3 * cost.per_byte_ms);
        let spent = 0.9 * 500.0 / 600.0;
        assert!((0.8..1.2).contains(&(instance / spent)), "{instance} ms, not {spent}: {cost:?}");
    }
}
