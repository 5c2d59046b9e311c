//! What clients ask, what executors make of it, and what clients are told.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use coppice_btree::{KeyRange, Op, Value};
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::part::PartHead;
use coppice_client::wire::reply::{PackReply, result_bytes};
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::{
    AdminReply, AdminRequest, ClientId, ClusterId, CollectRequest, Command, CommandRefusal, CompareRequest, Compared,
    Frame, FrameDecoder, Hello, HelloOk, Kind, Limits, MapGet, MapReply, MapVersion, NodeId, NodeIdentity, NodeStatus,
    OpenRequest, PackWriter, PairsSum, Part, PartCursor, PartEnd, PartWriter, PartitionId, PartitionStatus, Position,
    QueryCompleted, QueryPlan, QueryRequest, RangeRequest, ReadRequest, Refusal, ReplicaId, ReplicaStatus, Replies,
    RepliesWriter, Request, ScanOptions, SessionId, Status, StatusGet, Stretch, SubRange, Ticket, ValidateRequest,
    Version, encode_part_cancel, encode_part_credit,
};
use coppice_core::machine::Machine;
use coppice_core::machine::directory::{Directory, DirectoryState};
use coppice_core::machine::entry;
use coppice_core::machine::partition::Partition;
use coppice_core::multicast::MulticastBody;
use coppice_core::sessions::SessionLimits;
use coppice_ordering::{Ballot, Batch, Commands, Instance};

use super::peers::{self, PLACE, admin_replies, admin_requests, stable, tagged, used};
use super::plain::plain;
use super::shape::{Shape, parse};

/// Entries of a batch.
pub const ENTRIES: &str = "*(?<1:l(?<0:vvvvv*(?<1:vll|2:vll|3:vl|4:vlll|5:vl|6:vl(c(?<1:ll|2:ll|3:l|4:lll|5:l>))|\
                           7:vl(c(ll))>)|1:vvvvv*(?<1:vKK|2:vKK|3:vK|4:vKKK|5:vK>)>)|2:l(88)|_:l>)";

pub fn session() -> SessionId {
    SessionId { partition: PartitionId(1), instance: 7, index: 0 }
}

/// One of every command, in a pack of `session` for its partition.
pub fn pack_of(session: SessionId, eight: bool) -> Vec<u8> {
    let mut writer = PackWriter::new(Vec::new(), session, 1, eight, 8_192);
    let (key, value): (&[u8], &[u8]) = (b"appleapp", b"redred!!");
    let (other, more) = match eight {
        true => (&b"melonmel"[..], b"greengre".to_vec()),
        false => (&b"melon"[..], vec![b'g'; 300]),
    };
    let ops = [
        Op::Put { key, value },
        Op::Insert { key: other, value: &more },
        Op::Cas { key, expected: value, value: &more },
        Op::Get { key },
        Op::Delete { key: other },
    ];
    for (number, op) in (3..).zip(ops) {
        writer.push(number, op).expect("room");
    }
    if !eight {
        writer.push_many(20, ops.into_iter()).expect("room");
        writer.push_load(30, [(&b"b"[..], value), (b"c", value), (b"d", b"")].into_iter()).expect("room");
    }
    writer.finish(session.partition, 5).expect("it fits").to_vec()
}

pub fn pack() -> Vec<u8> {
    pack_of(session(), false)
}

/// The entry in a batch that a pack's frame carries.
pub fn entry_of(pack: &[u8]) -> Bytes {
    match Request::decode(&decoded_frame(pack)) {
        Ok(Request::Commands(commands)) => commands.entry,
        other => panic!("{other:?}"),
    }
}

pub fn pack_entry() -> Bytes {
    entry_of(&pack())
}

pub fn decoded_frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    decoder.next_frame().expect("good").expect("whole")
}

// -- what clients ask ------------------------------------------------------------------------------------------------

/// A frame's fields behind its kind, by the grammar of its body.
fn body(bytes: &[u8], grammar: &str) -> Shape {
    let frame = decoded_frame(bytes);
    tagged(frame.kind, &parse(grammar, &frame.body))
}

