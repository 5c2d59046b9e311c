//! Connections between clients and nodes: what `server/src/worker_thread/connection` does, without sockets and threads.
//! Frames are the real ones, encoded and decoded on both sides.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    ClientId, FEATURE_COLLECT, FEATURE_VALIDATE, Frame, HelloOk, Kind, Limits, MapReply, NodeId, NodeIdentity,
    PROTOCOL, PartitionId, QueryRequest, RepliesWriter, Request as Asked, encode_frame,
};
use coppice_core::cost::Account;
use coppice_core::ids;
use coppice_core::machine::entry;
use coppice_core::replica::QueryPart;
use coppice_core::request::{Origin, Refusal, Reply, Request};
use coppice_core::scan::RangeJob;
use coppice_core::wire_reply::{WireReply, busy};
use coppice_core::worker::Input;

use super::events::Event;
use super::lines::{Line, LineId, Range};
use super::plan::MS;
use super::store::CLUSTER;
use super::world::World;

/// Ranges of one connection that stream at a time, as in a real node.
const RANGES_MAX: usize = 256;

impl World {
    /// Bytes of a client arrive at a node.
    pub fn node_receives(&mut self, number: LineId, bytes: &Bytes) {
        let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.node_open) else { return };
        line.at_node.feed(bytes);
        while let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.node_open) {
            match line.at_node.next_frame() {
                Ok(Some(frame)) => self.on_frame(number, &frame),
                Ok(None) => return,
                Err(error) => return self.fail("wire", format!("a client's frame cannot be read: {error}")),
            }
        }
    }

    fn on_frame(&mut self, number: LineId, frame: &Frame) {
        let asked = match Asked::decode(frame) {
            Ok(asked) => asked,
            Err(error) => return self.fail("wire", format!("a client's request cannot be read: {error}")),
        };
        let stream = frame.stream;
        let mut out = BytesMut::new();
        let (group, request) = match asked {
            Asked::Hello(hello) => {
                self.greet(number, (stream, hello.client), &mut out);
                self.answer(number, out);
                let node = self.lines.open.get(&number).map(|line| line.node);
                let (worker, _) = number;
                return node.into_iter().for_each(|node| self.greeted(node, worker, hello.client));
            }
            _ if self.lines.open[&number].greeted.is_none() => {
                return self.fail("wire", "the first frame is no Hello".into());
            }
            Asked::Ping => {
                encode_frame(&mut out, Kind::Pong, stream, &[]);
                return self.answer(number, out);
            }
            Asked::MapGet(get) => {
                let reply = self.map_reply(self.lines.open[&number].node, get.known);
                encode_control(&mut out, Kind::Map, stream, &reply);
                return self.answer(number, out);
            }
            Asked::Credit(bytes) => {
                if let Some(range) = self.lines.open.get_mut(&number).and_then(|line| line.ranges.get_mut(&stream)) {
                    range.0.add_credit(bytes);
                }
                return self.send_range_chunks(number, stream);
            }
            Asked::Cancel => {
                let Some(line) = self.lines.open.get_mut(&number) else { return };
                line.ranges.remove(&stream);
                line.waiting.remove(&stream);
                return self.coverage.note("client: wants an answer no more");
            }
            Asked::Commands(commands) => {
                // Every other client is a user, whose packs are marked.
                let user = self.lines.open[&number].greeted.filter(|client| client.0.is_multiple_of(2));
                let owned = user.map(|user| entry::owned(&commands.entry, user.0));
                let entry = owned.unwrap_or_else(|| commands.entry.clone());
                (commands.partition, Request::pack(entry, &commands))
            }
            Asked::OpenSession(open) => (open.partition, Request::Open { entry: open.entry }),
            Asked::Read(read) => (read.partition, Request::Read(read, Account::unbounded(), None)),
            Asked::Range(range) => (range.partition, Request::Range(Box::new(range))),
            Asked::Validate(asked) => (asked.partition, Request::Validate(asked, None)),
            Asked::Collect(range) => {
                let Some((node, origin)) = self.admit(number, stream, range.parts[0].0) else { return };
                self.lines.open.get_mut(&number).into_iter().for_each(|line| _ = line.collects.insert(stream));
                return self.input(node, number.0, Input::Collect { origin, range });
            }
            Asked::Query(query) => return self.on_query(number, stream, &query),
            Asked::PartCredit { query, partition, bytes } => {
                let line = self.lines.open.get_mut(&number);
                if let Some(part) = line.and_then(|line| line.parts.get_mut(&(query, partition))) {
                    part.0.add_credit(bytes);
                }
                return self.send_part_chunks(number, (query, partition));
            }
            Asked::PartCancel { query } => {
                let Some(line) = self.lines.open.get_mut(&number) else { return };
                line.parts.retain(|(of, _), _| *of != query);
                return self.coverage.note("query: its client wants no more parts");
            }
            Asked::Status(_) | Asked::Admin(_) => return self.fail("wire", "nobody asks for that".into()),
        };
        self.request(number, stream, group, request);
    }

    /// Notes that a request waits: its node, and where the answer goes.
    fn admit(&mut self, number: LineId, stream: u32, group: PartitionId) -> Option<(usize, Origin)> {
        let line = self.lines.open.get_mut(&number)?;
        line.stale.remove(&stream);
        line.collects.remove(&stream);
        if line.waiting.insert(stream, group).is_some() {
            self.fail("wire", format!("stream {stream} is in use"));
            return None;
        }
        let (worker, connection) = number;
        Some((line.node, Origin::Client { worker: worker as u16, stream, connection }))
    }

    fn on_query(&mut self, number: LineId, stream: u32, query: &QueryRequest) {
        let Some((node, origin)) = self.admit(number, stream, PartitionId::DIRECTORY) else { return };
        if let Some(client) = self.lines.open[&number].greeted {
            let request = Box::new(query.clone());
            self.input(node, number.0, Input::Query { origin, client, request });
        }
    }

    fn request(&mut self, number: LineId, stream: u32, group: PartitionId, request: Request) {
        let Some((node, origin)) = self.admit(number, stream, group) else { return };
        let stale = request.read_rules().0;
        if let Some(line) = self.lines.open.get_mut(&number).filter(|_| stale) {
            line.stale.insert(stream);
        }
        self.input(node, number.0, Input::Request { group, origin, request });
    }

    fn greet(&mut self, number: LineId, (stream, client): (u32, ClientId), out: &mut BytesMut) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        line.greeted = Some(client);
        let node = line.node;
        let collects = self.plan.server.collecting >> (node % 32) & 1 == 1;
        let hello = HelloOk {
            protocol: *PROTOCOL.end(),
            features: FEATURE_VALIDATE | if collects { FEATURE_COLLECT } else { 0 },
            cluster: Some(CLUSTER),
            node: Some(NodeIdentity {
                node: NodeId(node as u32 + 1),
                incarnation: self.nodes[node].store.incarnation(),
            }),
            map_version: self.nodes[node].process.control.controller.map().version,
            limits: Limits {
                frame_bytes: 4 << 20,
                key_bytes: 4 << 10,
                value_bytes: 1 << 20,
                inflight: 1_024,
                inflight_bytes: 16 << 20,
            },
        };
        encode_control(out, Kind::HelloOk, stream, &hello);
    }

    fn map_reply(&self, node: usize, known: coppice_client::wire::MapVersion) -> MapReply {
        let own = self.nodes[node].process.control.controller.map();
        let map = (own.version > known).then(|| (**own).clone());
        MapReply { map, leaders: self.nodes[node].process.control.leaders.clone().into_iter().collect() }
    }

    /// Whether what is answered was asked to be answered at once.
    pub fn is_stale(&self, origin: Origin) -> bool {
        match origin {
            Origin::Client { worker, stream, connection } => {
                let line = self.lines.open.get(&(usize::from(worker), connection));
                line.is_none_or(|line| line.stale.contains(&stream))
            }
            Origin::Collect { .. } => false,
            Origin::Node { .. } | Origin::Nobody => true,
        }
    }

    /// A replica answers.
    pub fn reply(&mut self, node: usize, group: PartitionId, origin: Origin, reply: Reply) {
        let (worker, stream, connection) = match origin {
            Origin::Client { worker, stream, connection } => (worker, stream, connection),
            Origin::Node { number, .. } => return self.on_own_reply(node, number, &reply),
            Origin::Collect { .. } | Origin::Nobody => return,
        };
        let name = (usize::from(worker), connection);
        self.coverage.reply(&reply);
        let hint = self.hint(node, group, name.0, &reply);
        if self.lines.open.get(&name).is_some_and(|line| line.collects.contains(&stream)) {
            self.note_gathered(&reply);
        }
        let map = Arc::clone(self.nodes[node].process.control.controller.map());
        let Some(line) = self.lines.open.get_mut(&name).filter(|line| line.node_open) else { return };
        if !line.waiting.contains_key(&stream) {
            return;
        }
        let mut out = BytesMut::new();
        match WireReply::new(group, reply, || map, |_| hint) {
            WireReply::Answer(answer) => put_answer(&mut out, stream, &answer),
            WireReply::Values(values) => put_answer(&mut out, stream, &values.encode()),
            WireReply::Range(job) if line.ranges.len() < RANGES_MAX => {
                line.ranges.insert(stream, Range(*job));
                return self.send_range_chunks(name, stream);
            }
            WireReply::Range(_) => busy().encode(&mut out, stream),
            WireReply::Plan(plan) => {
                _ = plan.encode(&mut out, stream);
                return self.answer(name, out);
            }
            WireReply::Completed(completed) => completed.encode(&mut out, stream),
            WireReply::Refused(refusal) => refusal.encode(&mut out, stream),
            WireReply::Nothing => {}
        }
        line.waiting.remove(&stream);
        self.answer(name, out);
    }

    fn note_gathered(&mut self, reply: &Reply) {
        match reply {
            Reply::Collected { .. } => self.coverage.note("collect: one moment"),
            Reply::Aborted { text, .. } => {
                self.coverage.note("collect: comes to nothing");
                if text.contains("did not answer in time") {
                    self.coverage.note("collect: waited for too long");
                }
            }
            _ => self.coverage.note("collect: a replica refuses"),
        }
    }

    /// The node that a refusal points to.
    fn hint(&self, node: usize, group: PartitionId, worker: usize, reply: &Reply) -> Option<NodeId> {
        let (Reply::Refused(Refusal::NotLeader { hint }) | Reply::Unsure { hint }) = reply else { return None };
        let worker = &self.nodes[node].process.workers[worker];
        worker.hint(group, &Refusal::NotLeader { hint: *hint })
    }

    /// Chunks of a range go out as far as the client's credit reaches.
    fn send_range_chunks(&mut self, number: LineId, stream: u32) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
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

    /// The newest connection of a client at a node.
    pub fn line_of(&self, node: usize, client: ClientId) -> Option<LineId> {
        let is_it = |line: &Line| line.node == node && line.node_open && line.greeted == Some(client);
        let lines = self.lines.open.iter().filter(|(_, line)| is_it(line)).map(|(&number, _)| number);
        lines.max_by_key(|(_, count)| *count)
    }

    /// The name of a new connection: the worker that it comes to stands in it.
    pub fn name_line(&mut self) -> LineId {
        self.lines.opened += 1;
        let count = self.lines.opened;
        (count as usize % self.plan.server.workers as usize, count)
    }

    /// Streams a part of a query on a connection.
    pub fn stream_part(&mut self, number: LineId, part: QueryPart) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        let QueryPart { ticket, position, partition_query, cursor } = part;
        let name = (partition_query.query, position.partition);
        let range = Box::new(partition_query.range(position.partition));
        let job = RangeJob::of_query(position, ids::ticket(ticket), cursor, range);
        line.parts.insert(name, Range(job));
        self.send_part_chunks(number, name);
    }

    fn send_part_chunks(&mut self, number: LineId, name: (u32, PartitionId)) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        let Some(part) = line.parts.get_mut(&name) else { return };
        let (mut out, mut last) = (BytesMut::new(), false);
        while !last && part.0.may_send() {
            last = part.0.send(name.0, &mut out);
        }
        if last {
            line.parts.remove(&name);
        }
        if !out.is_empty() {
            self.answer(number, out);
        }
    }

    /// Sends bytes to a client, perhaps the last ones of the connection.
    fn answer(&mut self, number: LineId, out: BytesMut) {
        let at = self.now + self.net.delay();
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        line.to_client = line.to_client.max(at);
        let at = line.to_client;
        self.schedule(at, Event::ToClient { line: number, bytes: out.freeze() });
        if self.net.breaks() {
            self.cut_line(number);
        }
    }

    /// A connection breaks: what is under way may still arrive, or not.
    pub fn cut_line(&mut self, number: LineId) {
        let at = self.now + self.net.delay();
        if self.net.either()
            && let Some(line) = self.lines.open.get_mut(&number)
        {
            line.node_open = false;
        }
        self.schedule(at, Event::Lost { line: number });
    }

    /// A client has no use of a connection any more. What it said before may arrive all the same, and later than what
    /// it says on another one.
    pub fn leave_line(&mut self, number: LineId) {
        let arrives = self.net.either();
        let Some(line) = self.lines.open.get_mut(&number).filter(|line| arrives && line.node_open) else {
            self.lines.open.remove(&number);
            return;
        };
        line.client_open = false;
        line.late_until = self.now + self.net.lateness();
        let at = line.late_until.max(line.to_node) + MS;
        self.schedule(at, Event::Lost { line: number });
    }

    /// A node's process ended: its connections break, and some clients do not even hear that.
    pub fn lose_lines(&mut self, node: usize) {
        let lines: Vec<LineId> =
            self.lines.open.iter().filter(|(_, line)| line.node == node).map(|(&line, _)| line).collect();
        for number in lines {
            let Some(line) = self.lines.open.get_mut(&number) else { continue };
            line.node_open = false;
            line.ranges.clear();
            line.parts.clear();
            if !line.client_open {
                self.lines.open.remove(&number);
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
