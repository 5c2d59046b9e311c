//! What goes into a controller and what comes out: measurements, limits, settings, and the account of a choice.

use std::time::Duration;

use super::model::{Choice, InstanceCost, Resource};
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
    /// How long a batch may wait for more commands while the window has room.
    pub batch_delay_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // 16 KiB: what a pack and a half of the client library brings. Below it a wrong guess costs dearly, above
            // it batches that are not needed cost nothing, since a window that has room never waits for one.
            batch_bytes: (16 << 10, 2 << 20),
            window: (1, WINDOW_MAX),
            // 64 KiB: half a second of 1 Mbit/s. What quicker links hold is measured.
            window_bytes: (64 << 10, crate::settings::WINDOW_BYTES_MAX),
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
    pub(super) fn is_possible(&self) -> bool {
        let StageCost { per_batch_ms, per_command_ms, per_byte_ms } = *self;
        let possible = |cost: f64| (0.0..COST_MS_MAX).contains(&cost);
        possible(per_batch_ms) && possible(per_command_ms) && possible(per_byte_ms)
    }

    pub(super) fn of_instance(self, command_bytes: f64) -> InstanceCost {
        let per_request_ms = self.per_command_ms + self.per_byte_ms * command_bytes;
        InstanceCost { per_batch_ms: self.per_batch_ms, per_request_ms }
    }
}

/// What a leader measured of its group in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurement {
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
    /// Undecided instances, and up to so many a batch goes at once (protocol.md 1.2).
    pub window: u32,
    /// Undecided bytes.
    pub window_bytes_max: usize,
    /// How long a batch may wait. With a window that takes every batch while it has room nothing waits that long.
    pub batch_delay_max: Duration,
}

impl Tuning {
    /// What a group begins with, nothing measured yet: it fills a link of 10 Mbit/s, and is no second of one that is
    /// a fifth as quick.
    pub fn first(limits: &Limits) -> Tuning {
        let within = |value: usize, (low, high): (usize, usize)| value.min(high).max(low.max(1));
        let (least, most) = limits.window;
        Tuning {
            batch_bytes_max: within(64 << 10, limits.batch_bytes),
            window: 16.min(most).max(least).clamp(1, WINDOW_MAX),
            window_bytes_max: within(256 << 10, limits.window_bytes),
            batch_delay_max: limits.batch_delay_max,
        }
    }

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
