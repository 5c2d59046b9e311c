//! A server over real sockets, in this process: one node that leads every partition, and behaves as badly as it is
//! told.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::encode_frame;
use coppice_client::wire::part::PartHead;
use coppice_client::wire::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::model::{CLUSTER, Execution, ModelPartition, contains, execute_pack};

/// How the server treats its next connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    Good,
    /// Accepts and says nothing.
    Silent,
    /// Answers the greeting with noise.
    Noise,
    /// Greets, then answers the first command with noise.
    NoiseLater,
    /// Greets, then announces a frame of 4 GiB.
    Oversized,
    /// Greets, executes the first command, then closes without an answer.
    CloseAfterExecution,
    /// Answers a command as if it had been a read.
    WrongAnswer,
    /// Executes, and never answers again.
    NeverAnswers,
    /// Belongs to no cluster: knows no map, can do nothing for anybody, and says so.
    Blank,
}

pub struct Server {
    pub address: String,
    state: Arc<State>,
}

struct State {
    manner: Mutex<Manner>,
    /// Connections that get the bad manner; then it is good.
    bad: AtomicU64,
    delay: Mutex<Duration>,
    cluster: Mutex<Cluster>,
    /// Highest number of bytes of parts that were sent and not given back.
    unread_max: AtomicU64,
    /// Most ranges that one connection had under way.
    ranges_max: AtomicU64,
    connections: AtomicU64,
    commands: AtomicU64,
    packs: AtomicU64,
}

struct Cluster {
    partitions: Vec<ModelPartition>,
    executions: BTreeMap<Vec<u8>, Vec<Execution>>,
    map: PartitionMap,
    tickets: u64,
}

impl Server {
    /// Starts with partitions cut at `splits`.
    pub async fn start(splits: &[&'static str]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut bounds: Vec<Bytes> = vec![Bytes::new()];
        bounds.extend(splits.iter().map(|split| Bytes::from_static(split.as_bytes())));
        let partitions = (0..bounds.len()).map(|at| ModelPartition {
            id: PartitionId(at as u32 + 1),
            low: bounds[at].clone(),
            high: bounds.get(at + 1).cloned(),
            leader: 1,
            data: BTreeMap::new(),
            sessions: BTreeMap::new(),
            instance: 1,
            version: 1,
        });
        let partitions: Vec<ModelPartition> = partitions.collect();
        let map = map_of(&partitions, &address);
        let state = Arc::new(State {
            manner: Mutex::new(Manner::Good),
            bad: AtomicU64::new(0),
            delay: Mutex::new(Duration::ZERO),
            cluster: Mutex::new(Cluster { partitions, executions: BTreeMap::new(), map, tickets: 0 }),
            unread_max: AtomicU64::new(0),
            ranges_max: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            packs: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let manner = *state.manner.lock().unwrap();
                    let bad = state.bad.load(Ordering::SeqCst);
                    let manner = if bad > 0 { manner } else { Manner::Good };
                    state.bad.store(bad.saturating_sub(1), Ordering::SeqCst);
                    let _ = serve(&state, stream, manner).await;
                });
            }
        });
        Server { address, state }
    }

    /// The next `connections` are treated like this, later ones well.
    pub fn behave(&self, manner: Manner, connections: u64) {
        *self.state.manner.lock().unwrap() = manner;
        self.state.bad.store(connections, Ordering::SeqCst);
    }

    /// Every answer is so late.
    pub fn delay(&self, delay: Duration) {
        *self.state.delay.lock().unwrap() = delay;
    }

    pub fn executions(&self, value: &str) -> usize {
        self.state.cluster.lock().unwrap().executions.get(value.as_bytes()).map_or(0, Vec::len)
    }

    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub fn packs(&self) -> u64 {
        self.state.packs.load(Ordering::SeqCst)
    }

    pub fn unread_max(&self) -> u64 {
        self.state.unread_max.load(Ordering::SeqCst)
    }

    pub fn ranges_max(&self) -> u64 {
        self.state.ranges_max.load(Ordering::SeqCst)
    }

    /// Puts pairs in without any client.
    pub fn fill(&self, pairs: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
        let mut cluster = self.state.cluster.lock().unwrap();
        for (key, value) in pairs {
            let partition = cluster.partitions.iter_mut().find(|partition| contains(partition, &key)).unwrap();
            partition.data.insert(key, value);
        }
    }
}

