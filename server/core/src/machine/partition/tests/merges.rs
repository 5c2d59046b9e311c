//! Merges of two partitions' states: what is closed, what is taken in, what is taken back, who waits for what.

use std::collections::BTreeSet;

use bytes::Bytes;
use coppice_btree::KeyRange;
use coppice_client::wire::{ClientId, ClusterId, MapVersion, PartitionId, RangeRequest};
use coppice_ordering::message::Heartbeat;
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{
    Ballot, Batch, Config, Configuration, HeartbeatRound, Instance, Lsn, Message, Record, RecoveredGroup, ReplicaId,
    Round, Ticket, Time,
};

use super::super::{BoundaryChange, BoundaryStep, Partition, Values};
use super::{Log, batch, put, put_of};
use crate::executor::{Executor, ExecutorSettings};
use crate::machine::entry;
use crate::machine::{Machine, Outcome};
use crate::replica::{Effect, Input, Replica};
use crate::sessions::SessionLimits;
use crate::snapshot;

const LOWER: PartitionId = PartitionId(1);
const UPPER: PartitionId = PartitionId(2);
/// Of a merge's two changes.
const SEAL: MapVersion = MapVersion(40);
const JOIN: MapVersion = MapVersion(41);

fn boundary(n: u64, version: MapVersion, step: BoundaryStep) -> Bytes {
    let change = BoundaryChange { version, step };
    let payload = Bytes::from(postcard::to_stdvec(&change).expect("plain data"));
    let ballot = Ballot { round: Round(2), replica: ReplicaId(1) };
    let prev = (n > 1).then_some(Ticket { ballot, n: n - 1 });
    let work = Work::Change { id: coppice_ordering::ChangeId(version.0), payload };
    entry::place(&Place { ticket: Ticket { ballot, n }, prev, work })
}

pub(super) fn seal(n: u64) -> Bytes {
    boundary(n, SEAL, BoundaryStep::Seal { partition: UPPER, target: LOWER })
}

pub(super) fn join(n: u64) -> Bytes {
    boundary(n, JOIN, BoundaryStep::Join { partition: UPPER, target: LOWER })
}

fn range(low: &'static str, high: Option<&'static str>) -> RangeRequest {
    RangeRequest { low: low.into(), high: high.map(Into::into), ..RangeRequest::whole(LOWER) }
}

/// A partition that was cut at "k", and its child: number 1 to 4 put "a", "g", "k", "t" before that.
pub(super) fn cut() -> (Log, Log) {
    let mut lower = Log::new();
    let mark = lower.split("k", 1);
    let child = mark.forks()[0].partition.copy();
    let upper = Log { partition: child, instance: Instance(500), session: lower.session };
    (lower, upper)
}

/// Both, when the upper one is sealed and the lower one has what it leaves.
fn sealed() -> (Log, Log) {
    let (mut lower, mut upper) = cut();
    upper.put(5, "m");
    upper.run(seal(1));
    assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
    (lower, upper)
}

#[test]
fn mv6_a_sealed_partition_takes_no_command_and_no_read() {
    let (_, mut upper) = sealed();
    let before = upper.partition.digest();
    let (_, answer) = upper.put(6, "n");
    assert_eq!(answer, format!("{:?}", Outcome::Closed));
    let (_, answers) = upper.run(entry::open(ClientId(3), 7));
    assert_eq!(answers[0].outcome, Outcome::Closed);
    assert_eq!(upper.partition.digest(), before, "a sealed partition has changed");
    assert_eq!(
        upper.partition.get_all([&b"m"[..]].into_iter(), usize::MAX),
        None,
        "another partition may have it already"
    );
    let range = range("k", None);
    assert!(upper.partition.cursor(&range.low, None, false).is_none());
    assert!(
        upper.partition.part(&range.low, None, false).is_some(),
        "a query that was cut by the map of before gets its part"
    );
}