/// What a client may ask of `partition`, in which `session` is open; the first byte is the kind.
pub fn requests_of(partition: PartitionId, session: SessionId) -> Vec<Shape> {
    let mut out = BytesMut::new();
    let commands = format!("v{}", ENTRIES.strip_prefix("*(").and_then(|one| one.strip_suffix(')')).expect("entries"));
    let mut requests = vec![
        body(&pack_of(SessionId { partition, ..session }, false), &commands),
        body(&pack_of(SessionId { partition, ..session }, true), &commands),
    ];
    let mut keep = |out: &mut BytesMut, grammar: &str| requests.push(body(&out.split(), grammar));
    OpenRequest::encode(&mut out, 1, partition, ClientId(7), 3);
    keep(&mut out, "v b l(88)");
    for how in [(true, false), (false, true), (false, false)] {
        ReadRequest::encode(&mut out, 1, partition, how, [&b"apple"[..], b"bc"].into_iter());
        keep(&mut out, "b v c(l)");
        ReadRequest::encode(&mut out, 1, partition, how, [&b"appleapp"[..], b"melonmel"].into_iter());
        keep(&mut out, "b v c(K)");
    }
    let range = RangeRequest {
        low: Value::from(&b"a"[..]),
        high: Some(Value::from(&b"n"[..])),
        versioned: true,
        scan: ScanOptions { pairs_max: 1 << 40, ..ScanOptions::default() },
        credit: 65_536,
        ..RangeRequest::whole(partition)
    };
    range.encode(&mut out, 1);
    keep(&mut out, "b v v v v l l");
    RangeRequest { high: None, scan: ScanOptions { reverse: true, ..range.scan }, stale: true, ..range.clone() }
        .encode(&mut out, 1);
    keep(&mut out, "b v v v v l");
    RangeRequest { anywhere: true, scan: ScanOptions { count_only: true, ..range.scan }, ..range }.encode(&mut out, 1);
    keep(&mut out, "b v v v v l l");
    RangeRequest::encode_credit(&mut out, 1, 70_000);
    keep(&mut out, "v");
    let version = Version { replica: ReplicaId(1), incarnation: 1, began: 1, changes: 3 };
    let asked = [
        RangeVersion { version, low: b"a", high: Some(b"n") },
        RangeVersion { version, low: b"", high: None },
        RangeVersion { version: Version { began: 1 << 40, ..version }, low: b"c", high: None },
    ];
    ValidateRequest::encode(&mut out, 1, (partition, true), asked.into_iter());
    keep(&mut out, "b v c(?<0:vvvvl|1:vvvvll>)");
    let parts = vec![(PartitionId(1), Value::EMPTY), (PartitionId(2), Value::from(&b"\x80"[..]))];
    let scan = ScanOptions { keys_only: true, pairs_max: 9, bytes_max: 1 << 40, ..ScanOptions::default() };
    let high = Some(Value::from(&b"\xf0"[..]));
    CollectRequest { parts, high, scan, credit: 65_536 }.encode(&mut out, 1);
    keep(&mut out, "b v v v c(vl) l");
    let query = QueryRequest {
        query: 7,
        low: Bytes::new(),
        high: Some(Bytes::from_static(b"\xf0")),
        scan: ScanOptions { count_only: true, pairs_max: 1 << 40, ..ScanOptions::default() },
        from_leaders: false,
        spread: true,
        credit: 65_536,
    };
    query.encode(&mut out, 1);
    keep(&mut out, "b v v v v l l");
    encode_part_credit(&mut out, 7, partition, 65_536);
    keep(&mut out, "v 4");
    encode_part_cancel(&mut out, 7);
    keep(&mut out, "");
    let sum = PairsSum { pairs: 3, bytes: 1 << 20, hash: [0xa7; 32] };
    let stretch = |low: &[u8], high: Option<&[u8]>| Stretch { low: low.into(), high: high.map(Into::into), sum };
    let stretches = [stretch(b"a", Some(b"b")), stretch(b"c", None)];
    CompareRequest::encode(&mut out, 1, None, (70_000, &stretches, false));
    keep(&mut out, "b v c(?<0:vv8888l|1:vv8888ll>)");
    CompareRequest::encode(&mut out, 7, Some(partition), (0, &stretches[..1], true));
    keep(&mut out, "v b v c(?<0:vv8888l|1:vv8888ll>)");
    for kind in [Kind::Ping, Kind::Cancel] {
        requests.push(tagged(kind as u8, &parse("", &[])));
    }
    requests.push(tagged(Kind::MapGet as u8, &plain(&MapGet { known: MapVersion(1) })));
    requests.push(tagged(Kind::Status as u8, &plain(&StatusGet { local: true })));
    requests
}

pub fn hello() -> Hello {
    let (protocol_min, protocol_max) = (*coppice_client::wire::PROTOCOL.start(), *coppice_client::wire::PROTOCOL.end());
    Hello { protocol_min, protocol_max, client: ClientId(1 << 40), ..Hello::default() }
}

