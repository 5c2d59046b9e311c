//! What one side writes, the other reads: every message of the public protocol, over random contents.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::{Op, OpResult, UpdateOutcome, Value};
use coppice_client::map::{Entry, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::part::PartHead;
use coppice_client::wire::reply::result_bytes;
use coppice_client::wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// An operation that owns its strings.
#[derive(Clone, Debug)]
struct Owned {
    code: u8,
    key: Vec<u8>,
    expected: Vec<u8>,
    value: Vec<u8>,
}

impl Owned {
    fn op(&self) -> Op<'_> {
        let Owned { code, key, expected, value } = self;
        match code {
            0 => Op::Put { key, value },
            1 => Op::Insert { key, value },
            2 => Op::Delete { key },
            3 => Op::Cas { key, expected, value },
            4 => Op::Get { key },
            5 => Op::Look { key },
            6 => Op::Move { key, to: value, absent: expected.len() > 8 },
            // Terms that happen to have eight bytes are no exception.
            _ => Op::Update { key, terms: if value.len() == 8 { b"\x01\x00eight!" } else { expected_terms(expected) } },
        }
    }
}

/// Terms of some update.
fn expected_terms(expected: &[u8]) -> &'static [u8] {
    [&b"\x02\x01tail"[..], b"\x06\x00", b"\x08\x00", b"\x1e\x00\x02\x00\x00\x00ab"][expected.len() % 4]
}

fn string(eight: bool) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), if eight { 8..=8 } else { 0..=40 })
}

fn owned(eight: bool) -> impl Strategy<Value = Owned> {
    (0u8..8, string(eight), string(eight), string(eight)).prop_map(|(code, key, expected, value)| Owned {
        code,
        key,
        expected,
        value,
    })
}

#[derive(Clone, Debug)]
enum OwnedCommand {
    Op(Owned),
    Many(Vec<Owned>),
    Guarded(Vec<(Vec<u8>, bool)>, Vec<Owned>),
    Load(Vec<(Vec<u8>, Vec<u8>)>),
}

/// A guard: the key is absent, or present.
fn guard((key, absent): &(Vec<u8>, bool)) -> Op<'_> {
    Op::Update { key, terms: if *absent { b"\x08\x00" } else { b"\x10\x00" } }
}

fn command(eight: bool) -> impl Strategy<Value = OwnedCommand> {
    prop_oneof![
        6 => owned(eight).prop_map(OwnedCommand::Op),
        1 => vec(owned(eight), 1..9).prop_map(OwnedCommand::Many),
        u32::from(!eight) => (vec((string(eight), any::<bool>()), 1..4), vec(owned(eight), 0..9))
            .prop_map(|(guards, operations)| OwnedCommand::Guarded(guards, operations)),
        1 => proptest::collection::btree_map(string(eight), string(eight), 1..9)
            .prop_map(|pairs| OwnedCommand::Load(pairs.into_iter().collect())),
    ]
}

fn commands() -> impl Strategy<Value = (bool, Vec<(u64, OwnedCommand)>)> {
    any::<bool>().prop_flat_map(|eight| (Just(eight), vec((0u64..1 << 40, command(eight)), 1..40)))
}

/// Cuts one frame out of `bytes` and demands that nothing is left.
fn only_frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    let frame = decoder.next_frame().expect("our own frame").expect("a whole frame");
    assert_eq!(decoder.next_frame(), Ok(None));
    assert_eq!(decoder.held_bytes(), 0);
    frame
}

fn request(bytes: &[u8]) -> Request {
    Request::decode(&only_frame(bytes)).expect("our own request")
}

fn assert_same(command: &Command<'_>, owned: &OwnedCommand) {
    match (command, owned) {
        (Command::Op(op), OwnedCommand::Op(owned)) => assert_eq!(*op, owned.op()),
        (Command::Many(many), OwnedCommand::Many(owned)) => {
            assert_eq!(many.len(), owned.len());
            assert!(many.iter().eq(owned.iter().map(Owned::op)));
        }
        (Command::Many(many), OwnedCommand::Guarded(guards, owned)) => {
            assert_eq!((many.len(), many.guards()), (guards.len() + owned.len(), guards.len()));
            assert!(many.iter().eq(guards.iter().map(guard).chain(owned.iter().map(Owned::op))));
        }
        (Command::Load(load), OwnedCommand::Load(owned)) => {
            assert_eq!(load.len(), owned.len());
            assert!(load.iter().eq(owned.iter().map(|(key, value)| (&key[..], &value[..]))));
        }
        (command, owned) => panic!("{command:?} is not {owned:?}"),
    }
}

