//! Carries out what the worker wants: into the log's next append, onto links, onto connections, to other threads.

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::checkpoint_due::Due;
use coppice_core::replay::Entry;
use coppice_core::request::Origin;
use coppice_core::snapshot::TakenSnapshot;
use coppice_core::worker::Note;
use coppice_ordering::Record;

use super::*;
use crate::checkpoint::background::Job;
use crate::checkpoint::{CheckpointError, Written};
use crate::log::record::entry_bytes;
use crate::messages::ToControl;
use crate::metrics::TicketResult;

impl WorkerThread {
    #[inline]
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Persist { group, lsn, record } => self.persist(group, lsn, record),
            Effect::Trim(group, upto) => {
                self.append(Append { entry: Entry::Trimmed { group, upto }, lsn: None, lazy: true });
            }
            Effect::Checkpoint { group, number, taken, due } => self.write_checkpoint((group, number), *taken, due),
            Effect::Yield => self.bells.yielded.notify_one(),
            Effect::Full(is_full) => self.is_full = is_full,
            Effect::Watch => self.watch(),
            Effect::Send(node, envelope) => {
                if let Some(link) = self.links.get(&node) {
                    link.send(&envelope);
                }
            }
            Effect::SendMulticast(node, message) => {
                if let Some(link) = self.links.get(&node) {
                    link.send_multicast(&message);
                }
            }
            Effect::Reply { group, origin, reply } => self.answer(group, origin, reply),
            Effect::Part(part) => self.give_part(part),
            Effect::Worker(worker, message) => self.pass_on(worker, message),
            Effect::Controller(report) => self.shared.tell_control(ToControl::Report(report)),
            Effect::Leader(group, leader) => {
                if !self.shared.cluster.set_leader(group, leader) {
                    return;
                }
                // One that has no room for this takes turns anyway, and looks at each of them.
                self.others().for_each(|thread| _ = self.mailboxes.push(thread, Priority::Consensus, ToWorker::Look));
            }
            Effect::Note(group, note) => log(group, note),
            Effect::QueryEnded { result, took } => self.metrics.worker.ticket(
                match result {
                    worker::QueryResult::Completed => TicketResult::Completed,
                    worker::QueryResult::Aborted => TicketResult::Aborted,
                    worker::QueryResult::Refused => TicketResult::Refused,
                },
                took,
            ),
        }
    }

    fn persist(&mut self, group: PartitionId, lsn: coppice_ordering::Lsn, record: Record) {
        let lazy = record.is_lazy();
        match &record {
            Record::Promise { .. } => failpoint!("worker.promise"),
            Record::Accept { .. } => failpoint!("worker.vote"),
            Record::Learned { .. } => failpoint!("worker.learned"),
            Record::Decided { .. } | Record::Lease { .. } => {}
        }
        let entry = Entry::Group { group, record };
        self.worker.logged(group, entry_bytes(&entry) as u64);
        self.storage.appends.push(Append { entry, lsn: Some(lsn), lazy });
    }

    /// Has the thread for checkpoints write one.
    fn write_checkpoint(&mut self, (group, number): (PartitionId, u64), taken: TakenSnapshot, due: Due) {
        let mailboxes = self.mailboxes.clone();
        let (owner, instance) = (self.index, taken.head.instance);
        let done = move |written: Result<Written, CheckpointError>| {
            let written = told(group, instance, written);
            let finish = move |thread: &mut WorkerThread| thread.input(Input::Checkpointed { group, number, written });
            let mut input = ToWorker::Call(Box::new(finish));
            while let Err(back) = mailboxes.push(owner, Priority::Consensus, input) {
                input = back;
                std::thread::yield_now();
            }
        };
        let TakenSnapshot { head, blobs, tree } = taken;
        let job = Job { head, blobs, tree: tree.snapshot(), alone: due == Due::Alone, done: Box::new(done) };
        // A node that stops writes none.
        let checkpointer = self.storage.checkpointer.upgrade();
        if checkpointer.is_none_or(|checkpointer| checkpointer.submit(job).is_err()) {
            let written = told(group, instance, Err(CheckpointError::Busy(group)));
            self.input(Input::Checkpointed { group, number, written });
        }
    }

    /// Other nodes hear that this one lives, and the worker what was heard of them.
    fn watch(&mut self) {
        let fresh = self.links.iter().filter(|(_, link)| link.say_alive()).map(|(&node, _)| node).collect();
        self.input(Input::Heard { fresh, heard: self.shared.peers.heard_of() });
    }

    /// Something came from another node.
    pub(crate) fn heard(&self, node: NodeId) {
        self.shared.peers.heard(node, self.now(), false);
    }

    /// The process of a node has ended.
    pub(crate) fn tell_gone(&mut self, node: NodeId) {
        self.input(Input::Gone(node));
    }

    /// Appends something to the log, at the end of the turn.
    fn append(&mut self, append: Append) {
        self.storage.appends.push(append);
        self.bells.turn.want();
    }

    fn pass_on(&mut self, worker: usize, message: worker::Message) {
        let (for_clients, must_arrive) = (message.is_for_clients(), message.must_arrive());
        let priority = if for_clients { Priority::Client } else { Priority::Consensus };
        if must_arrive {
            let input = Box::new(move |thread: &mut WorkerThread| thread.input(Input::Worker(message)));
            return self.mailboxes.call(worker, input);
        }
        if let Err(ToWorker::Worker(message)) = self.mailboxes.push(worker, priority, ToWorker::Worker(message)) {
            if for_clients {
                self.metrics.worker.rejected(metrics::Queue::Mailbox);
            }
            self.input(Input::Undelivered(message));
        }
    }

    fn answer(&mut self, group: PartitionId, origin: Origin, reply: Reply) {
        match origin {
            Origin::Client { connection, stream, .. } => {
                let Some(connection) = self.connections.get(connection).cloned() else { return };
                connection.answer(self, group, stream, reply);
                failpoint!("worker.answered");
                self.touch_connection(&connection);
            }
            Origin::Node { number, .. } => {
                if let Some(waiting) = self.own.waiting.remove(&number) {
                    _ = waiting.send(reply);
                }
            }
            Origin::Collect { .. } | Origin::Nobody => {}
        }
    }

    /// A connection has something to write at the end of the turn.
    pub(crate) fn touch_connection(&mut self, connection: &Connection) {
        self.connections.touch(connection);
        self.bells.turn.want();
    }

    /// Gives a part to the client that asked, on whichever worker thread it is connected.
    pub(super) fn give_part(&mut self, part: Box<QueryPart>) {
        let Some((owner, id)) = self.shared.clients().newest(part.partition_query.client) else {
            return self.input(Input::Unclaimed(part));
        };
        if owner != self.index {
            // A client that gets no part asks again.
            _ = self.mailboxes.push(owner, Priority::Client, ToWorker::Part(part));
            return;
        }
        let Some(connection) = self.connections.get(id).cloned() else {
            return self.input(Input::Unclaimed(part));
        };
        if !connection.rights().part(&part.partition_query) {
            let partition = part.position.partition;
            return tracing::warn!(%partition, "a part of a query is withheld: its client may not read it");
        }
        connection.add_part(*part, self.now());
        self.touch_connection(&connection);
    }

    /// A client said hello on this worker thread; what it holds on all its connections.
    pub(crate) fn on_greeted(&mut self, client: ClientId, connection: u64) -> ClientBytes {
        let bytes = self.shared.clients().opened(client, (self.index, connection));
        self.input(Input::Greeted(client));
        bytes
    }

    /// The other worker threads of the node.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.index;
        (0..self.mailboxes.count()).filter(move |&thread| thread != own)
    }

    /// The node that a refusal points to.
    pub(crate) fn hint(&self, group: PartitionId, refusal: &Refusal) -> Option<NodeId> {
        self.worker.hint(group, refusal)
    }

    /// An origin for a request of the node itself; `reply` gets the answer.
    pub(crate) fn wait_for(&mut self, reply: tokio::sync::oneshot::Sender<Reply>) -> Origin {
        self.own.newest = self.own.newest.wrapping_add(1);
        self.own.waiting.insert(self.own.newest, reply);
        Origin::Node { worker: self.index as u16, number: self.own.newest }
    }
}

