//! The time of a partition as who leads it counts it, played by hand.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_btree::{Edit, Expiry, ExpiryCondition, Op, Update};
use coppice_client::wire::{PackWriter, SessionId, frame};
use coppice_ordering::message::{HeartbeatAck, Phase2b};
use coppice_ordering::{ChangeId, Config, Configuration, RecoveredGroup, Time};

use super::*;
use crate::machine::entry::{Expire, Said};
use crate::machine::partition::{BoundaryChange, BoundaryStep, Expiry as Deadlines};

/// A group of one replica, which flushes at once.
struct Alone {
    replica: Replica,
    session: SessionId,
    now: Time,
    numbers: u64,
}

impl Alone {
    /// One that begins at some moment of its clock, with the state of `before`.
    fn new(before: Option<Partition>, now: Time) -> Alone {
        let mut partition = before.unwrap_or_else(|| Partition::new(GROUP, KeyRange::all(), MapVersion(1)));
        let mut answers = Vec::new();
        partition.execute(BEGIN, &batch(entry::open(ClientId(9), 1)), &mut answers);
        let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
        partition.forget_undo();
        let config = Config::new(ME, Configuration::of_voters([ME]), 1);
        let recovered =
            RecoveredGroup::from_snapshot(BEGIN, config.configuration.clone(), Instance::ZERO, Ballot::ZERO);
        let machine = Machine::Partition(Box::new(partition));
        let how = ExecutorSettings::speculating(true);
        let replica = Replica::recover(GROUP, config, recovered, machine, BEGIN, how, now, &mut Vec::new());
        let mut alone = Alone { replica, session, now, numbers: 0 };
        while !alone.replica.is_leading() {
            alone.passes(10);
        }
        alone
    }

    fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.replica.step(self.now, input, &mut effects);
            inputs.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::Persist { lsn, .. } => Some(Input::Persisted(lsn)),
                _ => None,
            }));
        }
    }

    /// Time passes, with ticks where they are wanted.
    fn passes(&mut self, milliseconds: u64) {
        let until = self.now + Duration::from_millis(milliseconds);
        while let Some(at) = self.replica.deadline().filter(|at| *at <= until) {
            self.now = at.max(self.now + Duration::from_micros(1));
            self.step(Input::Tick);
        }
        self.now = until;
        self.step(Input::Tick);
    }

    /// Sets a key that expires after so long.
    fn lease(&mut self, key: &str, milliseconds: u64) {
        let expiry = Expiry::After { milliseconds, only: ExpiryCondition::Always };
        let mut terms = Vec::new();
        Update::new(Edit::Set(b"v")).expiring(expiry).write(&mut terms);
        self.numbers += 1;
        let mut pack = PackWriter::new(Vec::new(), self.session, 1, false, 4_096);
        pack.push(self.numbers, Op::Update { key: key.as_bytes(), terms: &terms }).expect("it fits");
        let entry = pack.finish(GROUP, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..);
        let request = Request::Pack { entry, commands: 1, work: 8, grows: true, known: false, timed: true };
        let origin = Origin::Client { worker: 0, stream: 1, connection: 1 };
        self.step(Input::Request { origin, request });
        self.passes(10);
    }

    fn partition(&self) -> &Partition {
        self.replica.executor().machine().partition().expect("a partition")
    }

    fn has(&self, key: &str) -> bool {
        self.partition().tree().get(key.as_bytes()).is_some()
    }
}

#[test]
fn a_key_is_there_for_its_time_and_goes_soon_after_it() {
    let mut alone = Alone::new(None, Time::ZERO);
    // Nothing is logged while no key expires, and the time goes on all the same.
    let decided = alone.replica.executor().decided();
    alone.passes(60_000);
    assert_eq!(alone.replica.executor().decided(), decided, "who has no such keys pays nothing");
    alone.lease("s", 5_000);
    alone.passes(4_980);
    assert!(alone.has("s"));
    alone.passes(150);
    assert!(!alone.has("s"));
    let decided = alone.replica.executor().decided();
    alone.passes(60_000);
    assert_eq!(alone.replica.executor().decided(), decided, "the last one is gone");
}

/// The clocks of two nodes say nothing to each other: the time goes on from the log.
#[test]
fn who_leads_next_counts_on_from_the_log_whatever_its_clock_says() {
    for clock in [Time::ZERO, Time::from_millis(99_000_000)] {
        let mut first = Alone::new(None, Time::from_millis(5_000_000));
        first.passes(3_000);
        first.lease("s", 5_000);
        first.passes(4_000);
        let time = first.partition().expiry().time();
        let mut next = Alone::new(Some(first.partition().copy()), clock);
        assert!(next.partition().expiry().time() <= time + 1_000);
        next.passes(900);
        assert!(next.has("s"), "it expires early");
        next.passes(1_300);
        assert!(!next.has("s"), "at most a second is lost with a leader");
    }
}

