//! A server of one node in a thread, without replication or disk: the public protocol over a real socket and a real
//! tree, so that the native target can be tested, and its cost measured, alone.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use coppice_btree::{KeyRange, Tree, Undo};
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::control::{HelloOk, Limits, MapReply, NodeIdentity, encode_control};
use coppice_client::wire::part::PartHead;
use coppice_client::wire::*;

/// What all connections share.
pub struct State {
    map: PartitionMap,
    trees: Vec<Tree>,
    instances: Vec<u64>,
    undo: Undo,
    /// Results of numbered commands that may be repeated, with their positions (protocol.md 6).
    answered: BTreeMap<(SessionId, u64), (Position, Vec<u8>)>,
    /// Packs and reads to leave unanswered, and to refuse as busy, from now on.
    pub silent: bool,
}

/// The server; it ends with the process.
pub struct Mini {
    pub address: String,
    /// Its state, to look at and to disturb.
    pub state: Arc<Mutex<State>>,
}

impl Mini {
    /// `partitions` even pieces of the space of 8-byte keys.
    pub fn start(partitions: u64) -> Mini {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let boundary =
            |i: u64| bytes::Bytes::copy_from_slice(&(((i as u128) << 64) / partitions as u128).to_be_bytes()[8..]);
        let replicas = vec![ReplicaInfo { replica: ReplicaId(1), node: NodeId(1), role: Role::Voter }];
        let entry = |i: u64| Entry {
            partition: PartitionId(i as u32 + 1),
            low: if i == 0 { bytes::Bytes::new() } else { boundary(i) },
            high: (i + 1 < partitions).then(|| boundary(i + 1)),
            version: MapVersion(1),
            replicas: replicas.clone(),
        };
        let addresses = Addresses { native: address.clone(), ..Addresses::default() };
        let node = NodeInfo { id: NodeId(1), name: "mini".into(), addresses, state: NodeState::Member };
        let map = PartitionMap {
            cluster: ClusterId(7),
            version: MapVersion(1),
            nodes: vec![node],
            directory: Some(Entry { replicas: replicas.clone(), ..Entry::default() }),
            partitions: (0..partitions).map(entry).collect(),
            ending: Vec::new(),
        };
        let count = partitions as usize;
        let state = State {
            map,
            trees: (0..count).map(|_| Tree::new()).collect(),
            instances: vec![0; count],
            undo: Undo::new(),
            answered: BTreeMap::new(),
            silent: false,
        };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Mini { address, state }
    }

    /// Keys in all partitions.
    pub fn keys(&self) -> u64 {
        self.state.lock().unwrap().trees.iter().map(|tree| tree.len()).sum()
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    stream.set_nodelay(true).unwrap();
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 256 * 1024];
    let mut out = BytesMut::new();
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            return;
        }
        decoder.feed(&buffer[..count]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            let request = Request::decode(&frame).unwrap();
            state.lock().unwrap().answer(frame.stream, request, &mut out);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}

impl State {
    fn answer(&mut self, stream: u32, request: Request, out: &mut BytesMut) {
        match request {
            Request::Hello(_) => {
                let ok = HelloOk {
                    protocol: *coppice_client::wire::PROTOCOL.end(),
                    features: 0,
                    cluster: Some(ClusterId(7)),
                    node: Some(NodeIdentity { node: NodeId(1), incarnation: 1 }),
                    map_version: self.map.version,
                    limits: Limits {
                        frame_bytes: FRAME_BYTES_MAX as u32,
                        key_bytes: KEY_BYTES_MAX as u32,
                        value_bytes: VALUE_BYTES_MAX as u32,
                        inflight: 1_024,
                        inflight_bytes: 16 << 20,
                    },
                };
                encode_control(out, Kind::HelloOk, stream, &ok);
            }
            Request::MapGet(_) => {
                let leaders = self.map.partitions.iter().map(|entry| (entry.partition, NodeId(1))).collect();
                encode_control(out, Kind::Map, stream, &MapReply { map: Some(self.map.clone()), leaders });
            }
            _ if self.silent => {}
            Request::OpenSession(open) => {
                let position = self.next(open.partition);
                let mut replies = RepliesWriter::new(out);
                replies.opened(stream, SessionId::at(position));
                replies.finish();
            }
            Request::Commands(commands) => self.commands(stream, &commands, out),
            Request::Read(read) => {
                let tree = &self.trees[read.partition.0 as usize - 1];
                let mut answer = BytesMut::new();
                let instance = self.instances[read.partition.0 as usize - 1];
                let mut writer = AnswerWriter::read(&mut answer, read.partition, instance, 0);
                read.keys().for_each(|key| writer.value(tree.get(key)));
                writer.finish();
                reply(out, stream, &answer);
            }
            Request::Range(range) => self.range(stream, &range, out),
            Request::Credit(_) | Request::Cancel | Request::PartCredit { .. } | Request::PartCancel { .. } => {}
            Request::Compare(_) | Request::PartCompare { .. } => panic!("nobody was told that this is understood"),
            // It says of no feature that it would need these.
            Request::Collect(_) | Request::Validate(_) | Request::Query(_) => {
                Refusal::Unavailable { text: "not here".into() }.encode(out, stream);
            }
            Request::Ping | Request::Status(_) | Request::Admin(_) => {
                Refusal::Unavailable { text: "not here".into() }.encode(out, stream);
            }
        }
    }

