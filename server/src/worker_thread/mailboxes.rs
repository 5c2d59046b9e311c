//! The ways into the worker threads of a node: a bounded mailbox each, and beside it how far the log is durable.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::PartitionId;
use coppice_core::worker;
use coppice_ordering::Lsn;
use tokio::sync::oneshot;

use super::{ToWorker, WorkerThread};
use crate::durable::DurableUpto;
use crate::mailbox::{Priority, Sender};

/// Runs on a worker thread, between inputs.
pub type Call = Box<dyn FnOnce(&mut WorkerThread) + Send>;

/// Of all worker threads. Cheap to clone.
#[derive(Clone)]
pub struct Mailboxes(Arc<[Mailbox]>);

struct Mailbox {
    sender: Sender<ToWorker>,
    durable: DurableUpto,
}

impl Mailboxes {
    /// Of threads that receive from these.
    pub fn new(senders: Vec<Sender<ToWorker>>) -> Mailboxes {
        Mailboxes(senders.into_iter().map(|sender| Mailbox { sender, durable: DurableUpto::default() }).collect())
    }

    /// How many worker threads there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The thread that owns the replica of `group`.
    pub fn owner(&self, group: PartitionId) -> usize {
        worker::owner(group, self.count())
    }

    /// Messages that wait for a thread.
    pub fn waiting(&self, thread: usize) -> usize {
        self.0[thread].sender.len()
    }

    /// Tells a thread something.
    ///
    /// # Errors
    /// Gives `message` back when that queue of its mailbox is full.
    pub fn push(&self, thread: usize, priority: Priority, message: ToWorker) -> Result<(), ToWorker> {
        self.0[thread].sender.push(priority, message)
    }

    /// Runs `call` on a thread. It is rare, so a mailbox that is full is waited for.
    pub fn call(&self, thread: usize, call: Call) {
        let mut message = ToWorker::Call(call);
        for _ in 0..1_000 {
            match self.push(thread, Priority::Consensus, message) {
                Ok(()) => return,
                Err(back) => message = back,
            }
            std::thread::yield_now();
        }
        let mailboxes = self.clone();
        crate::task::spawn(async move {
            while let Err(back) = mailboxes.push(thread, Priority::Consensus, message) {
                message = back;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// What `ask` finds on a thread; none: it does not answer in time.
    pub async fn ask<T: Send + 'static>(
        &self,
        thread: usize,
        timeout: Duration,
        ask: impl FnOnce(&mut WorkerThread) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.call(thread, Box::new(move |thread| _ = sender.send(ask(thread))));
        tokio::time::timeout(timeout, receiver).await.ok()?.ok()
    }

    /// The log is durable up to these positions of groups that `thread` owns; none is left in `raised`.
    pub fn raise_durable(&self, thread: usize, raised: &mut Vec<(PartitionId, Lsn)>) {
        self.0[thread].durable.raise(raised);
        self.0[thread].sender.ring();
    }

    /// Takes how far the log is durable for the groups that `thread` owns, as it has not heard yet.
    pub fn take_durable(&self, thread: usize) -> Vec<(PartitionId, Lsn)> {
        self.0[thread].durable.take()
    }
}
