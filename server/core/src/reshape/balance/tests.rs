//! Plans of drawn clusters, and what each must keep to.

use bytes::Bytes;
use coppice_client::map::{Addresses, NodeInfo, PartitionMap, ReplicaInfo};
use coppice_client::wire::{ChangeId, MapVersion, NodeStatus};
use proptest::prelude::*;

use super::*;
use crate::machine::directory::{Change, Move};
use crate::reshape::{Sizing, merge, split};
use crate::settings::AutoSplit;
use crate::status::{GroupReport, LocalReplica, LocalStatus};

const SECOND: u64 = 1_000_000_000;

/// A partition: who leads it, on which nodes it is, operations per second, bytes.
#[derive(Clone, Debug)]
struct Part {
    leader: u32,
    nodes: Vec<u32>,
    rate: u64,
    bytes: u64,
}

/// A cluster as the leader of the directory sees it.
#[derive(Clone, Debug)]
struct Cluster {
    nodes: u32,
    parts: Vec<Part>,
    /// Counters of the leaders.
    operations: Vec<u64>,
    now: u64,
    loads: Loads,
    pace: Pace,
}

impl Cluster {
    fn new(nodes: u32, parts: Vec<Part>) -> Cluster {
        let operations = vec![0; parts.len()];
        Cluster { nodes, parts, operations, now: SECOND, loads: Loads::default(), pace: Pace::default() }
    }

    /// Watched for so many seconds, in which each partition is asked for as much as `rates` says of it.
    fn watch(&mut self, seconds: u64, rates: impl Fn(usize, u64) -> u64) {
        for second in 0..seconds {
            let (state, view) = self.seen();
            self.loads.note(Time(self.now), &state, &view, &self.pace);
            self.now += SECOND;
            for (at, operations) in self.operations.iter_mut().enumerate() {
                *operations += rates(at, second);
            }
        }
        let (state, view) = self.seen();
        self.loads.note(Time(self.now), &state, &view, &self.pace);
    }

    fn watched(mut self) -> Cluster {
        let rates: Vec<u64> = self.parts.iter().map(|part| part.rate).collect();
        self.watch(20, |at, _| rates[at]);
        self
    }

    fn seen(&self) -> (DirectoryState, View) {
        let node = |id| NodeInfo {
            id: NodeId(id),
            name: String::new(),
            addresses: Addresses::default(),
            state: NodeState::Member,
        };
        let info = |&node: &u32| ReplicaInfo { replica: ReplicaId(node), node: NodeId(node), role: Role::Voter };
        let entry = |(at, part): (usize, &Part)| Entry {
            partition: PartitionId(at as u32 + 1),
            low: if at == 0 { Bytes::new() } else { Bytes::from(vec![at as u8]) },
            high: (at + 1 < self.parts.len()).then(|| Bytes::from(vec![at as u8 + 1])),
            version: MapVersion(1),
            replicas: part.nodes.iter().map(info).collect(),
        };
        let map = PartitionMap {
            version: MapVersion(1),
            nodes: (1..=self.nodes).map(node).collect(),
            partitions: self.parts.iter().enumerate().map(entry).collect(),
            ..PartitionMap::default()
        };
        let mut nodes: BTreeMap<NodeId, LocalStatus> = (1..=self.nodes)
            .map(|id| {
                let node = NodeStatus { id: NodeId(id), ..NodeStatus::default() };
                (NodeId(id), LocalStatus { node, ..LocalStatus::default() })
            })
            .collect();
        for (at, part) in self.parts.iter().enumerate() {
            let group = GroupReport {
                voters: part.nodes.iter().map(|&id| ReplicaId(id)).collect(),
                durable: part.nodes.iter().map(|&id| (ReplicaId(id), 0)).collect(),
                ..GroupReport::default()
            };
            let (operations, bytes) = (self.operations[at], part.bytes);
            let replica = LocalReplica { leads: true, operations, bytes, group, ..LocalReplica::default() };
            let leader = nodes.get_mut(&NodeId(part.leader)).expect("known");
            leader.replicas.insert(PartitionId(at as u32 + 1), replica);
        }
        (DirectoryState { map, ..DirectoryState::default() }, View::new(nodes))
    }

