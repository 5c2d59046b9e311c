//! Time as pure code sees it: an argument, never asked for.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since any fixed moment of the driver's choice. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than anything.
    pub const NEVER: Time = Time(u64::MAX);

    /// A moment so many milliseconds after the fixed one.
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    /// How long after `earlier`; zero if it is not.
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
