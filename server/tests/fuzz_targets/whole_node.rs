//! Whole nodes meet a peer that has proved to be a node of their cluster, and then says anything, and clients that do.
//!
//! The peer holds replicas of some groups, so what it says in their name reaches the replicas behind the door: it knows
//! who leads, in which ballot, and how far each group is, and says what is near that, and what is absurd. It answers
//! too: nodes dial it, ask it and send it messages. What a node that lies can do to the groups that it is part of is
//! not defended (docs/threat-model.md); no node may end or hang for it, and the groups that it is no part of serve.

mod at_client_port;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use coppice_client::blocking::Client;
use coppice_client::map::PartitionMap;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    AdminRequest, ClientId, Frame, FrameDecoder, Kind, NodeId, PartitionId, Refusal, Replies, Request, ResultRef,
    SessionId, StatusGet, UserChange, encode_frame,
};
use coppice_core::access::Users;
use coppice_core::handshake::{self, PEER_PROTOCOL, PeerHello, PeerWelcome, Presence, Purpose};
use coppice_core::incarnation::claim::IncarnationClaim;
use coppice_core::machine::directory::DirectoryCommand;
use coppice_core::multicast::{MulticastMessage, message};
use coppice_core::question::{Answer, Asker, Question};
use coppice_core::snapshot::{Blobs, Head};
use coppice_core::wire::peer::{self, Envelope};
use coppice_core::wire::peer_frame as kinds;
use coppice_ordering::{Ballot, Instance, ReplicaId};
use coppice_server::checkpoint::stream::Encoder;
use coppice_server::checkpoint::{Chunk, Manifest};
use coppice_server::local::{Cluster, LocalOptions};
use coppice_server::net::handshake::dial_blocking;

use super::clients::{hello, requests_of};
use super::damage::damage;
use super::peers::{
    self, admin_requests, all_answers, all_questions, messages, messages_shape, multicast_shape, tagged,
};
use super::plain::plain;
use super::shape::Shape;
use crate::common::cluster::{connect, formed, map};
use crate::common::{Scratch, patience, wait_until};
use crate::log_common::Draw;
use crate::{number, seed};

/// Frames under plain `cargo test`, of peers and of clients.
const RUNS: u64 = 1_500;

/// Frames between two looks at the cluster.
const BETWEEN_LOOKS: u64 = 2_000;

/// What the process may grow by: a decoder's room for a few frames of each connection, and the data that is written.
const GROWTH_BYTES: u64 = 512 << 20;

/// In whose name the peer speaks.
const HOSTILE: NodeId = NodeId(4);

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// Panics of threads of nodes since the test began.
fn panics() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            COUNT.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
    COUNT.load(Ordering::SeqCst)
}

/// Outcomes by kind of frame.
#[derive(Default)]
struct Outcomes(BTreeMap<(String, String), u64>);

impl Outcomes {
    fn note(&mut self, kind: &str, outcome: &str) {
        *self.0.entry((kind.to_owned(), outcome.to_owned())).or_default() += 1;
    }

    /// How many of all came to one of these.
    fn share(&self, outcomes: &[&str]) -> f64 {
        let those = self.0.iter().filter(|((_, outcome), _)| outcomes.iter().any(|wanted| outcome.starts_with(wanted)));
        those.map(|(_, count)| *count).sum::<u64>() as f64 / self.0.values().sum::<u64>().max(1) as f64
    }

    fn print(&self) {
        for ((kind, outcome), count) in &self.0 {
            println!("{kind:<24} {outcome:<28} {count:>9}");
        }
    }
}

// -- the peer --------------------------------------------------------------------------------------------------------

