//! Commands whose effect depends on what is there, and keys that expire: what runs, is taken back, is bounded.

use bytes::Bytes;
use coppice_btree::{
    Condition, Edit, Expiry, ExpiryCondition, Op, OpResult, Returns, SettleProgress, Update, UpdateOutcome,
};
use coppice_client::wire::reply::ResultRef;
use coppice_client::wire::{CommandRefusal, PackWriter, Replies, RepliesWriter, frame};
use coppice_ordering::Ballot;

use super::merges::{cut, join, seal};
use super::{Log, PARENT, split};
use crate::machine::Outcome;
use crate::machine::entry::{self, Expire, Said};
use crate::machine::partition::{Expiry as Deadlines, PartitionMark};

fn terms(update: Update<'_>) -> Vec<u8> {
    let mut terms = Vec::new();
    update.write(&mut terms);
    terms
}

fn after(milliseconds: u64) -> Expiry {
    Expiry::After { milliseconds, only: ExpiryCondition::Always }
}

impl Log {
    /// A command of these operations, of which the first are guards, at this time; what it came to, in words.
    fn command(&mut self, number: u64, time: Option<u64>, guards: usize, ops: &[Op<'_>]) -> (PartitionMark, String) {
        let mut pack = PackWriter::new(Vec::new(), self.session.expect("open"), 1, false, 4_096);
        match ops {
            [op] if guards == 0 => pack.push(number, *op).expect("it fits"),
            ops => pack.push_guarded(number, guards, ops.iter().copied()).expect("it fits"),
        }
        let entry = pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..);
        let entry = time.map_or(entry.clone(), |time| entry::timed(Said { by: Ballot::ZERO, time }, &entry));
        let (mark, answers) = self.run(entry);
        let Outcome::Pack(answer) = &answers[0].outcome else { panic!("{answers:?}") };
        (mark, told(answer))
    }

    fn update(&mut self, number: u64, key: &str, update: Update<'_>) -> String {
        self.command(number, Some(0), 0, &[Op::Update { key: key.as_bytes(), terms: &terms(update) }]).1
    }

    /// Sets a key that expires so many milliseconds after `time`.
    fn lease(&mut self, number: u64, key: &str, time: u64, milliseconds: u64) -> PartitionMark {
        let terms = terms(Update::new(Edit::Set(b"v")).expiring(after(milliseconds)));
        self.command(number, Some(time), 0, &[Op::Update { key: key.as_bytes(), terms: &terms }]).0
    }

    fn expire(&mut self, time: u64, keys: &[&str]) -> PartitionMark {
        let keys = keys.iter().map(|key| key.as_bytes().into()).collect();
        self.run(entry::expire(Ballot::ZERO, &Expire { time, keys })).0
    }

    fn has(&self, key: &str) -> bool {
        self.partition.tree().get(key.as_bytes()).is_some()
    }

    fn deadline(&self, key: &str) -> Option<u64> {
        self.partition.expiry().deadline(key.as_bytes())
    }
}

/// The results of an answer, in short.
fn told(answer: &Bytes) -> String {
    let mut out = bytes::BytesMut::new();
    let mut replies = RepliesWriter::new(&mut out);
    replies.answer(1, answer).expect("our own");
    replies.finish();
    let sections = Replies::new(&out[frame::HEADER_BYTES..]).map(|section| section.expect("our own"));
    let results = sections.flat_map(|section| section.results().map(|(_, result)| result).collect::<Vec<_>>());
    results.map(|result| short(&result)).collect::<Vec<_>>().join(" ")
}

fn short(result: &ResultRef<'_>) -> String {
    let text = |value: &Option<&[u8]>| value.map_or("-".into(), |value| String::from_utf8_lossy(value).into_owned());
    match result {
        ResultRef::Update { outcome: UpdateOutcome::Done, value, length, .. } => format!("{}:{length}", text(value)),
        ResultRef::Update { outcome, value, .. } => format!("{outcome:?}:{}", text(value)),
        ResultRef::Look { length, remaining, .. } => format!("look {length} {remaining:?}"),
        ResultRef::Many(many) => many.iter().map(|result| short(&result)).collect::<Vec<_>>().join(","),
        ResultRef::Unmet { guard } => format!("unmet {guard}"),
        ResultRef::Get { value } | ResultRef::Put { previous: value } => text(value),
        other => format!("{other:?}"),
    }
}