/// The first byte is the kind.
pub fn requests() -> Vec<Shape> {
    let node = Some(NodeIdentity { node: NodeId(2), incarnation: 3 });
    let token = coppice_client::Token::generate().ok();
    let hello = Hello { cluster: Some(ClusterId(7)), node, token, ..hello() };
    let admins = admin_requests().into_iter().map(|admin| tagged(Kind::Admin as u8, &plain(&admin)));
    let requests = requests_of(PartitionId(1), session()).into_iter();
    requests.chain(admins).chain([tagged(Kind::Hello as u8, &plain(&hello))]).collect()
}

/// The first byte is the kind. What was understood is walked over completely, and says the same when it is said again.
pub fn run_requests(bytes: &[u8]) -> bool {
    let Some((&kind, body)) = bytes.split_first() else { return false };
    let frame = Frame { kind, flags: 0, stream: 1, body: Bytes::copy_from_slice(body) };
    let Ok(request) = Request::decode(&frame) else { return false };
    let mut out = BytesMut::new();
    match &request {
        Request::Commands(commands) => {
            let pack = commands.pack().expect("accepted");
            assert_eq!(pack.commands().count(), pack.count() as usize);
            let mut work = 0_u32;
            for (_, command) in pack.commands() {
                match command {
                    Command::Op(_) => {}
                    Command::Many(many) => assert_eq!(many.iter().count(), many.len()),
                    Command::Load(load) => assert_eq!(load.iter().count(), load.len()),
                }
                work += command.work();
                command.is_within(b"a", Some(b"b"));
            }
            assert_eq!(work, commands.work);
            assert!(run_batch_entries(&commands.entry), "what was admitted executes");
            return true;
        }
        Request::Read(read) => {
            let keys: Vec<&[u8]> = read.keys().collect();
            assert_eq!((keys.len(), read.shared_keys().count()), (read.len(), read.len()));
            let (how, keys) = ((read.stale, read.anywhere), keys.into_iter());
            match read.looks {
                false => ReadRequest::encode(&mut out, 1, read.partition, how, keys),
                true => ReadRequest::encode_looks(&mut out, 1, read.partition, how, keys),
            }
            let Ok(Request::Read(again)) = Request::decode(&decoded_frame(&out)) else { panic!("our own bytes") };
            assert!(again.looks == read.looks && again.keys().eq(read.keys()), "not the same when it is said again");
            return true;
        }
        // These keep the bytes that came, whose varints may be longer than ours.
        Request::Validate(validate) => {
            let ranges: Vec<RangeVersion<'_>> = validate.ranges().collect();
            assert_eq!(ranges.len(), validate.len());
            let asked = (validate.partition, validate.anywhere);
            ValidateRequest::encode(&mut out, 1, asked, ranges.iter().copied());
            let Ok(Request::Validate(again)) = Request::decode(&decoded_frame(&out)) else { panic!("our own bytes") };
            assert!(again.ranges().eq(ranges), "not the same when it is said again");
            return true;
        }
        Request::OpenSession(open) => {
            OpenRequest::encode(&mut out, 1, open.partition, open.client, open.nonce);
            let Ok(Request::OpenSession(again)) = Request::decode(&decoded_frame(&out)) else {
                panic!("our own bytes")
            };
            assert_eq!((again.partition, again.client, again.nonce), (open.partition, open.client, open.nonce));
            return true;
        }
        Request::Range(range) => range.encode(&mut out, 1),
        Request::Query(query) => query.encode(&mut out, 1),
        Request::Collect(gather) => {
            (0..gather.parts.len()).for_each(|part| _ = gather.bounds(part));
            gather.encode(&mut out, 1);
        }
        Request::Admin(admin) => encode_control(&mut out, Kind::Admin, 1, &**admin),
        Request::Hello(hello) => encode_control(&mut out, Kind::Hello, 1, hello),
        _ => return true,
    }
    assert_eq!(Request::decode(&decoded_frame(&out)), Ok(request), "it is not the same when it is said again");
    true
}

// -- what executors make of it ---------------------------------------------------------------------------------------

