//! A client's connection: frames in, requests to the worker thread; replies out, those of one turn in as few frames as
//! possible.
//!
//! A connection that has too much in flight, or does not read its answers, is not read until it does (operations.md 3,
//! `limits`): each of its requests is charged (`coppice_core::cost`) before it goes on. Frames are taken in slices,
//! between which other connections have their turn. What becomes of a frame `coppice_core::connection` decides.

mod authorization;
mod labels;
mod serve;
mod slices;
mod state;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::{Bytes, BytesMut};
use coppice_client::channel::Channel;
use coppice_client::tls::Tls;
use coppice_client::tls::names::Names;
use coppice_client::wire::PartitionId;
use coppice_core::connection::{Asker, FrameSink, Lifecycle, Pending, Slice};
use coppice_core::cost::{Account, Charge, ClientBytes};
use coppice_core::replica::QueryPart;
use coppice_core::request::Reply;
use coppice_core::wire_reply::{WireReply, busy};
use coppice_ordering::Time;
use tokio::sync::Notify;

pub use self::serve::serve;
use self::state::Large;
use super::WorkerThread;
use crate::metrics::{Op, Outcome};
use crate::net::eviction::Candidate;
use crate::net::outbox::Outbox;
use crate::net::progress::Progress;
use crate::shared::Shared;

/// What is remembered of a request until it is answered.
struct PendingRequest {
    op: Op,
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
    Account::new(shared.config.limits.inflight_bytes, client, Arc::clone(shared.usage.budget()))
}

/// One client's connection, shared by its task and the worker thread's turn.
pub struct Connection {
    /// The worker thread that has it, and its number there.
    thread: usize,
    id: u64,
    stream: Channel,
    state: RefCell<State>,
    /// Something to write at the end of the turn.
    dirty: Cell<bool>,
    /// When something came last.
    heard: Cell<Clock>,
    /// Rung when the task must look again: a full socket, room for requests, the end.
    bell: Notify,
}

/// Answers that are not in the outbox yet.
#[derive(Default)]
struct Answers {
    /// Of this turn, framed together at its end.
    small: Vec<(u32, Bytes)>,
    bytes: usize,
    /// Those that are written when there is time and room for them.
    large: VecDeque<(u32, Large)>,
}

/// What a connection is charged.
struct Charges {
    account: Account,
    /// Of what waits to be read by the client.
    unread: Charge,
    unread_bytes: usize,
}

impl Charges {
    fn new(account: Account) -> Charges {
        Charges { unread: account.charge(0), account, unread_bytes: 0 }
    }
}

struct State {
    lifecycle: Lifecycle,
    outbox: Outbox,
    answers: Answers,
    charges: Charges,
    progress: Progress,
    pending: Pending<PendingRequest>,
    /// Bytes of range chunks in `outbox` at most, counted in the node's `limits.scan_bytes`.
    scan_bytes: usize,
    shared: Arc<Shared>,
}

