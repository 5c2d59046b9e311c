//! Whether a range that was read has changed: asked of a leader, and held to what every read is held to.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::{FrameDecoder, Request as Asked, ValidateRequest, Version};
use coppice_ordering::message::{Heartbeat, Phase2b};
use coppice_ordering::{HeartbeatRound, Lsn};

use super::super::stalled_reads::STALL_TIMEOUT;
use super::stalled_reads::leader;
use super::*;
use crate::cost::Account;
use crate::request::Refusal;

fn validate(version: Version, low: &[u8], high: Option<&[u8]>) -> Request {
    let mut out = BytesMut::new();
    ValidateRequest::encode(&mut out, 1, (GROUP, false), [RangeVersion { version, low, high }].into_iter());
    let mut decoder = FrameDecoder::default();
    decoder.feed(&out);
    let frame = decoder.next_frame().expect("our own").expect("whole");
    let Ok(Asked::Validate(asked)) = Asked::decode(&frame) else { panic!("another request") };
    Request::Validate(asked, None)
}

fn version(effects: &[Effect]) -> Option<Version> {
    let versions = effects.iter().filter_map(|effect| match effect {
        Effect::Reply { reply: Reply::Range { version, .. }, .. } => Some(*version),
        _ => None,
    });
    versions.last().expect("a range")
}

fn unchanged(effects: &[Effect]) -> Option<(Instance, bool)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply { reply: Reply::Validated { instance, unchanged }, .. } => Some((*instance, unchanged[0])),
        _ => None,
    })
}

/// A leader whose first write, of the key "k", is decided.
fn written() -> Follower {
    let (mut leader, vote) = leader();
    is_voted(&mut leader, vote, 2);
    leader
}

fn is_voted(leader: &mut Follower, vote: Lsn, instance: u64) {
    leader.step(Input::Persisted(vote));
    let (ballot, instance) = (leader.replica.paxos_mut().ballot(), Instance(instance));
    let vote = Phase2b { ballot, first: instance, instance };
    leader.step(Input::Peer { from: ReplicaId(1), message: vote.into() });
    assert_eq!(leader.replica.executor().decided(), instance);
}

fn writes(leader: &mut Follower, number: u64) -> Lsn {
    let Batch::Commands(commands) = leader.put(number) else { panic!("a pack") };
    let request = Request::Pack {
        entry: commands.parts()[0].clone(),
        commands: 1,
        work: 4,
        grows: true,
        known: true,
        timed: false,
    };
    let mut effects =
        leader.step(Input::Request { origin: Origin::Client { worker: 0, stream: 90, connection: 1 }, request });
    effects.extend(leader.step(Input::TurnEnd));
    let vote = effects.iter().find_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    vote.expect("its own vote")
}

fn reads(replica: &mut Follower, stream: u32) -> Version {
    version(&first_reading(replica, stream)).expect("counted here")
}

/// What will be validated needs no confirmation.
fn first_reading(replica: &mut Follower, stream: u32) -> Vec<Effect> {
    let request =
        Request::Range(Box::new(RangeRequest { versioned: true, anywhere: true, ..RangeRequest::whole(GROUP) }));
    replica.step(Input::Request { origin: Origin::Client { worker: 0, stream, connection: 1 }, request })
}

#[test]
fn a_first_reading_waits_for_what_it_saw_and_for_the_tickets_before_it_and_for_nobody() {
    let mut follower = Follower::new();
    assert_eq!(answers(&first_reading(&mut follower, 1)), 1, "nobody leads, and the validation will wait for that");
    follower.hears(1, 2, place(), 1);
    assert_eq!(answers(&first_reading(&mut follower, 2)), 0, "the ticket that it saw is not decided");
    assert_eq!(answers(&follower.hears(1, 3, Batch::NoOp, 2)), 0, "nor released");
    let effects = follower.step(Input::Released(TICKET));
    assert_eq!(answers(&effects), 1);
}

#[test]
fn rd14_a_range_that_has_changed_is_told() {
    let mut leader = written();
    let seen = reads(&mut leader, 2);
    let vote = writes(&mut leader, 2);
    is_voted(&mut leader, vote, 3);
    for (stream, low, high, same) in [
        (3, &b"k"[..], None, false),
        (4, b"a", Some(&b"k"[..]), false),
        (5, b"a", Some(b"b"), true),
        (6, b"l", None, true),
    ] {
        let round = leader.asks(stream, validate(seen, low, high));
        // Up to "k" without it: the first bytes of a bound do not tell it from a key. Changed is always allowed.
        assert_eq!(unchanged(&leader.is_confirmed(round)), Some((Instance(3), same)), "{low:?}..{high:?}");
    }
    let now = reads(&mut leader, 7);
    let round = leader.asks(8, validate(now, b"k", None));
    assert_eq!(unchanged(&leader.is_confirmed(round)), Some((Instance(3), true)));
}

