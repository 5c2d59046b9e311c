//! Decoders of nodes, and of what they say to clients, meet valid images that were damaged: no panic, no loop, nothing
//! made up (reliability.md 7, G20).
//!
//! Each target takes bytes and decodes them as a node would, then uses what it got. Cases are drawn from a seed:
//! flipped bits, bytes out of and into the middle, cut, doubled and swapped ranges, numbers at the ends of their range,
//! each number as the formats write it: varints, and fixed widths.
//! Where a checksum protects the bytes it is made to fit, as an attacker or a bug of ours would make it.
//!
//! Under `cargo test` a few thousand cases per target; for as long as one likes:
//!
//! ```text
//! COPPICE_FUZZ_RUNS=1000000000 [COPPICE_FUZZ_TARGET=peer_messages] [COPPICE_FUZZ_SEED=7] \
//!     cargo test --release -p coppice-server --test fuzz -- --nocapture
//! ```

mod common;
mod fuzz_targets;
mod log_common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use coppice_btree::{Key, KeyRange, Op, Value};
use coppice_client::map::PartitionMap;
use coppice_client::wire::control::decode_control;
use coppice_client::wire::{
    AdminReply, AdminRequest, ClientId, ClusterId, Frame, FrameDecoder, Hello, Kind, MapVersion, NodeId, PackWriter,
    PartitionId, Request, SessionId,
};
use coppice_ordering::message::{
    AcceptedBatch, CatchUp, CatchUpReply, Heartbeat, Message, Phase1a, Phase1b, Phase2a, Phase2b, PreVote,
};
use coppice_ordering::{Ballot, Batch, Beat, Commands, Configuration, Instance, Record, ReplicaId, Ticket};
use coppice_server::checkpoint::stream::{Blobs, Decoder, Encoder, chunk_crc};
use coppice_server::checkpoint::{Head, Manifest};
use coppice_server::datadir::claim::Claim;
use coppice_server::entry;
use coppice_server::log::record::{self, Gather};
use coppice_server::log::segment::MarkSeed;
use coppice_server::log::{Entry, FileName, GroupId, LogError};
use coppice_server::machine::Machine;
use coppice_server::machine::directory::{DirectoryCommand, DirectoryState};
use coppice_server::machine::shard::Shard;
use coppice_server::net::codec::Body;
use coppice_server::net::handshake::{self, PEER_PROTOCOL, PeerHello, PeerWelcome, Presence, Purpose};
use coppice_server::net::peer::{self, Envelope};
use coppice_server::net::peer_frame;
use coppice_server::net::rpc::{Answer, Question};
use coppice_server::sessions::SessionLimits;
use coppice_server::snapshot;
use fuzz_targets::damage::damage;
use log_common::model::{self, Model};
use log_common::sim_disk::SimDisk;
use log_common::{Draw, NODE, SMALL, commit, keep, new_disk, open, read};

/// A decoder, its valid images, and what is done with any bytes; true: they were understood.
struct Target {
    name: &'static str,
    corpus: fn() -> Vec<Vec<u8>>,
    run: fn(&[u8]) -> bool,
}

const TARGETS: &[Target] = &[
    Target { name: "frames", corpus: frames, run: run_frames },
    Target { name: "requests", corpus: requests, run: run_requests },
    Target { name: "peer_messages", corpus: peer_messages, run: run_peer_messages },
    Target { name: "questions", corpus: questions, run: run_questions },
    Target { name: "greetings", corpus: greetings, run: run_greetings },
    Target { name: "log_record", corpus: log_records, run: run_log_record },
    Target { name: "batch_entries", corpus: batch_entries, run: run_batch_entries },
    Target { name: "letters", corpus: fuzz_targets::letters, run: fuzz_targets::run_letters },
    Target { name: "share", corpus: fuzz_targets::shares, run: fuzz_targets::run_share },
    Target { name: "answers", corpus: fuzz_targets::answers, run: fuzz_targets::run_answers },
    Target { name: "manifest", corpus: manifests, run: run_manifest },
    Target { name: "snapshot_stream", corpus: snapshot_streams, run: run_snapshot_stream },
    Target { name: "snapshot_state", corpus: snapshot_states, run: run_snapshot_state },
];

