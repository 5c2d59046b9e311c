//! Tunes the groups that a worker leads (protocol.md 9): measures them once per interval, and gives them the batches
//! and the window that their controllers advise.
//!
//! The model has two stages. One is the worker's thread, which receives, orders, executes and answers, or all cores of
//! the machine together, if these are busier: other nodes and clients may run there too. The other is the log's device.

use std::time::Duration;

use coppice_client::wire::{BatchAndWindow, Bottleneck, GroupTuning, PartitionId, TuningAccount};
use coppice_ordering::Counters;
use coppice_ordering::tuning::{Account, Controller, Costs, Limits, Measurement, Resource, StageCost, Tuning};

use super::{Effect, Group, Note, Worker};
use crate::sizes;

/// What an interval counts for in which stage is the busier one.
const BUSY_SMOOTHING: f64 = 0.2;
/// A thread that is busier has its part in what all cores do.
const SHARED_MIN: f64 = 0.15;
/// A stage that was less busy than this share of an interval did too little to tell what anything costs.
const BUSY_MIN: f64 = 0.01;

/// How busy everything was in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    pub interval: Duration,
    /// The share of it that the worker's thread was busy, 0 to 1.
    pub thread: f64,
    /// The same of all cores of the machine, 0 to 1.
    pub machine: f64,
    /// Flushes of the node's log in it.
    pub flushes: u64,
    /// Time of all of them.
    pub flushing: Duration,
}

/// What commands cost, as far as the intervals so far tell.
#[derive(Debug)]
pub(super) struct CostEstimate {
    /// Of the worker's thread.
    thread: Costs,
    /// Of all cores together, as if they were one.
    machine: Costs,
    /// How busy both were, smoothed.
    busy: (f64, f64),
    /// Steps of followed groups, and reads, until the last interval ended.
    others: u64,
    batch_header_bytes: f64,
}

impl Default for CostEstimate {
    fn default() -> CostEstimate {
        let batch_header_bytes = sizes::of_commands(16, 1).map_or(0.0, |sizes| sizes.batch_header);
        CostEstimate {
            thread: Costs::default(),
            machine: Costs::default(),
            busy: (0.0, 0.0),
            others: 0,
            batch_header_bytes,
        }
    }
}