    fn next(&mut self, partition: PartitionId) -> Position {
        let instance = &mut self.instances[partition.0 as usize - 1];
        *instance += 1;
        Position { partition, instance: *instance, index: 0 }
    }

    fn commands(&mut self, stream: u32, commands: &CommandsRequest, out: &mut BytesMut) {
        let position = self.next(commands.partition);
        let State { trees, undo, answered, .. } = self;
        let tree = &mut trees[commands.partition.0 as usize - 1];
        let pack = commands.pack().unwrap();
        let lowest = (commands.session, pack.lowest_unacknowledged());
        answered.retain(|name, _| name.0 != lowest.0 || *name >= lowest);
        let mut answer = BytesMut::new();
        let mut writer = AnswerWriter::new(&mut answer, commands.partition, position.instance, 0);
        for (index, (number, command)) in (0..).zip(pack.commands()) {
            let name = (commands.session, number);
            if let Some((first, result)) = answered.get(&name) {
                writer.repeated(*first, result);
                continue;
            }
            match command {
                Command::Op(op) => writer.result(&tree.execute(op, undo)),
                Command::Many(ops) => {
                    let results: Vec<_> = ops.iter().map(|op| tree.execute(op, undo)).collect();
                    writer.many(results.iter());
                }
                Command::Load(pairs) => match tree.load(pairs.iter(), undo) {
                    Ok(count) => writer.loaded(count),
                    Err(coppice_btree::LoadError::Present { index }) => writer.not_loaded(index),
                    Err(error) => panic!("{error}"),
                },
            }
            answered.insert(name, (Position { index, ..position }, writer.last_result().to_vec()));
        }
        writer.finish();
        undo.forget_all();
        reply(out, stream, &answer);
    }

    fn range(&mut self, stream: u32, range: &RangeRequest, out: &mut BytesMut) {
        let tree = &self.trees[range.partition.0 as usize - 1];
        let high = range.high.as_deref();
        let bounds = match high {
            Some(high) => KeyRange::new(&range.low, high),
            None => KeyRange::from(&range.low),
        };
        let instance = self.instances[range.partition.0 as usize - 1];
        let position = Position { partition: range.partition, instance, index: 0 };
        let head = PartHead { stream, position, ticket: None, version: None, keys_only: false };
        let limit = if range.scan.pairs_max == 0 { usize::MAX } else { range.scan.pairs_max as usize };
        let pairs: Vec<_> = tree.range(&bounds).take(limit).collect();
        let eight = pairs.iter().all(|(key, value)| key.as_slice().len() == 8 && value.len() == 8);
        let (mut sent, mut number) = (0, 0);
        loop {
            let mut part = PartWriter::new(out, &head, number, eight);
            let count = pairs[sent..].iter().take_while(|(key, value)| part.push(key.as_slice(), value)).count();
            let done = sent + count == pairs.len();
            part.finish(sent as u64, done.then_some(PartEnd::Complete));
            sent += count;
            number += 1;
            if done {
                return;
            }
        }
    }
}

fn reply(out: &mut BytesMut, stream: u32, answer: &[u8]) {
    let mut replies = RepliesWriter::new(out);
    replies.answer(stream, answer).unwrap();
    replies.finish();
}
