//! Serves a connection: reads its frames, hands its requests on, writes what waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{ClientId, Frame, FrameDecoder, Kind, PartitionId, Refusal as Refused, Request as Asked};
use coppice_core::request::{Origin, Request};
use coppice_core::wire_reply::busy;
use coppice_core::worker::Input;

use super::packs::{Pack, Packs, alone, hand_on};
use super::partial_frame::PartialFrame;
use super::state::refuse_and_close;
use super::{Connection, PendingRequest, authorization, slices, translate};
use crate::metrics::{Op, Queue};
use crate::net::streams::{Slice, Streams};
use crate::worker_thread::{WorkerThread, control_requests};

/// Serves `connection` until it ends.
pub async fn serve(thread: Rc<RefCell<WorkerThread>>, connection: Rc<Connection>) {
    let (limits, handshake, draining, turns) = {
        let thread = thread.borrow();
        let config = &thread.shared.config;
        (
            config.limits.clone(),
            config.handshake_timeout,
            Arc::clone(&thread.shared),
            Rc::clone(&thread.connections.slices),
        )
    };
    let deadline = tokio::time::sleep(handshake);
    tokio::pin!(deadline);
    let mut decoder = FrameDecoder::new(connection.frame_bytes_max());
    let mut look = tokio::time::interval(Duration::from_millis(200));
    let mut arriving = PartialFrame::new(Arc::clone(&draining));
    loop {
        if connection.has_packs() {
            let begun = thread.borrow().clock.begins();
            hand_on(&thread, &connection);
            thread.borrow().clock.ends(begun);
        }
        if decoder.has_frame() && connection.may_read(&limits) {
            // The rest of what was read, behind what others have to do.
            let _turn = turns.acquire().await;
            tokio::task::yield_now().await;
            let begun = thread.borrow().clock.begins();
            slices::take_frames(&thread, &connection, &mut decoder, &limits, slices::SLICE_WORK);
            thread.borrow().clock.ends(begun);
            arriving.set(decoder.held_bytes());
        }
        let waits = arriving.must_wait();
        let (pending, finished, greeted, unread) = {
            let state = connection.state.borrow();
            let idle = state.waiting.is_empty() && state.answers.small.is_empty() && state.answers.large.is_empty();
            let leaves = draining.is_draining() || (state.ending.retiring && state.parts.is_empty());
            let sends = state.ranges.may_send() || state.parts.may_send();
            let unsent = !state.outbox.is_empty() || connection.stream.is_unsent();
            let pending =
                unsent || !state.answers.large.is_empty() || (sends && draining.usage.may_scan(state.scan_bytes));
            let finished = !unsent && (state.ending.closing || (leaves && idle));
            (pending, finished, state.principal.client.is_some(), unsent)
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
                if connection.may_send() {
                    let _turn = turns.acquire().await;
                    tokio::task::yield_now().await;
                    let begun = thread.borrow().clock.begins();
                    connection.flush(&mut Slice::default());
                    thread.borrow().clock.ends(begun);
                } else {
                    connection.flush(&mut Slice::default());
                }
                tokio::task::yield_now().await;
            }
            ready = connection.stream.readable(), if !waits && may_read => {
                if ready.is_err() || !slices::receive(&thread, &connection, &mut decoder, &limits) { break }
                arriving.set(decoder.held_bytes());
            }
            () = &mut deadline, if !greeted => break,
            _ = look.tick(), if waits || unread || !may_read || draining.is_draining() || connection.has_ranges() => {
                let now = thread.borrow().now();
                if connection.has_stalled(now, limits.stalled_reader) {
                    thread.borrow().metrics.worker.rejected(Queue::Replies);
                    break;
                }
                if waits && arriving.is_overdue() {
                    thread.borrow().metrics.worker.rejected(Queue::NodeBytes);
                    break;
                }
                if connection.expire_ranges(&limits) || connection.has_ranges() {
                    thread.borrow_mut().touch_connection(&connection);
                }
            }
        }
    }
    thread.borrow_mut().connections.remove(connection.id);
    if let Some(client) = connection.state.borrow().principal.client {
        draining.clients().ended(client, (connection.thread, connection.id));
    }
    {
        // Whoever still holds the connection holds nothing of the node with it.
        let mut state = connection.state.borrow_mut();
        state.end();
        (state.packs, state.waiting) = (Packs::default(), BTreeMap::new());
        (state.ranges, state.parts) = (Streams::default(), Streams::default());
    }
    draining.usage.connection_closed();
}

