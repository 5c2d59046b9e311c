//! The controller: from what a leader measured of its group to the group's batch size and window (papers.md A13, A14).
//!
//! It hears of one interval after another and answers with a new setting when the measured world is another one: an
//! input that has moved by a fifth since the setting was chosen. What is less is noise, and moves nothing. Settings
//! never leave their [`Limits`], whatever was measured.

use std::time::Duration;

use super::fit::Fit;
use super::model::{Choice, Disk, InstanceCost, Link, Model, Network, Resource, Sizes};
use crate::settings::{Settings, WINDOW_MAX};

/// Bounds of a [`Tuning`]; equal ones fix a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a batch: least and most, at least 1.
    pub batch_bytes: (usize, usize),
    /// Undecided instances: least and most, at least 1.
    pub window: (u32, u32),
    /// Undecided bytes: least and most, at least 1.
    pub window_bytes: (usize, usize),
    /// How long a batch may wait for more commands while the pipe has room.
    pub batch_delay_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // 16 KiB: what a pack and a half of the client library brings. Below it a wrong guess costs dearly, above
            // it batches that are not needed cost nothing, since a pipe that has room never waits for one.
            batch_bytes: (16 << 10, 2 << 20),
            window: (1, WINDOW_MAX),
            window_bytes: (256 << 10, 64 << 20),
            batch_delay_max: Duration::from_millis(5),
        }
    }
}

/// What the busiest stage of the leader spends on an instance, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCost {
    /// However small the batch is.
    pub per_batch_ms: f64,
    /// For each command.
    pub per_command_ms: f64,
    /// For each byte.
    pub per_byte_ms: f64,
}

/// No stage spends an hour on anything.
const COST_MS_MAX: f64 = 3_600_000.0;

impl StageCost {
    /// Whether it can have been measured.
    fn is_possible(&self) -> bool {
        let StageCost { per_batch_ms, per_command_ms, per_byte_ms } = *self;
        let possible = |cost: f64| (0.0..COST_MS_MAX).contains(&cost);
        possible(per_batch_ms) && possible(per_command_ms) && possible(per_byte_ms)
    }

    fn of_instance(self, command_bytes: f64) -> InstanceCost {
        let per_request_ms = self.per_command_ms + self.per_byte_ms * command_bytes;
        InstanceCost { per_batch_ms: self.per_batch_ms, per_request_ms }
    }
}

/// What a leader measured of its group in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Length of the interval.
    pub interval: Duration,
    /// Replicas of the group, the leader included.
    pub replicas: u32,
    /// Instances decided.
    pub batches: u64,
    /// Commands in them.
    pub commands: u64,
    /// Payload bytes in them.
    pub bytes: u64,
    /// Header bytes of a batch on the wire.
    pub batch_header_bytes: f64,
    /// Undecided instances, on average over the interval.
    pub window: f64,
    /// From proposing an instance to its decision, on average.
    pub instance: Option<Duration>,
    /// The fastest way to a quorum and back, without a flush.
    pub round_trip: Option<Duration>,
    /// A flush, on average; none: nothing was flushed, or no vote waits for one.
    pub flush: Option<Duration>,
    /// Batches that shared a flush, on average.
    pub batches_per_flush: f64,
    /// Of the busiest stage, fitted; none: not known yet.
    pub cost: Option<StageCost>,
    /// How busy that stage was, 0 to 1.
    pub cpu_busy: f64,
    /// How busy the log's device was, 0 to 1.
    pub disk_busy: f64,
    /// This group's part in what the stage did, 0 to 1.
    pub share: f64,
    /// What the group ran with; none: what it was told last.
    pub in_force: Option<Tuning>,
}

/// What a group is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// A batch closes at this size.
    pub batch_bytes_max: usize,
    /// Undecided instances, and up to so many a batch goes at once (ordering.md 1.2).
    pub window: u32,
    /// Undecided bytes.
    pub window_bytes_max: usize,
    /// How long a batch may wait. With a pipe that takes every batch while it has room nothing waits that long.
    pub batch_delay_max: Duration,
}

