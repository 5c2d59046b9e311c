//! What nodes say to each other.

use bytes::Bytes;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ChangeId as WireChangeId, ClusterId, Frame, FrameDecoder, Grant, MapReply,
    MapVersion, NodeId, PartitionId, Refusal, ReplicaId as WireReplicaId, ReshapeRequest, Role as UserRole,
    ScanOptions, Shape as Reshaping, Ticket as WireTicket, UserChange,
};
use coppice_core::access::Users;
use coppice_core::connection::decode_peer;
use coppice_core::handshake::{self, PEER_PROTOCOL, PeerHello, PeerWelcome, Presence, Purpose};
use coppice_core::incarnation::claim::IncarnationClaim;
use coppice_core::machine::directory::{DirectoryCommand, DirectoryReply, Reshape};
use coppice_core::machine::entry;
use coppice_core::machine::partition::{BoundaryChange, BoundaryStep};
use coppice_core::multicast::{MulticastBody, MulticastMessage, PartitionQuery, message};
use coppice_core::question::{Answer, Asker, Assignment, Identified, Question};
use coppice_core::status::{LocalReplica, LocalStatus};
use coppice_core::wire::codec::Body;
use coppice_core::wire::peer::{self, Envelope};
use coppice_core::wire::peer_frame;
use coppice_ordering::message::{
    AcceptedBatch, CatchUp, CatchUpReply, Heartbeat, HeartbeatAck, Message, Phase1a, Phase1b, Phase2a, Phase2b,
    PreVote, PreVoteReply, Preempted, ReadPosition, ReadPositionReply, TransferLeader,
};
use coppice_ordering::multicast::{Place, SubQuery, Work};
use coppice_ordering::{
    Ballot, Batch, ChangeId, Commands, Configuration, HeartbeatRound, Instance, QueryId, ReplicaId, Ticket,
};
use serde::{Deserialize, Serialize};

use super::clients::{ENTRIES, pack_entry};
use super::plain::plain;
use super::shape::{Form, Prefix, Shape, parse};

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// A number in front of an image: what it is an image of.
pub fn tagged(tag: u8, image: &Shape) -> Shape {
    let mut shape = Shape::default();
    let group = shape.open(Prefix::Nothing);
    shape.number(u128::from(tag), Form::Fixed(1));
    shape.append(image);
    shape.close(group);
    shape
}

/// What was understood says the same when it is said again.
pub fn stable<T: Serialize + for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let (data, _) = postcard::take_from_bytes::<T>(bytes).ok()?;
    let said = postcard::to_stdvec(&data).expect("plain data");
    let again: T = postcard::from_bytes(&said).expect("our own bytes");
    assert_eq!(said, postcard::to_stdvec(&again).expect("plain data"), "it is not the same when it is said again");
    Some(data)
}

// -- frames ----------------------------------------------------------------------------------------------------------

pub fn frames() -> Vec<Shape> {
    let frame = |kind, body: &[u8]| parse("4 4 b b 2 4 .", &peer_frame::frame(kind, body));
    let messages = peer_messages().into_iter().map(|body| frame(peer_frame::MESSAGES, &body.whole()));
    let multicast = multicast().into_iter().map(|body| frame(peer_frame::MULTICAST, &body.whole()));
    let durable = frame(peer_frame::DURABLE, &7_u64.to_le_bytes());
    messages.chain(multicast).chain([durable, frame(peer_frame::ECHO, &[]), frame(peer_frame::FULL, &[1])]).collect()
}

