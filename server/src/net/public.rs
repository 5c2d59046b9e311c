//! A client's connection: frames in, requests to the shard; replies out, those of one turn in as few frames as
//! possible.
//!
//! A connection that has too much in flight, or does not read its answers, is not read until it does (experience.md 4,
//! `limits`). It does not know what commands mean.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::{Bytes, BytesMut};
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{
    ClientId, CommandRefusal, Completed, Frame, FrameDecoder, HelloOk, Kind, PackReply, PartitionId,
    Refusal as Refused, RepliesWriter, Request as Asked,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::incoming;
use super::outbox::Outbox;
use super::streams::Streams;
use super::translate;
use crate::metrics::{Op, Outcome, Queue};
use crate::request::{Origin, Refusal, Reply, Request};
use crate::shard::Shard;
use crate::shard::ranges::RangeJob;
use crate::shared::Shared;

/// Bytes that wait to be read by the client; beyond, its requests are not read.
const OUTBOX_BYTES_MAX: usize = 8 << 20;

/// Range chunks are made while less than this waits to be written.
const RANGES_BYTES_MAX: usize = 1 << 20;

/// Parts of queries that stream on a connection; beyond, they are dropped, and their client asks again.
const PARTS_MAX: usize = 4_096;

/// Of the requests that may wait on a connection, this many may be ranges that stream: each pins a snapshot, and a
/// connection full of them would not be read any more, their credit included. Beyond: `Busy`.
fn ranges_max(inflight: usize) -> usize {
    (inflight / 4 * 3).max(1)
}

/// What is remembered of a request until it is answered.
struct Waiting {
    op: Op,
    bytes: usize,
    since: Clock,
}

/// What waits on a connection, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct InWait {
    /// Pieces of replies that the client has not read.
    pub replies: usize,
    /// Ranges that stream.
    pub scans: usize,
    /// Requests without an answer.
    pub inflight: usize,
}

/// One client's connection, shared by its task and the shard's turn.
pub struct Connection {
    id: u64,
    stream: TcpStream,
    state: RefCell<State>,
    /// Something to write at the end of the turn.
    dirty: Cell<bool>,
    /// Rung when the task must look again: a full socket, room for requests, the end.
    bell: Notify,
}

struct State {
    client: Option<ClientId>,
    outbox: Outbox,
    /// Answers of this turn, framed together at its end.
    answers: Vec<(u32, Bytes)>,
    waiting: BTreeMap<u32, Waiting>,
    waiting_bytes: usize,
    ranges: Streams<u32>,
    /// Parts of queries: the client's number of the attempt, and whose part it is.
    parts: Streams<(u32, PartitionId)>,
    /// Bytes of range chunks in `outbox` at most, counted in the node's `limits.scan_bytes`.
    scan_bytes: usize,
    /// No more is read; what is queued is still written.
    closing: bool,
    shared: Arc<Shared>,
}