pub(super) fn handle(thread: &RefCell<WorkerThread>, connection: &Rc<Connection>, frame: Frame) {
    let greeted = connection.state.borrow().principal.client.is_some();
    if !greeted && Kind::from_u8(frame.kind) != Some(Kind::Hello) {
        let refusal = Refused::BadRequest { text: "the first frame must be Hello".into() };
        return refuse_and_close(thread, connection, frame.stream, refusal);
    }
    let bytes = frame.body.len();
    let asked = match Asked::decode(&frame) {
        Ok(asked) => asked,
        Err(error) => {
            let refusal = Refused::of_message(&error);
            if greeted && matches!(refusal, Refused::TooLarge { .. }) {
                // The frame was whole, and what is behind it is another one.
                return put(thread, connection, |out| refusal.encode(out, frame.stream));
            }
            return refuse_and_close(thread, connection, frame.stream, refusal);
        }
    };
    if !connection.is_allowed(thread, frame.stream, &asked) {
        return;
    }
    let (group, op, mut request) = match asked {
        Asked::Hello(hello) => return authorization::greet(thread, connection, frame.stream, &hello),
        Asked::Ping => {
            return put(thread, connection, |out| {
                coppice_client::wire::encode_frame(out, Kind::Pong, frame.stream, &[]);
            });
        }
        Asked::Credit(bytes) => {
            connection.state.borrow_mut().ranges.add_credit(frame.stream, bytes);
            return thread.borrow_mut().touch_connection(connection);
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
            return thread.borrow_mut().touch_connection(connection);
        }
        Asked::PartCancel { query } => {
            return connection.state.borrow_mut().parts.drop_all(|(of, _)| *of == query);
        }
        Asked::MapGet(get) => {
            let reply = thread.borrow().shared.cluster.map_reply(get);
            return put(thread, connection, |out| encode_control(out, Kind::Map, frame.stream, &reply));
        }
        Asked::Status(get) => {
            return control_requests::ask_status(&mut thread.borrow_mut(), connection, frame.stream, get);
        }
        Asked::Admin(admin) => {
            let by = connection.rights().user().map(str::to_owned);
            return control_requests::ask_admin(&mut thread.borrow_mut(), connection, frame.stream, by, *admin);
        }
        Asked::Commands(commands) => {
            let owned = connection.owner().map(|owner| coppice_core::machine::entry::owned(&commands.entry, owner));
            let entry = owned.unwrap_or_else(|| alone(commands.entry.clone()));
            (commands.partition, translate::pack_op(&commands), Request::pack(entry, &commands))
        }
        Asked::OpenSession(open) => {
            // A session is its user's; while users are not asked who they are, that of who said hello.
            let client = connection.owner().map(ClientId).or(connection.state.borrow().principal.client);
            let entry =
                client.map_or(alone(open.entry), |client| coppice_core::machine::entry::open(client, open.nonce));
            (open.partition, Op::Open, Request::Open { entry })
        }
        Asked::Read(read) => {
            let account = connection.state.borrow().charges.account.clone();
            (read.partition, Op::Get, Request::Read(read, account, None))
        }
        Asked::Range(range) => (range.partition, Op::Range, Request::Range(Box::new(range))),
        Asked::Validate(asked) => (asked.partition, Op::Validate, Request::Validate(asked, None)),
        Asked::Collect(range) => {
            if let Some((origin, _)) = admit(thread, connection, frame.stream, (Op::Range, None), bytes) {
                thread.borrow_mut().input(Input::Collect { origin, range });
            }
            return;
        }
        Asked::Query(query) => {
            if let Some((origin, client)) = admit(thread, connection, frame.stream, (Op::Range, None), bytes) {
                thread.borrow_mut().input(Input::Query { origin, client, request: Box::new(query) });
            }
            return;
        }
    };
    let work = if let Request::Pack { work, .. } = &request { Some((group, *work)) } else { None };
    let Some((origin, _)) = admit(thread, connection, frame.stream, (op, work), bytes) else { return };
    let Some((_, work)) = work else {
        if let Request::Read(_, _, held) | Request::Validate(_, held) = &mut request {
            *held = connection.state.borrow().waiting.get(&frame.stream).map(|waiting| Arc::clone(&waiting.charge));
        }
        return thread.borrow_mut().input(Input::Request { group, origin, request });
    };
    connection.state.borrow_mut().packs.push(Pack { stream: frame.stream, group, work, request });
    hand_on(thread, connection);
}

/// Notes that `stream` waits for an answer, unless there is no room for its request.
fn admit(
    thread: &RefCell<WorkerThread>,
    connection: &Connection,
    stream: u32,
    (op, work): (Op, Option<(PartitionId, u32)>),
    bytes: usize,
) -> Option<(Origin, ClientId)> {
    let client = connection.state.borrow().principal.client?;
    {
        let mut state = connection.state.borrow_mut();
        if state.waiting.contains_key(&stream) {
            drop(state);
            let refusal = Refused::BadRequest { text: format!("stream {stream} is in use") };
            refuse_and_close(thread, connection, stream, refusal);
            return None;
        }
        let expects = if matches!(op, Op::Get | Op::Range | Op::Validate) { 0 } else { state.answers.expects };
        let Some(charge) = state.charges.account.admit(bytes + expects) else {
            state.refuse(stream, &busy());
            drop(state);
            let mut thread = thread.borrow_mut();
            thread.metrics.worker.rejected(Queue::NodeBytes);
            thread.touch_connection(connection);
            return None;
        };
        state.waiting.insert(stream, PendingRequest { op, work, charge: Arc::new(charge), since: Clock::now() });
    }
    Some((connection.origin(stream), client))
}

/// Appends to what is written at the end of the turn.
pub(super) fn put(thread: &RefCell<WorkerThread>, connection: &Connection, write: impl FnOnce(&mut BytesMut)) {
    connection.append(write);
    thread.borrow_mut().touch_connection(connection);
}
