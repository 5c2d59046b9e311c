//! A cluster of one group: replicas with disks and clocks, and the judge of their agreement.

#![allow(dead_code)] // Each test program uses its own part.

pub mod fuzz;
pub mod node;
pub mod plan;
pub mod script;
pub mod truth;

use std::collections::BTreeMap;

use coppice_ordering::{Configuration, Input, Message, ReplicaId, Settings};
use node::Node;
use truth::Truth;

pub struct Cluster {
    pub nodes: BTreeMap<ReplicaId, Node>,
    pub truth: Truth,
    /// True time in nanoseconds.
    pub now: u64,
}

impl Cluster {
    /// A group of these voters, all down.
    pub fn new(first: Configuration, settings: &Settings, seed: u64) -> Cluster {
        let nodes = first.members().map(|id| (id, Node::new(id, first.clone(), settings.clone(), seed))).collect();
        Cluster { nodes, truth: Truth::new(first), now: 0 }
    }

    pub fn node(&mut self, id: ReplicaId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("there is no {id}"))
    }

    /// A new replica, down, that is told to be a learner of a group with these members.
    pub fn add(&mut self, id: ReplicaId, members: &Configuration, settings: &Settings, seed: u64) {
        let mut told = members.clone();
        told.learners.insert(id);
        told.leaving.clear();
        self.nodes.insert(id, Node::new(id, told, settings.clone(), seed));
    }

    pub fn start(&mut self, id: ReplicaId) {
        let node = self.nodes.get_mut(&id).expect("a replica");
        node.start(self.now, &mut self.truth);
    }

    pub fn step(&mut self, id: ReplicaId, input: Input) {
        let node = self.nodes.get_mut(&id).expect("a replica");
        node.step(self.now, input, &mut self.truth);
        self.bury(id);
    }

    pub fn deliver(&mut self, from: ReplicaId, to: ReplicaId, message: Message) {
        if let Some(node) = self.nodes.get_mut(&to).filter(|node| !node.gone) {
            node.step(self.now, Input::Message { from, message }, &mut self.truth);
        }
        self.bury(to);
    }

    /// A dismissed replica is deleted, disk and all.
    fn bury(&mut self, id: ReplicaId) {
        if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.gone) {
            node.crash(0, &mut self.truth);
            node.disk = node::Disk::default();
        }
    }

    /// The replica that serves in the highest ballot.
    pub fn leader(&self) -> Option<ReplicaId> {
        let leading = self.nodes.values().filter(|node| node.is_leader());
        leading.max_by_key(|node| node.paxos.as_ref().map(|paxos| paxos.ballot())).map(|node| node.id)
    }
}
