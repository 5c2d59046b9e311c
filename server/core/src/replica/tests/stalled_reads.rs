//! Reads behind a write that finds no majority.

use std::time::Duration;

use coppice_ordering::message::{HeartbeatAck, Phase2b};
use coppice_ordering::{HeartbeatRound, Lsn, Round};

use super::super::stalled_reads::STALL_TIMEOUT;
use super::*;
use crate::request::Refusal;

/// Longer than rounds for reads are apart at least.
const ROUND: Duration = Duration::from_millis(1);

/// A leader that has served, and proposed a write that nobody votes for; its own vote waits for the disk.
pub(super) fn leader() -> (Follower, Lsn) {
    let mut leader = Follower::new();
    leader.now = leader.replica.deadline().expect("an election timeout");
    let effects = led_by_itself(&mut leader, Input::Tick);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Leading { .. })), "elected");
    let Batch::Commands(commands) = leader.put(1) else { panic!("a pack") };
    let entry = commands.parts()[0].clone();
    let request = Request::Pack { entry, commands: 1, work: 4, grows: true, known: true, timed: false };
    let mut effects =
        leader.step(Input::Request { origin: Origin::Client { worker: 0, stream: 1, connection: 1 }, request });
    effects.extend(leader.step(Input::TurnEnd));
    let vote = effects.iter().find_map(|effect| match effect {
        Effect::Persist { lsn, .. } => Some(*lsn),
        _ => None,
    });
    assert_eq!((leader.replica.executor().decided(), leader.replica.executor().last_executed()), (BEGIN, Instance(2)));
    (leader, vote.expect("its own vote"))
}

impl Follower {
    /// A client reads everything here, at the leader; the round that is to confirm it.
    fn reads(&mut self, stream: u32) -> (Ballot, HeartbeatRound) {
        self.asks(stream, Request::Range(Box::new(RangeRequest::whole(GROUP))))
    }

    /// The same for any read.
    pub(super) fn asks(&mut self, stream: u32, request: Request) -> (Ballot, HeartbeatRound) {
        self.now = self.now + ROUND;
        let mut effects =
            self.step(Input::Request { origin: Origin::Client { worker: 0, stream, connection: 1 }, request });
        effects.extend(self.step(Input::TurnEnd));
        let round = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: Message::Heartbeat(m), .. } => Some((m.ballot, m.round)),
            _ => None,
        });
        assert_eq!(answers(&effects), 0, "its leadership is not confirmed");
        round.expect("a round that confirms it")
    }

    pub(super) fn is_confirmed(&mut self, (ballot, round): (Ballot, HeartbeatRound)) -> Vec<Effect> {
        let ack = HeartbeatAck { ballot, round, durable_upto: BEGIN, lease: Duration::ZERO, released: None };
        self.step(Input::Peer { from: ReplicaId(1), message: ack.into() })
    }

    /// Time passes, while one of its peers says that it follows.
    pub(super) fn leads_on(&mut self, time: Duration) -> Vec<Effect> {
        let (end, mut all) = (self.now + time, Vec::new());
        while self.now < end {
            self.now = end.min(self.now + Duration::from_millis(20));
            for effect in self.step(Input::Tick) {
                if let Effect::Send { to: ReplicaId(1), message: Message::Heartbeat(m) } = &effect {
                    all.extend(self.is_confirmed((m.ballot, m.round)));
                }
                all.push(effect);
            }
        }
        all
    }

    fn waits(&mut self, time: Duration) -> Vec<Effect> {
        self.now = self.now + time;
        self.step(Input::Tick)
    }
}

/// Keys of each answer, with the position that it names.
fn read(effects: Vec<Effect>) -> Vec<(Instance, usize)> {
    let ranges = effects.into_iter().filter_map(|effect| match effect {
        Effect::Reply { reply: Reply::Range { instance, mut cursor, .. }, .. } => {
            let mut keys = 0;
            cursor.walk(|run| {
                keys += run.len();
                run.len()
            });
            Some((instance, keys))
        }
        _ => None,
    });
    ranges.collect()
}

fn busy(effects: &[Effect]) -> usize {
    let busy = |effect: &&Effect| matches!(effect, Effect::Reply { reply: Reply::Refused(Refusal::Busy(_)), .. });
    effects.iter().filter(busy).count()
}

#[test]
fn rd7_a_read_behind_a_write_without_a_majority_is_answered_from_what_is_decided() {
    let (mut leader, vote) = leader();
    let early = leader.reads(2);
    assert_eq!(answers(&leader.is_confirmed(early)), 0, "it saw the write");
    let still = leader.leads_on(STALL_TIMEOUT - 3 * ROUND);
    assert_eq!((answers(&still), busy(&still)), (0, 0));
    let late = leader.reads(3);
    let effects = leader.waits(2 * ROUND);
    assert_eq!((answers(&effects), busy(&effects)), (0, 1), "what the first one asked is forgotten; it asks again");
    assert!(leader.replica.reads_are_stalled());
    assert_eq!(read(leader.is_confirmed(late)), [(BEGIN, 0)], "the write is not decided");
    let next = leader.reads(4);
    assert_eq!(read(leader.is_confirmed(next)), [(BEGIN, 0)]);
    // A vote comes at last: reads see the write, at once.
    leader.step(Input::Persisted(vote));
    let vote = Phase2b { ballot: next.0, first: Instance(2), instance: Instance(2) };
    leader.step(Input::Peer { from: ReplicaId(1), message: vote.into() });
    assert_eq!(leader.replica.executor().decided(), Instance(2));
    assert!(!leader.replica.reads_are_stalled());
    let last = leader.reads(5);
    assert_eq!(read(leader.is_confirmed(last)), [(Instance(2), 1)]);
}

#[test]
fn rd1_a_leader_without_patience_waits_for_its_confirmation() {
    let (mut leader, _) = leader();
    leader.leads_on(STALL_TIMEOUT - 2 * ROUND);
    leader.reads(2);
    let effects = leader.waits(ROUND);
    assert!(leader.replica.reads_are_stalled());
    assert_eq!(answers(&effects), 0, "nobody said that it still leads");
    let other = Message::Phase2a(Phase2a {
        ballot: Ballot { round: Round(99), replica: ReplicaId(3) },
        instance: Instance(2),
        batch: Batch::NoOp,
        decided_upto: BEGIN,
        released: None,
    });
    let effects = leader.step(Input::Peer { from: ReplicaId(3), message: other });
    assert_eq!(answers(&effects), 0, "another one leads, and may have decided more");
}

#[test]
fn rd10_a_follower_without_patience_waits_for_the_tickets_before_what_it_read() {
    let mut follower = Follower::new();
    let put = follower.put(1);
    follower.hears(1, 2, place(), 1);
    follower.hears(1, 3, put, 2);
    follower.waits(STALL_TIMEOUT);
    assert!(follower.replica.reads_are_stalled());
    let ask = follower.is_asked();
    assert_eq!(answers(&follower.is_told(ask, 2)), 0, "a ticket that is not released stands before it");
    assert_eq!(read(follower.step(Input::Released(TICKET))), [(Instance(2), 0)], "and not the write behind it");
}