pub fn run_frames(bytes: &[u8]) -> bool {
    let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
    let mut understood = false;
    for chunk in bytes.chunks(61) {
        decoder.feed(chunk);
        while let Ok(Some(frame)) = decoder.next_frame() {
            assert!(frame.body.len() <= bytes.len());
            understood = true;
            _ = decode_peer(NodeId(2), frame);
        }
        let room = decoder.space().capacity();
        assert!(room <= 4 * bytes.len() + 16_384, "{room} bytes of room for {}", bytes.len());
    }
    // Again with a length and a checksum that fit.
    if let Some((header, body)) = bytes.split_at_checked(16)
        && !understood
    {
        let framed = peer_frame::frame(header[8], body);
        let mut decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
        decoder.feed(&framed);
        let frame = decoder.next_frame().expect("it fits").expect("it is whole");
        assert_eq!((frame.kind, &frame.body[..]), (header[8], body));
    }
    understood
}

// -- messages --------------------------------------------------------------------------------------------------------

pub fn batches() -> Vec<Batch> {
    let mut parts = vec![pack_entry(), entry::open(coppice_client::wire::ClientId(7), 3)];
    let configuration = Configuration {
        learners: [ReplicaId(4)].into(),
        leaving: [ReplicaId(5)].into(),
        ..Configuration::of_voters((1..4).map(ReplicaId))
    };
    vec![
        Batch::NoOp,
        Batch::Commands(Commands::from_parts(4, &mut parts)),
        Batch::Configuration(Configuration::of_voters((1..4).map(ReplicaId))),
        Batch::Configuration(configuration),
    ]
}

pub fn accepted() -> Vec<AcceptedBatch> {
    let of =
        |(at, batch): (u64, Batch)| AcceptedBatch { instance: Instance(10 + at), ballot: Ballot::new(3, 1), batch };
    (0..).zip(batches()).map(of).collect()
}

/// One message of each kind and more, of a group that is at `ballot` and has decided up to `decided`.
pub fn messages(ballot: Ballot, decided: Instance) -> Vec<Message> {
    let ticket = Some(Ticket { ballot, n: 9 });
    let next = |more: u64| Instance(decided.0 + more);
    let accepted = || accepted().into_iter().zip(1..).map(|(vote, at)| AcceptedBatch { instance: next(at), ..vote });
    let before = Instance(decided.0.saturating_sub(3));
    let mut messages: Vec<Message> = vec![
        PreVote { attempt: 3, decided_upto: decided }.into(),
        PreVoteReply { attempt: 3, granted: true, promised: ballot, decided_upto: decided }.into(),
        Phase1a { ballot, from: next(1), transfer: Some(ballot) }.into(),
        Phase1a { ballot, from: next(1), transfer: None }.into(),
        Phase1b { ballot, from: next(1), accepted: accepted().collect(), decided_upto: decided, trimmed_upto: before }
            .into(),
        Phase2b { ballot, first: next(1), instance: next(2) }.into(),
        Preempted { ballot }.into(),
        CatchUp { from: before, bytes_max: 1 << 20 }.into(),
        CatchUpReply {
            decided: accepted().collect(),
            decided_upto: next(4),
            trimmed_upto: before,
            held_upto: before,
            promised: ballot,
        }
        .into(),
        Heartbeat {
            ballot,
            round: HeartbeatRound(8),
            decided_upto: decided,
            held_upto: before,
            released: ticket,
            lease: SECOND / 5,
            quiesce: SECOND,
        }
        .into(),
        HeartbeatAck { ballot, round: HeartbeatRound(8), durable_upto: decided, lease: SECOND / 5, released: ticket }
            .into(),
        ReadPosition { incarnation: 1, ask: 7, ballot }.into(),
        ReadPositionReply { incarnation: 1, ask: 7, position: decided, ballot }.into(),
        TransferLeader { ballot }.into(),
    ];
    messages.extend(
        batches()
            .into_iter()
            .map(|batch| Phase2a { ballot, instance: next(1), batch, decided_upto: decided, released: ticket }.into()),
    );
    messages
}

pub fn encoded(envelopes: &[Envelope]) -> Vec<u8> {
    let mut body = Body::default();
    envelopes.iter().for_each(|envelope| peer::encode(&mut body, envelope));
    body.take_pieces().concat()
}

