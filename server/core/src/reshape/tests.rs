//! The planner driven against a small model of the cluster, and the refusals that operators meet.

mod refusals;
mod replicas;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{
    ChangeId, ClusterId, MapVersion, NodeId, NodeStatus, PartitionId, ReplicaId, ReshapeRequest, Shape,
};
use coppice_ordering::{Batch, Commands, Instance};

use super::{Step, Verdict, View, even_leaders, no_median, steps, verdict};
use crate::machine::directory::{Directory, DirectoryCommand, DirectoryState, Reshape};
use crate::status::{GroupReport, LocalReplica, LocalStatus};

/// A cluster of groups that do at once what they are asked, unless a node of theirs is down.
struct Model {
    directory: Directory,
    groups: BTreeMap<PartitionId, (NodeId, GroupReport)>,
    down: BTreeSet<NodeId>,
    full: BTreeSet<NodeId>,
    /// Leader transfers are not obeyed.
    stubborn: bool,
    /// The cluster's setting.
    replicas: usize,
    log: Vec<String>,
}

fn voter(replica: u32, node: u32) -> ReplicaInfo {
    ReplicaInfo { replica: ReplicaId(replica), node: NodeId(node), role: Role::Voter }
}

impl Model {
    fn new(nodes: u32, partitions: u32) -> Model {
        let info = |id| NodeInfo {
            id: NodeId(id),
            name: String::new(),
            addresses: Addresses { peer: format!("h{id}:2"), ..Addresses::default() },
            state: NodeState::Member,
        };
        let on = nodes.min(3);
        let entry = |id: u32| Entry {
            partition: PartitionId(id),
            low: if id < 2 { Bytes::new() } else { Bytes::from(vec![id as u8]) },
            high: (id > 0 && id < partitions).then(|| Bytes::from(vec![id as u8 + 1])),
            version: MapVersion(1),
            replicas: (1..=on).map(|n| voter(n, n)).collect(),
        };
        let map = PartitionMap {
            cluster: ClusterId(7),
            version: MapVersion(1),
            nodes: (1..=nodes).map(info).collect(),
            directory: Some(entry(0)),
            partitions: (1..=partitions).map(entry).collect(),
            ending: Vec::new(),
        };
        map.check().expect("a whole map");
        let report = GroupReport { voters: (1..=on).map(ReplicaId).collect(), ..GroupReport::default() };
        let groups = (0..=partitions).map(|id| (PartitionId(id), (NodeId(1), report.clone()))).collect();
        let mut directory = Directory::new(DirectoryState::default());
        let create = DirectoryCommand::Create { map, settings: BTreeMap::new() };
        let (down, full) = (BTreeSet::new(), BTreeSet::new());
        let mut model =
            Model { directory: directory.clone(), groups, down, full, stubborn: false, replicas: 3, log: vec![] };
        execute(&mut directory, &create);
        model.directory = directory;
        model
    }

    fn state(&self) -> &DirectoryState {
        self.directory.state()
    }

    fn view(&self) -> View {
        let mut nodes = BTreeMap::new();
        for node in self.state().map.nodes.iter().filter(|node| !self.down.contains(&node.id)) {
            let mut local =
                LocalStatus { node: NodeStatus { id: node.id, ..NodeStatus::default() }, ..LocalStatus::default() };
            local.full = self.full.contains(&node.id).then(|| "its disk is".to_owned());
            for (&group, (leader, report)) in &self.groups {
                if *leader == node.id {
                    let replica = LocalReplica { leads: true, group: report.clone(), ..LocalReplica::default() };
                    local.replicas.insert(group, replica);
                }
            }
            nodes.insert(node.id, local);
        }
        View::new(nodes)
    }