/// Seed 704632: a pack at a sealed partition whose table of sessions was too full ended one of them. The neighbour's
/// replicas that had taken the state before that differed from those that took it after a restart.
#[test]
fn mv12_the_sessions_of_a_sealed_partition_stay_however_full_its_table_is() {
    let (_, mut upper) = cut();
    upper.run(entry::open(ClientId(9), 1));
    upper.put(5, "m");
    upper.partition.set_session_limits(SessionLimits { table_bytes_max: 1, ..SessionLimits::default() });
    upper.run(seal(1));
    let before = upper.partition.digest();
    let (_, answer) = upper.put(6, "n");
    assert_eq!(answer, format!("{:?}", Outcome::Closed));
    assert_eq!(
        (upper.partition.digest(), upper.partition.sessions().len()),
        (before, 2),
        "a sealed partition has changed"
    );
}

#[test]
fn the_target_takes_in_keys_and_bounds() {
    let (mut lower, _) = sealed();
    let (mark, _) = lower.run(join(1));
    assert_eq!((mark.joins(), mark.awaits()), (&[JOIN][..], None));
    assert_eq!((lower.partition.range(), lower.keys()), (&KeyRange::all(), 5));
    let Values { values, .. } =
        lower.partition.get_all([&b"a"[..], b"m", b"t"].into_iter(), usize::MAX).expect("its own now");
    assert!(values.iter().all(Option::is_some));
    lower.put(7, "n");
    assert_eq!(lower.keys(), 6);
    let twice = lower.run(join(2)).0;
    assert!(twice.joins().is_empty() && twice.awaits().is_none(), "sent again under another ticket");
}

/// A copy of the split's change comes when its child was taken in again: only the map's version tells that it is old.
#[test]
fn a_change_of_boundaries_that_others_followed_is_not_applied_again() {
    let (mut lower, _) = sealed();
    lower.run(join(1));
    let (mark, _) = lower.run(boundary(
        2,
        MapVersion(2),
        BoundaryStep::Split { parent: LOWER, child: UPPER, at: "k".into(), replicas: Vec::new() },
    ));
    assert_eq!((mark.forks().len(), lower.partition.range()), (0, &KeyRange::all()));
    // Any number of changes later the neighbour still has the join behind it.
    assert!(lower.partition.map_version() == JOIN);
}

#[test]
fn a_lower_neighbour_is_taken_in_too() {
    let (mut lower, mut upper) = cut();
    lower.run(boundary(1, SEAL, BoundaryStep::Seal { partition: LOWER, target: UPPER }));
    upper.partition.absorb(lower.partition.absorbed_state().expect("sealed"));
    let before = (upper.partition.digest(), upper.keys());
    let join = boundary(1, JOIN, BoundaryStep::Join { partition: LOWER, target: UPPER });
    let (mark, _) = upper.run(join.clone());
    let (last, _) = upper.put(9, "b");
    assert_eq!((upper.partition.range(), upper.keys()), (&KeyRange::all(), 5));
    upper.partition.undo(&last);
    upper.partition.undo(&mark);
    assert_eq!((upper.partition.digest(), upper.keys()), before, "taken back");
    upper.run(join);
    assert_eq!(upper.keys(), 4);
}

#[test]
fn a_merge_that_is_not_decided_is_taken_back() {
    let (mut lower, mut upper) = cut();
    let open = (upper.partition.digest(), upper.partition.sealed());
    let (mark, _) = upper.run(seal(1));
    upper.partition.undo(&mark);
    assert_eq!((upper.partition.digest(), upper.partition.sealed()), open);
    upper.run(seal(1));
    lower.partition.absorb(upper.partition.absorbed_state().expect("sealed"));
    let before = (lower.partition.digest(), lower.keys(), lower.partition.range().clone());
    let (first, _) = lower.run(join(1));
    let (second, _) = lower.put(8, "z");
    let mut view = lower.partition.view();
    view.undo_view(&second);
    view.undo_view(&first);
    assert_eq!((view.tree().len(), view.range()), (before.1, &before.2), "in a copy too");
    lower.partition.undo(&second);
    lower.partition.undo(&first);
    assert_eq!((lower.partition.digest(), lower.keys(), lower.partition.range().clone()), before);
    lower.run(join(1));
    assert_eq!(lower.keys(), 4, "and may be decided after all");
}