/// The fields of messages, the fields of batches in them.
pub fn messages_shape(envelopes: &[Envelope]) -> Shape {
    let batch = format!("?<0:|1:v l({ENTRIES})|2:c(v)c(v)c(v)>");
    let accepted = format!("c(vvv {batch})");
    let kinds = format!(
        "1:vv|2:vbvvv|3:vvvo(vv)|4:vvv{accepted}vv|5:vvv{batch}vo(vvv)|6:vvvv|7:vv|8:vvvvvo(vvv)vv|9:vvvvvo(vvv)|10:vv|\
         11:{accepted}vvvvv|12:vvvv|13:vvvvv|14:vv"
    );
    parse(&format!("*(vvv?<{kinds}>)"), &encoded(envelopes))
}

pub fn peer_messages() -> Vec<Shape> {
    let envelope = |message| Envelope { group: 4, to: ReplicaId(1), from: ReplicaId(2), message };
    let envelopes: Vec<Envelope> = messages(Ballot::new(5, 2), Instance(9)).into_iter().map(envelope).collect();
    let each = envelopes.iter().map(|envelope| messages_shape(std::slice::from_ref(envelope)));
    each.chain([messages_shape(&envelopes)]).collect()
}

pub fn run_peer_messages(bytes: &[u8]) -> bool {
    let Ok(envelopes) = peer::decode(Bytes::copy_from_slice(bytes)) else { return false };
    // What was understood says the same when it is said again.
    let again = peer::decode(encoded(&envelopes).into()).expect("our own bytes");
    assert_eq!(envelopes, again);
    !envelopes.is_empty()
}

// -- the multicast ---------------------------------------------------------------------------------------------------

/// With the flag of a high bound, and without.
const SHARE: &str = "?<9:8vvllvvv|13:8vvllvvv|8:8vvllvvv|_:8vvlvvv>";

pub fn share(low: &'static str, high: Option<&'static str>) -> PartitionQuery {
    PartitionQuery {
        client: coppice_client::wire::ClientId(7),
        query: 3,
        replica: ReplicaId(2),
        low: Bytes::from_static(low.as_bytes()),
        high: high.map(|high| Bytes::from_static(high.as_bytes())),
        scan: ScanOptions { reverse: true, count_only: true, pairs_max: 1 << 40, ..ScanOptions::default() },
        credit: 65_536,
    }
}

pub fn shares() -> Vec<Shape> {
    let bounded = share("grape", Some("melon"));
    let open = PartitionQuery { high: None, scan: ScanOptions { reverse: false, ..bounded.scan }, ..bounded.clone() };
    [bounded, open].iter().map(|share| parse(SHARE, &share.encode())).collect()
}

pub fn run_share(bytes: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(share) = PartitionQuery::decode(&bytes) else { return false };
    assert_eq!(PartitionQuery::decode(&share.encode()), Ok(share.clone()), "it is not the same when it is said again");
    assert_eq!(PartitionQuery::responder_of(&share.encode()), Some(share.replica));
    true
}

/// Changes of boundaries, as the directory orders them.
pub fn boundary_changes() -> Vec<BoundaryChange> {
    let replica = |n| ReplicaInfo { replica: WireReplicaId(n), node: NodeId(n), role: Role::Voter };
    let (parent, partition) = (PartitionId(3), PartitionId(3));
    let split = BoundaryStep::Split {
        parent,
        child: PartitionId(9),
        at: Bytes::from_static(b"grape"),
        replicas: vec![replica(1), replica(2)],
    };
    let seal = BoundaryStep::Seal { partition, target: PartitionId(4) };
    let join = BoundaryStep::Join { partition: PartitionId(4), target: PartitionId(3) };
    (9..).zip([split, seal, join]).map(|(n, step)| BoundaryChange { version: MapVersion(n), step }).collect()
}

/// What stands behind the tag of a `Place`, in a multicast message as in a log.
pub const PLACE: &str = "vvvo(vvv)?<0:|1:c(v l)|2:vl>";