    /// Plans once and does it; the leaders of these groups were asked to hand over, and did not.
    fn turn(&mut self, tried: &[u32]) -> usize {
        let tried = tried.iter().map(|&id| PartitionId(id)).collect();
        let steps = steps(self.state(), &self.view(), self.replicas, &tried);
        let count = steps.len();
        for step in steps {
            self.log.push(format!("{step:?}"));
            self.take(step);
        }
        count
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Decide(command) => execute(&mut self.directory, &command),
            Step::Transfer { partition, to, .. } if !self.stubborn => {
                self.groups.get_mut(&partition).expect("known").0 = to;
            }
            Step::Transfer { .. } => {}
            Step::Assign { node } => {
                execute(&mut self.directory, &DirectoryCommand::Reshape(Reshape::Joined { node }));
            }
            Step::Configure { partition, expected, configuration, .. } => {
                let map = &self.directory.state().map;
                let (leader, report) = self.groups.get_mut(&partition).expect("known");
                assert_eq!(report.configured_at, expected);
                let entry = map.entry(partition).expect("known");
                let node = |id: ReplicaId| entry.node_of(id).expect("the map names every member");
                report.voters = configuration.voters.iter().map(|id| ReplicaId(id.0)).collect();
                report.learners = configuration.learners.iter().map(|id| ReplicaId(id.0)).collect();
                report.configured_at += 10;
                report.decided_upto = report.configured_at;
                report.held_upto = report.configured_at;
                let up = entry.replicas.iter().filter(|info| !self.down.contains(&info.node));
                report.durable = up.map(|info| (info.replica, report.decided_upto)).collect();
                assert!(
                    report.voters.iter().any(|&id| !self.down.contains(&node(id))),
                    "{partition} has lost everybody"
                );
                if !report.voters.contains(&entry.replica_on(*leader).expect("it led").replica) {
                    *leader = node(report.voters[0]);
                }
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            if self.turn(&[]) == 0 {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", &self.log[self.log.len() - 8..]);
    }

    fn nodes_of(&self, group: u32) -> Vec<u32> {
        let entry = self.state().map.entry(PartitionId(group)).expect("known");
        entry.replicas.iter().map(|info| info.node.0).collect()
    }

    fn ask(&self, shape: Shape, force: bool) -> Result<Verdict, AdminError> {
        let change = ChangeId(if matches!(shape, Shape::Move { .. }) { 1 } else { 2 });
        let request = ReshapeRequest { change, shape, dry_run: false, force, within: None };
        verdict(self.state(), &self.view(), self.replicas, &request)
    }

    fn begin(&mut self, shape: Shape) {
        match self.ask(shape, false) {
            Ok(Verdict::Begin { command, .. }) => execute(&mut self.directory, &command),
            other => panic!("{other:?}"),
        }
    }

    fn why(&self, shape: Shape) -> String {
        match self.ask(shape, false) {
            Err(error) => error.to_string(),
            Ok(verdict) => panic!("{verdict:?}"),
        }
    }
}

fn execute(directory: &mut Directory, command: &DirectoryCommand) {
    let batch = Batch::Commands(Commands::new(1, crate::machine::entry::directory(command)));
    directory.execute(Instance(1), &batch, &mut Vec::new());
    assert_eq!(directory.state().map.check(), Ok(()));
}

fn relocation(partition: u32, to: &[u32]) -> Shape {
    Shape::Move { partition: PartitionId(partition), from: vec![], to: to.iter().map(|&node| NodeId(node)).collect() }
}

#[test]
fn a_calm_cluster_needs_no_step() {
    assert_eq!(Model::new(5, 4).turn(&[]), 0);
}

#[test]
fn a_move_goes_by_learners_and_a_leader_transfer_to_its_end() {
    let mut model = Model::new(4, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    model.settle();
    assert_eq!(model.nodes_of(1), [2, 3, 4]);
    let kinds: Vec<&str> = model.log.iter().map(|step| step.split([' ', '(']).next().unwrap_or_default()).collect();
    assert_eq!(kinds, ["Configure", "Transfer", "Configure", "Decide"], "{:#?}", model.log);
    assert!(model.state().changes.is_empty());
}

#[test]
fn a_leader_that_does_not_transfer_in_time_is_removed_all_the_same() {
    let mut model = Model::new(4, 1);
    model.stubborn = true;
    model.begin(relocation(1, &[2, 3, 4]));
    model.turn(&[]);
    model.turn(&[]);
    assert!(model.log[1].starts_with("Transfer"), "{:#?}", model.log);
    for _ in 0..3 {
        model.turn(&[1]);
    }
    assert_eq!(model.nodes_of(1), [2, 3, 4]);
}

#[test]
fn px19_nobody_is_taken_off_the_map_before_a_quorum_holds_the_log() {
    let mut model = Model::new(6, 1);
    model.begin(relocation(1, &[4, 5, 6]));
    model.turn(&[]);
    model.turn(&[]);
    let report = &mut model.groups.get_mut(&PartitionId(1)).expect("known").1;
    assert_eq!(report.voters, [4, 5, 6].map(ReplicaId));
    report.held_upto -= 1;
    assert_eq!(model.turn(&[]), 0, "the old ones must stay");
    assert_eq!(model.nodes_of(1).len(), 6);
    model.groups.get_mut(&PartitionId(1)).expect("known").1.held_upto += 1;
    model.settle();
    assert_eq!(model.nodes_of(1), [4, 5, 6]);
}

#[test]
fn a_learner_that_lags_does_not_vote() {
    let mut model = Model::new(4, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    model.turn(&[]);
    let report = &mut model.groups.get_mut(&PartitionId(1)).expect("known").1;
    report.decided_upto += 1_000;
    assert_eq!(model.turn(&[]), 0);
    let report = &mut model.groups.get_mut(&PartitionId(1)).expect("known").1;
    report.durable = vec![(ReplicaId(4), report.decided_upto)];
    model.settle();
    assert_eq!(model.nodes_of(1), [2, 3, 4]);
}

#[test]
fn a_cancelled_move_sends_its_learners_away() {
    let mut model = Model::new(4, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    model.turn(&[]);
    execute(&mut model.directory, &DirectoryCommand::Reshape(Reshape::Cancel { change: ChangeId(1) }));
    model.settle();
    assert_eq!(model.nodes_of(1), [1, 2, 3]);
    assert!(model.groups[&PartitionId(1)].1.learners.is_empty());
}

#[test]
fn a_learner_that_came_late_to_a_cancelled_move_goes() {
    let mut model = Model::new(4, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    let steps = steps(model.state(), &model.view(), 3, &BTreeSet::new());
    let [late @ Step::Configure { .. }] = &steps[..] else { panic!("{steps:?}") };
    // It is on its way to the leader while the move is called off, and ends.
    execute(&mut model.directory, &DirectoryCommand::Reshape(Reshape::Cancel { change: ChangeId(1) }));
    model.settle();
    let report = &mut model.groups.get_mut(&PartitionId(1)).expect("known").1;
    let Step::Configure { configuration, .. } = late else { panic!("{late:?}") };
    report.learners = configuration.learners.iter().map(|id| ReplicaId(id.0)).collect();
    report.configured_at += 10;
    model.settle();
    assert!(model.groups[&PartitionId(1)].1.learners.is_empty(), "nobody asks for it");
    assert_eq!((model.nodes_of(1), model.state().changes.len()), (vec![1, 2, 3], 0));
}

#[test]
fn a_move_onto_a_node_that_goes_is_called_off() {
    let mut model = Model::new(5, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    model.turn(&[]);
    // It died before it caught up, and node 5 is to take its place.
    model.down.insert(NodeId(4));
    let report = &mut model.groups.get_mut(&PartitionId(1)).expect("known").1;
    report.decided_upto += 1_000;
    assert_eq!(model.turn(&[]), 0);
    model.begin(Shape::RemoveNode { node: NodeId(4) });
    model.settle();
    assert_eq!(model.nodes_of(1), [1, 2, 3]);
    assert!(model.groups[&PartitionId(1)].1.learners.is_empty());
    assert_eq!(model.state().map.node(NodeId(4)).map(|node| node.state), Some(NodeState::Removed));
}

/// In a young group whoever has not even begun lacks only a few instances.
#[test]
fn a_learner_that_is_not_there_does_not_become_a_voter() {
    let mut model = Model::new(5, 1);
    model.begin(relocation(1, &[2, 3, 4]));
    model.down.insert(NodeId(4));
    assert_ne!(model.turn(&[]), 0);
    assert_eq!(model.turn(&[]), 0, "{:?}", model.log);
    let report = |model: &Model| model.groups[&PartitionId(1)].1.clone();
    assert_eq!(report(&model).voters, [1, 2, 3].map(ReplicaId));
    // It comes, and says how far it is.
    model.down.clear();
    let (at, learner) = (report(&model).configured_at, report(&model).learners[0]);
    model.groups.get_mut(&PartitionId(1)).expect("known").1.durable.push((learner, at));
    model.settle();
    assert_eq!(model.nodes_of(1), [2, 3, 4]);
}

#[test]
fn a_drained_node_ends_up_holding_and_leading_nothing() {
    let mut model = Model::new(5, 3);
    model.begin(Shape::DrainNode { node: NodeId(1) });
    model.settle();
    for group in 0..=3 {
        assert!(!model.nodes_of(group).contains(&1), "p{group} is on {:?}", model.nodes_of(group));
        assert_ne!(model.groups[&PartitionId(group)].0, NodeId(1));
    }
    assert!(matches!(model.ask(Shape::DrainNode { node: NodeId(1) }, false), Ok(Verdict::Progress(done)) if done.done));
    model.begin(Shape::RemoveNode { node: NodeId(1) });
    model.settle();
    assert_eq!(model.state().map.node(NodeId(1)).map(|node| node.state), Some(NodeState::Removed));
}

#[test]
fn a_dead_node_is_replaced_by_the_one_that_was_named() {
    let mut model = Model::new(5, 2);
    model.down.insert(NodeId(2));
    let addresses = Addresses { peer: "h2:2".into(), ..Addresses::default() };
    let register = Reshape::Register { name: String::new(), addresses, replaces: Some(NodeId(2)) };
    execute(&mut model.directory, &DirectoryCommand::Reshape(register));
    model.settle();
    for group in 0..=2 {
        assert_eq!(model.nodes_of(group), [1, 3, 6], "its successor, not any other");
    }
    assert_eq!(model.state().map.node(NodeId(2)).map(|node| node.state), Some(NodeState::Removed));
}

#[test]
fn missing_replicas_come_as_nodes_join() {
    let mut model = Model::new(1, 2);
    for node in [2, 3, 4] {
        let addresses = Addresses { peer: format!("h{node}:2"), ..Addresses::default() };
        let register = Reshape::Register { name: String::new(), addresses, replaces: None };
        execute(&mut model.directory, &DirectoryCommand::Reshape(register));
        model.settle();
    }
    for group in 0..=2 {
        assert_eq!(model.nodes_of(group).len(), 3);
    }
}

#[test]
fn leaderships_become_even() {
    let mut model = Model::new(3, 6);
    for (_, report) in model.groups.values_mut() {
        report.durable = (1..=3).map(|id| (ReplicaId(id), 0)).collect();
    }
    while let Some(step) = even_leaders(model.state(), &model.view()) {
        model.take(step);
    }
    let leads = |node| model.groups.values().filter(|(leader, _)| *leader == NodeId(node)).count();
    let counts = [leads(1), leads(2), leads(3)];
    assert!(counts.iter().all(|count| (2..=3).contains(count)), "{counts:?}");
    assert_eq!(model.groups[&PartitionId(0)].0, NodeId(1), "the directory stays");
}

#[test]
fn what_would_lose_a_quorum_is_refused_with_the_reason() {
    let mut model = Model::new(5, 1);
    let because = |text: String, words: &str| assert!(text.contains(words), "{text}");
    because(model.why(relocation(1, &[])), "no replica left");
    because(model.why(relocation(1, &[1, 2])), "set `replicas` first");
    because(model.why(relocation(7, &[1, 2, 3])), "no partition p7");
    because(model.why(relocation(1, &[1, 2, 9])), "no node n9");
    because(model.why(relocation(1, &[9])), "no node n9");
    because(model.why(relocation(1, &[2])), "would have 1 replica and get another at once");
    model.down.insert(NodeId(4));
    because(model.why(relocation(1, &[1, 2, 4])), "n4 does not answer");
    model.down.extend([NodeId(2), NodeId(3)]);
    because(model.why(relocation(1, &[1, 5, 3])), "no quorum");
    because(model.why(Shape::RemoveNode { node: NodeId(3) }), "no quorum");
    because(model.why(Shape::RemoveNode { node: NodeId(8) }), "no node n8");
}

#[test]
fn a_node_without_a_place_for_its_replicas_stays() {
    let mut model = Model::new(3, 1);
    let remove = Shape::RemoveNode { node: NodeId(3) };
    assert!(model.why(remove.clone()).contains("add a node first"), "{}", model.why(remove.clone()));
    let Ok(Verdict::Begin { command, .. }) = model.ask(remove, true) else { panic!("forced") };
    execute(&mut model.directory, &command);
    model.settle();
    assert_eq!(model.nodes_of(1), [1, 2]);
    let mut model = Model::new(1, 1);
    let last = Shape::RemoveNode { node: NodeId(1) };
    assert!(model.why(last.clone()).contains("last node"), "{}", model.why(last));
    model.down.clear();
}

/// `partition move p1 --to n1 --force` was done, and said `p1 is on n1 n2`: the plan had begun to undo it.
#[test]
fn a_move_that_would_be_undone_at_once_is_refused_even_when_forced() {
    let mut model = Model::new(3, 1);
    let alone = || relocation(1, &[1]);
    let because = |text: String, words: &str| assert!(text.contains(words), "{text}");
    because(model.ask(alone(), true).expect_err("a refusal").to_string(), "`replicas` is 3");
    model.down.extend([NodeId(2)]);
    because(model.ask(alone(), true).expect_err("a refusal").to_string(), "on n3 perhaps");
    // Nobody is there to take another: that is what --force is for.
    because(model.why(relocation(1, &[1, 3])), "--force");
    assert!(matches!(model.ask(relocation(1, &[1, 3]), true), Ok(Verdict::Begin { .. })));
}

/// `node add` and `partition split --to` were tried for 30 s: a leader that had lost its quorum took itself for one.
#[test]
fn nothing_is_begun_while_the_directory_cannot_decide() {
    let mut model = Model::new(3, 1);
    let add = || Shape::AddNode { address: "h4:2".to_owned() };
    assert!(matches!(model.ask(add(), false), Ok(Verdict::Enlist { .. })));
    model.down.extend([NodeId(2), NodeId(3)]);
    let error = model.ask(add(), false).expect_err("a refusal");
    assert_eq!(error, AdminError::Unavailable("the directory has no quorum: 1 of its 3 voters answer".to_owned()));
}

/// `partition split p1` said of a partition that had no quorum to ask for its middle that it has fewer than two keys.
#[test]
fn a_partition_that_cannot_decide_is_not_called_empty() {
    let mut model = Model::new(5, 1);
    model.begin(relocation(1, &[3, 4, 5]));
    model.settle();
    let split = || Shape::Split { partition: Some(PartitionId(1)), at: None };
    let leader = NodeId(3);
    assert_eq!(model.ask(split(), false), Ok(Verdict::Median { partition: PartitionId(1), leader }));
    model.down.extend([NodeId(4), NodeId(5)]);
    let error = model.ask(split(), false).expect_err("a refusal");
    assert_eq!(error, AdminError::Unavailable("p1 has no quorum: 1 of its 3 voters answer".to_owned()));
}

#[test]
fn a_node_that_drains_or_leaves_is_given_nothing() {
    let mut model = Model::new(5, 1);
    model.begin(Shape::DrainNode { node: NodeId(5) });
    assert!(model.why(relocation(1, &[1, 2, 5])).contains("takes no replicas"));
    model.begin(Shape::UndrainNode { node: NodeId(5) });
    model.begin(relocation(1, &[1, 2, 5]));
    assert!(matches!(model.ask(relocation(1, &[1, 2, 5]), false), Ok(Verdict::Progress(progress)) if !progress.done));
}

/// Seed 431: the coordinator sent the ticket of a merge to who had led the sealed partition once, and every ticket of
/// its merge target waited behind that one: queries were aborted for ever.
#[test]
fn who_leads_a_partition_that_ends_is_told_too() {
    let leads = |group: u32| {
        let replica = LocalReplica { leads: true, ..LocalReplica::default() };
        LocalStatus { replicas: [(PartitionId(group), replica)].into(), ..LocalStatus::default() }
    };
    let view = View::new((0..5).map(|n| (NodeId(n + 1), leads(n))).collect());
    let entry = |group: u32| Entry { partition: PartitionId(group), ..Entry::default() };
    let map = PartitionMap {
        directory: Some(entry(0)),
        partitions: vec![entry(1), entry(2)],
        ending: vec![entry(3)],
        ..PartitionMap::default()
    };
    let told: Vec<_> = view.leaders_elsewhere(&map, |group| group.0 < 2).collect();
    assert_eq!(told, [(PartitionId(2), NodeId(3)), (PartitionId(3), NodeId(4))]);
}

/// Seed 359: a node that began to coordinate sent the tickets of a partition that it has no replica of to who had led
/// it once, for ever. Every look tells it who leads now; a former leader that has not heard of its successor says that
/// it leads too.
#[test]
fn who_leads_a_partition_elsewhere_now_is_told_and_not_who_led_it_once() {
    let leads = |round: u64| {
        let replica = LocalReplica { leads: true, ballot: (round, ReplicaId(0)), ..LocalReplica::default() };
        LocalStatus { replicas: [(PartitionId(1), replica)].into(), ..LocalStatus::default() }
    };
    let entry = Entry { partition: PartitionId(1), ..Entry::default() };
    let map = PartitionMap { partitions: vec![entry], ..PartitionMap::default() };
    for (rounds, leader) in [([7, 3], 2), ([3, 7], 3)] {
        let nodes = (2..).zip(rounds).map(|(node, round)| (NodeId(node), leads(round))).collect();
        let told: Vec<_> = View::new(nodes).leaders_elsewhere(&map, |_| false).collect();
        assert_eq!(told, [(PartitionId(1), NodeId(leader))], "{rounds:?}");
    }
}

/// Seed 1140: a deposed leader of the directory, two moves behind, asked for a replica that had been removed since; the
/// move that was under way found a learner that it did not know, and never ended.
#[test]
fn a_directory_that_is_whole_moves_behind_changes_nothing() {
    let mut model = Model::new(5, 1);
    model.begin(relocation(1, &[1, 2, 4]));
    let stale = model.directory.clone();
    model.settle();
    let second = Reshape::Move { change: ChangeId(2), partition: PartitionId(1), to: [1, 2, 5].map(NodeId).to_vec() };
    execute(&mut model.directory, &DirectoryCommand::Reshape(second));
    while model.groups[&PartitionId(1)].1.voters.contains(&ReplicaId(4)) {
        assert_ne!(model.turn(&[]), 0);
    }
    let now = std::mem::replace(&mut model.directory, stale);
    assert_eq!(steps(model.state(), &model.view(), 3, &BTreeSet::new()), []);
    model.directory = now;
    // Should it have come to that all the same, the move sends that one away.
    model.groups.get_mut(&PartitionId(1)).expect("known").1.learners.push(ReplicaId(4));
    model.settle();
    assert_eq!(model.groups[&PartitionId(1)].1.learners, []);
    assert_eq!((model.nodes_of(1), model.state().changes.len()), (vec![1, 2, 5], 0));
}

#[cfg(feature = "mutants")]
#[test]
fn a_move_that_outlives_its_target_is_caught() {
    let test = "reshape::tests::a_move_onto_a_node_that_goes_is_called_off";
    planted::assert_caught("move_outlives_its_target", test);
}

#[cfg(feature = "mutants")]
#[test]
fn an_absent_learner_that_votes_is_caught() {
    let test = "reshape::tests::a_learner_that_is_not_there_does_not_become_a_voter";
    planted::assert_caught("absent_learner_votes", test);
}

/// Seed 2360: a deposed leader of the directory took the learner of a move that it did not know for a stray, and sent
/// it away. Its node may not bring it back, and the move never ended.
#[test]
fn a_directory_that_is_one_move_behind_leaves_its_learners_alone() {
    let mut model = Model::new(5, 1);
    let mut stale = model.directory.clone();
    model.begin(relocation(1, &[1, 2, 4]));
    while model.groups[&PartitionId(1)].1.learners.is_empty() {
        assert_ne!(model.turn(&[]), 0);
    }
    std::mem::swap(&mut model.directory, &mut stale);
    assert_eq!(steps(model.state(), &model.view(), 3, &BTreeSet::new()), []);
    std::mem::swap(&mut model.directory, &mut stale);
    model.settle();
    assert_eq!(model.nodes_of(1), [1, 2, 4]);
}

#[cfg(feature = "mutants")]
#[test]
fn moves_of_another_time_are_caught() {
    for test in [
        "a_directory_that_is_whole_moves_behind_changes_nothing",
        "a_directory_that_is_one_move_behind_leaves_its_learners_alone",
    ] {
        planted::assert_caught("moves_of_another_time", &format!("reshape::tests::{test}"));
    }
}
