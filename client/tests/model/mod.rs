//! A cluster as a client sees it, without sockets and in simulated time: it loses connections, repeats and delays what
//! it was sent, changes leaders, splits partitions and lets sessions expire. It executes as the servers promise to
//! (protocol.md 6, 8), and keeps book of every execution.

#![allow(dead_code)]

pub mod moments;
mod nodes;
pub mod queries;
pub mod run;
mod store;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::session::{CallKey, ConnectionId, Effect, Input, Session};
use coppice_client::time::Time;
use coppice_client::wire::*;
use coppice_testkit::random::Random;
#[allow(unused_imports)] // Each test program uses a part of it.
pub use store::{Execution, ModelPartition, contains, execute_pack};

/// How wild the world is, in permille per occasion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    pub cut: u64,
    pub busy: u64,
    pub repeat: u64,
    pub lost_apply: u64,
    pub deposed: u64,
    pub leader_change: u64,
    pub expire: u64,
    pub split: u64,
    pub pause: u64,
    /// A chunk of a range is left out: what the numbers are for.
    pub lost_part: u64,
    pub connect_fails: u64,
    pub delay_ms: u64,
}

/// Nothing goes wrong.
pub const CALM: Chaos = Chaos {
    cut: 0,
    busy: 0,
    repeat: 0,
    lost_apply: 0,
    deposed: 0,
    leader_change: 0,
    expire: 0,
    split: 0,
    pause: 0,
    lost_part: 0,
    connect_fails: 0,
    delay_ms: 1,
};

#[derive(Debug)]
enum Event {
    Opened(ConnectionId, bool),
    ToNode(ConnectionId, Bytes),
    ToClient(ConnectionId, Bytes),
    Apply { partition: PartitionId, entry: Bytes, reply: Option<(ConnectionId, u32)> },
    Lost(ConnectionId),
    Query(queries::QueryEvent),
}

#[derive(Debug)]
struct Line {
    node: u32,
    decoder: FrameDecoder,
    from_node: FrameDecoder,
    client_open: bool,
    node_open: bool,
    greeted: bool,
    /// Bytes keep their order, each way.
    to_node: Time,
    to_client: Time,
}

pub struct World {
    pub now: Time,
    pub rng: Random,
    pub chaos: Chaos,
    pub partitions: Vec<ModelPartition>,
    pub nodes: u32,
    pub version: u64,
    pub initialized: bool,
    /// Nodes refuse every greeting.
    pub unfriendly: bool,
    /// Every node takes the client for a stranger.
    pub estranged: bool,
    /// The client's user may not touch keys that begin with this byte.
    pub denied: Option<u8>,
    /// This node lost its disk: it belongs to no cluster and knows no map.
    pub blank: Option<u32>,
    /// Every execution by what was written: unique values name their command.
    pub executions: BTreeMap<Vec<u8>, Vec<Execution>>,
    pub parts: BTreeMap<u64, Vec<Bytes>>,
    pub completed: Vec<(
        Time,
        u64,
        Result<coppice_client::command::Answer<coppice_client::command::Output>, coppice_client::error::Error>,
    )>,
    /// Frames by kind that nodes received.
    pub received: BTreeMap<u8, u64>,
    lines: BTreeMap<ConnectionId, Line>,
    events: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    paused_until: BTreeMap<u32, Time>,
    ranges: BTreeMap<(ConnectionId, u32), nodes::RangeState>,
    pub queries: queries::Queries,
    pub moments: moments::Moments,
    /// What was read is found unchanged, if it is.
    pub validates: bool,
    /// Nodes that send a client elsewhere do not say where: it must ask for the map.
    pub terse: bool,
    /// Nodes read ranges over several partitions.
    pub server_collects: bool,
    /// Nodes know looks as reads.
    pub looks: bool,
    /// The nodes that were asked to, in turn.
    pub collecting: Vec<u32>,
}

pub const CLUSTER: ClusterId = ClusterId(0x00c0_ffee);

