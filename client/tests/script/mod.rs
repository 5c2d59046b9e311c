//! A session and what it wants of the world, step by step: no sockets, no time but the one given.

#![allow(dead_code)]

use bytes::{Bytes, BytesMut};
use coppice_client::command::ReadMode;
use coppice_client::config::Config;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::session::{ConnectionId, Effect, Input, Request, Session};
use coppice_client::time::Time;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::FrameDecoder;
use coppice_client::wire::{
    ClientId, ClusterId, FEATURE_UPDATE, Frame, HelloOk, Kind, Limits, MapReply, MapVersion, NodeId, NodeIdentity,
    PROTOCOL, PartitionId, ReplicaId,
};

/// The only partition.
pub const PARTITION: PartitionId = PartitionId(1);
pub const SECOND: u64 = 1_000_000_000;

/// Partition 1 lives on these nodes.
pub fn map(nodes: &[u32]) -> PartitionMap {
    let node = |id: u32| NodeInfo {
        id: NodeId(id),
        name: format!("n{id}"),
        addresses: Addresses { native: format!("n{id}:1"), ..Addresses::default() },
        state: NodeState::Member,
    };
    let voter = |&id: &u32| ReplicaInfo { replica: ReplicaId(id), node: NodeId(id), role: Role::Voter };
    let replicas = nodes.iter().map(voter).collect();
    let entry = Entry { partition: PARTITION, version: MapVersion(7), low: Bytes::new(), high: None, replicas };
    PartitionMap {
        cluster: ClusterId(9),
        version: MapVersion(7),
        nodes: vec![node(1), node(2)],
        partitions: vec![entry],
        ..PartitionMap::default()
    }
}

pub fn frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::new(4 << 20);
    decoder.feed(bytes);
    decoder.next_frame().expect("well formed").expect("whole")
}

pub fn hello(node: u32) -> Frame {
    hello_of(node, MapVersion(7))
}

/// The greeting of a node of version 0.1.
pub fn hello_of_older(node: u32) -> Frame {
    greeting(node, MapVersion(7), 0)
}

/// The greeting of a node that knows a map of this version.
pub fn hello_of(node: u32, map_version: MapVersion) -> Frame {
    greeting(node, map_version, FEATURE_UPDATE)
}

fn greeting(node: u32, map_version: MapVersion, features: u64) -> Frame {
    let mut out = BytesMut::new();
    let limits = Limits {
        frame_bytes: 4 << 20,
        key_bytes: 4 << 10,
        value_bytes: 1 << 20,
        inflight: 64,
        inflight_bytes: 1 << 20,
    };
    let ok = HelloOk {
        protocol: *PROTOCOL.end(),
        features,
        cluster: Some(ClusterId(9)),
        node: Some(NodeIdentity { node: NodeId(node), incarnation: 1 }),
        map_version,
        limits,
    };
    encode_control(&mut out, Kind::HelloOk, 0, &ok);
    frame(&out)
}

/// A client of two nodes, its clock, and what it dialled, asked and closed since it was last looked at.
pub struct Bench {
    pub session: Session,
    pub now: Time,
    pub dialled: Vec<(ConnectionId, String)>,
    pub asked: Vec<(ConnectionId, Frame)>,
    pub closed: Vec<ConnectionId>,
    pub answered: usize,
    /// Parts of ranges that came; none: none is to come.
    pub parts: Option<usize>,
}

impl Bench {
    pub fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.session.step(self.now, input, &mut effects);
        self.session.step(self.now, Input::TurnEnd, &mut effects);
        for effect in effects {
            match effect {
                Effect::Connect { connection, address } => self.dialled.push((connection, address)),
                Effect::Send { connection, bytes } => self.asked.push((connection, frame(&bytes))),
                Effect::Close { connection } => self.closed.push(connection),
                Effect::Complete { result, .. } => self.answered += usize::from(result.is_ok()),
                other @ Effect::Part { .. } => match &mut self.parts {
                    Some(parts) => *parts += 1,
                    None => panic!("{other:?}"),
                },
            }
        }
    }

    /// The next question of this kind.
    pub fn asks(&mut self, kind: Kind) -> (ConnectionId, Frame) {
        for _ in 0..20 {
            if let Some(at) = self.asked.iter().position(|(_, frame)| frame.kind == kind as u8) {
                return self.asked.remove(at);
            }
            self.now = self.session.deadline().expect("it goes on").max(self.now);
            self.step(Input::Tick);
        }
        panic!("no {kind:?} in {:?}", self.asked);
    }

    pub fn answer(&mut self, (connection, asked): (ConnectionId, Frame), encode: impl Fn(&mut BytesMut, u32)) {
        let mut out = BytesMut::new();
        encode(&mut out, asked.stream);
        self.step(Input::Frame { connection, frame: frame(&out) });
    }
}

/// A client with a get that waits, when node 2 has told it the map, and that `leader` leads.
pub fn start(nodes: &[u32], leader: NodeId) -> Bench {
    let session = Session::new(Config::default(), ClientId(3), 1, vec!["n2:1".into()]);
    let (dialled, asked, closed) = (Vec::new(), Vec::new(), Vec::new());
    let mut bench = Bench { session, now: Time(SECOND), dialled, asked, closed, answered: 0, parts: None };
    let get = Request::Get { key: b"k"[..].into(), mode: ReadMode::Leader };
    bench.session.submit(1, Time(60 * SECOND), get).expect("there is room");
    bench.step(Input::Tick);
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello(2) });
    let asked = bench.asks(Kind::MapGet);
    let reply = MapReply { map: Some(map(nodes)), leaders: vec![(PARTITION, leader)] };
    bench.answer(asked, |out, stream| {
        encode_control(out, Kind::Map, stream, &reply);
    });
    bench
}
