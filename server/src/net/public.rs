//! A client's connection: frames in, requests to the shard; replies out, those of one turn in as few frames as
//! possible.
//!
//! A connection that has too much in flight, or does not read its answers, is not read until it does (operations.md 3,
//! `limits`): each of its requests is charged (`coppice_core::cost`) before it goes on. Frames are taken in slices,
//! between which other connections have their turn; so are large packs (`packs`). It does not know what commands mean.

mod door;
mod packs;
mod slices;
mod state;

mod secured;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::{Bytes, BytesMut};
use coppice_client::channel::Channel;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{ClientId, Frame, FrameDecoder, Kind, PartitionId, Refusal as Refused, Request as Asked};
use coppice_core::access::{Credentials, Rights};
use coppice_core::cost::{Account, Charge, ClientBytes};
use coppice_core::request::{Origin, Reply, Request};
use coppice_core::scan::RangeJob;
use coppice_core::wire_reply::{WireReply, busy};
use coppice_core::worker::Input;
use coppice_ordering::Time;
pub use door::{STRANGERS_MAX, may_give};
use tokio::sync::Notify;

use self::packs::{Pack, Packs, alone, hand_on};
pub use self::secured::turn_away;
use self::state::{Large, refuse_and_close};
use super::arriving::Arriving;
use super::eviction::Candidate;
use super::outbox::Outbox;
use super::progress::Progress;
use super::streams::{Slice, Streams};
use super::translate;
use crate::metrics::{Op, Outcome, Queue};
use crate::shard::Shard;
use crate::shared::Shared;

/// Bytes that wait to be read by the client; beyond, its requests are not read.
const OUTBOX_BYTES_MAX: usize = 8 << 20;

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
    /// Of a pack: its partition, and what executing it costs there.
    work: Option<(PartitionId, u32)>,
    /// Of its bytes, and of what its answer is expected to take.
    charge: Arc<Charge>,
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

fn new_account(shared: &Shared, client: ClientBytes) -> Account {
    Account::new(shared.config.limits.inflight_bytes, client, Arc::clone(shared.budget()))
}

/// One client's connection, shared by its task and the shard's turn.
pub struct Connection {
    /// The shard that has it, and its number there.
    shard: usize,
    id: u64,
    stream: Channel,
    state: RefCell<State>,
    /// Something to write at the end of the turn.
    dirty: Cell<bool>,
    /// Control requests under way.
    pub control: Cell<usize>,
    /// When something came last.
    heard: Cell<Clock>,
    /// Rung when the task must look again: a full socket, room for requests, the end.
    bell: Notify,
}

struct State {
    client: Option<ClientId>,
    /// What it may do; nothing before its hello.
    rights: Arc<Rights>,
    /// Why: judged again when the users change.
    credentials: Credentials,
    /// It showed wrong credentials: nothing more is read, and the answer is late.
    is_stranger: bool,
    /// Verbs that wait for their answer.
    verbs: u32,
    /// It ends when they are answered, and why.
    ends: Option<String>,
    outbox: Outbox,
    /// Answers of this turn, framed together at its end.
    answers: Vec<(u32, Bytes)>,
    answers_bytes: usize,
    /// Answers that are written when there is time and room for them.
    large: VecDeque<(u32, Large)>,
    /// What the largest answers to packs took of late: what the next one is expected to take.
    expects: usize,
    account: Account,
    /// Of `outbox` and `answers`.
    unread: Charge,
    unread_bytes: usize,
    progress: Progress,
    waiting: BTreeMap<u32, Waiting>,
    /// Packs on their way to their partitions; they have their place in `waiting`.
    packs: Packs<Request>,
    ranges: Streams<u32>,
    /// Parts of queries: the client's number of the attempt, and whose part it is.
    parts: Streams<(u32, PartitionId)>,
    /// Bytes of range chunks in `outbox` at most, counted in the node's `limits.scan_bytes`.
    scan_bytes: usize,
    /// No more is read; what is queued is still written.
    closing: bool,
    /// It ends as soon as nothing waits on it: the certificates that it began with have been replaced.
    retiring: bool,
    shared: Arc<Shared>,
}

