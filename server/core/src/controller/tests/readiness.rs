//! A node says why clients should not be sent to it, and nothing else.

use super::*;
use crate::worker::ReplicaReadiness;

const GOOD: ReplicaReadiness = ReplicaReadiness { is_led: true, lacks: 0 };

/// The parent belongs to worker 1, the child to worker 0.
fn heard(parent: Option<ReplicaReadiness>, child: Option<ReplicaReadiness>) -> HeardReplicas {
    let of = |group, replica: Option<ReplicaReadiness>| replica.map(|replica| (group, replica)).into_iter().collect();
    vec![Some(of(CHILD, child)), Some(of(PARENT, parent))]
}

/// A node that nobody has to let in.
fn let_in() -> Node {
    let mut node = Node::new();
    node.tell(Input::Restored { seeds: 0, copy: None });
    node
}

fn reasons(node: &Node, heard: &HeardReplicas) -> Vec<String> {
    reasons_against_readiness(&node.0, heard)
}

#[test]
fn a_node_is_ready_once_every_group_in_which_it_votes_is_led_and_level() {
    let mut node = let_in();
    node.tell(map(2, &[1, 2, 3], &[1, 2, 3]));
    assert!(reasons(&node, &heard(Some(GOOD), Some(GOOD))).is_empty());
    let unled = ReplicaReadiness { is_led: false, lacks: 9 };
    let behind = ReplicaReadiness { is_led: true, lacks: 9 };
    let said = reasons(&node, &heard(Some(unled), Some(behind)));
    assert_eq!(said, ["p1 has no leader that this node knows", "p2 lacks 9 instances"]);
    assert_eq!(reasons(&node, &heard(None, Some(GOOD))), ["p1 has not begun here"]);
}

#[test]
fn groups_of_others_and_replicas_that_only_learn_do_not_count() {
    let mut node = let_in();
    node.tell(map(2, &[1, 2, 3], &[2, 3]));
    assert!(reasons(&node, &heard(Some(GOOD), None)).is_empty());
    let mut moving = entry(PARENT, 3, (b"", None), &[2, 3, 1]);
    moving.replicas[2].role = Role::Learner;
    let nodes = node.0.map().nodes.clone();
    let map = PartitionMap { version: MapVersion(3), partitions: vec![moving], nodes, ..PartitionMap::default() };
    node.tell(Input::Map(Arc::new(map)));
    assert!(reasons(&node, &heard(None, None)).is_empty());
}

#[test]
fn a_worker_that_does_not_answer_is_named_and_its_groups_are_not_guessed() {
    let mut node = let_in();
    node.tell(map(2, &[1, 2, 3], &[1, 2, 3]));
    let mut heard = heard(None, Some(GOOD));
    heard[1] = None;
    assert_eq!(reasons(&node, &heard), ["worker thread 1 does not answer"]);
}

#[test]
fn a_start_that_is_not_let_in_yet_and_a_copy_are_not_ready() {
    let mut node = Node::new();
    node.tell(map(1, &[1, 2, 3], &[]));
    node.tell(Input::Restored { seeds: 3, copy: None });
    let all = heard(Some(GOOD), None);
    assert_eq!(reasons(&node, &all), ["the start waits for n2 n3 to let it in"]);
    node.tell(Input::LetIn(NodeId(2)));
    node.tell(Input::LetIn(NodeId(3)));
    assert!(reasons(&node, &all).is_empty());
    node.tell(Input::IsCopy { by: NodeId(2), text: "old".into() });
    assert_eq!(reasons(&node, &all), ["this node runs on a copy of its data directory: it votes no more"]);
}

#[test]
fn a_process_without_a_cluster_or_a_map_says_so() {
    let all = heard(Some(GOOD), Some(GOOD));
    assert_eq!(reasons_against_readiness(&Controller::new(2), &all), ["waiting for init"]);
    let mut node = Node::new();
    assert_eq!(reasons(&node, &all), ["the partition map is not known yet"]);
    let mut nodes = vec![];
    for (id, state) in [(1, NodeState::Removed), (2, NodeState::Member)] {
        let (name, addresses) = (String::new(), Addresses::default());
        nodes.push(NodeInfo { id: NodeId(id), name, addresses, state });
    }
    let partitions = vec![entry(PARENT, 1, (b"", None), &[2])];
    let map = PartitionMap { version: MapVersion(1), partitions, nodes, ..PartitionMap::default() };
    node.tell(Input::Map(Arc::new(map)));
    assert_eq!(reasons(&node, &all), ["this node was removed from its cluster"]);
}
