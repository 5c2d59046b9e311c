//! The autopilot at work (ordering.md 9): what this thread measures of the groups that it leads, once a second, and
//! what their controllers make of it. The thread is the stage whose cost counts: it receives, orders, executes and
//! answers; the log's device is the other one.

use std::time::Duration;

use coppice_client::wire::{BatchAndWindow, Bottleneck, GroupTuning, PartitionId, TuningAccount};
use coppice_ordering::autopilot::{Account, Controller, Fit, Limits, Measured, Resource, StageCost, Tuning};
use coppice_ordering::{Counters, Time};

use super::{Group, Shard};
use crate::autopilot::sizes;
use crate::config::ClusterSettings;
use crate::metrics::{Partition, Tuned as Value};

/// Measures one thread.
#[derive(Debug)]
pub(super) struct Pilot {
    /// Whether groups get what their controllers advise; if not, they are measured all the same.
    on: bool,
    /// Within which its groups are tuned.
    limits: Limits,
    /// Time of the thread against batches, commands and bytes of led groups, and steps for everything else.
    fit: Fit<4>,
    cost: [f64; 4],
    /// How much slower than the guess all of it is together, smoothed.
    slower: Option<f64>,
    /// Where the last interval ended, how busy the thread had been until then, and the log.
    last: Option<(Time, Duration, Flushes)>,
    /// Steps of followed groups, and reads, since then.
    others: u64,
    batch_header_bytes: f64,
}

/// What is remembered of a led group between two intervals.
#[derive(Debug)]
pub struct Tuned {
    controller: Controller,
    before: Counters,
}

/// Flushes of the node's log since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushes {
    /// How many.
    pub count: u64,
    /// Time of all of them.
    pub took: Duration,
}

/// A guess at costs, in milliseconds, for as long as nothing is measured: of a batch, a command, a byte, another step.
const COST_GUESS: [f64; 4] = [0.06, 0.004, 1e-6, 0.01];
/// Half-life of what is known of costs, in intervals.
const COST_HALF_LIFE: f64 = 60.0;
/// What an interval counts for in how much slower than the guess everything is.
const SLOWER_SMOOTHING: f64 = 0.1;
/// A thread that was less busy than this share of an interval did too little to tell what anything costs.
const BUSY_MIN: f64 = 0.01;

impl Pilot {
    pub(super) fn new() -> Pilot {
        let batch_header_bytes = sizes::of_commands(16, 1).map_or(0.0, |sizes| sizes.batch_header);
        let fit = Fit::new(COST_HALF_LIFE);
        let limits = limits(&ClusterSettings::default());
        Pilot { on: false, limits, fit, cost: COST_GUESS, slower: None, last: None, others: 0, batch_header_bytes }
    }

    /// A step that is not for a batch of a led group.
    pub(super) fn other(&mut self) {
        self.others += 1;
    }

    /// Takes an interval into the cost functions.
    fn learn(&mut self, done: [f64; 4], busy: Duration) {
        let busy_ms = busy.as_secs_f64() * 1e3;
        let expected = |cost: [f64; 4]| done.iter().zip(cost).map(|(done, cost)| done * cost).sum::<f64>();
        let guessed = expected(COST_GUESS);
        if guessed <= 0.0 || busy_ms <= 0.0 {
            return;
        }
        let slower = busy_ms / guessed;
        let slower = self.slower.map_or(slower, |known| known + SLOWER_SMOOTHING * (slower - known));
        self.slower = Some(slower);
        // Divided by what it should have been, so that quiet intervals count as much as busy ones.
        let about = Some(expected(self.cost)).filter(|about| *about > 0.0).unwrap_or(busy_ms);
        self.fit.add(done.map(|done| done / about), busy_ms / about);
        // Intervals of a steady load are all alike: they tell the sum and no more, and the parts keep the proportions
        // of the guess. Had they to keep those found last, they would wander with the noise until one takes all.
        self.cost = self.fit.solve(COST_GUESS.map(|guess| guess * slower));
    }

