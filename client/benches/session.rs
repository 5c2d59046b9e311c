//! What a command costs the client: in the session alone, and with sockets, tasks and wakers against a server in this
//! process that answers at once: `cargo bench -p coppice-client --bench session`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_btree::{OpResult, Value};
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::session::{Effect, Input, Request as Call, Session};
use coppice_client::time::Time;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::*;
use coppice_client::{Callback, Client, Config, Operation};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn map(address: &str) -> PartitionMap {
    let replica = ReplicaInfo { replica: ReplicaId(1), node: NodeId(1), role: Role::Voter };
    let boundary = |n: u8| bytes::Bytes::from(vec![n * 64]);
    let entry = |n: u8| Entry {
        partition: PartitionId(u32::from(n) + 1),
        low: if n == 0 { bytes::Bytes::new() } else { boundary(n) },
        high: (n < 3).then(|| boundary(n + 1)),
        version: MapVersion(1),
        replicas: vec![replica],
    };
    let addresses = Addresses { native: address.into(), ..Addresses::default() };
    let node = NodeInfo { id: NodeId(1), name: "n1".into(), addresses, state: NodeState::Member };
    PartitionMap {
        cluster: ClusterId(1),
        version: MapVersion(1),
        nodes: vec![node],
        partitions: (0..4).map(entry).collect(),
        ..PartitionMap::default()
    }
}

/// Answers every frame at once, without a store behind.
fn answer(frame: &Frame, address: &str, scratch: &mut BytesMut, out: &mut BytesMut) {
    match Request::decode(frame).unwrap() {
        Request::Hello(_) => {
            let limits = Limits {
                frame_bytes: FRAME_BYTES_MAX as u32,
                key_bytes: KEY_BYTES_MAX as u32,
                value_bytes: VALUE_BYTES_MAX as u32,
                inflight: 1024,
                inflight_bytes: 16 << 20,
            };
            let node = Some(NodeIdentity { node: NodeId(1), incarnation: 1 });
            let cluster = Some(ClusterId(1));
            let ok = HelloOk {
                protocol: *coppice_client::wire::PROTOCOL.end(),
                features: 0,
                cluster,
                node,
                map_version: MapVersion(1),
                limits,
            };
            encode_control(out, Kind::HelloOk, 0, &ok);
        }
        Request::MapGet(_) => {
            encode_control(out, Kind::Map, frame.stream, &MapReply { map: Some(map(address)), leaders: Vec::new() });
        }
        Request::OpenSession(open) => {
            let mut replies = RepliesWriter::new(out);
            replies.opened(frame.stream, SessionId { partition: open.partition, instance: 1, index: 0 });
            replies.finish();
        }
        Request::Commands(request) => {
            let mut reply = PackReply::new(scratch, request.partition, 5, 0);
            let result = OpResult::Put { previous: Some(Value::from([7; 8])) };
            request.pack().unwrap().commands().for_each(|_| reply.result(&result));
            let answer = reply.finish_split();
            let mut replies = RepliesWriter::new(out);
            replies.answer(frame.stream, &answer).unwrap();
            replies.finish();
        }
        other => panic!("{other:?}"),
    }
}

struct Loop {
    session: Session,
    effects: Vec<Effect>,
    now: Time,
    completed: u64,
    to_node: FrameDecoder,
    to_client: FrameDecoder,
}

