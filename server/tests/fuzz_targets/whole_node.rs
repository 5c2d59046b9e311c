//! A whole node meets a peer that has proved to be a node of its cluster, and then says anything: frames of every kind,
//! damaged behind checksums that fit. It keeps serving, takes bounded memory, and no thread of it ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::ReplicaId;
use coppice_server::datadir::claim::Claim;
use coppice_server::local::{Cluster, LocalOptions};
use coppice_server::net::handshake::{PEER_PROTOCOL, PeerHello, Presence, Purpose, dial_blocking};
use coppice_server::net::peer;
use coppice_server::net::peer_frame as kinds;

use super::damage::damage;
use super::letters;
use crate::common::cluster::{connect, formed, map};
use crate::common::{Scratch, patience, wait_until};
use crate::log_common::Draw;
use crate::{encoded, number, peer_messages, questions, seed};

/// Frames under plain `cargo test`.
const RUNS: u64 = 4_000;

/// Frames between two looks at the cluster.
const BETWEEN_LOOKS: u64 = 500;

/// What the process may grow by: a decoder's room for a few frames of each connection, and the data that is written.
const GROWTH_BYTES: u64 = 256 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// Four nodes, of which the last holds no replica and is stopped: the hostile peer speaks in its name.
fn cluster(scratch: &Scratch) -> (Cluster, PartitionMap) {
    let options = LocalOptions { nodes: 4, ..LocalOptions::new(&scratch.0) };
    let mut cluster = formed(&options);
    connect(&cluster).put(b"k", b"v").expect("it serves");
    let map = map(&cluster);
    assert!(map.groups().all(|entry| entry.replica_on(NodeId(4)).is_none()), "{map:?}");
    cluster.stop(3);
    (cluster, map)
}

fn peer_address(map: &PartitionMap, node: u32) -> String {
    map.node(NodeId(node)).expect("a node").addresses.peer.clone()
}

/// A connection that has proved to be one of node 4.
fn proven(map: &PartitionMap, to: u32, purpose: Purpose) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(peer_address(map, to)).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(patience())).ok()?;
    stream.set_write_timeout(Some(patience())).ok()?;
    let (cluster, node) = (map.cluster, NodeId(4));
    let from = Some(Presence { cluster, node, claim: Claim::new(1 << 40, 77, &[], 1 << 50) });
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose, from, to: Some(NodeId(to)) };
    dial_blocking(&mut stream, &hello, |_| Ok(())).ok()?;
    Some(stream)
}

/// Valid bodies of each kind, for groups and replicas that there are.
struct Corpus {
    messages: Vec<Vec<u8>>,
    letters: Vec<Vec<u8>>,
    questions: Vec<Vec<u8>>,
    gets: Vec<Vec<u8>>,
}

impl Corpus {
    fn new() -> Corpus {
        let mut messages = Vec::new();
        for body in peer_messages() {
            for (group, to, from) in [(0, 1, 4), (1, 1, 2), (1, 2, 3), (0, 2, 1)] {
                let mut envelopes = peer::decode(Bytes::copy_from_slice(&body)).expect("whole");
                for envelope in &mut envelopes {
                    (envelope.group, envelope.to, envelope.from) = (group, ReplicaId(to), ReplicaId(from));
                }
                messages.push(encoded(&envelopes));
            }
        }
        let gets = [0_u32, 1, 7].map(|group| postcard::to_stdvec(&(PartitionId(group), 0_u64)).expect("plain data"));
        Corpus { messages, letters: letters(), questions: questions(), gets: gets.to_vec() }
    }

    /// The next frame, what its connection is for, and how much of it leaves.
    fn draw(&self, draw: &mut Draw) -> (Purpose, Vec<u8>) {
        let (purpose, kind, bodies) = match draw.below(10) {
            0..=3 => (Purpose::Messages, kinds::MESSAGES, &self.messages),
            4 | 5 => (Purpose::Messages, kinds::LETTERS, &self.letters),
            6 | 7 => (Purpose::Question, kinds::CONTROL, &self.questions),
            8 => (Purpose::Snapshot, kinds::SNAPSHOT_GET, &self.gets),
            _ => (Purpose::Messages, draw.below(256) as u8, &self.messages),
        };
        let mut body = bodies[draw.below(bodies.len() as u64) as usize].clone();
        for _ in 0..draw.below(4) {
            let other = &bodies[draw.below(bodies.len() as u64) as usize];
            damage(&mut body, other, &mut |bound| draw.below(bound));
        }
        let mut frame = kinds::frame(kind, &body).to_vec();
        if draw.below(40) == 0 {
            damage(&mut frame, &body, &mut |bound| draw.below(bound));
        }
        (purpose, frame)
    }
}

/// The cluster serves reads and writes, and each node answers its peers.
#[track_caller]
fn serves(cluster: &Cluster, map: &PartitionMap, round: u64) {
    let client = connect(cluster);
    client.put(b"k", format!("{round}").as_bytes()).expect("it serves");
    let value = client.get(b"k").expect("it serves").output;
    assert_eq!(value.as_deref(), Some(format!("{round}").as_bytes()));
    for node in 1..=3 {
        let answers = || proven(map, node, Purpose::Question).is_some();
        wait_until(&format!("n{node} answers its peers"), patience(), answers);
    }
}

#[test]
fn a_proven_peer_that_says_anything_ends_no_node() {
    let (runs, seed) = (number("COPPICE_FUZZ_NODE_RUNS", RUNS), seed());
    let scratch = Scratch::new("hostile-peer");
    let (cluster, map) = cluster(&scratch);
    serves(&cluster, &map, 0);
    let (corpus, before) = (Corpus::new(), resident_bytes());
    let mut draw = Draw::new(seed);
    let mut links: [Option<TcpStream>; 3] = [None, None, None];
    for run in 1..=runs {
        let (purpose, frame) = corpus.draw(&mut draw);
        let at = draw.below(3) as usize;
        let to = at as u32 + 1;
        if purpose == Purpose::Messages {
            if links[at].is_none() {
                links[at] = proven(&map, to, purpose);
            }
            // Closed at what it could not read.
            if links[at].as_mut().is_some_and(|link| link.write_all(&frame).is_err()) {
                links[at] = None;
            }
        } else if let Some(mut stream) = proven(&map, to, purpose) {
            // Some do not wait for the answer.
            let mut some = [0; 512];
            if stream.write_all(&frame).is_ok() && draw.below(4) > 0 {
                _ = stream.shutdown(std::net::Shutdown::Write);
                _ = stream.read(&mut some);
            }
        }
        if run % BETWEEN_LOOKS == 0 {
            serves(&cluster, &map, run);
            let now = resident_bytes();
            assert!(now < before + GROWTH_BYTES, "run {run}: memory grew from {before} to {now} bytes");
        }
    }
    serves(&cluster, &map, runs + 1);
}

/// A thousand silent connections once took the node's descriptors.
#[test]
fn silent_connections_at_the_peer_port_are_few_and_keep_nobody_out() {
    let scratch = Scratch::new("silent-peers");
    let (cluster, map) = cluster(&scratch);
    let silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(peer_address(&map, 1)).expect("it listens")).collect();
    serves(&cluster, &map, 1);
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
