//! A cluster as a client sees it, without sockets and in simulated time: it loses connections, repeats and delays what
//! it was sent, changes leaders, splits partitions and lets sessions expire. It executes as the servers promise to
//! (ordering.md 6, 8), and keeps book of every execution.

#![allow(dead_code)]

pub mod queries;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_btree::{Op, OpResult, Value};
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::session::{CallKey, ConnectionId, Effect, Input, Session};
use coppice_client::time::Time;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::encode_frame;
use coppice_client::wire::part::PartHead;
use coppice_client::wire::*;

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// True so often in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

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

#[derive(Clone, Debug, Default)]
pub struct SessionRow {
    lowest: u64,
    replies: BTreeMap<u64, (Position, Vec<u8>)>,
}

#[derive(Clone, Debug)]
pub struct ModelPartition {
    pub id: PartitionId,
    pub low: Bytes,
    pub high: Option<Bytes>,
    pub leader: u32,
    pub data: BTreeMap<Vec<u8>, Vec<u8>>,
    pub sessions: BTreeMap<SessionId, SessionRow>,
    pub instance: u64,
    pub version: u64,
}

#[derive(Debug)]
enum Event {
    Opened(ConnectionId, bool),
    ToNode(ConnectionId, Bytes),
    ToClient(ConnectionId, Bytes),
    Apply { partition: PartitionId, entry: Bytes, reply: Option<(ConnectionId, u32)> },
    Lost(ConnectionId),
    Query(queries::QueryEvent),
}

/// What one execution did.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    pub position: Position,
    pub result: Vec<u8>,
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
    pub rng: Rng,
    pub chaos: Chaos,
    pub partitions: Vec<ModelPartition>,
    pub nodes: u32,
    pub version: u64,
    pub initialized: bool,
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
    ranges: BTreeMap<(ConnectionId, u32), RangeState>,
    pub queries: queries::Queries,
}

#[derive(Debug)]
struct RangeState {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    sent: usize,
    number: u32,
    credit: i64,
    head: PartHead,
    limited: bool,
}

impl RangeState {
    /// The next chunk, a small one, and whether it is the last.
    fn chunk(&mut self) -> (BytesMut, bool) {
        let mut out = BytesMut::new();
        let mut writer = PartWriter::new(&mut out, &self.head, self.number, false);
        let before = self.sent as u64;
        for (key, value) in self.pairs[self.sent..].iter().take(3) {
            assert!(writer.push(key, value));
            self.sent += 1;
        }
        let end = if self.limited { PartEnd::Limited } else { PartEnd::Complete };
        let end = (self.sent == self.pairs.len()).then_some(end);
        self.credit -= writer.finish(before, end) as i64;
        self.number += 1;
        (out, end.is_some())
    }
}

pub const CLUSTER: ClusterId = ClusterId(0x00c0_ffee);

