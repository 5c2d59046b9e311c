//! Requests that the control task answers, `Status` and `Admin`: rare, and dear, since most of them ask other nodes.
//! Few may be under way, of one connection (`coppice_core::connection`) and of all.

use std::rc::Rc;

use bytes::BytesMut;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{AdminRequest, Kind, Refusal as Refused, StatusGet};
use coppice_core::wire_reply::busy;
use tokio::sync::oneshot;

use super::WorkerThread;
use super::connection::Connection;
use crate::messages::ToControl;
use crate::metrics::Queue;
use crate::shared::{Place, Usage};

/// Has the control task answer a client's question about the cluster.
pub(super) fn ask_status(thread: &mut WorkerThread, connection: &Rc<Connection>, stream: u32, get: StatusGet) {
    let Some(place) = place_for(thread, connection, stream, Usage::place_for_status) else { return };
    let (sender, receiver) = oneshot::channel();
    thread.shared.tell_control(ToControl::Status { get, reply: sender });
    answer_later(thread, connection, (stream, place), receiver, move |out, status| {
        encode_control(out, Kind::StatusReply, stream, &*status);
    });
}

/// Has the control task carry out an operator's verb.
pub(super) fn ask_admin(
    thread: &mut WorkerThread,
    connection: &Rc<Connection>,
    stream: u32,
    by: Option<String>,
    request: AdminRequest,
) {
    let Some(place) = place_for(thread, connection, stream, Usage::place_for_verb) else { return };
    let (sender, receiver) = oneshot::channel();
    thread.shared.tell_control(ToControl::Admin { request: Box::new(request), by, reply: sender });
    answer_later(thread, connection, (stream, place), receiver, move |out, reply| {
        encode_control(out, Kind::AdminReply, stream, &reply);
    });
}

/// A place for one more request, unless the connection or the node has as many under way as it may: then the
/// client is told.
fn place_for(
    thread: &mut WorkerThread,
    connection: &Rc<Connection>,
    stream: u32,
    take: impl FnOnce(&Usage) -> Option<Place>,
) -> Option<Place> {
    let begins = connection.control_begins();
    let place = if begins { take(&thread.shared.usage) } else { None };
    if place.is_none() {
        if begins {
            connection.control_ends();
        }
        thread.metrics.worker.rejected(Queue::Control);
        connection.append(|out| {
            busy("too many statuses and verbs are under way on the node, or on one connection").encode(out, stream)
        });
        thread.touch_connection(connection);
    }
    place
}

fn answer_later<T: 'static>(
    thread: &WorkerThread,
    connection: &Rc<Connection>,
    (stream, place): (u32, Place),
    answer: oneshot::Receiver<T>,
    encode: impl FnOnce(&mut BytesMut, T) + 'static,
) {
    let (thread, connection) = (thread.this(), Rc::clone(connection));
    crate::task::spawn(async move {
        let answer = answer.await;
        drop(place);
        match answer {
            Ok(answer) => connection.append(|out| encode(out, answer)),
            Err(_) => connection.append(|out| Refused::ShuttingDown.encode(out, stream)),
        }
        connection.control_ends();
        thread.borrow_mut().touch_connection(&connection);
    });
}
