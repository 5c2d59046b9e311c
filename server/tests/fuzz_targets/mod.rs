//! Targets of what nodes say about queries, and of what clients read: see `fuzz.rs`.

pub mod damage;
mod whole_node;

use bytes::{Bytes, BytesMut};
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::reply::{PackReply, result_bytes};
use coppice_client::wire::{
    AdminReply, ClientId, ClusterId, CommandRefusal, Completed, Cut, CutPart, HelloOk, Kind, Limits, MapReply,
    MapVersion, NodeId, NodeIdentity, Part, PartitionId, Position, Refusal, ReplicaId, Replies, RepliesWriter, Status,
    Ticket,
};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{Ballot, ChangeId, QueryId};
use coppice_server::multicast::{Letter, Share, Word, letter};
use coppice_server::net::codec::Body;

use crate::decoded_frame;

pub fn shares() -> Vec<Vec<u8>> {
    let share = Share {
        client: ClientId(7),
        query: 3,
        replica: coppice_ordering::ReplicaId(2),
        low: Bytes::from_static(b"grape"),
        high: Some(Bytes::from_static(b"melon")),
        reverse: true,
        keys_only: false,
        count_only: true,
        pairs_max: 1 << 40,
        bytes_max: 0,
        credit: 65_536,
    };
    let open = Share { high: None, reverse: false, ..share.clone() };
    vec![share.encode().to_vec(), open.encode().to_vec()]
}

pub fn run_share(bytes: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(share) = Share::decode(&bytes) else { return false };
    assert_eq!(Share::decode(&share.encode()), Ok(share.clone()), "it is not the same when it is said again");
    assert_eq!(Share::drawn(&share.encode()), Some(share.replica));
    true
}

fn encoded(letters: &[Letter]) -> Vec<u8> {
    let mut body = Body::default();
    letters.iter().for_each(|word| letter::encode(&mut body, word));
    body.take_pieces().concat()
}

pub fn letters() -> Vec<Vec<u8>> {
    let ticket = |n| coppice_ordering::Ticket { ballot: Ballot::new(3, 1), n };
    let asked = shares().into_iter().map(|bytes| SubQuery { query: QueryId(9), bytes: bytes.into() });
    let change = Work::Change { id: ChangeId(5), payload: Bytes::from_static(b"a change") };
    let place = |work| Word::Place(Place { ticket: ticket(9), prev: Some(ticket(7)), deadline: None, work });
    let words = [
        place(Work::Queries(asked.collect())),
        place(change),
        Word::Place(Place { ticket: ticket(1), prev: None, deadline: None, work: Work::Nothing }),
        Word::Placed(ticket(8)),
        Word::Released(ticket(6)),
    ];
    let letters: Vec<Letter> = words.into_iter().map(|word| Letter::new(PartitionId(4), word)).collect();
    let each = letters.iter().map(|letter| encoded(std::slice::from_ref(letter)));
    each.chain([encoded(&letters)]).collect()
}

pub fn run_letters(bytes: &[u8]) -> bool {
    let Ok(letters) = letter::decode(&Bytes::copy_from_slice(bytes)) else { return false };
    assert_eq!(letter::decode(&encoded(&letters).into()), Ok(letters.clone()), "not the same when said again");
    for letter in &letters {
        if let Word::Place(Place { work: Work::Queries(queries), .. }) = &letter.word {
            assert!(queries.len() <= bytes.len(), "queries out of nothing");
            queries.iter().for_each(|sub| _ = run_share(&sub.bytes));
        }
    }
    !letters.is_empty()
}

