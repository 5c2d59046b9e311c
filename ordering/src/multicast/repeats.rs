//! When and how many of a partition's tickets are sent again that it has not placed (protocol.md 4).
//!
//! Time is the coordinator's. This file knows no tickets but their numbers.

use std::time::Duration;

use crate::ids::Time;

/// Places sent again to one partition at a time, oldest first: it needs them in this order anyway.
pub(super) const REPEATS_MAX: usize = 64;

/// A first wait is long enough if it is so many times what a ticket takes.
const WAIT_PER_TICKET: u32 = 2;

/// How soon a `Place` that is not answered is sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The first time, where the last ticket was placed in time.
    pub first: Duration,
    /// Waits double from one repetition to the next up to this.
    pub longest: Duration,
    /// The first wait for a partition that places too late doubles up to this.
    pub first_max: Duration,
}

/// The repetitions to one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Repeats {
    /// The next one.
    pub at: Time,
    /// Doubles with every repetition, until something is placed.
    wait: Duration,
    /// How often the first wait was doubled. What comes after a repetition may answer either sending, so no time is
    /// measured by it; the next ticket waits twice as long instead (Karn's algorithm; RFC 6298, 3 and 5.5). Two tickets
    /// in a row that were placed much sooner take that back: one may be luck, where disks are quick and slow by turns.
    doublings: u32,
    /// How long the last placed ticket took, if it was sent once.
    took: Option<Duration>,
    /// Tickets up to this one went out before the last doubling.
    doubled_upto: u64,
    /// How many of the oldest the last repetition sent, 0 if nothing was repeated since all was placed. What comes
    /// before the one that it follows does not count (protocol.md 4, step 3) and takes room at a full leader: a
    /// repetition by time is the oldest alone, and once all that a repetition sent is placed, the next sends twice as
    /// many.
    burst: usize,
    /// The newest ticket that the last repetition sent.
    burst_upto: u64,
}

impl Repeats {
    /// Something was sent, or placed: the wait begins anew.
    pub fn restart(&mut self, now: Time, pace: Pace) {
        self.wait = self.first_wait(pace);
        self.at = now + self.wait;
    }

    fn first_wait(&self, pace: Pace) -> Duration {
        pace.first.saturating_mul(1 << self.doublings).min(pace.first_max).max(pace.first)
    }

    /// It is time: the oldest goes out, and the next wait is twice as long.
    pub fn by_time(&mut self, now: Time, pace: Pace) -> usize {
        self.wait = (2 * self.wait).min(pace.longest).max(self.wait);
        self.at = now + self.wait;
        self.burst = 1;
        self.burst
    }

    /// These went out again, up to this ticket.
    pub fn sent(&mut self, n: u64) {
        self.burst_upto = n;
    }

    /// Ticket `n` was placed, so long after it was sent if it was sent once; `newest` is the last one that went out.
    pub fn learn(&mut self, n: u64, took: Option<Duration>, newest: u64, pace: Pace) {
        let before = std::mem::replace(&mut self.took, took);
        match (took, before) {
            (None, _)
                if n > self.doubled_upto && self.first_wait(pace) < pace.first_max && !mutant!(place_wait_fixed) =>
            {
                (self.doublings, self.doubled_upto) = (self.doublings + 1, newest);
            }
            (Some(_), _) if mutant!(place_wait_by_luck) => self.doublings = 0,
            (Some(took), Some(before)) => {
                let enough = WAIT_PER_TICKET * took.max(before);
                while self.doublings > 0 && self.first_wait(pace) >= 2 * enough {
                    self.doublings -= 1;
                }
            }
            _ => {}
        }
    }

    /// All is placed up to `n`. How many of those that are `left` go out at once: their turn may have come just now.
    pub fn placed(&mut self, n: u64, left: usize) -> usize {
        self.burst = match self.burst {
            _ if left == 0 => 0,
            0 => 0,
            all if n >= self.burst_upto => (2 * all).min(REPEATS_MAX),
            _ => 1,
        };
        self.burst
    }
}
