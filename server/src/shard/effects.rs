//! Carries out what replicas ask for: into the log's next append, onto links, onto connections.

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::replay::Entry;
use coppice_core::replica::Effect;
use coppice_core::request::{Origin, Refusal, Reply};
use coppice_core::wire::peer::Envelope;
use coppice_ordering::{Record, ReplicaId};

use super::{Shard, ToShard};
use crate::control::ToControl;
use crate::log::Append;
use crate::log::record::entry_bytes;
use crate::mailbox::Lane;

impl Shard {
    /// Carries out `effects` of the group `id`, in order; leaves the vector empty.
    pub(super) fn carry_out(&mut self, id: PartitionId, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Persist { lsn, record } => {
                    let lazy = record.is_lazy();
                    match &record {
                        Record::Promise { .. } => failpoint!("shard.promise"),
                        Record::Accept { .. } => failpoint!("shard.vote"),
                        Record::Learned { .. } => failpoint!("shard.learned"),
                        Record::Decided { .. } | Record::Lease { .. } => {}
                    }
                    let entry = Entry::Group { group: PartitionId(id.0), record };
                    self.note_logged(id, &entry);
                    self.appends.push(Append { entry, lsn: Some(lsn), lazy });
                }
                Effect::Send { to, message } => self.send(id, to, message),
                Effect::Reply { origin, reply } => self.reply(id, origin, reply),
                Effect::Leading { ballot } => {
                    tracing::debug!(partition = %id, %ballot, "this node leads");
                    self.on_role(id);
                    if id == PartitionId::DIRECTORY {
                        self.begin_coordinating(ballot);
                    }
                    failpoint!("shard.leads");
                }
                Effect::Following { leader, ballot } => {
                    tracing::debug!(partition = %id, %ballot, leader = ?leader, "this node follows");
                    self.on_role(id);
                    if id == PartitionId::DIRECTORY {
                        self.end_coordinating();
                    }
                    failpoint!("shard.follows");
                }
                Effect::Moved { mark } => self.on_moved(id, mark),
                Effect::Awaits(awaited) => self.on_awaits(awaited),
                Effect::DirectoryChanged => {
                    self.on_directory_changed(id);
                    self.on_decided_map();
                }
                Effect::Placed { ticket } => self.on_placed(id, ticket),
                Effect::Part(part) => self.give_part(part),
                Effect::Confirmed(token) => self.coordinate(coppice_ordering::multicast::Input::Confirmed(token)),
                Effect::NeedSnapshot { from, instance } => self.on_need_snapshot(id, from, instance),
                Effect::Configured { configuration, .. } => {
                    tracing::info!(partition = %id, %configuration, "configuration decided");
                }
                Effect::Dismissed => self.shared.tell_control(ToControl::Dismissed { group: id }),
                Effect::HandoverFailed { to } => {
                    tracing::info!(partition = %id, %to, "handover did not happen in time")
                }
            }
        }
    }

    fn send(&mut self, id: PartitionId, to: ReplicaId, message: coppice_ordering::Message) {
        if !self.shared.vetting.may_speak() {
            return;
        }
        let Some(group) = self.groups.get(&id) else { return };
        let Some(link) = group.nodes.get(&to).and_then(|node| self.links.get(node)) else { return };
        link.send(&Envelope { group: id.0, to, from: group.me, message });
    }

    /// Answers a request, here or through the shard that holds its connection.
    pub(crate) fn reply(&mut self, id: PartitionId, origin: Origin, reply: Reply) {
        if origin.is_nobody() {
            return;
        }
        let shard = origin.shard();
        if shard != self.index {
            // A client that hears nothing repeats; what cannot be queued now is not worth holding the shard up for.
            let input = ToShard::Reply { group: id, origin, reply };
            if self.shared.sender(shard).push(Lane::Client, input).is_err() {
                self.metrics.busy(crate::metrics::Queue::Mailbox);
            }
            return;
        }
        if let Some(request) = origin.gathers() {
            return self.on_gathered(request, id, reply);
        }
        if origin.is_own() {
            if let Some(waiting) = self.own.remove(&origin.stream) {
                _ = waiting.send(reply);
            }
            return;
        }
        let Some(connection) = self.connections.get(&origin.connection) else { return };
        let connection = std::rc::Rc::clone(connection);
        connection.answer(self, id, origin, reply);
        failpoint!("shard.answered");
        if connection.mark_dirty() {
            self.dirty.push(origin.connection);
        }
        self.turn.want();
    }

    /// A connection has something to write at the end of the turn.
    pub(crate) fn touch_connection(&mut self, connection: &crate::net::public::Connection) {
        if connection.mark_dirty() {
            self.dirty.push(connection.id());
        }
        self.turn.want();
    }

    pub(super) fn on_role(&mut self, id: PartitionId) {
        let leader = self.groups.get(&id).and_then(|group| group.leader_node());
        self.shared.set_leader(id, leader);
        self.on_new_leader(id);
        self.shared.tell_control(ToControl::Role { group: id });
    }

    /// The node that a refusal points to.
    pub(crate) fn hint(&self, id: PartitionId, refusal: &Refusal) -> Option<NodeId> {
        let Refusal::NotLeader { hint } = refusal else { return None };
        let group = self.groups.get(&id)?;
        hint.and_then(|replica| group.nodes.get(&replica).copied()).or_else(|| self.shared.leader(id))
    }

    pub(crate) fn on_directory_changed(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        if let Some(state) = group.replica.decided_directory() {
            self.shared.tell_control(ToControl::Directory(state));
        }
    }

    fn on_need_snapshot(&mut self, id: PartitionId, from: ReplicaId, instance: coppice_ordering::Instance) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(&node) = group.nodes.get(&from) else { return };
        if !std::mem::replace(&mut group.installing, true) {
            let held = group.replica.decided_range().unwrap_or_default();
            self.shared.tell_control(ToControl::NeedSnapshot { group: id, held, from: node, instance });
        }
    }

    fn note_logged(&mut self, id: PartitionId, entry: &Entry) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.logged_bytes += entry_bytes(entry) as u64;
        }
    }

    /// Appends something of the driver's own to the log, at the end of the turn.
    pub(crate) fn append(&mut self, append: Append) {
        self.appends.push(append);
        self.turn.want();
    }

    /// The effects of a replica's start.
    pub(crate) fn carry_out_start(&mut self, id: PartitionId, effects: &mut Vec<Effect>) {
        self.carry_out(id, effects);
        self.turn.want();
    }

    /// An origin for a request of the node itself; `reply` gets the answer.
    pub(crate) fn wait_for(&mut self, reply: tokio::sync::oneshot::Sender<Reply>) -> Origin {
        self.next_own = self.next_own.wrapping_add(1);
        let origin = Origin::own(self.index, self.next_own);
        self.own.insert(self.next_own, reply);
        origin
    }
}
