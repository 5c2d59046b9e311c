//! What tickets hold, and who tells of them (protocol.md 3, 4).

use std::time::Duration;

use coppice_ordering::message::{Heartbeat, HeartbeatAck};
use coppice_ordering::{HeartbeatRound, Ticket};

use super::super::queries::PLACED_INTERVAL;
use super::*;
use crate::request::Refusal;

const MS: Duration = Duration::from_millis(1);

fn ticket(n: u64) -> Ticket {
    Ticket { n, ..TICKET }
}

fn placing(n: u64, prev: Option<u64>) -> Batch {
    let (ticket, prev) = (ticket(n), prev.map(ticket));
    batch(entry::place(&Place { ticket, prev, work: Work::Nothing }))
}

impl Follower {
    /// A heartbeat of the leader of round 1; what is acknowledged as released.
    fn heartbeat(&mut self, released: Option<Ticket>) -> Option<Ticket> {
        let (decided_upto, lease) = (self.replica.paxos().decided_upto(), Duration::ZERO);
        let message = Heartbeat {
            ballot: Ballot::new(1, 1),
            round: HeartbeatRound(1),
            decided_upto,
            held_upto: Instance::ZERO,
            released,
            lease,
            quiesce: lease,
        };
        let effects = self.step(Input::Peer { from: ReplicaId(1), message: message.into() });
        let acknowledged = effects.into_iter().find_map(|effect| match effect {
            Effect::Send { message: Message::HeartbeatAck(HeartbeatAck { released, .. }), .. } => Some(released),
            _ => None,
        });
        acknowledged.expect("every heartbeat is acknowledged")
    }
}

fn placed(effects: &[Effect]) -> Option<Ticket> {
    effects.iter().find_map(|effect| match effect {
        Effect::Placed { ticket } => Some(*ticket),
        _ => None,
    })
}

fn answers(effects: &[Effect]) -> usize {
    let is_answer = |effect: &&Effect| matches!(effect, Effect::Reply { reply: Reply::Range { .. }, .. });
    effects.iter().filter(is_answer).count()
}

/// A cut between the coordinator and a partition's leader held every reply behind a ticket for as long as it lasted,
/// although both heard this follower: the leader alone acknowledged, and nobody told it what it could not hear.
#[test]
fn a_follower_stands_in_for_a_leader_that_the_coordinator_does_not_hear() {
    let mut follower = Follower::new();
    follower.hears(1, 2, placing(1, None), 1);
    follower.hears(1, 3, Batch::NoOp, 2);
    assert_eq!(follower.replica.last_ticket(), Some(ticket(1)));
    assert_eq!(follower.heartbeat(None), None, "it knows of no release");
    follower.now = follower.now + PLACED_INTERVAL;
    assert_eq!(placed(&follower.step(Input::Tick)), Some(ticket(1)), "the coordinator hears of it all the same");
    follower.step(Input::Released(ticket(1)));
    assert_eq!(follower.heartbeat(None), Some(ticket(1)), "and so does the leader");
    follower.now = follower.now + 10 * PLACED_INTERVAL;
    assert_eq!(placed(&follower.step(Input::Tick)), None);
}

/// A leader read, and a ticket was placed before its leadership was confirmed: the read had not seen it, and waited
/// for its release all the same.
#[test]
fn a_read_is_not_held_by_a_ticket_that_was_placed_after_it() {
    let mut leader = Follower::new();
    leader.now = leader.replica.deadline().expect("an election timeout");
    led_by_itself(&mut leader, Input::Tick);
    let whole = RangeRequest::whole(GROUP);
    let confirmed_by = leader.asks(1, Request::Range(Box::new(whole)));
    let place = Place { ticket: ticket(1), prev: None, work: Work::Nothing };
    leader.step(Input::Place(place));
    assert!(leader.replica.executor().last_ticket() == Some(ticket(1)), "it is executed");
    assert_eq!(answers(&leader.is_confirmed(confirmed_by)), 1);
    // One that comes now has seen it.
    let whole = RangeRequest::whole(GROUP);
    let confirmed_by = leader.asks(2, Request::Range(Box::new(whole)));
    assert_eq!(answers(&leader.is_confirmed(confirmed_by)), 0);
}

/// A replica that hears its leader and is not heard waited for a position for as long as the cut lasted, and its
/// clients waited two seconds before they asked another one.
#[test]
fn a_read_that_waits_for_a_position_is_given_up_in_time() {
    let mut follower = Follower::new();
    follower.hears(1, 2, Batch::NoOp, 1);
    follower.is_asked();
    let mut waited = Duration::ZERO;
    loop {
        let refused = follower.step(Input::Tick).iter().any(|effect| {
            matches!(effect, Effect::Reply { reply: Reply::Refused(Refusal::NotLeader { hint: Some(_) }), .. })
        });
        follower.heartbeat(None);
        if refused {
            break;
        }
        waited += 10 * MS;
        follower.now = follower.now + 10 * MS;
        assert!(waited <= Settings::default().election_timeout, "it waits on");
    }
    assert!(waited > 100 * MS, "not at once");
    // The next one is refused at once, until the leader has answered.
    let read = || {
        let range = RangeRequest { anywhere: true, ..RangeRequest::whole(GROUP) };
        Input::Request {
            origin: Origin::Client { worker: 0, stream: 2, connection: 1 },
            request: Request::Range(Box::new(range)),
        }
    };
    let refused = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Reply { .. }));
    assert!(refused(&follower.step(read())));
    follower.is_told(1, 1);
    assert!(!refused(&follower.step(read())), "it waits for a position again");
}

#[cfg(feature = "mutants")]
#[test]
fn replicas_that_hold_more_than_they_must_are_caught() {
    let follower = "a_follower_stands_in_for_a_leader_that_the_coordinator_does_not_hear";
    for (mutant, test) in [
        ("watermark_kept_to_itself", follower),
        ("gate_at_confirmation", "a_read_is_not_held_by_a_ticket_that_was_placed_after_it"),
        ("asked_reads_wait", "a_read_that_waits_for_a_position_is_given_up_in_time"),
    ] {
        planted::assert_caught(mutant, &format!("replica::tests::tickets::{test}"));
    }
}