proptest! {
    #[test]
    fn a_pack_comes_back_as_it_was_written(
        (eight, commands) in commands(), lowest in 0u64..1 << 50, stream: u32,
        partition: u32, instance: u64, index: u32,
    ) {
        let session = SessionId { partition: PartitionId(partition), instance, index };
        let mut writer = PackWriter::new(Vec::new(), session, lowest, eight, usize::MAX);
        let mut number = lowest;
        let mut expected = Vec::new();
        for (at, (step, command)) in commands.iter().enumerate() {
            number += step + u64::from(at > 0);
            match command {
                OwnedCommand::Op(op) => writer.push(number, op.op()),
                OwnedCommand::Many(many) => writer.push_many(number, many.iter().map(Owned::op)),
                OwnedCommand::Guarded(guards, many) => {
                    let all: Vec<Op<'_>> = guards.iter().map(guard).chain(many.iter().map(Owned::op)).collect();
                    writer.push_guarded(number, guards.len(), all.into_iter())
                }
                OwnedCommand::Load(pairs) => {
                    writer.push_load(number, pairs.iter().map(|(key, value)| (&key[..], &value[..])))
                }
            }.unwrap();
            expected.push(number);
        }
        let bytes = writer.finish(PartitionId(7), stream).unwrap();
        prop_assert_eq!(only_frame(&bytes).stream, stream);
        let Request::Commands(request) = request(&bytes) else { panic!("not commands") };
        prop_assert_eq!((request.partition, request.session), (PartitionId(7), session));
        prop_assert_eq!(request.count as usize, commands.len());
        let pack = request.pack().unwrap();
        prop_assert_eq!(pack.lowest_unacknowledged(), lowest);
        prop_assert_eq!(pack.first_number(), Some(expected[0]));
        let numbers: Vec<u64> = pack.commands().map(|(number, _)| number).collect();
        prop_assert_eq!(numbers, expected);
        for ((_, command), (_, owned)) in pack.commands().zip(&commands) {
            assert_same(&command, owned);
        }
        // The entry is one entry of a batch, as it is.
        let entries: Vec<_> = entry::entries(&request.entry).collect();
        prop_assert_eq!(entries.len(), 1);
        prop_assert_eq!(entries[0].unwrap().tag, entry::TAG_PACK);
    }

    #[test]
    fn frames_come_back_however_the_bytes_are_cut(
        bodies in vec((vec(any::<u8>(), 0..3000), any::<u32>(), 0..Kind::ALL.len()), 1..9),
        cuts in vec(1usize..2000, 1..40),
    ) {
        let mut bytes = BytesMut::new();
        for (body, stream, kind) in &bodies {
            encode_frame(&mut bytes, Kind::ALL[*kind], *stream, body);
        }
        let mut decoder = FrameDecoder::default();
        let (mut rest, mut cuts, mut frames) = (&bytes[..], cuts.into_iter().cycle(), Vec::new());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            decoder.feed(now);
            rest = later;
            while let Some(frame) = decoder.next_frame().unwrap() {
                frames.push(frame);
            }
        }
        prop_assert_eq!(frames.len(), bodies.len());
        for (frame, (body, stream, kind)) in frames.iter().zip(&bodies) {
            prop_assert_eq!(&frame.body[..], &body[..]);
            prop_assert_eq!((frame.stream, frame.flags), (*stream, 0));
            prop_assert_eq!(Kind::from_u8(frame.kind), Some(Kind::ALL[*kind]));
        }
    }

    #[test]
    fn a_damaged_frame_is_never_given_out(body in vec(any::<u8>(), 0..200), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = BytesMut::new();
        encode_frame(&mut bytes, Kind::Ping, 9, &body);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut decoder = FrameDecoder::default();
        decoder.feed(&bytes);
        let frame = decoder.next_frame();
        prop_assert!(!matches!(frame, Ok(Some(_))), "{frame:?}");
    }

    #[test]
    fn answers_come_back_with_their_positions(
        answers in vec((any::<u32>(), 1u64..1 << 40, 0u32..1 << 20, vec(result(), 1..30)), 1..9),
    ) {
        let mut out = BytesMut::new();
        let mut frames = BytesMut::new();
        let mut replies = RepliesWriter::new(&mut frames);
        for (stream, instance, index, results) in &answers {
            let mut reply = PackReply::new(&mut out, PartitionId(3), *instance, *index);
            for result in results {
                push_result(&mut reply, result);
                prop_assert_eq!(result_bytes(reply.last_result()), Ok(reply.last_result().len()));
            }
            let answer = reply.finish_split();
            prop_assert!(out.is_empty());
            replies.answer(*stream, &answer).unwrap();
        }
        replies.finish();
        let frame = only_frame(&frames);
        let sections: Vec<_> = Replies::new(&frame.body).map(Result::unwrap).collect();
        prop_assert_eq!(sections.len(), answers.len());
        for (section, (stream, instance, index, results)) in sections.iter().zip(&answers) {
            prop_assert_eq!((section.stream, section.count as usize), (*stream, results.len()));
            for (at, ((position, found), result)) in section.results().zip(results).enumerate() {
                let own = Position { partition: PartitionId(3), instance: *instance, index: index + at as u32 };
                prop_assert_eq!(position, expected_position(own, result));
                assert_same_result(&found, result);
            }
        }
    }

    #[test]
    fn parts_come_back_and_stay_below_their_size(
        pairs in vec((string(true), string(true)), 0..50),
        odd in vec((string(false), vec(any::<u8>(), 0..30_000)), 0..30),
        keys_only: bool, ticket: Option<(u64, u32, u64)>, version: Option<(u32, [u64; 3])>, limited: bool,
    ) {
        let pairs: Vec<_> = pairs.into_iter().chain(odd).collect();
        let ticket = ticket.map(|(round, replica, n)| Ticket { round, replica: ReplicaId(replica), n });
        let position = Position { partition: PartitionId(2), instance: 5, index: 1 };
        let version = version.map(|(replica, [incarnation, began, changes])| {
            Version { replica: ReplicaId(replica), incarnation, began, changes }
        });
        let head = PartHead { stream: 77, position, ticket, version, keys_only };
        let end = if limited { PartEnd::Limited } else { PartEnd::Complete };
        let mut out = BytesMut::new();
        let (mut number, mut sent, mut eight) = (0, 0, true);
        loop {
            let mut writer = PartWriter::new(&mut out, &head, number, eight);
            let mut left = pairs[sent..].iter();
            let refused = left.find(|(key, value)| !writer.push(key, value));
            let before = sent as u64;
            sent += writer.count() as usize;
            eight &= refused.is_none_or(|(key, value)| key.len() == 8 && (keys_only || value.len() == 8));
            let body = writer.finish(before, refused.is_none().then_some(end));
            prop_assert!(body <= PART_BYTES + 64);
            number += 1;
            if refused.is_none() {
                break;
            }
        }
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out);
        let (mut found, mut chunks) = (Vec::new(), 0);
        while let Some(frame) = decoder.next_frame().unwrap() {
            prop_assert_eq!((frame.kind, frame.stream), (Kind::Part as u8, 77));
            let part = Part::decode(&frame.body).unwrap();
            prop_assert_eq!((part.position, part.number, part.ticket), (position, chunks, ticket));
            prop_assert_eq!(part.version, version.filter(|_| chunks == 0));
            found.extend(part.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())));
            prop_assert_eq!(part.pairs_so_far, found.len() as u64);
            chunks += 1;
            prop_assert_eq!(part.end, (chunks == number).then_some(end));
        }
        prop_assert_eq!(chunks, number);
        let value = |value: &Vec<u8>| if keys_only { Vec::new() } else { value.clone() };
        prop_assert!(found.iter().eq(&pairs.iter().map(|(k, v)| (k.clone(), value(v))).collect::<Vec<_>>()));
    }

    #[test]
    fn pairs_that_go_into_a_chunk_together_are_those_that_go_one_by_one(
        words in vec(any::<[u8; 16]>(), 1..60), times in prop_oneof![Just(1usize), Just(2_000)], keys_only: bool,
        eight: bool,
    ) {
        let head = PartHead { stream: 1, position: Position::default(), ticket: None, version: None, keys_only };
        let [mut together, mut single] = [BytesMut::new(), BytesMut::new()];
        let mut writer = PartWriter::new(&mut together, &head, 0, eight);
        let mut all = true;
        for _ in 0..times {
            // Nothing more goes in once something did not.
            let taken = writer.push_words(&words);
            prop_assert!(all || taken == 0);
            all &= taken == words.len();
        }
        let count = writer.count();
        writer.finish(0, None);
        let mut writer = PartWriter::new(&mut single, &head, 0, eight);
        let mut each = (0..times).flat_map(|_| &words);
        while each.next().is_some_and(|pair| writer.push(&pair[..8], &pair[8..])) {}
        prop_assert_eq!(count, writer.count());
        prop_assert_eq!(all, count as usize == times * words.len());
        writer.finish(0, None);
        prop_assert_eq!(together, single);
    }

    #[test]
    fn what_a_reader_holds_and_what_becomes_of_it_come_back(
        keys in proptest::collection::btree_set(vec(any::<u8>(), 0..30), 2..60), open: bool, first: u64, last: bool,
        part: Option<u32>, sum: (u64, u64, [u8; 32]), same: bool,
    ) {
        let (pairs, bytes, hash) = sum;
        let keys: Vec<Value> = keys.iter().map(|key| key[..].into()).collect();
        let stretch = |low: &[Value]| {
            let (low, high) = (low[0].clone(), low.get(1).cloned());
            Stretch { low, high, sum: PairsSum { pairs, bytes, hash } }
        };
        let mut stretches: Vec<Stretch> = keys.chunks(2).map(stretch).filter(|one| one.high.is_some()).collect();
        if open {
            stretches.last_mut().unwrap().high = None;
        }
        let (part, mut out) = (part.map(PartitionId), BytesMut::new());
        CompareRequest::encode(&mut out, 6, part, (first, &stretches, last));
        let request_of = CompareRequest { first, stretches, last };
        let expected = match part {
            None => Request::Compare(request_of),
            Some(partition) => Request::PartCompare { query: 6, partition, request: request_of },
        };
        prop_assert_eq!(request(&out), expected);
        let compared = Compared { number: first, same };
        let head = PartHead { stream: 7, position: Position::default(), ticket: None, version: None, keys_only: false };
        let mut out = BytesMut::new();
        PartWriter::new(&mut out, &head, 3, true).compared(compared).finish(9, Some(PartEnd::Complete));
        let mut decoder = FrameDecoder::default();
        decoder.feed(&out);
        let frame = decoder.next_frame().unwrap().unwrap();
        let part = Part::decode(&frame.body).unwrap();
        prop_assert_eq!((part.compared, part.number, part.pairs_so_far, part.len()), (Some(compared), 3, 9, 0));
    }

    #[test]
    fn reads_and_ranges_come_back(
        eight: bool, stale: bool, anywhere: bool, keys in vec(string(false), 1..30), eights in vec(string(true), 1..30),
        low in string(false), high: Option<Vec<u8>>, flags: [bool; 4], pairs_max: u64, bytes_max: u64, credit: u32,
    ) {
        let keys = if eight { eights } else { keys };
        for looks in [false, true] {
            let (mut out, how, names) = (BytesMut::new(), (stale, anywhere), keys.iter().map(|key| &key[..]));
            match looks {
                false => ReadRequest::encode(&mut out, 5, PartitionId(1), how, names),
                true => ReadRequest::encode_looks(&mut out, 5, PartitionId(1), how, names),
            }
            let Request::Read(read) = request(&out) else { panic!("not a read") };
            prop_assert_eq!((read.partition, read.len()), (PartitionId(1), keys.len()));
            prop_assert_eq!((read.stale, read.anywhere, read.looks), (stale, anywhere, looks));
            prop_assert!(read.keys().eq(keys.iter().map(|key| &key[..])));
            prop_assert!(read.shared_keys().eq(keys.iter().map(|key| &key[..])));
        }

        let [reverse, keys_only, count_only, versioned] = flags;
        let scan = ScanOptions { reverse, keys_only, count_only, pairs_max, bytes_max };
        let range = RangeRequest {
            partition: PartitionId(9), low: low.into(), high: high.map(|mut high| { high.truncate(100); high.into() }),
            scan, stale, anywhere, versioned, credit,
        };
        let mut out = BytesMut::new();
        range.encode(&mut out, 6);
        prop_assert_eq!(request(&out), Request::Range(range));
        let mut out = BytesMut::new();
        RangeRequest::encode_credit(&mut out, 6, credit);
        prop_assert_eq!(request(&out), Request::Credit(credit));
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, 6, PartitionId(credit), ClientId(pairs_max), bytes_max);
        let Request::OpenSession(open) = request(&out) else { panic!("not an opening") };
        prop_assert_eq!((open.partition, open.client), (PartitionId(credit), ClientId(pairs_max)));
        prop_assert_eq!(open.nonce, bytes_max);
    }

    #[test]
    fn refusals_come_back(code in 0u8..15, partition: u32, hint: Option<u32>, number: u64, text in "\\PC{0,60}") {
        let (partition, hint) = (PartitionId(partition), hint.map(|hint| NodeId(hint.min(u32::MAX - 1))));
        let refusal = match code {
            0 => Refusal::NotLeader { partition, hint },
            1 => Refusal::WrongPartition { partition, version: MapVersion(number), entries: vec![entry_of(partition)] },
            2 => Refusal::Busy { retry_after: Duration::from_millis(number >> 33), text },
            3 => Refusal::Full { text },
            4 => Refusal::SessionExpired,
            5 => Refusal::TooLarge { text },
            6 => Refusal::Denied { text },
            7 => Refusal::ShuttingDown,
            8 => Refusal::BadRequest { text },
            9 => Refusal::Deposed { partition, hint },
            10 => Refusal::NotInitialized,
            11 => Refusal::SnapshotExpired,
            12 => Refusal::Aborted { text, unplaced: hint.map(|node| PartitionId(node.0)) },
            13 => Refusal::Unauthenticated { text },
            _ => Refusal::Unavailable { text },
        };
        let mut out = BytesMut::new();
        refusal.encode(&mut out, 3);
        let frame = only_frame(&out);
        prop_assert_eq!((frame.kind, frame.stream), (Kind::Refused as u8, 3));
        prop_assert_eq!(Refusal::decode(&frame.body), Ok(refusal));
    }
}

