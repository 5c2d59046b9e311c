//! Splits of a partition's state: what is where afterwards, what is taken back, what is applied once.

mod costs;
mod merges;
mod updates;

use bytes::Bytes;
use coppice_btree::{KeyRange, Op};
use coppice_client::map::{ReplicaInfo, Role};
use coppice_client::wire::{ClientId, MapVersion, NodeId, PackWriter, PartitionId, ReplicaId, SessionId, frame};
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Ballot, Batch, Commands, Instance, Round, Ticket};

use super::{BoundaryChange, BoundaryStep, Partition, PartitionMark};
use crate::executor::{Executor, ExecutorSettings};
use crate::machine::entry;
use crate::machine::{Answer, Machine, Outcome};

const PARENT: PartitionId = PartitionId(1);
const CHILD: PartitionId = PartitionId(2);

fn batch(entry: Bytes) -> Batch {
    Batch::Commands(Commands::new(1, entry))
}

struct Log {
    partition: Partition,
    instance: Instance,
    session: Option<SessionId>,
}

impl Log {
    fn new() -> Log {
        let partition = Partition::new(PARENT, KeyRange::all(), MapVersion(1));
        let mut log = Log { partition, instance: Instance::ZERO, session: None };
        let (_, answers) = log.run(entry::open(ClientId(9), 1));
        let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
        log.session = Some(session);
        for (number, key) in ["a", "g", "k", "t"].into_iter().enumerate() {
            log.put(number as u64 + 1, key);
        }
        log
    }

    fn run(&mut self, entry: Bytes) -> (PartitionMark, Vec<Answer>) {
        self.instance = self.instance.next();
        let mut answers = Vec::new();
        let mark = self.partition.execute(self.instance, &batch(entry), &mut answers);
        (mark, answers)
    }

    fn put(&mut self, number: u64, key: &str) -> (PartitionMark, String) {
        let entry = put(self.session.expect("open"), number, key);
        let (mark, answers) = self.run(entry);
        (mark, format!("{:?}", answers[0].outcome))
    }

    fn split(&mut self, at: &'static str, n: u64) -> PartitionMark {
        self.run(split(at, n)).0
    }

    fn keys(&self) -> u64 {
        self.partition.tree().len()
    }
}

fn put(session: SessionId, number: u64, key: &str) -> Bytes {
    put_of(session, number, key, "v")
}

fn put_of(session: SessionId, number: u64, key: &str, value: &str) -> Bytes {
    let mut pack = PackWriter::new(Vec::new(), session, 1, false, 4096);
    pack.push(number, Op::Put { key: key.as_bytes(), value: value.as_bytes() }).expect("it fits");
    // Behind the frame's header and the partition stands the entry.
    pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
}

fn split(at: &'static str, n: u64) -> Bytes {
    let replicas = vec![ReplicaInfo { replica: ReplicaId(1), node: NodeId(1), role: Role::Voter }];
    let step = BoundaryStep::Split { parent: PARENT, child: CHILD, at: Bytes::from(at), replicas };
    let change = BoundaryChange { version: MapVersion(2), step };
    let payload = Bytes::from(postcard::to_stdvec(&change).expect("plain data"));
    let ballot = Ballot { round: Round(1), replica: coppice_ordering::ReplicaId(1) };
    let prev = (n > 1).then_some(Ticket { ballot, n: n - 1 });
    let work = Work::Change { id: coppice_ordering::ChangeId(2), payload };
    entry::place(&Place { ticket: Ticket { ballot, n }, prev, work })
}

#[test]
fn a_split_cuts_the_tree_and_gives_the_child_what_is_above() {
    let mut log = Log::new();
    let mark = log.split("k", 1);
    let [fork] = mark.forks() else { panic!("one child") };
    assert_eq!((log.keys(), fork.partition.tree().len()), (2, 2));
    assert_eq!(log.partition.range(), &KeyRange { low: b""[..].into(), high: Some(b"k"[..].into()) });
    assert_eq!(fork.partition.range(), &KeyRange { low: b"k"[..].into(), high: None });
    assert_eq!((fork.partition.id(), fork.instance), (CHILD, log.instance));
    assert_eq!(fork.partition.tree().get(b"t"), Some(&b"v"[..]));
}