impl World {
    pub fn new(seed: u64, chaos: Chaos, splits: &[&'static str]) -> World {
        let mut rng = Random::new(seed);
        let mut bounds: Vec<Bytes> = vec![Bytes::new()];
        bounds.extend(splits.iter().map(|split| Bytes::from_static(split.as_bytes())));
        let partitions = (0..bounds.len()).map(|at| ModelPartition {
            id: PartitionId(at as u32 + 1),
            low: bounds[at].clone(),
            high: bounds.get(at + 1).cloned(),
            leader: rng.below(3) as u32 + 1,
            data: BTreeMap::new(),
            sessions: BTreeMap::new(),
            instance: 1,
            version: 1,
        });
        let partitions = partitions.collect();
        World {
            now: Time::from_millis(1),
            rng,
            chaos,
            partitions,
            nodes: 3,
            version: 1,
            initialized: true,
            unfriendly: false,
            estranged: false,
            denied: None,
            blank: None,
            executions: BTreeMap::new(),
            parts: BTreeMap::new(),
            completed: Vec::new(),
            received: BTreeMap::new(),
            lines: BTreeMap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            paused_until: BTreeMap::new(),
            ranges: BTreeMap::new(),
            queries: queries::Queries { coordinator: 1, round: 1, ..Default::default() },
            moments: moments::Moments::default(),
            validates: true,
            terse: false,
            server_collects: false,
            looks: false,
            collecting: Vec::new(),
        }
    }

    /// From now on a node hears nothing and says nothing, and leads nothing.
    pub fn silence(&mut self, node: u32) {
        self.paused_until.insert(node, Time::NEVER);
        self.depose(node);
    }

    /// From now on a node is an empty process at its old address. Its connections break.
    pub fn lose_disk(&mut self, node: u32) {
        self.blank = Some(node);
        self.depose(node);
        let lost: Vec<ConnectionId> =
            self.lines.iter().filter(|(_, line)| line.node == node && line.client_open).map(|(id, _)| *id).collect();
        for connection in lost {
            self.schedule(self.now, Event::Lost(connection));
        }
    }

    fn depose(&mut self, node: u32) {
        for partition in &mut self.partitions {
            if partition.leader == node {
                partition.leader = node % self.nodes + 1;
            }
        }
        if self.queries.coordinator == node {
            self.queries.coordinator = node % self.nodes + 1;
        }
    }

    /// Frames of this kind that nodes have received.
    pub fn count(&self, kind: Kind) -> u64 {
        self.received.get(&(kind as u8)).copied().unwrap_or(0)
    }

    pub fn endpoints(&self) -> Vec<String> {
        (1..=self.nodes).map(|node| format!("n{node}:7400")).collect()
    }

    fn entry_of(&self, partition: &ModelPartition) -> Entry {
        let replica = |node| ReplicaInfo { replica: ReplicaId(node), node: NodeId(node), role: Role::Voter };
        Entry {
            partition: partition.id,
            low: partition.low.clone(),
            high: partition.high.clone(),
            version: MapVersion(partition.version),
            replicas: (1..=self.nodes).map(replica).collect(),
        }
    }

    pub fn map(&self) -> PartitionMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: Addresses { native: format!("n{id}:7400"), ..Addresses::default() },
            state: NodeState::Member,
        };
        let mut directory = self.entry_of(&self.partitions[0]);
        (directory.partition, directory.low, directory.high) = (PartitionId::DIRECTORY, Bytes::new(), None);
        PartitionMap {
            cluster: CLUSTER,
            version: MapVersion(self.version),
            nodes: (1..=self.nodes).map(node).collect(),
            directory: Some(directory),
            ending: Vec::new(),
            partitions: self.partitions.iter().map(|partition| self.entry_of(partition)).collect(),
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn delay(&mut self) -> Duration {
        let mut millis = self.rng.below(self.chaos.delay_ms.max(1)) * 1000 + self.rng.below(1000);
        if self.chaos.delay_ms > 1 && self.rng.chance(20) {
            millis *= 20;
        }
        Duration::from_micros(millis.max(50))
    }

    pub fn carry_out(&mut self, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Connect { connection, address } => {
                    let node = address[1..].split(':').next().unwrap().parse().unwrap();
                    let line = Line {
                        node,
                        decoder: FrameDecoder::default(),
                        from_node: FrameDecoder::default(),
                        client_open: true,
                        node_open: true,
                        greeted: false,
                        to_node: self.now,
                        to_client: self.now,
                    };
                    self.lines.insert(connection, line);
                    let ok = !self.rng.chance(self.chaos.connect_fails);
                    // Some attempts hang: the session must notice by itself.
                    if ok || self.rng.chance(500) {
                        let at = self.now + self.delay();
                        self.schedule(at, Event::Opened(connection, ok));
                    }
                }
                Effect::Send { connection, bytes } => {
                    let at = self.now + self.delay();
                    let line = self.lines.get_mut(&connection).expect("sent on a connection that was opened");
                    line.to_node = line.to_node.max(at);
                    let at = line.to_node;
                    self.schedule(at, Event::ToNode(connection, bytes));
                    if self.rng.chance(self.chaos.cut) {
                        self.cut(connection);
                    }
                }
                Effect::Close { connection } => {
                    if let Some(line) = self.lines.get_mut(&connection) {
                        line.client_open = false;
                    }
                }
                Effect::Complete { token, result, .. } => {
                    self.moments.ended(token);
                    self.completed.push((self.now, token, result));
                }
                Effect::Part { token, part, .. } => {
                    self.given(token, &part);
                    self.parts.entry(token).or_default().push(part);
                }
            }
        }
    }

    /// The connection breaks: what is under way to the node may still arrive, the client hears nothing more.
    fn cut(&mut self, connection: ConnectionId) {
        let at = self.now + self.delay();
        if self.rng.chance(500)
            && let Some(line) = self.lines.get_mut(&connection)
        {
            line.node_open = false;
        }
        self.schedule(at, Event::Lost(connection));
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Time> {
        self.events.keys().next().map(|key| key.0)
    }

    /// Lets the next thing happen; the session hears of it.
    pub fn happen(&mut self, session: &mut Session, effects: &mut Vec<Effect>) {
        let Some(((at, _), event)) = self.events.pop_first() else { return };
        self.now = self.now.max(at);
        match event {
            Event::Opened(connection, ok) => {
                let input = if ok {
                    Input::Connected(connection)
                } else {
                    self.lines.get_mut(&connection).unwrap().client_open = false;
                    Input::Disconnected { connection, reason: "refused the connection".into() }
                };
                session.step(self.now, input, effects);
            }
            Event::Lost(connection) => {
                let line = self.lines.get_mut(&connection).unwrap();
                if std::mem::replace(&mut line.client_open, false) {
                    line.node_open = false;
                    let reason = "lost the connection".to_string();
                    session.step(self.now, Input::Disconnected { connection, reason }, effects);
                }
            }
            Event::ToNode(connection, bytes) => self.node_receives(connection, bytes),
            Event::ToClient(connection, bytes) => {
                let line = self.lines.get_mut(&connection).unwrap();
                if line.client_open {
                    line.from_node.feed(&bytes);
                    let mut frames = Vec::new();
                    while let Some(frame) = line.from_node.next_frame().unwrap() {
                        frames.push(frame);
                    }
                    for frame in frames {
                        session.step(self.now, Input::Frame { connection, frame }, effects);
                    }
                }
            }
            Event::Apply { partition, entry, reply } => self.apply(partition, &entry, reply),
            Event::Query(event) => self.query_event(event, session, effects),
        }
        self.stir();
        self.stir_queries();
    }

    /// Now and then the world changes by itself.
    fn stir(&mut self) {
        let chaos = self.chaos;
        if self.rng.chance(chaos.leader_change) {
            let at = self.rng.below(self.partitions.len() as u64) as usize;
            self.partitions[at].leader = self.rng.below(u64::from(self.nodes)) as u32 + 1;
        }
        if self.rng.chance(chaos.expire) {
            let at = self.rng.below(self.partitions.len() as u64) as usize;
            self.partitions[at].sessions.pop_first();
        }
        if self.rng.chance(chaos.pause) {
            let node = self.rng.below(u64::from(self.nodes)) as u32 + 1;
            let until = self.now + Duration::from_millis(self.rng.below(3000));
            self.paused_until.insert(node, until);
        }
        if self.partitions.len() < 9 && self.rng.chance(chaos.split) {
            self.split();
        }
    }

    /// A node joins, gets a replica of every partition, and leads them all.
    pub fn grow(&mut self) {
        self.nodes += 1;
        self.version += 1;
        for partition in &mut self.partitions {
            partition.leader = self.nodes;
            partition.version = self.version;
        }
    }

    /// Splits a partition in the middle of its keys: data and sessions are copied, nothing moves.
    pub fn split(&mut self) {
        let at = self.rng.below(self.partitions.len() as u64) as usize;
        let keys: Vec<Vec<u8>> = self.partitions[at].data.keys().cloned().collect();
        let Some(key) = keys.get(keys.len() / 2).filter(|key| ***key > *self.partitions[at].low) else { return };
        let key = Bytes::copy_from_slice(key);
        self.version += 1;
        let old = &mut self.partitions[at];
        old.version = self.version;
        let mut new = old.clone();
        old.high = Some(key.clone());
        new.data = old.data.split_off(&key[..]);
        new.id = PartitionId(100 + self.version as u32);
        new.low = key;
        new.instance += 1000;
        self.partitions.insert(at + 1, new);
    }

    fn reply(&mut self, connection: ConnectionId, bytes: BytesMut) {
        let at = self.now + self.delay();
        let Some(line) = self.lines.get_mut(&connection) else { return };
        if !line.node_open || !line.client_open {
            return;
        }
        line.to_client = line.to_client.max(at);
        let at = line.to_client;
        self.schedule(at, Event::ToClient(connection, bytes.freeze()));
    }
}
