//! Comparing replicas by the digests of their states at logged positions (hazards.md E6): for `check replicas`, and for
//! the check that each node makes by itself.

use std::collections::BTreeMap;

use coppice_client::map::{Entry, PartitionMap};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId, ReplicaId};

use crate::status::{GroupReport, LocalStatus};

/// Digests of states by replica and instance, as told so far.
#[derive(Debug, Default)]
pub struct Digests {
    by_replica: BTreeMap<(PartitionId, NodeId), BTreeMap<u64, u64>>,
    /// Decided configurations by replica, and the instances that decided them. They are no part of the digests: the
    /// ordering core holds them, not the machine.
    configurations: BTreeMap<(PartitionId, NodeId), BTreeMap<u64, Members>>,
    /// Replicas that answer.
    present: Vec<(PartitionId, NodeId)>,
}

/// Voters and learners, ascending.
type Members = (Vec<ReplicaId>, Vec<ReplicaId>);

/// Who votes and who learns, and what decided that; none: no instance did yet, and what a replica begins with is told
/// by whoever starts it.
fn members(report: &GroupReport) -> Option<(u64, Members)> {
    (report.configured_at > 0).then(|| (report.configured_at, (report.voters.clone(), report.learners.clone())))
}

impl Digests {
    /// Takes in what the nodes tell now.
    pub fn note(&mut self, known: &BTreeMap<NodeId, LocalStatus>) {
        self.present.clear();
        for (&node, local) in known {
            for (&partition, replica) in &local.replicas {
                self.present.push((partition, node));
                self.by_replica.entry((partition, node)).or_default().extend(replica.digests.iter().copied());
                self.configurations.entry((partition, node)).or_default().extend(members(&replica.group));
            }
        }
    }

    /// The verdict: a mismatch, or what agrees at which instance and who could not be compared.
    pub fn compare(&self, map: &PartitionMap) -> AdminReply {
        let (mut partitions, mut missing) = (Vec::new(), Vec::new());
        for entry in map.directory.iter().chain(&map.partitions) {
            let mut by_instance: BTreeMap<u64, Vec<(NodeId, u64)>> = BTreeMap::new();
            for replica in &entry.replicas {
                let digests = self.by_replica.get(&(entry.partition, replica.node));
                for (&instance, &digest) in digests.into_iter().flatten() {
                    by_instance.entry(instance).or_default().push((replica.node, digest));
                }
            }
            for (instance, digests) in &by_instance {
                let (first, expected) = digests[0];
                if let Some((node, _)) = digests.iter().find(|(_, digest)| *digest != expected) {
                    let text = format!("{}: {node} differs from {first} at #{instance}", entry.partition);
                    return AdminReply::Failed(AdminError::Mismatch(text));
                }
            }
            if let Some(text) = self.configurations_differ(entry) {
                return AdminReply::Failed(AdminError::Mismatch(text));
            }
            // The newest of the instances that most replicas have.
            let compared = by_instance.iter().max_by_key(|(instance, digests)| (digests.len(), **instance));
            let told = compared.iter().flat_map(|(_, digests)| digests.iter().map(|(node, _)| *node));
            let nodes: Vec<NodeId> = told.collect();
            let absent = entry.replicas.iter().filter(|replica| !nodes.contains(&replica.node));
            missing.extend(absent.map(|replica| (entry.partition, replica.node)));
            // One alone has been compared with nobody.
            if let Some((instance, digests)) = compared
                && (digests.len() > 1 || entry.replicas.len() == 1)
            {
                partitions.push((entry.partition, *instance, digests[0].1));
            }
        }
        AdminReply::ReplicasChecked { partitions, missing }
    }

    /// Two replicas that say who was decided at an instance to replicate the group, and say different things.
    fn configurations_differ(&self, entry: &Entry) -> Option<String> {
        let mut first: BTreeMap<u64, (NodeId, &Members)> = BTreeMap::new();
        for replica in &entry.replicas {
            let told = self.configurations.get(&(entry.partition, replica.node));
            for (&instance, members) in told.into_iter().flatten() {
                let (node, expected) = *first.entry(instance).or_insert((replica.node, members));
                if members != expected {
                    let (partition, other) = (entry.partition, replica.node);
                    return Some(format!("{partition}: {other} has another configuration than {node} of #{instance}"));
                }
            }
        }
        None
    }

