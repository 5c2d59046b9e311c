//! Multicast messages between the coordinator and the replicas of partitions (protocol.md 4): to whom they go, and what
//! becomes of them where they arrive. Losing, repeating or reordering them is harmless.

use std::sync::Arc;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::multicast;

use super::{Effect, Message, Worker};
use crate::ids;
use crate::multicast::{MulticastBody, MulticastMessage, message};
use crate::replica::Input;

/// Rounds of messages inside one turn: a query whose partitions and coordinator are in one worker needs two.
const ROUNDS_MAX: usize = 8;

impl Worker {
    /// Sends a message to whoever leads its receiver; if nobody is known to lead, or who does is not connected or does
    /// not answer, to all who may, one of which may hear the leader.
    pub(super) fn send_multicast(&mut self, message: MulticastMessage) {
        self.counters.multicast_messages += 1;
        let receiver = message.receiver();
        let known = self.cluster.leaders.get(&receiver).copied();
        match message::addressee(&message, self.cluster.map.group(receiver), known) {
            Some(node) if Some(node) == self.cluster.node => self.multicast.push_back(message),
            Some(node) if self.cluster.answering.contains(&node) => self.send_multicast_to(node, message),
            _ => {
                let map = Arc::clone(&self.cluster.map);
                let replicas = map.group(receiver).map_or(&[][..], |entry| &entry.replicas);
                for info in replicas {
                    match Some(info.node) == self.cluster.node {
                        true => self.multicast.push_back(message.clone()),
                        false => self.send_multicast_to(info.node, message.clone()),
                    }
                }
            }
        }
    }

    fn send_multicast_to(&mut self, node: NodeId, message: MulticastMessage) {
        if self.cluster.may_speak {
            self.effects.push(Effect::SendMulticast(node, message));
        }
    }

    /// Messages of another node.
    pub(super) fn on_multicast(&mut self, sender: NodeId, messages: Vec<MulticastMessage>) {
        for message in messages {
            if !message.may_come_from(sender, &self.cluster.map) {
                continue;
            }
            if let Some(next) = self.led_elsewhere(sender, &message) {
                self.send_multicast_to(next, MulticastMessage { passed_on: true, ..message.clone() });
                // What is released any replica may know, and tell its leader.
                if !matches!(message.body, MulticastBody::Released(_)) {
                    continue;
                }
            }
            self.multicast.push_back(message);
        }
        self.deliver_multicast();
    }

    /// Whoever leads the receiver of `message`, if it goes on from here.
    fn led_elsewhere(&self, sender: NodeId, message: &MulticastMessage) -> Option<NodeId> {
        let group = message.receiver();
        let leader = self.cluster.leaders.get(&group).copied();
        message::goes_on_to(message, self.cluster.map.group(group)?, leader, (self.cluster.node?, sender))
    }

    /// Delivers what waits; what that writes to this node is delivered too, as long as a turn may last.
    pub(super) fn deliver_multicast(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let messages = std::mem::take(&mut self.multicast);
            if messages.is_empty() {
                return;
            }
            messages.into_iter().for_each(|message| self.deliver(message));
        }
    }

    fn deliver(&mut self, message: MulticastMessage) {
        let owner = self.owner(message.receiver());
        if owner != self.index {
            if mutant!(multicast_ends_at_worker) {
                return;
            }
            return self.effects.push(Effect::Worker(owner, Message::Multicast(vec![message])));
        }
        match message.body {
            // The coordinator says it again, and gives up in time.
            MulticastBody::Place(_) if self.admission.known().log_is_stuck => {}
            MulticastBody::Place(place) => self.step_group(message.partition, Input::Place(place)),
            MulticastBody::Released(ticket) => self.step_group(message.partition, Input::Released(ticket)),
            MulticastBody::Placed(ticket) => {
                let partition = ids::core_partition(message.partition);
                self.coordinate(multicast::Input::Placed { partition, ticket });
            }
        }
    }

    /// A partition is led by somebody else: what it may not have heard is sent again.
    pub(super) fn resend(&mut self, partition: PartitionId) {
        if self.coordinator.is_leading() {
            self.coordinate(multicast::Input::Resend(ids::core_partition(partition)));
        }
    }
}
