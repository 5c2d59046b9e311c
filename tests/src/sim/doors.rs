//! Connections between clients and nodes: what `server/net/public.rs` does, without sockets and threads. Frames are the
//! real ones, encoded and decoded on both sides.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use coppice_client::session::ConnectionId;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    Command, Frame, FrameDecoder, HelloOk, Kind, Limits, MapReply, NodeId, NodeIdentity, PackReply, PartitionId,
    Refusal as Refused, RepliesWriter, Request as Asked, encode_frame,
};
use coppice_server::replica::Input;
use coppice_server::request::{Origin, Refusal, Reply, Request};
use coppice_server::shard::ranges::RangeJob;

use super::plan::{MS, Nanos};
use super::store::CLUSTER;
use super::world::{Event, World};

/// Ranges of one connection that stream at a time, as in a real node.
const RANGES_MAX: usize = 256;

/// A connection, seen from both ends.
#[derive(Debug)]
pub struct Line {
    /// Whose.
    pub client: usize,
    /// The client's name for it.
    pub id: ConnectionId,
    /// To which node.
    pub node: usize,
    /// The node's process still has it.
    pub node_open: bool,
    /// The client still has it.
    pub client_open: bool,
    /// Bytes keep their order, each way.
    pub to_node: Nanos,
    /// See `to_node`.
    pub to_client: Nanos,
    /// At the node.
    pub at_node: FrameDecoder,
    /// At the client.
    pub at_client: FrameDecoder,
    greeted: bool,
    waiting: BTreeMap<u32, PartitionId>,
    ranges: BTreeMap<u32, Range>,
}

struct Range(RangeJob);

impl std::fmt::Debug for Range {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Range")
    }
}

impl Line {
    /// A connection that is being opened.
    pub fn new(client: usize, id: ConnectionId, node: usize, now: Nanos) -> Line {
        Line {
            client,
            id,
            node,
            node_open: true,
            client_open: true,
            to_node: now,
            to_client: now,
            at_node: FrameDecoder::default(),
            at_client: FrameDecoder::default(),
            greeted: false,
            waiting: BTreeMap::new(),
            ranges: BTreeMap::new(),
        }
    }
}

impl World {
    /// Bytes of a client arrive at a node.
    pub fn node_receives(&mut self, number: u64, bytes: &Bytes) {
        let Some(line) = self.lines.get_mut(&number).filter(|line| line.node_open) else { return };
        line.at_node.feed(bytes);
        while let Some(line) = self.lines.get_mut(&number).filter(|line| line.node_open) {
            match line.at_node.next_frame() {
                Ok(Some(frame)) => self.on_frame(number, &frame),
                Ok(None) => return,
                Err(error) => return self.fail("wire", format!("a client's frame cannot be read: {error}")),
            }
        }
    }

    fn on_frame(&mut self, number: u64, frame: &Frame) {
        let asked = match Asked::decode(frame) {
            Ok(asked) => asked,
            Err(error) => return self.fail("wire", format!("a client's request cannot be read: {error}")),
        };
        let stream = frame.stream;
        let mut out = BytesMut::new();
        let (group, request) = match asked {
            Asked::Hello(_) => {
                self.greet(number, stream, &mut out);
                return self.answer(number, out);
            }
            _ if !self.lines[&number].greeted => return self.fail("wire", "the first frame is no Hello".into()),
            Asked::Ping => {
                encode_frame(&mut out, Kind::Pong, stream, &[]);
                return self.answer(number, out);
            }
            Asked::MapGet(get) => {
                let reply = self.map_reply(self.lines[&number].node, get.known);
                encode_control(&mut out, Kind::Map, stream, &reply);
                return self.answer(number, out);
            }
            Asked::Credit(bytes) => {
                if let Some(range) = self.lines.get_mut(&number).and_then(|line| line.ranges.get_mut(&stream)) {
                    range.0.add_credit(bytes);
                }
                return self.pump_range(number, stream);
            }
            Asked::Cancel => {
                let Some(line) = self.lines.get_mut(&number) else { return };
                line.ranges.remove(&stream);
                line.waiting.remove(&stream);
                return;
            }
            Asked::Commands(commands) => {
                let grows = commands.pack().is_ok_and(|pack| pack.commands().any(|(_, command)| grows(&command)));
                let request = Request::Pack { entry: commands.entry, commands: commands.count, grows };
                (commands.partition, request)
            }
            Asked::OpenSession(open) => (open.partition, Request::Open { entry: open.entry }),
            Asked::Read(read) => (read.partition, Request::Read(read)),
            Asked::Range(range) => (range.partition, Request::Range(Box::new(range))),
            Asked::Status(_)
            | Asked::Admin(_)
            | Asked::Query(_)
            | Asked::PartCredit { .. }
            | Asked::PartCancel { .. } => return self.fail("wire", "nobody asks for that".into()),
        };
        self.request(number, stream, group, request);
    }

