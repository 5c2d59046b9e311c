//! Whether a thread that has nothing to do looks for work for a while before it sleeps (`busy_poll`).
//!
//! Waking a sleeping core takes 15 us of the one that wakes it and 10 more until it runs, and a durable put wakes seven
//! threads one after the other. A thread that looks again and again finds its work at once; between two looks it gives
//! its core to whoever wants it. It looks only where the last wait of the same kind was a short one, so a node that
//! has little to do sleeps.

use std::time::Duration;

/// What is waited for. Each kind has its own habits: a vote comes soon, the next request perhaps not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Something is under way and will come back: a flush, a vote.
    Answer,
    /// Whatever others may want next.
    Request,
}

/// What one thread has learned of its waits.
#[derive(Clone, Debug)]
pub struct BusyPoll {
    limit: Duration,
    /// By [`Wait`]: the last one was no longer than `limit`.
    short: [bool; 2],
}

impl BusyPoll {
    /// Looks for `limit` at most; zero: never.
    pub fn new(limit: Duration) -> BusyPoll {
        BusyPoll { limit, short: [false; 2] }
    }

    /// How long to look before sleeping; zero: sleep at once.
    pub fn limit(&self, wait: Wait) -> Duration {
        if self.short[wait as usize] { self.limit } else { Duration::ZERO }
    }

    /// A wait has ended that took so long, looking or asleep.
    pub fn waited(&mut self, wait: Wait, took: Duration) {
        self.short[wait as usize] = took <= self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(200);

    #[test]
    fn a_thread_looks_after_a_short_wait_and_sleeps_after_a_long_one() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        assert_eq!(busy_poll.limit(Wait::Request), Duration::ZERO, "nothing is known yet");
        busy_poll.waited(Wait::Request, LIMIT);
        assert_eq!(busy_poll.limit(Wait::Request), LIMIT);
        busy_poll.waited(Wait::Request, LIMIT + Duration::from_nanos(1));
        assert_eq!(busy_poll.limit(Wait::Request), Duration::ZERO);
    }

    #[test]
    fn rare_requests_do_not_hide_that_their_answers_come_soon() {
        let mut busy_poll = BusyPoll::new(LIMIT);
        for _ in 0..3 {
            busy_poll.waited(Wait::Request, Duration::from_millis(50));
            busy_poll.waited(Wait::Answer, LIMIT / 2);
        }
        assert_eq!((busy_poll.limit(Wait::Answer), busy_poll.limit(Wait::Request)), (LIMIT, Duration::ZERO));
    }

    #[test]
    fn zero_never_looks() {
        let mut busy_poll = BusyPoll::new(Duration::ZERO);
        busy_poll.waited(Wait::Answer, Duration::ZERO);
        assert_eq!(busy_poll.limit(Wait::Answer), Duration::ZERO);
    }
}
