//! Batches that run ahead of their decision (papers.md D7), when what they are ordered by is on its way and while
//! nothing else is to be done: whoever is busy gains nothing by it, and keeps what has come waiting.

use std::cell::RefCell;
use std::rc::Rc;

use coppice_client::wire::PartitionId;
use coppice_core::replica::Input;
use tokio::sync::Notify;

use super::Shard;

/// What a shard remembers of them.
#[derive(Default)]
pub(super) struct Ahead {
    /// Rung at the end of a turn that leaves batches to run ahead.
    bell: Rc<Notify>,
    /// The group that ran last: they take turns.
    last: Option<PartitionId>,
}

impl Shard {
    /// At the end of a turn.
    pub(super) fn look_ahead(&self) {
        if self.groups.values().any(|group| group.replica.has_ahead()) {
            self.ahead.bell.notify_one();
        }
    }

    /// Runs what one group has to run ahead.
    fn run_one_ahead(&mut self) {
        let waiting = || self.groups.iter().filter(|(_, group)| group.replica.has_ahead()).map(|(&id, _)| id);
        let next = waiting().find(|&id| self.ahead.last.is_none_or(|last| id > last)).or_else(|| waiting().next());
        let Some(id) = next else { return };
        self.ahead.last = Some(id);
        let begun = self.step_begins();
        self.step(id, Input::RunAhead);
        let took = self.step_ends(begun);
        self.look.ran(took);
    }
}

/// Runs batches ahead after turns that leave some.
pub(super) async fn run_ahead(shard: Rc<RefCell<Shard>>) {
    let bell = Rc::clone(&shard.borrow().ahead.bell);
    loop {
        bell.notified().await;
        // The event loop looks at its sockets and tasks take what they have; then those run that other threads woke.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let mut shard = shard.borrow_mut();
        // If a turn is wanted, its end rings again; so does that of the turn which a run wants. What is decided does
        // not wait for a worker that has nothing else to do.
        if !shard.turn.is_wanted() || shard.groups.values().any(|group| group.replica.is_behind()) {
            shard.run_one_ahead();
        }
    }
}