#[test]
fn updates_answer_what_they_are_asked_for() {
    let mut log = Log::new();
    let add = |number| Update::new(Edit::Add(number)).returning(Returns::New);
    assert_eq!(log.update(5, "n", add(7)), "7:1");
    assert_eq!(log.update(6, "n", add(-10)), "-3:2");
    assert_eq!(log.update(7, "a", add(1)), "NotInteger:v");
    assert_eq!(log.update(8, "a", Update::new(Edit::Append(b"w"))), "-:2");
    let take = Update::new(Edit::Set(b"x")).when(Condition::Absent).returning(Returns::Previous);
    assert_eq!(log.update(9, "a", take), "Unmet:vw");
    assert_eq!(log.update(10, "a", Update::new(Edit::Remove).when(Condition::Equals(b"vw"))), "-:0");
    assert!(!log.has("a"));
    let moved = log.command(11, None, 0, &[Op::Move { key: b"n", to: b"m", absent: true }]).1;
    assert_eq!((moved.as_str(), log.has("n"), log.has("m")), ("-:2", false, true));
}

/// Also a planted bug: operations run although a guard does not hold.
#[test]
fn operations_run_together_if_all_guards_hold_and_else_not_at_all() {
    let mut log = Log::new();
    let (is_v, is_w) = (Update::new(Edit::Keep).when(Condition::Equals(b"v")), Condition::Equals(b"w"));
    let (is_v, is_w) = (terms(is_v), terms(Update::new(Edit::Keep).when(is_w)));
    let add = terms(Update::new(Edit::Add(1)).returning(Returns::New));
    let guard = |key, terms| Op::Update { key, terms };
    let before = log.partition.digest();
    let put = Op::Put { key: b"b", value: b"1" };
    let (_, told) = log.command(5, None, 2, &[guard(b"a", &is_v), guard(b"g", &is_w), put]);
    assert_eq!((told.as_str(), log.has("b")), ("unmet 1", false));
    assert_ne!(log.partition.digest(), before, "the answer is kept for its repetition");
    // What is no number keeps nobody from running, as in a transaction of Redis.
    let ops = [guard(b"a", &is_v), put, Op::Update { key: b"a", terms: &add }, Op::Update { key: b"b", terms: &add }];
    let (mark, told) = log.command(6, None, 1, &ops);
    assert_eq!(told, "-,NotInteger:v,2:1");
    log.partition.undo(&mark);
    assert!(!log.has("b"));
    // Guards alone are a question.
    assert_eq!(log.command(6, None, 1, &[guard(b"a", &is_v)]).1, "");
}

#[test]
fn what_commands_write_beyond_what_they_carry_is_bounded() {
    let mut log = Log::new();
    let value = vec![b'x'; 1 << 20];
    let mut pack = PackWriter::new(Vec::new(), log.session.expect("open"), 1, false, 4 << 20);
    pack.push(5, Op::Put { key: b"big", value: &value[..(1 << 20) - 64] }).expect("it fits");
    log.run(pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..));
    let append = terms(Update::new(Edit::Append(b"y")));
    let many = vec![Op::Update { key: b"big", terms: &append }; 20];
    assert_eq!(log.command(6, None, 0, &many).1, format!("{:?}", ResultRef::Refused(CommandRefusal::TooLarge)));
    let (_, told) = log.command(7, None, 0, &many[..15]);
    assert_eq!(told.split(',').count(), 15);
    let undo = log.partition.undo_bytes();
    assert!(undo < 20 << 20, "{undo} bytes of undo");
    // Many short ones are no matter.
    let short = vec![Op::Update { key: b"short", terms: &append }; 2_000];
    assert!(log.command(8, None, 0, &short).1.ends_with("-:2000"));
}

