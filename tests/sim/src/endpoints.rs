//! Connections between clients and nodes: what `server/src/worker_thread/connection` does, without sockets and threads.
//! Frames are the real ones, encoded and decoded on both sides.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    FEATURE_COLLECT, Frame, Kind, NodeId, NodeIdentity, PartitionId, RepliesWriter, encode_frame,
};
use coppice_core::connection::{
    Asker, Dispatch, GreetedNode, Pending, Slice, decode, features, frame_bytes_max, greet, map_reply,
};
use coppice_core::cost::Account;
use coppice_core::replica::QueryPart;
use coppice_core::request::{Origin, Refusal, Reply};
use coppice_core::settings::FEATURE_LEVEL;
use coppice_core::wire_reply::WireReply;
use coppice_core::worker::Input;
use coppice_ordering::Time;

use super::events::{Event, Mail};
use super::lines::{INFLIGHT, LineId};
use super::plan::MS;
use super::store::CLUSTER;
use super::world::World;

impl World {
    /// Bytes of a client arrive at a node.
    pub fn node_receives(&mut self, number: LineId, bytes: &Bytes) {
        let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.node_open) else { return };
        line.at_node.feed(bytes);
        while let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.node_open) {
            line.at_node.set_frame_bytes_max(frame_bytes_max(line.greeted.is_some()));
            match line.at_node.next_frame() {
                Ok(Some(frame)) => self.on_frame(number, &frame),
                Ok(None) => return,
                Err(error) => return self.fail("wire", format!("a client's frame cannot be read: {error}")),
            }
        }
    }

    fn on_frame(&mut self, number: LineId, frame: &Frame) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        let (stream, node, (worker, connection)) = (frame.stream, line.node, number);
        let asked = match decode(frame, line.greeted.is_some()) {
            Ok(asked) => asked,
            Err(refused) => return self.fail("wire", format!("a client's frame is refused: {:?}", refused.refusal)),
        };
        let client = line.greeted.unwrap_or_default();
        // Every other client is a user, whose sessions and packs are marked.
        let owner = client.0.is_multiple_of(2).then_some(client.0);
        let account = Account::unbounded();
        let asker = Asker { connection: (worker as u16, connection), client, owner, account: &account };
        let mut out = BytesMut::new();
        match Dispatch::new(asked, stream, &asker) {
            Dispatch::Worker(input) => self.admit(number, (stream, frame.body.len()), &account, input),
            Dispatch::Hello(hello) => {
                self.lines.greets(number, hello.client);
                match greet(&hello, &self.greeted_node(node)) {
                    Ok(reply) => encode_control(&mut out, Kind::HelloOk, stream, &reply),
                    Err(refusal) => return self.fail("wire", format!("a client is turned away: {refusal:?}")),
                }
                self.answer(number, out);
                self.greeted(node, worker, hello.client);
            }
            Dispatch::Ping => {
                encode_frame(&mut out, Kind::Pong, stream, &[]);
                self.answer(number, out);
            }
            Dispatch::Map(get) => {
                let control = &self.nodes[node].process.control;
                let reply = map_reply(get, control.controller.map(), control.leaders.clone());
                encode_control(&mut out, Kind::Map, stream, &reply);
                self.answer(number, out);
            }
            Dispatch::Credit(bytes) => {
                line.pending.add_credit(stream, bytes);
                self.send_chunks(number);
            }
            Dispatch::Cancel => {
                line.pending.cancel(stream);
                self.coverage.note("client: wants an answer no more");
            }
            Dispatch::PartCredit { query, partition, bytes } => {
                line.pending.add_part_credit(query, partition, bytes);
                self.send_chunks(number);
            }
            Dispatch::Compare(request) => {
                line.pending.compare(stream, request, &account);
                self.send_chunks(number);
            }
            Dispatch::PartCompare { query, partition, request } => {
                line.pending.compare_part(query, partition, request, &account);
                self.send_chunks(number);
            }
            Dispatch::PartCancel { query } => {
                line.pending.cancel_parts(query);
                self.coverage.note("query: its client wants no more parts");
            }
            Dispatch::Status(_) | Dispatch::Admin(_) => self.fail("wire", "nobody asks for that".into()),
        }
    }

    /// Notes that a request waits, and tells the worker.
    fn admit(&mut self, number: LineId, (stream, bytes): (u32, usize), account: &Account, input: Input) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        line.stale.remove(&stream);
        line.collects.remove(&stream);
        match &input {
            Input::Request { request, .. } if request.read_rules().0 => _ = line.stale.insert(stream),
            Input::Collect { .. } => _ = line.collects.insert(stream),
            _ => {}
        }
        let node = line.node;
        match line.pending.admit((stream, bytes), account, input, ()) {
            Ok(Some(input)) => self.input(node, number.0, input),
            Ok(None) => self.hand_on(number),
            Err(refused) => self.fail("wire", format!("a client's request is refused: {:?}", refused.refusal)),
        }
    }

    /// Packs go on whose partitions have room for them.
    pub fn hand_on(&mut self, number: LineId) {
        while let Some(line) = self.lines.open.get_mut(&number).filter(|line| line.node_open)
            && let Some(input) = line.pending.next_pack()
        {
            let node = line.node;
            self.input(node, number.0, input);
        }
    }

    fn greeted_node(&self, node: usize) -> GreetedNode {
        let collects = self.plan.server.collecting >> (node % 32) & 1 == 1;
        let identity =
            NodeIdentity { node: NodeId(node as u32 + 1), incarnation: self.nodes[node].store.incarnation() };
        GreetedNode {
            identity: Some((CLUSTER, identity)),
            features: features(FEATURE_LEVEL) & if collects { u64::MAX } else { !FEATURE_COLLECT },
            map_version: self.nodes[node].process.control.controller.map().version,
            inflight: INFLIGHT,
            inflight_bytes: 16 << 20,
            is_draining: false,
        }
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
        let (mut out, now) = (BytesMut::new(), Time(self.now));
        let reply = WireReply::new(group, reply, || map, |_| hint);
        let Some(reply) = line.pending.answer(stream, reply, || now) else { return self.send_chunks(name) };
        match reply {
            WireReply::Answer(answer) => put_answer(&mut out, stream, &answer),
            WireReply::Values(values) => put_answer(&mut out, stream, &values.encode()),
            WireReply::Plan(plan) => _ = plan.encode(&mut out, stream),
            WireReply::Completed(completed) => completed.encode(&mut out, stream),
            WireReply::Refused(refusal) => refusal.encode(&mut out, stream),
            WireReply::Range(_) | WireReply::Nothing => {}
        }
        self.resume_packs(name);
        self.answer(name, out);
    }

    /// Requests are answered; packs that have waited for that go on when the worker is done with what it is at.
    fn resume_packs(&mut self, number: LineId) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        if line.pending.has_packs() {
            let (node, (worker, connection)) = (line.node, number);
            self.mail(node, worker, Mail::Packs(connection));
        }
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

    /// Chunks of ranges and parts go out as far as the client's credit reaches.
    fn send_chunks(&mut self, number: LineId) {
        let Some(line) = self.lines.open.get_mut(&number) else { return };
        let (mut out, before) = (BytesMut::new(), line.pending.len());
        while line.pending.send_chunks((&mut out, usize::MAX), &mut Slice::default()) {}
        if line.pending.len() < before {
            self.resume_packs(number);
        }
        if !out.is_empty() {
            self.answer(number, out);
        }
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
        line.pending.add_part(part, Time(self.now));
        self.send_chunks(number);
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
        if self.net.either() {
            self.lines.ends_at_node(number);
        }
        self.schedule(at, Event::Lost { line: number });
    }

    /// A client has no use of a connection any more. What it said before may arrive all the same, and later than what
    /// it says on another one.
    pub fn leave_line(&mut self, number: LineId) {
        let arrives = self.net.either();
        let Some(line) = self.lines.open.get_mut(&number).filter(|line| arrives && line.node_open) else {
            self.lines.remove(number);
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
            self.lines.ends_at_node(number);
            let Some(line) = self.lines.open.get_mut(&number) else { continue };
            line.pending = Pending::new(INFLIGHT);
            if !line.client_open {
                self.lines.remove(number);
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