/// Cases per target under plain `cargo test`.
const RUNS: u64 = 3_000;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Of this run: another one each time, printed, unless it is given.
fn seed() -> u64 {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64 >> 10);
    let seed = number("COPPICE_FUZZ_SEED", clock);
    println!("COPPICE_FUZZ_SEED={seed}");
    seed
}

/// The damaged image of one case.
fn image(corpus: &[Vec<u8>], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = corpus[draw.below(corpus.len() as u64) as usize].clone();
    for _ in 0..1 + draw.below(4) {
        let other = &corpus[draw.below(corpus.len() as u64) as usize];
        damage(&mut bytes, other, &mut |bound| draw.below(bound));
    }
    bytes
}

#[test]
fn damaged_images_panic_no_decoder() {
    let (runs, seed) = (number("COPPICE_FUZZ_RUNS", RUNS), seed());
    let wanted = variable("COPPICE_FUZZ_TARGET");
    let mut ran = 0;
    for target in TARGETS.iter().filter(|target| wanted.as_deref().is_none_or(|wanted| wanted == target.name)) {
        let corpus = (target.corpus)();
        // What is whole is understood: a corpus that is refused would test nothing.
        let understood = corpus.iter().all(|whole| (target.run)(whole));
        assert!(understood, "target {}: a whole image is refused", target.name);
        for case in 0..runs {
            let mut draw = Draw::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(case));
            let bytes = image(&corpus, &mut draw);
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))).is_err() {
                panic!("target {}, seed {seed}, case {case}: {bytes:02x?}", target.name);
            }
        }
        ran += 1;
    }
    assert!(ran > 0, "no target has the name {wanted:?}");
}

fn session() -> SessionId {
    SessionId { partition: PartitionId(1), instance: 7, index: 0 }
}

fn pack() -> Vec<u8> {
    let mut writer = PackWriter::new(Vec::new(), session(), 1, false, 8_192);
    let mut out = |number, op| writer.push(number, op).expect("room");
    out(3, Op::Put { key: b"apple", value: b"red" });
    out(4, Op::Delete { key: b"melon" });
    out(9, Op::Cas { key: b"apple", expected: b"red", value: &[b'g'; 300] });
    writer.finish(PartitionId(1), 5).expect("it fits").to_vec()
}

/// The entry in a batch that a pack's frame carries.
fn pack_entry() -> Bytes {
    let frame = decoded_frame(&pack());
    match Request::decode(&frame) {
        Ok(Request::Commands(commands)) => commands.entry,
        other => panic!("{other:?}"),
    }
}

fn decoded_frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    decoder.next_frame().expect("good").expect("whole")
}

fn frames() -> Vec<Vec<u8>> {
    let messages = peer_messages().into_iter().map(|body| peer_frame::frame(peer_frame::MESSAGES, &body).to_vec());
    messages.chain([pack(), peer_frame::frame(peer_frame::DURABLE, &7_u64.to_le_bytes()).to_vec()]).collect()
}

fn run_frames(bytes: &[u8]) -> bool {
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    let mut understood = false;
    for chunk in bytes.chunks(61) {
        decoder.feed(chunk);
        while let Ok(Some(frame)) = decoder.next_frame() {
            assert!(frame.body.len() <= bytes.len());
            understood = true;
            _ = peer::decode(frame.body);
        }
        let room = decoder.space().capacity();
        assert!(room <= 2 * bytes.len() + 8_192, "{room} bytes of room for {}", bytes.len());
    }
    understood
}

fn requests() -> Vec<Vec<u8>> {
    let body = |bytes: &[u8]| [&[Kind::Commands as u8], &decoded_frame(bytes).body[..]].concat();
    let hello = postcard::to_stdvec(&Hello { token: coppice_client::Token::generate().ok(), ..Hello::default() })
        .expect("plain data");
    let admin = postcard::to_stdvec(&AdminRequest::ConfigSet { key: "window".into(), value: "7".into() });
    vec![
        body(&pack()),
        [&[Kind::Hello as u8], &hello[..]].concat(),
        [&[Kind::Admin as u8], &admin.expect("plain data")[..]].concat(),
    ]
}