/// Every work that a ticket may bring, as multicast messages of `partition` whose ticket is that of `ballot`.
pub fn words(ballot: Ballot) -> Vec<MulticastBody> {
    let ticket = |n| Ticket { ballot, n };
    let asked = shares().into_iter().map(|share| SubQuery { query: QueryId(9), bytes: share.whole().into() });
    let place = |n, work| MulticastBody::Place(Place { ticket: ticket(n), prev: Some(ticket(n - 1)), work });
    let changes = boundary_changes().into_iter().map(|change| {
        let payload = Bytes::from(postcard::to_stdvec(&change).expect("plain data"));
        MulticastBody::Place(Place {
            ticket: ticket(2),
            prev: None,
            work: Work::Change { id: ChangeId(change.version.0), payload },
        })
    });
    let words = [
        place(9, Work::Queries(asked.collect())),
        MulticastBody::Place(Place { ticket: ticket(1), prev: None, work: Work::Nothing }),
        MulticastBody::Placed(ticket(8)),
        MulticastBody::Released(ticket(6)),
    ];
    words.into_iter().chain(changes).collect()
}

pub fn encoded_multicast(multicast: &[MulticastMessage]) -> Vec<u8> {
    let mut body = Body::default();
    multicast.iter().for_each(|word| message::encode(&mut body, word));
    body.take_pieces().concat()
}

/// The fields of multicast messages, those of queries and changes in them.
pub fn multicast_shape(multicast: &[MulticastMessage]) -> Shape {
    let grammar = format!("*(v?<1:{PLACE}|2:vvv|3:vvv|129:{PLACE}|130:vvv|131:vvv>)");
    with_works(parse(&grammar, &encoded_multicast(multicast)))
}

/// The queries and changes of an image by their fields.
pub fn with_works(shape: Shape) -> Shape {
    let shape = boundary_changes().iter().fold(shape, |shape, change| {
        let fields = plain(change);
        shape.graft(&fields.whole(), &fields)
    });
    shares().iter().fold(shape, |shape, share| shape.graft(&share.whole(), share))
}

pub fn multicast() -> Vec<Shape> {
    let multicast: Vec<MulticastMessage> =
        words(Ballot::new(3, 1)).into_iter().map(|word| MulticastMessage::new(PartitionId(4), word)).collect();
    let each = multicast.iter().map(|message| multicast_shape(std::slice::from_ref(message)));
    each.chain([multicast_shape(&multicast)]).collect()
}

pub fn run_multicast(bytes: &[u8]) -> bool {
    let Ok(multicast) = message::decode(&Bytes::copy_from_slice(bytes)) else { return false };
    assert_eq!(
        message::decode(&encoded_multicast(&multicast).into()),
        Ok(multicast.clone()),
        "not the same when said again"
    );
    for message in &multicast {
        match &message.body {
            MulticastBody::Place(Place { work: Work::Queries(queries), .. }) => {
                assert!(queries.len() <= bytes.len(), "queries out of nothing");
                queries.iter().for_each(|sub| _ = run_share(&sub.bytes));
            }
            MulticastBody::Place(Place { work: Work::Change { payload, .. }, .. }) => {
                if let Some(change) = stable::<BoundaryChange>(payload) {
                    _ = (change.partitions(), change.first(), change.touched());
                }
            }
            _ => {}
        }
        let map = map(ClusterId(7));
        _ = (message.may_come_from(NodeId(1), &map), message.receiver());
    }
    !multicast.is_empty()
}

// -- greetings -------------------------------------------------------------------------------------------------------