fn map_of(partitions: &[ModelPartition], address: &str) -> PartitionMap {
    let entry = |partition: &ModelPartition| Entry {
        partition: partition.id,
        low: partition.low.clone(),
        high: partition.high.clone(),
        version: MapVersion(1),
        replicas: vec![ReplicaInfo { replica: ReplicaId(1), node: NodeId(1), role: Role::Voter }],
    };
    let node = NodeInfo {
        id: NodeId(1),
        name: "n1".into(),
        addresses: Addresses { native: address.into(), ..Addresses::default() },
        state: NodeState::Member,
    };
    PartitionMap {
        cluster: CLUSTER,
        version: MapVersion(1),
        nodes: vec![node],
        directory: Some(Entry {
            partition: PartitionId::DIRECTORY,
            low: Bytes::new(),
            high: None,
            ..entry(&partitions[0])
        }),
        partitions: partitions.iter().map(entry).collect(),
        ending: Vec::new(),
    }
}

const NOISE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n and so on and so on";

async fn serve(state: &State, mut stream: TcpStream, manner: Manner) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut decoder, mut ranges) = (FrameDecoder::default(), BTreeMap::new());
    loop {
        while let Some(frame) = decoder.next_frame().expect("the client sends frames") {
            let request = Request::decode(&frame).expect("the client sends requests");
            let delay = *state.delay.lock().unwrap();
            if !delay.is_zero() && frame.kind != Kind::Hello as u8 {
                tokio::time::sleep(delay).await;
            }
            let mut out = BytesMut::new();
            match (manner, &request) {
                (Manner::Silent, _) => continue,
                (Manner::Noise, _) => return stream.write_all(NOISE).await,
                (Manner::NoiseLater, Request::Commands(_)) => return stream.write_all(NOISE).await,
                (Manner::Oversized, Request::Commands(_)) => {
                    return stream.write_all(&[0xff; 16]).await;
                }
                (Manner::CloseAfterExecution, Request::Commands(_)) => {
                    answer(state, frame.stream, request, &mut ranges, &mut out);
                    return Ok(());
                }
                (Manner::NeverAnswers, Request::Commands(_) | Request::Admin(_)) => {
                    answer(state, frame.stream, request, &mut ranges, &mut out);
                    continue;
                }
                (Manner::Blank, Request::Hello(_)) => {
                    encode_control(&mut out, Kind::HelloOk, 0, &greeting(None));
                }
                (Manner::Blank, Request::MapGet(_)) => {
                    encode_control(&mut out, Kind::Map, frame.stream, &MapReply::default());
                }
                (Manner::Blank, Request::Status(_)) => {
                    encode_control(&mut out, Kind::StatusReply, frame.stream, &Status::default());
                }
                (Manner::Blank, Request::Admin(_)) => {
                    let reply = AdminReply::Failed(AdminError::Unavailable("it knows nobody".into()));
                    encode_control(&mut out, Kind::AdminReply, frame.stream, &reply);
                }
                (Manner::WrongAnswer, Request::Commands(pack)) => {
                    let mut reply = BytesMut::new();
                    let mut writer = PackReply::new(&mut reply, pack.partition, 5, 0);
                    (0..pack.count).for_each(|_| writer.value(Some(b"not what was asked")));
                    writer.finish();
                    let mut replies = RepliesWriter::new(&mut out);
                    replies.answer(frame.stream, &reply).unwrap();
                    replies.finish();
                }
                _ => answer(state, frame.stream, request, &mut ranges, &mut out),
            }
            stream.write_all(&out).await?;
        }
        if stream.read_buf(decoder.space()).await? == 0 {
            return Ok(());
        }
    }
}

/// A range that is being sent.
struct Sending {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    sent: usize,
    number: u32,
    credit: i64,
    unread: i64,
    head: PartHead,
    limited: bool,
    counted: Option<u64>,
}

/// By stream; parts of queries by the number of the attempt and their partition.
type Ranges = BTreeMap<(u32, Option<PartitionId>), Sending>;

fn greeting(cluster: Option<ClusterId>) -> HelloOk {
    let limits = Limits {
        frame_bytes: FRAME_BYTES_MAX as u32,
        key_bytes: KEY_BYTES_MAX as u32,
        value_bytes: VALUE_BYTES_MAX as u32,
        inflight: 1024,
        inflight_bytes: 16 << 20,
    };
    let node = cluster.map(|_| NodeIdentity { node: NodeId(1), incarnation: 1 });
    let map_version = MapVersion(u64::from(cluster.is_some()));
    HelloOk {
        protocol: *coppice_client::wire::PROTOCOL.end(),
        features: FEATURE_VALIDATE,
        cluster,
        node,
        map_version,
        limits,
    }
}