impl CostEstimate {
    /// Takes an interval in: what the busier stage spends, and how busy it was.
    fn learn(&mut self, done: [f64; 4], load: &Load) -> (StageCost, f64) {
        let &Load { interval, thread, machine, .. } = load;
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

/// How a led group is tuned, and what it did until the last interval ended.
#[derive(Debug)]
pub struct GroupTuner {
    controller: Controller,
    before: Counters,
    /// Bytes of a batch, in the last interval.
    batch_bytes: f64,
}

impl GroupTuner {
    /// What was measured and what is advised; none: too little is known.
    pub fn account(&self) -> Option<Account> {
        self.controller.account()
    }

    /// Bytes of a batch, in the last interval.
    pub fn batch_bytes(&self) -> f64 {
        self.batch_bytes
    }

    /// What the group did since the last interval ended.
    fn measure(&mut self, group: &Group, interval: Duration) -> Measurement {
        let paxos = group.replica.paxos();
        let now = paxos.counters().clone();
        let before = std::mem::replace(&mut self.before, now.clone());
        let since = |of: fn(&Counters) -> u64| of(&now).saturating_sub(of(&before));
        let samples = since(|counters| counters.instance_latency_samples);
        let latency_ns = since(|counters| counters.instance_latency_ns);
        let window_ns = since(|counters| counters.window_instance_ns);
        let (batches, bytes) = (since(|counters| counters.instances_decided), since(|counters| counters.bytes_decided));
        self.batch_bytes = bytes as f64 / batches.max(1) as f64;
        Measurement {
            interval,
            replicas: paxos.configuration().0.voters.len() as u32,
            batches,
            commands: since(|counters| counters.commands_decided),
            bytes,
            window: window_ns as f64 / interval.as_nanos().max(1) as f64,
            instance: (samples > 0).then(|| Duration::from_nanos(latency_ns / samples)),
            round_trip: paxos.round_trip(),
            in_force: Some(Tuning::of(paxos.settings())),
            ..Measurement::default()
        }
    }
}

impl Worker {
    /// An interval has ended: what it came to, for every group that is led here.
    pub(super) fn on_load(&mut self, load: &Load) {
        let limits = self.cluster.settings.tuning.limits;
        let is_on = self.cluster.settings.tuning.is_on;
        let mut measured: Vec<(PartitionId, Measurement)> = Vec::new();
        for (&id, group) in &mut self.groups {
            if !group.replica.is_leading() {
                group.tuner = None;
            } else if let Some(mut tuner) = group.tuner.take() {
                measured.push((id, tuner.measure(group, load.interval)));
                group.tuner = Some(tuner);
            } else {
                let before = group.replica.paxos().counters().clone();
                group.tuner = Some(GroupTuner { controller: Controller::new(limits), before, batch_bytes: 0.0 });
                if is_on {
                    apply(group, &Tuning::first(&limits));
                }
            }
        }
        let total = |of: fn(&Measurement) -> u64| measured.iter().map(|(_, measured)| of(measured)).sum::<u64>();
        let (batches, commands, bytes) = (total(|m| m.batches), total(|m| m.commands), total(|m| m.bytes));
        let all_others = self.counters.other_steps;
        let others = all_others - std::mem::replace(&mut self.costs.others, all_others);
        let done = [batches as f64, commands as f64, bytes as f64, others as f64];
        let (cost, cpu_busy) = self.costs.learn(done, load);
        let &Load { interval, flushes, flushing, .. } = load;
        let flush = (flushes > 0).then(|| flushing / u32::try_from(flushes).unwrap_or(u32::MAX));
        for (id, of_group) in measured {
            let measured = Measurement {
                batch_header_bytes: self.costs.batch_header_bytes,
                flush,
                batches_per_flush: batches as f64 / flushes.max(1) as f64,
                cost: Some(cost),
                cpu_busy,
                disk_busy: flushing.as_secs_f64() / interval.as_secs_f64(),
                share: of_group.commands as f64 / commands.max(1) as f64,
                ..of_group
            };
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let Some(advised) = group.tuner.as_mut().and_then(|tuner| tuner.controller.step(&measured)) else {
                continue;
            };
            if is_on {
                apply(group, &advised);
                let account = group.tuner.as_ref().and_then(GroupTuner::account);
                self.effects.extend(account.map(|account| Effect::Note(id, Note::Tuned(Box::new(account)))));
            }
        }
    }

    /// New settings have replaced what tuned groups were given: they get it again, within the new limits.
    pub(super) fn apply_tuning(&mut self) {
        let TuningSettings { is_on, limits } = self.cluster.settings.tuning;
        for group in self.groups.values_mut() {
            let Some(tuner) = &mut group.tuner else { continue };
            tuner.controller.set_limits(limits);
            let tuning = tuner.controller.tuning().unwrap_or(Tuning::first(&limits));
            if is_on && !mutant!(settings_undo_tuning) {
                apply(group, &tuning);
            }
        }
    }

    /// How the groups that are led here are tuned, and why.
    pub fn tunings(&self) -> Vec<GroupTuning> {
        let led = self.groups.iter().filter(|(_, group)| group.replica.is_leading());
        let tuning = led.map(|(&partition, group)| GroupTuning {
            partition,
            leader: self.cluster.node.unwrap_or_default(),
            in_force: told(&Tuning::of(group.replica.paxos().settings())),
            account: group.tuner.as_ref().and_then(GroupTuner::account).as_ref().map(account),
        });
        tuning.collect()
    }
}

/// Whether groups are tuned, and within what.
#[derive(Clone, Copy, Debug, Default)]
pub struct TuningSettings {
    /// Whether groups get what their controllers advise; if not, they are measured all the same.
    pub is_on: bool,
    pub limits: Limits,
}

fn apply(group: &mut Group, tuning: &Tuning) {
    let paxos = group.replica.paxos_mut();
    let mut settings = paxos.settings().clone();
    tuning.apply(&mut settings);
    paxos.set_settings(settings);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_ordering::Time;

    use super::*;
    use crate::settings::ClusterSettings;
    use crate::worker::hosting::leads_alone;
    use crate::worker::{Input, WorkerSettings};

    const GROUP: PartitionId = PartitionId(1);

    const LOAD: Load = Load {
        interval: Duration::from_millis(500),
        thread: 0.5,
        machine: 0.5,
        flushes: 100,
        flushing: Duration::from_millis(10),
    };

    fn settings(window: u32, auto_tuning: bool) -> Input {
        let settings = ClusterSettings { window, auto_tuning, ..ClusterSettings::default() };
        Input::Settings(Arc::new(WorkerSettings::of(&settings, true)))
    }

    fn in_force(worker: &Worker) -> Tuning {
        Tuning::of(worker.groups()[&GROUP].replica.paxos().settings())
    }

    #[test]
    fn a_group_is_tuned_while_it_is_led_here_and_goes_by_its_settings_otherwise() {
        let (mut worker, mut effects) = (leads_alone(GROUP), Vec::new());
        let fixed = in_force(&worker);
        worker.step(Time(1), settings(ClusterSettings::default().window, false), &mut effects);
        worker.step(Time(2), Input::Load(LOAD), &mut effects);
        assert_eq!((in_force(&worker), worker.tunings().len()), (fixed, 1), "it is measured all the same");
        worker.step(Time(3), settings(ClusterSettings::default().window, true), &mut effects);
        assert_eq!(in_force(&worker), Tuning::first(&Limits::default()));
        worker.step(Time(4), settings(7, true), &mut effects);
        assert_eq!(in_force(&worker).window, 7, "a window that an operator sets stays");
        worker.step(Time(5), Input::Load(LOAD), &mut effects);
        assert_eq!(in_force(&worker).window, 7);
        worker.step(Time(6), settings(ClusterSettings::default().window, false), &mut effects);
        assert_eq!(in_force(&worker), fixed);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn settings_that_undo_tuning_are_caught() {
        let test = "worker::tuning::tests::a_group_is_tuned_while_it_is_led_here_and_goes_by_its_settings_otherwise";
        planted::assert_caught("settings_undo_tuning", test);
    }

    #[test]
    fn what_keeps_the_cores_busy_beside_an_idle_group_is_not_its_price() {
        let mut costs = CostEstimate::default();
        // A few commands on a busy machine must not count the machine's load as their cost.
        for _ in 0..20 {
            costs.learn([4.0, 4.0, 4e3, 20.0], &Load { thread: 0.02, machine: 1.0, ..LOAD });
        }
        let (load, mut cost) = ([600.0, 30e3, 30e6, 20.0], StageCost::default());
        for _ in 0..10 {
            cost = costs.learn(load, &Load { thread: 0.4, machine: 0.9, ..LOAD }).0;
        }
        let instance = cost.per_batch_ms + 50.0 * (cost.per_command_ms + 1e3 * cost.per_byte_ms);
        let spent = 0.9 * 500.0 / 600.0;
        assert!((0.8..1.2).contains(&(instance / spent)), "{instance} ms, not {spent}: {cost:?}");
    }
}