/// What came of a checkpoint, also for whoever reads the log.
fn told(
    partition: PartitionId,
    instance: coppice_ordering::Instance,
    written: Result<Written, CheckpointError>,
) -> worker::CheckpointOutcome {
    match written {
        Ok(Written { manifest, trim_upto }) => {
            tracing::debug!(%partition, %instance, bytes = manifest.bytes, "checkpoint written");
            worker::CheckpointOutcome::Done { bytes: manifest.bytes, trim_upto }
        }
        Err(CheckpointError::Present(..)) => worker::CheckpointOutcome::Present,
        Err(error) => {
            tracing::warn!(%partition, %error, "no checkpoint; the log keeps growing until there is one");
            worker::CheckpointOutcome::Failed
        }
    }
}

/// For whoever reads the log.
fn log(partition: PartitionId, note: Note) {
    match note {
        Note::Leads(ballot) => tracing::info!(%partition, %ballot, "this node leads"),
        Note::LeadsNoMore(ballot) => tracing::info!(%partition, %ballot, "this node leads no more"),
        Note::Follows(leader, ballot) => tracing::debug!(%partition, %ballot, leader = ?leader, "this node follows"),
        Note::Configured(_, configuration) => tracing::debug!(%partition, %configuration, "configuration decided"),
        Note::HasNoRounds(replica, ballot) => tracing::error!(
            %partition, %replica, %ballot,
            "the log holds a promise that no election made; replace this node"
        ),
        Note::TransferWhenFull(to) => {
            tracing::info!(%partition, %to, "disk or memory is full: leader transfer begins");
        }
        Note::TransferFailed(to) => tracing::debug!(%partition, %to, "leader transfer timed out"),
        Note::Tuned(account) => {
            let coppice_ordering::tuning::Account { tuning, choice, bottleneck, .. } = *account;
            let (command_bytes, cost) = (account.command_bytes, account.cost);
            let (round_trip_ms, flush_ms) = (account.round_trip_ms, account.flush_ms);
            tracing::debug!(
                %partition, ?tuning, ?choice, ?bottleneck, command_bytes, ?cost, round_trip_ms, flush_ms,
                "batches and window are set"
            );
        }
        Note::Placed(_) | Note::Moved | Note::Awaits(_) | Note::Coordinated(..) => {}
    }
}