fn entry_of(partition: PartitionId) -> Entry {
    let replica = ReplicaInfo { replica: ReplicaId(1), node: NodeId(2), role: Role::Voter };
    Entry { partition, low: Bytes::from_static(b"a"), high: None, version: MapVersion(4), replicas: vec![replica] }
}

/// A result, or what else can stand in its place.
#[derive(Clone, Debug)]
enum AnyResult {
    Op(OpResult),
    Many(Vec<OpResult>),
    Unmet(u64),
    Loaded(u64),
    NotLoaded(u64),
    Opened,
    Refused(CommandRefusal),
    Repeated(u64, u32, OpResult),
}

fn op_result() -> impl Strategy<Value = OpResult> {
    let value = proptest::option::of(prop_oneof![string(true), string(false)]);
    let facts = (0..UpdateOutcome::ALL.len(), any::<u32>(), proptest::option::of(any::<u64>()));
    (0u8..7, value, any::<bool>(), facts).prop_map(|(kind, value, done, (outcome, length, remaining))| {
        let value = value.map(Value::from);
        match kind {
            0 => OpResult::Put { previous: value },
            1 => OpResult::Insert { present: value },
            2 => OpResult::Delete { previous: value },
            3 => OpResult::Cas { done, current: value },
            4 => OpResult::Update { outcome: UpdateOutcome::ALL[outcome], exists: done, length, value },
            5 => OpResult::Look { exists: done, length, remaining },
            _ => OpResult::Get { value },
        }
    })
}