/// The first byte: whose, and which.
pub fn greetings() -> Vec<Shape> {
    let from =
        Some(Presence { cluster: ClusterId(7), node: NodeId(2), claim: IncarnationClaim::new(3, 1 << 60, &[7], 9) });
    let purposes = [Purpose::Messages, Purpose::Question, Purpose::Snapshot, Purpose::Forming];
    let hello = |purpose| PeerHello { protocol: PEER_PROTOCOL, purpose, from, to: Some(NodeId(1)) };
    let hellos = purposes.map(|purpose| tagged(0, &plain(&hello(purpose))));
    let mut none = Shape::default();
    none.bytes(b"it is a copy");
    let welcome = PeerWelcome { protocol: PEER_PROTOCOL, from };
    let refusal = handshake::refusal("no");
    let others = [tagged(1, &plain(&welcome)), tagged(2, &none), tagged(3, &parse("b l", &refusal[16..]))];
    hellos.into_iter().chain(others).collect()
}

/// As both ends read and judge them.
pub fn run_greetings(bytes: &[u8]) -> bool {
    let Some((&whose, body)) = bytes.split_first() else { return false };
    let whole = Bytes::copy_from_slice(body);
    let frame = |kind| Frame { kind, flags: 0, stream: 0, body: whole.clone() };
    let own = Presence { cluster: ClusterId(7), node: NodeId(1), ..Presence::default() };
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Question, from: Some(own), to: None };
    let judged = |kind| handshake::judge_answer(&hello, &frame(kind), &FrameDecoder::new(0), |_| Ok(()));
    match whose {
        0 => handshake::read_hello(&frame(peer_frame::HELLO)).is_ok_and(|hello| {
            assert_eq!(stable::<PeerHello>(body), Some(hello.clone()));
            let map = map(ClusterId(7));
            let frame = frame(peer_frame::HELLO);
            _ = handshake::accept(&frame, None, None, &PartitionMap::default(), |_| Ok(()));
            _ = handshake::accept(&frame, None, Some(own), &map, |_| Ok(()));
            if let Some(from) = &hello.from {
                let mut known = coppice_core::incarnation::claim::KnownIncarnation::default();
                known.raise_durable(1 << 40);
                _ = known.judge(&from.claim);
            }
            true
        }),
        1 => judged(peer_frame::WELCOME).is_ok(),
        2 => judged(peer_frame::COPY).is_err(),
        _ => {
            _ = judged(coppice_client::wire::Kind::Refused as u8);
            Refusal::decode(body).is_ok()
        }
    }
}

// -- questions and answers -------------------------------------------------------------------------------------------

/// Four nodes, of which the first three hold everything.
pub fn map(cluster: ClusterId) -> PartitionMap {
    let node = |n: u32| NodeInfo {
        id: NodeId(n),
        name: format!("n{n}"),
        addresses: Addresses { native: format!("h{n}:7400"), peer: format!("h{n}:7401"), ..Addresses::default() },
        state: if n == 4 { NodeState::Joining } else { NodeState::Member },
    };
    let replica = |n| ReplicaInfo { replica: WireReplicaId(n), node: NodeId(n), role: Role::Voter };
    let entry = |partition, low: &'static [u8], high: Option<&'static [u8]>| Entry {
        partition: PartitionId(partition),
        low: Bytes::from_static(low),
        high: high.map(Bytes::from_static),
        version: MapVersion(3),
        replicas: (1..4).map(replica).collect(),
    };
    PartitionMap {
        cluster,
        version: MapVersion(8),
        nodes: (1..5).map(node).collect(),
        directory: Some(entry(0, b"", None)),
        partitions: vec![entry(1, b"", Some(b"grape")), entry(2, b"grape", Some(b"melon")), entry(3, b"melon", None)],
        ending: vec![Entry { partition: PartitionId(5), ..entry(5, b"", None) }],
    }
}

pub fn users() -> Users {
    let mut users = Users::default();
    for change in user_changes() {
        _ = users.apply(Some("root"), &change, 0);
    }
    assert!(!users.is_empty());
    users
}