    fn stage_cost(&self) -> StageCost {
        let [per_batch_ms, per_command_ms, per_byte_ms, _] = self.cost;
        StageCost { per_batch_ms, per_command_ms, per_byte_ms }
    }
}

/// The limits that `settings` leave: a value that was set stays, the others are chosen (experience.md 4).
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

impl Shard {
    /// Tunes by these settings from now on. The groups have just been given the fixed ones.
    pub(crate) fn set_autopilot(&mut self, settings: &ClusterSettings) {
        (self.pilot.on, self.pilot.limits) = (settings.autopilot, limits(settings));
        for group in self.groups.values_mut() {
            let Some(tuned) = &mut group.tuned else { continue };
            tuned.controller.set_limits(self.pilot.limits);
            if let Some(tuning) = tuned.controller.tuning().filter(|_| self.pilot.on) {
                apply(group, &tuning);
            }
        }
    }

    /// Once a second: what the interval came to, for every group that this thread leads. `all`: flushes so far.
    pub(crate) fn fly(&mut self, all: Flushes) {
        let limits = self.pilot.limits;
        let now = self.now();
        let busy = tokio::runtime::Handle::current().metrics().worker_total_busy_duration(0);
        let Some((at, busy_before, before)) = self.pilot.last.replace((now, busy, all)) else { return };
        let flushes =
            Flushes { count: all.count.saturating_sub(before.count), took: all.took.saturating_sub(before.took) };
        let (interval, busy) = (now.since(at), busy.saturating_sub(busy_before));
        if interval.is_zero() {
            return;
        }
        let mut measured = Vec::new();
        for (&id, group) in &mut self.groups {
            if let Some(of_group) = measure(group, limits, interval) {
                measured.push((id, of_group));
            }
        }
        let total = |of: fn(&Measured) -> u64| measured.iter().map(|(_, measured)| of(measured)).sum::<u64>();
        let (batches, commands, bytes) = (total(|m| m.batches), total(|m| m.commands), total(|m| m.bytes));
        let others = std::mem::take(&mut self.pilot.others);
        let share_busy = busy.as_secs_f64() / interval.as_secs_f64();
        if share_busy >= BUSY_MIN {
            self.pilot.learn([batches as f64, commands as f64, bytes as f64, others as f64], busy);
        }
        let (cost, header) = (self.pilot.stage_cost(), self.pilot.batch_header_bytes);
        let flush = (flushes.count > 0).then(|| flushes.took / u32::try_from(flushes.count).unwrap_or(u32::MAX));
        for (id, of_group) in &mut measured {
            let measured = Measured {
                batch_header_bytes: header,
                flush,
                batches_per_flush: batches as f64 / flushes.count.max(1) as f64,
                cost: Some(cost),
                cpu_busy: share_busy,
                disk_busy: flushes.took.as_secs_f64() / interval.as_secs_f64(),
                share: of_group.commands as f64 / commands.max(1) as f64,
                ..*of_group
            };
            self.tune(*id, &measured);
        }
    }

    /// How the groups led here are tuned, and why.
    pub(crate) fn tunings(&self) -> Vec<GroupTuning> {
        let led = self.groups.iter().filter(|(_, group)| group.replica.is_leading());
        let tuning = led.map(|(&partition, group)| GroupTuning {
            partition,
            leader: group.node,
            in_force: told(&Tuning::of(group.replica.paxos().settings())),
            account: group.tuned.as_ref().and_then(|tuned| tuned.controller.account()).as_ref().map(account),
        });
        tuning.collect()
    }