#[test]
fn a_crowd_of_keys_expires_in_pieces() {
    let mut alone = Alone::new(None, Time::ZERO);
    for n in 0..1_500 {
        let deadline = 20_000 - 10 * n;
        alone.lease(&format!("{n:04}"), deadline);
    }
    let decided = alone.replica.executor().decided().0;
    alone.passes(8_000);
    assert!(alone.partition().expiry().is_empty());
    let batches = alone.replica.executor().decided().0 - decided;
    assert!((3..=100).contains(&batches), "{batches} batches for 1,500 keys, up to 512 in each");
}

#[test]
fn a_key_may_have_for_ever_to_go() {
    let mut alone = Alone::new(None, Time::ZERO);
    alone.lease("s", u64::MAX);
    alone.passes(2_500);
    let looks = alone.replica.deadline().expect("the time is said again") - alone.now;
    assert!(alone.has("s") && looks >= Duration::from_millis(20), "it looks again after {looks:?}");
}

/// A leader reads the deadlines in pieces. With some of them read it is no slower than with all.
#[test]
fn who_leads_next_is_soon_through_with_a_crowd_that_is_due() {
    let mut partition = Partition::new(GROUP, KeyRange::all(), MapVersion(1));
    let mut deadlines = 1_000_u64.to_le_bytes().to_vec();
    for n in 0..20_000_u32 {
        deadlines.extend(4_u32.to_le_bytes().into_iter().chain(n.to_be_bytes()).chain(900_u64.to_be_bytes()));
    }
    partition.set_expiry(Deadlines::import(&deadlines).expect("deadlines"));
    let mut alone = Alone::new(Some(partition), Time::ZERO);
    alone.passes(500);
    assert!(alone.partition().expiry().is_empty(), "{} keys are left", alone.partition().expiry().len());
}

/// The time of the log stands where a leader has counted on, for long if no key expires, when it takes in a neighbour's
/// keys.
#[test]
fn keys_that_a_merge_brings_have_as_long_to_go_as_before() {
    let place = |n: u64, version, step| {
        let change = BoundaryChange { version: MapVersion(version), step };
        let payload = postcard::to_stdvec(&change).expect("plain data").into();
        let prev = (n > 1).then_some(Ticket { n: n - 1, ..TICKET });
        Place { ticket: Ticket { n, ..TICKET }, prev, work: Work::Change { id: ChangeId(version), payload } }
    };
    let (upper, bound) = (PartitionId(2), KeyRange { low: (&b"k"[..]).into(), high: None });
    let mut neighbour = Alone::new(Some(Partition::new(upper, bound.clone(), MapVersion(1))), Time::ZERO);
    neighbour.lease("s", 5_000);
    neighbour.step(Input::Place(place(1, 2, BoundaryStep::Seal { partition: upper, target: GROUP })));
    let left = neighbour.partition().absorbed_state().expect("sealed");
    let own = KeyRange { low: (&b""[..]).into(), high: Some(bound.low) };
    let mut alone = Alone::new(Some(Partition::new(GROUP, own, MapVersion(1))), Time::ZERO);
    let mut with_keys = Alone::new(Some(alone.partition().copy()), Time::ZERO);
    alone.passes(600_000);
    with_keys.lease("a", 600_000);
    with_keys.passes(900);
    for mut alone in [alone, with_keys] {
        alone.step(Input::Absorb(Box::new(left.clone())));
        alone.step(Input::Place(place(1, 3, BoundaryStep::Join { partition: upper, target: GROUP })));
        alone.passes(4_900);
        assert!(alone.has("s"), "it expires early");
        alone.passes(1_300);
        assert!(!alone.has("s"));
    }
}