#[test]
fn mv2_a_command_behind_the_boundary_is_refused_where_the_log_has_it() {
    let mut log = Log::new();
    log.split("k", 1);
    let before = log.keys();
    log.put(9, "m");
    assert_eq!(log.keys(), before, "the parent took a key of the child");
    log.put(10, "b");
    assert_eq!(log.keys(), before + 1);
}

#[test]
fn tk3_a_repeated_answer_waits_for_the_tickets_before_the_repetition() {
    let mut log = Log::new();
    log.split("k", 1);
    let last_ticket = log.partition.last_ticket();
    let (_, answers) = log.run(put(log.session.expect("open"), 1, "a"));
    assert!(last_ticket.is_some() && answers[0].last_ticket == last_ticket, "{answers:?}");
}

#[test]
fn mv4_the_child_goes_on_from_the_parents_last_ticket() {
    let mut log = Log::new();
    let mark = log.split("k", 1);
    assert!(mark.forks()[0].partition.last_ticket().is_some());
    assert_eq!(mark.forks()[0].partition.last_ticket(), log.partition.last_ticket());
}

#[test]
fn mv5_a_command_of_before_the_split_gets_its_first_answer_from_the_child() {
    let mut log = Log::new();
    let session = log.session.expect("open");
    let mark = log.split("k", 1);
    let mut child = mark.forks()[0].partition.copy();
    let before = child.digest();
    let mut answers = Vec::new();
    // Number 4 put "t" in the parent; its answer was lost, so the client repeats it where the key is now.
    child.execute(Instance(50), &batch(put(session, 4, "t")), &mut answers);
    assert!(matches!(answers[0].outcome, Outcome::Pack(_)), "{answers:?}");
    assert_eq!(child.tree().len(), 2);
    let mut again = mark.forks()[0].partition.copy();
    let mut new = Vec::new();
    again.execute(Instance(50), &batch(put(session, 5, "t")), &mut new);
    assert_ne!(format!("{answers:?}"), format!("{new:?}"), "a new number is executed, an old one is not");
    assert_eq!(before, mark.forks()[0].partition.digest());
}

#[test]
fn se3_an_acknowledged_number_that_returns_changes_nothing() {
    let mut log = Log::new();
    let session = log.session.expect("open");
    // The client has all answers below 5, and says so; then a copy of number 1 arrives, late.
    let mut pack = PackWriter::new(Vec::new(), session, 5, false, 4096);
    pack.push(5, Op::Delete { key: b"a" }).expect("it fits");
    log.run(pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..));
    let before = log.keys();
    log.put(1, "a");
    assert_eq!(log.keys(), before, "the deleted key is back");
}

/// A number that the client gave up before it ran here: it ran all the same when a copy came late, if it was above all
/// that had run.
#[test]
fn se3_an_acknowledged_number_that_never_ran_does_not_run_late() {
    let mut log = Log::new();
    let session = log.session.expect("open");
    let before = log.keys();
    let packed = |lowest: u64, number: u64, key: &[u8]| {
        let mut pack = PackWriter::new(Vec::new(), session, lowest, false, 4096);
        pack.push(number, Op::Put { key, value: b"v" }).expect("it fits");
        pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
    };
    log.run(packed(30, 40, b"b"));
    log.run(packed(50, 60, b"c"));
    assert_eq!(log.keys(), before + 2);
    log.run(packed(20, 45, b"y"));
    assert_eq!(log.keys(), before + 2, "below what executed, and acknowledged");
    log.split("c", 1);
    let before = log.keys();
    // Numbers are acknowledged that no pack executed here.
    log.run(packed(300, 310, b"x"));
    assert_eq!(log.keys(), before, "refused: another partition has the key");
    log.run(packed(220, 250, b"a2"));
    assert_eq!(log.keys(), before, "above all that executed, and acknowledged");
    // In one batch with the pack that acknowledges it: both run together, if both are new.
    let mut parts = vec![packed(400, 410, b"x"), packed(320, 399, b"a3"), packed(400, 400, b"a4")];
    log.instance = log.instance.next();
    log.partition.execute(log.instance, &Batch::Commands(Commands::from_parts(3, &mut parts)), &mut Vec::new());
    assert_eq!(log.keys(), before + 1, "the lowest unacknowledged number is new");
}