/// A move copies the value, and so does each edit behind a move that does nothing.
#[test]
fn what_moves_write_is_bounded_too() {
    let mut log = Log::new();
    let value = vec![b'x'; 1 << 20];
    let mut pack = PackWriter::new(Vec::new(), log.session.expect("open"), 1, false, 4 << 20);
    pack.push(5, Op::Put { key: b"big", value: &value[..(1 << 20) - 64] }).expect("it fits");
    log.run(pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..));
    let there = Op::Move { key: b"big", to: b"other", absent: false };
    let back = Op::Move { key: b"other", to: b"big", absent: false };
    let too_large = format!("{:?}", ResultRef::Refused(CommandRefusal::TooLarge));
    assert_eq!(log.command(6, None, 0, &[there, back].repeat(10)).1, too_large);
    let append = terms(Update::new(Edit::Append(b"y")));
    let mut many = vec![Op::Update { key: b"big", terms: &append }; 20];
    many.insert(0, Op::Move { key: b"none", to: b"big", absent: true });
    assert_eq!(log.command(7, None, 0, &many).1, too_large);
    let mut pack = PackWriter::new(Vec::new(), log.session.expect("open"), 1, false, 4 << 20);
    (8..108).for_each(|number| pack.push(number, if number % 2 == 0 { there } else { back }).expect("it fits"));
    log.run(pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..));
    let undo = log.partition.undo_bytes();
    assert!(undo < 20 << 20, "{undo} bytes of undo");
}

/// A read of lifetimes says what a command at its position would.
#[test]
fn a_look_that_is_read_agrees_with_one_of_the_log() {
    let mut log = Log::new();
    log.lease(5, "s", 1_000, 500);
    log.expire(1_200, &[]);
    for (number, key) in (6..).zip([&b"s"[..], b"a", b"none"]) {
        let read = log.partition.look_all([key].into_iter()).expect("its own").remove(0);
        let OpResult::Look { exists, length, remaining } = read else { panic!("{read:?}") };
        let told = short(&ResultRef::Look { exists, length, remaining });
        assert_eq!(log.command(number, None, 0, &[Op::Look { key }]).1, told, "{key:?}");
        assert_eq!(exists, key != b"none");
    }
    let left = |log: &Log| match log.partition.look_all([&b"s"[..]].into_iter()).expect("its own")[..] {
        [OpResult::Look { remaining, .. }] => remaining,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(left(&log), Some(300));
    log.expire(1_700, &[]);
    assert_eq!(left(&log), Some(0), "it is due, and there until the log says that it goes");
    log.expire(1_700, &["s"]);
    assert_eq!(left(&log), None);
    log.split("m", 1);
    assert_eq!(log.partition.look_all([&b"a"[..], b"s"].into_iter()), None, "the other side has it");
}

#[test]
fn a_key_expires_by_the_log_and_not_before_its_time() {
    let mut log = Log::new();
    log.lease(5, "s", 1_000, 500);
    assert_eq!((log.partition.expiry().time(), log.deadline("s")), (1_000, Some(1_500)));
    log.expire(1_499, &["s", "a"]);
    assert!(log.has("s") && log.has("a"), "it is not time, and the other one has no deadline");
    assert_eq!(log.command(6, Some(1_400), 0, &[Op::Look { key: b"s" }]).1, "look 1 Some(1)");
    assert_eq!(log.partition.expiry().time(), 1_499, "the time never goes back");
    let before = log.partition.digest();
    let mark = log.expire(1_500, &["s"]);
    assert!(!log.has("s") && log.partition.expiry().is_empty());
    log.partition.undo(&mark);
    assert_eq!((log.has("s"), log.deadline("s"), log.partition.digest()), (true, Some(1_500), before));
}

/// What a leader has proposed may be decided behind what a later one has: it did not know what that one counts.
#[test]
fn an_earlier_leader_moves_no_time_on_and_its_keys_stay_as_long_as_it_said() {
    let mut log = Log::new();
    let by = |round| Ballot::new(round, 1);
    let run = |log: &mut Log, number, key: &'static str, round, time| {
        let terms = terms(Update::new(Edit::Set(b"v")).expiring(after(500)));
        let mut pack = PackWriter::new(Vec::new(), log.session.expect("open"), 1, false, 4_096);
        pack.push(number, Op::Update { key: key.as_bytes(), terms: &terms }).expect("it fits");
        let entry = pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..);
        log.run(entry::timed(Said { by: by(round), time }, &entry)).0
    };
    run(&mut log, 5, "b", 3, 100);
    let before = (log.partition.digest(), log.partition.expiry().export());
    let mark = run(&mut log, 6, "c", 2, 9_000);
    assert_eq!((log.partition.expiry().time(), log.deadline("c")), (100, Some(9_500)));
    log.partition.undo(&mark);
    log.run(entry::expire(by(2), &Expire { time: 9_000, keys: vec!["b".into()] }));
    assert!(log.has("b") && log.partition.expiry().time() == 100);
    assert_eq!((log.partition.digest(), log.partition.expiry().export()), before);
    let mark = run(&mut log, 7, "d", 4, 200);
    let imported = Deadlines::import(&log.partition.expiry().export()).expect("our own");
    assert_eq!(imported.digest(), log.partition.expiry().digest());
    log.partition.undo(&mark);
    run(&mut log, 8, "e", 3, 300);
    assert_eq!(log.deadline("e"), Some(800), "the one that was taken back has counted nothing");
    let fork = log.run(split("k", 1)).0;
    assert_ne!(fork.forks()[0].partition.expiry().digest(), log.partition.expiry().digest(), "ballots of its own");
}