/// A pack of a session that sets a key to expire.
pub(super) fn lease_of(session: SessionId, number: u64, key: &str, milliseconds: u64) -> bytes::Bytes {
    let expiry = Expiry::After { milliseconds, only: ExpiryCondition::Always };
    let mut terms = Vec::new();
    Update::new(Edit::Set(b"v")).expiring(expiry).write(&mut terms);
    let mut pack = PackWriter::new(Vec::new(), session, 1, false, 4_096);
    pack.push(number, Op::Update { key: key.as_bytes(), terms: &terms }).expect("it fits");
    pack.finish(GROUP, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
}

impl Follower {
    /// A client sets a key that expires.
    fn sets(&mut self, number: u64, key: &str, milliseconds: u64) {
        let entry = lease_of(self.session, number, key, milliseconds);
        let origin = Origin::Client { worker: 0, stream: number as u32, connection: 1 };
        let request = Request::Pack { entry, commands: 1, work: 8, grows: true, known: false, timed: true };
        self.step(Input::Request { origin, request });
    }

    /// Time passes; it flushes at once, and one of its peers grants it all.
    fn with_a_peer(&mut self, milliseconds: u64) {
        let until = self.now + Duration::from_millis(milliseconds);
        while self.now < until {
            self.now = until.min(self.now + Duration::from_millis(5));
            let mut inputs = VecDeque::from([Input::Tick]);
            while let Some(input) = inputs.pop_front() {
                for effect in self.step(input) {
                    let message: Message = match effect {
                        Effect::Persist { lsn, .. } => {
                            inputs.push_back(Input::Persisted(lsn));
                            continue;
                        }
                        Effect::Send { to: ReplicaId(1), message } => match message {
                            Message::PreVote(m) => PreVoteReply {
                                attempt: m.attempt,
                                granted: true,
                                promised: Ballot::ZERO,
                                decided_upto: m.decided_upto,
                            }
                            .into(),
                            Message::Phase1a(m) => Phase1b {
                                ballot: m.ballot,
                                from: m.from,
                                accepted: Vec::new(),
                                decided_upto: BEGIN,
                                trimmed_upto: Instance::ZERO,
                            }
                            .into(),
                            Message::Phase2a(m) => {
                                Phase2b { ballot: m.ballot, first: m.instance, instance: m.instance }.into()
                            }
                            Message::Heartbeat(m) => HeartbeatAck {
                                ballot: m.ballot,
                                round: m.round,
                                durable_upto: m.decided_upto,
                                lease: Duration::ZERO,
                                released: None,
                            }
                            .into(),
                            _ => continue,
                        },
                        _ => continue,
                    };
                    inputs.push_back(Input::Peer { from: ReplicaId(1), message });
                }
            }
        }
    }
}

/// A leader is cut off, and proposes. Another one counts less, since what the first has counted is in no log, and sets
/// a key; then the first leads again, with what it had proposed behind that.
#[test]
fn what_a_deposed_leader_has_counted_lets_no_key_go_early() {
    let mut first = Follower::new();
    first.with_a_peer(1_000);
    first.sets(1, "a", 1_000_000);
    first.with_a_peer(50);
    let time = |replica: &Replica| replica.executor().machine().partition().expect("a partition").expiry().time();
    let (decided, said) = (first.replica.executor().decided(), time(&first.replica));
    // Nobody votes for these, and it has not noticed that yet.
    for number in [2, 3] {
        first.now = first.now + Duration::from_millis(100);
        first.sets(number, "b", 1_000_000);
        first.now = first.now + Duration::from_millis(6);
        first.step(Input::Tick);
    }
    let last = first.replica.executor().last_executed();
    assert!(last.0 >= decided.0 + 2 && time(&first.replica) >= said + 200, "it is cut off");
    let said = Said { by: Ballot::new(900, 3), time: said + 10 };
    let set = batch(entry::timed(said, &lease_of(first.session, 4, "s", 60_000)));
    first.hears(900, decided.0 + 1, set, decided.0 + 1);
    assert!(!first.replica.is_leading());
    let clock = first.now;
    first.step(Input::Gone { peer: ReplicaId(3) });
    first.with_a_peer(1_000);
    assert!(first.replica.is_leading());
    let tree = first.replica.executor().machine().partition().expect("a partition").tree();
    assert!(tree.get(b"b").is_some(), "it is decided behind the other");
    let before = time(&first.replica);
    while time(&first.replica) == before {
        first.with_a_peer(5);
    }
    let (counted, passed) = (time(&first.replica) - said.time, (first.now - clock).as_millis() as u64);
    assert!((passed - 100..=passed).contains(&counted), "{counted} ms are counted of {passed}");
}

/// A partition whose newest time is not decided yet.
#[test]
fn an_expiry_that_is_not_decided_is_taken_back() {
    let mut follower = Follower::new();
    let time = |follower: &Follower| {
        let machine = follower.replica.executor().machine();
        machine.partition().expect("a partition").expiry().time()
    };
    follower.hears(1, 2, batch(entry::expire(Ballot::ZERO, &Expire { time: 7_000, keys: Vec::new() })), 1);
    assert_eq!(time(&follower), 7_000);
    follower.hears(2, 2, Batch::NoOp, 1);
    assert_eq!(time(&follower), 0, "another batch stands there");
}

#[test]
fn a_snapshot_of_a_replica_holds_when_keys_expire() {
    let mut alone = Alone::new(None, Time::ZERO);
    alone.lease("s", 5_000);
    alone.passes(1_500);
    let TakenSnapshot { head, blobs, tree } = snapshot::take(ClusterId(7), &alone.replica);
    let loaded =
        snapshot::restore(&head, &blobs.write(), tree.iter().map(|(key, value)| (key[..].into(), value.into())));
    let loaded = loaded.expect("what was taken").machine;
    let (found, own) = (loaded.partition().expect("a partition").expiry(), alone.partition().expiry());
    assert_eq!((found.time(), found.deadline(b"s")), (own.time(), own.deadline(b"s")));
    assert!(found.time() > 0);
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    for (mutant, test) in [
        ("expiry_lost_in_snapshot", "a_snapshot_of_a_replica_holds_when_keys_expire"),
        ("earlier_leader_counts", "what_a_deposed_leader_has_counted_lets_no_key_go_early"),
        ("merge_counts_on", "keys_that_a_merge_brings_have_as_long_to_go_as_before"),
        ("time_goes_back_at_election", "who_leads_next_counts_on_from_the_log_whatever_its_clock_says"),
    ] {
        planted::assert_caught(mutant, &format!("replica::tests::expiry::{test}"));
    }
}