impl World {
    pub fn new(seed: u64, chaos: Chaos, splits: &[&'static str]) -> World {
        let mut rng = Rng(seed);
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
        }
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
                Effect::Complete { token, result, .. } => self.completed.push((self.now, token, result)),
                Effect::Part { token, part } => {
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
                    Input::Disconnected { connection, trouble: "refused the connection".into() }
                };
                session.step(self.now, input, effects);
            }
            Event::Lost(connection) => {
                let line = self.lines.get_mut(&connection).unwrap();
                if std::mem::replace(&mut line.client_open, false) {
                    line.node_open = false;
                    let trouble = "lost the connection".to_string();
                    session.step(self.now, Input::Disconnected { connection, trouble }, effects);
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

    fn node_receives(&mut self, connection: ConnectionId, bytes: Bytes) {
        let line = &self.lines[&connection];
        if let Some(&until) = self.paused_until.get(&line.node)
            && until > self.now
        {
            self.schedule(until, Event::ToNode(connection, bytes));
            return;
        }
        let line = self.lines.get_mut(&connection).unwrap();
        let node = line.node;
        line.decoder.feed(&bytes);
        while let Some(frame) = self.lines.get_mut(&connection).unwrap().decoder.next_frame().unwrap() {
            *self.received.entry(frame.kind).or_default() += 1;
            let request = Request::decode(&frame).expect("the session sends what can be decoded");
            self.on_request(node, connection, frame.stream, request);
        }
    }

    fn on_request(&mut self, node: u32, connection: ConnectionId, stream: u32, request: Request) {
        let mut out = BytesMut::new();
        match request {
            Request::Hello(hello) => {
                assert!(hello.cluster.is_none_or(|cluster| cluster == CLUSTER));
                let limits = Limits {
                    frame_bytes: FRAME_BYTES_MAX as u32,
                    key_bytes: KEY_BYTES_MAX as u32,
                    value_bytes: VALUE_BYTES_MAX as u32,
                    inflight: 1024,
                    inflight_bytes: 16 << 20,
                    idle_ms: 30_000,
                };
                let hello = HelloOk {
                    protocol: 1,
                    features: 0,
                    cluster: self.initialized.then_some(CLUSTER),
                    node: self.initialized.then_some(NodeIdentity { node: NodeId(node), incarnation: 1 }),
                    map_version: MapVersion(if self.initialized { self.version } else { 0 }),
                    limits,
                };
                encode_control(&mut out, Kind::HelloOk, 0, &hello);
                self.lines.get_mut(&connection).unwrap().greeted = true;
            }
            Request::MapGet(get) if self.initialized => {
                let map = (get.known.0 < self.version).then(|| self.map());
                encode_control(&mut out, Kind::Map, stream, &MapReply { map, leaders: Vec::new() });
            }
            Request::MapGet(_) => Refusal::NotInitialized.encode(&mut out, stream),
            Request::Ping => encode_frame(&mut out, Kind::Pong, stream, &[]),
            Request::OpenSession(open) => return self.on_entry(node, connection, stream, open.partition, open.entry),
            Request::Commands(pack) => return self.on_entry(node, connection, stream, pack.partition, pack.entry),
            Request::Read(read) => match self.serves(node, read.partition, read.anywhere) {
                Err(refusal) => refusal.encode(&mut out, stream),
                Ok(at) => {
                    let partition = &self.partitions[at];
                    if !read.keys().all(|key| contains(partition, key)) {
                        self.wrong_partition(read.partition).encode(&mut out, stream);
                    } else {
                        let mut answer = BytesMut::new();
                        let mut reply = PackReply::read(&mut answer, partition.id, partition.instance, 0);
                        read.keys().for_each(|key| reply.value(partition.data.get(key).map(|value| &value[..])));
                        reply.finish();
                        let mut replies = RepliesWriter::new(&mut out);
                        replies.answer(stream, &answer).unwrap();
                        replies.finish();
                    }
                }
            },
            Request::Range(range) => return self.on_range(node, connection, stream, range),
            Request::Credit(bytes) => {
                if let Some(range) = self.ranges.get_mut(&(connection, stream)) {
                    range.credit += i64::from(bytes);
                    self.stream_range(connection, stream);
                }
                return;
            }
            Request::Cancel => {
                self.ranges.remove(&(connection, stream));
                return;
            }
            Request::Query(query) => return self.on_query(node, connection, stream, query),
            Request::PartCredit { query, partition, bytes } => {
                return self.on_part_credit(connection, query, partition, bytes);
            }
            Request::PartCancel { query } => return self.on_part_cancel(connection, query),
            other => panic!("{other:?}"),
        }
        self.reply(connection, out);
    }

    fn serves(&mut self, node: u32, partition: PartitionId, anywhere: bool) -> Result<usize, Refusal> {
        let Some(at) = self.partitions.iter().position(|found| found.id == partition) else {
            return Err(self.wrong_partition(partition));
        };
        let leader = self.partitions[at].leader;
        if leader != node && !anywhere {
            let hint = match self.rng.below(3) {
                0 => None,
                1 => Some(NodeId(leader)),
                _ => Some(NodeId(self.rng.below(u64::from(self.nodes)) as u32 + 1)),
            };
            return Err(Refusal::NotLeader { partition, hint });
        }
        if self.rng.chance(self.chaos.busy) {
            return Err(match self.rng.below(3) {
                0 => Refusal::Busy { retry_after: Duration::from_millis(self.rng.below(50)) },
                1 => Refusal::Full,
                _ => Refusal::ShuttingDown,
            });
        }
        Ok(at)
    }

    fn wrong_partition(&mut self, partition: PartitionId) -> Refusal {
        let mut entries: Vec<Entry> = self.partitions.iter().map(|found| self.entry_of(found)).collect();
        if self.rng.chance(300) {
            entries.truncate(1);
        }
        Refusal::WrongPartition { partition, version: MapVersion(self.version), entries }
    }

    fn on_entry(&mut self, node: u32, connection: ConnectionId, stream: u32, partition: PartitionId, entry: Bytes) {
        if let Err(refusal) = self.serves(node, partition, false) {
            let mut out = BytesMut::new();
            refusal.encode(&mut out, stream);
            return self.reply(connection, out);
        }
        // From here on it may be executed: now, later, twice as far as the log is concerned, or never.
        let mut reply = Some((connection, stream));
        if self.rng.chance(self.chaos.deposed) {
            let mut out = BytesMut::new();
            Refusal::Deposed { partition, hint: None }.encode(&mut out, stream);
            self.reply(connection, out);
            reply = None;
        }
        let at = self.now + self.delay();
        if self.rng.chance(self.chaos.repeat) {
            // A late copy. A leader proposes what it was sent once, so the copy that it answers comes first: that is
            // what makes `SessionExpired` sure for this sending.
            let later = at + self.delay() * 10;
            self.schedule(later, Event::Apply { partition, entry: entry.clone(), reply: None });
        }
        if !self.rng.chance(self.chaos.lost_apply) {
            self.schedule(at, Event::Apply { partition, entry, reply });
        }
    }

    fn apply(&mut self, partition: PartitionId, entry: &Bytes, reply: Option<(ConnectionId, u32)>) {
        let Some(at) = self.partitions.iter().position(|found| found.id == partition) else { return };
        let partition = &mut self.partitions[at];
        partition.instance += 1;
        let instance = partition.instance;
        let entry = entry::entries(entry).next().unwrap().unwrap();
        let mut out = BytesMut::new();
        if entry.tag == entry::TAG_OPEN {
            let session = SessionId { partition: partition.id, instance, index: 0 };
            partition.sessions.insert(session, SessionRow::default());
            let mut replies = RepliesWriter::new(&mut out);
            replies.opened(reply.map_or(0, |reply| reply.1), session);
            replies.finish();
        } else {
            let pack = Pack::decode(entry.bytes).unwrap();
            let mut answer = BytesMut::new();
            if !execute_pack(partition, &mut self.executions, instance, &pack, &mut answer) {
                Refusal::SessionExpired.encode(&mut out, reply.map_or(0, |reply| reply.1));
            } else {
                let mut replies = RepliesWriter::new(&mut out);
                replies.answer(reply.map_or(0, |reply| reply.1), &answer).unwrap();
                replies.finish();
            }
        }
        if let Some((connection, _)) = reply {
            self.reply(connection, out);
        }
    }

    fn on_range(&mut self, node: u32, connection: ConnectionId, stream: u32, range: RangeRequest) {
        let served = self.serves(node, range.partition, range.anywhere).and_then(|at| {
            let partition = &self.partitions[at];
            let end = range.high.as_deref();
            let inside = range.low >= partition.low
                && match (&partition.high, end) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(mine), Some(high)) => high <= &mine[..] || high <= &range.low[..],
                };
            if inside { Ok(at) } else { Err(self.wrong_partition(range.partition)) }
        });
        let at = match served {
            Ok(at) => at,
            Err(refusal) => {
                let mut out = BytesMut::new();
                refusal.encode(&mut out, stream);
                return self.reply(connection, out);
            }
        };
        let partition = &self.partitions[at];
        let mut pairs: Vec<_> = partition
            .data
            .iter()
            .filter(|(key, _)| key[..] >= range.low[..] && range.high.as_ref().is_none_or(|high| key[..] < high[..]))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if range.reverse {
            pairs.reverse();
        }
        let limited = range.pairs_max > 0 && pairs.len() as u64 >= range.pairs_max;
        if limited {
            pairs.truncate(range.pairs_max as usize);
        }
        let position = Position { partition: partition.id, instance: partition.instance, index: 0 };
        let head = PartHead { stream, position, ticket: None, keys_only: range.keys_only };
        let state = RangeState { pairs, sent: 0, number: 0, credit: i64::from(range.credit), head, limited };
        self.ranges.insert((connection, stream), state);
        self.stream_range(connection, stream);
    }