/// Four nodes and four partitions of three replicas each, one of which the last node has no part in, like the
/// directory. The last node is stopped: the hostile peer speaks in its name.
fn cluster(scratch: &Scratch) -> (Cluster, PartitionMap) {
    let options = LocalOptions { nodes: 4, partitions: 4, ..LocalOptions::new(&scratch.0) };
    let mut cluster = formed(&options);
    connect(&cluster).put(b"k", b"v").expect("it serves");
    let map = map(&cluster);
    let hers = |group: u32| map.group(PartitionId(group)).is_some_and(|entry| entry.replica_on(HOSTILE).is_some());
    assert_eq!([0, 1, 2, 3, 4].map(hers), [false, false, true, true, true], "{map:?}");
    cluster.stop(3);
    (cluster, map)
}

fn peer_address(map: &PartitionMap, node: NodeId) -> &str {
    &map.node(node).expect("a node").addresses.peer
}

fn presence(map: &PartitionMap) -> Presence {
    Presence { cluster: map.cluster, node: HOSTILE, claim: IncarnationClaim::new(1 << 40, 77, &[], 1 << 50) }
}

/// A connection that has proved to be one of the hostile node.
fn proven(map: &PartitionMap, to: NodeId, purpose: Purpose) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(peer_address(map, to)).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(patience())).ok()?;
    stream.set_write_timeout(Some(patience())).ok()?;
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose, from: Some(presence(map)), to: Some(to) };
    dial_blocking(&mut stream, &hello, |_| Ok(())).ok()?;
    Some(stream)
}

/// The next frame that comes; none: the connection ended.
fn next_frame(stream: &mut TcpStream, decoder: &mut FrameDecoder) -> Option<Frame> {
    let mut buffer = [0; 4_096];
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) => {}
            Err(_) => return None,
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => decoder.feed(&buffer[..count]),
            _ => return None,
        }
    }
}

/// How far a group is, as its leader says.
#[derive(Clone, Copy)]
struct Place {
    ballot: Ballot,
    decided: Instance,
}

fn places(cluster: &Cluster) -> BTreeMap<PartitionId, Place> {
    let mut stream = TcpStream::connect(cluster.endpoints()[0]).expect("it listens");
    stream.set_read_timeout(Some(patience())).expect("a socket");
    let (mut out, mut decoder) = (BytesMut::new(), FrameDecoder::of_answers());
    encode_control(&mut out, Kind::Hello, 1, &hello());
    encode_control(&mut out, Kind::Status, 2, &StatusGet { local: false });
    stream.write_all(&out).expect("it reads");
    loop {
        let frame = next_frame(&mut stream, &mut decoder).expect("it says how it is");
        if frame.kind == Kind::StatusReply as u8 {
            let status: coppice_client::wire::Status = postcard::from_bytes(&frame.body).expect("a status");
            let place = |status: coppice_client::wire::PartitionStatus| {
                let ballot = Ballot::new(status.ballot.0, status.ballot.1.0);
                (status.id, Place { ballot, decided: Instance(status.decided_upto) })
            };
            return status.partitions.into_iter().map(place).collect();
        }
    }
}

/// Valid images of each kind, for the groups and replicas that there are, near where they are.
struct Corpus {
    /// For replicas on each of the nodes.
    messages: [Vec<Shape>; 3],
    multicast: Vec<Shape>,
    questions: Vec<Shape>,
    gets: Vec<Shape>,
}