/// Number 5 was refused by the lower partition, behind its boundary, and executed by the upper one. They are merged
/// again, and the first sending arrives once more, late.
#[test]
fn se8_a_merge_unites_what_both_sides_executed() {
    let (mut lower, mut upper) = cut();
    let refused = lower.put(5, "m").1;
    let first = upper.put(5, "m").1;
    assert_ne!(refused, first);
    let session = lower.session.expect("open");
    // Of a session that only the upper one knows.
    let (_, opened) = upper.run(entry::open(coppice_client::wire::ClientId(8), 2));
    let Outcome::Opened(own) = opened[0].outcome else { panic!("{opened:?}") };
    upper.run(put_of(own, 1, "p", "first"));
    lower.put(6, "b");
    upper.run(seal(1));
    lower.partition.absorb(upper.partition.absorbed_state().expect("sealed"));
    lower.run(join(1));
    let (keys, tree) = (lower.keys(), lower.partition.tree().digest());
    for entry in [put_of(session, 5, "m", "late"), put_of(own, 1, "p", "late"), put_of(session, 6, "b", "late")] {
        let (_, answers) = lower.run(entry);
        assert!(matches!(answers[0].outcome, Outcome::Pack(_)), "{answers:?}");
        assert_eq!((lower.keys(), lower.partition.tree().digest()), (keys, tree), "executed twice");
    }
    assert_eq!(
        lower.partition.sessions().find(session, 5),
        upper.partition.sessions().find(session, 5),
        "its first answer"
    );
}

fn executor(partition: Partition) -> Executor {
    Executor::new(Machine::Partition(Box::new(partition)), Instance::ZERO, ExecutorSettings::default())
}

/// The neighbour's replica on this node is behind: the batch waits for what it leaves, and everything behind it waits.
#[test]
fn a_join_waits_for_what_the_neighbour_leaves() {
    let (lower, mut upper) = cut();
    upper.run(seal(1));
    let session = lower.session.expect("open");
    let mut executor = executor(lower.partition);
    let mut answers = Vec::new();
    executor.accepted(Instance(1), batch(put(session, 9, "c")), &mut answers);
    executor.accepted(Instance(2), batch(join(1)), &mut answers);
    executor.accepted(Instance(3), batch(put(session, 10, "x")), &mut answers);
    assert_eq!((executor.last_executed(), answers.len()), (Instance(1), 1));
    executor.decided_upto(Instance(3), &mut answers);
    assert_eq!((executor.decided(), executor.is_stalled()), (Instance(1), true));
    assert_eq!(executor.awaits().map(|(at, awaited)| (at, awaited.partition)), Some((Instance(2), UPPER)));
    executor.absorb(upper.partition.absorbed_state().expect("sealed"), &mut answers);
    executor.decided_upto(Instance(3), &mut answers);
    assert_eq!((executor.decided(), answers.len()), (Instance(3), 3));
    assert_eq!(executor.machine().partition().map(|partition| partition.tree().len()), Some(6));
    assert_eq!(executor.take_moved().len(), 1);
}

/// A replica of r1 and r2 that waits at instance 12 for what its neighbour leaves; what is decided goes further.
fn waiting(first: &Configuration, later: &Configuration, effects: &mut Vec<Effect>) -> Replica {
    let (lower, _) = cut();
    let session = lower.session.expect("open");
    let mut recovered = RecoveredGroup::from_snapshot(Instance(10), first.clone(), Instance(4), Ballot::ZERO);
    let batches = [batch(put(session, 9, "c")), batch(join(1)), Batch::Configuration(later.clone()), Batch::NoOp];
    for (n, batch) in (1..).zip(batches) {
        let (ballot, decided_upto) = (Ballot::new(1, 1), Instance(10));
        recovered.apply(Lsn(n), Record::Accept { instance: Instance(10 + n), ballot, decided_upto, batch });
    }
    recovered.apply(Lsn(5), Record::Decided { upto: Instance(14) });
    let config = Config::new(ReplicaId(1), first.clone(), 1);
    let machine = Machine::Partition(Box::new(lower.partition));
    Replica::recover(LOWER, config, recovered, machine, Instance(10), ExecutorSettings::default(), Time::ZERO, effects)
}