fn answer(state: &State, stream: u32, request: Request, ranges: &mut Ranges, out: &mut BytesMut) {
    let mut guard = state.cluster.lock().unwrap();
    let cluster = &mut *guard;
    match request {
        Request::Hello(hello) => {
            if let Some(wanted) = hello.cluster.filter(|&cluster| cluster != CLUSTER) {
                return Refusal::bad_request(&format!("this is cluster {CLUSTER}, not {wanted}")).encode(out, 0);
            }
            encode_control(out, Kind::HelloOk, 0, &greeting(Some(CLUSTER)));
        }
        Request::MapGet(_) => {
            let leaders = cluster.map.partitions.iter().map(|entry| (entry.partition, NodeId(1))).collect();
            encode_control(out, Kind::Map, stream, &MapReply { map: Some(cluster.map.clone()), leaders });
        }
        Request::Status(_) => {
            let status = Status { cluster: Some(CLUSTER), node: NodeId(1), majority: true, ..Status::default() };
            encode_control(out, Kind::StatusReply, stream, &status);
        }
        Request::Admin(admin) => {
            let reply = match *admin {
                AdminRequest::ConfigSet { key, .. } if key != "replicas" => {
                    AdminReply::Failed(AdminError::NotFound(format!("no setting {key}")))
                }
                _ => AdminReply::Done,
            };
            encode_control(out, Kind::AdminReply, stream, &reply);
        }
        Request::Ping => encode_frame(out, Kind::Pong, stream, &[]),
        Request::OpenSession(open) => {
            let partition = find(cluster, open.partition);
            partition.instance += 1;
            let session = SessionId { partition: partition.id, instance: partition.instance, index: 0 };
            partition.sessions.insert(session, Default::default());
            let mut replies = RepliesWriter::new(out);
            replies.opened(stream, session);
            replies.finish();
        }
        Request::Commands(request) => {
            state.packs.fetch_add(1, Ordering::SeqCst);
            state.commands.fetch_add(u64::from(request.count), Ordering::SeqCst);
            let Cluster { partitions, executions, .. } = cluster;
            let partition = partitions.iter_mut().find(|partition| partition.id == request.partition).unwrap();
            partition.instance += 1;
            let instance = partition.instance;
            let mut reply = BytesMut::new();
            let pack = request.pack().unwrap();
            if !execute_pack(partition, executions, instance, &pack, &mut reply) {
                return Refusal::SessionExpired.encode(out, stream);
            }
            let mut replies = RepliesWriter::new(out);
            replies.answer(stream, &reply).unwrap();
            replies.finish();
        }
        Request::Read(read) => {
            let partition = find(cluster, read.partition);
            let mut reply = BytesMut::new();
            let mut writer = PackReply::read(&mut reply, partition.id, partition.instance, 0);
            read.keys().for_each(|key| writer.value(partition.data.get(key).map(|value| &value[..])));
            writer.finish();
            let mut replies = RepliesWriter::new(out);
            replies.answer(stream, &reply).unwrap();
            replies.finish();
        }
        Request::Range(range) => {
            let sending = begin_range(find(cluster, range.partition), stream, &range);
            ranges.insert((stream, None), sending);
            state.ranges_max.fetch_max(ranges.len() as u64, Ordering::SeqCst);
            send_range(state, (stream, None), ranges, out);
        }
        Request::Validate(asked) => {
            let partition = find(cluster, asked.partition);
            let mut reply = BytesMut::new();
            let mut writer = PackReply::read(&mut reply, partition.id, partition.instance, 0);
            asked.ranges().for_each(|range| writer.validated(range.version == version_of(partition)));
            writer.finish();
            let mut replies = RepliesWriter::new(out);
            replies.answer(stream, &reply).unwrap();
            replies.finish();
        }
        Request::Collect(_) | Request::Compare(_) | Request::PartCompare { .. } => {
            panic!("nobody was told that this is understood")
        }
        Request::Credit(bytes) => credit(state, (stream, None), bytes, ranges, out),
        Request::Cancel => drop(ranges.remove(&(stream, None))),
        Request::Query(query) => begin_query(state, cluster, stream, &query, ranges, out),
        Request::PartCredit { query, partition, bytes } => {
            credit(state, (query, Some(partition)), bytes, ranges, out);
        }
        Request::PartCancel { query } => ranges.retain(|&(of, part), _| of != query || part.is_none()),
    }
}

fn credit(state: &State, key: (u32, Option<PartitionId>), bytes: u32, ranges: &mut Ranges, out: &mut BytesMut) {
    if let Some(sending) = ranges.get_mut(&key) {
        sending.credit += i64::from(bytes);
        sending.unread -= i64::from(bytes);
    }
    send_range(state, key, ranges, out);
}