pub fn user_changes() -> Vec<UserChange> {
    let token = coppice_client::Token::generate().expect("random bits").hash();
    let grant = |role, prefix: &'static str| Grant { role, prefix: Bytes::from_static(prefix.as_bytes()) };
    let name = || "shop".to_owned();
    let (all, some) = (grant(UserRole::Admin, ""), grant(UserRole::Write, "shop/"));
    vec![
        UserChange::Add { name: "root".into(), grant: all, token: Some(token), certificate: None },
        UserChange::Add { name: name(), grant: some.clone(), token: None, certificate: Some("shop".into()) },
        UserChange::Grant { name: name(), grant: some.clone() },
        UserChange::Revoke { name: name(), grant: some },
        UserChange::Token { name: name(), token, keep: true },
        UserChange::Remove { name: name() },
    ]
}

pub fn settings() -> std::collections::BTreeMap<String, String> {
    [("window".to_owned(), "7".to_owned()), ("batch_bytes_max".to_owned(), "64KiB".to_owned())].into()
}

/// Every change of the cluster's shape that an operator may ask for.
pub fn reshapings() -> Vec<Reshaping> {
    let (node, address) = (NodeId(2), || "h9:7401".to_owned());
    vec![
        Reshaping::AddNode { address: address() },
        Reshaping::DrainNode { node },
        Reshaping::UndrainNode { node },
        Reshaping::RemoveNode { node },
        Reshaping::ReplaceNode { old: node, address: address() },
        Reshaping::Move { partition: PartitionId(1), from: vec![node], to: vec![NodeId(4)] },
        Reshaping::Split { partition: Some(PartitionId(1)), at: Some(Bytes::from_static(b"c")) },
        Reshaping::Split { partition: None, at: None },
        Reshaping::Merge { partition: PartitionId(2), into: Some(PartitionId(1)) },
        Reshaping::SetReplicas { count: Some(5) },
    ]
}

pub fn admin_requests() -> Vec<AdminRequest> {
    let reshape = |shape| {
        let within = Some(coppice_client::wire::Boundaries { low: Bytes::new(), high: Some(Bytes::from_static(b"q")) });
        AdminRequest::Reshape(ReshapeRequest {
            change: WireChangeId(1 << 50),
            shape,
            dry_run: true,
            force: false,
            within,
        })
    };
    let fault = coppice_client::wire::LinkFault { to: NodeId(2), cut: false, delay_ms: 1 };
    let init = coppice_client::wire::InitRequest {
        partitions: 3,
        split_keys: vec![Bytes::from_static(b"b"), Bytes::from_static(b"c")],
        settings: settings().into_iter().collect(),
        if_needed: true,
        nonce: 9,
    };
    let others = [
        AdminRequest::Init(init),
        AdminRequest::ConfigGet,
        AdminRequest::ConfigSet { key: "window".into(), value: "7".into() },
        AdminRequest::ConfigUnset { key: "window".into() },
        AdminRequest::LogLevel { spec: "warn".into() },
        AdminRequest::TransferLeader { partition: PartitionId(1), to: NodeId(2), deadline_ms: 9 },
        AdminRequest::CheckReplicas,
        AdminRequest::Faults(vec![fault]),
        AdminRequest::Tuning { local: true },
        AdminRequest::Map,
        AdminRequest::Users,
    ];
    let users = user_changes().into_iter().map(AdminRequest::ChangeUsers);
    others.into_iter().chain(users).chain(reshapings().into_iter().map(reshape)).collect()
}