/// A replica waited for the state of a neighbour that was gone from its node, and the others moved on meanwhile, by
/// configurations that it had no room to learn of. It asked the voters that it knew for a snapshot; none was left.
#[test]
fn one_that_waits_asks_the_leader_too() {
    let configuration = Configuration::of_voters([ReplicaId(1), ReplicaId(2)]);
    let mut effects = Vec::new();
    let mut replica = waiting(&configuration, &configuration, &mut effects);
    let mut asked = BTreeSet::new();
    for round in 1..40 {
        let now = Time(100_000_000 * round);
        let heartbeat = Heartbeat {
            ballot: Ballot::new(5, 7),
            round: HeartbeatRound(round),
            decided_upto: Instance(40),
            held_upto: Instance(40),
            released: None,
            lease: std::time::Duration::ZERO,
            quiesce: std::time::Duration::ZERO,
        };
        replica.step(now, Input::Peer { from: ReplicaId(7), message: heartbeat.into() }, &mut effects);
        replica.step(now, Input::Tick, &mut effects);
        asked.extend(effects.drain(..).filter_map(|effect| match effect {
            Effect::NeedSnapshot { from, .. } => Some(from),
            _ => None,
        }));
    }
    assert_eq!(asked, BTreeSet::from([ReplicaId(2), ReplicaId(7)]));
}

/// Seed 290: a replica took the place of the only one of its group; it had begun below a join, on a node without the
/// neighbour. It had all of the log, so that one was removed and forgot, and with it the only state behind the join.
#[test]
fn one_that_waits_does_not_hold_what_it_cannot_execute() {
    let first = Configuration::of_voters([ReplicaId(2)]);
    let leaving = [ReplicaId(2)].into_iter().collect();
    let later = Configuration { leaving, ..Configuration::of_voters([ReplicaId(1)]) };
    let mut effects = Vec::new();
    let mut replica = waiting(&first, &later, &mut effects);
    let (mut held, mut asked) = (BTreeSet::new(), BTreeSet::new());
    for round in 1..40 {
        let now = Time(100_000_000 * round);
        let heartbeat = Heartbeat {
            ballot: Ballot::new(5, 2),
            round: HeartbeatRound(round),
            decided_upto: Instance(14),
            held_upto: Instance(10),
            released: None,
            lease: std::time::Duration::ZERO,
            quiesce: std::time::Duration::ZERO,
        };
        replica.step(now, Input::Peer { from: ReplicaId(2), message: heartbeat.into() }, &mut effects);
        replica.step(now, Input::Tick, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::NeedSnapshot { from, .. } => _ = asked.insert(from),
                Effect::Send { message: Message::HeartbeatAck(ack), .. } => _ = held.insert(ack.durable_upto),
                _ => {}
            }
        }
    }
    assert_eq!((held, asked), (BTreeSet::from([Instance(11)]), BTreeSet::from([ReplicaId(2)])));
}

/// The replica is moved while it waits: a configuration is decided above the join. A snapshot of the state below it
/// says who governed there, or a replica that began with it would count other quorums for the instances between.
#[test]
fn a_snapshot_below_a_join_that_waits_has_the_configuration_of_its_instance() {
    let first = Configuration::of_voters([ReplicaId(1)]);
    let later = Configuration::of_voters([ReplicaId(1), ReplicaId(2)]);
    let replica = waiting(&first, &later, &mut Vec::new());
    assert_eq!((replica.executor().decided(), replica.executor().is_stalled()), (Instance(11), true));
    assert_eq!(replica.paxos().configuration(), (&later, Instance(13)));
    let taken = snapshot::take(ClusterId(7), &replica);
    let loaded = snapshot::restore(&taken.head, &taken.blobs.write(), std::iter::empty()).expect("whole");
    assert_eq!((loaded.instance, loaded.configured_at, loaded.configuration), (Instance(11), Instance(4), first));
    assert_eq!(replica.paxos().configuration_at(Instance(13)), (&later, Instance(13)));
}