/// The first byte is the kind.
fn run_requests(bytes: &[u8]) -> bool {
    let Some((&kind, body)) = bytes.split_first() else { return false };
    let frame = Frame { kind, flags: 0, stream: 1, body: Bytes::copy_from_slice(body) };
    _ = decode_control::<AdminReply>(body, "admin reply");
    match Request::decode(&frame) {
        Ok(Request::Commands(commands)) => run_batch_entries(&commands.entry),
        decoded => decoded.is_ok(),
    }
}

fn batches() -> Vec<Batch> {
    let mut parts = vec![pack_entry(), entry::open(ClientId(7), 3)];
    vec![
        Batch::NoOp,
        Batch::Commands(Commands::from_parts(4, &mut parts)),
        Batch::Configuration(Configuration::of_voters((1..4).map(ReplicaId))),
    ]
}

fn accepted() -> Vec<AcceptedBatch> {
    let of =
        |(at, batch): (u64, Batch)| AcceptedBatch { instance: Instance(10 + at), ballot: Ballot::new(3, 1), batch };
    (0..).zip(batches()).map(of).collect()
}

fn messages() -> Vec<Message> {
    let ballot = Ballot::new(5, 2);
    let ticket = Some(Ticket { ballot, n: 9 });
    let mut messages: Vec<Message> = vec![
        PreVote { attempt: 3, decided_upto: Instance(4) }.into(),
        Phase1a { ballot, from: Instance(11), handover: Some(Ballot::new(4, 1)) }.into(),
        Phase1b {
            ballot,
            from: Instance(10),
            accepted: accepted(),
            decided_upto: Instance(9),
            trimmed_upto: Instance(2),
        }
        .into(),
        Phase2b { ballot, first: Instance(7), instance: Instance(9) }.into(),
        CatchUp { from: Instance(3), bytes_max: 1 << 20 }.into(),
        CatchUpReply {
            decided: accepted(),
            decided_upto: Instance(12),
            trimmed_upto: Instance(2),
            held_upto: Instance(1),
            promised: ballot,
        }
        .into(),
        Heartbeat {
            ballot,
            beat: Beat(8),
            decided_upto: Instance(12),
            held_upto: Instance(9),
            released: ticket,
            lease: std::time::Duration::from_millis(200),
            rest: std::time::Duration::from_secs(1),
        }
        .into(),
    ];
    messages.extend(batches().into_iter().map(|batch| {
        Phase2a { ballot, instance: Instance(13), batch, decided_upto: Instance(12), released: ticket }.into()
    }));
    messages
}

fn encoded(envelopes: &[Envelope]) -> Vec<u8> {
    let mut body = Body::default();
    envelopes.iter().for_each(|envelope| peer::encode(&mut body, envelope));
    body.take_pieces().concat()
}

fn peer_messages() -> Vec<Vec<u8>> {
    let envelope = |message| Envelope { group: 4, to: ReplicaId(1), from: ReplicaId(2), message };
    let envelopes: Vec<Envelope> = messages().into_iter().map(envelope).collect();
    let each = envelopes.iter().map(|envelope| encoded(std::slice::from_ref(envelope)));
    each.chain([encoded(&envelopes)]).collect()
}

fn run_peer_messages(bytes: &[u8]) -> bool {
    let Ok(envelopes) = peer::decode(Bytes::copy_from_slice(bytes)) else { return false };
    // What was understood says the same when it is said again.
    let again = peer::decode(encoded(&envelopes).into()).expect("our own bytes");
    assert_eq!(envelopes, again);
    !envelopes.is_empty()
}

fn questions() -> Vec<Vec<u8>> {
    let command = DirectoryCommand::Set { key: "window".into(), value: "7".into() };
    let plain = "plain data";
    vec![
        postcard::to_stdvec(&Question::Directory(command)).expect(plain),
        postcard::to_stdvec(&Answer::Map {
            map: PartitionMap::default(),
            leaders: Vec::new(),
            settings: Default::default(),
            users: Default::default(),
        })
        .expect(plain),
        postcard::to_stdvec(&Answer::Status(Box::default())).expect(plain),
    ]
}

