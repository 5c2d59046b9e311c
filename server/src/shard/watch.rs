//! Telling groups of lost nodes, and other nodes that this one lives: once for all groups, which may rest (protocol.md
//! 1.3).

use coppice_client::wire::NodeId;
use coppice_core::worker::Input;
use coppice_ordering::{Settings, Time};

use super::Shard;

impl Shard {
    /// Something came from another node.
    pub(crate) fn heard(&self, node: NodeId) {
        self.shared.heard(node, self.now(), false);
    }

    /// The settings that all groups share; none: no group is here, and there is nothing to watch.
    fn settings(&self) -> Option<Settings> {
        self.worker.groups().values().next().map(|group| group.replica.paxos().settings().clone())
    }

    /// When [`Shard::watch`] is next wanted.
    pub(super) fn watch_at(&self) -> Option<Time> {
        let group = self.worker.groups().values().next()?;
        self.failure_detector.deadline(group.replica.paxos().settings())
    }

    /// Looks whether other nodes live, if it is time.
    pub(super) fn watch(&mut self, now: Time) {
        let Some(settings) = self.settings().filter(|settings| self.failure_detector.is_due(settings, now)) else {
            return;
        };
        // Behind a new connection the others doubt this node until they hear it.
        let fresh = self.links.iter().filter(|(_, link)| link.say_alive()).map(|(&node, _)| (node, now));
        let mut lost: Vec<(NodeId, Time)> = fresh.collect();
        for (node, heard) in self.shared.heard_of() {
            lost.extend(self.failure_detector.look(node, heard, &settings, now).map(|since| (node, since)));
        }
        for (node, since) in lost {
            self.input(Input::Lost { node, since });
        }
    }

    /// The process of a node has ended.
    pub(crate) fn tell_gone(&mut self, node: NodeId) {
        self.input(Input::Gone(node));
    }
}