/// Another batch is decided where the join was executed: nothing is awaited.
#[test]
fn a_join_that_is_overwritten_is_not_waited_for() {
    let (lower, _) = cut();
    let mut executor = executor(lower.partition);
    let mut answers = Vec::new();
    executor.accepted(Instance(1), batch(join(1)), &mut answers);
    assert!(executor.awaits().is_some());
    executor.accepted(Instance(1), Batch::NoOp, &mut answers);
    executor.decided_upto(Instance(1), &mut answers);
    assert_eq!((executor.decided(), executor.awaits()), (Instance(1), None));
}

/// The leader changes between the execution of the seal and its decision: a put is decided before it after all.
#[test]
fn mv12_what_a_partition_leaves_is_decided() {
    let (_, upper) = cut();
    let session = upper.session.expect("open");
    let mut executor = executor(upper.partition);
    let mut answers = Vec::new();
    executor.accepted(Instance(1), batch(seal(1)), &mut answers);
    assert!(executor.take_moved().is_empty(), "its neighbour would get a state that may be taken back");
    executor.accepted(Instance(1), batch(put(session, 6, "q")), &mut answers);
    executor.accepted(Instance(2), batch(seal(1)), &mut answers);
    executor.decided_upto(Instance(2), &mut answers);
    assert_eq!(executor.take_moved().len(), 1);
    let left = executor.machine().partition().and_then(Partition::absorbed_state).expect("sealed");
    let mut lower = cut().0;
    lower.partition.absorb(left);
    lower.run(join(1));
    assert!(lower.partition.tree().get(b"q").is_some());
}

/// Story: a follower is told a position before a split, and reads when the split is executed: the keys behind the
/// boundary are another partition's, which may have changed them since.
#[test]
fn mv3_a_read_is_checked_in_the_state_that_it_reads() {
    let (lower, _) = cut();
    assert_eq!(lower.partition.get_all([&b"t"[..]].into_iter(), usize::MAX), None);
    assert!(lower.partition.cursor(b"a", Some(b"z"), false).is_none());
    assert!(lower.partition.get_all([&b"a"[..]].into_iter(), usize::MAX).is_some());
}

/// Story: a client reads a range, a part of it is split off, written to, and merged back, and the client asks whether
/// the range has changed: nobody here has counted what the other partition did.
#[test]
fn rd14_a_range_of_which_another_partition_held_a_part_has_changed() {
    let mut lower = Log::new();
    let seen = lower.partition.changes().count();
    assert!(lower.partition.may_read(b"a", None) && lower.partition.changes().are_none_in(seen, b"a", None));
    let child = lower.split("k", 1).forks()[0].partition.copy();
    let mut upper = Log { partition: child, instance: Instance(500), session: lower.session };
    assert!(!lower.partition.may_read(b"a", None), "the range belongs to the other partition");
    upper.put(5, "m");
    upper.run(seal(1));
    lower.partition.absorb(upper.partition.absorbed_state().expect("sealed"));
    lower.run(join(1));
    assert!(lower.partition.may_read(b"k", None) && !lower.partition.changes().are_none_in(seen, b"k", None));
}