#[test]
fn whatever_writes_a_key_anew_ends_its_expiry_and_edits_keep_it() {
    let mut log = Log::new();
    for (number, key) in (10..).zip(["p", "c", "d", "e", "m"]) {
        log.lease(number, key, 0, 500);
    }
    log.put(20, "p");
    log.command(21, None, 0, &[Op::Cas { key: b"c", expected: b"v", value: b"w" }]);
    log.command(22, None, 0, &[Op::Delete { key: b"d" }]);
    log.update(23, "e", Update::new(Edit::Append(b"w")));
    log.command(24, None, 0, &[Op::Move { key: b"m", to: b"a", absent: false }]);
    let deadlines = ["p", "c", "d", "e", "m", "a"].map(|key| log.deadline(key));
    assert_eq!(deadlines, [None, None, None, Some(500), None, Some(500)]);
    assert_eq!(log.update(25, "e", Update::new(Edit::Set(b"1")).expiring(Expiry::Keep)), "-:1");
    assert_eq!(log.deadline("e"), Some(500));
    assert_eq!(log.update(26, "e", Update::new(Edit::Keep).expiring(Expiry::Clear)), "-:1");
    assert_eq!(log.update(27, "e", Update::new(Edit::Keep).expiring(Expiry::Clear)), "Unmet:-", "it has none");
    assert_eq!(log.update(28, "none", Update::new(Edit::Keep).expiring(after(9))), "Unmet:-");
}

#[test]
fn an_expiry_is_set_under_the_conditions_of_redis() {
    let mut log = Log::new();
    let mut number = 5;
    let mut sets = |only, milliseconds| {
        number += 1;
        let expiry = Expiry::After { milliseconds, only };
        log.update(number, "a", Update::new(Edit::Keep).expiring(expiry)) == "-:1"
    };
    assert!(!sets(ExpiryCondition::Some, 10) && !sets(ExpiryCondition::Later, 10), "none counts as the last");
    assert!(sets(ExpiryCondition::Earlier, 50) && !sets(ExpiryCondition::None, 10));
    assert!(!sets(ExpiryCondition::Later, 50) && sets(ExpiryCondition::Later, 51));
    assert!(
        !sets(ExpiryCondition::Earlier, 51) && sets(ExpiryCondition::Earlier, 9) && sets(ExpiryCondition::Some, 70)
    );
    assert_eq!(log.deadline("a"), Some(70));
}

/// The neighbour's time runs apart from ours. What its keys have left counts, not what its time says.
#[test]
fn deadlines_go_with_their_keys_through_splits_and_merges() {
    let (mut lower, mut upper) = cut();
    lower.lease(11, "b", 90_000, 500);
    upper.lease(12, "m", 100, 1_000);
    upper.lease(13, "n", 200, 7_000);
    upper.run(seal(1));
    let sealed = upper.partition.digest();
    upper.expire(50_000, &["m"]);
    assert_eq!(upper.partition.digest(), sealed, "a sealed partition changes no more");
    assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
    let before = (lower.partition.digest(), lower.deadline("b"));
    let (mark, _) = lower.run(join(1));
    let deadlines = ["b", "m", "n"].map(|key| lower.deadline(key));
    assert_eq!(deadlines, [Some(90_500), Some(90_900), Some(97_000)]);
    let expired = lower.expire(90_900, &["b", "m", "n"]);
    assert_eq!(lower.partition.expiry().len(), 1);
    lower.partition.undo(&expired);
    lower.partition.undo(&mark);
    assert_eq!((lower.partition.digest(), lower.deadline("b")), before);
}

