//! What the nodes of the model do with requests: who serves what, what it says instead, and ranges in small chunks.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_client::map::Entry;
use coppice_client::session::ConnectionId;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::encode_frame;
use coppice_client::wire::part::PartHead;
use coppice_client::wire::*;

use super::store::{SessionRow, contains, execute_pack, look};
use super::{CLUSTER, Event, World};

#[derive(Debug)]
pub struct RangeState {
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sent: usize,
    pub number: u32,
    pub credit: i64,
    pub head: PartHead,
    pub limited: bool,
    /// Pairs in the parts before.
    pub before: u64,
    /// The parts that follow, the next one last.
    pub behind: Vec<(PartHead, Pairs)>,
}

pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl RangeState {
    /// The next chunk, a small one unless the range is to be validated, and whether it is the last.
    pub fn chunk(&mut self) -> (BytesMut, bool) {
        let mut out = BytesMut::new();
        let few = if self.head.version.is_some() { usize::MAX } else { 3 };
        let mut writer = PartWriter::new(&mut out, &self.head, self.number, false);
        let before = self.before + self.sent as u64;
        for (key, value) in self.pairs[self.sent..].iter().take(few) {
            assert!(writer.push(key, value));
            self.sent += 1;
        }
        let end = if self.limited { PartEnd::Limited } else { PartEnd::Complete };
        let whole = self.sent == self.pairs.len();
        let end = (whole && self.behind.is_empty()).then_some(end);
        self.credit -= writer.finish(before, end) as i64;
        self.number += 1;
        if let Some((head, pairs)) = self.behind.pop_if(|_| whole && end.is_none()) {
            self.before += self.sent as u64;
            (self.head, self.pairs, self.sent) = (head, pairs, 0);
        }
        (out, end.is_some())
    }
}

