//! What the model is asked with, and when that is something else than before.

use std::time::Duration;

use super::terms::{Measurement, StageCost};

/// The smoothed inputs of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Inputs {
    pub replicas: u32,
    pub command_bytes: f64,
    pub batch_header_bytes: f64,
    pub cost: StageCost,
    pub round_trip_ms: f64,
    /// Zero: votes wait for no flush.
    pub flush_ms: f64,
    pub batches_per_flush: f64,
    /// Infinite: never what anything waited for.
    pub link: f64,
}

/// An input that moved by this factor, up or down, is another input: one step of 25 % or two of 10 % (papers.md 2).
pub(super) const MOVED: f64 = 1.2;
/// What moved by this factor from one interval to the next is another world: forget what was found out.
pub(super) const ANOTHER_WORLD: f64 = 2.0;
/// Shorter ones are what threads take to wake up, on a machine that has much to do.
pub(super) const WAY_MS_MIN: f64 = 20.0;

/// Payload that came through, in bytes per millisecond.
pub(super) fn rate(measured: &Measurement) -> f64 {
    measured.bytes as f64 / (measured.interval.as_secs_f64() * 1e3)
}

/// Two intervals, one after the other, as one.
pub(super) fn together(before: &Measurement, after: &Measurement) -> Measurement {
    let (a, b) = (before.interval.as_secs_f64(), after.interval.as_secs_f64());
    let mean = |x: f64, y: f64| (x * a + y * b) / (a + b);
    let batches = before.batches.saturating_add(after.batches);
    let instance = match (before.instance, after.instance) {
        (Some(x), Some(y)) if batches > 0 => {
            let part = after.batches as f64 / batches as f64;
            Duration::try_from_secs_f64(x.as_secs_f64() * (1.0 - part) + y.as_secs_f64() * part).ok()
        }
        (x, y) => y.or(x),
    };
    // An interval without a command says nothing about whose commands there are.
    let share = if after.commands > 0 || before.commands == 0 { after.share } else { before.share };
    Measurement {
        share,
        interval: before.interval.saturating_add(after.interval),
        batches,
        commands: before.commands.saturating_add(after.commands),
        bytes: before.bytes.saturating_add(after.bytes),
        window: mean(before.window, after.window),
        instance,
        cpu_busy: mean(before.cpu_busy, after.cpu_busy),
        disk_busy: mean(before.disk_busy, after.disk_busy),
        ..*after
    }
}

pub(super) fn far(a: f64, b: f64, factor: f64) -> bool {
    a != b && a.max(b) >= factor * a.min(b)
}

/// Another load or another link, from one interval to the next.
pub(super) fn another_world(before: &Inputs, now: &Inputs) -> bool {
    let way = far(before.round_trip_ms.max(WAY_MS_MIN), now.round_trip_ms.max(WAY_MS_MIN), ANOTHER_WORLD);
    way || before.replicas != now.replicas || far(before.command_bytes, now.command_bytes, ANOTHER_WORLD)
}

pub(super) fn moved(before: &Inputs, now: &Inputs) -> bool {
    let far = |a: f64, b: f64| far(a, b, MOVED);
    let instance = |inputs: &Inputs| inputs.cost.of_instance(inputs.command_bytes);
    before.replicas != now.replicas
        || far(before.command_bytes, now.command_bytes)
        || far(instance(before).per_batch_ms, instance(now).per_batch_ms)
        || far(instance(before).per_request_ms, instance(now).per_request_ms)
        || far(before.round_trip_ms, now.round_trip_ms)
        || far(before.flush_ms, now.flush_ms)
        || far(before.link, now.link)
}