/// The first byte: whose.
fn greetings() -> Vec<Vec<u8>> {
    let from = Some(Presence { cluster: ClusterId(7), node: NodeId(2), claim: Claim::new(3, 1 << 60, &[7], 9) });
    let purposes = [Purpose::Messages, Purpose::Question, Purpose::Snapshot, Purpose::Forming];
    let hello = |purpose| PeerHello { protocol: PEER_PROTOCOL, purpose, from, to: Some(NodeId(1)) };
    let hellos =
        purposes.map(|purpose| [&[0], &postcard::to_stdvec(&hello(purpose)).expect("plain data")[..]].concat());
    let welcome = PeerWelcome { protocol: PEER_PROTOCOL, from };
    let welcome = [&[1], &postcard::to_stdvec(&welcome).expect("plain data")[..]].concat();
    hellos.into_iter().chain([welcome]).collect()
}

/// As both ends read and judge them.
fn run_greetings(bytes: &[u8]) -> bool {
    let Some((&whose, body)) = bytes.split_first() else { return false };
    let body = Bytes::copy_from_slice(body);
    let own = Presence { cluster: ClusterId(7), node: NodeId(1), ..Presence::default() };
    if whose == 0 {
        let frame = Frame { kind: peer_frame::HELLO, flags: 0, stream: 0, body };
        let hello = handshake::read_hello(&frame);
        return hello.is_ok_and(|hello| {
            _ = handshake::admit(&hello, None, &PartitionMap::default());
            handshake::admit(&hello, Some(&own), &PartitionMap::default()).is_ok()
        });
    }
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Question, from: Some(own), to: None };
    let frame = Frame { kind: peer_frame::WELCOME, flags: 0, stream: 0, body };
    handshake::read_welcome(&hello, &frame).is_ok()
}

fn run_questions(bytes: &[u8]) -> bool {
    let answer = postcard::from_bytes(bytes);
    if let Ok(Answer::Map { map, .. }) = &answer {
        _ = map.check();
    }
    answer.is_ok() || postcard::from_bytes::<Question>(bytes).is_ok()
}

fn log_entries() -> Vec<Entry> {
    let (group, ballot) = (GroupId(2), Ballot::new(6, 1));
    let mut entries = vec![
        Entry::Group { group, record: Record::Promise { ballot } },
        Entry::Created { group, replica: ReplicaId(1), birth: Bytes::from_static(b"birth") },
        Entry::Trimmed { group, upto: Instance(77) },
        Entry::Kept { segment: 4 },
    ];
    entries.extend(accepted().into_iter().map(|AcceptedBatch { instance, ballot, batch }| Entry::Group {
        group,
        record: Record::Accept { instance, ballot, decided_upto: Instance(9), batch },
    }));
    entries
}

fn log_records() -> Vec<Vec<u8>> {
    let bytes = |entry: &Entry| {
        let mut out = Gather::default();
        record::encode(entry, 5, false, 0, &mut out);
        out.finish().concat()
    };
    log_entries().iter().map(bytes).collect()
}

const NO_SEED: MarkSeed = MarkSeed { crc: 0, salt: 0 };

fn run_log_record(bytes: &[u8]) -> bool {
    _ = record::decode_mark(bytes, NO_SEED);
    let understood = matches!(record::decode(bytes, 0, NO_SEED), Ok(Some(_)));
    if bytes.len() < record::HEAD_BYTES {
        return understood;
    }
    // Again with a length and a checksum that fit.
    let mut whole = bytes.to_vec();
    whole[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&whole[..4]), &whole[8..]);
    whole[4..8].copy_from_slice(&crc.to_le_bytes());
    if let Ok(Some((length, _, record::Decoded::Entry { entry, .. }))) = record::decode(&whole, 0, NO_SEED) {
        assert_eq!(length, whole.len());
        if let Entry::Group { record: Record::Accept { batch: Batch::Commands(commands), .. }, .. } = entry {
            commands.parts().iter().for_each(|part| _ = run_batch_entries(part));
        }
    }
    understood
}