impl Connection {
    /// A connection over `stream`.
    pub fn new(id: u64, stream: TcpStream, shared: Arc<Shared>) -> Rc<Connection> {
        let state = RefCell::new(State {
            client: None,
            outbox: Outbox::default(),
            answers: Vec::new(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            ranges: Streams::default(),
            parts: Streams::default(),
            scan_bytes: 0,
            closing: false,
            shared,
        });
        Rc::new(Connection { id, stream, state, dirty: Cell::new(false), bell: Notify::new() })
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that something is to be written; `true` if it was not noted before.
    pub fn mark_dirty(&self) -> bool {
        !self.dirty.replace(true)
    }

    /// Ends it after what is queued is written.
    pub fn close(&self) {
        self.state.borrow_mut().closing = true;
        self.bell.notify_one();
    }

    /// Queues the answer to a request of this connection.
    pub fn answer(&self, shard: &Shard, group: PartitionId, origin: Origin, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let stream = origin.stream;
        let Some(waiting) = state.waiting.get(&stream) else { return };
        let (op, since) = (waiting.op, waiting.since);
        if let Reply::Cut(cut) = &reply {
            // A query over more partitions than a frame can name gets no `Cut`, and times out at its client.
            return state.outbox.append(|out| _ = cut.encode(out, stream));
        }
        let outcome = translate::outcome(&reply);
        let took = since.elapsed();
        shard.metrics.request(op, outcome, took);
        if took > state.shared.config.slow_request && outcome != Outcome::Gone {
            shard.slow_request(group, op, outcome, translate::instance_of(&reply), took);
        }
        match reply {
            Reply::Pack(answer) => state.answers.push((stream, answer)),
            Reply::Opened(session) => {
                let mut out = BytesMut::new();
                let mut answer = PackReply::new(&mut out, session.partition, session.instance, session.index);
                answer.opened();
                let answer = answer.finish_split();
                state.answers.push((stream, answer));
            }
            Reply::Read { instance, values, left_out } => {
                let mut out = BytesMut::new();
                let mut answer = PackReply::read(&mut out, group, instance.0, 0);
                values.iter().for_each(|value| answer.value(value.as_deref()));
                (0..left_out).for_each(|_| answer.refused(CommandRefusal::Later));
                let answer = answer.finish_split();
                state.answers.push((stream, answer));
            }
            Reply::Validated { instance, unchanged } => {
                let mut out = BytesMut::new();
                let mut answer = PackReply::read(&mut out, group, instance.0, 0);
                unchanged.into_iter().for_each(|unchanged| answer.validated(unchanged));
                let answer = answer.finish_split();
                state.answers.push((stream, answer));
            }
            Reply::Range { instance, cursor, range, version } => {
                if state.ranges.len() >= ranges_max(shard.shared.config.limits.inflight) {
                    state.refuse(stream, &translate::busy());
                } else {
                    let job = RangeJob::new(group, instance, cursor, range).versioned(version);
                    state.ranges.add(stream, job);
                    return;
                }
            }
            Reply::Gathered { parts, range } => {
                if state.ranges.len() >= ranges_max(shard.shared.config.limits.inflight) {
                    state.refuse(stream, &translate::busy());
                } else if let Some(job) = RangeJob::gathered(parts, &*range) {
                    return state.ranges.add(stream, job);
                }
            }
            Reply::Completed { ticket } => {
                state.outbox.append(|out| Completed { ticket }.encode(out, stream));
            }
            Reply::Aborted { text, unplaced } => state.refuse(stream, &Refused::Aborted { text, unplaced }),
            Reply::Cut(_) | Reply::Directory(_) | Reply::Readings { .. } => {}
            Reply::Refused(refusal) => {
                let refusal = translate::refusal(shard, group, refusal);
                state.refuse(stream, &refusal);
            }
            Reply::Unsure { hint } => {
                let hint = shard.hint(group, &Refusal::NotLeader { hint });
                state.refuse(stream, &Refused::Deposed { partition: group, hint });
            }
        }
        if state.done(stream) {
            self.bell.notify_one();
        }
    }

    /// What waits here now.
    pub fn waiting(&self) -> InWait {
        let state = self.state.borrow();
        InWait { replies: state.outbox.waiting(), scans: state.ranges.len(), inflight: state.waiting.len() }
    }

    /// Writes what the turn has queued, as far as the socket takes it.
    pub fn flush(&self) {
        self.dirty.set(false);
        let mut state = self.state.borrow_mut();
        state.frame_answers();
        let more = state.pump_ranges();
        let written = state.outbox.write_to(&self.stream);
        state.settle_scan_bytes();
        match written {
            Ok(true) if !more => {}
            Ok(_) => self.bell.notify_one(),
            Err(_) => {
                state.closing = true;
                state.outbox.clear();
                state.settle_scan_bytes();
                self.bell.notify_one();
            }
        }
    }

    fn has_ranges(&self) -> bool {
        let state = self.state.borrow();
        !state.ranges.is_empty() || !state.parts.is_empty()
    }

    /// Streams this part of a query; beyond the bound it is dropped, and its client asks again.
    pub fn add_part(&self, query: u32, partition: PartitionId, job: RangeJob) {
        let mut state = self.state.borrow_mut();
        if state.parts.len() < PARTS_MAX {
            state.parts.add((query, partition), job);
        }
    }

    /// Ends ranges whose snapshot was pinned for too long by a slow reader; `true` if there were any.
    fn expire_ranges(&self, pin: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        state.parts.expire(pin);
        let old = state.ranges.expire(pin);
        for &stream in &old {
            state.refuse(stream, &Refused::SnapshotExpired);
            state.done(stream);
        }
        !old.is_empty()
    }

    fn may_read(&self, limits: &crate::config::Limits) -> bool {
        let state = self.state.borrow();
        !state.closing
            && state.outbox.bytes() < OUTBOX_BYTES_MAX
            && state.waiting.len() < limits.inflight.max(1)
            && state.waiting_bytes as u64 <= limits.inflight_bytes
    }
}

impl State {
    fn refuse(&mut self, stream: u32, refusal: &Refused) {
        self.outbox.append(|out| refusal.encode(out, stream));
    }

    /// The request is answered; `true` if reading had to wait for that.
    fn done(&mut self, stream: u32) -> bool {
        let Some(waiting) = self.waiting.remove(&stream) else { return false };
        self.waiting_bytes -= waiting.bytes;
        self.shared.request_done(waiting.bytes);
        true
    }

    fn frame_answers(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let State { answers, outbox, .. } = self;
        outbox.append(|out| {
            let mut replies = RepliesWriter::new(out);
            for (stream, answer) in answers.drain(..) {
                // What the executor wrote is well formed; were it not, the client would time out and ask again.
                _ = replies.answer(stream, &answer);
            }
            replies.finish();
        });
    }

    /// Chunks that were written, or dropped with the connection, wait no more.
    fn settle_scan_bytes(&mut self) {
        let left = self.scan_bytes.min(self.outbox.bytes());
        self.shared.add_scan_bytes(left as i64 - self.scan_bytes as i64);
        self.scan_bytes = left;
    }

    /// Makes a chunk of each range and part that has credit; `true` if there is more to make.
    fn pump_ranges(&mut self) -> bool {
        // Beyond `limits.scan_bytes` they wait until other clients have read: looked at again by the clock.
        if !self.shared.may_scan() {
            return false;
        }
        let before = self.outbox.bytes();
        let State { ranges, parts, outbox, .. } = self;
        let mut ended = Vec::new();
        let mut more = ranges.pump((outbox, RANGES_BYTES_MAX), |stream| stream, |stream| ended.push(stream));
        more |= parts.pump((outbox, RANGES_BYTES_MAX), |(query, _)| query, |_| {});
        for stream in ended {
            self.done(stream);
        }
        let made = self.outbox.bytes() - before;
        self.scan_bytes += made;
        self.shared.add_scan_bytes(made as i64);
        more
    }
}

/// Where the node is full of frames that are not whole, one of them has so long to become whole.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// Part of a frame that has no more bytes than this is nobody's burden.
const ARRIVES_FREELY: usize = 64 << 10;

/// The frame that arrives on a connection, and what all such take of the node.
struct Arriving {
    shared: std::sync::Arc<crate::shared::Shared>,
    bytes: usize,
    /// Since when it has been more than [`ARRIVES_FREELY`].
    since: Clock,
}

impl Arriving {
    fn set(&mut self, bytes: usize) {
        if self.bytes <= ARRIVES_FREELY {
            self.since = Clock::now();
        }
        self.shared.add_arriving_bytes(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
    }

    /// No more of it is read for now: too much has begun to arrive.
    fn must_wait(&self) -> bool {
        self.bytes > ARRIVES_FREELY && self.shared.arrives_too_much()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Serves `connection` until it ends.
pub async fn serve(shard: Rc<RefCell<Shard>>, connection: Rc<Connection>) {
    let (limits, handshake, draining) = {
        let shard = shard.borrow();
        let config = &shard.shared.config;
        (config.limits.clone(), config.handshake_timeout, std::sync::Arc::clone(&shard.shared))
    };
    let deadline = tokio::time::sleep(handshake);
    tokio::pin!(deadline);
    let mut decoder = FrameDecoder::default();
    let mut look = tokio::time::interval(Duration::from_millis(200));
    let mut arriving = Arriving { shared: std::sync::Arc::clone(&draining), bytes: 0, since: Clock::now() };
    loop {
        let waits = arriving.must_wait();
        let (pending, finished, greeted) = {
            let state = connection.state.borrow();
            let idle = state.waiting.is_empty() && state.answers.is_empty();
            let sends = state.ranges.may_send() || state.parts.may_send();
            let pending = !state.outbox.is_empty() || (sends && draining.may_scan());
            let finished = state.outbox.is_empty() && (state.closing || (draining.is_draining() && idle));
            (pending, finished, state.client.is_some())
        };
        if finished {
            break;
        }
        tokio::select! {
            () = connection.bell.notified() => {}
            ready = connection.stream.writable(), if pending => {
                if ready.is_err() { break }
                connection.flush();
                tokio::task::yield_now().await;
            }
            ready = connection.stream.readable(), if !waits && connection.may_read(&limits) => {
                if ready.is_err() || !receive(&shard, &connection, &mut decoder) { break }
                arriving.set(decoder.held_bytes());
            }
            () = &mut deadline, if !greeted => break,
            _ = look.tick(), if waits || draining.is_draining() || connection.has_ranges() => {
                if waits && arriving.since.elapsed() > ARRIVES_WITHIN {
                    shard.borrow().metrics.busy(Queue::NodeBytes);
                    break;
                }
                if connection.expire_ranges(limits.snapshot_pin) || connection.has_ranges() {
                    shard.borrow_mut().touch_connection(&connection);
                }
            }
        }
    }
    shard.borrow_mut().connections.remove(&connection.id);
    if let Some(client) = connection.state.borrow().client {
        draining.clients().ended(client, connection.id);
    }
    let left = {
        let mut state = connection.state.borrow_mut();
        state.outbox.clear();
        state.settle_scan_bytes();
        state.waiting_bytes
    };
    draining.request_done(left);
    draining.connection_closed();
}

/// Reads what is there, up to one buffer, and hands on every whole frame. `false`: the connection is gone.
fn receive(shard: &RefCell<Shard>, connection: &Rc<Connection>, decoder: &mut FrameDecoder) -> bool {
    let begun = Clock::now();
    let stepped = shard.borrow().stepped();
    match incoming::read(&connection.stream, decoder) {
        Ok(0) => return false,
        Ok(_) => {}
        Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
    }
    take_frames(shard, connection, decoder);
    shard.borrow().received(begun, stepped);
    true
}

fn take_frames(shard: &RefCell<Shard>, connection: &Rc<Connection>, decoder: &mut FrameDecoder) {
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => handle(shard, connection, frame),
            Ok(None) => break,
            Err(error) => {
                refuse_and_close(shard, connection, 0, Refused::bad_request(&error));
                break;
            }
        }
        // Frames that were read beyond the limits are served all the same: the bound is one buffer above them.
        if connection.state.borrow().closing {
            break;
        }
    }
}

fn refuse_and_close(shard: &RefCell<Shard>, connection: &Connection, stream: u32, refusal: Refused) {
    {
        let mut state = connection.state.borrow_mut();
        state.refuse(stream, &refusal);
        state.closing = true;
    }
    shard.borrow_mut().touch_connection(connection);
}

fn handle(shard: &RefCell<Shard>, connection: &Rc<Connection>, frame: Frame) {
    let greeted = connection.state.borrow().client.is_some();
    if !greeted && Kind::from_u8(frame.kind) != Some(Kind::Hello) {
        let refusal = Refused::BadRequest { text: "the first frame must be Hello".into() };
        return refuse_and_close(shard, connection, frame.stream, refusal);
    }
    let bytes = frame.body.len();
    let asked = match Asked::decode(&frame) {
        Ok(asked) => asked,
        Err(error) => return refuse_and_close(shard, connection, frame.stream, Refused::bad_request(&error)),
    };
    let (group, op, request) = match asked {
        Asked::Hello(hello) => return greet(shard, connection, frame.stream, &hello),
        Asked::Ping => {
            return put(shard, connection, |out| {
                coppice_client::wire::encode_frame(out, Kind::Pong, frame.stream, &[]);
            });
        }
        Asked::Credit(bytes) => {
            connection.state.borrow_mut().ranges.add_credit(frame.stream, bytes);
            return shard.borrow_mut().touch_connection(connection);
        }
        Asked::Cancel => {
            let mut state = connection.state.borrow_mut();
            state.ranges.drop_all(|stream| *stream == frame.stream);
            state.done(frame.stream);
            return;
        }
        Asked::PartCredit { query, partition, bytes } => {
            connection.state.borrow_mut().parts.add_credit((query, partition), bytes);
            return shard.borrow_mut().touch_connection(connection);
        }
        Asked::PartCancel { query } => {
            return connection.state.borrow_mut().parts.drop_all(|(of, _)| *of == query);
        }
        Asked::MapGet(get) => {
            let reply = translate::map_reply(&shard.borrow().shared, get);
            return put(shard, connection, |out| encode_control(out, Kind::Map, frame.stream, &reply));
        }
        Asked::Status(get) => return shard.borrow().ask_status(connection, frame.stream, get),
        Asked::Admin(admin) => return shard.borrow().ask_admin(connection, frame.stream, *admin),
        Asked::Commands(commands) => {
            let (op, grows) = translate::pack_op(&commands);
            let request = Request::Pack { entry: commands.entry, commands: commands.count, grows };
            (commands.partition, op, request)
        }
        Asked::OpenSession(open) => (open.partition, Op::Open, Request::Open { entry: open.entry }),
        Asked::Read(read) => (read.partition, Op::Get, Request::Read(read)),
        Asked::Range(range) => (range.partition, Op::Range, Request::Range(Box::new(range))),
        Asked::Validate(asked) => (asked.partition, Op::Validate, Request::Validate(asked)),
        Asked::Gather(range) => {
            if let Some((origin, _)) = admit(shard, connection, frame.stream, Op::Range, bytes) {
                shard.borrow_mut().gather(origin, range);
            }
            return;
        }
        Asked::Query(query) => {
            if let Some((origin, client)) = admit(shard, connection, frame.stream, Op::Range, bytes) {
                shard.borrow_mut().query(origin, client, query);
            }
            return;
        }
    };
    if let Some((origin, _)) = admit(shard, connection, frame.stream, op, bytes) {
        shard.borrow_mut().request(group, origin, request);
    }
}

/// Notes that `stream` waits for an answer, unless there is no room for its request.
fn admit(
    shard: &RefCell<Shard>,
    connection: &Connection,
    stream: u32,
    op: Op,
    bytes: usize,
) -> Option<(Origin, ClientId)> {
    let client = connection.state.borrow().client?;
    {
        let mut state = connection.state.borrow_mut();
        if state.waiting.contains_key(&stream) {
            drop(state);
            let refusal = Refused::BadRequest { text: format!("stream {stream} is in use") };
            refuse_and_close(shard, connection, stream, refusal);
            return None;
        }
        if !state.shared.admit_request(bytes) {
            state.refuse(stream, &translate::busy());
            drop(state);
            let mut shard = shard.borrow_mut();
            shard.metrics.busy(Queue::NodeBytes);
            shard.touch_connection(connection);
            return None;
        }
        let waiting = Waiting { op, bytes, since: Clock::now() };
        state.waiting.insert(stream, waiting);
        state.waiting_bytes += bytes;
    }
    Some((Origin { connection: connection.id, stream }, client))
}

/// Appends to what is written at the end of the turn.
fn put(shard: &RefCell<Shard>, connection: &Connection, write: impl FnOnce(&mut BytesMut)) {
    connection.append(write);
    shard.borrow_mut().touch_connection(connection);
}

impl Connection {
    /// Appends a frame to what is written at the end of the turn.
    pub fn append(&self, write: impl FnOnce(&mut BytesMut)) {
        self.state.borrow_mut().outbox.append(write);
    }
}

fn greet(shard: &RefCell<Shard>, connection: &Connection, stream: u32, hello: &coppice_client::wire::Hello) {
    let shared = std::sync::Arc::clone(&shard.borrow().shared);
    let reply: Result<HelloOk, Refused> = translate::greet(&shared, hello);
    match reply {
        Ok(reply) => {
            connection.state.borrow_mut().client = Some(hello.client);
            put(shard, connection, |out| encode_control(out, Kind::HelloOk, stream, &reply));
            shard.borrow_mut().on_greeted(hello.client, connection.id);
        }
        Err(refusal) => refuse_and_close(shard, connection, stream, refusal),
    }
}