    fn request(&mut self, number: u64, stream: u32, group: PartitionId, request: Request) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        let node = line.node;
        if line.waiting.insert(stream, group).is_some() {
            return self.fail("wire", format!("stream {stream} is in use"));
        }
        let origin = Origin { connection: number, stream };
        let here = self.nodes[node].hosts.contains_key(&group);
        let refusal = match here {
            false if self.map.entry(group).is_some() => Some(Refusal::NotLeader { hint: None }),
            false => Some(Refusal::WrongPartition),
            true if self.nodes[node].store.is_full() && request.grows() => Some(Refusal::Full),
            true => None,
        };
        match refusal {
            Some(refusal) => self.reply(node, group, origin, Reply::Refused(refusal)),
            None => self.step(node, group, Input::Request { origin, request }),
        }
    }

    fn greet(&mut self, number: u64, stream: u32, out: &mut BytesMut) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.greeted = true;
        let node = line.node;
        let hello = HelloOk {
            protocol: 1,
            features: 0,
            cluster: Some(CLUSTER),
            node: Some(NodeIdentity {
                node: NodeId(node as u32 + 1),
                incarnation: self.nodes[node].store.incarnation(),
            }),
            map_version: self.map.version,
            limits: Limits {
                frame_bytes: 4 << 20,
                key_bytes: 4 << 10,
                value_bytes: 1 << 20,
                inflight: 1_024,
                inflight_bytes: 16 << 20,
                idle_ms: 0,
            },
        };
        encode_control(out, Kind::HelloOk, stream, &hello);
    }

    fn map_reply(&self, node: usize, known: coppice_client::wire::MapVersion) -> MapReply {
        let map = (self.map.version > known).then(|| (*self.map).clone());
        let leaders = self.nodes[node].leaders.iter().map(|(&group, &leader)| (group, NodeId(leader as u32 + 1)));
        MapReply { map, leaders: leaders.collect() }
    }

    /// A replica answers.
    pub fn reply(&mut self, node: usize, group: PartitionId, origin: Origin, reply: Reply) {
        let stream = origin.stream;
        if origin.is_own() {
            return;
        }
        let hint = self.hint(node, group, &reply);
        let busy = Refused::Busy { retry_after: std::time::Duration::from_millis(5) };
        let version = self.map.version;
        let entries = || self.map.entry(group).cloned().into_iter().collect();
        let Some(line) = self.lines.get_mut(&origin.connection).filter(|line| line.node_open) else { return };
        if !line.waiting.contains_key(&stream) {
            return;
        }
        let mut out = BytesMut::new();
        match reply {
            Reply::Pack(answer) => put_answer(&mut out, stream, &answer),
            Reply::Opened(session) => {
                let mut answer = BytesMut::new();
                let mut opened = PackReply::new(&mut answer, session.partition, session.instance, session.index);
                opened.opened();
                let answer = opened.finish_split();
                put_answer(&mut out, stream, &answer);
            }
            Reply::Read { instance, values } => {
                let mut answer = BytesMut::new();
                let mut read = PackReply::read(&mut answer, group, instance.0, 0);
                values.iter().for_each(|value| read.value(value.as_deref()));
                let answer = read.finish_split();
                put_answer(&mut out, stream, &answer);
            }
            Reply::Range { instance, cursor, range } if line.ranges.len() < RANGES_MAX => {
                let job = Range(RangeJob::new(group, instance, cursor, range));
                line.ranges.insert(stream, job);
                return self.pump_range(origin.connection, stream);
            }
            Reply::Range { .. } | Reply::Refused(Refusal::Busy) => busy.encode(&mut out, stream),
            Reply::Directory(_) | Reply::Cut(_) | Reply::Completed { .. } | Reply::Aborted { .. } => {}
            Reply::Refused(Refusal::NotLeader { .. }) => {
                Refused::NotLeader { partition: group, hint }.encode(&mut out, stream);
            }
            Reply::Refused(Refusal::WrongPartition) => {
                Refused::WrongPartition { partition: group, version, entries: entries() }.encode(&mut out, stream);
            }
            Reply::Refused(Refusal::SessionExpired) => Refused::SessionExpired.encode(&mut out, stream),
            Reply::Refused(Refusal::Full) => Refused::Full.encode(&mut out, stream),
            Reply::Unsure { .. } => Refused::Deposed { partition: group, hint }.encode(&mut out, stream),
        }
        line.waiting.remove(&stream);
        self.answer(origin.connection, out);
    }

    /// The node that a refusal points to.
    fn hint(&self, node: usize, group: PartitionId, reply: &Reply) -> Option<NodeId> {
        let (Reply::Refused(Refusal::NotLeader { hint }) | Reply::Unsure { hint }) = reply else { return None };
        let told = hint.and_then(|replica| self.places.get(&(group, replica)));
        told.or_else(|| self.nodes[node].leaders.get(&group)).map(|&node| NodeId(node as u32 + 1))
    }

    /// Chunks of a range go out as far as the client's credit reaches.
    fn pump_range(&mut self, number: u64, stream: u32) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        let Some(range) = line.ranges.get_mut(&stream) else { return };
        let (mut out, mut last) = (BytesMut::new(), false);
        while !last && range.0.may_send() {
            last = range.0.send(stream, &mut out);
        }
        if last {
            line.ranges.remove(&stream);
            line.waiting.remove(&stream);
        }
        if !out.is_empty() {
            self.answer(number, out);
        }
    }

    /// Sends bytes to a client, perhaps the last ones of the connection.
    fn answer(&mut self, number: u64, out: BytesMut) {
        let at = self.now + self.net.delay();
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.to_client = line.to_client.max(at);
        let at = line.to_client;
        self.schedule(at, Event::ToClient { line: number, bytes: out.freeze() });
        if self.net.breaks() {
            self.cut_line(number);
        }
    }

    /// A connection breaks: what is under way may still arrive, or not.
    pub fn cut_line(&mut self, number: u64) {
        let at = self.now + self.net.delay();
        if self.net.either()
            && let Some(line) = self.lines.get_mut(&number)
        {
            line.node_open = false;
        }
        self.schedule(at, Event::Lost { line: number });
    }

    /// A node's process ended: its connections break, and some clients do not even hear that.
    pub fn lose_lines(&mut self, node: usize) {
        let lines: Vec<u64> = self.lines.iter().filter(|(_, line)| line.node == node).map(|(&line, _)| line).collect();
        for number in lines {
            let Some(line) = self.lines.get_mut(&number) else { continue };
            line.node_open = false;
            line.ranges.clear();
            if !line.client_open {
                self.lines.remove(&number);
                continue;
            }
            let at = self.now + if self.net.either() { self.net.delay() } else { 3_000 * MS };
            self.schedule(at, Event::Lost { line: number });
        }
    }
}

fn put_answer(out: &mut BytesMut, stream: u32, answer: &[u8]) {
    let mut replies = RepliesWriter::new(out);
    // What the executor wrote is well formed; were it not, the client would complain.
    _ = replies.answer(stream, answer);
    replies.finish();
}

fn grows(command: &Command<'_>) -> bool {
    use coppice_btree::Op;
    let op_grows = |op: &Op<'_>| matches!(op, Op::Put { .. } | Op::Insert { .. } | Op::Cas { .. });
    match command {
        Command::Op(op) => op_grows(op),
        Command::Many(operations) => operations.iter().any(|op| op_grows(&op)),
        Command::Load(_) => true,
    }
}
