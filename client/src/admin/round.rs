//! One round of questions: which answers speak for the cluster, and what became of the nodes that gave none.

use std::collections::BTreeSet;

use super::{Error, TIMED_OUT};
use crate::error::NodeError;
use crate::wire::{AdminError, AdminReply, MapReply, NodeId, Refusal, Status};

/// Whether an answer is that of a node which hears no majority of the directory: what it says, and where it was told
/// that other nodes are.
pub(super) trait Standing {
    fn alone(&self) -> Option<(String, Vec<String>)>;
}

impl Standing for MapReply {
    fn alone(&self) -> Option<(String, Vec<String>)> {
        None
    }
}

impl Standing for Status {
    fn alone(&self) -> Option<(String, Vec<String>)> {
        let addresses = || self.nodes.iter().map(|node| node.address.clone()).filter(|address| !address.is_empty());
        let why = match (self.removed, self.majority) {
            (true, _) => "was removed from the cluster",
            (false, false) => "hears no majority of the directory",
            (false, true) => return None,
        };
        Some((why.into(), addresses().collect()))
    }
}

impl Standing for AdminReply {
    fn alone(&self) -> Option<(String, Vec<String>)> {
        let AdminReply::Failed(AdminError::NoMajority { text, others }) = self else { return None };
        Some((text.clone(), others.clone()))
    }
}

/// What became of asking each node once.
#[derive(Default)]
pub(super) struct Round {
    /// Nodes that gave no answer.
    pub errors: Vec<NodeError>,
    /// The last refusal.
    pub refused: Option<Refusal>,
    /// Nodes without a cluster.
    pub blank: Vec<String>,
    /// Those that hear no majority of the directory.
    pub alone: Vec<NodeError>,
    /// Addresses that were given by those.
    told: BTreeSet<String>,
}

impl Round {
    /// A node answered that hears no majority; the nodes that it knows of are asked too.
    pub fn is_alone(
        &mut self,
        addresses: &mut Vec<String>,
        (node, address): (Option<NodeId>, &str),
        (error, others): (String, Vec<String>),
    ) {
        self.alone.push(NodeError { node, address: address.into(), error });
        // Only those that the first one knows: what it is told by a node is bounded by one map.
        if self.told.is_empty() {
            self.told.extend(others);
            addresses.extend(self.told.iter().filter(|other| !addresses.contains(other)).cloned().collect::<Vec<_>>());
        }
    }

    /// Whether another round may end otherwise.
    pub fn may_change(&self) -> bool {
        let busy = matches!(self.refused, Some(Refusal::Busy { .. }));
        busy || self.errors.iter().any(|node| node.error == TIMED_OUT)
    }

    pub fn failed(mut self) -> Error {
        match self.refused {
            Some(refusal) => Error::Refused(refusal),
            None if self.alone.is_empty() => Error::Unreachable(self.errors),
            None => {
                self.alone.append(&mut self.errors);
                Error::NoMajority(self.alone)
            }
        }
    }
}