fn batch_entries() -> Vec<Vec<u8>> {
    let command = DirectoryCommand::Set { key: "window".into(), value: "7".into() };
    let limits = entry::limits(&SessionLimits::default());
    vec![
        pack_entry().to_vec(),
        entry::open(ClientId(7), 3).to_vec(),
        entry::directory(&command).to_vec(),
        limits.to_vec(),
    ]
}

/// As an executor walks them, on every replica alike.
fn run_batch_entries(bytes: &[u8]) -> bool {
    let mut understood = !bytes.is_empty();
    for entry in entry::entries(bytes) {
        understood &= !matches!(entry, entry::Entry::Unknown);
        if let entry::Entry::Pack(pack) = entry {
            assert!(pack.commands().count() <= bytes.len());
        }
    }
    understood
}

fn head() -> Head {
    Head {
        cluster: ClusterId(7),
        partition: PartitionId(3),
        instance: Instance(99),
        low: Bytes::from_static(b"a"),
        high: Some(Bytes::from_static(b"q")),
        map_version: MapVersion(4),
        last_ticket: Some(Ticket { ballot: Ballot::new(2, 1), n: 5 }),
    }
}

fn manifests() -> Vec<Vec<u8>> {
    vec![Manifest { head: head(), chunks: 3, bytes: 999, pairs: 7, ..Manifest::default() }.encode()]
}

fn run_manifest(bytes: &[u8]) -> bool {
    let understood = Manifest::decode(bytes).is_some();
    if let Some((rest, _)) = bytes.split_last_chunk::<4>() {
        let whole = [rest, &crc32c::crc32c(rest).to_le_bytes()].concat();
        if let Some(manifest) = Manifest::decode(&whole) {
            assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
        }
    }
    understood
}

fn blobs() -> Blobs {
    let configuration = Configuration::of_voters((1..4).map(ReplicaId));
    let shard = Shard::new(PartitionId(3), KeyRange::all(), MapVersion(4));
    let plain = "plain data";
    Blobs {
        sessions: postcard::to_stdvec(&shard.sessions().export()).expect(plain).into(),
        changes: postcard::to_stdvec(&(shard.sealed(), shard.session_limits())).expect(plain).into(),
        configuration: postcard::to_stdvec(&(configuration, Instance(4), Ballot::new(3, 1))).expect(plain).into(),
        directory: postcard::to_stdvec(&DirectoryState::default()).expect(plain).into(),
    }
}

fn snapshot_streams() -> Vec<Vec<u8>> {
    let pairs = (0..40).map(|number| (format!("b{number:02}").into_bytes(), vec![b'v'; number]));
    vec![Encoder::new(head(), &blobs(), pairs).flat_map(|chunk| chunk.bytes.to_vec()).collect()]
}

/// One chunk with a checksum that fits, then everything that a receiver does with it.
fn run_snapshot_stream(bytes: &[u8]) -> bool {
    let head = head();
    let mut decoder = Decoder::new(head.clone());
    let crc = chunk_crc(&head, 0, bytes);
    decoder.push(0, bytes, crc).expect("the checksum fits");
    let blobs = decoder.blobs();
    let mut pairs: Vec<(Key, Value)> = Vec::new();
    while let Ok(Some(pair)) = decoder.next_pair() {
        assert!(pairs.last().is_none_or(|last| last.0 < pair.0), "pairs ascend or are refused");
        pairs.push(pair);
    }
    let many = pairs.len() >= 40;
    let restored = match blobs {
        Ok(Some(blobs)) => snapshot::restore(&head, &blobs, pairs.into_iter()).is_ok(),
        _ => false,
    };
    _ = decoder.finish(&Manifest { head, ..Manifest::default() });
    many && restored
}

fn snapshot_states() -> Vec<Vec<u8>> {
    let blobs = blobs();
    vec![blobs.sessions.to_vec(), blobs.changes.to_vec(), blobs.configuration.to_vec(), blobs.directory.to_vec()]
}

