//! Another number of replicas: groups get what they lack, and give up what they have too much of.

use super::*;

impl Model {
    /// A cluster whose groups all have five replicas, led by the first node.
    fn of_five(partitions: u32) -> Model {
        let mut model = Model::new(5, partitions);
        model.set(5);
        model.settle();
        model.log.clear();
        model
    }

    fn set(&mut self, replicas: usize) {
        self.replicas = replicas;
        let set = DirectoryCommand::Set { key: "replicas".into(), value: replicas.to_string() };
        execute(&mut self.directory, &set);
    }

    /// Until nothing is left to do. A leader's replica goes from no group that it leads, and none has fewer than
    /// `replicas` voters, or loses two at a time.
    fn settle_watched(&mut self) {
        for _ in 0..400 {
            let before = self.groups.clone();
            if self.turn(&[]) == 0 {
                return;
            }
            for (group, (leader, report)) in &self.groups {
                let (led, was) = &before[group];
                let lost = was.voters.iter().filter(|id| !report.voters.contains(id)).count();
                assert!(lost <= 1 && (lost == 0 || led == leader), "{group}: {:#?}", self.log);
                assert!(report.voters.len() >= self.replicas.min(was.voters.len()), "{group}");
            }
        }
        panic!("it never comes to rest: {:#?}", &self.log[self.log.len() - 8..]);
    }

    fn on(&self, group: u32) -> BTreeSet<u32> {
        self.nodes_of(group).into_iter().collect()
    }

    /// Replicas of each node.
    fn held(&self) -> Vec<usize> {
        let on = |node| self.groups.keys().filter(|group| self.nodes_of(group.0).contains(&node)).count();
        (1..=5).map(on).collect()
    }
}

fn spread(held: &[usize]) -> usize {
    held.iter().max().unwrap_or(&0) - held.iter().min().unwrap_or(&0)
}

#[test]
fn replicas_go_one_at_a_time_never_a_leaders_and_what_stays_is_even() {
    for replicas in [4, 3, 2, 1] {
        let mut model = Model::of_five(9);
        model.set(replicas);
        model.settle_watched();
        let held = model.held();
        assert_eq!(held.iter().sum::<usize>(), 10 * replicas);
        // All groups were led by one node.
        assert!(spread(&held) <= 2, "{replicas}: {held:?}");
        assert!(model.groups.iter().all(|(group, (leader, _))| model.nodes_of(group.0).contains(&leader.0)));
    }
}

#[test]
fn replicas_come_back_when_the_number_is_raised_again() {
    let mut model = Model::of_five(4);
    for replicas in [3, 1, 3, 5] {
        model.set(replicas);
        model.settle_watched();
        assert!((0..=4).all(|group| model.nodes_of(group).len() == replicas), "{replicas}");
    }
}

/// With two nodes away, five replicas had a quorum of three that answer. If one of those had gone first, two of four
/// would have been left.
#[test]
fn replicas_that_do_not_answer_or_lag_go_first() {
    let mut model = Model::of_five(2);
    model.down.extend([NodeId(2), NodeId(3)]);
    model.set(3);
    model.settle_watched();
    assert!((0..=2).all(|group| model.on(group) == [1, 4, 5].into()), "{:#?}", model.log);
    let mut model = Model::of_five(1);
    let (_, report) = model.groups.get_mut(&PartitionId(1)).expect("known");
    report.decided_upto += 1_000;
    let lagging = report.voters[1];
    report.durable.iter_mut().filter(|(id, _)| *id != lagging).for_each(|(_, upto)| *upto += 1_000);
    model.set(4);
    model.settle_watched();
    assert_eq!(model.on(1), [1, 3, 4, 5].into());
}

#[test]
fn nothing_goes_from_a_group_without_a_quorum() {
    let mut model = Model::of_five(1);
    model.down.extend([NodeId(2), NodeId(3), NodeId(4)]);
    model.set(1);
    for _ in 0..10 {
        model.turn(&[]);
    }
    let voters = |model: &Model| model.groups[&PartitionId(1)].1.voters.len();
    assert_eq!(voters(&model), 5);
    model.down.clear();
    model.settle_watched();
    assert_eq!(voters(&model), 1);
}

