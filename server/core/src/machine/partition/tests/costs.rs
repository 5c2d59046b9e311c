//! What packs may cost the replicas that execute them, and stale reads the replica that serves them.

use coppice_btree::{Edit, Update};
use coppice_client::wire::reply::{PackReply, REPLY_BYTES_MAX};
use coppice_client::wire::{CommandRefusal, MANY_OPERATIONS_MAX, Replies, RepliesWriter, ResultRef};

use super::*;
use crate::machine::partition::BATCH_ANSWER_BYTES_MAX;
use crate::sessions::SessionLimits;

const LARGE: usize = 1 << 20;

/// Builds a pack of `session` from `number` on.
fn pack(session: SessionId, number: u64, fill: impl FnOnce(&mut PackWriter)) -> Bytes {
    let mut pack = PackWriter::new(Vec::new(), session, number, false, 2 << 20);
    fill(&mut pack);
    pack.finish(PARENT, 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
}

fn get(session: SessionId, number: u64, key: &str) -> Bytes {
    pack(session, number, |pack| pack.push(number, Op::Get { key: key.as_bytes() }).expect("it fits"))
}

/// Runs packs of one command each, or of `count`, as one batch.
fn run_all(log: &mut Log, count: u32, packs: Vec<Bytes>) -> (PartitionMark, Vec<Answer>) {
    log.instance = log.instance.next();
    let commands = count * packs.len() as u32;
    let batch = Batch::Commands(Commands::new(commands, packs.concat().into()));
    let mut answers = Vec::new();
    let mark = log.partition.execute(log.instance, &batch, &mut answers);
    (mark, answers)
}

/// Of the results in these answers: bytes of values, and how many were put off, and omitted.
fn sum(answers: &[Answer]) -> (usize, usize, usize) {
    let mut sum = (0, 0, 0);
    for answer in answers {
        let Outcome::Pack(answer) = &answer.outcome else { panic!("{answer:?}") };
        let mut out = bytes::BytesMut::new();
        let mut writer = RepliesWriter::new(&mut out);
        writer.answer(1, answer).expect("well formed");
        writer.finish();
        let mut decoder = coppice_client::wire::FrameDecoder::default();
        decoder.feed(&out);
        while let Some(frame) = decoder.next_frame().expect("our own frames") {
            for section in Replies::new(&frame.body) {
                for (_, result) in section.expect("well formed").results() {
                    match result {
                        ResultRef::Get { value } => sum.0 += value.map_or(0, <[u8]>::len),
                        ResultRef::Refused(CommandRefusal::Later) => sum.1 += 1,
                        ResultRef::Omitted => sum.2 += 1,
                        _ => {}
                    }
                }
            }
        }
    }
    sum
}

/// Seeds 666, 833 and 946: a table of sessions that was full ended one whose pack had run, and had no answer yet.
#[test]
fn a_session_that_ends_within_a_batch_is_told_what_its_pack_came_to() {
    let mut log = Log::new();
    let mut open = |client| {
        let (_, answers) = log.run(entry::open(ClientId(client), 1));
        let Outcome::Opened(session) = answers[0].outcome else { panic!("{answers:?}") };
        session
    };
    let (idle, busy) = (open(1), open(2));
    log.partition.set_session_limits(SessionLimits { table_bytes_max: 1, ..SessionLimits::default() });
    let before = log.keys();
    let (_, answers) = run_all(&mut log, 1, vec![put(busy, 1, "b"), put(idle, 1, "i")]);
    for answer in &answers {
        assert!(matches!(answer.outcome, Outcome::Pack(_)), "it ran, and is told: {answer:?}");
    }
    assert_eq!(log.keys(), before + 2);
    // From the next batch on there is no such session: what runs and what is told agree again.
    let (_, answers) = run_all(&mut log, 1, vec![put(busy, 2, "c")]);
    assert!(matches!(answers[0].outcome, Outcome::SessionExpired), "{answers:?}");
    assert_eq!(log.keys(), before + 2);
}

#[cfg(feature = "mutants")]
#[test]
fn a_session_that_ends_amid_the_packs_of_a_batch_is_caught() {
    let test = "a_session_that_ends_within_a_batch_is_told_what_its_pack_came_to";
    planted::assert_caught("relieved_amid_packs", &format!("machine::partition::tests::costs::{test}"));
}

fn large_value(log: &mut Log) -> SessionId {
    let session = log.session.expect("open");
    let value = "v".repeat(LARGE);
    let put = pack(session, 100, |pack| {
        pack.push(100, Op::Put { key: b"large", value: value.as_bytes() }).expect("it fits");
    });
    log.run(put);
    session
}

/// 60 KiB of small packs in one batch, each a get of a large value: 3 GiB of answers at every replica.
#[test]
fn the_packs_of_a_batch_answer_with_so_many_bytes_together() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let packs: Vec<Bytes> = (0..500).map(|at| get(session, 101 + at, "large")).collect();
    let (mark, answers) = run_all(&mut log, 1, packs.clone());
    let (bytes, later, _) = sum(&answers);
    assert_eq!(bytes / LARGE + later, 500);
    assert!((LARGE..=BATCH_ANSWER_BYTES_MAX + LARGE).contains(&bytes), "{bytes} bytes are answered");
    assert!(mark.work() < 16_384, "{} units of work", mark.work());
    // Asked for again, the others get theirs: the first of a batch always does.
    let (_, answers) = run_all(&mut log, 1, packs[490..].to_vec());
    assert!(sum(&answers).0 >= LARGE);
}

