//! The controller: from what a leader measured of its group to the group's batch size and window (papers.md A13, A14).
//!
//! It hears of one interval after another and answers with a new setting when the measured world is another one: an
//! input that has moved by a fifth since the setting was chosen. What is less is noise, and moves nothing. Under
//! saturation what the model advises must prove itself, and other settings are tried (`hill_climb.rs`). Settings never
//! leave their [`Limits`], whatever was measured.

mod learned;

use std::time::Duration;

use learned::PathBelief;

use super::fit::Fit;
use super::hill_climb::{HillClimb, Point, SaturatedInterval};
use super::inputs::{ANOTHER_WORLD, Inputs, MOVED, WAY_MS_MIN, another_world, far, moved, rate, together};
use super::limits::whole;
use super::model::{Choice, Disk, Link, Model, Network, Sizes};
use super::terms::{Account, Limits, Measurement, StageCost, Tuning};

/// Tunes one group. Its state is a few numbers; it is born with a leadership and dies with it.
#[derive(Clone, Debug)]
pub struct Controller {
    limits: Limits,
    inputs: Option<Inputs>,
    /// Instance latency against (1, commands, bytes), of intervals with hardly more than one instance under way.
    alone: Fit<3>,
    /// The highest rate of payload seen, in bytes per millisecond: the link takes at least that.
    reached: f64,
    /// What the model advised last, and for what.
    chosen: Option<(Inputs, Choice)>,
    climb: Option<HillClimb>,
    /// What the group was told last.
    told: Option<Tuning>,
    /// Intervals with too little in them, together.
    gathered: Option<Measurement>,
    way: PathBelief,
    /// What came through under saturation, of what the model predicts: others run on the same cores, a disk stalls.
    comes_true: f64,
    /// Much more came through in the last interval than the model thought possible. What the first seconds of a node
    /// or of a load cost is not what they will cost: such a model has nothing to advise.
    refuted: bool,
    /// It has advised something meanwhile: it is asked again.
    unheard: bool,
    /// In the last interval the link seemed far from what it is believed to be.
    link_off: bool,
    /// Intervals until the queue may be let run empty for no other reason than that the way seems longer.
    drain_rest: u32,
    last: Option<Measurement>,
    /// The last interval that had enough in it to tell what batches are like.
    telling: Option<Measurement>,
}

/// A window is too narrow if the model asks for so much more.
const NARROW: f64 = 1.1;
/// A model is refuted by so many times what it predicts.
const REFUTED: f64 = 1.5;
/// What one interval counts for in a smoothed input.
const SMOOTHING: f64 = 0.3;
/// Fewer commands in an interval say nothing about averages.
const COMMANDS_MIN: u64 = 32;
/// But if something was under way most of the time, so long is enough, however little came through.
const GATHER_MAX: Duration = Duration::from_millis(1_500);
/// A stage that is busier is what everything waits for, and not the path: over a long way, and over one that is as
/// short as what threads take to wake up. There processors and disk take turns, so neither is busy all the time.
const BUSY: (f64, f64) = (0.75, 0.6);
/// A stage that is busier leaves no doubt: the group is saturated.
const SATURATED: f64 = 0.9;
/// A group with so many instances under way, on average, and a stage so busy is loaded: with another setting more might
/// come through.
const LOADED_WINDOW: f64 = 0.5;
const LOADED: f64 = 0.4;
/// Below what a link holds: the queue runs empty, and hardly anything is lost.
const DRAINED: f64 = 0.9;
/// Half-life of what is known of latency, in intervals.
const ALONE_HALF_LIFE: f64 = 100.0;
/// A group that has less of what the stage does cannot tell what its own settings bring.
const SHARE_MIN: f64 = 0.8;

