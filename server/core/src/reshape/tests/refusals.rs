//! What operators are refused, or told before they say yes.

use coppice_client::wire::{Boundaries, Reshaped, SplitPlan};

use super::*;

fn because(text: &str, words: &str) {
    assert!(text.contains(words), "{text}");
}

impl Model {
    fn request(&self, change: u64, shape: Shape) -> ReshapeRequest {
        ReshapeRequest { change: ChangeId(change), shape, dry_run: false, force: false, within: None }
    }

    fn judge(&self, request: &ReshapeRequest) -> Result<Verdict, AdminError> {
        verdict(self.state(), &self.view(), self.replicas, request)
    }

    fn plan(&self, request: &ReshapeRequest) -> Result<Reshaped, AdminError> {
        match self.judge(&ReshapeRequest { dry_run: true, ..request.clone() })? {
            Verdict::Begin { plan, .. } | Verdict::Enlist { plan, .. } => Ok(plan),
            Verdict::Progress(progress) => Ok(progress),
            Verdict::Median { .. } => Err(no_median()),
        }
    }
}

/// `node remove n2 --force` beside a dead n3 left {n1, n3}, of which one answered: nothing could be decided.
#[test]
fn no_node_goes_without_which_a_group_has_no_quorum_even_when_forced() {
    let mut model = Model::new(3, 1);
    model.down.insert(NodeId(3));
    for shape in [Shape::RemoveNode { node: NodeId(2) }, Shape::DrainNode { node: NodeId(2) }] {
        let error = model.ask(shape, true).expect_err("a refusal");
        let text = "p0 would lose its quorum: only 1 of the 2 nodes that would hold it answer";
        assert_eq!(error, AdminError::Unavailable(text.to_owned()));
    }
    // The dead one may go, and with a fourth node each of them.
    assert!(matches!(model.ask(Shape::RemoveNode { node: NodeId(3) }, true), Ok(Verdict::Begin { .. })));
    let mut model = Model::new(4, 1);
    model.down.insert(NodeId(3));
    model.begin(Shape::RemoveNode { node: NodeId(2) });
    model.settle();
    assert_eq!(model.nodes_of(1), [1, 3, 4]);
}

/// The same, and the node dies when the removal is under way.
#[test]
fn a_move_waits_for_the_quorum_that_it_would_leave() {
    let mut model = Model::new(3, 1);
    let Ok(Verdict::Begin { command, .. }) = model.ask(Shape::RemoveNode { node: NodeId(2) }, true) else {
        panic!("forced")
    };
    execute(&mut model.directory, &command);
    model.turn(&[]);
    model.down.insert(NodeId(3));
    for _ in 0..20 {
        model.turn(&[]);
    }
    let voters = |model: &Model| model.groups[&PartitionId(1)].1.voters.len();
    assert_eq!(voters(&model), 3, "n1 alone would be left of n1 and n3");
    let mut said = model.state().changes.iter().map(|(&change, _)| {
        let request = model.request(change.0, relocation(1, &[1, 3]));
        model.judge(&request)
    });
    let waits = |said: Result<Verdict, _>| matches!(said, Ok(Verdict::Progress(it)) if it.steps[0].contains("waits"));
    assert!(said.any(waits), "it says so");
    model.down.clear();
    model.settle();
    assert_eq!((voters(&model), model.nodes_of(1)), (2, vec![1, 3]));
}

/// `partition merge` moved the one beside the other, and only then asked whether they are neighbours.
#[test]
fn a_merge_is_refused_before_anything_moves_for_it() {
    let mut model = Model::new(6, 4);
    model.begin(relocation(1, &[4, 5, 6]));
    model.settle();
    let merge =
        |partition, into: u32| Shape::Merge { partition: PartitionId(partition), into: Some(PartitionId(into)) };
    let far = model.request(9, merge(3, 1));
    because(&model.plan(&far).expect_err("no neighbours").to_string(), "p3 and p1 are no neighbours");
    let apart = model.request(9, merge(2, 1));
    let plan = model.plan(&apart).expect("a plan");
    assert_eq!(plan.steps[0], "p2 moves to n4 n5 n6, beside p1");
    assert_eq!((plan.done, plan.begun, plan.partition), (false, false, Some(PartitionId(1))));
    because(&model.judge(&apart).expect_err("they are apart").to_string(), "coppice partition move p2 --to n4,n5,n6");
    // Beside one that moves it would come to lie on the nodes of before and after.
    execute(&mut model.directory, &moving(7, 1, &[1, 2, 3]));
    because(&model.plan(&apart).expect_err("p1 moves").to_string(), "p1 is being changed already");
}

