//! Who of a group's voters answers, and whether a node may speak for the cluster: whether a majority of the directory's
//! voters answers it now. What a node believes that is cut off from them may be long past, and what it is asked for it
//! cannot carry out.

use coppice_client::map::{Entry, PartitionMap, Role};
use coppice_client::wire::{ClusterId, NodeId};

/// How many of a group's voters answer: those, and all.
pub fn voters_up(group: &Entry, answers: impl Fn(NodeId) -> bool) -> (usize, usize) {
    let voters = group.replicas.iter().filter(|info| info.role == Role::Voter);
    voters.fold((0, 0), |(up, all), voter| (up + usize::from(answers(voter.node)), all + 1))
}

/// Whether those that answer are a majority of the directory's voters.
pub fn is_majority(map: &PartitionMap, answers: impl Fn(NodeId) -> bool) -> bool {
    let (up, all) = map.directory.as_ref().map_or((0, 0), |entry| voters_up(entry, answers));
    up > all / 2
}

/// A node asks the directory's voters who they are.
#[derive(Debug)]
pub struct Probe<'a> {
    map: &'a PartitionMap,
    cluster: ClusterId,
    /// This node, and those that have answered.
    heard: Vec<NodeId>,
}

impl Probe<'_> {
    /// By node `own` of this cluster, with the newest map that it knows.
    pub fn new(map: &PartitionMap, (cluster, own): (ClusterId, NodeId)) -> Probe<'_> {
        Probe { map, cluster, heard: vec![own] }
    }

    /// Those that have yet to answer.
    pub fn unheard(&self) -> impl Iterator<Item = NodeId> {
        let voters = self.map.directory.iter().flat_map(|entry| &entry.replicas);
        let voters = voters.filter(|info| info.role == Role::Voter).map(|info| info.node);
        voters.filter(|node| !self.heard.contains(node))
    }

    /// Who answers at the address of a node. A process that lost its data answers as nobody.
    pub fn hear(&mut self, node: NodeId, identity: Option<(ClusterId, NodeId)>) {
        if identity == Some((self.cluster, node)) {
            self.heard.push(node);
        }
    }

    /// Whether enough have answered.
    pub fn is_majority(&self) -> bool {
        is_majority(self.map, |node| self.heard.contains(&node))
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::map::ReplicaInfo;
    use coppice_client::wire::ReplicaId;

    use super::*;

    const OURS: ClusterId = ClusterId(1);

    /// Three voters and a learner.
    fn map() -> PartitionMap {
        let on = |node: u32, role| ReplicaInfo { replica: ReplicaId(node), node: NodeId(node), role };
        let mut replicas: Vec<ReplicaInfo> = (1..=3).map(|node| on(node, Role::Voter)).collect();
        replicas.push(on(4, Role::Learner));
        PartitionMap { directory: Some(Entry { replicas, ..Entry::default() }), ..PartitionMap::default() }
    }

    #[test]
    fn learners_and_nodes_without_the_directory_make_no_majority() {
        let map = map();
        let hears = |own, others: &[u32]| {
            let mut probe = Probe::new(&map, (OURS, NodeId(own)));
            others.iter().for_each(|&node| probe.hear(NodeId(node), Some((OURS, NodeId(node)))));
            probe.is_majority()
        };
        assert!(hears(1, &[3]) && hears(5, &[1, 2]));
        assert!(!hears(1, &[]) && !hears(5, &[2, 4]));
        let unknown = PartitionMap::default();
        assert!(!Probe::new(&unknown, (OURS, NodeId(1))).is_majority(), "no map is known yet");
    }

    #[test]
    fn only_that_node_of_that_cluster_counts() {
        let map = map();
        let mut probe = Probe::new(&map, (OURS, NodeId(1)));
        for identity in [None, Some((ClusterId(2), NodeId(2))), Some((OURS, NodeId(3)))] {
            probe.hear(NodeId(2), identity);
            assert!(!probe.is_majority(), "{identity:?}");
        }
        assert_eq!(probe.unheard().collect::<Vec<_>>(), [NodeId(2), NodeId(3)]);
        probe.hear(NodeId(2), Some((OURS, NodeId(2))));
        assert!(probe.is_majority());
    }
}