/// What a node sends to a client; the first byte is the kind.
pub fn answers() -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let mut out = BytesMut::new();
    let mut keep = |out: &mut BytesMut| {
        let frame = decoded_frame(&out.split());
        answers.push([&[frame.kind], &frame.body[..]].concat());
    };
    let limits = Limits {
        frame_bytes: 4 << 20,
        key_bytes: 4_096,
        value_bytes: 1 << 20,
        inflight: 1_024,
        inflight_bytes: 16 << 20,
        idle_ms: 0,
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
    encode_control(&mut out, Kind::HelloOk, 1, &greeting);
    keep(&mut out);
    encode_control(&mut out, Kind::Map, 1, &MapReply::default());
    keep(&mut out);
    encode_control(&mut out, Kind::StatusReply, 1, &Status::default());
    keep(&mut out);
    let mut answer = BytesMut::new();
    let mut reply = PackReply::new(&mut answer, PartitionId(1), 9, 9);
    reply.value(Some(b"something"));
    reply.opened();
    reply.refused(CommandRefusal::Forgotten);
    reply.loaded(7);
    reply.validated(true);
    reply.repeated(Position { partition: PartitionId(1), instance: 4, index: 4 }, &[4]);
    reply.finish();
    let mut replies = RepliesWriter::new(&mut out);
    replies.answer(1, &answer).expect("well formed");
    replies.finish();
    keep(&mut out);
    let ticket = Ticket { round: 3, replica: ReplicaId(1), n: 57 };
    let part = |partition, low: &'static str, high: Option<&'static str>| CutPart {
        partition: PartitionId(partition),
        low: Bytes::from_static(low.as_bytes()),
        high: high.map(|high| Bytes::from_static(high.as_bytes())),
        node: NodeId(partition + 1),
    };
    let parts = vec![part(1, "b", Some("grape")), part(2, "grape", None)];
    Cut { ticket, version: MapVersion(8), deadline: None, parts }.encode(&mut out, 1).expect("it fits");
    keep(&mut out);
    Completed { ticket }.encode(&mut out, 1);
    keep(&mut out);
    Refusal::Denied { text: "no".into() }.encode(&mut out, 1);
    keep(&mut out);
    answers
}

/// As a client reads it.
pub fn run_answers(bytes: &[u8]) -> bool {
    let Some((&kind, body)) = bytes.split_first() else { return false };
    let whole = Bytes::copy_from_slice(body);
    let mut sections = 0;
    for section in Replies::new(body).flatten() {
        assert_eq!(section.results().count(), section.count as usize);
        sections += 1;
    }
    let part = Part::decode(body);
    if let Ok(part) = &part {
        assert_eq!(part.pairs().count(), part.len());
    }
    _ = result_bytes(body);
    let mut out = BytesMut::new();
    let mut replies = RepliesWriter::new(&mut out);
    _ = replies.answer(1, body);
    replies.finish();
    match Kind::from_u8(kind) {
        Some(Kind::HelloOk) => decode_control::<HelloOk>(body, "hello").is_ok(),
        Some(Kind::Map) => match decode_control::<MapReply>(body, "map") {
            Ok(reply) => {
                _ = reply.map.map(|map| map.check());
                true
            }
            Err(_) => false,
        },
        Some(Kind::StatusReply) => decode_control::<Status>(body, "status").is_ok(),
        Some(Kind::AdminReply) => decode_control::<AdminReply>(body, "admin").is_ok(),
        Some(Kind::Cut) => match Cut::decode(&whole) {
            Ok(cut) => {
                // What was accepted adjoins, ascends, and is written as it was read.
                assert!(cut.parts.windows(2).all(|pair| pair[0].high.as_ref() == Some(&pair[1].low)));
                let mut out = BytesMut::new();
                cut.encode(&mut out, 1).expect("it came in a frame");
                assert_eq!(Cut::decode(&decoded_frame(&out).body), Ok(cut));
                true
            }
            Err(_) => false,
        },
        Some(Kind::Completed) => Completed::decode(body).is_ok(),
        Some(Kind::Refused) => Refusal::decode(body).is_ok(),
        Some(Kind::Part) => part.is_ok(),
        _ => sections > 0,
    }
}
