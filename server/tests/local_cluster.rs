//! A real cluster in one process: real sockets, files, flushes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_btree::Op;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{
    ClientId, Frame, FrameDecoder, Hello, Kind, MapGet, MapReply, OpenRequest, PROTOCOL, PackWriter, PartitionId,
    Position, Refusal, Replies, ResultRef, SessionId,
};
use coppice_server::local::{Cluster, LocalOptions};

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

#[test]
fn three_nodes_take_durable_writes_at_the_leader_of_each_partition() {
    let directory = std::env::temp_dir().join(format!("coppice-local-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options = LocalOptions { nodes: 3, partitions: 4, settings: Vec::new(), directory: directory.clone() };
    let begun = Instant::now();
    let cluster = Cluster::start_local(&options).unwrap();
    println!("formed in {:?}", begun.elapsed());
    let endpoints = cluster.endpoints();
    let map = Raw::connect(endpoints[0]).map();
    let partitions = map.map.unwrap();
    assert_eq!(partitions.partitions.len(), 4);
    for entry in &partitions.partitions {
        let leader = map.leaders.iter().find(|(id, _)| *id == entry.partition).unwrap().1;
        let mut raw = Raw::connect(endpoints[leader.0 as usize - 1]);
        let mut out = BytesMut::new();
        OpenRequest::encode(&mut out, 3, entry.partition, ClientId(7), 1);
        let frame = raw.ask(&out);
        assert_eq!(frame.kind, Kind::Replies as u8, "{:?}", Refusal::decode(&frame.body));
        let section = Replies::new(&frame.body).next().unwrap().unwrap();
        let session = SessionId::at(section.results().next().unwrap().0);
        let mut latencies = Vec::new();
        for number in 1..=200u64 {
            let mut pack = PackWriter::new(BytesMut::new(), session, number, false, 1 << 16);
            let mut key = entry.low.to_vec();
            key.extend_from_slice(format!("k{number}").as_bytes());
            pack.push(number, Op::Put { key: &key, value: b"value" }).unwrap();
            let out = BytesMut::from(&pack.finish(entry.partition, 4).unwrap()[..]);
            let begun = Instant::now();
            let frame = raw.ask(&out);
            latencies.push(begun.elapsed());
            assert_eq!(frame.kind, Kind::Replies as u8, "{:?}", Refusal::decode(&frame.body));
        }
        latencies.sort();
        println!("{}: put p50 {:?} p99 {:?}", entry.partition, latencies[100], latencies[197]);
    }
    drop(cluster);
    let begun = Instant::now();
    let cluster = Cluster::start_local(&options).unwrap();
    println!("again in {:?}", begun.elapsed());
    drop(cluster);
    std::fs::remove_dir_all(&directory).unwrap();
    let _ = (PartitionId(0), Position::default(), ResultRef::Opened);
}
