//! Who gives the parts of queries whose replica, as the coordinator drew it, is not in the group.

use coppice_ordering::message::Phase2b;

use super::*;

/// A ticket with a query for each of these replicas.
fn place_for(drawn: &[ReplicaId]) -> Place {
    let partition_query =
        |replica: &ReplicaId| SubQuery { query: QueryId(u64::from(replica.0)), bytes: share(*replica).encode() };
    Place { ticket: TICKET, prev: None, work: Work::Queries(drawn.iter().map(partition_query).collect()) }
}

/// Parts given by the replica that leads from its election on, once the ticket is decided.
fn given_by_the_leader(place: Place) -> Vec<ReplicaId> {
    let mut leader = Follower::new();
    leader.now = leader.replica.deadline().expect("an election timeout");
    led_by_itself(&mut leader, Input::Tick);
    let mut effects = led_by_itself(&mut leader, Input::Place(place));
    effects.extend(led_by_itself(&mut leader, Input::TurnEnd));
    let proposed = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::Phase2a(m), .. } => Some((m.ballot, m.instance)),
        _ => None,
    });
    let (ballot, instance) = proposed.expect("the ticket is proposed");
    assert!(given(&effects).is_empty(), "not decided");
    let vote = Phase2b { ballot, first: instance, instance };
    given(&leader.step(Input::Peer { from: ReplicaId(1), message: vote.into() }))
}

fn given(effects: &[Effect]) -> Vec<ReplicaId> {
    let drawn = |effect: &Effect| match effect {
        Effect::Part(part) => Some(part.partition_query.replica),
        _ => None,
    };
    effects.iter().filter_map(drawn).collect()
}

/// A replica that was moved away does not learn of the ticket; its client waited for the part until its patience ended.
#[test]
fn the_leader_gives_the_part_of_a_replica_that_left() {
    let (voter, left) = (ReplicaId(3), ReplicaId(9));
    assert_eq!(given_by_the_leader(place_for(&[voter, ME, left])), [ME, left]);
}

#[test]
fn a_follower_gives_its_own_parts_only() {
    let mut follower = Follower::new();
    let placed = batch(entry::place(&place_for(&[ReplicaId(3), ME, ReplicaId(9)])));
    follower.hears(1, 2, placed, 1);
    assert_eq!(given(&follower.hears(1, 3, Batch::NoOp, 2)), [ME]);
}