impl Tuning {
    /// What a group's settings are.
    pub fn of(settings: &Settings) -> Tuning {
        let Settings { batch_bytes_max, window, window_bytes_max, batch_delay_max, .. } = *settings;
        Tuning { batch_bytes_max, window, window_bytes_max, batch_delay_max }
    }

    /// Puts it into a group's settings.
    pub fn apply(&self, settings: &mut Settings) {
        settings.batch_bytes_max = self.batch_bytes_max;
        settings.window = self.window;
        settings.eager_window = self.window;
        settings.window_bytes_max = self.window_bytes_max;
        settings.batch_delay_max = self.batch_delay_max;
    }
}

/// Why a group has the settings that it has (papers.md A17).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Account {
    /// What it was told.
    pub tuning: Tuning,
    /// What the model advised.
    pub choice: Choice,
    /// The inputs that the choice rests on: bytes of a command in a batch,
    pub command_bytes: f64,
    /// CPU time of a batch and of each of its commands,
    pub cost: InstanceCost,
    /// the way to a quorum and back in milliseconds,
    pub round_trip_ms: f64,
    /// a flush in milliseconds, and the batches that shared one,
    pub flush_ms: f64,
    /// on average,
    pub batches_per_flush: f64,
    /// and what the path to a quorum takes, in bytes per millisecond, if it was ever what everything waited for.
    pub link_bytes_per_ms: Option<f64>,
    /// Commands per second that batches as they are now come to at most, in the window in force.
    pub predicted_throughput: f64,
    /// Commands per second in the last interval.
    pub measured_throughput: f64,
    /// The average window that the measured throughput should take.
    pub predicted_window: f64,
    /// The average window in the last interval.
    pub measured_window: f64,
    /// Commands per batch in the last interval that had enough of them.
    pub batch_commands: f64,
    /// What would be busy all the time.
    pub bottleneck: Resource,
}

/// The smoothed inputs of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Inputs {
    replicas: u32,
    command_bytes: f64,
    batch_header_bytes: f64,
    cost: StageCost,
    round_trip_ms: f64,
    /// Zero: votes wait for no flush.
    flush_ms: f64,
    batches_per_flush: f64,
    /// Infinite: never what anything waited for.
    link: f64,
}

/// Tunes one group. Its state is a few numbers; it is born with a leadership and dies with it.
#[derive(Clone, Debug)]
pub struct Controller {
    limits: Limits,
    inputs: Option<Inputs>,
    /// Instance latency against (1, commands, bytes), of intervals with hardly more than one instance under way.
    alone: Fit<3>,
    /// The highest rate of payload seen, in bytes per millisecond: the link takes at least that.
    reached: f64,
    chosen: Option<(Inputs, Choice, Tuning)>,
    last: Option<Measured>,
    /// The last interval that had enough in it to tell what batches are like.
    told: Option<Measured>,
}

/// An input that moved by this factor, up or down, is another input: one step of 25 % or two of 10 % (papers.md 2).
const MOVED: f64 = 1.2;
/// A window is too narrow if the model asks for so much more.
const NARROW: f64 = 1.1;
/// Of what batches and windows without bound would reach, a running group gives up this much for the batch and this
/// much for the window. The page's 5 % and its tenth of a window may together lose 14 %, and what is promised of a
/// running group is 95 % of the best.
const RUNNING_LOSS: f64 = 0.02;
/// What one interval counts for in a smoothed input.
const SMOOTHING: f64 = 0.3;
/// Fewer commands in an interval say nothing about averages.
const COMMANDS_MIN: u64 = 32;
/// A stage that is busier is what everything waits for.
const BUSY: f64 = 0.75;
/// An instance that takes so many times what one takes alone waited behind others.
const QUEUED: f64 = 1.5;
/// One that takes less did not. Between the two the link is left as it is believed, or window and link would chase one
/// another.
const NOT_QUEUED: f64 = 1.15;
/// A link that may take more is believed to take so much more.
const STEP: f64 = 1.15;
/// A pipe with so much of its window in use, on average, is full.
const FULL: f64 = 0.9;
/// Intervals with fewer instances under way, on average, tell what one takes alone.
const ALONE_WINDOW: f64 = 1.2;
/// Half-life of what is known of latency, in intervals.
const ALONE_HALF_LIFE: f64 = 100.0;