/// The same bytes in the place of each blob; what comes of it must be usable.
fn run_snapshot_state(bytes: &[u8]) -> bool {
    let damaged = Bytes::copy_from_slice(bytes);
    let with = |change: fn(&mut Blobs, Bytes)| {
        let mut blobs = blobs();
        change(&mut blobs, damaged.clone());
        blobs
    };
    let all = [
        with(|blobs, bytes| blobs.sessions = bytes),
        with(|blobs, bytes| blobs.changes = bytes),
        with(|blobs, bytes| blobs.configuration = bytes),
        with(|blobs, bytes| blobs.directory = bytes),
    ];
    let mut understood = false;
    let partitions = [PartitionId(3), PartitionId(3), PartitionId(3), PartitionId::DIRECTORY];
    for (blobs, partition) in all.iter().zip(partitions) {
        let head = Head { partition, ..head() };
        if let Ok(loaded) = snapshot::restore(&head, blobs, std::iter::empty()) {
            understood = true;
            _ = loaded.machine.digest();
            if let Machine::Shard(shard) = &loaded.machine {
                _ = shard.sessions().export();
            }
        }
    }
    understood
}

/// A log with several starts and segments, and every state that its entries went through.
fn written_log() -> (SimDisk, Vec<Model>) {
    let (mut engine, _, mut identity) = open(new_disk(SMALL), NODE).expect("an empty log");
    let mut draw = Draw::new(11);
    let (mut model, mut entries) = (Model::new(), Vec::new());
    for write in 0..24 {
        let before = entries.len();
        for _ in 0..1 + draw.below(5) {
            let entry = model::draw_entry(&mut draw, &model);
            model::apply(&mut model, &entry);
            entries.push(entry);
        }
        assert!(commit(&mut engine, &entries[before..]) && keep(&mut engine));
        if write % 9 == 8 {
            let disk = engine.disk().clone();
            (engine, _, identity) = open(disk, identity).expect("it is whole");
        }
    }
    (engine.disk().clone(), model::states(&entries))
}

fn damage_disk(disk: &mut SimDisk, draw: &mut Draw) {
    let names: Vec<FileName> = disk.file_names();
    let other = disk.bytes(names[draw.below(names.len() as u64) as usize]).to_vec();
    let name = names[draw.below(names.len() as u64) as usize];
    match draw.below(8) {
        0 => disk.lose_file(name),
        1 => {
            // A sector in another's place.
            let sectors = |bytes: &[u8]| (bytes.len() / 512).max(1) as u64;
            let (from, to) =
                (draw.below(sectors(&other)) as usize * 512, draw.below(sectors(disk.bytes(name))) as usize);
            let sector: Vec<u8> = other.iter().skip(from).take(512).copied().collect();
            disk.damage(name, |bytes| {
                let until = (to * 512 + sector.len()).min(bytes.len());
                let start = (to * 512).min(until);
                bytes[start..until].copy_from_slice(&sector[..until - start]);
            });
        }
        _ => disk.damage(name, |bytes| damage(bytes, &other, &mut |bound| draw.below(bound))),
    }
}

/// reliability.md G8 in small: whatever is damaged, a start finds a state that was, or refuses; it makes nothing up.
#[test]
fn damaged_logs_are_read_as_a_state_that_was_or_refused() {
    let (whole, states) = written_log();
    let runs = number("COPPICE_FUZZ_RUNS", 600);
    let (mut refused, mut taken) = (0_u64, 0_u64);
    for case in 0..runs {
        let mut draw = Draw::new(number("COPPICE_FUZZ_SEED", 1).wrapping_mul(0x9_0001).wrapping_add(case));
        let mut disk = whole.clone();
        for _ in 0..1 + draw.below(3) {
            damage_disk(&mut disk, &mut draw);
        }
        match read(&disk, NODE) {
            Ok(replay) => {
                let found = model::of_replay(&replay);
                assert!(states.contains(&found), "case {case}: made up");
                taken += 1;
            }
            Err(LogError::Damage(_) | LogError::Older { .. } | LogError::Io(_)) => refused += 1,
        }
    }
    assert!(runs < 600 || (refused > 100 && taken > 20), "refused {refused}, taken {taken}");
}
