//! Queries over several partitions on a real cluster in one process, spoken on the wire itself: what the client library
//! builds upon (ordering.md 4).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use coppice_client::map::PartitionMap;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    ClientId, Completed, Cut, Frame, FrameDecoder, Hello, Kind, MapGet, MapReply, NodeId, PROTOCOL, Part, PartEnd,
    PartitionId, QueryRequest, Refusal,
};
use coppice_server::local::{Cluster, LocalOptions};

const CLIENT: ClientId = ClientId(77);

struct Raw {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Raw {
    fn connect(address: SocketAddr) -> Raw {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
        let hello = Hello { protocol_min, protocol_max, client: CLIENT, ..Hello::default() };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 1, &hello);
        stream.write_all(&out).unwrap();
        let mut raw = Raw { stream, decoder: FrameDecoder::default() };
        assert_eq!(raw.frame(Duration::from_secs(5)).unwrap().kind, Kind::HelloOk as u8);
        raw
    }

    fn frame(&mut self, patience: Duration) -> Option<Frame> {
        let mut buffer = [0; 65536];
        let deadline = Instant::now() + patience;
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let left = deadline.checked_duration_since(Instant::now())?.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the connection was closed"),
                Ok(count) => self.decoder.feed(&buffer[..count]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The node's map; none while it is starting.
    fn map(&mut self) -> Option<PartitionMap> {
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::MapGet, 9, &MapGet::default());
        self.stream.write_all(&out).unwrap();
        loop {
            // Parts of a query that was given up may have waited for this client.
            let frame = self.frame(Duration::from_secs(5)).unwrap();
            if Kind::from_u8(frame.kind) == Some(Kind::Map) {
                return decode_control::<MapReply>(&frame.body, "map").unwrap().map;
            }
        }
    }
}

/// One connection to each node.
struct Asker {
    nodes: BTreeMap<NodeId, Raw>,
    query: u32,
}

/// What became of one attempt.
#[derive(Debug)]
enum Ended {
    Result(Vec<(Bytes, Bytes)>, Cut),
    Aborted,
    NotLeader(Option<NodeId>),
}

impl Asker {
    fn connect(cluster: &Cluster) -> Asker {
        let mut nodes = BTreeMap::new();
        for address in cluster.endpoints() {
            let mut raw = Raw::connect(address);
            // A node that has just started learns the map first.
            let map = loop {
                match raw.map() {
                    Some(map) => break map,
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            let own = map.nodes.iter().find(|node| node.addresses.native == address.to_string()).expect("this node");
            nodes.insert(own.id, raw);
        }
        Asker { nodes, query: 0 }
    }

    /// One attempt, at `coordinator`.
    fn attempt(&mut self, coordinator: NodeId, request: &QueryRequest) -> Ended {
        self.query += 1;
        let request = QueryRequest { query: self.query, ..request.clone() };
        let mut out = BytesMut::new();
        request.encode(&mut out, 100 + self.query);
        self.nodes.get_mut(&coordinator).unwrap().stream.write_all(&out).unwrap();
        let (mut cut, mut completed): (Option<Cut>, Option<Completed>) = (None, None);
        let mut parts: BTreeMap<PartitionId, (Vec<(Bytes, Bytes)>, bool)> = BTreeMap::new();
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline {
            for raw in self.nodes.values_mut() {
                let Some(frame) = raw.frame(Duration::from_millis(2)) else { continue };
                match Kind::from_u8(frame.kind).unwrap() {
                    Kind::Cut => cut = Some(Cut::decode(&frame.body).unwrap()),
                    Kind::Completed => completed = Some(Completed::decode(&frame.body).unwrap()),
                    Kind::Refused => match Refusal::decode(&frame.body).unwrap() {
                        Refusal::NotLeader { hint, .. } => return Ended::NotLeader(hint),
                        Refusal::Aborted { .. } | Refusal::Busy { .. } => return Ended::Aborted,
                        other => panic!("{other:?}"),
                    },
                    Kind::Part if frame.stream == self.query => {
                        let part = Part::decode(&frame.body).unwrap();
                        if let Some(cut) = &cut {
                            assert_eq!(part.ticket, Some(cut.ticket));
                        }
                        let entry = parts.entry(part.position.partition).or_default();
                        let pairs = part
                            .pairs()
                            .map(|(key, value)| (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                        entry.0.extend(pairs);
                        entry.1 |= part.end == Some(PartEnd::Complete);
                    }
                    Kind::Part => {}
                    other => panic!("{other:?}"),
                }
            }
            if let (Some(cut), Some(done)) = (&cut, &completed)
                && cut.parts.iter().all(|part| parts.get(&part.partition).is_some_and(|(_, done)| *done))
            {
                assert_eq!(cut.ticket, done.ticket);
                let in_order = cut.parts.iter().flat_map(|part| parts[&part.partition].0.clone());
                let mut pairs: Vec<_> = in_order.collect();
                if request.reverse {
                    pairs.sort_by(|a, b| b.cmp(a));
                }
                return Ended::Result(pairs, cut.clone());
            }
        }
        panic!("no end: cut {cut:?}, completed {completed:?}, parts {:?}", parts.keys());
    }

    /// Asks until there is a result; returns how often it was asked for.
    fn query(&mut self, request: &QueryRequest) -> (Vec<(Bytes, Bytes)>, Cut, usize) {
        let mut coordinator = *self.nodes.keys().next().unwrap();
        for attempts in 1..200 {
            match self.attempt(coordinator, request) {
                Ended::Result(pairs, cut) => return (pairs, cut, attempts),
                Ended::Aborted => std::thread::sleep(Duration::from_millis(20)),
                Ended::NotLeader(hint) => {
                    let others = self.nodes.keys().copied().filter(|&node| node != coordinator);
                    coordinator = hint.filter(|hint| self.nodes.contains_key(hint)).or(others.max()).unwrap();
                }
            }
        }
        panic!("no result");
    }
}

fn everything() -> QueryRequest {
    QueryRequest {
        query: 0,
        low: Bytes::new(),
        high: None,
        reverse: false,
        keys_only: false,
        count_only: false,
        from_leaders: false,
        pairs_max: 0,
        bytes_max: 0,
        credit: 1 << 20,
    }
}

struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("coppice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_query_reads_all_partitions_at_one_ticket_while_they_change() {
    let directory = Directory::new("queries");
    let cluster = Cluster::start_local(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) }).unwrap();
    let endpoints = cluster.endpoints();
    let client = coppice_client::blocking::Client::connect(endpoints.iter().map(ToString::to_string)).unwrap();
    let mut asker = Asker::connect(&cluster);
    // One key in each partition, always written in key order: x in the first one, then the same x in the next.
    let keys: Vec<Vec<u8>> = (0..4u64).map(|n| (n << 62 | 5).to_be_bytes().to_vec()).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut queries, mut seen) = (0, std::collections::BTreeSet::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                for key in &keys {
                    client.put(key.as_slice(), round.to_be_bytes()).unwrap();
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(2);
        let mut last: Vec<u64> = vec![0; keys.len()];
        while Instant::now() < end {
            let (pairs, cut, _) = asker.query(&everything());
            assert_eq!(cut.parts.len(), 4, "{cut:?}");
            let values: Vec<u64> =
                pairs.iter().map(|(_, value)| u64::from_be_bytes(value[..].try_into().unwrap())).collect();
            // The writer waits for each answer: what was written later is never seen without what was written before,
            // and no query sees less than an earlier one.
            let mut expected = values.clone();
            expected.sort_by(|a, b| b.cmp(a));
            assert_eq!(values, expected, "a later write without an earlier one");
            if values.len() == keys.len() {
                assert!(values[0] - values[3] <= 1, "{values:?}");
                assert!(values.iter().zip(&last).all(|(now, before)| now >= before), "{values:?} after {last:?}");
                last = values.clone();
            }
            seen.insert(values);
            queries += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    println!("{queries} queries, {} different states", seen.len());
    assert!(queries > 20 && seen.len() > 5, "{queries} {}", seen.len());
}

#[test]
fn a_query_survives_the_coordinator_and_a_partitions_leader() {
    let directory = Directory::new("queries-failover");
    let mut cluster = Cluster::start_local(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) }).unwrap();
    let endpoints = cluster.endpoints();
    let client = coppice_client::blocking::Client::connect(endpoints.iter().map(ToString::to_string)).unwrap();
    for n in 0..40u64 {
        client.put((n << 58).to_be_bytes(), n.to_be_bytes()).unwrap();
    }
    let mut asker = Asker::connect(&cluster);
    assert_eq!(asker.query(&everything()).0.len(), 40);
    for at in 0..3 {
        cluster.stop(at);
        cluster.restart(at).unwrap();
        let mut asker = Asker::connect(&cluster);
        let since = Instant::now();
        let (pairs, _, attempts) = asker.query(&everything());
        println!("node {} restarted: {attempts} attempts, {:?}", at + 1, since.elapsed());
        assert_eq!(pairs.len(), 40);
        client.put((40u64 << 50 | at as u64).to_be_bytes(), b"x").unwrap();
        client.delete((40u64 << 50 | at as u64).to_be_bytes()).unwrap();
    }
}
