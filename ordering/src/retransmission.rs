//! When a leader sends what is undecided again: by round trips that it measured, and more patiently each time.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::settings::Settings;

/// Round trips of `Phase2a`, flushes included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    smoothed_ns: u64,
    deviation_ns: u64,
    measured: bool,
}

/// Measured, and no part of a hash (hazards.md 7, models).
impl Hash for RoundTrip {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl RoundTrip {
    /// Takes a sample (RFC 6298's filter).
    pub fn sample(&mut self, sample: Duration) {
        let ns = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX / 8);
        if self.measured {
            self.deviation_ns = (3 * self.deviation_ns + self.smoothed_ns.abs_diff(ns)) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
        } else {
            (self.smoothed_ns, self.deviation_ns, self.measured) = (ns, ns / 2, true);
        }
    }

    /// How long to wait before sending again.
    pub fn timeout(&self, settings: &Settings) -> Duration {
        if !self.measured {
            return settings.retransmit_max;
        }
        let timeout = Duration::from_nanos(self.smoothed_ns.saturating_add(4 * self.deviation_ns));
        // No constant bounds it: a window's worth of a slow link takes as long as it takes, and what is only queued
        // there is not to be sent again.
        timeout.max(settings.retransmit_min)
    }
}

/// 4 MB/s: a full window of 1 MiB is repeated a quarter of a second later, and what 10 Mbit/s take a second for is
/// repeated once, not five times.
const SENT_BYTES_PER_US: usize = 4;

/// The timeout is doubled at most so often.
const BACKOFF_MAX: u32 = 8;

/// When undecided instances are sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Retransmission {
    pub round_trip: RoundTrip,
    /// Doublings of the timeout since the last progress.
    backoff: u32,
}

impl Retransmission {
    /// How long an instance is waited for, with so many bytes in flight. Doubles as long as nothing is decided that was
    /// sent once. What is under way takes its time, too, over a link that was not measured yet.
    pub fn timeout(&self, bytes: usize, settings: &Settings) -> Duration {
        let sending = Duration::from_micros((bytes / SENT_BYTES_PER_US) as u64);
        let timeout = self.round_trip.timeout(settings) + sending;
        timeout.saturating_mul(1 << self.backoff).min(settings.election_timeout)
    }

    /// How many instances to send again: one, and twice as many each time.
    pub fn back_off(&mut self) -> u32 {
        let instances = 1 << self.backoff;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        instances
    }

    /// Something is decided that was sent once.
    pub fn reset(&mut self) {
        self.backoff = 0;
    }
}