pub fn batch_entries() -> Vec<Shape> {
    let eight = entry_of(&pack_of(session(), true));
    let mut entries = vec![
        parse(ENTRIES, &pack_entry()),
        parse(ENTRIES, &eight),
        parse(ENTRIES, &entry::open(ClientId(7), 3)),
        with_plain(&entry::limits(&SessionLimits::default()), &plain(&SessionLimits::default())),
    ];
    for command in peers::directory_commands(ClusterId(7)) {
        entries.push(with_plain(&entry::directory(&command), &plain(&command)));
    }
    for word in peers::words(Ballot::new(3, 1)) {
        if let MulticastBody::Place(place) = word {
            entries.push(peers::with_works(parse(&format!("b l({PLACE})"), &entry::place(&place))));
        }
    }
    entries
}

fn with_plain(entry: &[u8], fields: &Shape) -> Shape {
    parse("b l", entry).graft(&fields.whole(), fields)
}

/// As an executor walks them, on every replica alike.
pub fn run_batch_entries(bytes: &[u8]) -> bool {
    let mut understood = !bytes.is_empty();
    for entry in entry::entries(bytes) {
        understood &= !matches!(entry, entry::Entry::Unknown);
        if let entry::Entry::Pack { pack, .. } = entry {
            assert!(pack.commands().count() <= bytes.len());
        }
    }
    understood
}

/// Partition 1 with a session and some keys, at instance 9.
fn partition() -> Machine {
    let mut machine = Machine::Partition(Box::new(Partition::new(PartitionId(1), KeyRange::all(), MapVersion(4))));
    machine.set_me(coppice_ordering::ReplicaId(2));
    let mut execute = |instance, entries: Bytes| {
        let batch = Batch::Commands(Commands::new(1, entries));
        let mark = machine.execute(Instance(instance), &batch, &mut Vec::new());
        machine.confirm(&mark, None);
        machine.forget_undo();
    };
    execute(7, entry::open(ClientId(7), 3));
    execute(8, entry_of(&pack_of(session(), false)));
    machine
}

fn directory() -> Machine {
    let (map, users) = (peers::map(ClusterId(7)), peers::users());
    let state = DirectoryState { map, users, ..DirectoryState::default() };
    Machine::Directory(Directory::new(state))
}

/// As replicas execute a batch that was decided, whoever proposed it, and take it back.
pub fn run_execution(bytes: &[u8]) -> bool {
    thread_local! {
        static MACHINES: RefCell<[Machine; 2]> = RefCell::new([partition(), directory()]);
    }
    let batch = Batch::Commands(Commands::new(1, Bytes::copy_from_slice(bytes)));
    MACHINES.with_borrow_mut(|machines| {
        for machine in machines.iter_mut() {
            let (before, mut answers) = (machine.digest(), Vec::new());
            let mark = machine.execute(Instance(10), &batch, &mut answers);
            _ = (machine.digest(), mark.work(), Machine::forks(&mark).len(), Machine::awaits(&mark));
            machine.undo(mark);
            assert_eq!(machine.digest(), before, "what was executed is not taken back");
            assert!(answers.len() <= bytes.len(), "answers out of nothing");
            machine.take_placed(&mut Vec::new());
        }
    });
    run_batch_entries(bytes)
}

// -- what clients are told -------------------------------------------------------------------------------------------

const RESULTS: &str = "*(?<0:|4:|12:l|28:K|8:l|6:v|38:v|35:|11:l|5:l(c(?<0:|1:|2:|3:|35:|4:|8:l|9:l|10:l|11:l|12:l>))|\
                       7:?<16:v|_:>|71:vvv?<16:v|_:>|68:vvv|76:vvvl|92:vvvK|_:.>)";

fn refusals() -> Vec<(Refusal, &'static str)> {
    let (partition, hint) = (PartitionId(3), Some(NodeId(2)));
    let text = || "no".to_owned();
    let entries = peers::map(ClusterId(7)).partitions;
    vec![
        (Refusal::NotLeader { partition, hint }, "bvv"),
        (Refusal::Deposed { partition, hint: None }, "bvv"),
        (Refusal::WrongPartition { partition, version: MapVersion(9), entries }, "bvv."),
        (Refusal::Busy { retry_after: std::time::Duration::from_millis(9), text: text() }, "blv"),
        (Refusal::Full { text: text() }, "bl"),
        (Refusal::SessionExpired, "b"),
        (Refusal::TooLarge { text: text() }, "bl"),
        (Refusal::Denied { text: text() }, "bl"),
        (Refusal::ShuttingDown, "b"),
        (Refusal::BadRequest { text: text() }, "bl"),
        (Refusal::NotInitialized, "b"),
        (Refusal::SnapshotExpired, "b"),
        (Refusal::Unavailable { text: text() }, "bl"),
        (Refusal::Unauthenticated { text: text() }, "bl"),
        (Refusal::Aborted { text: text(), unplaced: Some(partition) }, "blv"),
    ]
}

