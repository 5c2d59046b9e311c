//! How far the groups are from having `replicas` replicas each.

use std::collections::BTreeMap;

use coppice_client::map::{NodeState, PartitionMap, Role};
use coppice_client::wire::{NodeId, PartitionId};

use super::LocalStatus;

/// Groups that a sentence names; of more it says how many there are.
const NAMED_MAX: usize = 8;

/// What the groups lack, or have too many of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Groups that get more, and how many each.
    pub to_come: BTreeMap<PartitionId, usize>,
    /// Groups that give some up, and how many each.
    pub to_go: BTreeMap<PartitionId, usize>,
    /// Groups that lack some which no node can take.
    pub unmet: Vec<PartitionId>,
}

impl ReplicaCounts {
    /// Of each group that has other than `replicas` voters, by what these nodes said of themselves.
    pub fn of(map: &PartitionMap, replicas: usize, known: &BTreeMap<NodeId, LocalStatus>) -> ReplicaCounts {
        let mut counts = ReplicaCounts::default();
        for entry in map.directory.iter().chain(&map.partitions) {
            let voters = || entry.replicas.iter().filter(|info| info.role == Role::Voter).map(|info| info.node);
            let takes = |node: NodeId| known.get(&node).is_some_and(|local| !local.is_full());
            let free = map.nodes.iter().filter(|row| row.state == NodeState::Member && takes(row.id));
            let places = free.filter(|row| voters().all(|node| node != row.id)).count();
            let now = voters().count();
            let lacks = replicas.saturating_sub(now);
            if now > replicas {
                counts.to_go.insert(entry.partition, now - replicas);
            }
            if lacks.min(places) > 0 {
                counts.to_come.insert(entry.partition, lacks.min(places));
            }
            if lacks > places {
                counts.unmet.push(entry.partition);
            }
        }
        counts
    }

    /// Replicas that have yet to come or to go.
    pub fn left(&self) -> usize {
        self.to_come.values().chain(self.to_go.values()).sum()
    }

    /// `4 replicas to come: p0 p1`.
    pub fn sentence(verb: &str, groups: &BTreeMap<PartitionId, usize>) -> String {
        format!("{} to {verb}: {}", replicas(groups.values().sum()), listed(groups.keys()))
    }

    /// What is still to be done, and what cannot be, in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for (verb, groups) in [("come", &self.to_come), ("go", &self.to_go)] {
            if !groups.is_empty() {
                sentences.push(Self::sentence(verb, groups));
            }
        }
        if !self.unmet.is_empty() {
            let groups = listed(self.unmet.iter());
            sentences.push(format!(
                "{groups} lack replicas that no node which answers has room for: start those that are down, or coppice \
                 node add ADDRESS"
            ));
        }
        sentences
    }
}

/// `1 replica`, `5 replicas`.
pub fn replicas(count: usize) -> String {
    if count == 1 { "1 replica".into() } else { format!("{count} replicas") }
}

/// Their names, of not too many.
pub fn listed<'a>(groups: impl ExactSizeIterator<Item = &'a PartitionId>) -> String {
    let more = groups.len().saturating_sub(NAMED_MAX);
    let names: Vec<String> = groups.take(NAMED_MAX).map(PartitionId::to_string).collect();
    let names = names.join(" ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}