#[test]
fn a_leader_that_does_not_hand_over_keeps_its_replica() {
    let mut model = Model::of_five(9);
    model.stubborn = true;
    model.set(1);
    let tried: Vec<u32> = (0..=9).collect();
    for _ in 0..400 {
        if model.turn(&tried) == 0 {
            break;
        }
    }
    assert!((0..=9).all(|group| model.nodes_of(group) == [1]), "{:#?}", model.log);
}

/// A drained node's replica was rebuilt elsewhere even where its group had one too many.
#[test]
fn a_node_that_goes_gives_up_what_is_too_much_first() {
    let mut model = Model::of_five(1);
    model.set(4);
    model.begin(Shape::DrainNode { node: NodeId(1) });
    model.settle_watched();
    assert!((0..=1).all(|group| model.on(group) == [2, 3, 4, 5].into()), "{:#?}", model.log);
    assert!(!model.log.iter().any(|step| step.contains("learners: {ReplicaId")), "{:#?}", model.log);
}

fn steps_of(model: &Model, count: Option<u32>) -> Vec<String> {
    match model.ask(Shape::SetReplicas { count }, false) {
        Ok(Verdict::Begin { plan, .. }) => plan.steps,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_plan_of_a_number_says_what_comes_or_goes_and_warns() {
    let mut model = Model::of_five(1);
    assert_eq!(
        steps_of(&model, Some(4)),
        [
            "replicas = 4, was 5",
            "2 replicas to go: p0 p1; one of a group at a time, a leader hands over before its own goes",
            "warning: each group survives the loss of 1 node afterwards, instead of 2 nodes",
            "warning: 4 is even: it survives the loss of 1 node, as 3 does",
        ]
    );
    model.down.extend([NodeId(2), NodeId(3)]);
    model.set(3);
    model.settle_watched();
    assert_eq!(
        steps_of(&model, Some(7)),
        [
            "replicas = 7, was 3",
            "warning: too few nodes answer and have room for 7 replicas of p0 p1: the others come as nodes do; coppice \
             node add ADDRESS",
        ]
    );
    model.down.clear();
    assert_eq!(
        steps_of(&model, Some(5)),
        ["replicas = 5, was 3", "4 replicas to come: p0 p1; each catches up as a learner, then votes"]
    );
    let refused = model.ask(Shape::SetReplicas { count: Some(10) }, false);
    assert_eq!(refused, Err(AdminError::Invalid("`replicas` must be a number from 1 to 9, not `10`".to_owned())));
}

#[test]
fn progress_of_a_number_says_what_is_left_and_ends() {
    let mut model = Model::of_five(1);
    let progress = |model: &Model, count| match model.ask(Shape::SetReplicas { count }, false) {
        Ok(Verdict::Progress(progress)) => (progress.done, progress.left, progress.steps.join("; ")),
        other => panic!("{other:?}"),
    };
    model.begin(Shape::SetReplicas { count: None });
    assert_eq!(model.state().settings, BTreeMap::new());
    model.replicas = 3;
    assert_eq!(progress(&model, None), (false, 4, "replicas = 3; 4 replicas to go: p0 p1".to_owned()));
    model.settle_watched();
    assert_eq!(progress(&model, None), (true, 0, "replicas = 3, as many as each group has".to_owned()));
    model.set(6);
    model.settle_watched();
    let (done, left, text) = progress(&model, Some(6));
    assert!(done && left == 0 && text.starts_with("replicas = 6; p0 p1 lack replicas that no node"), "{text}");
}

/// `partition move` to more nodes than `replicas` says: the plan would undo it.
#[test]
fn a_move_to_more_nodes_than_replicas_is_refused() {
    let model = Model::new(5, 1);
    let text = model.why(relocation(1, &[1, 2, 3, 4]));
    assert!(text.starts_with("p1 would have 4 replicas and give one up at once, for `replicas` is 3"), "{text}");
}

#[cfg(feature = "mutants")]
#[test]
fn what_breaks_the_choice_of_a_surplus_replica_is_caught() {
    let test = |name: &str| format!("reshape::tests::replicas::{name}");
    planted::assert_caught("surplus_ignores_health", &test("replicas_that_do_not_answer_or_lag_go_first"));
    planted::assert_caught("surplus_takes_the_leader", &test("a_leader_that_does_not_hand_over_keeps_its_replica"));
}