fn result() -> impl Strategy<Value = AnyResult> {
    let refusal = prop_oneof![
        any::<u64>().prop_map(|version| CommandRefusal::WrongPartition { version: MapVersion(version) }),
        Just(CommandRefusal::Forgotten),
        Just(CommandRefusal::Full),
        Just(CommandRefusal::TooLarge),
        Just(CommandRefusal::Later),
    ];
    prop_oneof![
        5 => op_result().prop_map(AnyResult::Op),
        1 => vec(op_result(), 0..9).prop_map(AnyResult::Many),
        1 => any::<u64>().prop_map(AnyResult::Unmet),
        1 => any::<u64>().prop_map(AnyResult::Loaded),
        1 => any::<u64>().prop_map(AnyResult::NotLoaded),
        1 => Just(AnyResult::Opened),
        1 => refusal.prop_map(AnyResult::Refused),
        1 => (any::<u64>(), any::<u32>(), op_result()).prop_map(|(i, x, result)| AnyResult::Repeated(i, x, result)),
    ]
}

fn push_result(reply: &mut PackReply<'_>, result: &AnyResult) {
    match result {
        AnyResult::Op(result) => reply.result(result),
        AnyResult::Many(results) => reply.many(results.iter()),
        AnyResult::Unmet(guard) => reply.unmet(*guard),
        AnyResult::Loaded(pairs) => reply.loaded(*pairs),
        AnyResult::NotLoaded(present) => reply.not_loaded(*present),
        AnyResult::Opened => reply.opened(),
        AnyResult::Refused(refusal) => reply.refused(*refusal),
        AnyResult::Repeated(instance, index, result) => {
            let mut before = BytesMut::new();
            let mut original = PackReply::new(&mut before, PartitionId(3), 1, 1);
            original.result(result);
            let stored = original.last_result().to_vec();
            reply.repeated(Position { partition: PartitionId(8), instance: *instance, index: *index }, &stored);
        }
    }
}