impl Corpus {
    fn new(map: &PartitionMap, places: &BTreeMap<PartitionId, Place>) -> Corpus {
        let (mut to_nodes, mut multicast): ([Vec<Shape>; 3], Vec<Shape>) = Default::default();
        for entry in map.groups() {
            let Place { ballot, decided } = places
                .get(&entry.partition)
                .copied()
                .unwrap_or(Place { ballot: Ballot::new(1, 1), decided: Instance(1) });
            let own = entry.replica_on(HOSTILE).map_or(ReplicaId(3), |info| ReplicaId(info.replica.0));
            let round = ballot.round.0;
            let ballots = [ballot, Ballot::new(round + 1, own.0), Ballot::new(round.saturating_sub(1), own.0)];
            for ballot in ballots {
                let said = messages(ballot, decided);
                for info in entry.replicas.iter().filter(|info| info.node != HOSTILE) {
                    let envelope = |message| Envelope {
                        group: entry.partition.0,
                        to: ReplicaId(info.replica.0),
                        from: own,
                        message,
                    };
                    // Of groups that it is no part of it says less: that ends at the door.
                    let some = if entry.replica_on(HOSTILE).is_some() { said.len() } else { 2 };
                    let envelopes: Vec<Envelope> = said.iter().take(some).cloned().map(envelope).collect();
                    let to_node = &mut to_nodes[info.node.0 as usize - 1];
                    to_node.extend(envelopes.iter().map(|one| messages_shape(std::slice::from_ref(one))));
                    to_node.push(messages_shape(&envelopes));
                }
                multicast.extend(peers::words(ballot).into_iter().map(|word| {
                    multicast_shape(&[MulticastMessage {
                        passed_on: ballot.replica == own,
                        ..MulticastMessage::new(entry.partition, word)
                    }])
                }));
            }
        }
        let get = |group: u32| plain(&(PartitionId(group), 0_u64));
        Corpus {
            messages: to_nodes,
            multicast,
            questions: all_questions(map.cluster).iter().map(plain).collect(),
            gets: [0, 1, 2, 3, 4, 7].map(get).to_vec(),
        }
    }
}

/// What a lying node may undo by right: it changes who is in the cluster, or what the map says.
fn undoes(question: &Question, map: &PartitionMap) -> bool {
    let harmless = |change: &UserChange| !matches!(change, UserChange::Add { token: Some(_), .. });
    match question {
        Question::Adopt { map: newer, .. } => newer.version > map.version || newer.cluster != map.cluster,
        Question::Directory(command) => match command {
            DirectoryCommand::Reshape(_) | DirectoryCommand::Announce { .. } => true,
            DirectoryCommand::Set { .. } | DirectoryCommand::Unset { .. } => true,
            DirectoryCommand::ChangeUsers { change, .. } => !harmless(change),
            DirectoryCommand::Create { .. } | DirectoryCommand::RaiseFeatureLevel { .. } => false,
        },
        Question::Admin(admin) => admin_undoes(admin),
        _ => false,
    }
}

fn admin_undoes(admin: &AdminRequest) -> bool {
    match admin {
        AdminRequest::Reshape(reshape) => !reshape.dry_run,
        AdminRequest::ChangeUsers(UserChange::Add { token, .. }) => token.is_some(),
        AdminRequest::ConfigSet { .. } | AdminRequest::ConfigUnset { .. } => true,
        AdminRequest::LogLevel { .. } | AdminRequest::Faults(_) => true,
        _ => false,
    }
}

/// What stands behind the hostile node's address: it lets everybody in, asks for echoes, and answers anything.
struct Acceptor {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    heard: Arc<Mutex<Outcomes>>,
    /// Whether it may answer what undoes the cluster.
    anything: Arc<AtomicBool>,
}