    fn with<T>(&self, look: impl FnOnce(&Situation<'_>) -> T) -> T {
        let (state, view) = self.seen();
        self.with_state(&state, &view, look)
    }

    fn with_state<T>(&self, state: &DirectoryState, view: &View, look: impl FnOnce(&Situation<'_>) -> T) -> T {
        look(&Situation { state, view, loads: &self.loads, pace: &self.pace, replicas: 3, now: Time(self.now) })
    }

    fn plan(&self) -> Vec<Proposal> {
        self.with(|situation| plan(situation, &Resting::default()))
    }

    /// As a leader transfer or a move does it.
    fn carry_out(&mut self, shift: &Shift) {
        let part = &mut self.parts[shift.partition().0 as usize - 1];
        match *shift {
            Shift::Leader { from, to, .. } => {
                assert!(part.leader == from.0 && part.nodes.contains(&to.0) && from != to, "{shift:?} of {part:?}");
                part.leader = to.0;
            }
            Shift::Replica { from, to, .. } => {
                assert!(!part.nodes.contains(&to.0), "two replicas on one node: {shift:?} of {part:?}");
                let before = part.nodes.len();
                part.nodes.retain(|&node| node != from.0);
                part.nodes.push(to.0);
                assert_eq!(part.nodes.len(), before, "{shift:?} of {part:?}");
                if part.leader == from.0 {
                    part.leader = part.nodes[0];
                }
            }
        }
    }

    /// Operations per second that each node leads.
    fn led(&self) -> Vec<u64> {
        let led = |node| self.parts.iter().filter(|part| part.leader == node).map(|part| part.rate).sum();
        (1..=self.nodes).map(led).collect()
    }
}

fn part() -> impl Strategy<Value = (u64, u64, usize)> {
    (prop_oneof![Just(0), 0..400_u64, 0..20_000_u64], prop_oneof![Just(0), 0..1_u64 << 32], 0..3_usize)
}

fn cluster() -> impl Strategy<Value = Cluster> {
    (3..7_u32, proptest::collection::vec((part(), Just(()), any::<u32>()), 1..16)).prop_map(|(nodes, parts)| {
        let of = |((rate, bytes, leader), (), pick): ((u64, u64, usize), (), u32)| {
            // Three of the nodes, mostly the first ones.
            let first = if pick % 3 == 0 { pick / 3 % nodes } else { 0 };
            let on: Vec<u32> = (0..3).map(|next| (first + next) % nodes + 1).collect();
            Part { leader: on[leader], nodes: on, rate, bytes }
        };
        Cluster::new(nodes, parts.into_iter().map(of).collect()).watched()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// A plan keeps the number of replicas and never puts two on one node (`carry_out`), makes the cluster more even
    /// with each step, and is silent once it is carried out with the same load.
    #[test]
    fn a_plan_makes_the_cluster_more_even_step_by_step_and_has_an_end(cluster in cluster()) {
        let mut cluster = cluster;
        let mut spread = cluster.with(Spread::by_load);
        for _ in 0..4 {
            let mut begun = None;
            for Proposal { shift, .. } in cluster.plan() {
                let (holds, leads) = begun.unwrap_or(spread.scores());
                cluster.carry_out(&shift);
                spread.apply(&shift);
                let (holds_now, leads_now) = spread.scores();
                let was_begun = begun.take().is_some();
                match shift {
                    Shift::Leader { .. } if leads_now < leads * (1.0 - 1e-6) => {}
                    Shift::Replica { .. } if holds_now < holds * (1.0 - 1e-6) => {}
                    // The next step goes with it: both together make leaders more even.
                    _ => {
                        prop_assert!(!was_begun, "{shift:?}");
                        begun = Some((holds, leads));
                    }
                }
            }
            prop_assert!(begun.is_none());
        }
        prop_assert_eq!(cluster.plan(), []);
    }

}

/// One of two nodes leads a little more than the other, now this one, now that one; a third partition is light enough
/// to go to and fro between them.
#[test]
fn nothing_moves_to_and_fro_while_loads_tremble() {
    let parts = vec![part_of(1, &[1, 2, 3], 1_000), part_of(2, &[1, 2, 3], 990), part_of(1, &[1, 2, 3], 30)];
    let mut cluster = Cluster::new(3, parts).watched();
    cluster.parts.push(part_of(3, &[1, 2, 3], 1_000));
    cluster.operations.push(0);
    let mut moves = 0;
    for period in 0..20 {
        let rate = |at: usize| if (at + period).is_multiple_of(2) { 1_050 } else { 950 };
        cluster.watch(20, |at, _| if at == 2 { 30 } else { rate(at) });
        for proposal in cluster.plan() {
            moves += 1;
            cluster.carry_out(&proposal.shift);
        }
    }
    assert!(moves <= 1, "{moves}");
}

fn part_of(leader: u32, nodes: &[u32], rate: u64) -> Part {
    Part { leader, nodes: nodes.to_vec(), rate, bytes: 1 << 20 }
}

/// Six partitions on the first three of six nodes, all led by the first one.
fn crowded() -> Cluster {
    let parts = (0..6).map(|at| part_of(1, &[1, 2, 3], if at == 0 { 6_000 } else { 1_000 })).collect();
    Cluster::new(6, parts).watched()
}

#[test]
fn nodes_that_came_get_leaders_and_replicas_and_each_step_says_why() {
    let mut cluster = crowded();
    let steps = cluster.plan();
    assert_eq!(
        steps[0].to_string(),
        "p1: the leader moves from n1 to n2: n1 leads 6 with 11000 op/s, n2 0 with 0; p1 has 6000"
    );
    assert!(steps.iter().any(|step| step.to_string().contains("replicas, ")), "{steps:?}");
    for _ in 0..3 {
        cluster.plan().iter().for_each(|proposal| cluster.carry_out(&proposal.shift));
    }
    let mut led = cluster.led();
    led.sort_unstable();
    assert!(led[1..] == [1_000, 1_000, 1_000, 2_000, 6_000], "the hot one has a node of its own: {led:?}");
}

#[test]
fn what_is_not_known_is_not_acted_on() {
    let mut cluster = crowded();
    cluster.loads = Loads::default();
    cluster.watch(5, |_, _| 1_000);
    assert_eq!(cluster.plan(), []);
    assert_eq!(cluster.with(|situation| situation.unknown().len()), 6);
    cluster.watch(10, |_, _| 1_000);
    assert_ne!(cluster.plan(), []);
}

#[test]
fn a_partition_that_is_being_changed_stays_where_it_is_and_learners_lead_nothing() {
    let cluster = crowded();
    let (mut state, view) = cluster.seen();
    let touches = |state: &DirectoryState, partition| {
        let steps = cluster.with_state(state, &view, |situation| plan(situation, &Resting::default()));
        steps.into_iter().map(|step| step.shift).filter(|shift| shift.partition() == partition).collect::<Vec<_>>()
    };
    assert_ne!(touches(&state, PartitionId(1)), []);
    let add = Move { partition: PartitionId(1), add: vec![ReplicaId(4)], remove: Vec::new(), cancelled: false };
    state.changes.insert(ChangeId(1), Change::Move(add));
    assert_eq!(touches(&state, PartitionId(1)), []);
    state.changes.clear();
    for info in &mut state.map.partitions[0].replicas {
        if info.node != NodeId(1) {
            info.role = Role::Learner;
        }
    }
    assert_eq!(touches(&state, PartitionId(1)), []);
}

#[test]
fn a_replica_is_not_moved_while_a_node_is_away() {
    let cluster = crowded();
    let (state, _) = cluster.seen();
    let (_, view) = Cluster { nodes: 5, ..cluster.clone() }.seen();
    let steps = cluster.with_state(&state, &view, |situation| plan(situation, &Resting::default()));
    assert!(!steps.is_empty() && steps.iter().all(|step| matches!(step.shift, Shift::Leader { .. })), "{steps:?}");
}

/// The hot spot moves on every ten seconds, faster than a partition settles: leaders would follow it for ever.
#[test]
fn a_partition_that_has_just_moved_is_left_alone() {
    let cluster = crowded();
    let first = cluster.plan()[0].shift.partition();
    let resting = Resting { leaders: [first].into(), replicas: [first].into() };
    let steps = cluster.with(|situation| plan(situation, &resting));
    assert!(steps.iter().all(|step| step.shift.partition() != first), "{steps:?}");
}

#[test]
fn a_partition_that_is_too_large_or_too_hot_is_split() {
    let mut cluster = crowded();
    let none = BTreeSet::new();
    let cut = |cluster: &Cluster, when| cluster.with(|situation| split(situation, when, &none));
    let of = |partition, by_load| Sizing::Split { partition: PartitionId(partition), by_load };
    assert_eq!(cut(&cluster, AutoSplit::Off), None);
    assert_eq!(cut(&cluster, AutoSplit::Size(1 << 20)), None);
    cluster.parts[3].bytes += 1;
    cluster.watch(1, |_, _| 0);
    let (sizing, reason) = cut(&cluster, AutoSplit::Size(1 << 20)).expect("it is too large");
    assert_eq!((sizing, &reason[..]), (of(4, false), "it has 1.0 MiB, more than auto_split allows (1.0 MiB)"));
    let cluster = crowded();
    let (sizing, reason) = cut(&cluster, AutoSplit::Load).expect("it is too hot");
    assert_eq!((sizing, &reason[..]), (of(1, true), "it has 6000 op/s, of 1833 for each node"));
    let held = BTreeSet::from([PartitionId(1)]);
    assert_eq!(cluster.with(|situation| split(situation, AutoSplit::Load, &held)).map(|(sizing, _)| sizing), {
        // The others have a thousand each, which is more than half of the mean, and not too hot by itself.
        None
    });
}

#[test]
fn neighbours_are_merged_once_both_were_small_and_cold_for_long() {
    let parts = |rate| (0..5).map(|at| part_of(1, &[1, 2, 3], if at == 4 { 5_000 } else { rate })).collect();
    let next = |cluster: &Cluster, when| cluster.with(|situation| merge(situation, when)).map(|(sizing, _)| sizing);
    let mut cluster = Cluster::new(3, parts(10)).watched();
    assert_eq!(next(&cluster, AutoSplit::Load), None, "not for long");
    cluster.watch(600, |at, _| if at == 4 { 5_000 } else { 10 });
    let merged = Sizing::Merge { partition: PartitionId(2), into: PartitionId(1) };
    assert_eq!(next(&cluster, AutoSplit::Load), Some(merged.clone()));
    assert_eq!(next(&cluster, AutoSplit::Size(8 << 20)), Some(merged));
    assert_eq!(next(&cluster, AutoSplit::Size(7 << 20)), None, "a quarter of what splits");
    cluster.parts[1].nodes = vec![1, 2, 4];
    cluster.nodes = 4;
    let beside = Sizing::Join { partition: PartitionId(2), to: [1, 2, 3].map(NodeId).to_vec() };
    assert_eq!(next(&cluster, AutoSplit::Load), Some(beside), "side by side first");
    cluster.nodes = 5;
    assert_eq!(next(&cluster, AutoSplit::Load), None, "each node has something to lead");
    let mut hot = Cluster::new(3, parts(200)).watched();
    hot.watch(600, |at, _| if at == 4 { 5_000 } else { 200 });
    assert_eq!(next(&hot, AutoSplit::Load), None, "far below what splits, or not at all");
}

/// What was split has other boundaries, and is watched anew.
#[test]
fn a_partition_that_was_split_is_not_merged_soon() {
    let parts = (0..5).map(|_| part_of(1, &[1, 2, 3], 10)).collect();
    let mut cluster = Cluster::new(3, parts).watched();
    cluster.watch(600, |_, _| 10);
    // The last one is cut: it and the new one begin anew.
    cluster.parts.push(part_of(1, &[1, 2, 3], 10));
    cluster.operations.push(0);
    cluster.watch(30, |_, _| 10);
    let (state, _) = cluster.seen();
    let cold = |id| cluster.with(|situation| situation.load(PartitionId(id))).and_then(|load| load.cold_since);
    let last = state.map.partitions.len() as u32;
    assert!(cold(1) < cold(last - 1) && cold(last - 1) <= cold(last), "{:?} {:?}", cold(last - 1), cold(last));
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_the_planner_are_caught() {
    for (mutant, test) in [
        ("balance_counts_learners", "a_partition_that_is_being_changed_stays_where_it_is_and_learners_lead_nothing"),
        (
            "balance_forgets_what_is_under_way",
            "a_partition_that_is_being_changed_stays_where_it_is_and_learners_lead_nothing",
        ),
        ("balance_without_margin", "nothing_moves_to_and_fro_while_loads_tremble"),
        ("unknown_load_is_zero", "what_is_not_known_is_not_acted_on"),
        ("merge_without_patience", "neighbours_are_merged_once_both_were_small_and_cold_for_long"),
        ("hot_is_merged", "neighbours_are_merged_once_both_were_small_and_cold_for_long"),
    ] {
        planted::assert_caught(mutant, &format!("reshape::balance::tests::{test}"));
    }
}