fn expected_position(own: Position, result: &AnyResult) -> Position {
    match *result {
        AnyResult::Repeated(instance, index, _) => Position { partition: PartitionId(8), instance, index },
        _ => own,
    }
}

fn assert_same_result(found: &ResultRef<'_>, expected: &AnyResult) {
    match (found, expected) {
        (found, AnyResult::Op(result) | AnyResult::Repeated(_, _, result)) => assert_same_op_result(found, result),
        (ResultRef::Many(many), AnyResult::Many(results)) => {
            assert_eq!(many.len(), results.len());
            assert_eq!(many.iter().count(), results.len());
            many.iter().zip(results).for_each(|(found, result)| assert_same_op_result(&found, result));
        }
        (ResultRef::Unmet { guard }, AnyResult::Unmet(expected)) => assert_eq!(guard, expected),
        (ResultRef::Loaded { pairs }, AnyResult::Loaded(expected)) => assert_eq!(pairs, expected),
        (ResultRef::NotLoaded { present }, AnyResult::NotLoaded(expected)) => assert_eq!(present, expected),
        (ResultRef::Opened, AnyResult::Opened) => {}
        (ResultRef::Refused(found), AnyResult::Refused(expected)) => assert_eq!(found, expected),
        (found, expected) => panic!("{found:?} is not {expected:?}"),
    }
}

