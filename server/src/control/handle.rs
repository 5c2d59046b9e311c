//! What the tasks of the control thread have at hand, and how they get back to it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Control;
use crate::messages::ToControl;
use crate::shared::Shared;
use crate::worker_thread::{Mailboxes, WorkerThread};

/// Runs on the control thread, with everything at hand.
pub type Call = Box<dyn FnOnce(&mut Control) + Send>;

/// What comes to the control task, in the order in which it was sent.
pub enum Event {
    /// Of the other threads.
    Message(ToControl),
    /// Of a task of the control thread.
    Call(Call),
}

/// The node, as the tasks of the control thread see it: what its threads share, its worker threads, and the control
/// thread itself.
pub struct Handle {
    shared: Arc<Shared>,
    /// The ways into the worker threads.
    pub workers: Mailboxes,
    events: mpsc::UnboundedSender<Event>,
}

impl Deref for Handle {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Handle {
    /// Of this node, whose control task takes what comes to `events`.
    pub fn new(shared: Arc<Shared>, workers: Mailboxes, events: mpsc::UnboundedSender<Event>) -> Arc<Handle> {
        Arc::new(Handle { shared, workers, events })
    }

    /// Runs `call` on the control thread. One that comes after its end does nothing.
    pub fn call(&self, call: impl FnOnce(&mut Control) + Send + 'static) {
        _ = self.events.send(Event::Call(Box::new(call)));
    }

    /// What `call` finds out on the control thread; none: the node stops.
    pub async fn ask<T: Send + 'static>(&self, call: impl FnOnce(&mut Control) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        // The receiver is gone if the verb's deadline has passed.
        self.call(move |control| _ = sender.send(call(control)));
        receiver.await.ok()
    }

    /// Tells the controller something.
    pub fn tell(&self, input: coppice_core::controller::Input) {
        self.call(move |control| control.tell(input));
    }

    /// What `ask` finds on the worker thread that owns `group`; none: it does not answer in time.
    pub async fn ask_owner<T: Send + 'static>(
        &self,
        group: coppice_client::wire::PartitionId,
        timeout: Duration,
        ask: impl FnOnce(&mut WorkerThread) -> T + Send + 'static,
    ) -> Option<T> {
        self.workers.ask(self.workers.owner(group), timeout, ask).await
    }
}