impl Connection {
    /// A connection over `stream`.
    pub fn new((shard, id): (usize, u64), stream: Channel, shared: Arc<Shared>) -> Rc<Connection> {
        let account = new_account(&shared, ClientBytes::default());
        let state = RefCell::new(State {
            client: None,
            rights: Arc::new(Rights::while_forming()),
            credentials: Credentials::default(),
            is_stranger: false,
            verbs: 0,
            ends: None,
            outbox: Outbox::default(),
            answers: Vec::new(),
            answers_bytes: 0,
            large: VecDeque::new(),
            expects: 0,
            unread: account.charge(0),
            unread_bytes: 0,
            account,
            progress: Progress::default(),
            waiting: BTreeMap::new(),
            packs: Packs::default(),
            ranges: Streams::default(),
            parts: Streams::default(),
            scan_bytes: 0,
            closing: false,
            retiring: false,
            shared,
        });
        let (dirty, control, heard) = (Cell::new(false), Cell::new(0), Cell::new(Clock::now()));
        Rc::new(Connection { shard, id, stream, state, dirty, control, heard, bell: Notify::new() })
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Who asks with a request of this connection.
    fn origin(&self, stream: u32) -> Origin {
        Origin::Client { worker: self.shard as u16, stream, connection: self.id }
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

    /// What it is to a newcomer that finds no place, if it has nothing in flight.
    pub fn candidate(&self) -> Option<Candidate> {
        let state = self.state.borrow();
        let replies = state.outbox.is_empty() && state.answers.is_empty() && state.large.is_empty();
        let idle = state.waiting.is_empty() && state.ranges.is_empty() && state.parts.is_empty() && !state.closing;
        let idle = idle && replies && self.control.get() == 0;
        idle.then(|| Candidate { id: self.id, greeted: state.client.is_some(), heard: self.heard.get() })
    }

    /// Queues the answer to a request of this connection.
    pub fn answer(&self, shard: &Shard, group: PartitionId, stream: u32, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let Some(waiting) = state.waiting.get(&stream) else { return };
        let (op, since) = (waiting.op, waiting.since);
        if let Reply::QueryPlan(plan) = &reply {
            // A query over more partitions than a frame can name gets no plan, and times out at its client.
            return state.outbox.append(|out| _ = plan.encode(out, stream));
        }
        let outcome = translate::outcome(&reply);
        let took = since.elapsed();
        shard.metrics.request(op, outcome, took);
        if took > state.shared.config.slow_request && outcome != Outcome::Gone {
            shard.slow_request(group, op, outcome, translate::instance_of(&reply), took);
        }
        let expects = if let Reply::Pack(answer) = &reply { Some(answer.len()) } else { None };
        let map = || shard.shared.map();
        match WireReply::new(group, reply, map, |refusal| shard.hint(group, &refusal)) {
            WireReply::Answer(answer) => {
                state.expects = expects.map_or(state.expects, |bytes| bytes.max(state.expects - state.expects / 8));
                state.push_answer(stream, answer);
            }
            WireReply::Values(read) => state.push_read(stream, read),
            WireReply::Range(_) if state.ranges.len() >= ranges_max(shard.shared.config.limits.inflight) => {
                state.refuse(stream, &busy());
            }
            WireReply::Range(job) => return state.ranges.add(stream, *job),
            WireReply::Completed(completed) => state.outbox.append(|out| completed.encode(out, stream)),
            WireReply::Refused(refusal) => state.refuse(stream, &refusal),
            WireReply::Plan(_) | WireReply::Nothing => {}
        }
        if state.done(stream) {
            self.bell.notify_one();
        }
        if state.account.is_overdrawn() {
            // Nobody reads them; commands among them may be repeated on another connection.
            state.end();
            self.bell.notify_one();
        }
    }

    /// What waits here now.
    pub fn waiting(&self) -> InWait {
        let state = self.state.borrow();
        InWait { replies: state.outbox.waiting(), scans: state.ranges.len(), inflight: state.waiting.len() }
    }

    /// Writes what the turn has queued, as far as the socket takes it; what takes time to make as far as `slice` goes.
    pub fn flush(&self, slice: &mut Slice) {
        self.dirty.set(false);
        let mut state = self.state.borrow_mut();
        let much = state.has_much_to_write();
        if much && slice.is_spent() {
            // Its own task goes on.
            return self.bell.notify_one();
        }
        state.frame_answers();
        let more = state.pump(slice);
        let taken = state.outbox.taken();
        let written = state.outbox.write_to(&self.stream);
        if much {
            slice.bytes = slice.bytes.saturating_sub((state.outbox.taken() - taken) as usize);
        }
        state.settle();
        match written {
            Ok(true) if !more => {}
            Ok(_) => self.bell.notify_one(),
            Err(_) => {
                state.end();
                self.bell.notify_one();
            }
        }
    }

    /// What its account is charged.
    fn held_bytes(&self) -> u64 {
        self.state.borrow().account.bytes()
    }

    /// Whether something is to be made or written that takes time.
    fn may_pump(&self) -> bool {
        let state = self.state.borrow();
        state.has_much_to_write() || !state.large.is_empty() || state.ranges.may_send() || state.parts.may_send()
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

    /// Ends ranges whose snapshot was pinned for too long by a slow reader, or keeps too much memory alive; `true` if
    /// there were any.
    fn expire_ranges(&self, limits: &crate::config::Limits) -> bool {
        let mut state = self.state.borrow_mut();
        let (pin, bytes_max) = (limits.scan_snapshot_max_age, limits.scan_snapshot_bytes);
        state.parts.expire(pin, bytes_max);
        let old = state.ranges.expire(pin, bytes_max);
        for &stream in &old {
            state.refuse(stream, &Refused::SnapshotExpired);
            state.done(stream);
        }
        !old.is_empty()
    }

    fn may_read(&self, limits: &crate::config::Limits) -> bool {
        let state = self.state.borrow();
        !state.closing
            && !state.is_stranger
            && state.outbox.bytes() < OUTBOX_BYTES_MAX
            && state.waiting.len() < limits.inflight.max(1)
            && state.account.room() > 0
    }

    /// Whether the client has taken nothing of what waits for it for so long (`limits.stalled_reader`).
    fn has_stalled(&self, now: Time, longest: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        let (taken, waits) = (state.outbox.taken(), !state.outbox.is_empty() || self.stream.is_unsent());
        state.progress.stalled(now, taken, waits, longest)
    }
}

/// Serves `connection` until it ends.
pub async fn serve(shard: Rc<RefCell<Shard>>, connection: Rc<Connection>) {
    let (limits, handshake, draining, turns) = {
        let shard = shard.borrow();
        let config = &shard.shared.config;
        (config.limits.clone(), config.handshake_timeout, Arc::clone(&shard.shared), Rc::clone(&shard.slices))
    };
    let deadline = tokio::time::sleep(handshake);
    tokio::pin!(deadline);
    let mut decoder = FrameDecoder::new(connection.frame_bytes_max());
    let mut look = tokio::time::interval(Duration::from_millis(200));
    let mut arriving = Arriving::new(Arc::clone(&draining));
    loop {
        if connection.has_packs() {
            let begun = shard.borrow().step_begins();
            hand_on(&shard, &connection);
            shard.borrow().step_ends(begun);
        }
        if decoder.has_frame() && connection.may_read(&limits) {
            // The rest of what was read, behind what others have to do.
            let _turn = turns.acquire().await;
            tokio::task::yield_now().await;
            let begun = shard.borrow().step_begins();
            slices::take_frames(&shard, &connection, &mut decoder, &limits, slices::SLICE_WORK);
            shard.borrow().step_ends(begun);
            arriving.set(decoder.held_bytes());
        }
        let waits = arriving.must_wait();
        let (pending, finished, greeted, unread) = {
            let state = connection.state.borrow();
            let idle = state.waiting.is_empty() && state.answers.is_empty() && state.large.is_empty();
            let leaves = draining.is_draining() || (state.retiring && state.parts.is_empty());
            let sends = state.ranges.may_send() || state.parts.may_send();
            let unsent = !state.outbox.is_empty() || connection.stream.is_unsent();
            let pending = unsent || !state.large.is_empty() || (sends && draining.may_scan(state.scan_bytes));
            let finished = !unsent && (state.closing || (leaves && idle));
            (pending, finished, state.client.is_some(), unsent)
        };
        if finished {
            break;
        }
        let may_read = connection.may_read(&limits);
        if may_read && decoder.has_frame() {
            continue;
        }
        tokio::select! {
            () = connection.bell.notified() => {}
            ready = connection.stream.writable(), if pending => {
                if ready.is_err() { break }
                if connection.may_pump() {
                    let _turn = turns.acquire().await;
                    tokio::task::yield_now().await;
                    let begun = shard.borrow().step_begins();
                    connection.flush(&mut Slice::default());
                    shard.borrow().step_ends(begun);
                } else {
                    connection.flush(&mut Slice::default());
                }
                tokio::task::yield_now().await;
            }
            ready = connection.stream.readable(), if !waits && may_read => {
                if ready.is_err() || !slices::receive(&shard, &connection, &mut decoder, &limits) { break }
                arriving.set(decoder.held_bytes());
            }
            () = &mut deadline, if !greeted => break,
            _ = look.tick(), if waits || unread || !may_read || draining.is_draining() || connection.has_ranges() => {
                let now = shard.borrow().now();
                if connection.has_stalled(now, limits.stalled_reader) {
                    shard.borrow().metrics.rejected(Queue::Replies);
                    break;
                }
                if waits && arriving.is_overdue() {
                    shard.borrow().metrics.rejected(Queue::NodeBytes);
                    break;
                }
                if connection.expire_ranges(&limits) || connection.has_ranges() {
                    shard.borrow_mut().touch_connection(&connection);
                }
            }
        }
    }
    shard.borrow_mut().connections.remove(&connection.id);
    if let Some(client) = connection.state.borrow().client {
        draining.clients().ended(client, (connection.shard, connection.id));
    }
    {
        // Whoever still holds the connection holds nothing of the node with it.
        let mut state = connection.state.borrow_mut();
        state.end();
        (state.packs, state.waiting) = (Packs::default(), BTreeMap::new());
        (state.ranges, state.parts) = (Streams::default(), Streams::default());
    }
    draining.connection_closed();
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
        Err(error) => {
            let refusal = Refused::of_message(&error);
            if greeted && matches!(refusal, Refused::TooLarge { .. }) {
                // The frame was whole, and what is behind it is another one.
                return put(shard, connection, |out| refusal.encode(out, frame.stream));
            }
            return refuse_and_close(shard, connection, frame.stream, refusal);
        }
    };
    if !connection.is_allowed(shard, frame.stream, &asked) {
        return;
    }
    let (group, op, mut request) = match asked {
        Asked::Hello(hello) => return door::greet(shard, connection, frame.stream, &hello),
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
            // A pack takes effect, and its work is done, whoever waits for it.
            if state.waiting.get(&frame.stream).is_some_and(|waiting| waiting.work.is_none()) {
                state.done(frame.stream);
            }
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
        Asked::Status(get) => return shard.borrow_mut().ask_status(connection, frame.stream, get),
        Asked::Admin(admin) => {
            let by = connection.rights().user().map(str::to_owned);
            return shard.borrow_mut().ask_admin(connection, frame.stream, by, *admin);
        }
        Asked::Commands(commands) => {
            let owned = connection.owner().map(|owner| coppice_core::machine::entry::owned(&commands.entry, owner));
            let entry = owned.unwrap_or_else(|| alone(commands.entry.clone()));
            (commands.partition, translate::pack_op(&commands), Request::pack(entry, &commands))
        }
        Asked::OpenSession(open) => {
            // A session is its user's; while users are not asked who they are, that of who said hello.
            let client = connection.owner().map(ClientId).or(connection.state.borrow().client);
            let entry =
                client.map_or(alone(open.entry), |client| coppice_core::machine::entry::open(client, open.nonce));
            (open.partition, Op::Open, Request::Open { entry })
        }
        Asked::Read(read) => {
            let account = connection.state.borrow().account.clone();
            (read.partition, Op::Get, Request::Read(read, account, None))
        }
        Asked::Range(range) => (range.partition, Op::Range, Request::Range(Box::new(range))),
        Asked::Validate(asked) => (asked.partition, Op::Validate, Request::Validate(asked, None)),
        Asked::Collect(range) => {
            if let Some((origin, _)) = admit(shard, connection, frame.stream, (Op::Range, None), bytes) {
                shard.borrow_mut().input(Input::Gather { origin, range });
            }
            return;
        }
        Asked::Query(query) => {
            if let Some((origin, client)) = admit(shard, connection, frame.stream, (Op::Range, None), bytes) {
                shard.borrow_mut().input(Input::Query { origin, client, request: Box::new(query) });
            }
            return;
        }
    };
    let work = if let Request::Pack { work, .. } = &request { Some((group, *work)) } else { None };
    let Some((origin, _)) = admit(shard, connection, frame.stream, (op, work), bytes) else { return };
    let Some((_, work)) = work else {
        if let Request::Read(_, _, held) | Request::Validate(_, held) = &mut request {
            *held = connection.state.borrow().waiting.get(&frame.stream).map(|waiting| Arc::clone(&waiting.charge));
        }
        return shard.borrow_mut().input(Input::Request { group, origin, request });
    };
    connection.state.borrow_mut().packs.push(Pack { stream: frame.stream, group, work, request });
    hand_on(shard, connection);
}

/// Notes that `stream` waits for an answer, unless there is no room for its request.
fn admit(
    shard: &RefCell<Shard>,
    connection: &Connection,
    stream: u32,
    (op, work): (Op, Option<(PartitionId, u32)>),
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
        let expects = if matches!(op, Op::Get | Op::Range | Op::Validate) { 0 } else { state.expects };
        let Some(charge) = state.account.admit(bytes + expects) else {
            state.refuse(stream, &busy());
            drop(state);
            let mut shard = shard.borrow_mut();
            shard.metrics.rejected(Queue::NodeBytes);
            shard.touch_connection(connection);
            return None;
        };
        state.waiting.insert(stream, Waiting { op, work, charge: Arc::new(charge), since: Clock::now() });
    }
    Some((connection.origin(stream), client))
}

/// Appends to what is written at the end of the turn.
fn put(shard: &RefCell<Shard>, connection: &Connection, write: impl FnOnce(&mut BytesMut)) {
    connection.append(write);
    shard.borrow_mut().touch_connection(connection);
}
