//! Serves a connection: reads its frames, hands its requests on, writes what waits.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{Frame, FrameDecoder, Kind, encode_frame};
use coppice_core::connection::{Dispatch, Pending, RefusedFrame, Slice, Unwritten, decode, frame_bytes_max};
use coppice_core::cost::Account;
use coppice_core::worker::Input;

use super::state::refuse_and_close;
use super::{Connection, PendingRequest, State, authorization, labels, slices};
use crate::metrics::Queue;
use crate::shared::PartialFrame;
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
    let mut decoder = FrameDecoder::new(frame_bytes_max(connection.has_greeted()));
    let mut look = tokio::time::interval(Duration::from_millis(200));
    let mut arriving = PartialFrame::new(Arc::clone(&draining));
    loop {
        if connection.has_packs() {
            let begun = thread.borrow().clock.begins();
            hand_on(&thread, &connection);
            thread.borrow().clock.ends(begun);
        }
        if decoder.has_frame() && connection.may_read() {
            // The rest of what was read, behind what others have to do.
            let _turn = turns.acquire().await;
            tokio::task::yield_now().await;
            let begun = thread.borrow().clock.begins();
            slices::take_frames(&thread, &connection, &mut decoder, slices::SLICE_WORK);
            thread.borrow().clock.ends(begun);
            arriving.set(decoder.held_bytes());
        }
        let waits = arriving.must_wait();
        let (pending, finished, greeted, unread) = {
            let state = connection.state.borrow();
            let sends = state.pending.may_send();
            let unsent = !state.outbox.is_empty() || connection.stream.is_unsent();
            let pending =
                unsent || !state.answers.large.is_empty() || (sends && draining.usage.may_scan(state.scan_bytes));
            let answers = !state.answers.small.is_empty() || !state.answers.large.is_empty();
            let unwritten = Unwritten { answers, frames: unsent };
            let finished = state.lifecycle.is_over(draining.is_draining(), &state.pending, unwritten);
            (pending, finished, state.lifecycle.client().is_some(), unsent)
        };
        if finished {
            break;
        }
        let may_read = connection.may_read();
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
                if ready.is_err() || !slices::receive(&thread, &connection, &mut decoder) { break }
                arriving.set(decoder.held_bytes());
            }
            () = &mut deadline, if !greeted => break,
            _ = look.tick(), if waits || unread || !may_read || draining.is_draining() || connection.has_streams() => {
                let now = thread.borrow().now();
                if connection.has_stalled(now, limits.stalled_reader) {
                    thread.borrow().metrics.worker.rejected(Queue::Replies);
                    break;
                }
                if waits && arriving.is_overdue() {
                    thread.borrow().metrics.worker.rejected(Queue::NodeBytes);
                    break;
                }
                if connection.expire_streams(now, &limits) || connection.has_streams() {
                    thread.borrow_mut().touch_connection(&connection);
                }
            }
        }
    }
    thread.borrow_mut().connections.remove(connection.id);
    if let Some(client) = connection.state.borrow().lifecycle.client() {
        draining.clients().ended(client, (connection.thread, connection.id));
    }
    {
        // Whoever still holds the connection holds nothing of the node with it.
        let mut state = connection.state.borrow_mut();
        state.end();
        state.pending = Pending::new(0);
    }
    draining.usage.connection_closed();
}

pub(super) fn handle(thread: &RefCell<WorkerThread>, connection: &Rc<Connection>, frame: Frame) {
    let (stream, bytes) = (frame.stream, frame.body.len());
    let asked = match decode(&frame, connection.has_greeted()) {
        Ok(asked) => asked,
        Err(RefusedFrame { refusal, closes: true }) => return refuse_and_close(thread, connection, stream, refusal),
        Err(RefusedFrame { refusal, .. }) => return put(thread, connection, |out| refusal.encode(out, stream)),
    };
    if !connection.is_allowed(thread, stream, &asked) {
        return;
    }
    let dispatch = {
        let state = connection.state.borrow();
        Dispatch::new(asked, stream, &connection.asker(&state))
    };
    match dispatch {
        Dispatch::Worker(input) => admit(thread, connection, (stream, bytes), input),
        Dispatch::Hello(hello) => authorization::greet(thread, connection, stream, &hello),
        Dispatch::Ping => put(thread, connection, |out| encode_frame(out, Kind::Pong, stream, &[])),
        Dispatch::Credit(bytes) => {
            connection.state.borrow_mut().pending.add_credit(stream, bytes);
            thread.borrow_mut().touch_connection(connection);
        }
        Dispatch::Cancel => connection.state.borrow_mut().pending.cancel(stream),
        Dispatch::PartCredit { query, partition, bytes } => {
            connection.state.borrow_mut().pending.add_part_credit(query, partition, bytes);
            thread.borrow_mut().touch_connection(connection);
        }
        Dispatch::Compare(request) => {
            compare(thread, connection, |pending, account| pending.compare(stream, request, account));
        }
        Dispatch::PartCompare { query, partition, request } => {
            compare(thread, connection, |pending, account| pending.compare_part(query, partition, request, account));
        }
        Dispatch::PartCancel { query } => connection.state.borrow_mut().pending.cancel_parts(query),
        Dispatch::Map(get) => {
            let reply = thread.borrow().shared.cluster.map_reply(get);
            put(thread, connection, |out| encode_control(out, Kind::Map, stream, &reply));
        }
        Dispatch::Status(get) => control_requests::ask_status(&mut thread.borrow_mut(), connection, stream, get),
        Dispatch::Admin(admin) => {
            let by = connection.rights().user().map(str::to_owned);
            control_requests::ask_admin(&mut thread.borrow_mut(), connection, stream, by, *admin);
        }
    }
}

/// Takes what the client holds of a range or part, which may go on then.
fn compare(
    thread: &RefCell<WorkerThread>,
    connection: &Rc<Connection>,
    take: impl FnOnce(&mut Pending<PendingRequest>, &Account),
) {
    {
        let State { pending, charges, .. } = &mut *connection.state.borrow_mut();
        take(pending, &charges.account);
    }
    thread.borrow_mut().touch_connection(connection);
}

/// Notes that `stream` waits for an answer, and tells the worker, unless there is no room for the request.
fn admit(thread: &RefCell<WorkerThread>, connection: &Connection, request: (u32, usize), input: Input) {
    let remembered = PendingRequest { op: labels::op(&input), since: Clock::now() };
    let admitted = {
        let State { pending, charges, .. } = &mut *connection.state.borrow_mut();
        pending.admit(request, &charges.account, input, remembered)
    };
    match admitted {
        Ok(Some(input)) => thread.borrow_mut().input(input),
        Ok(None) => hand_on(thread, connection),
        Err(RefusedFrame { refusal, closes: true }) => refuse_and_close(thread, connection, request.0, refusal),
        Err(RefusedFrame { refusal, .. }) => {
            thread.borrow().metrics.worker.rejected(Queue::NodeBytes);
            put(thread, connection, |out| refusal.encode(out, request.0));
        }
    }
}

/// Hands on packs whose partitions have room for them.
fn hand_on(thread: &RefCell<WorkerThread>, connection: &Connection) {
    loop {
        let next = connection.state.borrow_mut().pending.next_pack();
        let Some(input) = next else { return };
        thread.borrow_mut().input(input);
    }
}

/// Appends to what is written at the end of the turn.
pub(super) fn put(thread: &RefCell<WorkerThread>, connection: &Connection, write: impl FnOnce(&mut BytesMut)) {
    connection.append(write);
    thread.borrow_mut().touch_connection(connection);
}
