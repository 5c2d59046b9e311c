//! Nodes that come and go, and groups that get more or fewer voters: what operators ask for by `coppice node add`,
//! `drain`, `undrain` and `remove`, `coppice partition move` and `coppice config set replicas`. Judged and brought to
//! its end by the server's own [`coppice_core::reshape`].

use std::collections::BTreeSet;

use coppice_client::map::{Entry, NodeInfo, NodeState, PartitionMap, Role};
use coppice_client::wire::{NodeId, Shape};

use super::coverage::Coverage;
use super::node::{Clock, Node};
use super::plan::{JOINS_MAX, MS};
use super::world::{World, addresses};

fn nodes(entry: &Entry) -> BTreeSet<NodeId> {
    entry.replicas.iter().map(|info| info.node).collect()
}

fn members(map: &PartitionMap) -> impl Iterator<Item = &NodeInfo> {
    map.nodes.iter().filter(|row| row.state == NodeState::Member)
}

impl World {
    /// Another process is started, that nobody has told yet which node it is. It will be that of its place here.
    pub fn spawn(&mut self, rate: u32) -> usize {
        let new = self.nodes.len();
        let clock = Clock::new(self.draws.world.next() % (3_600_000 * MS), rate);
        self.nodes.push(Node::new(&self.plan, new, clock, None));
        self.net.grow();
        new
    }

    /// Starts a process that is to become a node of the cluster.
    pub(super) fn added(&mut self) -> Option<Shape> {
        if self.nodes.len() >= self.plan.nodes as usize + JOINS_MAX {
            return None;
        }
        let rates = &self.plan.clock_rates;
        let new = self.spawn(rates[self.nodes.len() % rates.len()]);
        Some(Shape::AddNode { address: addresses(new).peer })
    }

    /// Whether the process at this address has its number.
    pub(super) fn is_enlisted(&self, address: &str) -> bool {
        (0..self.map.nodes.len()).any(|node| addresses(node).peer == address)
    }

    /// Nodes that stay. One that was asked to go counts no more, whatever the map says: the directory may yet decide
    /// that (seed 165).
    fn staying(&self) -> usize {
        members(&self.map).filter(|row| !self.asked.leaving.contains(&row.id)).count()
    }

    /// Asks a node to go, if as many stay as each group is to have replicas: whoever drains one looks first, for what
    /// is drained without waits until others come.
    pub(super) fn may_go(&mut self, node: usize) -> Option<NodeId> {
        let id = NodeId(node as u32 + 1);
        let stays = self.map.node(id)?.state == NodeState::Member && !self.asked.leaving.contains(&id);
        if self.staying() < self.asked.replicas + usize::from(stays) {
            return None;
        }
        self.asked.leaving.insert(id);
        Some(id)
    }

    /// From now on each group is to have so many voters; never more than there are nodes for.
    pub fn set_replicas(&mut self, count: u32) {
        if count as usize <= self.staying() {
            self.asked.replicas = count as usize;
            let up: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].up).collect();
            up.into_iter().for_each(|node| self.operate_directory(node));
        }
    }

    /// What of the drained nodes and of the wanted replicas is not done yet, in words, and how many replicas that is.
    pub fn unsettled(&self) -> (usize, String) {
        let (mut left, mut words) = (0, String::new());
        for entry in self.map.groups() {
            let now = nodes(entry);
            let goes = |id: &NodeId| self.map.node(*id).is_none_or(|row| row.state != NodeState::Member);
            let going = now.iter().filter(|id| goes(id)).count();
            let free = members(&self.map).filter(|row| !now.contains(&row.id)).count();
            let lacking = self.asked.replicas.saturating_sub(now.len()).min(free);
            let going = going.max(now.len().saturating_sub(self.asked.replicas));
            if going + lacking > 0 {
                left += going + lacking;
                words += &format!("{}: {going} replicas are to go, {lacking} to come; ", entry.partition);
            }
        }
        (left, words)
    }
}

/// Counts what a newer map says of nodes and groups.
pub(super) fn note_members(coverage: &mut Coverage, usual: usize, old: &PartitionMap, new: &PartitionMap) {
    for row in &new.nodes {
        let before = old.node(row.id).map(|row| row.state);
        match row.state {
            _ if before == Some(row.state) => {}
            NodeState::Joining => coverage.note("node: is told its number"),
            NodeState::Member if before == Some(NodeState::Draining) => coverage.note("node: is called back"),
            NodeState::Member => coverage.note("node: has joined"),
            NodeState::Draining => coverage.note("node: is drained"),
            NodeState::Leaving => coverage.note("node: is to be removed"),
            NodeState::Removed => coverage.note("node: is removed"),
        }
    }
    for entry in new.partitions.iter().chain(&new.directory) {
        let voters = |entry: &Entry| {
            let voting = entry.replicas.iter().all(|info| info.role == Role::Voter);
            voting.then_some(entry.replicas.len())
        };
        let before = old.group(entry.partition).map(|entry| entry.replicas.len());
        match (before, voters(entry)) {
            // Of a move that adds, the map has had the newcomers as learners.
            (Some(_), Some(now)) if now > usual => {
                coverage.note("group: has more voters than it began with");
            }
            (Some(before), Some(now)) if now < before => coverage.note("group: has fewer replicas than before"),
            _ => {}
        }
    }
}