    fn tune(&mut self, id: PartitionId, measured: &Measured) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(tuned) = &mut group.tuned else { return };
        let advised = tuned.controller.step(measured);
        publish(tuned, &group.metrics, measured);
        let Some(tuning) = advised.filter(|_| self.pilot.on) else { return };
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

fn publish(tuned: &Tuned, metrics: &Partition, measured: &Measured) {
    let batch_bytes = measured.bytes as f64 / measured.batches.max(1) as f64;
    let account = tuned.controller.account();
    metrics.publish_autopilot(account.map(|account| {
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
fn measure(group: &mut Group, limits: Limits, interval: Duration) -> Option<Measured> {
    if !group.replica.is_leading() {
        if group.tuned.take().is_some() {
            group.metrics.publish_autopilot(None::<fn(Value) -> f64>);
        }
        return None;
    }
    let paxos = group.replica.paxos();
    let now = paxos.counters().clone();
    let Some(tuned) = &mut group.tuned else {
        group.tuned = Some(Tuned { controller: Controller::new(limits), before: now });
        return None;
    };
    let before = std::mem::replace(&mut tuned.before, now.clone());
    let samples = since(&now, &before, |counters| counters.instance_latency_samples);
    let latency_ns = since(&now, &before, |counters| counters.instance_latency_ns);
    let window_ns = since(&now, &before, |counters| counters.window_instance_ns);
    Some(Measured {
        interval,
        replicas: paxos.configuration().0.voters.len() as u32,
        batches: since(&now, &before, |counters| counters.instances_decided),
        commands: since(&now, &before, |counters| counters.commands_decided),
        bytes: since(&now, &before, |counters| counters.bytes_decided),
        window: window_ns as f64 / interval.as_nanos().max(1) as f64,
        instance: (samples > 0).then(|| Duration::from_nanos(latency_ns / samples)),
        round_trip: paxos.round_trip(),
        in_force: Some(Tuning::of(paxos.settings())),
        ..Measured::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Teaches a fresh pilot `intervals` of one second; `done` of an interval, and noise of up to a tenth.
    fn taught(cost: [f64; 4], intervals: u32, done: impl Fn(u32) -> [f64; 4]) -> Pilot {
        let mut pilot = Pilot::new();
        for interval in 0..intervals {
            let done = done(interval);
            let busy_ms: f64 = done.iter().zip(cost).map(|(done, cost)| done * cost).sum();
            let noise = 0.9 + 0.2 * f64::from(interval * 7_919 % 101) / 100.0;
            pilot.learn(done, Duration::from_secs_f64(busy_ms * noise / 1e3));
        }
        pilot
    }

    #[test]
    fn a_steady_load_leaves_every_part_its_share_however_long_it_lasts() {
        // Twice as slow as guessed. Batches, commands, bytes and other steps grow and shrink together, but for noise:
        // seen on a cluster, where other steps were found to cost everything and batches nothing.
        let cost = COST_GUESS.map(|guess| 2.0 * guess);
        let jitter = |interval: u32, step: u32| 1.0 + 0.02 * f64::from(interval * step % 13) / 13.0;
        let done = |i: u32| {
            let batches = 600.0 * jitter(i, 5);
            [batches, 100.0 * batches * jitter(i, 3), 1_800.0 * batches * jitter(i, 7), 4.0 * batches * jitter(i, 11)]
        };
        let pilot = taught(cost, 600, done);
        for (part, (found, cost)) in pilot.cost.into_iter().zip(cost).enumerate() {
            assert!((0.5..2.0).contains(&(found / cost)), "part {part}: {:?}, not {cost:?}", pilot.cost);
        }
    }

    #[test]
    fn loads_of_several_shapes_tell_the_parts_apart() {
        // Batches cost five times the guess, commands half of it.
        let cost = [0.3, 0.002, 1e-6, 0.01];
        let shapes = [[900.0, 1_800.0, 36e3, 50.0], [200.0, 60e3, 1.2e6, 900.0], [400.0, 8e3, 8e6, 3e3]];
        let pilot = taught(cost, 600, |interval| shapes[interval as usize % 3]);
        for part in 0..2 {
            let ratio = pilot.cost[part] / cost[part];
            assert!((0.8..1.25).contains(&ratio), "part {part}: {:?}, not {cost:?}", pilot.cost);
        }
    }
}