#[test]
fn a_validation_waits_for_its_confirmation_and_for_what_it_saw() {
    let mut leader = written();
    let seen = reads(&mut leader, 2);
    let vote = writes(&mut leader, 2);
    let round = leader.asks(3, validate(seen, b"l", None));
    assert_eq!(unchanged(&leader.is_confirmed(round)), None, "what it saw is not decided");
    leader.step(Input::Persisted(vote));
    let vote = Phase2b { ballot: round.0, first: Instance(3), instance: Instance(3) };
    let effects = leader.step(Input::Peer { from: ReplicaId(1), message: vote.into() });
    assert_eq!(unchanged(&effects), Some((Instance(3), true)));
}

#[test]
fn rd14_what_was_counted_elsewhere_or_in_another_life_means_nothing() {
    let mut leader = written();
    let seen = reads(&mut leader, 2);
    let others = [
        Version { replica: Default::default(), ..seen },
        Version { incarnation: seen.incarnation + 1, ..seen },
        Version { began: seen.began + 1, ..seen },
    ];
    for (stream, other) in (3..).zip(others) {
        let round = leader.asks(stream, validate(other, b"l", None));
        assert_eq!(unchanged(&leader.is_confirmed(round)), Some((Instance(2), false)));
    }
}

/// While a partition decided nothing, every range over it and others came to nothing: what was read had no version.
#[test]
fn rd14_a_leader_without_patience_counts_the_changes_of_what_is_decided() {
    let mut leader = written();
    let seen = reads(&mut leader, 2);
    let vote = writes(&mut leader, 2);
    leader.leads_on(2 * STALL_TIMEOUT);
    assert!(leader.replica.reads_are_stalled());
    let now = reads(&mut leader, 3);
    for (stream, version) in [(4, seen), (5, now)] {
        let round = leader.asks(stream, validate(version, b"a", None));
        assert_eq!(unchanged(&leader.is_confirmed(round)), Some((Instance(2), true)), "the write is not decided");
    }
    is_voted(&mut leader, vote, 3);
    assert!(!leader.replica.reads_are_stalled());
    for (stream, low, same) in [(6, b"k", false), (7, b"l", true)] {
        let round = leader.asks(stream, validate(now, low, None));
        assert_eq!(unchanged(&leader.is_confirmed(round)), Some((Instance(3), same)), "the write is decided");
    }
}

/// The leader proposes a put, and says later that it is decided.
fn decides(follower: &mut Follower, number: u64, instance: u64) {
    let put = follower.put(number);
    follower.hears(1, instance, put, instance - 1);
    let heartbeat = Heartbeat {
        ballot: Ballot::new(1, 1),
        round: HeartbeatRound(instance),
        decided_upto: Instance(instance),
        held_upto: Instance(instance),
        released: None,
        lease: Duration::ZERO,
        quiesce: Duration::ZERO,
    };
    follower.step(Input::Peer { from: ReplicaId(1), message: heartbeat.into() });
    assert_eq!(follower.replica.executor().decided(), Instance(instance));
}

/// A follower counts for itself, and answers as it answers reads: when the leader has told it how far it must be.
#[test]
fn a_follower_that_is_asked_like_any_replica_validates_what_it_was_read() {
    let mut follower = Follower::new();
    decides(&mut follower, 1, 2);
    let origin = Origin::Client { worker: 0, stream: 1, connection: 1 };
    let seen = reads(&mut follower, 2);
    for (high, same) in [(Some(&b"a"[..]), true), (None, false)] {
        let Request::Validate(mut asked, _) = validate(seen, b"", high) else { panic!("another request") };
        asked.anywhere = true;
        if high.is_none() {
            decides(&mut follower, 2, 3);
        }
        follower.now = follower.now + Duration::from_millis(1);
        let ask = follower.asks_its_leader(origin, Request::Validate(asked, None));
        let at = if same { 2 } else { 3 };
        assert_eq!(unchanged(&follower.is_told(ask, at)), Some((Instance(at), same)));
    }
    let refused =
        |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Refused(Refusal::NotLeader { .. }), .. });
    let effects = follower.step(Input::Request { origin, request: validate(seen, b"", None) });
    assert!(effects.iter().any(refused), "asked as the leader, which it is not");
}

/// A client that asked and left took memory which nobody counted.
#[test]
fn a_read_is_charged_as_long_as_the_replica_holds_it() {
    let mut follower = Follower::new();
    decides(&mut follower, 1, 2);
    let seen = reads(&mut follower, 2);
    let Request::Validate(mut asked, _) = validate(seen, b"", None) else { panic!("another request") };
    asked.anywhere = true;
    let account = Account::unbounded();
    let held = Some(Arc::new(account.charge(1_000)));
    follower.now = follower.now + Duration::from_millis(1);
    follower.asks_its_leader(Origin::Client { worker: 0, stream: 1, connection: 1 }, Request::Validate(asked, held));
    assert_eq!(account.bytes(), 1_000, "it waits for the leader's answer");
    follower.replica.retire(&mut Vec::new());
    assert_eq!(account.bytes(), 0);
}