/// Every change of the directory.
pub fn directory_commands(cluster: ClusterId) -> Vec<DirectoryCommand> {
    let addresses = || map(cluster).nodes[3].addresses.clone();
    let (change, partition, node) = (WireChangeId(1 << 50), PartitionId(2), NodeId(4));
    let reshapes = [
        Reshape::Register {
            name: "n5".into(),
            addresses: Addresses { peer: "h5:7401".into(), ..addresses() },
            replaces: None,
        },
        Reshape::Joined { node },
        Reshape::SetState { node, state: NodeState::Draining, force: true },
        Reshape::Removed { node },
        Reshape::Move { change, partition, to: vec![NodeId(1), NodeId(2), node] },
        Reshape::Moved { change },
        Reshape::Cancel { change },
        Reshape::Split { change, partition, at: Bytes::from_static(b"kiwi") },
        Reshape::Merge { change, partition, target: PartitionId(1) },
        Reshape::Released { version: MapVersion(9) },
        Reshape::Gone { partition: PartitionId(5) },
        Reshape::Unmoved { change },
    ];
    let others = [
        DirectoryCommand::Create { map: map(cluster), settings: settings() },
        DirectoryCommand::Set { key: "window".into(), value: "7".into() },
        DirectoryCommand::Unset { key: "window".into() },
        DirectoryCommand::Announce { node, addresses: addresses() },
    ];
    let by = Some("root".to_owned());
    let users = user_changes()
        .into_iter()
        .map(|change| DirectoryCommand::ChangeUsers { by: by.clone(), change: Box::new(change) });
    others.into_iter().chain(reshapes.into_iter().map(DirectoryCommand::Reshape)).chain(users).collect()
}

pub fn all_questions(cluster: ClusterId) -> Vec<Question> {
    let assignment = Assignment {
        cluster,
        node: NodeId(4),
        directory: (1..4).map(|n| (WireReplicaId(n), NodeId(n), format!("h{n}:7401"))).collect(),
    };
    let configuration =
        Configuration { learners: [ReplicaId(4)].into(), ..Configuration::of_voters((1..4).map(ReplicaId)) };
    let others = [
        Question::Identify,
        Question::Assign(assignment),
        Question::Map,
        Question::Status,
        Question::Transfer { partition: PartitionId(1), to: NodeId(2), deadline_ms: 9 },
        Question::Adopt { map: map(cluster), settings: settings(), users: Users::default() },
        Question::Median { partition: PartitionId(1), by_load: true },
        Question::Configure { partition: PartitionId(1), expected: 4, configuration },
        Question::FeatureLevel { level: 2, note: false },
    ];
    let admins = admin_requests().into_iter().map(Question::Admin);
    others.into_iter().chain(directory_commands(cluster).into_iter().map(Question::Directory)).chain(admins).collect()
}

pub fn questions() -> Vec<Shape> {
    all_questions(ClusterId(7)).iter().map(plain).collect()
}

pub fn run_questions(bytes: &[u8]) -> bool {
    let Some(question) = stable::<Question>(bytes) else { return false };
    let own = Presence { cluster: ClusterId(7), node: NodeId(1), ..Presence::default() };
    let known = map(ClusterId(7));
    let from = Some(Presence { node: NodeId(2), ..own });
    for purpose in [Purpose::Question, Purpose::Forming] {
        _ = Asker { purpose, from }.judge(&question, Some(&own), &known);
        _ = Asker { purpose, from: None }.judge(&question, None, &PartitionMap::default());
    }
    if let Question::Adopt { map, users, .. } = question {
        used(&map);
        _ = coppice_core::access::Access::new(users);
    }
    true
}

/// What is looked up in a map that passed.
pub fn used(map: &PartitionMap) {
    if map.check().is_err() {
        return;
    }
    for key in [&b""[..], b"grape", b"\xff\xff"] {
        assert!(map.partitions.is_empty() || map.route(key).is_some(), "no hole");
        _ = map.cover(key, Some(b"melon"));
    }
    assert_eq!(map.cover(b"", None).len(), map.partitions.len());
}