#[test]
fn a_split_that_is_not_decided_is_taken_back() {
    let mut log = Log::new();
    let before = (log.partition.digest(), log.keys());
    let first = log.split("k", 1);
    let (second, _) = log.put(9, "c");
    let mut view = log.partition.view();
    view.undo_view(&second);
    view.undo_view(&first);
    assert_eq!((view.tree().len(), view.range().high.is_none()), (before.1, true), "in a copy too");
    log.partition.undo(&second);
    log.partition.undo(&first);
    assert_eq!((log.partition.digest(), log.keys()), before);
    let mark = log.split("g", 1);
    assert_eq!(mark.forks().len(), 1, "and may be decided after all");
}

#[test]
fn sp8_a_child_begins_only_when_the_split_is_decided() {
    let partition = Partition::new(PARENT, KeyRange::all(), MapVersion(1));
    let mut executor =
        Executor::new(Machine::Partition(Box::new(partition)), Instance::ZERO, ExecutorSettings::default());
    let mut answers = Vec::new();
    executor.accepted(Instance(1), batch(split("k", 1)), &mut answers);
    assert_eq!(executor.last_executed(), Instance(1), "it is executed");
    assert!(executor.take_moved().is_empty(), "and may yet be taken back");
    executor.accepted(Instance(1), Batch::NoOp, &mut answers);
    executor.decided_upto(Instance(1), &mut answers);
    assert!(executor.take_moved().is_empty(), "another value was decided there");
    executor.accepted(Instance(2), batch(split("k", 1)), &mut answers);
    executor.decided_upto(Instance(2), &mut answers);
    assert_eq!(executor.take_moved().len(), 1);
    assert!(executor.take_moved().is_empty(), "once");
}

/// With room for few instances ahead, the simulator found an executor that never went on: the gap below was filled when
/// all the room was taken by what waited for it.
#[test]
fn a_gap_is_filled_although_there_is_no_room_above_it() {
    let partition = Partition::new(PARENT, KeyRange::all(), MapVersion(1));
    let how = ExecutorSettings { ahead_max: 2, ..ExecutorSettings::default() };
    let mut executor = Executor::new(Machine::Partition(Box::new(partition)), Instance::ZERO, how);
    let mut answers = Vec::new();
    for instance in [2, 3, 4, 1] {
        executor.accepted(Instance(instance), Batch::NoOp, &mut answers);
    }
    assert_eq!(executor.last_executed(), Instance(2), "the lowest have the room");
    executor.decided_upto(Instance(2), &mut answers);
    for instance in [3, 4] {
        executor.accepted(Instance(instance), Batch::NoOp, &mut answers);
    }
    executor.decided_upto(Instance(4), &mut answers);
    assert_eq!(executor.decided(), Instance(4));
}

/// What the status calls `undo_bytes` (hazards.md E7).
#[test]
fn undo_is_counted_while_nothing_is_decided_and_then_gone() {
    let partition = Partition::new(PARENT, KeyRange::all(), MapVersion(1));
    let mut executor =
        Executor::new(Machine::Partition(Box::new(partition)), Instance::ZERO, ExecutorSettings::default());
    let mut answers = Vec::new();
    executor.accepted(Instance(1), batch(entry::open(ClientId(9), 1)), &mut answers);
    executor.decided_upto(Instance(1), &mut answers);
    let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
    assert_eq!(executor.undo_bytes(), 0);
    let long = "v".repeat(1_000);
    executor.accepted(Instance(2), batch(put_of(session, 1, "a", &long)), &mut answers);
    let of_an_insert = executor.undo_bytes();
    assert!((1..1_000).contains(&of_an_insert), "{of_an_insert}: the undo of an insert is a delete");
    executor.accepted(Instance(3), batch(put_of(session, 2, "a", "b")), &mut answers);
    let of_both = executor.undo_bytes();
    assert!(of_both >= of_an_insert + 1_000, "{of_both}: the old value waits");
    executor.accepted(Instance(3), Batch::NoOp, &mut answers);
    let of_the_first = executor.undo_bytes();
    assert!(of_the_first < of_both - 1_000, "{of_the_first}: the second put is taken back");
    executor.decided_upto(Instance(3), &mut answers);
    assert_eq!(executor.undo_bytes(), 0);
}