impl Controller {
    /// Nothing measured yet; the group keeps the settings that it has.
    pub fn new(limits: Limits) -> Controller {
        let alone = Fit::new(ALONE_HALF_LIFE);
        Controller { limits, inputs: None, alone, reached: 0.0, chosen: None, last: None, told: None }
    }

    /// Keeps within these from now on; the next interval decides anew.
    pub fn set_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.chosen = None;
        }
    }

    /// Takes an interval in. Returns what the group is to be told, if that is something new.
    pub fn step(&mut self, measured: &Measured) -> Option<Tuning> {
        self.last = Some(*measured);
        // Who does nothing, or next to nothing, waits for nothing: the settings are good enough as they are.
        if measured.batches == 0 || measured.commands < COMMANDS_MIN || measured.interval.is_zero() {
            return None;
        }
        self.told = Some(*measured);
        let inputs = self.smooth(measured)?;
        self.learn_latency(measured, &inputs);
        self.learn_link(measured);
        let inputs = self.inputs?;
        let model = self.model(&inputs);
        let choice = self.limits.choose(&model);
        let tuning = self.limits.bound(&model, &choice, self.reached);
        if let Some((before, old, kept)) = &self.chosen {
            // A window that turns out too narrow costs throughput now, one that is too wide costs next to nothing.
            let exact = model.windows(old.requests).smallest();
            let narrow = exact > NARROW * f64::from(kept.window) && tuning.window > kept.window;
            if !narrow && !moved(before, &inputs) {
                return None;
            }
        }
        let before = self.chosen.replace((inputs, choice, tuning));
        before.is_none_or(|(.., before)| before != tuning).then_some(tuning)
    }

    /// What the group was told last.
    pub fn tuning(&self) -> Option<Tuning> {
        self.chosen.map(|(.., tuning)| tuning)
    }

    /// Why; none before the first choice.
    pub fn account(&self) -> Option<Account> {
        let (inputs, choice, tuning) = self.chosen?;
        let (now, measured, told) = (self.inputs?, self.last?, self.told?);
        let model = self.model(&now);
        let in_force = measured.in_force.unwrap_or(tuning);
        let k = (told.commands as f64 / told.batches.max(1) as f64).max(1.0);
        let seconds = measured.interval.as_secs_f64().max(1e-9);
        let measured_throughput = measured.commands as f64 / seconds;
        Some(Account {
            tuning,
            choice,
            command_bytes: inputs.command_bytes,
            cost: inputs.cost.of_instance(inputs.command_bytes),
            round_trip_ms: inputs.round_trip_ms,
            flush_ms: inputs.flush_ms,
            batches_per_flush: inputs.batches_per_flush,
            link_bytes_per_ms: Some(now.link).filter(|link| link.is_finite()),
            predicted_throughput: model.throughput_at(k, in_force.window) * told.share.clamp(0.0, 1.0),
            measured_throughput,
            // Little: what is under way is what comes in per instance's time.
            predicted_window: measured.batches as f64 / seconds * model.instance_ms(k) / 1e3,
            measured_window: measured.window,
            batch_commands: k,
            bottleneck: model.bottleneck(k).0,
        })
    }

    /// Takes the interval's averages into the smoothed inputs; none until costs are known.
    fn smooth(&mut self, measured: &Measured) -> Option<Inputs> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let cost = measured.cost.filter(StageCost::is_possible).or(self.inputs.map(|inputs| inputs.cost))?;
        let before = self.inputs;
        let known = |value: f64, kept: fn(&Inputs) -> f64, least: f64| {
            if value.is_finite() { value.max(least) } else { before.as_ref().map_or(least, kept) }
        };
        let new = Inputs {
            replicas: measured.replicas,
            command_bytes: measured.bytes as f64 / measured.commands as f64,
            batch_header_bytes: known(measured.batch_header_bytes, |inputs| inputs.batch_header_bytes, 0.0),
            cost,
            round_trip_ms: measured.round_trip.map(ms).or(self.inputs.map(|i| i.round_trip_ms)).unwrap_or(0.0),
            flush_ms: measured.flush.map(ms).or(self.inputs.map(|i| i.flush_ms)).unwrap_or(0.0),
            batches_per_flush: known(measured.batches_per_flush, |inputs| inputs.batches_per_flush, 1.0),
            link: self.inputs.map_or(f64::INFINITY, |inputs| inputs.link),
        };
        let smooth = |old: f64, new: f64| old + SMOOTHING * (new - old);
        let smoothed = self.inputs.map_or(new, |old| Inputs {
            replicas: new.replicas,
            command_bytes: smooth(old.command_bytes, new.command_bytes),
            batch_header_bytes: new.batch_header_bytes,
            cost: StageCost {
                per_batch_ms: smooth(old.cost.per_batch_ms, new.cost.per_batch_ms),
                per_command_ms: smooth(old.cost.per_command_ms, new.cost.per_command_ms),
                per_byte_ms: smooth(old.cost.per_byte_ms, new.cost.per_byte_ms),
            },
            round_trip_ms: smooth(old.round_trip_ms, new.round_trip_ms),
            flush_ms: smooth(old.flush_ms, new.flush_ms),
            batches_per_flush: smooth(old.batches_per_flush, new.batches_per_flush),
            link: old.link,
        });
        self.inputs = Some(smoothed);
        self.inputs
    }

    /// An instance that was alone tells what latency is made of.
    fn learn_latency(&mut self, measured: &Measured, inputs: &Inputs) {
        let Some(instance) = measured.instance.filter(|_| measured.window <= ALONE_WINDOW) else { return };
        let batches = measured.batches as f64;
        let (k, bytes) = (measured.commands as f64 / batches, measured.bytes as f64 / batches);
        // Divided by what it should be, so that quick instances count as much as slow ones.
        let about = self.alone(inputs).map_or(instance.as_secs_f64() * 1e3, |alone| alone.of(k));
        if about > 0.0 {
            self.alone.add([1.0 / about, k / about, bytes / about], instance.as_secs_f64() * 1e3 / about);
        }
    }

    /// What an instance takes alone, where that was measured: never less than the way and the flush.
    fn alone(&self, inputs: &Inputs) -> Option<InstanceCost> {
        if self.alone.weight() < 1.0 {
            return None;
        }
        let least = inputs.round_trip_ms + inputs.flush_ms;
        let [per_batch_ms, per_command, per_byte] =
            self.alone.solve([least, inputs.cost.per_command_ms, inputs.cost.per_byte_ms]);
        let per_request_ms = per_command + per_byte * inputs.command_bytes;
        Some(InstanceCost { per_batch_ms: per_batch_ms.max(least), per_request_ms })
    }

    /// What the path to a quorum takes. If instances queued while neither CPU nor disk was busy, then everything waited
    /// for the path, and what came through is what it takes: that is believed at once, so that a link that got slower
    /// does not collapse. Otherwise it takes at least what came through, and more if a full pipe did not queue, or if
    /// something else was what everything waited for.
    fn learn_link(&mut self, measured: &Measured) {
        let rate = measured.bytes as f64 / (measured.interval.as_secs_f64() * 1e3);
        self.reached = self.reached.max(rate);
        let Some(inputs) = self.inputs else { return };
        let model = self.model(&inputs);
        let k = measured.commands as f64 / measured.batches as f64;
        let took = measured.instance.map_or(0.0, |took| took.as_secs_f64() * 1e3);
        let queued = took / model.instance_ms(k);
        let busy = measured.cpu_busy >= BUSY || measured.disk_busy >= BUSY;
        let several = measured.window > ALONE_WINDOW;
        let link = if busy {
            let wrong = model.bottleneck(k).0 == Resource::Network;
            if wrong { inputs.link * STEP } else { inputs.link }
        } else if several && queued > QUEUED {
            self.reached = rate;
            rate
        } else if took > 0.0 && queued < NOT_QUEUED && self.pipe_is_full(measured) {
            inputs.link.max(rate) * STEP
        } else {
            inputs.link
        };
        self.inputs = Some(Inputs { link: link.max(rate), ..inputs });
    }

    fn pipe_is_full(&self, measured: &Measured) -> bool {
        let told = self.chosen.map(|(.., tuning)| tuning);
        let Some(tuning) = measured.in_force.or(told) else { return false };
        let batch = measured.bytes as f64 / measured.batches as f64;
        let room = f64::from(tuning.window).min((tuning.window_bytes_max as f64 / batch).max(1.0));
        measured.window >= FULL * room
    }

    /// Measured bandwidth is that of one copy: however the copies share links is in the figure (papers.md 2, WAN).
    fn model(&self, inputs: &Inputs) -> Model {
        let flush_ms = inputs.flush_ms;
        let disk = Disk { flush_ms, batches_per_flush: inputs.batches_per_flush, bytes_per_ms: f64::INFINITY };
        Model {
            replicas: inputs.replicas,
            sizes: Sizes {
                request: inputs.command_bytes,
                request_header: 0.0,
                batch_header: inputs.batch_header_bytes,
                answer: 0.0,
                vote: 0.0,
            },
            link: Link { network: Network::Wan, bytes_per_ms: inputs.link, latency_ms: inputs.round_trip_ms / 2.0 },
            cpu: inputs.cost.of_instance(inputs.command_bytes),
            execute_ms: 0.0,
            disk: (flush_ms > 0.0).then_some(disk),
            alone: self.alone(inputs),
        }
    }
}