/// What an executor counted of one state says nothing about another one that is put in its place.
#[test]
fn rd14_a_range_of_before_a_snapshot_has_changed() {
    let log = Log::new();
    let mut other = Log::new();
    let mut executor = executor(log.partition);
    let seen = executor.machine().partition().expect("a partition").changes().count();
    // Behind it the other one has counted as much.
    other.put(5, "m");
    let snapshot = restored(&other.partition);
    executor.install(Machine::Partition(Box::new(snapshot)), Instance(9));
    let mut answers = Vec::new();
    for number in 0..2 * seen {
        let put = put(other.session.expect("open"), 6 + number, "q");
        executor.accepted(Instance(10 + number), batch(put), &mut answers);
        let partition = executor.machine().partition().expect("a partition");
        assert!(!partition.changes().are_none_in(seen, b"a", Some(b"p")), "{number}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_changes_are_caught() {
    for (mutant, test) in [
        ("validates_over_boundaries", "rd14_a_range_of_which_another_partition_held_a_part_has_changed"),
        ("boundary_applied_again", "a_change_of_boundaries_that_others_followed_is_not_applied_again"),
        ("validates_over_snapshot", "rd14_a_range_of_before_a_snapshot_has_changed"),
    ] {
        planted::assert_caught(mutant, &format!("machine::partition::tests::merges::{test}"));
    }
}

/// The same state, as a snapshot brings it.
fn restored(partition: &Partition) -> Partition {
    Partition::restored(
        partition.id(),
        partition.range().clone(),
        partition.map_version(),
        partition.tree().snapshot().into(),
        crate::sessions::Sessions::import(partition.sessions().export()),
        partition.last_ticket(),
    )
}

#[test]
fn a_seal_survives_a_snapshot() {
    let (_, upper) = sealed();
    let mut snapshot = restored(&upper.partition);
    snapshot.set_sealed(upper.partition.sealed());
    assert_eq!(snapshot.digest(), upper.partition.digest());
    assert!(snapshot.absorbed_state().is_some());
}

/// Seed 147: a session that a split had copied was ended on one side, by log order, with the command that ran there.
/// The other side's copy lived on, and after the merge it executed the client's repetition of that command.
#[test]
fn se8_a_session_that_ended_on_one_side_ends_with_the_merge() {
    let (mut lower, mut upper) = cut();
    upper.put(5, "m");
    upper.partition.set_session_limits(SessionLimits { sessions_max: 1, ..SessionLimits::default() });
    upper.run(entry::open(ClientId(3), 7));
    upper.run(seal(1));
    assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
    let before = lower.partition.digest();
    let (mark, _) = lower.run(join(1));
    let (repeated, answer) = lower.put(5, "m");
    assert_eq!(answer, format!("{:?}", Outcome::SessionExpired), "it would execute twice");
    assert_eq!(lower.partition.sessions().len(), 1, "the one that was opened behind the split goes on");
    lower.partition.undo(&repeated);
    lower.partition.undo(&mark);
    assert_eq!(lower.partition.digest(), before);
}

/// A join that was taken back does not hold up what follows.
#[test]
fn what_is_decided_below_a_join_that_was_taken_back_runs() {
    let (lower, _) = cut();
    let (at, session) = (lower.instance, lower.session.expect("open"));
    let mut executor = Executor::new(Machine::Partition(Box::new(lower.partition)), at, ExecutorSettings::default());
    let mut answers = Vec::new();
    let (first, next) = (at.next(), at.next().next());
    // Run ahead: a command, and a join whose absorbed state is not here.
    executor.accepted(first, batch(put(session, 7, "b")), &mut answers);
    executor.accepted(next, batch(join(1)), &mut answers);
    assert_eq!(executor.awaits().map(|(at, _)| at), Some(next));
    // Another leader decides something else at the first, and has nothing behind it.
    assert_eq!(executor.accepted(first, batch(put(session, 8, "c")), &mut answers), Some(first));
    executor.decided_upto(first, &mut answers);
    assert_eq!((executor.decided(), executor.last_executed(), executor.is_stalled()), (first, first, false));
}

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_merges_are_caught() {
    for (mutant, test) in [
        ("merge_no_end", "mv6_a_sealed_partition_takes_no_command_and_no_read"),
        ("sealed_is_relieved", "mv12_the_sessions_of_a_sealed_partition_stay_however_full_its_table_is"),
        ("merge_drops_sessions", "se8_a_merge_unites_what_both_sides_executed"),
        ("refusal_stored", "se8_a_merge_unites_what_both_sides_executed"),
        ("merge_revives_sessions", "se8_a_session_that_ended_on_one_side_ends_with_the_merge"),
        ("merge_undecided", "mv12_what_a_partition_leaves_is_decided"),
        ("snap_newest_conf", "a_snapshot_below_a_join_that_waits_has_the_configuration_of_its_instance"),
        ("stalled_asks_old_voters", "one_that_waits_asks_the_leader_too"),
        ("log_is_enough", "one_that_waits_does_not_hold_what_it_cannot_execute"),
        ("awaits_survives_undo", "what_is_decided_below_a_join_that_was_taken_back_runs"),
        ("read_ignores_split", "mv3_a_read_is_checked_in_the_state_that_it_reads"),
    ] {
        planted::assert_caught(mutant, &format!("machine::partition::tests::merges::{test}"));
    }
}
