//! Simulator, seed 330: a node told its map, and beside it who had led a partition before that was moved. Clients asked
//! that node from then on, which sent them away, for ever: it knew nothing newer than they.

use bytes::{Bytes, BytesMut};
use coppice_client::command::ReadMode;
use coppice_client::config::Config;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::session::{ConnectionId, Effect, Input, Request, Session};
use coppice_client::time::Time;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::FrameDecoder;
use coppice_client::wire::{
    ClientId, ClusterId, Frame, HelloOk, Kind, Limits, MapReply, MapVersion, NodeId, NodeIdentity, PartitionId,
    Refusal, ReplicaId,
};

const MOVED: PartitionId = PartitionId(1);
const SECOND: u64 = 1_000_000_000;

/// Partition 1 lives on these nodes.
fn map(nodes: &[u32]) -> PartitionMap {
    let node = |id: u32| NodeInfo {
        id: NodeId(id),
        name: format!("n{id}"),
        addresses: Addresses { native: format!("n{id}:1"), ..Addresses::default() },
        state: NodeState::Member,
    };
    let voter = |&id: &u32| ReplicaInfo { replica: ReplicaId(id), node: NodeId(id), role: Role::Voter };
    let replicas = nodes.iter().map(voter).collect();
    let entry = Entry { partition: MOVED, version: MapVersion(7), low: Bytes::new(), high: None, replicas };
    PartitionMap {
        version: MapVersion(7),
        nodes: vec![node(1), node(2)],
        partitions: vec![entry],
        ..PartitionMap::default()
    }
}

fn frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::new(4 << 20);
    decoder.feed(bytes);
    decoder.next_frame().expect("well formed").expect("whole")
}

fn hello(node: u32) -> Frame {
    let mut out = BytesMut::new();
    let limits = Limits {
        frame_bytes: 4 << 20,
        key_bytes: 4 << 10,
        value_bytes: 1 << 20,
        inflight: 64,
        inflight_bytes: 1 << 20,
        idle_ms: 0,
    };
    let ok = HelloOk {
        protocol: 1,
        features: 0,
        cluster: Some(ClusterId(9)),
        node: Some(NodeIdentity { node: NodeId(node), incarnation: 1 }),
        map_version: MapVersion(7),
        limits,
    };
    encode_control(&mut out, Kind::HelloOk, 0, &ok);
    frame(&out)
}

/// A client of two nodes, its clock, and what it dialled and asked since it was last looked at.
struct Bench {
    session: Session,
    now: Time,
    dialled: Vec<(ConnectionId, String)>,
    asked: Vec<(ConnectionId, Frame)>,
}

impl Bench {
    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.session.step(self.now, input, &mut effects);
        self.session.step(self.now, Input::TurnEnd, &mut effects);
        for effect in effects {
            match effect {
                Effect::Connect { connection, address } => self.dialled.push((connection, address)),
                Effect::Send { connection, bytes } => self.asked.push((connection, frame(&bytes))),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next question of this kind.
    fn asks(&mut self, kind: Kind) -> (ConnectionId, Frame) {
        for _ in 0..20 {
            if let Some(at) = self.asked.iter().position(|(_, frame)| frame.kind == kind as u8) {
                return self.asked.remove(at);
            }
            self.now = self.session.deadline().expect("it goes on").max(self.now);
            self.step(Input::Tick);
        }
        panic!("no {kind:?} in {:?}", self.asked);
    }

    fn answer(&mut self, (connection, asked): (ConnectionId, Frame), encode: impl Fn(&mut BytesMut, u32)) {
        let mut out = BytesMut::new();
        encode(&mut out, asked.stream);
        self.step(Input::Frame { connection, frame: frame(&out) });
    }
}

/// A client with a get that waits, when node 2 has told it the map, and that `leader` leads.
fn start(nodes: &[u32], leader: NodeId) -> Bench {
    let session = Session::new(Config::default(), ClientId(3), 1, vec!["n2:1".into()]);
    let mut bench = Bench { session, now: Time(SECOND), dialled: Vec::new(), asked: Vec::new() };
    let get = Request::Get { key: b"k"[..].into(), mode: ReadMode::Leader };
    bench.session.submit(1, Time(60 * SECOND), get).expect("there is room");
    bench.step(Input::Tick);
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello(2) });
    let asked = bench.asks(Kind::MapGet);
    let reply = MapReply { map: Some(map(nodes)), leaders: vec![(MOVED, leader)] };
    bench.answer(asked, |out, stream| {
        encode_control(out, Kind::Map, stream, &reply);
    });
    bench
}

#[test]
fn who_is_no_replica_by_the_map_is_not_followed() {
    let bench = start(&[1], NodeId(2));
    let addresses: Vec<&str> = bench.dialled.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses, ["n1:1"]);
}

/// The other half: whoever has not got the partition does not lead it, whatever the map and others say.
#[test]
fn who_has_not_got_the_partition_is_not_followed() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello(1) });
    let asked = bench.asks(Kind::Read);
    assert_eq!(asked.0, connection, "it leads, it is said");
    let entries = map(&[1, 2]).partitions;
    let refusal = Refusal::WrongPartition { partition: MOVED, version: MapVersion(7), entries };
    bench.answer(asked, |out, stream| refusal.encode(out, stream));
    assert_ne!(bench.asks(Kind::Read).0, connection, "the other one may lead");
}