fn assert_same_op_result(found: &ResultRef<'_>, expected: &OpResult) {
    let expected = match expected {
        OpResult::Put { previous } => ResultRef::Put { previous: previous.as_deref() },
        OpResult::Insert { present } => ResultRef::Insert { present: present.as_deref() },
        OpResult::Delete { previous } => ResultRef::Delete { previous: previous.as_deref() },
        OpResult::Cas { done, current } => ResultRef::Cas { done: *done, current: current.as_deref() },
        OpResult::Get { value } => ResultRef::Get { value: value.as_deref() },
        OpResult::Update { outcome, exists, length, value } => {
            let (outcome, exists, length) = (*outcome, *exists, *length);
            ResultRef::Update { outcome, exists, length, value: value.as_deref() }
        }
        OpResult::Look { exists, length, remaining } => {
            ResultRef::Look { exists: *exists, length: *length, remaining: *remaining }
        }
    };
    assert_eq!(*found, expected);
}

/// Where nodes of feature level 1 are about, a command that all nodes know is let in: they must know its code too.
#[test]
fn what_old_nodes_do_not_know_is_not_called_known() {
    let pack = |command: &[u8]| [&[0, 1, 1, 0, 1, 1][..], command].concat();
    let put = [1, 1, b'k', 1, b'v'];
    let many = pack(&[&[6, 0, 6, 1][..], &put].concat());
    assert!(Pack::decode_counted(&many).is_ok_and(|(_, _, known)| known));
    let guarded = pack(&[&[12, 0, 7, 1, 0][..], &put].concat());
    assert_eq!(Pack::decode_counted(&guarded), Err(WireError::Empty("guards")));
    let guard = [8, 1, b'k', 2, 0, 0];
    let guarded = pack(&[&[12, 0, 13, 2, 1][..], &guard, &put].concat());
    assert!(Pack::decode_counted(&guarded).is_ok_and(|(_, _, known)| !known));
}

