//! What a controller takes from an interval: how long and how wide the path is, what an instance takes alone, and how
//! far the model is off (papers.md A14, A16).

use super::super::hill_climb::HillClimb;
use super::super::inputs::{Inputs, MOVED, far, rate};
use super::super::model::{InstanceCost, Model, Resource};
use super::super::terms::Measurement;
use super::{Controller, commands_rate};

/// What is believed of the way to a quorum and back.
///
/// What queues on a link, queues before heartbeats too: a way that got longer under load may be no longer at all. Were
/// it believed, more would be let under way, and the queue would grow with the belief in it. So the queue is let run
/// empty for an interval, and what is measured then is the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PathBelief {
    #[default]
    Believed,
    /// In this interval less is under way than the link holds.
    Drained,
}

/// An instance that takes so many times what one takes alone waited behind others.
const QUEUED: f64 = 1.5;
/// One that takes less did not. Between the two the link is left as it is believed, or window and link would chase one
/// another.
const NOT_QUEUED: f64 = 1.15;
/// A link that may take more is believed to take so much more.
const STEP: f64 = 1.15;
/// A window with so much of it in use, on average, is full.
const FULL: f64 = 0.9;
/// A way that is longer by this factor is another one, or has a queue on it.
const LONGER: f64 = 1.2;
/// With this share of what the setting brings, or more, a longer way does no harm.
const HARMED: f64 = 0.85;
/// Intervals from one such drain to the next, if it does no harm.
const DRAIN_REST: u32 = 60;
/// Shorter ways are not worth it.
const DRAIN_MS_MIN: f64 = 20.0;
/// By this factor an interval lets a way be longer that may be.
const CREEP: f64 = 1.02;
/// What is seen of a link counts for so much in one interval: of a few large batches one more or less is a lot.
const LINK_SMOOTHING: f64 = 0.25;
/// What an interval under saturation counts for in how far the model is off.
const ERROR_SMOOTHING: f64 = 0.15;
/// A model that is further off is off for a reason that will pass.
const ERROR: (f64, f64) = (0.1, 10.0);
/// What it was seen to pass fades by this factor in an interval in which it passes less although instances queue.
const LINK_FADES: f64 = 0.7;
/// Intervals with fewer instances under way, on average, tell what one takes alone.
const ALONE_WINDOW: f64 = 1.2;

impl Controller {
    /// See [`PathBelief`].
    pub(super) fn believed_way(&mut self, measured: &Measurement, drained: bool) -> f64 {
        let Some(inputs) = self.inputs else {
            return measured.round_trip.map_or(0.0, |way| way.as_secs_f64() * 1e3);
        };
        let Some(way) = measured.round_trip.map(|way| way.as_secs_f64() * 1e3) else { return inputs.round_trip_ms };
        let longer = way > LONGER * inputs.round_trip_ms;
        if !longer || drained || measured.window <= ALONE_WINDOW {
            return way;
        }
        // What a short way holds is next to nothing, however long it is exactly: that is believed little by little.
        if way < DRAIN_MS_MIN {
            return inputs.round_trip_ms * CREEP;
        }
        // A drain costs. As long as as much as ever comes through, it makes little difference what the way is.
        self.drain_rest = self.drain_rest.saturating_sub(1);
        let brings = self.climb.as_ref().and_then(HillClimb::brings);
        let harmed = brings.is_none_or(|brings| commands_rate(measured) < HARMED * brings);
        if self.drain_rest > 0 && !harmed && !mutant!(tuner_drains_always) {
            return inputs.round_trip_ms;
        }
        self.drain_rest = DRAIN_REST;
        self.way = PathBelief::Drained;
        inputs.round_trip_ms
    }

    /// An instance that was alone tells what latency is made of.
    pub(super) fn learn_latency(&mut self, measured: &Measurement, inputs: &Inputs) {
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
    pub(super) fn alone(&self, inputs: &Inputs) -> Option<InstanceCost> {
        if self.alone.weight() < 1.0 {
            return None;
        }
        let least = inputs.round_trip_ms + inputs.flush_ms;
        let [per_batch_ms, per_command, per_byte] =
            self.alone.solve([least, inputs.cost.per_command_ms, inputs.cost.per_byte_ms]);
        let per_request_ms = per_command + per_byte * inputs.command_bytes;
        Some(InstanceCost { per_batch_ms: per_batch_ms.max(least), per_request_ms })
    }

    /// How far the model is off under saturation.
    pub(super) fn learn_error(&mut self, model: &Model, measured: &Measurement) {
        let Some(tuning) = measured.in_force.or(self.told) else { return };
        let k = (measured.commands as f64 / measured.batches as f64).max(1.0);
        let came = 1e3 * commands_rate(measured) / model.throughput_of(k, tuning.window, measured.share);
        if came.is_finite() && !mutant!(tuner_uncorrected) {
            self.comes_true += ERROR_SMOOTHING * (came.clamp(ERROR.0, ERROR.1) - self.comes_true);
        }
    }

    /// What the path to a quorum takes. If instances queued while neither CPU nor disk was busy, then everything waited
    /// for the path, and what came through is what it takes: that is believed at once, so that a link that got slower
    /// does not collapse. Otherwise it takes at least what came through, and more if a full window did not queue, or if
    /// something else was what everything waited for.
    pub(super) fn learn_link(&mut self, measured: &Measurement) {
        let rate = rate(measured);
        self.reached = self.reached.max(rate);
        let Some(inputs) = self.inputs else { return };
        let model = self.model(&inputs);
        let k = measured.commands as f64 / measured.batches as f64;
        let took = measured.instance.map_or(0.0, |took| took.as_secs_f64() * 1e3);
        let queued = took / model.instance_ms(k);
        let busy = self.is_busy(measured);
        let several = measured.window > ALONE_WINDOW;
        // Half a second of large batches may be one more or less: what is far off is believed when it is so again.
        let off = far(inputs.link, rate, MOVED);
        let again = std::mem::replace(&mut self.link_off, off) || inputs.link.is_infinite();
        let settle = |link: f64| match off {
            true if again || mutant!(tuner_believes_one_interval) => rate,
            true => link,
            false => link + LINK_SMOOTHING * (rate - link),
        };
        let link = if busy {
            let wrong = model.bottleneck(k).0 == Resource::Network;
            if wrong { inputs.link * STEP } else { inputs.link }
        } else if several && queued > QUEUED {
            self.reached = rate.max(LINK_FADES * self.reached);
            self.inputs = Some(Inputs { link: settle(inputs.link), ..inputs });
            return;
        } else if took > 0.0 && queued < NOT_QUEUED && self.window_is_full(measured) {
            inputs.link.max(rate) * STEP
        } else {
            inputs.link
        };
        // It takes at least what it has taken.
        let link = if link >= rate { link } else { settle(link) };
        self.inputs = Some(Inputs { link, ..inputs });
    }

    pub(super) fn window_is_full(&self, measured: &Measurement) -> bool {
        let Some(tuning) = measured.in_force.or(self.told) else { return false };
        let batch = measured.bytes as f64 / measured.batches as f64;
        let room = f64::from(tuning.window).min((tuning.window_bytes_max as f64 / batch).max(1.0));
        measured.window >= FULL * room
    }
}
