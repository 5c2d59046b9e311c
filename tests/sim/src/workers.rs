//! The workers of a node beside each other: what each has yet to hear of the world, and what they tell each other,
//! which takes its time.

use std::collections::BTreeSet;

use coppice_client::wire::{ClientId, NodeId, PartitionId};
use coppice_core::replica::QueryPart;
use coppice_core::worker::{Input, Message, Room};
use coppice_ordering::ReplicaId;

use super::control::own;
use super::events::Event;
use super::processes::places;
use super::world::World;

/// What comes to a worker from its own node.
#[derive(Debug)]
pub enum Mail {
    /// Of another worker.
    Message(Message),
    /// What the workers share has changed.
    Look,
    /// A client has connected to another worker.
    Greeted(ClientId),
}

impl World {
    /// Nodes that answer a node, as it can know: of the directory's replicas also from their silence.
    pub fn answering(&self, node: usize) -> BTreeSet<NodeId> {
        let directory = self.nodes[node].group(PartitionId::DIRECTORY);
        let silent = directory.into_iter().flat_map(|directory| directory.replica.paxos().silent_peers());
        let at = |peer: ReplicaId| places(&self.map, PartitionId::DIRECTORY).find(|(replica, _)| *replica == peer);
        let silent: BTreeSet<NodeId> = silent.filter_map(at).map(|(_, at)| own(at)).collect();
        let answers = |at: usize| self.nodes[at].up && !self.net.is_silent(node, at, self.now);
        let all = (0..self.nodes.len()).filter(|&at| at == node || answers(at) && !silent.contains(&own(at)));
        all.map(own).collect()
    }

    /// What a worker has yet to hear of the world.
    pub fn facts(&self, node: usize, worker: usize) -> Vec<Input> {
        let (each, known) = (&self.nodes[node], &self.nodes[node].workers[worker]);
        let mut facts = vec![Input::Identity(own(node)), Input::MaySpeak(!self.is_silent(node))];
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            let answers = self.nodes[other].up && !self.net.is_silent(node, other, self.now);
            if answers != known.is_answering(own(other)) {
                facts.push(Input::Answers(own(other), answers));
            }
        }
        for (&group, &leader) in &each.leaders {
            if known.leaders().get(&group) != Some(&leader) {
                facts.push(Input::Leader(group, Some(leader)));
            }
        }
        let gone = known.leaders().keys().filter(|group| !each.leaders.contains_key(group));
        facts.extend(gone.map(|&group| Input::Leader(group, None)));
        let room = Room {
            log_is_stuck: each.log_is_stuck,
            disk_is_full: each.store.is_full(),
            full_nodes: each.full_nodes.clone(),
            ..Room::default()
        };
        if room != *known.room() {
            facts.push(Input::Room(room));
        }
        facts
    }

    /// Something comes to a worker from its own node, after a while; each queue keeps its order.
    pub fn mail(&mut self, node: usize, worker: usize, mail: Mail) {
        let is_for_clients = match &mail {
            Mail::Message(message) => message.is_for_clients(),
            Mail::Look => false,
            Mail::Greeted(_) => true,
        };
        let after = self.net.between_threads();
        let life = self.nodes[node].life;
        let last = self.nodes[node].mailed.entry((worker, is_for_clients)).or_default();
        *last = (self.now + after).max(*last);
        let at = *last;
        self.schedule(at, Event::Mail { node, life, worker, mail });
    }

    /// It is there; a queue that is full has lost it.
    pub fn on_mail(&mut self, node: usize, worker: usize, mail: Mail) {
        match mail {
            Mail::Message(message) if !message.must_arrive() && self.net.overflows() => {
                self.reached.note("worker: a queue between workers is full");
                // Whoever sent it hears so at once; here it is the one that holds the connection, or any other.
                let from = match &message {
                    Message::Request { origin, .. } | Message::Query { origin, .. } => origin.shard(),
                    _ => return,
                };
                self.input(node, from, Input::Undelivered(message));
            }
            Mail::Message(message) => {
                if let Message::Letters(letters) = &message {
                    let leading = self.nodes[node].workers[worker].coordinator().leading();
                    letters.iter().for_each(|letter| self.reached.letter(&letter.word, leading));
                }
                self.reached.note("worker: tells another one of its node");
                self.input(node, worker, Input::Worker(message));
            }
            Mail::Look => self.input(node, worker, Input::TurnEnd),
            Mail::Greeted(client) => self.input(node, worker, Input::Greeted(client)),
        }
    }

    /// A part for a client: it may be connected, to any worker.
    pub fn give_part(&mut self, node: usize, worker: usize, part: Box<QueryPart>) {
        match self.line_of(node, part.share.client) {
            Some(line) => self.stream_part(line, *part),
            None => {
                self.reached.note("query: a part waits for its client to connect");
                self.input(node, worker, Input::Unclaimed(part));
            }
        }
    }

    /// A client said hello to a worker: parts may wait for it, there and at the others.
    pub fn greeted(&mut self, node: usize, worker: usize, client: ClientId) {
        for other in (0..self.nodes[node].workers.len()).filter(|&other| other != worker) {
            self.mail(node, other, Mail::Greeted(client));
        }
        let before = self.nodes[node].workers[worker].parked();
        self.input(node, worker, Input::Greeted(client));
        let found = before.saturating_sub(self.nodes[node].workers[worker].parked());
        self.reached.add("query: a part finds its client", found as u64);
    }
}