impl Acceptor {
    fn start(map: &PartitionMap, seed: u64) -> Acceptor {
        let listener = TcpListener::bind(peer_address(map, HOSTILE)).expect("its port is free");
        listener.set_nonblocking(true).expect("a socket");
        let (stop, anything) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let heard: Arc<Mutex<Outcomes>> = Arc::default();
        let answers: Arc<Vec<Shape>> = Arc::new(all_answers(map, &Users::default()).iter().map(plain).collect());
        let (map, thread_stop) = (map.clone(), Arc::clone(&stop));
        let (thread_heard, thread_anything) = (Arc::clone(&heard), Arc::clone(&anything));
        let thread = std::thread::spawn(move || {
            let mut connection = 0;
            while !thread_stop.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                connection += 1;
                let mut hostile = Hostile {
                    map: map.clone(),
                    answers: Arc::clone(&answers),
                    draw: Draw::new(seed ^ (connection << 20)),
                    heard: Arc::clone(&thread_heard),
                    anything: Arc::clone(&thread_anything),
                };
                std::thread::spawn(move || hostile.serve(stream));
            }
        });
        Acceptor { stop, thread: Some(thread), heard, anything }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

struct Hostile {
    map: PartitionMap,
    answers: Arc<Vec<Shape>>,
    draw: Draw,
    heard: Arc<Mutex<Outcomes>>,
    anything: Arc<AtomicBool>,
}

impl Hostile {
    fn serve(&mut self, mut stream: TcpStream) -> Option<()> {
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        let mut decoder = FrameDecoder::new(kinds::FRAME_BYTES_MAX);
        let hello = handshake::read_hello(&next_frame(&mut stream, &mut decoder)?).ok()?;
        let welcome = PeerWelcome { protocol: PEER_PROTOCOL, from: Some(presence(&self.map)) };
        let mut greeting = handshake::frame_of(kinds::WELCOME, &welcome).to_vec();
        if self.draw.below(20) == 0 {
            let shape = plain(&welcome);
            let body = shape.mutated(std::slice::from_ref(&shape), &mut |bound| self.draw.below(bound));
            greeting = kinds::frame(kinds::WELCOME, &body).to_vec();
        }
        stream.write_all(&greeting).ok()?;
        match hello.purpose {
            Purpose::Messages => loop {
                let frame = next_frame(&mut stream, &mut decoder)?;
                let mut heard = self.heard.lock().expect("sound");
                match frame.kind {
                    kinds::MESSAGES => {
                        for envelope in peer::decode(frame.body).expect("a node's own messages") {
                            let said = format!("{:?}", envelope.message);
                            heard.note(said.split(['(', ' ']).next().unwrap_or_default(), "sent to the peer");
                        }
                    }
                    kinds::MULTICAST => {
                        message::decode(&frame.body).expect("a node's own multicast");
                        heard.note("message", "sent to the peer");
                    }
                    kinds::ECHO => _ = stream.write_all(&kinds::frame(kinds::ECHO, &[])),
                    _ => {}
                }
            },
            Purpose::Question | Purpose::Forming => {
                next_frame(&mut stream, &mut decoder)?;
                let answer = self.answer();
                self.heard.lock().expect("sound").note("question", "asked of the peer");
                stream.write_all(&kinds::frame(kinds::CONTROL_REPLY, &answer)).ok()
            }
            Purpose::Snapshot => {
                next_frame(&mut stream, &mut decoder)?;
                self.heard.lock().expect("sound").note("snapshot", "asked of the peer");
                self.snapshot(&mut stream).ok()
            }
        }
    }

    fn answer(&mut self) -> Vec<u8> {
        loop {
            let shape = &self.answers[self.draw.below(self.answers.len() as u64) as usize];
            let bytes = shape.mutated(&self.answers, &mut |bound| self.draw.below(bound));
            let newer = match postcard::from_bytes(&bytes) {
                Ok(Answer::Map { map, .. }) => map.version > self.map.version,
                _ => false,
            };
            if !newer || self.anything.load(Ordering::Relaxed) {
                return bytes;
            }
        }
    }

    /// A snapshot of some partition that is well formed up to a field.
    fn snapshot(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        let entry = &self.map.partitions[1 + self.draw.below(3) as usize];
        let head = Head {
            cluster: self.map.cluster,
            partition: entry.partition,
            instance: Instance(1 << self.draw.below(40)),
            low: entry.low.clone(),
            high: entry.high.clone(),
            map_version: entry.version,
            last_ticket: None,
        };
        let pairs = [(&b"n"[..], &b"made up"[..])];
        let mut pieces = vec![(1_u8, Manifest { head: head.clone(), ..Manifest::default() }.encode())];
        let mut encoder = Encoder::new(head, &Blobs::default(), pairs.into_iter());
        for Chunk { number, bytes, crc } in encoder.by_ref() {
            pieces.push((2, [&number.to_le_bytes()[..], &crc.to_le_bytes(), &bytes].concat()));
        }
        pieces.push((3, encoder.finish().encode()));
        for (tag, mut piece) in pieces {
            if self.draw.below(3) == 0 {
                let other = piece.clone();
                damage(&mut piece, &other, &mut |bound| self.draw.below(bound));
            }
            stream.write_all(&kinds::frame(kinds::SNAPSHOT_CHUNK, &[&[tag][..], &piece].concat()))?;
        }
        Ok(())
    }
}

/// The peer that dials.
struct Peer<'m> {
    map: &'m PartitionMap,
    corpus: Corpus,
    draw: Draw,
    links: [Option<TcpStream>; 3],
    outcomes: Outcomes,
    /// Whether it says what undoes the cluster too.
    anything: bool,
}

