//! What one request may cost a node: answers, keys, streams, messages between nodes.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::Scratch;
use common::cluster::{connect, formed};
use common::raw::Raw;
use coppice_btree::{KeyRange, Op};
use coppice_client::Config;
use coppice_client::blocking::Client;
use coppice_client::wire::reply::REPLY_BYTES_MAX;
use coppice_client::wire::{
    ClientId, FrameDecoder, Kind, MapVersion, PackWriter, PartitionId, ReadRequest, Refusal, SessionId,
    VALUE_BYTES_MAX, encode_frame, frame,
};
use coppice_core::machine::Outcome;
use coppice_core::machine::entry;
use coppice_core::machine::partition::{BATCH_ANSWER_BYTES_MAX, Partition};
use coppice_core::multicast::{MulticastBody, MulticastMessage, message};
use coppice_core::wire::codec::Body;
use coppice_core::wire::peer::{self, BATCH_BYTES_MAX, Envelope};
use coppice_core::wire::peer_frame;
use coppice_ordering::message::{AcceptedBatch, Message, Phase1b, Phase2a, Preempted};
use coppice_ordering::{Ballot, Batch, Commands, Configuration, Instance, ReplicaId, Ticket, WINDOW_BYTES_MAX};
use coppice_server::local::LocalOptions;
use coppice_server::log::record::RECORD_BYTES_MAX;
use coppice_server::net::outbox::Outbox;
use tokio::task::JoinSet;

/// An answer is full when it has [`REPLY_BYTES_MAX`], and then may have got one value more.
const ANSWER_BYTES_MAX: usize = REPLY_BYTES_MAX + VALUE_BYTES_MAX + 1024;

fn pack(session: SessionId, first: u64, ops: &[Op<'_>]) -> Bytes {
    let mut pack = PackWriter::new(Vec::new(), session, first, false, 2 << 20);
    for (number, op) in (first..).zip(ops) {
        pack.push(number, *op).expect("it fits");
    }
    pack.finish(PartitionId(1), 1).expect("a pack").slice(frame::HEADER_BYTES + 1..)
}

/// A pack of 2 KiB that deletes large values was once answered by 200 MiB, at every replica, and again at each start.
#[test]
fn an_answer_to_a_pack_is_bounded_and_what_is_refused_did_not_happen() {
    let mut partition = Partition::new(PartitionId(1), KeyRange::all(), MapVersion(1));
    let mut instance = Instance(0);
    let mut run = |partition: &mut Partition, entry: Bytes| {
        instance = instance.next();
        let mut answers = Vec::new();
        let mark = partition.execute(instance, &Batch::Commands(Commands::new(1, entry)), &mut answers);
        partition.confirm(&mark, None);
        answers.remove(0).outcome
    };
    let Outcome::Opened(session) = run(&mut partition, entry::open(ClientId(9), 1)) else { panic!("opened") };
    let value = vec![1; VALUE_BYTES_MAX];
    let keys: Vec<[u8; 8]> = (0..20_u64).map(|n| n.to_be_bytes()).collect();
    for (key, number) in keys.iter().zip(1..) {
        run(&mut partition, pack(session, number, &[Op::Put { key, value: &value }]));
    }
    let deletes: Vec<Op<'_>> = keys.iter().map(|key| Op::Delete { key }).collect();
    let Outcome::Pack(answer) = run(&mut partition, pack(session, 100, &deletes)) else { panic!("a pack") };
    assert!(answer.len() <= ANSWER_BYTES_MAX, "{}", answer.len());
    let left = |partition: &Partition| {
        let keys = keys.iter().map(|key| key.as_slice());
        keys.filter(|key| {
            partition.get_all([*key].into_iter(), usize::MAX).is_some_and(|read| read.values[0].is_some())
        })
        .count()
    };
    let gone = BATCH_ANSWER_BYTES_MAX / VALUE_BYTES_MAX + 1;
    assert_eq!(left(&partition), keys.len() - gone);
    // Sent again, under the same numbers.
    let rest = &deletes[gone..];
    let Outcome::Pack(_) = run(&mut partition, pack(session, 100 + gone as u64, rest)) else { panic!("a pack") };
    assert_eq!(left(&partition), keys.len() - 2 * gone);
}

/// The client library packs calls that are made at once: each is answered, though one answer cannot hold all.
#[test]
fn calls_whose_answers_fit_no_frame_together_are_answered_one_by_one() {
    const CALLS: u64 = 12;
    let scratch = Scratch::new("large-answers");
    let cluster = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) });
    let client = connect(&cluster);
    let value = vec![7; VALUE_BYTES_MAX];
    for n in 0..CALLS {
        client.put(n.to_be_bytes(), &value[..]).expect("it serves");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let endpoints: Vec<String> = cluster.endpoints().iter().map(ToString::to_string).collect();
        let client = Arc::new(coppice_client::Client::connect(endpoints).await.expect("it serves"));
        for deletes in [false, true] {
            let mut calls = JoinSet::new();
            for n in 0..CALLS {
                let (client, key) = (Arc::clone(&client), n.to_be_bytes());
                calls.spawn(async move { if deletes { client.delete(key).await } else { client.get(key).await } });
            }
            while let Some(answer) = calls.join_next().await {
                let answer = answer.expect("it ends").expect("it is answered");
                assert_eq!(answer.output.as_deref(), Some(&value[..]));
            }
        }
    });
}

