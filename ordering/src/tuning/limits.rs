//! Limits at work: what of a choice a group may be told (papers.md A14; hazards.md PX17).

use super::hill_climb::Point;
use super::model::{Choice, Link, Model};
use super::terms::{Limits, Tuning};
use crate::settings::WINDOW_MAX;

/// Of what batches and windows without bound would reach, a running group gives up this much for the batch and this
/// much for the window. The page's 5 % and its tenth of a window may together lose 14 %, and what is promised of a
/// running group is 95 % of the best.
const RUNNING_LOSS: f64 = 0.02;
/// Longest time of a link that may be under way, unless the link itself is longer.
const HALF_SECOND_MS: f64 = 500.0;
/// A link may be longer than that: so many times what it holds.
const FILLED: f64 = 1.2;

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

    /// What fills the link, with some to spare, and what may be under way at most, in bytes: half a second of it, or a
    /// little more than it holds. Every collapse that the paper reports is about one second of its link.
    ///
    /// `reached`: bytes per millisecond that were seen
    /// to pass; where the link never was the bottleneck, it takes at least that.
    fn volume(model: &Model, reached: f64) -> (f64, f64) {
        let bytes_per_ms = model.link.bytes_per_ms.min(reached);
        let link = Link { bytes_per_ms, ..model.link };
        let twice = Model { link, ..*model }.window_bytes_max(0.0);
        let delay = 2.0 * model.link.latency_ms + model.disk.map_or(0.0, |disk| disk.flush_ms);
        let most = bytes_per_ms * HALF_SECOND_MS.max(FILLED * delay);
        (twice.min(most), most)
    }

    /// A setting that is inside the limits, and that the link can hold.
    pub(super) fn within(&self, model: &Model, point: Point, reached: f64) -> Point {
        let (_, most) = Limits::volume(model, reached);
        let bytes = (self.batch_bytes.0.max(1), self.batch_bytes.1.min(whole(most / 4.0)));
        let batch_bytes = point.batch_bytes.min(bytes.1).max(bytes.0);
        let bytes = self.window_bytes.1.min(whole(most).max(2 * batch_bytes)).max(self.window_bytes.0);
        // Full batches beyond the byte cap could not be under way anyway.
        let fits = u32::try_from(bytes / batch_bytes).unwrap_or(u32::MAX).max(1);
        let (least, most) = self.window;
        Point { batch_bytes, window: point.window.min(fits).min(most).max(least).clamp(1, WINDOW_MAX) }
    }

    /// The setting, inside the limits.
    pub(super) fn bound(&self, model: &Model, point: Point, reached: f64) -> Tuning {
        let (twice, most) = Limits::volume(model, reached);
        let wanted = f64::from(point.window) * point.batch_bytes as f64;
        let undecided = whole(wanted.min(most).max(twice)).max(2 * point.batch_bytes.min(self.batch_bytes.1));
        // Whatever was measured, the group goes on: never a window of 0, never beyond the caps (hazards.md PX17).
        if mutant!(tuner_unbounded) {
            return Tuning {
                batch_bytes_max: point.batch_bytes,
                window: point.window,
                window_bytes_max: undecided,
                batch_delay_max: self.batch_delay_max,
            };
        }
        let point = self.within(model, point, reached);
        let (low, high) = self.window_bytes;
        Tuning {
            batch_bytes_max: point.batch_bytes,
            window: point.window,
            window_bytes_max: undecided.min(high).max(low.max(1)),
            batch_delay_max: self.batch_delay_max,
        }
    }
}

/// Bytes of a number that nobody vouches for.
pub(super) fn whole(value: f64) -> usize {
    if value.is_nan() { 0 } else { value as usize }
}