    /// Sends small chunks as far as the credit goes.
    fn stream_range(&mut self, connection: ConnectionId, stream: u32) {
        while let Some(range) = self.ranges.get_mut(&(connection, stream)) {
            if range.credit <= 0 {
                return;
            }
            let (out, end) = range.chunk();
            if !self.rng.chance(self.chaos.lost_part) {
                self.reply(connection, out);
            }
            if end {
                self.ranges.remove(&(connection, stream));
            } else if self.rng.chance(self.chaos.cut) {
                self.cut(connection);
            }
        }
    }
}

pub fn contains(partition: &ModelPartition, key: &[u8]) -> bool {
    key >= &partition.low[..] && partition.high.as_ref().is_none_or(|high| key < &high[..])
}

/// Executes a pack as ordering.md 6 says; `false`: its session is not open.
pub fn execute_pack(
    partition: &mut ModelPartition,
    executions: &mut BTreeMap<Vec<u8>, Vec<Execution>>,
    instance: u64,
    pack: &Pack<'_>,
    answer: &mut BytesMut,
) -> bool {
    let Some(mut row) = partition.sessions.remove(&pack.session()) else { return false };
    row.lowest = row.lowest.max(pack.lowest_unacknowledged());
    let lowest = row.lowest;
    row.replies.retain(|&number, _| number >= lowest);
    let mut reply = PackReply::new(answer, partition.id, instance, 0);
    for (index, (number, command)) in pack.commands().enumerate() {
        if let Some((position, result)) = row.replies.get(&number) {
            reply.repeated(*position, result);
            continue;
        }
        if number < row.lowest {
            reply.refused(CommandRefusal::Forgotten);
            continue;
        }
        let (low, high) = (partition.low.clone(), partition.high.clone());
        if !command.is_within(&low, high.as_deref()) {
            let version = MapVersion(partition.version);
            reply.refused(CommandRefusal::WrongPartition { version });
            continue;
        }
        let mark = match command {
            Command::Op(op) => {
                reply.result(&execute(&mut partition.data, op));
                mark_of(&op)
            }
            Command::Many(many) => {
                let results: Vec<OpResult> = many.iter().map(|op| execute(&mut partition.data, op)).collect();
                reply.many(results.iter());
                many.iter().next().and_then(|op| mark_of(&op))
            }
            Command::Load(load) => {
                match load.iter().position(|(key, _)| partition.data.contains_key(key)) {
                    Some(present) => reply.not_loaded(present as u64),
                    None => {
                        partition.data.extend(load.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
                        reply.loaded(load.len() as u64);
                    }
                }
                load.iter().next().map(|(_, value)| value.to_vec())
            }
        };
        let result = reply.last_result().to_vec();
        let position = Position { partition: partition.id, instance, index: index as u32 };
        row.replies.insert(number, (position, result.clone()));
        if let Some(mark) = mark {
            executions.entry(mark).or_default().push(Execution { position, result });
        }
    }
    reply.finish();
    partition.sessions.insert(pack.session(), row);
    true
}

/// The unique value that names the command.
fn mark_of(op: &Op<'_>) -> Option<Vec<u8>> {
    match op {
        Op::Put { value, .. } | Op::Insert { value, .. } | Op::Cas { value, .. } => Some(value.to_vec()),
        Op::Delete { .. } | Op::Get { .. } => None,
    }
}

fn execute(data: &mut BTreeMap<Vec<u8>, Vec<u8>>, op: Op<'_>) -> OpResult {
    let owned = |value: &Vec<u8>| Value::from(&value[..]);
    match op {
        Op::Put { key, value } => {
            OpResult::Put { previous: data.insert(key.to_vec(), value.to_vec()).as_ref().map(owned) }
        }
        Op::Insert { key, value } => {
            let present = data.get(key).map(owned);
            if present.is_none() {
                data.insert(key.to_vec(), value.to_vec());
            }
            OpResult::Insert { present }
        }
        Op::Delete { key } => OpResult::Delete { previous: data.remove(key).as_ref().map(owned) },
        Op::Cas { key, expected, value } => {
            let current = data.get(key).map(owned);
            let done = current.as_ref().is_some_and(|current| **current == *expected);
            if done {
                data.insert(key.to_vec(), value.to_vec());
            }
            OpResult::Cas { done, current }
        }
        Op::Get { key } => OpResult::Get { value: data.get(key).map(owned) },
    }
}