pub fn admin_replies() -> Vec<AdminReply> {
    let cut = coppice_client::wire::SplitPlan {
        at: Bytes::from_static(b"c"),
        boundaries: coppice_client::wire::Boundaries { low: Bytes::new(), high: None },
    };
    let reshaped = coppice_client::wire::Reshaped {
        done: false,
        begun: true,
        steps: vec!["one".into(), "two".into()],
        left: 2,
        partition: Some(PartitionId(9)),
        node: Some(NodeId(4)),
        cut: Some(cut),
        map_version: MapVersion(9),
    };
    let group = coppice_client::wire::GroupTuning {
        partition: PartitionId(1),
        leader: NodeId(2),
        in_force: coppice_client::wire::BatchAndWindow { batch_bytes_max: 1 << 16, window: 7, window_bytes_max: 0 },
        account: None,
    };
    let row = coppice_client::wire::ConfigRow {
        key: "window".into(),
        value: "7".into(),
        origin: "cluster".into(),
        cluster: true,
    };
    let no_majority = AdminError::NoMajority { text: "alone".into(), others: vec!["h2:7400".into()] };
    vec![
        AdminReply::Done,
        AdminReply::Initialized { cluster: ClusterId(7), nodes: 3, partitions: 4, existed: true },
        AdminReply::Config(vec![row.clone(), row]),
        AdminReply::Transferred { pause_us: 900 },
        AdminReply::ReplicasChecked {
            partitions: vec![(PartitionId(1), 9, 1 << 60)],
            missing: vec![(PartitionId(2), NodeId(3))],
        },
        AdminReply::Failed(AdminError::Invalid("no".into())),
        AdminReply::Failed(no_majority),
        AdminReply::Reshaped(reshaped),
        AdminReply::Tuning(coppice_client::wire::TuningReport {
            on: true,
            groups: vec![group],
            silent: vec![NodeId(3)],
        }),
        AdminReply::Map(MapReply { map: Some(map(ClusterId(7))), leaders: vec![(PartitionId(1), NodeId(2))] }),
        AdminReply::Users(users().rows(None)),
        AdminReply::UsersChanged(coppice_client::wire::UserChangeReply { is_first: true, behind: vec![NodeId(2)] }),
    ]
}

pub fn all_answers(map: &PartitionMap, users: &Users) -> Vec<Answer> {
    let identified = Identified {
        identity: Some((map.cluster, NodeId(4))),
        size: Some((4, 3)),
        name: "n4".into(),
        addresses: map.nodes[3].addresses.clone(),
    };
    let ticket = WireTicket { round: 3, replica: WireReplicaId(1), n: 57 };
    let replica = LocalReplica {
        replica: WireReplicaId(1),
        leads: true,
        leader: Some(NodeId(1)),
        ballot: (9, WireReplicaId(1)),
        decided_upto: 90,
        keys: 10,
        lags: [(NodeId(2), (3, 4))].into(),
        digests: vec![(64, 1 << 60)],
        group: coppice_core::status::GroupReport {
            voters: (1..4).map(WireReplicaId).collect(),
            durable: vec![(WireReplicaId(2), 88)],
            ..Default::default()
        },
        last_ticket: Some(ticket),
        ..LocalReplica::default()
    };
    let status = LocalStatus {
        map_version: 8,
        replicas: [(PartitionId(0), replica.clone()), (PartitionId(1), replica)].into(),
        warnings: vec!["slow".into()],
        full: Some("disk".into()),
        changes: vec!["p1 moves".into()],
        ..LocalStatus::default()
    };
    let answer = Answer::Map {
        map: map.clone(),
        leaders: vec![(PartitionId(1), NodeId(2))],
        settings: settings(),
        users: users.clone(),
    };
    let others = [
        Answer::Identified(identified),
        answer,
        Answer::Status(Box::new(status)),
        Answer::Directory(DirectoryReply::Registered(NodeId(4))),
        Answer::Refused("no".into()),
        Answer::Done,
        Answer::Median(Some(b"grape".to_vec())),
        Answer::NotLeader,
    ];
    others.into_iter().chain(admin_replies().into_iter().map(Answer::Admin)).collect()
}

pub fn node_answers() -> Vec<Shape> {
    all_answers(&map(ClusterId(7)), &users()).iter().map(plain).collect()
}

pub fn run_node_answers(bytes: &[u8]) -> bool {
    let Some(answer) = stable::<Answer>(bytes) else { return false };
    if let Answer::Map { map, users, .. } = answer {
        used(&map);
        _ = coppice_core::access::Access::new(users);
    }
    true
}
