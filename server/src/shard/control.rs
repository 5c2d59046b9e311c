//! Requests that the control task answers, `Status` and `Admin`: rare, and dear, since most of them ask other nodes.
//! Few may be under way, of one connection and of all.

use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{AdminRequest, Kind, Refusal as Refused, StatusGet};
use coppice_core::wire_reply::busy;
use tokio::sync::oneshot;

use super::Shard;
use crate::control::ToControl;
use crate::metrics::Queue;
use crate::net::public::Connection;
use crate::shared::{ControlPlace, Shared};

/// Of one connection: the operators' tools ask one at a time. Beyond: `Busy`.
const CONNECTION_MAX: usize = 4;

impl Shard {
    /// Has the control task answer a client's question about the cluster.
    pub(crate) fn ask_status(&mut self, connection: &Rc<Connection>, stream: u32, get: StatusGet) {
        let Some(place) = self.place_for(connection, stream, Shared::place_for_status) else { return };
        let (sender, receiver) = oneshot::channel();
        self.shared.tell_control(ToControl::Status { get, reply: sender });
        self.answer_later(connection, (stream, place), receiver, move |out, status| {
            encode_control(out, Kind::StatusReply, stream, &*status);
        });
    }

    /// Has the control task carry out an operator's verb.
    pub(crate) fn ask_admin(
        &mut self,
        connection: &Rc<Connection>,
        stream: u32,
        by: Option<String>,
        request: AdminRequest,
    ) {
        let Some(place) = self.place_for(connection, stream, Shared::place_for_verb) else { return };
        let (sender, receiver) = oneshot::channel();
        self.shared.tell_control(ToControl::Admin { request: Box::new(request), by, reply: sender });
        self.answer_later(connection, (stream, place), receiver, move |out, reply| {
            encode_control(out, Kind::AdminReply, stream, &reply);
        });
    }

    /// A place for one more request, unless the connection or the node has as many under way as it may: then the
    /// client is told.
    fn place_for(
        &mut self,
        connection: &Rc<Connection>,
        stream: u32,
        take: impl FnOnce(&Arc<Shared>) -> Option<ControlPlace>,
    ) -> Option<ControlPlace> {
        let place = match connection.control.get() < CONNECTION_MAX {
            true => take(&self.shared),
            false => None,
        };
        if place.is_none() {
            self.metrics.rejected(Queue::Control);
            connection.append(|out| busy().encode(out, stream));
            self.touch_connection(connection);
        }
        place
    }

    fn answer_later<T: 'static>(
        &self,
        connection: &Rc<Connection>,
        (stream, place): (u32, ControlPlace),
        answer: oneshot::Receiver<T>,
        encode: impl FnOnce(&mut BytesMut, T) + 'static,
    ) {
        let (shard, connection) = (self.this(), Rc::clone(connection));
        connection.control.update(|count| count + 1);
        connection.verb_begins();
        crate::task::spawn(async move {
            let answer = answer.await;
            connection.control.update(|count| count - 1);
            drop(place);
            match answer {
                Ok(answer) => connection.append(|out| encode(out, answer)),
                Err(_) => connection.append(|out| Refused::ShuttingDown.encode(out, stream)),
            }
            connection.verb_ends();
            shard.borrow_mut().touch_connection(&connection);
        });
    }
}