impl Limits {
    /// The knee of the batch curve as far as batches may be so small or so large, and the window for such batches.
    pub fn choose(&self, model: &Model) -> Choice {
        let request = model.sizes.request + model.sizes.request_header;
        let (least, most) = self.batch_bytes;
        // As many as fit: a batch is closed before it exceeds its bytes.
        let fit = |bytes: usize| (bytes as f64 / request).floor();
        let knee = model.knee(RUNNING_LOSS);
        let k = knee.min(fit(most)).max(fit(least)).max(1.0);
        let choice = model.choice(if k.is_finite() { k } else { knee });
        let window = ((1.0 - RUNNING_LOSS) * choice.window_exact).ceil() as u32;
        Choice { window: window.max(1), ..choice }
    }

    /// The choice, inside the limits. `reached`: bytes per millisecond that were seen to pass.
    fn bound(&self, model: &Model, choice: &Choice, reached: f64) -> Tuning {
        let whole = |value: f64| if value.is_nan() { 0 } else { value as usize };
        // Where the link never was the bottleneck, it takes at least what passed: two to four times that, and the
        // window can always double (papers.md 2).
        let link = Link { bytes_per_ms: model.link.bytes_per_ms.min(reached), ..model.link };
        let undecided = Model { link, ..*model }.window_bytes_max(choice.batch_bytes);
        let advised = Tuning {
            batch_bytes_max: whole(choice.batch_bytes),
            window: choice.window,
            window_bytes_max: whole(undecided),
            batch_delay_max: self.batch_delay_max,
        };
        // Whatever was measured, the group goes on: never a window of 0, never beyond the caps (reliability.md PX17).
        if mutant!(tuner_unbounded) {
            return advised;
        }
        let within = |value: usize, (low, high): (usize, usize)| value.min(high).max(low.max(1));
        let batch_bytes_max = within(advised.batch_bytes_max, self.batch_bytes);
        let window_bytes_max = within(advised.window_bytes_max, self.window_bytes);
        let (least, most) = self.window;
        // Full batches beyond the byte cap could not be under way anyway.
        let fits = u32::try_from(window_bytes_max / batch_bytes_max).unwrap_or(u32::MAX).max(1);
        Tuning {
            batch_bytes_max,
            window: advised.window.min(fits).min(most.min(WINDOW_MAX)).max(least.max(1)),
            window_bytes_max,
            batch_delay_max: advised.batch_delay_max,
        }
    }
}

fn moved(before: &Inputs, now: &Inputs) -> bool {
    let far = |a: f64, b: f64| a != b && a.max(b) >= MOVED * a.min(b);
    let instance = |inputs: &Inputs| inputs.cost.of_instance(inputs.command_bytes);
    before.replicas != now.replicas
        || far(before.command_bytes, now.command_bytes)
        || far(instance(before).per_batch_ms, instance(now).per_batch_ms)
        || far(instance(before).per_request_ms, instance(now).per_request_ms)
        || far(before.round_trip_ms, now.round_trip_ms)
        || far(before.flush_ms, now.flush_ms)
        || far(before.link, now.link)
}