fn moving(change: u64, partition: u32, to: &[u32]) -> DirectoryCommand {
    let to = to.iter().map(|&node| NodeId(node)).collect();
    DirectoryCommand::Reshape(Reshape::Move { change: ChangeId(change), partition: PartitionId(partition), to })
}

/// Of two operators who split p2 at its middle at once both did, for its middle is always somewhere.
#[test]
fn a_partition_is_cut_as_it_was_planned_or_not_at_all() {
    let mut model = Model::new(3, 2);
    let split = |at: &'static [u8]| Shape::Split { partition: Some(PartitionId(2)), at: Some(Bytes::from_static(at)) };
    let low = Bytes::from_static(&[2]);
    let plan = model.plan(&model.request(5, split(&[8]))).expect("a plan");
    let boundaries = Boundaries { low, high: None };
    assert_eq!(plan.cut, Some(SplitPlan { at: Bytes::from_static(&[8]), boundaries: boundaries.clone() }));
    let bound = |change, at| ReshapeRequest { within: Some(boundaries.clone()), ..model.request(change, split(at)) };
    let (first, second) = (bound(5, &[8]), bound(6, &[7]));
    let Ok(Verdict::Begin { command, .. }) = model.judge(&first) else { panic!("nobody was before") };
    execute(&mut model.directory, &command);
    because(&model.judge(&second).expect_err("it is being cut").to_string(), "other boundaries than in the plan");
    // Who asks again is told how far it is, whatever the boundaries are now.
    assert!(matches!(model.judge(&first), Ok(Verdict::Progress(progress)) if progress.begun && !progress.done));
}

/// `partition move p2 --resume` with the name of a move of p1 said that p2 had moved.
#[test]
fn the_name_of_another_change_is_no_answer() {
    let mut model = Model::new(6, 2);
    execute(&mut model.directory, &moving(7, 1, &[4, 5, 6]));
    let other = |model: &Model, shape| {
        let error = model.judge(&model.request(7, shape)).expect_err("another change");
        because(&error.to_string(), "change 0000000000000007 was begun by another command");
    };
    let merge = || Shape::Merge { partition: PartitionId(2), into: None };
    let split = || Shape::Split { partition: Some(PartitionId(2)), at: None };
    other(&model, relocation(2, &[4, 5, 6]));
    other(&model, merge());
    other(&model, split());
    model.settle();
    other(&model, relocation(2, &[4, 5, 6]));
    other(&model, relocation(1, &[1, 2, 3]));
    other(&model, merge());
    other(&model, split());
    let own = model.judge(&model.request(7, relocation(1, &[4, 5, 6])));
    assert!(matches!(own, Ok(Verdict::Progress(progress)) if progress.begun && progress.done));
}

#[test]
fn a_full_node_and_a_word_that_is_no_address_are_refused() {
    let mut model = Model::new(4, 1);
    model.full.insert(NodeId(4));
    because(&model.why(relocation(1, &[1, 2, 4])), "n4 is full: its disk");
    because(&model.why(Shape::RemoveNode { node: NodeId(3) }), "no other node can take that of n3");
    for address in ["nonsense", ":7402", "h5:", "h5:0", "h5:70000", ""] {
        let add = Shape::AddNode { address: address.to_owned() };
        let replace = Shape::ReplaceNode { old: NodeId(2), address: address.to_owned() };
        for shape in [add, replace] {
            let error = model.ask(shape, false).expect_err("no address");
            assert!(
                matches!(&error, AdminError::Invalid(text) if text.contains("`host:port`")),
                "{address}: {error:?}"
            );
        }
    }
    assert!(matches!(model.ask(Shape::AddNode { address: "[::1]:7402".into() }, false), Ok(Verdict::Enlist { .. })));
}

#[cfg(feature = "mutants")]
#[test]
fn a_removal_and_a_move_that_lose_a_quorum_are_caught() {
    let test = "reshape::tests::refusals::no_node_goes_without_which_a_group_has_no_quorum_even_when_forced";
    planted::assert_caught("removal_loses_a_quorum", test);
    let test = "reshape::tests::refusals::a_move_waits_for_the_quorum_that_it_would_leave";
    planted::assert_caught("move_loses_a_quorum", test);
}
