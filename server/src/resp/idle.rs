//! A thread of the RESP port that has nothing to do looks for work before it sleeps, where that pays
//! (`crate::busy_poll`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Thread;
use crate::busy_poll::{BusyPoll, Wait};

/// What a thread remembers of its waits.
pub struct Idle {
    busy_poll: RefCell<BusyPoll>,
    bell: Notify,
    /// Turns of connections.
    turns: Cell<u64>,
    /// Since when nothing has happened, once somebody looked.
    resting: Cell<Option<Instant>>,
}

impl Idle {
    pub fn new(limit: Duration) -> Idle {
        Idle {
            busy_poll: RefCell::new(BusyPoll::new(limit)),
            bell: Notify::new(),
            turns: Cell::new(0),
            resting: Cell::new(None),
        }
    }

    /// A connection had a turn.
    pub fn end_turn(&self) {
        self.turns.set(self.turns.get() + 1);
        if let Some(since) = self.resting.take() {
            self.busy_poll.borrow_mut().waited(Wait::Request, since.elapsed());
        }
        self.bell.notify_one();
    }
}

/// Keeps the thread awake after turns, for as long as that pays.
pub async fn poll(thread: Rc<Thread>) {
    let idle = &thread.idle;
    loop {
        idle.bell.notified().await;
        let begun = Instant::now();
        idle.resting.set(Some(begun));
        let limit = idle.busy_poll.borrow().limit(Wait::Request);
        let turns = idle.turns.get();
        while begun.elapsed() < limit {
            // The event loop looks at its sockets, and all tasks that are ready run.
            tokio::task::yield_now().await;
            if idle.turns.get() != turns {
                break;
            }
            std::thread::yield_now();
        }
    }
}
