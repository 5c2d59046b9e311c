//! A real cluster in one process: real sockets, files, flushes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_btree::Op;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    AdminReply, AdminRequest, ClientId, Frame, FrameDecoder, Hello, Kind, MapGet, MapReply, OpenRequest, PROTOCOL,
    PackWriter, PartitionId, Refusal, ReplicaStatus, Replies, SessionId, Status, StatusGet,
};
use coppice_server::local::{Cluster, LocalOptions, admin};

struct Raw {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Raw {
    fn connect(address: SocketAddr) -> Raw {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let hello = Hello {
            protocol_min: *PROTOCOL.start(),
            protocol_max: *PROTOCOL.end(),
            client: ClientId(7),
            ..Hello::default()
        };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 1, &hello);
        stream.write_all(&out).unwrap();
        let mut raw = Raw { stream, decoder: FrameDecoder::default() };
        assert_eq!(raw.frame().kind, Kind::HelloOk as u8);
        raw
    }

    fn frame(&mut self) -> Frame {
        let mut buffer = [0; 65536];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the connection was closed");
            self.decoder.feed(&buffer[..count]);
        }
    }

    fn ask(&mut self, out: &BytesMut) -> Frame {
        self.stream.write_all(out).unwrap();
        self.frame()
    }

    fn map(&mut self) -> MapReply {
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::MapGet, 9, &MapGet::default());
        decode_control(&self.ask(&out).body, "map").unwrap()
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

/// A session in one partition at its leader.
struct Writer {
    raw: Raw,
    session: SessionId,
    partition: PartitionId,
    number: u64,
}

impl Writer {
    fn open(endpoints: &[SocketAddr], partition: PartitionId) -> Writer {
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, 3, partition, ClientId(7), 1);
        // Any node may be asked; one that does not lead refuses, so the next one is.
        let mut asked = (0..300).map(|at| {
            let mut raw = Raw::connect(endpoints[at % endpoints.len()]);
            let frame = raw.ask(&out);
            (raw, frame)
        });
        let (raw, frame) = asked.find(|(_, frame)| frame.kind == Kind::Replies as u8).expect("no node leads");
        let section = Replies::new(&frame.body).next().unwrap().unwrap();
        let session = SessionId::at(section.results().next().unwrap().0);
        Writer { raw, session, partition, number: 0 }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.number += 1;
        let mut pack = PackWriter::new(Vec::new(), self.session, self.number, false, 1 << 20);
        pack.push(self.number, Op::Put { key, value }).unwrap();
        let out = BytesMut::from(&pack.finish(self.partition, 4).unwrap()[..]);
        let frame = self.raw.ask(&out);
        assert_eq!(frame.kind, Kind::Replies as u8, "{:?}", Refusal::decode(&frame.body));
    }
}

fn status(endpoint: SocketAddr) -> Status {
    let mut out = BytesMut::new();
    encode_control(&mut out, Kind::Status, 9, &StatusGet { local: false });
    decode_control(&Raw::connect(endpoint).ask(&out).body, "status").unwrap()
}

/// Waits for `wanted`, with a deadline far above what it takes.
fn wait_for(what: &str, mut wanted: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !wanted() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn durable_writes_at_every_leader_outlive_the_whole_cluster() {
    let directory = Directory::new("outlive");
    let options = LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) };
    let cluster = Cluster::start_local(&options).unwrap();
    let endpoints = cluster.endpoints();
    let map = Raw::connect(endpoints[0]).map().map.unwrap();
    assert_eq!(map.partitions.len(), 4);
    for entry in &map.partitions {
        let mut writer = Writer::open(&endpoints, entry.partition);
        for n in 0..50u32 {
            let key = [&entry.low[..], &n.to_be_bytes()].concat();
            writer.put(&key, b"value");
        }
    }
    drop(cluster);
    let cluster = Cluster::start_local(&options).unwrap();
    let endpoints = cluster.endpoints();
    wait_for("all keys are there again", || {
        let status = status(endpoints[1]);
        let data = status.partitions.iter().filter(|partition| partition.id != PartitionId::DIRECTORY);
        status.tolerated_failures == 1 && data.map(|partition| partition.keys).sum::<u64>() == 200
    });
}

#[test]
fn a_replica_behind_the_trimmed_log_gets_a_snapshot_and_the_same_state() {
    let directory = Directory::new("behind");
    let mut options = LocalOptions::new(&directory.0);
    options.node.checkpoint.log_bytes = 64 << 10;
    options.settings = vec![("digest_interval".into(), "10".into())];
    let mut cluster = Cluster::start_local(&options).unwrap();
    let endpoints = cluster.endpoints();
    let leader = Raw::connect(endpoints[0]).map().leaders.iter().find(|(id, _)| *id == PartitionId(1)).unwrap().1;
    let behind = leader.0 as usize % 3;
    let alive = (behind + 1) % 3;
    cluster.stop(behind);
    let mut writer = Writer::open(&[endpoints[leader.0 as usize - 1], endpoints[alive]], PartitionId(1));
    let value = vec![7; 8 << 10];
    let mut n = 0u32;
    wait_for("the log is trimmed", || {
        for _ in 0..20 {
            writer.put(&n.to_be_bytes(), &value);
            n += 1;
        }
        let status = status(endpoints[alive]);
        status.partitions.iter().any(|partition| partition.id == PartitionId(1) && partition.trimmed_upto > 20)
    });
    cluster.restart(behind).unwrap();
    wait_for("the replica that was behind has caught up", || {
        let status = status(endpoints[alive]);
        let partition = status.partitions.iter().find(|partition| partition.id == PartitionId(1)).unwrap();
        let caught_up = |replica: &ReplicaStatus| replica.up && replica.lag_instances == 0;
        status.tolerated_failures == 1 && partition.replicas.iter().all(caught_up)
    });
    for k in 0..40u32 {
        writer.put(&(n + k).to_be_bytes(), b"after");
    }
    match admin(endpoints[alive], AdminRequest::Verify, Duration::from_secs(5)).unwrap() {
        AdminReply::Verified { .. } => {}
        reply => panic!("{reply:?}"),
    }
}