/// As many deadlines as this time says, each a millisecond behind the one before.
fn crowd(time: u64, count: u32) -> Deadlines {
    let mut bytes = time.to_le_bytes().to_vec();
    for n in 0..count {
        let key = format!("m{n:08}");
        bytes.extend((key.len() as u32).to_le_bytes().into_iter().chain(key.into_bytes()));
        bytes.extend((time + 1_000 + u64::from(n)).to_be_bytes());
    }
    Deadlines::import(&bytes).expect("deadlines")
}

/// A side that is taken in is shifted, and nothing of it is written anew.
#[test]
fn a_merge_costs_as_much_with_a_million_deadlines_as_with_one() {
    let mut works = Vec::new();
    for count in [1, 1_000_000] {
        let (mut lower, mut upper) = cut();
        lower.lease(11, "b", 90_000, 500);
        upper.partition.set_expiry(crowd(100, count));
        upper.run(seal(1));
        assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
        let before = lower.partition.digest();
        let (mark, _) = lower.run(join(1));
        works.push(mark.work());
        let shared = lower.partition.expiry_mut().settle(b"m00000100", 64).is_shared;
        assert!(shared || count == 1, "its nodes are those that the neighbour left");
        assert_eq!(lower.partition.expiry().len(), u64::from(count) + 1);
        let last = format!("m{:08}", count - 1);
        let ends = 90_000 + 1_000 + u64::from(count - 1);
        assert_eq!((lower.deadline("b"), lower.deadline(&last)), (Some(90_500), Some(ends)));
        // What is set among them is right, whatever came before.
        lower.lease(12, &last, 90_100, 7);
        assert_eq!(lower.deadline(&last), Some(90_107));
        let expiry = lower.partition.expiry();
        let again = Deadlines::import(&expiry.export()).expect("our own");
        assert_eq!((again.digest(), again.deadline(last.as_bytes())), (expiry.digest(), Some(90_107)));
        if count == 1 {
            let due = lower.partition.expiry_mut().due(90_107, 10, 1_000);
            assert_eq!(due.keys.concat(), last.as_bytes(), "in the order of the deadlines as they are");
        }
        let mut below = lower.partition.expiry().view();
        let above = below.split_off(b"m");
        assert_eq!((below.len(), below.deadline(b"b"), below.deadline(last.as_bytes())), (1, Some(90_500), None));
        assert_eq!((above.time(), above.deadline(last.as_bytes())), (90_100, Some(90_107)));
        let (mut lower, _) = cut();
        lower.lease(11, "b", 90_000, 500);
        assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
        let (mark, _) = lower.run(join(1));
        lower.partition.undo(&mark);
        assert_eq!(lower.partition.digest(), before);
    }
    assert_eq!(works[0], works[1]);
}

/// Each range with a shift of its own costs a step of every look at a deadline, so there are only so many.
#[test]
fn deadlines_are_written_anew_where_merges_left_too_many_ranges() {
    let key = |n: u64| format!("m{n:04}");
    let mut bytes = 100_u64.to_le_bytes().to_vec();
    bytes.extend((u32::MAX - 1).to_le_bytes().into_iter().chain(1_024_u32.to_le_bytes()));
    for n in 0..1_024_u64 {
        bytes.extend(5_u32.to_le_bytes().into_iter().chain(key(n).into_bytes()));
        bytes.extend((n + 1).to_le_bytes().into_iter().chain(0_u64.to_le_bytes()));
    }
    for n in 0..1_024 {
        bytes.extend(5_u32.to_le_bytes().into_iter().chain(key(n).into_bytes()).chain(1_000_u64.to_be_bytes()));
    }
    let (mut lower, mut upper) = cut();
    lower.lease(11, "b", 90_000, 500);
    upper.partition.set_expiry(Deadlines::import(&bytes).expect("deadlines"));
    assert_eq!(upper.deadline("m0007"), Some(1_008));
    upper.run(seal(1));
    assert!(lower.partition.absorb(upper.partition.absorbed_state().expect("sealed")));
    let before = lower.partition.digest();
    let (mark, _) = lower.run(join(1));
    assert_eq!((mark.work(), lower.partition.expiry().export().len()), (1_026, 8 + 13 + 1_024 * 17));
    for n in [0, 7, 1_023] {
        assert_eq!(lower.deadline(&key(n)), Some(90_000 + 1_001 + n - 100));
    }
    lower.partition.undo(&mark);
    assert_eq!(lower.partition.digest(), before);
}