impl Controller {
    /// Nothing measured yet; the group keeps the settings that it has.
    pub fn new(limits: Limits) -> Controller {
        Controller {
            limits,
            inputs: None,
            alone: Fit::new(ALONE_HALF_LIFE),
            reached: 0.0,
            chosen: None,
            climb: None,
            told: None,
            gathered: None,
            way: PathBelief::Believed,
            comes_true: 1.0,
            refuted: false,
            unheard: false,
            link_off: false,
            drain_rest: 0,
            last: None,
            telling: None,
        }
    }

    /// Keeps within these from now on; the next interval decides anew.
    pub fn set_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            (self.chosen, self.climb) = (None, None);
        }
    }

    /// Takes an interval in. Returns what the group is to be told, if that is something new.
    pub fn step(&mut self, measured: &Measurement) -> Option<Tuning> {
        let before = self.last.replace(*measured);
        // What a wider window had under way comes through in the first interval of a narrower one.
        let changed = before.is_some_and(|before| before.in_force != measured.in_force);
        let Some(measured) = self.gather(measured) else { return self.relieve() };
        self.telling = Some(measured);
        let drained = std::mem::take(&mut self.way) == PathBelief::Drained;
        if drained && let Some(climb) = &mut self.climb {
            climb.disturbed();
        }
        let before = self.inputs;
        let inputs = self.smooth(&measured, drained)?;
        if before.is_some_and(|before| another_world(&before, &inputs)) {
            self.forget(&measured);
        } else if self.way == PathBelief::Believed && !drained {
            self.learn_latency(&measured, &inputs);
            self.learn_link(&measured);
        }
        let inputs = self.inputs?;
        let model = self.model(&inputs);
        let tells = self.tells(&measured);
        self.doubt(&model, &measured, changed);
        if tells && self.way == PathBelief::Believed && !drained {
            self.learn_error(&model, &measured);
        }
        self.advise(&inputs, &model, tells, &measured);
        self.try_out(&model, tells, &measured);
        self.tell(&model, &inputs)
    }

    /// Whether much more came through than the model thinks possible. Then nothing that it has advised is tried.
    fn doubt(&mut self, model: &Model, measured: &Measurement, changed: bool) {
        let Some(now) = measured.in_force.filter(|_| !changed) else { return };
        let k = (measured.commands as f64 / measured.batches as f64).max(1.0);
        let predicted = model.throughput_of(k, now.window, measured.share);
        let refuted = 1e3 * commands_rate(measured) > REFUTED * predicted;
        if std::mem::replace(&mut self.refuted, refuted) && !refuted {
            // That was the model's error, and not what others leave of the machine.
            self.comes_true = 1.0;
        }
        if let Some(climb) = self.climb.as_mut().filter(|_| refuted) {
            self.unheard |= climb.unadvise();
        }
    }

    /// What the group was told last.
    pub fn tuning(&self) -> Option<Tuning> {
        self.told
    }

    /// Why; none before the first choice.
    pub fn account(&self) -> Option<Account> {
        let ((inputs, choice), tuning) = (self.chosen?, self.told?);
        let (now, measured, told) = (self.inputs?, self.last?, self.telling?);
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
            predicted_throughput: self.comes_true * model.throughput_of(k, in_force.window, told.share.clamp(0.0, 1.0)),
            measured_throughput,
            // Little: what is under way is what comes in per instance's time.
            predicted_window: measured.batches as f64 / seconds * model.instance_ms(k) / 1e3,
            measured_window: measured.window,
            batch_commands: k,
            bottleneck: model.bottleneck(k).0,
        })
    }

    /// Intervals until they have enough in them. Who does nothing, or next to nothing, waits for nothing: the settings
    /// are good enough as they are. Who waits most of the time and gets little is not to be left alone with that.
    fn gather(&mut self, measured: &Measurement) -> Option<Measurement> {
        if measured.interval.is_zero() {
            return None;
        }
        let all = match self.gathered.take() {
            Some(before) => together(&before, measured),
            None => *measured,
        };
        if all.batches > 0 && all.commands >= COMMANDS_MIN {
            return Some(all);
        }
        let waits = all.window >= 0.5 && all.window.is_finite();
        if !waits {
            return None;
        }
        if all.interval < GATHER_MAX || all.commands == 0 || all.batches == 0 {
            self.gathered = Some(all);
            return None;
        }
        Some(all)
    }

    /// Nothing at all comes through: whatever the reason is, less under way is no worse.
    fn relieve(&mut self) -> Option<Tuning> {
        let stalled = |all: &Measurement| all.batches == 0 && all.interval >= GATHER_MAX;
        self.gathered.take_if(|all| stalled(all))?;
        let inputs = self.inputs?;
        self.reached /= 2.0;
        let model = self.model(&inputs);
        self.tell(&model, &inputs)
    }

    /// Another load or another link.
    fn forget(&mut self, measured: &Measurement) {
        self.alone = Fit::new(ALONE_HALF_LIFE);
        self.reached = rate(measured);
        if let Some(inputs) = &mut self.inputs {
            inputs.link = f64::INFINITY;
        }
        if let Some(climb) = &mut self.climb {
            climb.forget();
        }
        self.chosen = None;
    }

    /// Asks the model, if it has other inputs than when it was asked last.
    fn advise(&mut self, inputs: &Inputs, model: &Model, tells: bool, measured: &Measurement) {
        let choice = self.limits.choose(model);
        let point = Point { batch_bytes: whole(choice.batch_bytes), window: choice.window };
        if let (Some((before, old)), Some(climb)) = (&self.chosen, &self.climb) {
            // A window that turns out too narrow costs throughput now, one that is too wide costs next to nothing.
            let kept = climb.point().window;
            let narrow = model.windows(old.requests).smallest() > NARROW * f64::from(kept) && point.window > kept;
            let again = self.unheard && !self.refuted;
            if !narrow && !moved(before, inputs) && !again {
                return;
            }
        }
        self.chosen = Some((*inputs, choice));
        // A group that cannot tell, as one of many on a stage that is loaded, or which is not told what is chosen,
        // takes the model at its word. One that has too little to do to tell keeps what it has until it can: the
        // first interval of a load says nothing.
        let loaded = measured.cpu_busy.max(measured.disk_busy) >= LOADED;
        let one_of_many = measured.share < SHARE_MIN && loaded;
        let overruled = self.told.is_some() && !self.obeyed(measured);
        let at_once = !tells && (measured.in_force.is_none() || overruled || one_of_many);
        if let (None, Some(now), false) = (&self.climb, measured.in_force, at_once) {
            self.climb = Some(HillClimb::new(Point { batch_bytes: now.batch_bytes_max, window: now.window }));
        }
        self.unheard = self.refuted && !at_once;
        match &mut self.climb {
            Some(_) if self.unheard => {}
            Some(climb) => climb.advise(point, at_once),
            None => self.climb = Some(HillClimb::new(point)),
        }
    }

    /// Whether the group runs with what it was told. It does not before it was told something, or where somebody else
    /// has a word in it.
    fn obeyed(&self, measured: &Measurement) -> bool {
        measured.in_force.is_none_or(|in_force| self.told == Some(in_force))
    }

    /// Whether what comes through tells how good the setting is: something is as busy as it can be, the window is full,
    /// or there is hardly a moment without something under way and the stage has much to do.
    fn tells(&self, measured: &Measurement) -> bool {
        let saturated =
            measured.cpu_busy >= SATURATED || measured.disk_busy >= SATURATED || self.window_is_full(measured);
        let loaded = measured.window >= LOADED_WINDOW && measured.cpu_busy >= LOADED;
        (saturated || loaded) && self.obeyed(measured) && measured.share >= SHARE_MIN
    }

    /// Whether a stage is what everything waits for.
    fn is_busy(&self, measured: &Measurement) -> bool {
        let long = self.inputs.is_none_or(|inputs| inputs.round_trip_ms >= WAY_MS_MIN);
        let least = if long { BUSY.0 } else { BUSY.1 };
        measured.cpu_busy >= least || measured.disk_busy >= least
    }

    fn try_out(&mut self, model: &Model, tells: bool, measured: &Measurement) {
        let busy = self.is_busy(measured);
        let seen = SaturatedInterval {
            rate: commands_rate(measured),
            batches: measured.batches as f64,
            batch_bytes: measured.bytes as f64 / measured.batches as f64,
            window: measured.window,
            on_the_way: !busy && self.window_is_full(measured),
            holds: rate(measured) * model.link.latency_ms * 2.0,
        };
        let (limits, reached, obeyed) = (self.limits, self.reached, self.obeyed(measured));
        let Some(climb) = &mut self.climb else { return };
        let tells = (tells || climb.tries() && obeyed) && seen.rate.is_finite() && seen.window.is_finite();
        if self.way == PathBelief::Drained {
            return;
        }
        if !tells {
            return climb.idle();
        }
        climb.step(&seen, |point| limits.within(model, point, reached));
    }

    fn tell(&mut self, model: &Model, inputs: &Inputs) -> Option<Tuning> {
        let climb = self.climb.as_ref()?;
        let mut tuning = self.limits.bound(model, climb.point(), self.reached);
        if self.way == PathBelief::Drained {
            let holds = DRAINED * inputs.link.min(self.reached) * inputs.round_trip_ms;
            tuning.window_bytes_max = whole(holds).clamp(self.limits.window_bytes.0.max(1), tuning.window_bytes_max);
        } else if let Some(told) = self.told.filter(|told| {
            let (old, new) = (told.window_bytes_max as f64, tuning.window_bytes_max as f64);
            *told == Tuning { window_bytes_max: told.window_bytes_max, ..tuning } && old.max(new) < MOVED * old.min(new)
        }) {
            tuning = told;
        }
        (self.told.replace(tuning) != Some(tuning)).then_some(tuning)
    }

    /// Takes the interval's averages into the smoothed inputs; none until costs are known.
    fn smooth(&mut self, measured: &Measurement, drained: bool) -> Option<Inputs> {
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
            round_trip_ms: self.believed_way(measured, drained),
            flush_ms: measured.flush.map(ms).or(self.inputs.map(|i| i.flush_ms)).unwrap_or(0.0),
            batches_per_flush: known(measured.batches_per_flush, |inputs| inputs.batches_per_flush, 1.0),
            link: self.inputs.map_or(f64::INFINITY, |inputs| inputs.link),
        };
        // What is another world is believed at once, noise never.
        let smooth =
            |old: f64, new: f64| if far(old, new, ANOTHER_WORLD) { new } else { old + SMOOTHING * (new - old) };
        let slow = |old: f64, new: f64| old + SMOOTHING * (new - old);
        let smoothed = self.inputs.map_or(new, |old| Inputs {
            replicas: new.replicas,
            command_bytes: smooth(old.command_bytes, new.command_bytes),
            batch_header_bytes: new.batch_header_bytes,
            cost: StageCost {
                per_batch_ms: slow(old.cost.per_batch_ms, new.cost.per_batch_ms),
                per_command_ms: slow(old.cost.per_command_ms, new.cost.per_command_ms),
                per_byte_ms: slow(old.cost.per_byte_ms, new.cost.per_byte_ms),
            },
            round_trip_ms: smooth(old.round_trip_ms, new.round_trip_ms),
            flush_ms: slow(old.flush_ms, new.flush_ms),
            batches_per_flush: slow(old.batches_per_flush, new.batches_per_flush),
            link: old.link,
        });
        self.inputs = Some(smoothed);
        self.inputs
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

/// Commands per millisecond.
fn commands_rate(measured: &Measurement) -> f64 {
    measured.commands as f64 / (measured.interval.as_secs_f64() * 1e3)
}