fn status() -> Status {
    let ticket = Some(Ticket { round: 3, replica: ReplicaId(1), n: 57 });
    let replica = ReplicaStatus { replica: ReplicaId(1), node: NodeId(1), voter: true, up: true, ..Default::default() };
    let partition = PartitionStatus {
        id: PartitionId(1),
        low: Bytes::from_static(b"a"),
        high: Some(Bytes::from_static(b"q")),
        leader: Some(NodeId(1)),
        replicas: vec![replica; 3],
        last_ticket: ticket,
        digest: Some((3, 4)),
        ..PartitionStatus::default()
    };
    Status {
        cluster: Some(ClusterId(7)),
        tolerated_failures: -1,
        nodes: vec![NodeStatus { id: NodeId(1), name: "n1".into(), up: true, ..NodeStatus::default() }; 2],
        partitions: vec![partition],
        warnings: vec!["slow".into()],
        changes: vec!["p1 moves".into()],
        ..Status::default()
    }
}

/// What a node sends to a client; the first byte is the kind.
pub fn answers() -> Vec<Shape> {
    let limits = Limits {
        frame_bytes: 4 << 20,
        key_bytes: 4_096,
        value_bytes: 1 << 20,
        inflight: 1_024,
        inflight_bytes: 16 << 20,
    };
    let node = Some(NodeIdentity { node: NodeId(2), incarnation: 3 });
    let greeting = HelloOk {
        protocol: *coppice_client::wire::PROTOCOL.end(),
        features: 0,
        cluster: Some(ClusterId(5)),
        node,
        map_version: MapVersion(8),
        limits,
    };
    let map = MapReply { map: Some(peers::map(ClusterId(5))), leaders: vec![(PartitionId(1), NodeId(2))] };
    let mut answers = vec![
        tagged(Kind::HelloOk as u8, &plain(&greeting)),
        tagged(Kind::Map as u8, &plain(&map)),
        tagged(Kind::StatusReply as u8, &plain(&status())),
    ];
    answers.extend(admin_replies().iter().map(|reply| tagged(Kind::AdminReply as u8, &plain(reply))));
    let mut out = BytesMut::new();
    let mut keep = |out: &mut BytesMut, grammar: &str| answers.push(body(&out.split(), grammar));
    let mut answer = BytesMut::new();
    let mut reply = PackReply::new(&mut answer, PartitionId(1), 9, 9);
    reply.value(Some(b"something"));
    reply.value(Some(b"eighteig"));
    reply.value(None);
    reply.opened();
    reply.refused(CommandRefusal::Forgotten);
    reply.refused(CommandRefusal::WrongPartition { version: MapVersion(9) });
    reply.loaded(7);
    reply.not_loaded(1 << 40);
    reply.validated(true);
    reply.repeated(Position { partition: PartitionId(1), instance: 4, index: 4 }, &[4]);
    reply.finish();
    let mut read = BytesMut::new();
    let mut reply = PackReply::read(&mut read, PartitionId(1), 9, 9);
    reply.value(Some(b"something"));
    reply.finish();
    let mut replies = RepliesWriter::new(&mut out);
    replies.answer(1, &answer).expect("well formed");
    replies.answer(2, &read).expect("well formed");
    replies.opened(3, session());
    replies.finish();
    keep(&mut out, &format!("*(4L(bvvvv2{RESULTS}))"));
    let ticket = Ticket { round: 3, replica: ReplicaId(1), n: 57 };
    let version = Version { replica: ReplicaId(1), incarnation: 3, began: 1 << 40, changes: 70_000 };
    let head = PartHead {
        stream: 1,
        position: Position { partition: PartitionId(1), instance: 9, index: 3 },
        ticket: Some(ticket),
        version: Some(version),
        keys_only: false,
    };
    for (eight, ticket) in [(true, None), (false, Some(ticket))] {
        let mut part = PartWriter::new(&mut out, &PartHead { ticket, ..head }, 0, eight);
        for key in [b"appleapp", b"melonmel"] {
            assert!(part.push(key, b"redred!!"));
        }
        part.finish(3, Some(PartEnd::Limited));
        keep(&mut out, if eight { "b48vvvv vvvv *(KK)" } else { "b48vvvv vvv vvvv *(ll)" });
    }
    let mut part = PartWriter::new(&mut out, &PartHead { keys_only: true, version: None, ..head }, 1, false);
    assert!(part.push(b"apple", b""));
    part.finish(3, None);
    keep(&mut out, "b48vvvv vvv *(l)");
    let part = PartWriter::new(&mut out, &PartHead { version: None, ..head }, 2, true);
    part.compared(Compared { number: 70_000, same: true }).finish(3, None);
    keep(&mut out, "b48vvvv vvv vb");
    let part = |partition, low: &'static str, high: Option<&'static str>| SubRange {
        partition: PartitionId(partition),
        low: Bytes::from_static(low.as_bytes()),
        high: high.map(|high| Bytes::from_static(high.as_bytes())),
        node: NodeId(partition + 1),
    };
    let parts = vec![part(1, "b", Some("grape")), part(2, "grape", Some("melon"))];
    QueryPlan { ticket, version: MapVersion(8), parts }.encode(&mut out, 1).expect("it fits");
    keep(&mut out, "b vvv v v l *(vvl)");
    QueryCompleted { ticket }.encode(&mut out, 1);
    keep(&mut out, "vvv");
    for (refusal, grammar) in refusals() {
        refusal.encode(&mut out, 1);
        let mut shape = body(&out.split(), grammar);
        if let Refusal::WrongPartition { entries, .. } = &refusal {
            let fields = plain(entries);
            shape = shape.graft(&fields.whole(), &fields);
        }
        answers.push(shape);
    }
    answers
}