#[test]
fn the_child_of_a_split_goes_on_at_its_parents_time() {
    let mut log = Log::new();
    log.lease(5, "b", 1_000, 500);
    log.lease(6, "m", 1_000, 600);
    let before = log.partition.digest();
    let (mark, _) = log.run(split("k", 1));
    let child = &mark.forks()[0].partition;
    assert_eq!((child.expiry().time(), child.expiry().deadline(b"m"), child.expiry().len()), (1_000, Some(1_600), 1));
    assert_eq!((log.partition.expiry().len(), log.deadline("b")), (1, Some(1_500)));
    log.partition.undo(&mark);
    assert_eq!((log.partition.digest(), log.deadline("m")), (before, Some(1_600)));
}

#[test]
fn a_snapshot_holds_time_and_deadlines_and_is_as_before_without() {
    let mut log = Log::new();
    assert!(log.partition.expiry().export().is_empty(), "nodes of an older version read it");
    log.lease(5, "b", 1_000, 500);
    log.lease(6, "m", 1_000, 600);
    let exported = log.partition.expiry().export();
    let imported = Deadlines::import(&exported).expect("our own");
    assert_eq!((imported.time(), imported.len(), imported.deadline(b"m")), (1_000, 2, Some(1_600)));
    assert_eq!(imported.digest(), log.partition.expiry().digest());
    for end in 1..exported.len() {
        let shorter = Deadlines::import(&exported[..end]);
        assert!(shorter.is_none_or(|shorter| shorter.len() < 2), "cut at {end}");
    }
}

/// A checkpoint shares the deadlines while it is written.
#[test]
fn deadlines_let_go_of_what_a_checkpoint_shared() {
    let mut log = Log::new();
    let keys: Vec<String> = (0..2_000).map(|n| format!("{n:04}")).collect();
    (5..).zip(&keys).for_each(|(number, key)| _ = log.lease(number, key, 0, 9));
    log.partition.forget_undo();
    let shared = log.partition.copy();
    (5_000..).zip(keys.iter().step_by(5)).for_each(|(number, key)| _ = log.lease(number, key, 0, 10));
    assert!(log.partition.settle(b"", 1_000_000).is_shared);
    drop(shared);
    let mut from = Vec::new();
    while let Some(next) = log.partition.settle(&from, 3).next {
        assert!(next.as_slice() > from.as_slice(), "every call gets further");
        from = next.to_vec();
    }
    assert_eq!(log.partition.settle(b"", 1_000_000), SettleProgress::default());
}

#[test]
fn who_leads_finds_what_is_due_whatever_was_taken_back_or_cut_off() {
    let mut log = Log::new();
    for n in 0..3_000_u64 {
        log.lease(5 + n, &format!("{n:04}"), 0, n);
    }
    let expiry = log.partition.expiry_mut();
    assert_eq!(expiry.next_due(), None, "nothing is read yet");
    let mut looks = 0;
    while expiry.due(0, 512, 1 << 16).more {
        looks += 1;
    }
    assert_eq!(looks, 2, "so many as are read at once, and the rest");
    let due = expiry.due(9, 4, 1 << 16);
    assert_eq!((due.keys.len(), due.more), (4, true));
    let mark = log.expire(2_000, &["0000", "0001"]);
    log.partition.undo(&mark);
    let mark = log.expire(2_000, &["0000"]);
    let due = log.partition.expiry_mut().due(1, 512, 1 << 16);
    assert_eq!((due.keys, due.more), (vec![Bytes::from("0001")], false));
    log.partition.undo(&mark);
    assert_eq!(log.partition.expiry_mut().due(1, 512, 1 << 16).keys.len(), 2);
    log.run(split("0001", 1));
    let due = log.partition.expiry_mut().due(5_000, 5_000, 1 << 16);
    assert_eq!(due.keys, [Bytes::from("0000")]);
}

#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_caught() {
    for (mutant, test) in [
        ("guard_ignored", "operations_run_together_if_all_guards_hold_and_else_not_at_all"),
        ("merge_shifts_nothing", "deadlines_go_with_their_keys_through_splits_and_merges"),
        ("put_keeps_expiry", "whatever_writes_a_key_anew_ends_its_expiry_and_edits_keep_it"),
        ("time_goes_back_at_election", "a_key_expires_by_the_log_and_not_before_its_time"),
    ] {
        planted::assert_caught(mutant, &format!("machine::partition::tests::updates::{test}"));
    }
}