/// All that an acceptor may hold undecided reaches a candidate in one message.
#[test]
fn a_full_window_is_told_to_a_candidate() {
    let batch = Batch::Commands(Commands::new(1, Bytes::from(vec![7; 1 << 20])));
    let all = (2 * WINDOW_BYTES_MAX + WINDOW_BYTES_MAX / 4) as u64 >> 20;
    let told = |n| AcceptedBatch { instance: Instance(n), ballot: Ballot::new(1, 1), batch: batch.clone() };
    let message = Phase1b {
        ballot: Ballot::new(2, 2),
        from: Instance(1),
        accepted: (1..=all).map(told).collect(),
        decided_upto: Instance(0),
        trimmed_upto: Instance(0),
    };
    let envelope = Envelope { group: 1, to: ReplicaId(2), from: ReplicaId(3), message: message.into() };
    let (mut body, mut outbox) = (Body::default(), Outbox::default());
    peer::encode(&mut body, &envelope);
    outbox.push_frame(peer_frame::MESSAGES, &mut body);
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    outbox.take().iter().for_each(|piece| decoder.feed(piece));
    assert_eq!(decoder.next_frame().map(|frame| frame.is_some()), Ok(true));
}

/// 4 KB of reads of a large value, whose answers nobody read, held 1 GiB, and readers that had stopped held what they
/// had for ever.
#[test]
fn answers_that_nobody_reads_hold_no_more_than_a_node_may() {
    const NODE_BYTES: u64 = 64 << 20;
    let scratch = Scratch::new("unread-answers");
    let mut options = LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) };
    options.node.limits.node_bytes = NODE_BYTES;
    options.node.limits.stalled_reader = Duration::from_secs(2);
    let cluster = formed(&options);
    let client = connect(&cluster);
    client.put(b"large", vec![7; VALUE_BYTES_MAX]).expect("it serves");
    client.put(b"small", b"value").expect("it serves");
    let depth = |queue: &str| {
        let text = cluster.node(0).expect("it runs").metrics();
        let name = format!("coppice_queue_depth{{queue=\"{queue}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).expect("a gauge");
        line.parse::<f64>().expect("a number") as u64
    };
    let hogs: Vec<Raw> = (0..16)
        .map(|n| {
            let mut raw = Raw::connect(cluster.endpoints()[0], ClientId(100 + n));
            let mut reads = BytesMut::new();
            for stream in 10..110 {
                let keys = [&b"large"[..]; 4];
                ReadRequest::encode(&mut reads, stream, PartitionId(1), (false, false), keys.into_iter());
            }
            raw.send(&reads);
            raw
        })
        .collect();
    let mut held = 0;
    for _ in 0..100 {
        assert_eq!(client.get(b"small").expect("others are served").output.as_deref(), Some(&b"value"[..]));
        held = held.max(depth("node_bytes"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(held > 8 << 20, "{held} bytes are held: the readers do not fill anything");
    assert!(held < NODE_BYTES + (8 << 20), "{held} bytes are held");
    common::wait_for("readers that have stopped are disconnected", common::patience(), || {
        (depth("connections") <= 1 && depth("node_bytes") < 1 << 20).then_some(())
    });
    drop(hogs);
}

fn proposal(batch: Batch) -> Bytes {
    let ballot = Ballot::new(2, 3);
    let message = Phase2a { ballot, instance: Instance(7), batch, decided_upto: Instance(0), released: None };
    let envelope = Envelope { group: 1, to: ReplicaId(2), from: ReplicaId(3), message: message.into() };
    let mut body = Body::default();
    peer::encode(&mut body, &envelope);
    body.take_pieces().concat().into()
}

/// A batch of 20 MiB once ended the process of each node that it was sent to: the log takes no record of that size.
#[test]
fn a_batch_that_no_leader_may_propose_is_refused() {
    let batch = |bytes| Batch::Commands(Commands::new(1, vec![7; bytes].into()));
    assert!(peer::decode(proposal(batch(BATCH_BYTES_MAX))).is_ok());
    assert!(peer::decode(proposal(batch(BATCH_BYTES_MAX + 1))).is_err());
    let many = Configuration::of_voters((0..2_000_000).map(ReplicaId));
    assert!(peer::decode(proposal(Batch::Configuration(many))).is_err());
    const { assert!(BATCH_BYTES_MAX + (1 << 20) < RECORD_BYTES_MAX) };
}

#[cfg(feature = "mutants")]
#[test]
fn a_batch_of_any_size_is_caught() {
    common::assert_caught("peer_batch_unbounded", "a_batch_that_no_leader_may_propose_is_refused");
}

/// A frame of 48 MiB held twelve million empty batches, or eight million short messages: gigabytes once they were read.
#[test]
fn counts_of_a_peer_make_no_room_beyond_what_is_ever_sent() {
    let ballot = Ballot::new(2, 3);
    let frame = |messages: Vec<Message>| -> Bytes {
        let mut body = Body::default();
        for message in messages {
            peer::encode(&mut body, &Envelope { group: 1, to: ReplicaId(2), from: ReplicaId(3), message });
        }
        body.take_pieces().concat().into()
    };
    let promise = |count: u64| {
        let vote = |n| AcceptedBatch { instance: Instance(n), ballot, batch: Batch::NoOp };
        let accepted = (1..=count).map(vote).collect();
        let (from, decided_upto, trimmed_upto) = (Instance(1), Instance(0), Instance(0));
        Message::from(Phase1b { ballot, from, accepted, decided_upto, trimmed_upto })
    };
    assert!(peer::decode(frame(vec![promise(2 << 16)])).is_ok(), "all that two halves of an acceptor may hold");
    assert!(peer::decode(frame(vec![promise((2 << 16) + 1)])).is_err());
    let short = || Message::from(Preempted { ballot });
    assert!(peer::decode(frame((0..4_096).map(|_| short()).collect())).is_ok());
    assert!(peer::decode(frame((0..4_097).map(|_| short()).collect())).is_err());
    let multicast = |count| -> Bytes {
        let mut body = Body::default();
        let message = MulticastMessage::new(PartitionId(1), MulticastBody::Released(Ticket::default()));
        (0..count).for_each(|_| message::encode(&mut body, &message));
        body.take_pieces().concat().into()
    };
    assert!(message::decode(&multicast(4_096)).is_ok() && message::decode(&multicast(4_097)).is_err());
}

#[cfg(feature = "mutants")]
#[test]
fn counts_of_a_peer_without_bounds_are_caught() {
    common::assert_caught("peer_counts_unbounded", "counts_of_a_peer_make_no_room_beyond_what_is_ever_sent");
}

/// Two requests on one stream end the connection, and cost the node nothing for ever.
#[test]
fn a_stream_used_twice_takes_no_room_from_others() {
    const NODE_BYTES: usize = 4 << 20;
    let scratch = Scratch::new("streams-twice");
    let mut options = LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) };
    options.node.limits.node_bytes = NODE_BYTES as u64;
    let cluster = formed(&options);
    connect(&cluster).put(b"k", b"v").expect("it serves");
    let value = vec![1; NODE_BYTES / 8];
    for n in 0..16 {
        let mut raw = Raw::connect(cluster.endpoints()[0], ClientId(100 + n));
        let mut pack = PackWriter::new(Vec::new(), SessionId::default(), 1, false, 2 << 20);
        pack.push(1, Op::Put { key: b"k", value: &value }).expect("it fits");
        let out = pack.finish(PartitionId(1), 5).expect("a pack");
        // Both are in one turn: the first is not answered when the second comes.
        let mut both = BytesMut::from(&out[..]);
        both.extend_from_slice(&out);
        raw.send(&both);
        assert_eq!(raw.frame().kind, Kind::Refused as u8);
    }
    let config = Config { timeout: Duration::from_secs(60), ..Config::default() };
    let client = Client::connect_with([cluster.endpoints()[0].to_string()], config).expect("it serves");
    client.put(b"k", &value[..]).expect("there is room");
}

/// Connections that had not greeted each held a frame of up to 4 MiB, beside which clients found no room.
#[test]
fn who_has_not_greeted_sends_no_large_frame() {
    let scratch = Scratch::new("large-hello");
    let cluster = formed(&LocalOptions { nodes: 1, ..LocalOptions::new(&scratch.0) });
    let mut stream = TcpStream::connect(cluster.endpoints()[0]).expect("it listens");
    let mut out = BytesMut::new();
    encode_frame(&mut out, Kind::Ping, 1, &vec![0; 64 << 10]);
    // Its header tells the length: the rest is not waited for.
    stream.write_all(&out[..frame::HEADER_BYTES]).expect("it takes the header");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers, and closes");
    let mut decoder = FrameDecoder::default();
    decoder.feed(&answer);
    let frame = decoder.next_frame().expect("a frame").expect("whole");
    let text = format!("{:?}", Refusal::decode(&frame.body));
    assert!(frame.kind == Kind::Refused as u8 && text.contains("65552"), "{text}");
}

#[cfg(feature = "mutants")]
#[test]
fn large_frames_of_strangers_are_caught() {
    common::assert_caught("strangers_send_large_frames", "who_has_not_greeted_sends_no_large_frame");
}

#[cfg(feature = "mutants")]
#[test]
fn an_answer_without_bounds_is_caught() {
    let test = "an_answer_to_a_pack_is_bounded_and_what_is_refused_did_not_happen";
    common::assert_caught("answer_unbounded", test);
}
