//! Who sends next, and when: closed loops wait for answers and think, open loops keep a schedule whatever the answers
//! do.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::random::Rng;
use crate::target::Nanos;
use crate::units::Think;

/// After an error a client of a closed loop waits this long, so that a dead cluster is not hammered by failures that
/// cost nothing.
const PAUSE_AFTER_ERROR: Nanos = 10_000_000;

/// Requests that a run did not come to are charged one by one up to so many: a second's work.
const UNTAKEN_MAX: u64 = 10_000_000;

/// A slot that may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub slot: u32,
    /// When it should have started.
    pub intended: Nanos,
}

/// How requests are paced, for one worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Each of `clients` has one request at a time and thinks between an answer and the next.
    Closed {
        /// Clients of this worker.
        clients: u32,
        /// Their pause.
        think: Think,
    },
    /// Requests are due at fixed times; at most `slots` are under way, and what is due then waits with its time
    /// running.
    Open {
        /// Requests per second of this worker.
        rate: f64,
        /// The first one is due then.
        offset: Nanos,
        /// The most requests under way.
        slots: u32,
    },
}

impl Pace {
    /// The most requests under way.
    pub fn slots(&self) -> u32 {
        match *self {
            Pace::Closed { clients, .. } => clients,
            Pace::Open { slots, .. } => slots,
        }
    }
}

/// The pacing of one worker.
#[derive(Debug)]
pub enum Pacing {
    /// See [`Pace::Closed`].
    Closed {
        /// Slots that may send at once.
        ready: VecDeque<u32>,
        /// Slots that think, in the order in which they may send.
        waiting: BinaryHeap<Reverse<(Nanos, u32)>>,
        /// The pause, drawn per request.
        think: Think,
        /// Draws pauses.
        rng: Rng,
    },
    /// See [`Pace::Open`].
    Open {
        /// Nanoseconds between two requests.
        gap: f64,
        /// The first one is due then.
        offset: Nanos,
        /// Requests taken so far.
        taken: u64,
        /// Slots without a request.
        free: Vec<u32>,
    },
}

fn draw(think: &Think, rng: &mut Rng) -> Nanos {
    if think.high.is_zero() {
        return 0;
    }
    let (low, high) = (think.low.as_nanos() as u64, think.high.as_nanos() as u64);
    low + rng.below(high - low + 1)
}

impl Pacing {
    /// At time 0; `seed` draws the pauses. Clients that think begin at an even moment of their first pause.
    pub fn new(pace: &Pace, seed: u64) -> Pacing {
        match *pace {
            Pace::Closed { clients, think } => {
                let mut rng = Rng::new(seed, 0x7061_6365);
                let waiting = (0..clients).map(|slot| Reverse((draw(&think, &mut rng), slot))).collect();
                Pacing::Closed { ready: VecDeque::new(), waiting, think, rng }
            }
            Pace::Open { rate, offset, slots } => {
                Pacing::Open { gap: 1e9 / rate, offset, taken: 0, free: (0..slots).rev().collect() }
            }
        }
    }

    fn due_at(gap: f64, offset: Nanos, number: u64) -> Nanos {
        offset + (number as f64 * gap) as Nanos
    }

    /// A slot that may send at `now`, if any.
    pub fn take(&mut self, now: Nanos) -> Option<Due> {
        match self {
            Pacing::Closed { ready, waiting, .. } => {
                let slot = match waiting.peek() {
                    Some(&Reverse((at, slot))) if at <= now => {
                        waiting.pop();
                        slot
                    }
                    _ => ready.pop_front()?,
                };
                // A closed loop has no schedule: its request starts when it is sent.
                Some(Due { slot, intended: now })
            }
            Pacing::Open { gap, offset, taken, free } => {
                let intended = Pacing::due_at(*gap, *offset, *taken);
                if intended > now {
                    return None;
                }
                let slot = free.pop()?;
                *taken += 1;
                Some(Due { slot, intended })
            }
        }
    }

    /// Gives a slot back.
    pub fn ended(&mut self, slot: u32, now: Nanos, ok: bool) {
        match self {
            Pacing::Closed { ready, waiting, think, rng } => {
                match draw(think, rng).max(if ok { 0 } else { PAUSE_AFTER_ERROR }) {
                    0 => ready.push_back(slot),
                    pause => waiting.push(Reverse((now + pause, slot))),
                }
            }
            Pacing::Open { free, .. } => free.push(slot),
        }
    }

