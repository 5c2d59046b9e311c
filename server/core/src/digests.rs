//! Comparing replicas by the digests of their states at logged positions (hazards.md E6): for `check replicas`, and for
//! the check that each node makes by itself.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use coppice_client::map::{Entry, PartitionMap};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, NodeId, PartitionId, ReplicaId};

use crate::status::{GroupReport, LocalStatus};

/// Between two looks at replicas that had no instance in common, while they go on deciding.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks at most.
const LOOKS_MAX: u32 = 40;

/// Digests of states by replica and instance, as told so far.
#[derive(Debug, Default)]
pub struct Digests {
    /// How often the nodes told theirs.
    looks: u32,
    by_replica: BTreeMap<(PartitionId, NodeId), BTreeMap<u64, u64>>,
    /// Decided configurations by replica, and the instances that decided them. They are no part of the digests: the
    /// ordering core holds them, not the machine.
    configurations: BTreeMap<(PartitionId, NodeId), BTreeMap<u64, Members>>,
    /// Replicas that answer.
    present: Vec<(PartitionId, NodeId)>,
}

/// What comes of comparing replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Two that should be equal are not: which, and where.
    Mismatch(String),
    Agreement {
        /// Groups whose replicas agree, with an instance of which most have told a digest, and that digest.
        partitions: Vec<(PartitionId, u64, u64)>,
        /// Replicas that could not be compared.
        missing: Vec<(PartitionId, NodeId)>,
    },
}

impl From<Comparison> for AdminReply {
    fn from(comparison: Comparison) -> AdminReply {
        match comparison {
            Comparison::Mismatch(text) => AdminReply::Failed(AdminError::Mismatch(text)),
            Comparison::Agreement { partitions, missing } => AdminReply::ReplicasChecked { partitions, missing },
        }
    }
}

/// Voters and learners, ascending.
type Members = (Vec<ReplicaId>, Vec<ReplicaId>);

/// Who votes and who learns, and what decided that; none: no instance did yet, and what a replica begins with is told
/// by whoever starts it.
fn members(report: &GroupReport) -> Option<(u64, Members)> {
    (report.configured_at > 0).then(|| (report.configured_at, (report.voters.clone(), report.learners.clone())))
}

impl Digests {
    /// Compares what the nodes tell now, and told before: the outcome, or, under load, the pause before they are asked
    /// again, since a replica that answers has not been compared yet.
    pub fn look(
        &mut self,
        map: &PartitionMap,
        known: &BTreeMap<NodeId, LocalStatus>,
    ) -> ControlFlow<Comparison, Duration> {
        self.note(known);
        let comparison = self.compare(map);
        match self.is_open(&comparison) && self.looks < LOOKS_MAX {
            true => ControlFlow::Continue(LOOK_AGAIN),
            false => ControlFlow::Break(comparison),
        }
    }

    /// Takes in what the nodes tell now.
    fn note(&mut self, known: &BTreeMap<NodeId, LocalStatus>) {
        self.looks += 1;
        self.present.clear();
        for (&node, local) in known {
            for (&partition, replica) in &local.replicas {
                self.present.push((partition, node));
                self.by_replica.entry((partition, node)).or_default().extend(replica.digests.iter().copied());
                self.configurations.entry((partition, node)).or_default().extend(members(&replica.group));
            }
        }
    }

    /// Compares what was told so far.
    pub fn compare(&self, map: &PartitionMap) -> Comparison {
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
                    return Comparison::Mismatch(text);
                }
            }
            if let Some(text) = self.configurations_differ(entry) {
                return Comparison::Mismatch(text);
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
        Comparison::Agreement { partitions, missing }
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
    fn is_open(&self, comparison: &Comparison) -> bool {
        let Comparison::Agreement { missing, .. } = comparison else { return false };
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
        let apart = told(&[(1, &[(7, 70)]), (2, &[(8, 80)]), (3, &[(7, 70)])]);
        assert_eq!(digests.look(&map(), &apart), ControlFlow::Continue(LOOK_AGAIN));
        let agreement = Comparison::Agreement { partitions: vec![(P1, 7, 70)], missing: vec![(P1, NodeId(2))] };
        assert_eq!(digests.compare(&map()), agreement);
        let together = told(&[(1, &[(9, 90)]), (2, &[(9, 90)]), (3, &[(9, 90)])]);
        let agreement = Comparison::Agreement { partitions: vec![(P1, 9, 90)], missing: vec![] };
        assert_eq!(digests.look(&map(), &together), ControlFlow::Break(agreement));
    }

    #[test]
    fn replicas_that_never_meet_are_not_looked_at_for_ever() {
        let (mut digests, apart) = (Digests::default(), told(&[(1, &[(7, 70)]), (2, &[(8, 80)]), (3, &[(7, 70)])]));
        let looks = (1..).find(|_| digests.look(&map(), &apart).is_break());
        assert_eq!(looks, Some(LOOKS_MAX));
    }

    #[test]
    fn one_differing_digest_at_any_instance_is_a_mismatch() {
        let mut digests = Digests::default();
        digests.note(&told(&[(1, &[(7, 70), (8, 80)]), (2, &[(7, 71), (8, 80)]), (3, &[(8, 80)])]));
        assert!(matches!(digests.compare(&map()), Comparison::Mismatch(text) if text.contains("#7")));
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
        assert!(matches!(verdict(&right), Comparison::Agreement { .. }), "one lags, and knows an older one");
        let wrong = verdict(&[(1, 7, &[1, 2, 3]), (2, 7, &[1, 2, 4]), (3, 7, &[1, 2, 3])]);
        assert!(matches!(&wrong, Comparison::Mismatch(text) if text.contains("#7")), "{wrong:?}");
        // What a replica begins with may be older on one node than on another.
        let begun = [(1, 0, &[1, 2, 3][..]), (2, 0, &[1, 2]), (3, 0, &[1, 2, 3])];
        assert!(matches!(verdict(&begun), Comparison::Agreement { .. }));
    }

    #[test]
    fn a_node_that_is_down_is_missing_and_not_waited_for() {
        let mut digests = Digests::default();
        let agreement = Comparison::Agreement { partitions: vec![(P1, 7, 70)], missing: vec![(P1, NodeId(3))] };
        let told = told(&[(1, &[(7, 70)]), (2, &[(7, 70)])]);
        assert_eq!(digests.look(&map(), &told), ControlFlow::Break(agreement));
    }
}