/// As a client reads it.
pub fn run_answers(bytes: &[u8]) -> bool {
    let Some((&kind, body)) = bytes.split_first() else { return false };
    let whole = Bytes::copy_from_slice(body);
    match Kind::from_u8(kind) {
        Some(Kind::HelloOk) => stable::<HelloOk>(body).is_some(),
        Some(Kind::Map) => stable::<MapReply>(body).is_some_and(|reply| {
            reply.map.iter().for_each(used);
            decode_control::<MapReply>(body, "map") == Ok(reply)
        }),
        Some(Kind::StatusReply) => stable::<Status>(body).is_some(),
        Some(Kind::AdminReply) => stable::<AdminReply>(body).is_some(),
        Some(Kind::Admin) => stable::<AdminRequest>(body).is_some(),
        Some(Kind::QueryPlan) => match QueryPlan::decode(&whole) {
            Ok(cut) => {
                // What was accepted adjoins, ascends, and is written as it was read.
                assert!(cut.parts.windows(2).all(|pair| pair[0].high.as_ref() == Some(&pair[1].low)));
                let mut out = BytesMut::new();
                cut.encode(&mut out, 1).expect("it came in a frame");
                assert_eq!(QueryPlan::decode(&decoded_frame(&out).body), Ok(cut));
                true
            }
            Err(_) => false,
        },
        Some(Kind::QueryCompleted) => QueryCompleted::decode(body).is_ok(),
        Some(Kind::Refused) => match Refusal::decode(body) {
            Ok(refusal) => {
                let mut out = BytesMut::new();
                refusal.encode(&mut out, 1);
                let said = decoded_frame(&out).body;
                // Text is cut to a length and made UTF-8: what is said again stays as it is from then on.
                let again = Refusal::decode(&said).expect("our own bytes");
                let mut out = BytesMut::new();
                again.encode(&mut out, 1);
                assert_eq!(decoded_frame(&out).body, said);
                true
            }
            Err(_) => false,
        },
        Some(Kind::Part) => {
            let cursor = PartCursor::new(whole.clone());
            match Part::decode(body) {
                Ok(part) => {
                    assert_eq!(part.pairs().count(), part.len());
                    let mut cursor = cursor.expect("the same bytes");
                    for pair in part.pairs() {
                        assert_eq!(cursor.next_pair(), Some(pair));
                    }
                    assert!(cursor.next_pair().is_none() && cursor.is_done());
                    assert_eq!(part.ends().is_some(), !part.is_empty());
                    true
                }
                Err(_) => {
                    assert!(cursor.is_err(), "half understood");
                    false
                }
            }
        }
        _ => {
            let mut sections = 0;
            for section in Replies::new(body).flatten() {
                assert_eq!(section.results().count(), section.count as usize);
                sections += 1;
            }
            _ = result_bytes(body);
            let mut out = BytesMut::new();
            let mut replies = RepliesWriter::new(&mut out);
            _ = replies.answer(1, body);
            replies.finish();
            sections > 0
        }
    }
}
