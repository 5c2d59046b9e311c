//! How far and for how long another replica has been behind its leader. Pure: told the time and both positions.

use std::time::Duration;

use coppice_ordering::{Instance, Time};

/// One other replica, as its leader sees it.
///
/// A marker stands at what was decided at some moment; the replica was as far as the leader was then when it has passed
/// the marker. Invariant: `caught_up <= target_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    target: Instance,
    target_at: Time,
    /// The replica was last level with the leader as the leader was then.
    caught_up: Time,
    instances: u64,
    behind_for: Duration,
}

impl Lag {
    /// Of a replica that is looked at for the first time.
    pub fn new(now: Time, decided: Instance) -> Lag {
        Lag { target: decided, target_at: now, caught_up: now, instances: 0, behind_for: Duration::ZERO }
    }

    /// The leader has `decided`, the replica holds everything up to `durable`.
    pub fn observe(&mut self, now: Time, decided: Instance, durable: Instance) {
        if durable >= self.target {
            self.caught_up = self.target_at;
            (self.target, self.target_at) = (decided, now);
        }
        if durable >= decided {
            self.caught_up = now;
        }
        self.instances = decided.0.saturating_sub(durable.0);
        self.behind_for = now.since(self.caught_up);
    }

    /// Instances behind.
    pub fn instances(&self) -> u64 {
        self.instances
    }

    /// For how long it has been behind at all; 0 if it is level.
    pub fn behind_for(&self) -> Duration {
        self.behind_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn a_replica_that_stops_falls_behind_from_the_moment_when_it_was_level() {
        let mut lag = Lag::new(at(0), Instance(10));
        lag.observe(at(10), Instance(10), Instance(10));
        assert_eq!((lag.instances(), lag.behind_for()), (0, Duration::ZERO));
        for step in 2..=100 {
            lag.observe(at(step * 10), Instance(10 + step), Instance(10));
        }
        assert_eq!(lag.instances(), 100);
        assert_eq!(lag.behind_for(), Duration::from_millis(990));
    }

    #[test]
    fn a_replica_in_step_but_behind_by_a_flush_is_behind_by_its_delay_only() {
        let mut lag = Lag::new(at(0), Instance(0));
        for step in 1..=1_000 {
            // The leader decides one per 10 ms, the replica holds what was decided 30 ms ago.
            lag.observe(at(step * 10), Instance(step), Instance(step.saturating_sub(3)));
        }
        assert_eq!(lag.instances(), 3);
        assert!(lag.behind_for() <= Duration::from_millis(80), "{:?}", lag.behind_for());
        lag.observe(at(20_000), Instance(1_000), Instance(1_000));
        assert_eq!((lag.instances(), lag.behind_for()), (0, Duration::ZERO));
    }
}
