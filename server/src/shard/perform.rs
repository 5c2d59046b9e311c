//! Carries out what the worker wants: into the log's next append, onto links, onto connections, to other threads.

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::ids;
use coppice_core::replay::Entry;
use coppice_core::request::Origin;
use coppice_core::scan::RangeJob;
use coppice_core::worker::Note;
use coppice_ordering::Record;

use super::*;
use crate::control::ToControl;
use crate::log::record::entry_bytes;
use crate::metrics::TicketResult;

impl Shard {
    #[inline]
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Persist { group, lsn, record } => self.persist(group, lsn, record),
            Effect::Send(node, envelope) => {
                if let Some(link) = self.links.get(&node) {
                    link.send(&envelope);
                }
            }
            Effect::Post(node, letter) => {
                if let Some(link) = self.links.get(&node) {
                    link.send_letter(&letter);
                }
            }
            Effect::Reply { group, origin, reply } => self.answer(group, origin, reply),
            Effect::Part(part) => self.give_part(part),
            Effect::Worker(worker, message) => self.pass_on(worker, message),
            Effect::Controller(report) => self.shared.tell_control(ToControl::Report(report)),
            Effect::Leader(group, leader) => {
                if !self.shared.set_leader(group, leader) {
                    return;
                }
                let others = (0..self.shared.shards()).filter(|&shard| shard != self.index);
                // One that has no room for this takes turns anyway, and looks at each of them.
                others.for_each(|shard| _ = self.shared.sender(shard).push(Lane::Consensus, ToShard::Look));
            }
            Effect::Note(group, note) => log(group, note),
            Effect::QueryEnded { result, took } => self.metrics.ticket(
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
            Record::Promise { .. } => failpoint!("shard.promise"),
            Record::Accept { .. } => failpoint!("shard.vote"),
            Record::Learned { .. } => failpoint!("shard.learned"),
            Record::Decided { .. } | Record::Lease { .. } => {}
        }
        let entry = Entry::Group { group, record };
        if let Some(group) = self.worker.groups_mut().get_mut(&group) {
            group.checkpoints.logged_bytes += entry_bytes(&entry) as u64;
        }
        self.appends.push(Append { entry, lsn: Some(lsn), lazy });
    }

    /// Appends something of the driver's own to the log, at the end of the turn.
    pub(crate) fn append(&mut self, append: Append) {
        self.appends.push(append);
        self.turn.want();
    }

    fn pass_on(&mut self, worker: usize, message: worker::Message) {
        let (for_clients, must_arrive) = (message.is_for_clients(), message.must_arrive());
        let lane = if for_clients { Lane::Client } else { Lane::Consensus };
        if must_arrive {
            let input = Box::new(move |shard: &mut Shard| shard.input(Input::Worker(message)));
            return crate::control::push_call(&Arc::clone(&self.shared), worker, input);
        }
        if let Err(ToShard::Worker(message)) = self.shared.sender(worker).push(lane, ToShard::Worker(message)) {
            if for_clients {
                self.metrics.busy(metrics::Queue::Mailbox);
            }
            self.input(Input::Undelivered(message));
        }
    }

    fn answer(&mut self, group: PartitionId, origin: Origin, reply: Reply) {
        if origin.is_own() {
            if let Some(waiting) = self.own.remove(&origin.stream) {
                _ = waiting.send(reply);
            }
            return;
        }
        let Some(connection) = self.connections.get(&origin.connection) else { return };
        let connection = Rc::clone(connection);
        connection.answer(self, group, origin, reply);
        failpoint!("shard.answered");
        self.touch_connection(&connection);
    }

    /// A connection has something to write at the end of the turn.
    pub(crate) fn touch_connection(&mut self, connection: &Connection) {
        if connection.mark_dirty() {
            self.dirty.push(connection.id());
        }
        self.turn.want();
    }

    /// Gives a part to the client that asked, on whichever shard it is connected.
    pub(super) fn give_part(&mut self, part: Box<QueryPart>) {
        let Some(id) = self.shared.clients().newest(part.share.client) else {
            return self.input(Input::Unclaimed(part));
        };
        let shard = Origin { connection: id, stream: 0 }.shard();
        if shard != self.index {
            // A client that gets no part asks again.
            _ = self.shared.sender(shard).push(Lane::Client, ToShard::Part(part));
            return;
        }
        let Some(connection) = self.connections.get(&id).cloned() else {
            return self.input(Input::Unclaimed(part));
        };
        let (query, partition) = (part.share.query, part.position.partition);
        if !crate::net::public::may_give(&connection, &part.share, partition) {
            return;
        }
        let QueryPart { ticket, position, share, cursor } = *part;
        let job = RangeJob::of_query(position, ids::ticket(ticket), cursor, &share);
        connection.add_part(query, partition, job);
        self.touch_connection(&connection);
    }

    /// A client said hello on this shard; what it holds on all its connections.
    pub(crate) fn on_greeted(&mut self, client: ClientId, connection: u64) -> ClientBytes {
        let bytes = self.shared.clients().opened(client, connection);
        self.input(Input::Greeted(client));
        for shard in (0..self.shared.shards()).filter(|&shard| shard != self.index) {
            let call = ToShard::Call(Box::new(move |shard| shard.input(Input::Greeted(client))));
            _ = self.shared.sender(shard).push(Lane::Client, call);
        }
        bytes
    }

    /// The node that a refusal points to.
    pub(crate) fn hint(&self, group: PartitionId, refusal: &Refusal) -> Option<NodeId> {
        self.worker.hint(group, refusal)
    }

    /// An origin for a request of the node itself; `reply` gets the answer.
    pub(crate) fn wait_for(&mut self, reply: tokio::sync::oneshot::Sender<Reply>) -> Origin {
        self.next_own = self.next_own.wrapping_add(1);
        let origin = Origin::own(self.index, self.next_own);
        self.own.insert(self.next_own, reply);
        origin
    }
}

/// For whoever reads the log.
fn log(partition: PartitionId, note: Note) {
    match note {
        Note::Leads(ballot) => tracing::debug!(%partition, %ballot, "this node leads"),
        Note::Follows(leader, ballot) => tracing::debug!(%partition, %ballot, leader = ?leader, "this node follows"),
        Note::Configured(_, configuration) => tracing::info!(%partition, %configuration, "configuration decided"),
        Note::NoRoom(to) => {
            tracing::info!(%partition, %to, "disk or memory is full: leadership is to be handed over");
        }
        Note::TransferFailed(to) => tracing::info!(%partition, %to, "handover did not happen in time"),
        Note::Placed(_) | Note::Moved | Note::Awaits(_) | Note::Coordinated(..) => {}
    }
}