#[test]
fn an_update_of_sixteen_bytes_takes_eighteen() {
    let mut writer = PackWriter::new(Vec::new(), SessionId::default(), 1_000_000, true, 8_192);
    for number in 0..100 {
        writer.push(1_000_000 + number, Op::Put { key: b"8 bytes.", value: b"8 bytes!" }).unwrap();
    }
    assert_eq!(writer.bytes(), 100 * 18);
}

#[test]
fn a_full_pack_says_so_and_an_empty_one_takes_any_legal_command() {
    let session = SessionId::default();
    let big = vec![0; VALUE_BYTES_MAX];
    let mut writer = PackWriter::new(Vec::new(), session, 1, false, 100);
    let key = [7; KEY_BYTES_MAX];
    assert_eq!(writer.push(1, Op::Cas { key: &key, expected: &big, value: &big }), Ok(()));
    assert_eq!(writer.push(2, Op::Get { key: b"a" }), Err(PushError::Full));
    assert!(matches!(request(&writer.finish(PartitionId(1), 1).unwrap()), Request::Commands(_)));
    let mut writer = PackWriter::new(Vec::new(), session, 5, true, 100);
    assert_eq!(writer.push(4, Op::Get { key: b"12345678" }), Err(PushError::Order));
    assert_eq!(writer.push(5, Op::Get { key: b"123456789" }), Err(PushError::NotEight));
    assert_eq!(writer.push(5, Op::Get { key: b"12345678" }), Ok(()));
    assert_eq!(writer.push(5, Op::Get { key: b"12345678" }), Err(PushError::Order));
    let mut writer = PackWriter::new(Vec::new(), session, 5, false, 100);
    assert!(matches!(writer.push(5, Op::Get { key: &[0; KEY_BYTES_MAX + 1] }), Err(PushError::TooLarge(_))));
    let longer = vec![0; VALUE_BYTES_MAX + 1];
    assert!(matches!(writer.push(5, Op::Put { key: b"", value: &longer }), Err(PushError::TooLarge(_))));
    let pairs = [(&b"b"[..], &b""[..]), (b"a", b"")];
    assert_eq!(writer.push_load(5, pairs.into_iter()), Err(PushError::Invalid));
    assert_eq!(writer.push_many(5, [].into_iter()), Err(PushError::Invalid));
    assert!(writer.finish(PartitionId(1), 1).is_none());
}