/// 12 KiB of packs that all repeat one get of a large value: 500 MiB of answers at every replica.
#[test]
fn repeated_answers_are_bounded_like_new_ones() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let get = get(session, 101, "large");
    let (_, answers) = run_all(&mut log, 1, vec![get; 500]);
    let (bytes, later, _) = sum(&answers);
    assert_eq!(bytes / LARGE + later, 500);
    assert!((LARGE..=BATCH_ANSWER_BYTES_MAX + LARGE).contains(&bytes), "{bytes} bytes are repeated");
}

#[cfg(feature = "mutants")]
#[test]
fn repeated_answers_without_bounds_are_caught() {
    let test = "machine::partition::tests::costs::repeated_answers_are_bounded_like_new_ones";
    planted::assert_caught("answer_unbounded", test);
}

#[test]
fn small_answers_leave_beside_large_ones_that_took_all() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let mut packs: Vec<Bytes> = (0..20).map(|at| get(session, 101 + at, "large")).collect();
    let small = 121..221;
    packs.extend(small.clone().map(|number| get(session, number, "a")));
    let (_, answers) = run_all(&mut log, 1, packs);
    let (_, later, _) = sum(&answers[20..]);
    assert_eq!((answers.len() - 20, later), (small.count(), 0));
}

/// Where the answers of a batch are used up, what a command may answer with decides whether it runs. A node of version
/// 0.1 in the group counts what commands find, and nothing of what they write.
#[test]
fn what_runs_beside_large_answers_is_what_version_0_1_runs() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let (found, written) = ("f".repeat(3_500), "w".repeat(1_000));
    log.run(put_of(session, 101, "k", &found));
    let puts = [Op::Put { key: b"k", value: written.as_bytes() }; 2];
    let packs = [102, 103].map(|number| get(session, number, "large")).into_iter();
    let one = pack(session, 104, |pack| pack.push(104, puts[0]).expect("it fits"));
    let (mark, answers) = run_all(&mut log, 1, packs.clone().chain([one]).collect());
    assert_eq!(sum(&answers[2..]).1, 0, "4,000 bytes may be answered, and 3,500 are");
    log.partition.undo(&mark);
    let many = pack(session, 104, |pack| pack.push_many(104, puts.iter().copied()).expect("it fits"));
    let (_, answers) = run_all(&mut log, 1, packs.chain([many]).collect());
    assert_eq!(sum(&answers[2..]).1, 0, "8,000 bytes may be answered, and 4,500 are");
}

/// 209,000 double gets of a value of 1 MiB took 21 s: each was copied until it was found to be too long.
#[test]
fn results_that_are_left_out_cost_no_copies() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let gets = [Op::Get { key: b"large" }; 2];
    let count = MANY_OPERATIONS_MAX as u64 / 2;
    let double = pack(session, 101, |pack| {
        (0..count).for_each(|at| pack.push_many(101 + at, gets.iter().copied()).expect("it fits"));
        let full = pack.push_many(101 + count, gets.iter().copied());
        assert!(full.is_err(), "a pack holds no more work than one step takes");
    });
    let (mark, answers) = run_all(&mut log, count as u32, vec![double]);
    assert_eq!(sum(&answers), (0, 0, count as usize));
    assert!(mark.work() <= 4 * 16_384, "{} units of work", mark.work());
    let mut out = bytes::BytesMut::new();
    let mut reply = PackReply::new(&mut out, PARENT, 1, 0);
    let value = |bytes: usize| coppice_btree::OpResult::Get { value: Some(vec![1; bytes].into()) };
    reply.many([value(LARGE), value(LARGE - 20)].iter());
    assert!(reply.bytes() > LARGE && reply.bytes() < REPLY_BYTES_MAX);
    let before = reply.bytes();
    reply.many([value(LARGE), value(LARGE)].iter());
    assert!(reply.bytes() - before < 64);
}