impl World {
    pub(super) fn node_receives(&mut self, connection: ConnectionId, bytes: Bytes) {
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

    pub(super) fn on_request(&mut self, node: u32, connection: ConnectionId, stream: u32, request: Request) {
        let mut out = BytesMut::new();
        let member = self.initialized && self.blank != Some(node);
        match request {
            Request::Hello(_) if self.unfriendly => Refusal::Denied { text: "not now".into() }.encode(&mut out, 0),
            Request::Hello(_) if self.estranged => {
                Refusal::Unauthenticated { text: "who are you?".into() }.encode(&mut out, 0);
            }
            Request::Hello(hello) => {
                assert!(hello.cluster.is_none_or(|cluster| cluster == CLUSTER));
                let limits = Limits {
                    frame_bytes: FRAME_BYTES_MAX as u32,
                    key_bytes: KEY_BYTES_MAX as u32,
                    value_bytes: VALUE_BYTES_MAX as u32,
                    inflight: 1024,
                    inflight_bytes: 16 << 20,
                };
                let hello = HelloOk {
                    protocol: *coppice_client::wire::PROTOCOL.end(),
                    features: FEATURE_VALIDATE
                        | if self.looks { FEATURE_UPDATE } else { 0 }
                        | if self.server_collects { FEATURE_COLLECT } else { 0 },
                    cluster: member.then_some(CLUSTER),
                    node: member.then_some(NodeIdentity { node: NodeId(node), incarnation: 1 }),
                    map_version: MapVersion(if member { self.version } else { 0 }),
                    limits,
                };
                encode_control(&mut out, Kind::HelloOk, 0, &hello);
                self.lines.get_mut(&connection).unwrap().greeted = true;
            }
            Request::MapGet(get) if member => {
                let map = (get.known.0 < self.version).then(|| self.map());
                encode_control(&mut out, Kind::Map, stream, &MapReply { map, leaders: Vec::new() });
            }
            Request::MapGet(_) => Refusal::NotInitialized.encode(&mut out, stream),
            Request::Ping => encode_frame(&mut out, Kind::Pong, stream, &[]),
            Request::OpenSession(open) => return self.on_entry(node, connection, stream, open.partition, open.entry),
            Request::Commands(pack) if self.denies(&pack) => denied().encode(&mut out, stream),
            Request::Read(read) if read.keys().any(|key| key.first().copied() == self.denied) => {
                denied().encode(&mut out, stream);
            }
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
                        read.keys().map(|key| partition.data.get(key).map(|value| &value[..])).for_each(|value| {
                            match read.looks {
                                true => reply.result(&look(value)),
                                false => reply.value(value),
                            }
                        });
                        reply.finish();
                        let mut replies = RepliesWriter::new(&mut out);
                        replies.answer(stream, &answer).unwrap();
                        replies.finish();
                    }
                }
            },
            Request::Range(range) if range.low.first().copied() == self.denied && self.denied.is_some() => {
                denied().encode(&mut out, stream);
            }
            Request::Range(range) => return self.on_range(node, connection, stream, range),
            Request::Collect(range) => return self.on_collect(node, connection, stream, range),
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
            Request::Validate(asked) => return self.on_validate(node, connection, stream, &asked),
            Request::Query(query) => return self.on_query(node, connection, stream, query),
            Request::PartCredit { query, partition, bytes } => {
                return self.on_part_credit(connection, query, partition, bytes);
            }
            Request::PartCancel { query } => return self.on_part_cancel(connection, query),
            other => panic!("{other:?}"),
        }
        self.reply(connection, out);
    }

    pub(super) fn serves(&mut self, node: u32, partition: PartitionId, anywhere: bool) -> Result<usize, Refusal> {
        if self.blank == Some(node) {
            // As a real one says of every partition.
            return Err(Refusal::WrongPartition { partition, version: MapVersion(0), entries: Vec::new() });
        }
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
                0 => Refusal::Busy { retry_after: Duration::from_millis(self.rng.below(50)), text: String::new() },
                1 => Refusal::Full { text: String::new() },
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
        if self.terse {
            entries.clear();
        }
        Refusal::WrongPartition { partition, version: MapVersion(self.version), entries }
    }

    fn denies(&self, pack: &CommandsRequest) -> bool {
        let (low, high) = (self.denied.unwrap_or(0), self.denied.map_or(0, |byte| byte + 1));
        self.denied.is_some()
            && pack.pack().unwrap().commands().any(|(_, command)| command.is_within(&[low], Some(&[high])))
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

    pub(super) fn apply(&mut self, partition: PartitionId, entry: &Bytes, reply: Option<(ConnectionId, u32)>) {
        let Some(at) = self.partitions.iter().position(|found| found.id == partition) else { return };
        let partition = &mut self.partitions[at];
        partition.instance += 1;
        let instance = partition.instance;
        let before = partition.data.clone();
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
        self.moments.note(&before, &partition.data);
        if let Some((connection, _)) = reply {
            self.reply(connection, out);
        }
    }

    /// The world has one state, which each instance may change: it is told exactly.
    fn on_validate(&mut self, node: u32, connection: ConnectionId, stream: u32, asked: &ValidateRequest) {
        let mut out = BytesMut::new();
        match self.serves(node, asked.partition, asked.anywhere) {
            Err(refusal) => refusal.encode(&mut out, stream),
            Ok(at) => {
                let partition = &self.partitions[at];
                let mut answer = BytesMut::new();
                let mut reply = PackReply::read(&mut answer, partition.id, partition.instance, 0);
                for range in asked.ranges() {
                    let same = self.validates && range.version == version_of(partition, node);
                    reply.validated(same && !self.rng.chance(self.chaos.busy));
                }
                reply.finish();
                let mut replies = RepliesWriter::new(&mut out);
                replies.answer(stream, &answer).unwrap();
                replies.finish();
            }
        }
        self.reply(connection, out);
    }

    /// Every node has all partitions, and the world has one state: what is there now is one moment.
    fn on_collect(&mut self, node: u32, connection: ConnectionId, stream: u32, range: CollectRequest) {
        self.collecting.push(node);
        let mut parts = Vec::with_capacity(range.parts.len());
        for (at, (id, low)) in range.parts.iter().enumerate() {
            let (_, high) = range.bounds(at);
            let inside = |partition: &super::store::ModelPartition| {
                let below = partition.high.as_ref().is_none_or(|own| high.is_some_and(|high| high[..] <= own[..]));
                low[..] >= partition.low[..] && below
            };
            let Some(partition) = self.partitions.iter().find(|own| own.id == *id).filter(|own| inside(own)) else {
                let refusal = self.wrong_partition(*id);
                return self.refuse(connection, stream, &refusal);
            };
            let of = |key: &[u8]| key >= &low[..] && high.is_none_or(|high| key < &high[..]);
            let found = partition.data.iter().filter(|(key, _)| of(key));
            let mut pairs: Pairs = found.map(|(key, value)| (key.clone(), value.clone())).collect();
            if range.scan.reverse {
                pairs.reverse();
            }
            let position = Position { partition: *id, instance: partition.instance, index: 0 };
            let head = PartHead { stream, position, ticket: None, version: None, keys_only: range.scan.keys_only };
            parts.push((head, pairs));
        }
        if self.rng.chance(self.chaos.busy) || !self.validates {
            let refusal = match self.rng.below(if self.validates { 4 } else { 1 }) {
                0 => Refusal::Aborted { text: "it changed".into(), unplaced: None },
                1 => Refusal::Busy { retry_after: Duration::from_millis(self.rng.below(50)), text: String::new() },
                2 => Refusal::NotLeader { partition: range.parts[0].0, hint: None },
                _ => Refusal::ShuttingDown,
            };
            return self.refuse(connection, stream, &refusal);
        }
        if range.scan.reverse {
            parts.reverse();
        }
        let (mut left, mut limited) =
            (if range.scan.pairs_max > 0 { range.scan.pairs_max as usize } else { usize::MAX }, false);
        parts.retain_mut(|(_, pairs)| {
            let wanted = !limited;
            limited |= pairs.len() >= left;
            pairs.truncate(left);
            left -= pairs.len().min(left);
            wanted
        });
        parts.reverse();
        let (head, pairs) = parts.pop().expect("a request has parts");
        let credit = i64::from(range.credit);
        let state = RangeState { pairs, sent: 0, number: 0, credit, head, limited, before: 0, behind: parts };
        self.ranges.insert((connection, stream), state);
        self.stream_range(connection, stream);
    }

    fn refuse(&mut self, connection: ConnectionId, stream: u32, refusal: &Refusal) {
        let mut out = BytesMut::new();
        refusal.encode(&mut out, stream);
        self.reply(connection, out);
    }

    fn on_range(&mut self, node: u32, connection: ConnectionId, stream: u32, range: RangeRequest) {
        let served = self.serves(node, range.partition, range.anywhere).and_then(|at| {
            let partition = &self.partitions[at];
            let end = range.high.as_deref();
            let inside = range.low[..] >= partition.low[..]
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
        if range.scan.reverse {
            pairs.reverse();
        }
        let limited = range.scan.pairs_max > 0 && pairs.len() as u64 >= range.scan.pairs_max;
        if limited {
            pairs.truncate(range.scan.pairs_max as usize);
        }
        let (mut bytes, all) = (0, pairs.len());
        pairs.retain(|(key, value)| {
            let room = !range.versioned || range.scan.bytes_max == 0 || bytes < range.scan.bytes_max;
            bytes += (key.len() + value.len()) as u64;
            room
        });
        let limited = limited || pairs.len() < all;
        let position = Position { partition: partition.id, instance: partition.instance, index: 0 };
        let version = range.versioned.then(|| version_of(partition, node));
        let head = PartHead { stream, position, ticket: None, version, keys_only: range.scan.keys_only };
        let (credit, behind) = (i64::from(range.credit), Vec::new());
        let state = RangeState { pairs, sent: 0, number: 0, credit, head, limited, before: 0, behind };
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

fn version_of(partition: &super::store::ModelPartition, node: u32) -> Version {
    Version { replica: ReplicaId(node), incarnation: 1, began: 1, changes: partition.instance }
}

fn denied() -> Refusal {
    Refusal::Denied { text: "not yours".into() }
}
