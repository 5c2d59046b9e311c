//! Multicast messages between the coordinator and the replicas of partitions (protocol.md 4): to whom they go, and what
//! becomes of them where they arrive. Losing, repeating or reordering them is harmless.

use std::sync::Arc;

use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::multicast;

use super::{Effect, Message, Worker};
use crate::ids;
use crate::multicast::{Letter, Word, letter};
use crate::replica::Input;

/// Rounds of messages inside one turn: a query whose partitions and coordinator are in one worker needs two.
const ROUNDS_MAX: usize = 8;

impl Worker {
    /// Sends a message to whoever leads its receiver; if nobody is known to lead, or who does is not connected or does
    /// not answer, to all who may, one of which may hear the leader.
    pub(super) fn post(&mut self, letter: Letter) {
        self.counters.letters += 1;
        let receiver = letter.receiver();
        let known = self.known.leaders.get(&receiver).copied();
        match letter::addressee(&letter, self.known.map.group(receiver), known) {
            Some(node) if Some(node) == self.known.node => self.letters.push_back(letter),
            Some(node) if self.known.answering.contains(&node) => self.post_to(node, letter),
            _ => {
                let map = Arc::clone(&self.known.map);
                let replicas = map.group(receiver).map_or(&[][..], |entry| &entry.replicas);
                for info in replicas {
                    match Some(info.node) == self.known.node {
                        true => self.letters.push_back(letter.clone()),
                        false => self.post_to(info.node, letter.clone()),
                    }
                }
            }
        }
    }

    fn post_to(&mut self, node: NodeId, letter: Letter) {
        if self.known.may_speak {
            self.effects.push(Effect::Post(node, letter));
        }
    }

    /// Messages of another node.
    pub(super) fn on_letters(&mut self, sender: NodeId, letters: Vec<Letter>) {
        for letter in letters {
            if !letter.may_come_from(sender, &self.known.map) {
                continue;
            }
            if let Some(next) = self.led_elsewhere(sender, &letter) {
                self.post_to(next, Letter { passed_on: true, ..letter.clone() });
                // What is released any replica may know, and tell its leader.
                if !matches!(letter.word, Word::Released(_)) {
                    continue;
                }
            }
            self.letters.push_back(letter);
        }
        self.deliver_letters();
    }

    /// Whoever leads the receiver of `letter`, if it goes on from here.
    fn led_elsewhere(&self, sender: NodeId, letter: &Letter) -> Option<NodeId> {
        let group = letter.receiver();
        let leader = self.known.leaders.get(&group).copied();
        letter::goes_on_to(letter, self.known.map.group(group)?, leader, (self.known.node?, sender))
    }

    /// Delivers what waits; what that writes to this node is delivered too, as long as a turn may last.
    pub(super) fn deliver_letters(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let letters = std::mem::take(&mut self.letters);
            if letters.is_empty() {
                return;
            }
            letters.into_iter().for_each(|letter| self.deliver(letter));
        }
    }

    fn deliver(&mut self, letter: Letter) {
        let owner = self.owner(letter.receiver());
        if owner != self.index {
            if mutant!(letters_end_at_worker) {
                return;
            }
            return self.effects.push(Effect::Worker(owner, Message::Letters(vec![letter])));
        }
        match letter.word {
            // The coordinator says it again, and gives up in time.
            Word::Place(_) if self.room.known().log_is_stuck => {}
            Word::Place(place) => self.step_group(letter.partition, Input::Place(place)),
            Word::Released(ticket) => self.step_group(letter.partition, Input::Released(ticket)),
            Word::Placed(ticket) => {
                let partition = ids::core_partition(letter.partition);
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
