//! Lifetimes are read as values are: from what was last executed, and answered once that is decided.

use bytes::BytesMut;
use coppice_btree::OpResult;
use coppice_client::wire::{FrameDecoder, ReadRequest, Request as Asked};
use coppice_ordering::message::Phase2b;

use super::expiry::lease_of;
use super::stalled_reads::leader;
use super::*;
use crate::cost::Account;
use crate::machine::entry::{Expire, Said};

fn look((stale, anywhere): (bool, bool), key: &[u8]) -> Request {
    let mut out = BytesMut::new();
    ReadRequest::encode_looks(&mut out, 1, GROUP, (stale, anywhere), [key].into_iter());
    let mut decoder = FrameDecoder::default();
    decoder.feed(&out);
    let frame = decoder.next_frame().expect("our own").expect("whole");
    let Ok(Asked::Read(read)) = Asked::decode(&frame) else { panic!("another request") };
    Request::Read(read, Account::unbounded(), None)
}

/// Position of each answer, whether the key is there, and how long it has to go.
fn looked(effects: &[Effect]) -> Vec<(u64, bool, Option<u64>)> {
    let looks = effects.iter().filter_map(|effect| match effect {
        Effect::Reply { reply: Reply::Looks { instance, looks, .. }, .. } => Some((instance.0, looks)),
        _ => None,
    });
    let told = |(instance, looks): (u64, &Vec<OpResult>)| match looks[..] {
        [OpResult::Look { exists, remaining, .. }] => (instance, exists, remaining),
        ref other => panic!("{other:?}"),
    };
    looks.map(told).collect()
}

const ORIGIN: Origin = Origin::Client { worker: 0, stream: 7, connection: 1 };

impl Follower {
    /// The leader sets "s" to expire half a second after this time.
    fn hears_a_lease(&mut self, instance: u64, time: u64, decided: u64) {
        let lease = batch(entry::timed(Said { by: Ballot::new(1, 1), time }, &lease_of(self.session, 1, "s", 500)));
        self.hears(1, instance, lease, decided);
    }
}

#[test]
fn rd7_a_look_at_what_is_not_decided_waits_for_that() {
    let (mut leader, vote) = leader();
    let round = leader.asks(2, look((false, false), b"k"));
    assert_eq!(looked(&leader.is_confirmed(round)), [], "it saw a write that nobody has voted for");
    leader.step(Input::Persisted(vote));
    let vote = Phase2b { ballot: round.0, first: Instance(2), instance: Instance(2) };
    let effects = leader.step(Input::Peer { from: ReplicaId(1), message: vote.into() });
    assert_eq!(looked(&effects), [(2, true, None)]);
}

#[test]
fn rd7_a_look_at_what_is_taken_back_is_not_answered() {
    let mut follower = Follower::new();
    follower.hears_a_lease(2, 1_000, 1);
    let ask = follower.asks_its_leader(ORIGIN, look((false, true), b"s"));
    assert_eq!(looked(&follower.is_told(ask, 1)), [], "what it read is not decided");
    let mut later = follower.hears(2, 2, Batch::NoOp, 1);
    later.extend(follower.hears(2, 3, Batch::NoOp, 2));
    assert_eq!(follower.replica.executor().decided(), Instance(2), "something else is decided there");
    assert_eq!(looked(&later), [], "the answer holds what was never decided");
}

/// Values, deadlines and the time of the partition are all those of one decided instance.
#[test]
fn rd9_a_stale_look_sees_nothing_that_is_not_decided() {
    let mut follower = Follower::new();
    let stale = |follower: &mut Follower| {
        let request = look((true, true), b"s");
        looked(&follower.step(Input::Request { origin: ORIGIN, request }))
    };
    follower.hears_a_lease(2, 1_000, 1);
    assert_eq!(stale(&mut follower), [(1, false, None)]);
    follower.hears(1, 3, batch(entry::expire(Ballot::new(1, 1), &Expire { time: 1_400, keys: Vec::new() })), 2);
    assert_eq!(stale(&mut follower), [(2, true, Some(500))], "it is not 1,400 yet");
    follower.hears(1, 4, Batch::NoOp, 3);
    assert_eq!(stale(&mut follower), [(3, true, Some(100))]);
}