/// One node that coordinates and leads everything: a ticket is placed everywhere at once. The parts go first.
fn begin_query(
    state: &State,
    cluster: &mut Cluster,
    stream: u32,
    query: &QueryRequest,
    ranges: &mut Ranges,
    out: &mut BytesMut,
) {
    cluster.tickets += 1;
    let ticket = Ticket { round: 3, replica: ReplicaId(1), n: cluster.tickets };
    let mut parts = Vec::new();
    for entry in cluster.map.cover(&query.low, query.high.as_deref()) {
        let low = query.low.clone().max(entry.low.clone());
        let high = match (&query.high, &entry.high) {
            (Some(wanted), Some(own)) => Some(wanted.min(own).clone()),
            (wanted, own) => wanted.clone().or_else(|| own.clone()),
        };
        let range = RangeRequest {
            low: low[..].into(),
            high: high.as_deref().map(Into::into),
            scan: query.scan,
            anywhere: true,
            credit: query.credit,
            ..RangeRequest::whole(entry.partition)
        };
        let partition = cluster.partitions.iter_mut().find(|found| found.id == entry.partition).unwrap();
        partition.instance += 1;
        let mut sending = begin_range(partition, query.query, &range);
        sending.head.ticket = Some(ticket);
        ranges.insert((query.query, Some(entry.partition)), sending);
        send_range(state, (query.query, Some(entry.partition)), ranges, out);
        parts.push(SubRange { partition: entry.partition, low, high, node: NodeId(1) });
    }
    QueryPlan { ticket, version: MapVersion(1), parts }.encode(out, stream).unwrap();
    QueryCompleted { ticket }.encode(out, stream);
}

fn find(cluster: &mut Cluster, partition: PartitionId) -> &mut ModelPartition {
    cluster.partitions.iter_mut().find(|found| found.id == partition).expect("a partition of the map")
}

fn version_of(partition: &ModelPartition) -> Version {
    Version { replica: ReplicaId(1), incarnation: 1, began: 1, changes: partition.instance }
}

fn begin_range(partition: &ModelPartition, stream: u32, range: &RangeRequest) -> Sending {
    let inside = |key: &[u8]| key >= &range.low[..] && range.high.as_ref().is_none_or(|high| key < &high[..]);
    let found = partition.data.iter().filter(|(key, _)| inside(key));
    let mut pairs: Vec<_> = found.map(|(key, value)| (key.clone(), value.clone())).collect();
    if range.scan.reverse {
        pairs.reverse();
    }
    let limited = range.scan.pairs_max > 0 && pairs.len() as u64 > range.scan.pairs_max;
    if limited {
        pairs.truncate(range.scan.pairs_max as usize);
    }
    let counted = range.scan.count_only.then_some(pairs.len() as u64);
    if range.scan.count_only {
        pairs.clear();
    }
    let position = Position { partition: partition.id, instance: partition.instance, index: 0 };
    let version = range.versioned.then(|| version_of(partition));
    let head = PartHead { stream, position, ticket: None, version, keys_only: range.scan.keys_only };
    Sending { pairs, sent: 0, number: 0, credit: i64::from(range.credit), unread: 0, head, limited, counted }
}

fn send_range(state: &State, key: (u32, Option<PartitionId>), ranges: &mut Ranges, out: &mut BytesMut) {
    let Some(sending) = ranges.get_mut(&key) else { return };
    let mut eight = true;
    while sending.credit > 0 {
        let start = out.len();
        let mut writer = PartWriter::new(out, &sending.head, sending.number, eight);
        let before = sending.counted.unwrap_or(sending.sent as u64);
        for (key, value) in &sending.pairs[sending.sent..] {
            if !writer.push(key, value) {
                eight &= key.len() == 8 && value.len() == 8;
                break;
            }
            sending.sent += 1;
        }
        let done = sending.sent == sending.pairs.len();
        if writer.count() == 0 && !done {
            // The first pair is not of 8 bytes: begin the chunk again, in the general form.
            out.truncate(start);
            eight = false;
            continue;
        }
        let end = if sending.limited { PartEnd::Limited } else { PartEnd::Complete };
        let bytes = writer.finish(before, done.then_some(end)) as i64;
        sending.credit -= bytes;
        sending.unread += bytes;
        sending.number += 1;
        state.unread_max.fetch_max(sending.unread.max(0) as u64, Ordering::SeqCst);
        if done {
            ranges.remove(&key);
            return;
        }
    }
}