    /// When the next request is due; `None`: not before one ends.
    pub fn next_due(&self) -> Option<Nanos> {
        match self {
            Pacing::Closed { ready, .. } if !ready.is_empty() => Some(0),
            Pacing::Closed { waiting, .. } => waiting.peek().map(|Reverse((at, _))| *at),
            Pacing::Open { gap, offset, taken, free } => {
                (!free.is_empty()).then(|| Pacing::due_at(*gap, *offset, *taken))
            }
        }
    }

    /// Open loop: when the requests were due that are due before `end` and not taken yet, and how many of them. If
    /// they are more than `UNTAKEN_MAX`, neighbours go together.
    pub fn untaken(&self, end: Nanos) -> impl Iterator<Item = (Nanos, u64)> + use<> {
        let (gap, offset, taken) = match *self {
            Pacing::Open { gap, offset, taken, .. } => (gap, offset, taken),
            Pacing::Closed { .. } => (1.0, Nanos::MAX / 2, 0),
        };
        let mut due = (end.saturating_sub(offset) as f64 / gap) as u64 + 2;
        // Rounding moves the last one by a place or two.
        while due > taken && Pacing::due_at(gap, offset, due - 1) >= end {
            due -= 1;
        }
        let step = due.saturating_sub(taken).div_ceil(UNTAKEN_MAX).max(1);
        let first = (taken..due).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        first.map(move |number| (Pacing::due_at(gap, offset, number), step.min(due - number)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_open_loop_keeps_its_schedule_while_slots_last() {
        let mut pacing = Pacing::new(&Pace::Open { rate: 1_000.0, offset: 500, slots: 2 }, 0);
        assert_eq!(pacing.take(499), None);
        assert_eq!(pacing.take(5_000_000), Some(Due { slot: 0, intended: 500 }));
        assert_eq!(pacing.take(5_000_000), Some(Due { slot: 1, intended: 1_000_500 }));
        assert_eq!((pacing.take(5_000_000), pacing.next_due()), (None, None));
        pacing.ended(1, 6_000_000, true);
        assert_eq!(pacing.take(6_000_000), Some(Due { slot: 1, intended: 2_000_500 }));
        // Due before 10 ms: 0.0005, 1.0005, .. 9.0005 ms; three are taken.
        assert_eq!(pacing.untaken(10_000_000).collect::<Vec<_>>()[..2], [(3_000_500, 1), (4_000_500, 1)]);
        assert_eq!(pacing.untaken(10_000_000).count(), 7);
    }

    /// A rate of 10^9 took a minute to count what it had not sent in two seconds.
    #[test]
    fn very_many_that_were_never_sent_are_counted_together() {
        let pacing = Pacing::new(&Pace::Open { rate: 1e9, offset: 7, slots: 1 }, 0);
        let untaken: Vec<_> = pacing.untaken(2_000_000_007).collect();
        assert!(untaken.len() as u64 <= UNTAKEN_MAX, "{}", untaken.len());
        assert_eq!(untaken.iter().map(|(_, count)| count).sum::<u64>(), 2_000_000_000);
        assert!(untaken.last().is_some_and(|(due, _)| *due < 2_000_000_007));
    }

    #[test]
    fn a_closed_loop_thinks_after_the_answer() {
        let think = Think { low: Duration::from_millis(1), high: Duration::from_millis(3) };
        let mut pacing = Pacing::new(&Pace::Closed { clients: 1, think }, 9);
        let first = pacing.next_due().unwrap();
        assert_eq!(pacing.take(first).unwrap().intended, first);
        assert_eq!(pacing.next_due(), None);
        pacing.ended(0, 100_000_000, true);
        assert!((101_000_000..=103_000_000).contains(&pacing.next_due().unwrap()));
    }

    #[test]
    fn errors_slow_a_closed_loop_down() {
        let mut pacing = Pacing::new(&Pace::Closed { clients: 1, think: Think::NONE }, 9);
        pacing.take(0).unwrap();
        pacing.ended(0, 5, false);
        assert_eq!(pacing.next_due(), Some(5 + PAUSE_AFTER_ERROR));
    }
}