#[test]
fn a_split_is_applied_once() {
    let mut log = Log::new();
    assert_eq!(log.split("k", 1).forks().len(), 1);
    let once = (log.keys(), log.partition.range().clone());
    assert_eq!(log.split("k", 2).forks().len(), 0, "sent again under another ticket");
    assert_eq!((log.keys(), log.partition.range().clone()), once);
}

/// Each planted bug makes the test of its rule fail, in a process of its own (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_splits_are_caught() {
    for (mutant, test) in [
        ("fork_undecided", "sp8_a_child_begins_only_when_the_split_is_decided"),
        ("bounds_at_routing", "mv2_a_command_behind_the_boundary_is_refused_where_the_log_has_it"),
        ("gate_skips_repeats", "tk3_a_repeated_answer_waits_for_the_tickets_before_the_repetition"),
        ("acked_executes", "se3_an_acknowledged_number_that_returns_changes_nothing"),
        ("unexecuted_is_new", "se3_an_acknowledged_number_that_never_ran_does_not_run_late"),
        ("sessions_are_anybodys", "a_session_serves_its_own_user_only"),
        ("fork_no_sessions", "mv5_a_command_of_before_the_split_gets_its_first_answer_from_the_child"),
    ] {
        planted::assert_caught(mutant, &format!("machine::partition::tests::{test}"));
    }
}

/// What `check replicas` compares on a replica that has executed what nobody decides yet.
#[test]
fn the_digest_of_the_decided_state_is_known_while_more_is_executed() {
    let partition = Partition::new(PARENT, KeyRange::all(), MapVersion(1));
    let mut executor =
        Executor::new(Machine::Partition(Box::new(partition)), Instance::ZERO, ExecutorSettings::default());
    let (empty, mut answers) = (executor.machine().digest(), Vec::new());
    executor.accepted(Instance(1), batch(entry::open(ClientId(9), 1)), &mut answers);
    let opened = executor.machine().digest();
    executor.accepted(Instance(2), batch(entry::open(ClientId(9), 2)), &mut answers);
    let both = executor.machine().digest();
    assert!(empty != opened && opened != both);
    assert_eq!(executor.digest_now(), (Instance::ZERO, empty));
    executor.decided_upto(Instance(1), &mut answers);
    assert_eq!(executor.digest_now(), (Instance(1), opened));
    executor.accepted(Instance(2), Batch::NoOp, &mut answers);
    executor.decided_upto(Instance(2), &mut answers);
    executor.accepted(Instance(3), batch(entry::open(ClientId(9), 2)), &mut answers);
    assert_eq!(executor.digest_now(), (Instance(2), opened), "what was taken back does not count");
}

/// The names of sessions can be guessed, also those that the log has not opened yet. Whoever executes a command in
/// another's session leaves its answer to the other's command of that number.
#[test]
fn a_session_serves_its_own_user_only() {
    let mut log = Log::new();
    let session = log.session.expect("open");
    let before = log.keys();
    for (number, owner, is_let_in) in [(5, Some(8), false), (6, Some(9), true), (7, None, true)] {
        let key = format!("m{number}");
        let entry = put(session, number, &key);
        let (_, answers) = log.run(owner.map_or(entry.clone(), |owner| entry::owned(&entry, owner)));
        let is_refused = matches!(answers[0].outcome, Outcome::SessionExpired);
        assert_eq!(
            (is_refused, log.partition.tree().get(key.as_bytes()).is_some()),
            (!is_let_in, is_let_in),
            "{owner:?}"
        );
    }
    assert_eq!(log.keys(), before + 2);
    // One batch: the session is opened, used by its own user, and by the one who guessed its name.
    let next = SessionId { partition: PARENT, instance: log.instance.0 + 1, index: 0 };
    let entries =
        [entry::open(ClientId(9), 2), entry::owned(&put(next, 1, "own"), 9), entry::owned(&put(next, 2, "guessed"), 8)];
    let (_, answers) = log.run(entries.concat().into());
    assert!(matches!(answers[..], [_, _, Answer { outcome: Outcome::SessionExpired, .. }]), "{answers:?}");
    assert_eq!(answers.iter().map(|answer| answer.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(log.partition.tree().get(b"own").is_some() && log.partition.tree().get(b"guessed").is_none());
}
