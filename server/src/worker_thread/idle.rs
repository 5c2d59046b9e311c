//! A worker thread that has ended a turn looks for the next one before it sleeps, where that pays (`crate::busy_poll`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use tokio::sync::Notify;

use super::WorkerThread;
use crate::busy_poll::{BusyPoll, Wait};

/// What a worker thread remembers of its waits.
#[derive(Debug)]
pub(super) struct IdleWaits {
    busy_poll: BusyPoll,
    /// Rung at the end of a turn that did something.
    bell: Rc<Notify>,
    /// Turns that did something. Heartbeats and timers come without end, and nobody waits for what they bring.
    turns: u64,
    /// This turn is one.
    worked: bool,
    /// Something was given to the log, and nothing has become durable since.
    flushing: bool,
    /// What is waited for, since when, and what had run speculatively until then.
    resting: Option<(Wait, Clock, Duration)>,
    /// Time spent on batches that ran speculatively so far: it passes while the thread waits, and is not lost.
    ran: Duration,
    /// Time spent looking so far.
    looked: Duration,
}

impl IdleWaits {
    pub(super) fn new(limit: Duration) -> IdleWaits {
        let (bell, busy_poll) = (Rc::new(Notify::new()), BusyPoll::new(limit));
        let (ran, looked) = (Duration::ZERO, Duration::ZERO);
        IdleWaits { busy_poll, bell, turns: 0, worked: false, flushing: false, resting: None, ran, looked }
    }

    /// This turn answers somebody.
    pub(super) fn answered(&mut self) {
        self.worked = true;
    }

    /// This turn gives the log something to flush.
    pub(super) fn appended(&mut self) {
        (self.worked, self.flushing) = (true, true);
    }

    /// In this turn something became durable.
    pub(super) fn flushed(&mut self) {
        (self.worked, self.flushing) = (true, false);
    }

    /// A batch ran speculatively for so long.
    pub(super) fn ran(&mut self, took: Duration) {
        self.ran += took;
    }

    /// A turn ends.
    pub(super) fn end_turn(&mut self) {
        if !std::mem::take(&mut self.worked) {
            return;
        }
        self.turns += 1;
        if let Some((wait, since, ran)) = self.resting.take() {
            self.busy_poll.waited(wait, since.elapsed().saturating_sub(self.ran - ran));
        }
        self.bell.notify_one();
    }

    /// A wait begins; `answers`: a batch is under way. How long to look for its end, and the turns until now.
    fn rest(&mut self, answers: bool) -> (Duration, u64) {
        let wait = if answers || self.flushing { Wait::Answer } else { Wait::Request };
        self.resting = Some((wait, Clock::now(), self.ran));
        (self.busy_poll.limit(wait), self.turns)
    }

    /// Time spent looking so far: the thread was awake, and had nothing to do.
    pub(super) fn looked(&self) -> Duration {
        self.looked
    }
}

/// A wait begins: see [`IdleWaits::rest`].
fn rest(thread: &mut WorkerThread) -> (Duration, u64) {
    let answers = thread.worker.groups().values().any(|group| group.replica.paxos().in_flight().0 > 0);
    thread.idle.rest(answers)
}

/// Keeps the thread awake after turns that did something, for as long as that pays.
pub(super) async fn poll(thread: Rc<RefCell<WorkerThread>>) {
    let bell = Rc::clone(&thread.borrow().idle.bell);
    loop {
        bell.notified().await;
        let (limit, turns) = rest(&mut thread.borrow_mut());
        if limit.is_zero() {
            continue;
        }
        let (begun, ran) = (Clock::now(), thread.borrow().idle.ran);
        let mut looked = Duration::ZERO;
        loop {
            // The event loop looks at its sockets, and all tasks that are ready run.
            tokio::task::yield_now().await;
            let idle = &thread.borrow().idle;
            if idle.turns != turns {
                break;
            }
            looked = begun.elapsed().saturating_sub(idle.ran - ran);
            if looked >= limit {
                break;
            }
            std::thread::yield_now();
        }
        let mut thread = thread.borrow_mut();
        thread.idle.looked += looked;
        thread.shared.looked(looked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn rested(idle: &mut IdleWaits, answers: bool) -> Duration {
        idle.end_turn();
        idle.rest(answers).0
    }

    #[test]
    fn turns_in_which_nobody_was_served_end_no_wait() {
        let mut idle = IdleWaits::new(LIMIT);
        idle.answered();
        assert_eq!(rested(&mut idle, false), Duration::ZERO);
        // A heartbeat, however soon it comes.
        idle.end_turn();
        assert_eq!((idle.turns, idle.busy_poll.limit(Wait::Request)), (1, Duration::ZERO));
        idle.answered();
        assert_eq!(rested(&mut idle, false), LIMIT, "the last wait was a short one");
    }

    #[test]
    fn a_follower_waits_for_its_flush_as_a_leader_for_its_votes() {
        for leads in [false, true] {
            let mut idle = IdleWaits::new(LIMIT);
            idle.appended();
            assert_eq!(rested(&mut idle, leads), Duration::ZERO);
            idle.flushed();
            assert_eq!(rested(&mut idle, false), Duration::ZERO, "what others may want is another wait");
            idle.appended();
            assert_eq!(rested(&mut idle, leads), LIMIT);
        }
    }
}