impl Peer<'_> {
    /// One of these images, changed. What cannot be read ends a connection: of that a fifth is enough.
    fn image(&mut self, of: impl Fn(&Corpus) -> &[Shape], reads: fn(&[u8]) -> bool) -> Vec<u8> {
        let (shapes, draw) = (of(&self.corpus), &mut self.draw);
        loop {
            let shape = &shapes[draw.below(shapes.len() as u64) as usize];
            let image = match draw.below(4) {
                0 => shape.whole(),
                _ => shape.mutated(shapes, &mut |bound| draw.below(bound)),
            };
            if reads(&image) || draw.below(5) == 0 {
                return image;
            }
        }
    }

    fn speak(&mut self) {
        let at = self.draw.below(3) as usize;
        match self.draw.below(100) {
            0..50 => {
                let body = self
                    .image(|corpus| &corpus.messages[at], |image| peer::decode(Bytes::copy_from_slice(image)).is_ok());
                self.note_messages(&body, at);
                self.send(at, kinds::MESSAGES, &body);
            }
            50..80 => {
                let body = self
                    .image(|corpus| &corpus.multicast, |image| message::decode(&Bytes::copy_from_slice(image)).is_ok());
                self.note_multicast(&body);
                self.send(at, kinds::MULTICAST, &body);
            }
            80..86 => {
                let kind = [kinds::FULL, kinds::DURABLE, kinds::ECHO, kinds::ALIVE, self.draw.below(256) as u8];
                let kind = kind[self.draw.below(5) as usize];
                let body: Vec<u8> = (0..self.draw.below(12)).map(|_| self.draw.below(256) as u8).collect();
                self.outcomes.note("other frames", if (70..75).contains(&kind) { "handled" } else { "refused" });
                self.send(at, kind, &body);
            }
            86..96 => self.ask(at),
            _ => self.fetch(at),
        }
    }

    fn send(&mut self, at: usize, kind: u8, body: &[u8]) {
        let mut frame = kinds::frame(kind, body).to_vec();
        // Behind a length that lies nothing is heard for long: such a frame is the last one.
        let is_last = self.draw.below(200) == 0;
        if is_last {
            damage(&mut frame, body, &mut |bound| self.draw.below(bound));
        }
        for _ in 0..2 {
            if self.links[at].is_none() {
                self.links[at] = proven(self.map, NodeId(at as u32 + 1), Purpose::Messages);
            }
            // Closed at what it could not read before: then once more.
            if self.links[at].as_mut().is_some_and(|link| link.write_all(&frame).is_ok()) {
                self.links[at].take_if(|_| is_last);
                return;
            }
            self.links[at] = None;
        }
    }

    /// What the node makes of it is as these pure checks say; what comes back, the acceptor counts.
    fn note_messages(&mut self, body: &[u8], at: usize) {
        let to = NodeId(at as u32 + 1);
        let Ok(envelopes) = peer::decode(Bytes::copy_from_slice(body)) else {
            return self.outcomes.note("messages", "refused: unreadable");
        };
        for envelope in envelopes {
            let heard = self.map.group(PartitionId(envelope.group)).is_some_and(|entry| {
                let is = |node, id: ReplicaId| entry.replica_on(node).is_some_and(|info| info.replica.0 == id.0);
                is(to, envelope.to) && is(HOSTILE, envelope.from)
            });
            let said = format!("{:?}", envelope.message);
            let kind = said.split(['(', ' ']).next().unwrap_or_default();
            self.outcomes.note(kind, if heard { "handled" } else { "refused: no replica's" });
        }
    }

    fn note_multicast(&mut self, body: &[u8]) {
        let Ok(multicast) = message::decode(&Bytes::copy_from_slice(body)) else {
            return self.outcomes.note("multicast", "refused: unreadable");
        };
        for message in multicast {
            let heard = message.may_come_from(HOSTILE, self.map);
            self.outcomes.note("multicast", if heard { "handled" } else { "refused: no replica's" });
        }
    }

    fn ask(&mut self, at: usize) {
        let body = self.image(|corpus| &corpus.questions, |image| postcard::from_bytes::<Question>(image).is_ok());
        let question = postcard::from_bytes::<Question>(&body);
        if question.as_ref().is_ok_and(|question| undoes(question, self.map)) && !self.anything {
            return;
        }
        let from = Some(presence(self.map));
        let forming = self.draw.below(8) == 0;
        let purpose = if forming { Purpose::Forming } else { Purpose::Question };
        let name = question.as_ref().map_or("question".to_owned(), |question| {
            let said = format!("{question:?}");
            format!("question {}", said.split(['(', ' ', '{']).next().unwrap_or_default())
        });
        let Some(mut stream) = proven(self.map, NodeId(at as u32 + 1), purpose) else {
            return self.outcomes.note(&name, "refused: no connection");
        };
        if stream.write_all(&kinds::frame(kinds::CONTROL, &body)).is_err() {
            return self.outcomes.note(&name, "refused: closed");
        }
        let own = Presence { node: NodeId(at as u32 + 1), ..presence(self.map) };
        let may = question
            .as_ref()
            .is_ok_and(|question| Asker { purpose, from }.judge(question, Some(&own), self.map).is_ok());
        // Verbs may wait long for what does not come about.
        let waits = matches!(question, Ok(Question::Admin(_) | Question::Directory(_) | Question::Transfer { .. }));
        if may && waits || self.draw.below(4) == 0 {
            return self.outcomes.note(&name, if may { "handled, not waited for" } else { "refused, not waited for" });
        }
        let outcome = match next_frame(&mut stream, &mut FrameDecoder::new(kinds::FRAME_BYTES_MAX)) {
            None => "refused: closed",
            Some(frame) if frame.kind == Kind::Refused as u8 => "refused: unreadable",
            Some(frame) => match postcard::from_bytes::<Answer>(&frame.body).expect("a node's own answer") {
                Answer::Refused(_) if !may => "refused: may not",
                Answer::Refused(_) => "handled: refused",
                _ => "handled",
            },
        };
        self.outcomes.note(&name, outcome);
    }

    fn fetch(&mut self, at: usize) {
        let body = self.image(|corpus| &corpus.gets, |image| postcard::from_bytes::<(PartitionId, u64)>(image).is_ok());
        let Some(mut stream) = proven(self.map, NodeId(at as u32 + 1), Purpose::Snapshot) else { return };
        _ = stream.write_all(&kinds::frame(kinds::SNAPSHOT_GET, &body));
        if self.draw.below(4) == 0 {
            return self.outcomes.note("snapshot", "handled, not waited for");
        }
        _ = stream.shutdown(Shutdown::Write);
        let mut decoder = FrameDecoder::new(kinds::FRAME_BYTES_MAX);
        let sent = next_frame(&mut stream, &mut decoder).is_some_and(|frame| frame.kind == kinds::SNAPSHOT_CHUNK);
        self.outcomes.note("snapshot", if sent { "handled" } else { "refused: closed" });
    }
}