impl Connection {
    /// A connection over `stream`.
    pub fn new((thread, id): (usize, u64), stream: Channel, shared: Arc<Shared>) -> Rc<Connection> {
        let state = RefCell::new(State {
            lifecycle: Lifecycle::default(),
            outbox: Outbox::default(),
            answers: Answers::default(),
            charges: Charges::new(new_account(&shared, ClientBytes::default())),
            progress: Progress::default(),
            pending: Pending::new(shared.config.limits.inflight),
            scan_bytes: 0,
            shared,
        });
        let (dirty, heard) = (Cell::new(false), Cell::new(Clock::now()));
        Rc::new(Connection { thread, id, stream, state, dirty, heard, bell: Notify::new() })
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Who asks with a request of this connection.
    fn asker<'a>(&self, state: &'a State) -> Asker<'a> {
        let lifecycle = &state.lifecycle;
        let (client, owner) = (lifecycle.client().unwrap_or_default(), lifecycle.rights().owner());
        Asker { connection: (self.thread as u16, self.id), client, owner, account: &state.charges.account }
    }

    /// Notes that something is to be written; `true` if it was not noted before.
    pub fn mark_dirty(&self) -> bool {
        !self.dirty.replace(true)
    }

    /// Ends it after what is queued is written.
    pub fn close(&self) {
        self.state.borrow_mut().lifecycle.close();
        self.bell.notify_one();
    }

    /// What it is to a newcomer that finds no place, if it has nothing in flight.
    pub fn candidate(&self) -> Option<Candidate> {
        let state = self.state.borrow();
        let replies = state.outbox.is_empty() && state.answers.small.is_empty() && state.answers.large.is_empty();
        let idle = state.pending.is_idle() && replies && !state.lifecycle.is_closing();
        idle.then(|| Candidate { id: self.id, greeted: state.lifecycle.client().is_some(), heard: self.heard.get() })
    }

    /// Queues the answer to a request of this connection.
    pub fn answer(&self, thread: &WorkerThread, group: PartitionId, stream: u32, reply: Reply) {
        let mut state = self.state.borrow_mut();
        let Some(waiting) = state.pending.get(stream) else { return };
        let (op, since) = (waiting.op, waiting.since);
        if !matches!(reply, Reply::QueryPlan(_)) {
            let (outcome, took) = (labels::outcome(&reply), since.elapsed());
            thread.metrics.worker.request(op, outcome, took);
            if took > state.shared.config.slow_request && outcome != Outcome::Gone {
                thread.metrics.slow_request(thread.now(), group, op, outcome, reply.instance(), took);
            }
        }
        let map = || thread.shared.cluster.map();
        let reply = WireReply::new(group, reply, map, |refusal| thread.hint(group, &refusal));
        let Some(reply) = state.pending.answer(stream, reply, || thread.now()) else { return };
        match reply {
            WireReply::Answer(answer) => state.push_answer(stream, answer),
            WireReply::Values(read) => state.push_read(stream, read),
            WireReply::Completed(completed) => state.outbox.append(|out| completed.encode(out, stream)),
            WireReply::Refused(refusal) => state.refuse(stream, &refusal),
            WireReply::Plan(plan) => state.outbox.append(|out| _ = plan.encode(out, stream)),
            WireReply::Range(_) | WireReply::Nothing => {}
        }
        self.bell.notify_one();
        if state.charges.account.is_overdrawn() {
            // Nobody reads them; commands among them may be repeated on another connection.
            state.end();
        }
    }

    /// What waits here now.
    pub fn waiting(&self) -> InWait {
        let state = self.state.borrow();
        InWait { replies: state.outbox.waiting(), scans: state.pending.ranges(), inflight: state.pending.len() }
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
        let more = state.make_answers(slice);
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
        self.state.borrow().charges.account.bytes()
    }

    /// Whether something is to be made or written that takes time.
    fn may_send(&self) -> bool {
        let state = self.state.borrow();
        state.has_much_to_write() || !state.answers.large.is_empty() || state.pending.may_send()
    }

    fn has_streams(&self) -> bool {
        self.state.borrow().pending.has_streams()
    }

    /// Streams this part of a query.
    pub fn add_part(&self, part: QueryPart, now: Time) {
        self.state.borrow_mut().pending.add_part(part, now);
    }

    /// Ends what has pinned its snapshot for too long; `true` if its client is to hear that.
    fn expire_streams(&self, now: Time, limits: &crate::config::Limits) -> bool {
        let State { pending, outbox, .. } = &mut *self.state.borrow_mut();
        pending.expire(now, limits.scan_snapshot_max_age, limits.scan_snapshot_bytes, outbox)
    }

    fn may_read(&self) -> bool {
        let state = self.state.borrow();
        state.lifecycle.may_read() && state.pending.may_read(&state.charges.account, state.outbox.bytes())
    }

    /// Whether the client has taken nothing of what waits for it for so long (`limits.stalled_reader`).
    fn has_stalled(&self, now: Time, longest: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        let (taken, waits) = (state.outbox.taken(), !state.outbox.is_empty() || self.stream.is_unsent());
        state.progress.stalled(now, taken, waits, longest)
    }

    /// Appends a frame to what is written at the end of the turn.
    pub fn append(&self, write: impl FnOnce(&mut BytesMut)) {
        self.state.borrow_mut().outbox.append(write);
    }

    /// Whether packs wait until others are answered.
    pub(super) fn has_packs(&self) -> bool {
        self.state.borrow().pending.has_packs()
    }

    /// Whom the client's certificate names, if it has shown one: verified, so that roles can rest on it.
    pub fn certificate(&self) -> Option<&Names> {
        self.stream.names()
    }

    /// Whether certificates have changed since it began.
    pub fn is_outdated(&self, tls: &Tls) -> bool {
        self.stream.is_outdated(Some(tls))
    }

    /// Ends it as soon as nothing waits on it.
    pub fn retire(&self) {
        self.state.borrow_mut().lifecycle.retire();
        self.bell.notify_one();
    }
}

/// Says to whoever finds no place that there is none.
pub fn turn_away(stream: &Channel, connections: usize) {
    let mut out = BytesMut::new();
    busy(format!("the node has all the connections that it may have: limits.connections = {connections}"))
        .encode(&mut out, 0);
    // A fresh socket takes so little at once, or the client learns it from the end.
    _ = stream.write_vectored(&[IoSlice::new(&out)]);
}
