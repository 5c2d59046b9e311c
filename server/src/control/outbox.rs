//! What the control task tells the shards: rare, and in order. A mailbox that is full is tried again shortly.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use crate::mailbox::Lane;
use crate::shard::ToShard;
use crate::shared::Shared;

/// Before the next try.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// What found no room yet, for each shard.
pub(super) struct Outbox(RefCell<Vec<VecDeque<ToShard>>>);

impl Outbox {
    pub(super) fn new(shards: usize) -> Outbox {
        Outbox(RefCell::new((0..shards).map(|_| VecDeque::new()).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().iter().all(VecDeque::is_empty)
    }

    /// For a shard, behind everything that waits for it.
    pub(super) fn put(&self, shared: &Shared, shard: usize, message: ToShard) {
        self.0.borrow_mut()[shard].push_back(message);
        self.send(shared);
    }

    /// Sends what there is room for.
    pub(super) fn send(&self, shared: &Shared) {
        for (shard, waiting) in self.0.borrow_mut().iter_mut().enumerate() {
            while let Some(message) = waiting.pop_front() {
                if let Err(back) = shared.sender(shard).push(Lane::Consensus, message) {
                    waiting.push_front(back);
                    break;
                }
            }
        }
    }
}