/// The groups that the peer is no part of serve reads and writes rightly, and each node answers its peers.
#[track_caller]
fn serves(client: &Client, map: &PartitionMap, round: u64) {
    // In partition 1, whose keys come first.
    let key = [&[0][..], b"witness"].concat();
    client.put(&key[..], format!("{round}").as_bytes()).expect("it serves");
    let value = client.get(&key[..]).expect("it serves").output;
    assert_eq!(value.as_deref(), Some(format!("{round}").as_bytes()));
    for node in 1..=3 {
        let answers = || proven(map, NodeId(node), Purpose::Question).is_some();
        wait_until(&format!("n{node} answers its peers"), patience(), answers);
    }
}

#[test]
fn a_proven_peer_that_says_anything_ends_no_node() {
    let (runs, seed, before_panics) = (number("COPPICE_FUZZ_NODE_RUNS", RUNS), seed(), panics());
    let scratch = Scratch::new("hostile-peer");
    let (mut cluster, map) = cluster(&scratch);
    let client = connect(&cluster);
    serves(&client, &map, 0);
    let acceptor = Acceptor::start(&map, seed);
    let (corpus, before) = (Corpus::new(&map, &places(&cluster)), resident_bytes());
    let (draw, outcomes, anything) = (Draw::new(seed), Outcomes::default(), false);
    let mut peer = Peer { map: &map, corpus, draw, links: [None, None, None], outcomes, anything };
    let begun = Instant::now();
    for run in 1..=runs {
        peer.speak();
        if run % BETWEEN_LOOKS == 0 {
            serves(&client, &map, run);
            peer.corpus = Corpus::new(&map, &places(&cluster));
            let now = resident_bytes();
            assert!(now < before + GROWTH_BYTES, "run {run}: memory grew from {before} to {now} bytes");
            assert_eq!(panics(), before_panics, "run {run}: a thread of a node ended");
            if run % (BETWEEN_LOOKS * 25) == 0 {
                println!("{run} frames, {:.0} s, {} MiB", begun.elapsed().as_secs_f64(), now >> 20);
            }
        }
    }
    serves(&client, &map, runs + 1);
    // What it says that undoes the cluster ends no node either.
    peer.anything = true;
    acceptor.anything.store(true, Ordering::Relaxed);
    for _ in 0..runs / 20 {
        peer.speak();
    }
    for node in 1..=3 {
        let listens = || TcpStream::connect(peer_address(&map, NodeId(node))).is_ok();
        wait_until(&format!("n{node} listens"), patience(), listens);
    }
    peer.outcomes.print();
    acceptor.heard.lock().expect("sound").print();
    let handled = peer.outcomes.share(&["handled"]);
    println!("{runs} frames in {:.0} s, {:.0} % reach a handler", begun.elapsed().as_secs_f64(), 100.0 * handled);
    assert!(handled > 0.33, "nearly all ends at the door");
    // And what it made them write down, they start with again.
    drop((peer.links, client));
    (0..3).for_each(|at| cluster.stop(at));
    (0..3).for_each(|at| cluster.restart(at).expect("it starts again"));
    assert_eq!(panics(), before_panics, "a thread of a node ended");
}

// -- clients ---------------------------------------------------------------------------------------------------------

/// A thousand silent connections once took the node's descriptors.
#[test]
#[ignore = "long: waits for what is silent"]
fn silent_connections_at_the_peer_port_are_few_and_keep_nobody_out() {
    let scratch = Scratch::new("silent-peers");
    let (cluster, map) = cluster(&scratch);
    let silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(peer_address(&map, NodeId(1))).expect("it listens")).collect();
    serves(&connect(&cluster), &map, 1);
    let deadline = Instant::now() + patience();
    let closed = |stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        match (&*stream).read(&mut [0; 16]) {
            Ok(0) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            Ok(_) => false,
        }
    };
    loop {
        let open = silent.iter().filter(|stream| !closed(stream)).count();
        if open <= 64 {
            return;
        }
        assert!(Instant::now() < deadline, "{open} silent connections are open");
    }
}