/// A few KiB in the window of a leader: each batch keeps 15 values of 1 MiB until it is decided.
#[test]
fn what_batches_that_run_ahead_write_is_bounded_together() {
    let mut log = Log::new();
    let session = large_value(&mut log);
    let mut terms = Vec::new();
    Update::new(Edit::SetRange { offset: 0, bytes: b"y" }).write(&mut terms);
    let (decided, mut partition) = (log.instance, log.partition);
    partition.forget_undo();
    let mut executor = Executor::new(Machine::Partition(Box::new(partition)), decided, ExecutorSettings::default());
    let edits = [Op::Update { key: b"large", terms: &terms }; 15];
    for number in 101..121 {
        let many = pack(session, number, |pack| pack.push_many(number, edits.iter().copied()).expect("it fits"));
        executor.accepted(Instance(decided.0 + number - 100), batch(many), &mut Vec::new());
    }
    assert!(executor.undo_bytes() < 40 << 20, "{} bytes of undo", executor.undo_bytes());
    executor.decided_upto(Instance(decided.0 + 20), &mut Vec::new());
    assert_eq!(executor.decided(), Instance(decided.0 + 20), "what is decided runs");
}

/// The decided state of each key, read through the index and from a state that was taken back whole.
#[test]
fn a_stale_read_finds_each_key_as_it_was_decided() {
    let log = Log::new();
    let session = log.session.expect("open");
    let decided = log.instance;
    let mut partition = log.partition;
    partition.forget_undo();
    let mut executor = Executor::new(Machine::Partition(Box::new(partition)), decided, ExecutorSettings::default());
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let (mut number, mut random) = (10, 7_u64);
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..400 {
        for _ in 0..draw(4) {
            number += 1;
            let key = &keys[draw(12) as usize];
            let op = match draw(3) {
                0 => Op::Delete { key: key.as_bytes() },
                _ => Op::Put { key: key.as_bytes(), value: b"some value that is longer than inline" },
            };
            let entry = pack(session, number, |pack| pack.push(number, op).expect("it fits"));
            _ = executor.accepted(executor.last_executed().next(), batch(entry), &mut Vec::new());
        }
        if draw(5) == 0 && executor.last_executed() > executor.decided() {
            // Another batch was decided there: all from there on is taken back.
            let back = draw(executor.last_executed().0 - executor.decided().0);
            _ = executor.accepted(Instance(executor.last_executed().0 - back), Batch::NoOp, &mut Vec::new());
        }
        let upto = executor.decided().0 + draw(executor.last_executed().0 - executor.decided().0 + 1);
        executor.decided_upto(Instance(upto), &mut Vec::new());
        let view = executor.decided_view();
        let names = || keys.iter().map(String::as_bytes);
        let expected =
            view.partition().and_then(|partition| partition.get_all(names(), usize::MAX)).expect("they are inside");
        let read = executor.get_all_decided(names, usize::MAX).flatten().expect("no boundary moved");
        assert_eq!((read.values, read.left_out), (expected.values, 0), "round {round}");
    }
}

/// Each stale range took back all that was undecided, however much that was.
#[test]
fn stale_ranges_share_a_view_under_load() {
    let log = Log::new();
    let session = log.session.expect("open");
    let decided = log.instance;
    let mut partition = log.partition;
    partition.forget_undo();
    let mut executor = Executor::new(Machine::Partition(Box::new(partition)), decided, ExecutorSettings::default());
    let mut number = 10;
    let mut accept = |executor: &mut Executor, count: u64| {
        let entry = pack(session, number + 1, |pack| {
            for _ in 0..count {
                number += 1;
                pack.push(number, Op::Put { key: &number.to_be_bytes(), value: b"v" }).expect("it fits");
            }
        });
        let batch = Batch::Commands(Commands::new(count as u32, entry));
        _ = executor.accepted(executor.last_executed().next(), batch, &mut Vec::new());
    };
    (0..10).for_each(|_| accept(&mut executor, 1_000));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        accept(&mut executor, 100);
        let upto = executor.decided().next();
        executor.decided_upto(upto, &mut Vec::new());
        let (_, at) = executor.recent_view();
        assert!(at <= executor.decided());
        seen.insert(at);
    }
    assert!(seen.len() <= 5, "{} views were made for 20 reads", seen.len());
    // It comes to the newest in the end, with or without load.
    let newest = executor.decided();
    assert!((0..100).any(|_| executor.recent_view().1 == newest));
    let last_executed = executor.last_executed();
    executor.decided_upto(last_executed, &mut Vec::new());
    assert_eq!(executor.recent_view().1, last_executed);
}

#[cfg(feature = "mutants")]
#[test]
fn an_index_that_keeps_what_was_taken_back_is_caught() {
    let test = "machine::partition::tests::costs::a_stale_read_finds_each_key_as_it_was_decided";
    planted::assert_caught("overlay_survives_undo", test);
}