#[test]
fn an_answer_above_a_frame_is_cut_into_frames() {
    let value = Value::from(vec![9u8; 300_000]);
    let mut out = BytesMut::new();
    let mut reply = PackReply::new(&mut out, PartitionId(1), 50, 2);
    for _ in 0..40 {
        reply.result(&OpResult::Put { previous: Some(value.clone()) });
    }
    let answer = reply.finish_split();
    let mut frames = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut frames);
    replies.answer(11, &answer).unwrap();
    replies.opened(12, SessionId { partition: PartitionId(1), instance: 50, index: 42 });
    replies.finish();
    let mut decoder = FrameDecoder::default();
    decoder.feed(&frames);
    let (mut results, mut opened) = (0, None);
    while let Some(frame) = decoder.next_frame().unwrap() {
        for section in Replies::new(&frame.body) {
            let section = section.unwrap();
            for (position, result) in section.results() {
                if section.stream == 12 {
                    assert_eq!(result, ResultRef::Opened);
                    opened = Some(position);
                    continue;
                }
                assert_eq!(position, Position { partition: PartitionId(1), instance: 50, index: 2 + results });
                assert_eq!(result, ResultRef::Put { previous: Some(&value[..]) });
                results += 1;
            }
        }
    }
    assert_eq!(results, 40);
    assert_eq!(opened, Some(Position { partition: PartitionId(1), instance: 50, index: 42 }));
}

#[test]
fn the_answer_of_many_operations_above_the_limit_is_left_out_and_says_so() {
    let results = vec![OpResult::Put { previous: Some(Value::from(vec![9u8; 300_000])) }; 8];
    let mut out = BytesMut::new();
    let mut reply = PackReply::new(&mut out, PartitionId(1), 50, 2);
    reply.many(results.iter());
    reply.many(results[..2].iter());
    let answer = reply.finish_split();
    let mut frames = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut frames);
    replies.answer(11, &answer).unwrap();
    replies.finish();
    let frame = only_frame(&frames);
    let section = Replies::new(&frame.body).next().unwrap().unwrap();
    let results: Vec<_> = section.results().map(|(_, result)| result).collect();
    assert_eq!(results[0], ResultRef::Omitted);
    assert!(matches!(results[1], ResultRef::Many(many) if many.len() == 2));
}

#[test]
fn control_messages_come_back_and_a_longer_one_of_the_future_is_understood() {
    let hello = Hello {
        protocol_min: 1,
        protocol_max: 3,
        features: 5,
        client: ClientId(77),
        cluster: Some(ClusterId(1 << 100)),
        node: Some(NodeIdentity { node: NodeId(3), incarnation: 9 }),
        token: coppice_client::Token::parse(&format!("coppice-{}", "0f".repeat(32))),
    };
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Hello, 0, &hello);
    assert_eq!(request(&out), Request::Hello(hello.clone()));
    let mut body = postcard::to_stdvec(&hello).unwrap();
    body.extend_from_slice(b"what a later version adds");
    assert_eq!(decode_control::<Hello>(&body, "hello"), Ok(hello));

    let init = InitRequest {
        partitions: 3,
        split_keys: vec![Bytes::from_static(b"g"), Bytes::from_static(b"n")],
        settings: vec![("replicas".to_string(), "3".to_string())],
        if_needed: true,
        nonce: 7,
    };
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Admin, 0, &AdminRequest::Init(init.clone()));
    assert_eq!(request(&out), Request::Admin(Box::new(AdminRequest::Init(init))));

    let reply = MapReply {
        map: Some(PartitionMap {
            version: MapVersion(3),
            partitions: vec![entry_of(PartitionId(1))],
            ..Default::default()
        }),
        leaders: vec![(PartitionId(1), NodeId(2))],
    };
    let body = postcard::to_stdvec(&reply).unwrap();
    assert_eq!(decode_control::<MapReply>(&body, "map"), Ok(reply));
}

/// Sessions opened behind packs that were refused kept the two megabytes of each pack in memory.
#[test]
fn a_small_frame_keeps_nothing_of_the_large_one_before_it() {
    let (mut out, mut decoder) = (BytesMut::new(), FrameDecoder::default());
    encode_frame(&mut out, Kind::Ping, 1, &vec![7; 1 << 20]);
    encode_frame(&mut out, Kind::Ping, 2, b"small");
    for chunk in out.chunks(64 << 10) {
        decoder.space();
        decoder.feed(chunk);
    }
    let mut next = || decoder.next_frame().expect("our own frames").expect("it is whole");
    let (large, small) = (next().body, next().body);
    drop((large, decoder));
    let small = small.try_into_mut().expect("nobody else has it");
    assert!(small.capacity() < 128 << 10, "{} bytes are kept for {}", small.capacity(), small.len());
}