    /// Whether another look may show more: a replica that answers has not been compared yet.
    pub fn is_open(&self, verdict: &AdminReply) -> bool {
        let AdminReply::ReplicasChecked { missing, .. } = verdict else { return false };
        missing.iter().any(|replica| self.present.contains(replica))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::LocalReplica;
    use coppice_client::map::{ReplicaInfo, Role};

    const P1: PartitionId = PartitionId(1);

    fn map() -> PartitionMap {
        let on = |node: u32| ReplicaInfo { replica: ReplicaId(node), node: NodeId(node), role: Role::Voter };
        let replicas = (1..=3).map(on).collect();
        PartitionMap {
            partitions: vec![Entry { partition: P1, replicas, ..Entry::default() }],
            ..PartitionMap::default()
        }
    }

    fn told(rows: &[(u32, &[(u64, u64)])]) -> BTreeMap<NodeId, LocalStatus> {
        let of = |&(node, digests): &(u32, &[(u64, u64)])| {
            let replica = LocalReplica { digests: digests.to_vec(), ..LocalReplica::default() };
            (NodeId(node), LocalStatus { replicas: BTreeMap::from([(P1, replica)]), ..LocalStatus::default() })
        };
        rows.iter().map(of).collect()
    }

    #[test]
    fn replicas_are_compared_at_an_instance_that_all_have_over_several_looks() {
        let mut digests = Digests::default();
        digests.note(&told(&[(1, &[(7, 70)]), (2, &[(8, 80)]), (3, &[(7, 70)])]));
        let verdict = digests.compare(&map());
        assert_eq!(
            verdict,
            AdminReply::ReplicasChecked { partitions: vec![(P1, 7, 70)], missing: vec![(P1, NodeId(2))] }
        );
        assert!(digests.is_open(&verdict));
        digests.note(&told(&[(1, &[(9, 90)]), (2, &[(9, 90)]), (3, &[(9, 90)])]));
        let verdict = digests.compare(&map());
        assert_eq!(verdict, AdminReply::ReplicasChecked { partitions: vec![(P1, 9, 90)], missing: vec![] });
        assert!(!digests.is_open(&verdict));
    }

    #[test]
    fn one_differing_digest_at_any_instance_is_a_mismatch() {
        let mut digests = Digests::default();
        digests.note(&told(&[(1, &[(7, 70), (8, 80)]), (2, &[(7, 71), (8, 80)]), (3, &[(8, 80)])]));
        assert!(
            matches!(digests.compare(&map()), AdminReply::Failed(AdminError::Mismatch(text)) if text.contains("#7"))
        );
    }

    #[test]
    fn another_configuration_of_the_same_instance_is_a_mismatch() {
        let told = |rows: &[(u32, u64, &[u32])]| -> BTreeMap<NodeId, LocalStatus> {
            let of = |&(node, configured_at, voters): &(u32, u64, &[u32])| {
                let voters = voters.iter().copied().map(ReplicaId).collect();
                let group = GroupReport { voters, configured_at, ..GroupReport::default() };
                let replica = LocalReplica { group, digests: vec![(9, 90)], ..LocalReplica::default() };
                (NodeId(node), LocalStatus { replicas: BTreeMap::from([(P1, replica)]), ..LocalStatus::default() })
            };
            rows.iter().map(of).collect()
        };
        let verdict = |rows: &[(u32, u64, &[u32])]| {
            let mut digests = Digests::default();
            digests.note(&told(rows));
            digests.compare(&map())
        };
        let right = [(1, 7, &[1, 2, 3][..]), (2, 7, &[1, 2, 3]), (3, 4, &[1, 2, 4])];
        assert!(matches!(verdict(&right), AdminReply::ReplicasChecked { .. }), "one lags, and knows an older one");
        let wrong = verdict(&[(1, 7, &[1, 2, 3]), (2, 7, &[1, 2, 4]), (3, 7, &[1, 2, 3])]);
        assert!(matches!(&wrong, AdminReply::Failed(AdminError::Mismatch(text)) if text.contains("#7")), "{wrong:?}");
        // What a replica begins with may be older on one node than on another.
        let begun = [(1, 0, &[1, 2, 3][..]), (2, 0, &[1, 2]), (3, 0, &[1, 2, 3])];
        assert!(matches!(verdict(&begun), AdminReply::ReplicasChecked { .. }));
    }

    #[test]
    fn a_node_that_is_down_is_missing_and_not_waited_for() {
        let mut digests = Digests::default();
        digests.note(&told(&[(1, &[(7, 70)]), (2, &[(7, 70)])]));
        let verdict = digests.compare(&map());
        assert_eq!(
            verdict,
            AdminReply::ReplicasChecked { partitions: vec![(P1, 7, 70)], missing: vec![(P1, NodeId(3))] }
        );
        assert!(!digests.is_open(&verdict));
    }
}
