//! What the control task tells the worker threads: rare, and in order. A mailbox that is full is tried again shortly.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use coppice_client::wire::PartitionId;

use crate::mailbox::Priority;
use crate::worker_thread::{Mailboxes, ToWorker, WorkerThread};

/// Before the next try.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// What found no room yet, for each worker thread.
pub(super) struct Outbox {
    mailboxes: Mailboxes,
    waiting: RefCell<Vec<VecDeque<ToWorker>>>,
}

impl Outbox {
    pub(super) fn new(mailboxes: Mailboxes) -> Outbox {
        let waiting = RefCell::new((0..mailboxes.count()).map(|_| VecDeque::new()).collect());
        Outbox { mailboxes, waiting }
    }

    /// Runs `call` on the worker thread that owns `group`.
    pub(super) fn on_owner(&self, group: PartitionId, call: impl FnOnce(&mut WorkerThread) + Send + 'static) {
        self.on_thread(self.mailboxes.owner(group), call);
    }

    /// Runs a call on every worker thread.
    pub(super) fn on_all<F: FnOnce(&mut WorkerThread) + Send + 'static>(&self, call: impl Fn() -> F) {
        (0..self.mailboxes.count()).for_each(|thread| self.on_thread(thread, call()));
    }

    /// Runs `call` on this worker thread, behind everything that it was told before.
    pub(super) fn on_thread(&self, thread: usize, call: impl FnOnce(&mut WorkerThread) + Send + 'static) {
        self.waiting.borrow_mut()[thread].push_back(ToWorker::Call(Box::new(call)));
        self.send();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().iter().all(VecDeque::is_empty)
    }

    /// Sends what there is room for.
    pub(super) fn send(&self) {
        for (thread, waiting) in self.waiting.borrow_mut().iter_mut().enumerate() {
            while let Some(message) = waiting.pop_front() {
                if let Err(back) = self.mailboxes.push(thread, Priority::Consensus, message) {
                    waiting.push_front(back);
                    break;
                }
            }
        }
    }
}