impl Loop {
    fn turn(&mut self) {
        self.session.step(self.now, Input::TurnEnd, &mut self.effects);
        let (mut inputs, mut scratch, mut out) = (Vec::new(), BytesMut::new(), BytesMut::new());
        while !self.effects.is_empty() {
            for effect in self.effects.drain(..) {
                match effect {
                    Effect::Connect { connection, .. } => inputs.push(Input::Connected(connection)),
                    Effect::Send { connection, bytes } => {
                        self.to_node.feed(&bytes);
                        while let Some(frame) = self.to_node.next_frame().unwrap() {
                            answer(&frame, "n1:7400", &mut scratch, &mut out);
                        }
                        self.to_client.feed(&out.split());
                        while let Some(frame) = self.to_client.next_frame().unwrap() {
                            inputs.push(Input::Frame { connection, frame });
                        }
                    }
                    Effect::Complete { .. } => self.completed += 1,
                    Effect::Close { .. } | Effect::Part { .. } => {}
                }
            }
            for input in inputs.drain(..) {
                self.session.step(self.now, input, &mut self.effects);
            }
            self.session.step(self.now, Input::TurnEnd, &mut self.effects);
        }
    }
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn sessions(criterion: &mut Criterion) {
    let session = Session::new(Config::default(), ClientId(1), 1, vec!["n1:7400".into()]);
    let mut world = Loop {
        session,
        effects: Vec::new(),
        now: Time::from_millis(1),
        completed: 0,
        to_node: FrameDecoder::default(),
        to_client: FrameDecoder::default(),
    };
    let mut group = criterion.benchmark_group("session");
    let mut n = 0;
    for together in [1u64, 64, 4096] {
        group.throughput(Throughput::Elements(together));
        group.bench_function(format!("{together} puts together, server's decoding included"), |bench| {
            bench.iter(|| {
                for _ in 0..together {
                    n += 1;
                    let command = Operation::put(key(n), key(n)).into();
                    let deadline = world.now + Duration::from_secs(5);
                    world.session.submit(n, deadline, Call::Command(command)).unwrap();
                }
                world.turn();
                world.now = world.now + Duration::from_micros(10);
            });
        });
    }
    assert_eq!(world.completed, n);
    group.finish();
}

/// A server on a thread of its own.
fn start_server() -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            sender.send(address.clone()).unwrap();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let address = address.clone();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    let (mut decoder, mut scratch, mut out) =
                        (FrameDecoder::default(), BytesMut::new(), BytesMut::new());
                    while stream.read_buf(decoder.space()).await.is_ok_and(|bytes| bytes > 0) {
                        while let Some(frame) = decoder.next_frame().unwrap() {
                            answer(&frame, &address, &mut scratch, &mut out);
                        }
                        stream.write_all(&out).await.unwrap();
                        out.clear();
                    }
                });
            }
        });
    });
    receiver.recv().unwrap()
}

fn sockets(criterion: &mut Criterion) {
    let address = start_server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect([address])).unwrap();
    let mut group = criterion.benchmark_group("client");
    let mut n = 0;
    group.throughput(Throughput::Elements(1));
    group.bench_function("one put after the other", |bench| {
        bench.iter(|| {
            n += 1;
            runtime.block_on(client.put(key(n), key(n))).unwrap()
        });
    });
    group.throughput(Throughput::Elements(4096));
    group.bench_function("execute 4096 puts", |bench| {
        bench.iter(|| {
            let operations = (0..4096).map(|i| Operation::put(key(n + i), key(n + i))).collect();
            n += 4096;
            let results = runtime.block_on(client.execute(operations));
            assert!(results.iter().all(Result::is_ok));
        });
    });
    let over = Arc::new(AtomicU64::new(0));
    let callback: Callback = {
        let over = Arc::clone(&over);
        Arc::new(move |_, outcome| {
            assert!(outcome.is_ok());
            over.fetch_add(1, Ordering::Relaxed);
        })
    };
    group.bench_function("4096 puts with callbacks, 1024 at a time", |bench| {
        bench.iter_custom(|rounds| {
            let started = Instant::now();
            let (mut sent, total) = (0, rounds * 4096);
            over.store(0, Ordering::Relaxed);
            runtime.block_on(async {
                while over.load(Ordering::Relaxed) < total {
                    while sent < total && sent - over.load(Ordering::Relaxed) < 1024 {
                        client.submit(Operation::put(key(sent), key(sent)), &callback, sent).unwrap();
                        sent += 1;
                    }
                    tokio::task::yield_now().await;
                }
            });
            started.elapsed()
        });
    });
    group.finish();
}

criterion_group!(benches, sessions, sockets);
criterion_main!(benches);
