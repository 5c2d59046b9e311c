//! Growing and shrinking, the part that decides: what an operator's verb means for this cluster, and what the leader of
//! the directory does next to bring every change under way to its end (protocol.md 1.5, 8).
//!
//! Pure: it looks at the directory's state and at what the nodes said of themselves, and returns steps. A step repeated
//! or carried out late does no harm: each names the state that it was meant for. It does not know sockets or clocks.

mod balance;
mod boundaries;
mod deciding;
mod enlist;
mod load;
mod plan;
mod replicas;
mod sizing;
mod surplus;
#[cfg(test)]
mod tests;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};

pub use balance::{Proposal, Resting, Shift, Situation, even_leaders, plan};
pub use boundaries::no_median;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId, ReplicaId};
use coppice_ordering::Configuration;
pub use deciding::PendingDecisions;
pub use enlist::{Candidate, Enlistment};
pub use load::{Load, Loads, Pace};
pub use plan::steps;
pub use sizing::{Sizing, merge, split};
pub use verbs::{Verdict, begun, needs_directory, verdict};

use crate::machine::directory::{Change, DirectoryCommand, DirectoryState};
use crate::majority::voters_up;
use crate::status::{GroupReport, LocalStatus};

/// What the nodes said of themselves lately.
#[derive(Clone, Debug, Default)]
pub struct View {
    nodes: BTreeMap<NodeId, LocalStatus>,
}

/// What is known of a group through its leader.
#[derive(Clone, Copy, Debug)]
pub struct LeaderReport<'a> {
    /// Who leads it.
    pub leader: NodeId,
    /// What it says.
    pub report: &'a GroupReport,
}

impl View {
    /// A view of these answers; who is not in it did not answer.
    pub fn new(nodes: BTreeMap<NodeId, LocalStatus>) -> View {
        View { nodes }
    }

    /// Whether the node answered.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// What each node that answered said.
    pub(super) fn nodes(&self) -> &BTreeMap<NodeId, LocalStatus> {
        &self.nodes
    }

    /// What the node said.
    pub fn node(&self, node: NodeId) -> Option<&LocalStatus> {
        self.nodes.get(&node)
    }

    /// The group, as its leader sees it. Two may believe that they lead: the higher ballot does.
    pub fn led(&self, group: PartitionId) -> Option<LeaderReport<'_>> {
        let leading = self.nodes.iter().filter_map(|(&node, local)| {
            let replica = local.replicas.get(&group).filter(|replica| replica.leads)?;
            Some((replica.ballot, LeaderReport { leader: node, report: &replica.group }))
        });
        leading.max_by_key(|(ballot, _)| *ballot).map(|(_, led)| led)
    }

    /// Who leads the groups that have no replica `here`: nobody else tells that to a node which coordinates queries,
    /// and it would send their tickets to who led them once. Those that end are among them: a merge waits for its
    /// ticket there.
    pub fn leaders_elsewhere<'a>(
        &'a self,
        map: &'a PartitionMap,
        here: impl Fn(PartitionId) -> bool + 'a,
    ) -> impl Iterator<Item = (PartitionId, NodeId)> + 'a {
        let elsewhere = map.groups().map(|entry| entry.partition).filter(move |&group| !here(group));
        elsewhere.filter_map(|group| Some((group, self.led(group)?.leader)))
    }

    /// The partition with the most keys.
    pub fn largest(&self, state: &DirectoryState) -> Option<PartitionId> {
        let keys = |partition: PartitionId| {
            let led = self.led(partition)?;
            self.nodes.get(&led.leader)?.replicas.get(&partition).map(|replica| replica.keys)
        };
        let partitions = state.map.partitions.iter().map(|entry| entry.partition);
        partitions.max_by_key(|&partition| keys(partition))
    }

    /// How many of the group's voters, as the map has them, answered: those, and all.
    pub fn voters_up(&self, state: &DirectoryState, group: PartitionId) -> (usize, usize) {
        state.map.entry(group).map_or((0, 0), |entry| voters_up(entry, |node| self.is_up(node)))
    }
}

/// What the leader of the directory does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Have the directory decide this.
    Decide(DirectoryCommand),
    /// Have the group's leader propose this configuration.
    Configure {
        /// Who leads it.
        leader: NodeId,
        partition: PartitionId,
        /// The instance that decided the configuration which this one is to follow: another one, and nothing is done.
        expected: u64,
        /// Who replicates from then on.
        configuration: Configuration,
    },
    /// Have the group's leader transfer its leadership.
    Transfer {
        /// Who leads it.
        leader: NodeId,
        partition: PartitionId,
        /// The node of a voter.
        to: NodeId,
    },
    /// Tell the process at the node's address which node it is.
    Assign { node: NodeId },
}

impl Step {
    /// Who leads afterwards, of a leader transfer.
    pub fn next_leader(&self) -> Option<NodeId> {
        if let Step::Transfer { to, .. } = self { Some(*to) } else { None }
    }
}

/// All groups of the map with the nodes of their replicas, the directory first.
fn placements(state: &DirectoryState) -> impl Iterator<Item = (PartitionId, Vec<NodeId>)> + '_ {
    let entries = state.map.directory.iter().chain(&state.map.partitions);
    entries.map(|entry| (entry.partition, entry.replicas.iter().map(|replica| replica.node).collect()))
}

/// Replicas per node, with those that come and without those that go.
fn load(state: &DirectoryState) -> BTreeMap<NodeId, usize> {
    let mut load = BTreeMap::new();
    for entry in state.map.directory.iter().chain(&state.map.partitions) {
        let goes = |id: &ReplicaId| match state.change_of(entry.partition) {
            Some((_, Change::Move(change))) => change.remove.contains(id),
            _ => false,
        };
        let stay = entry.replicas.iter().filter(|info| !goes(&info.replica));
        stay.for_each(|info| *load.entry(info.node).or_default() += 1);
    }
    load
}

fn core_ids(ids: impl IntoIterator<Item = ReplicaId>) -> BTreeSet<coppice_ordering::ReplicaId> {
    ids.into_iter().map(crate::ids::replica).collect()
}
