//! Authorization: whom a connection acts for, and what it hears, and the log, of what its user may not do.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use coppice_client::tls::names::Names;
use coppice_client::token::Token;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::{Hello, Kind, NodeIdentity, Refusal as Refused, Request as Asked};
use coppice_core::access::{Access, CertificateName, Credentials, Denial, Rights, Stranger};
use coppice_core::connection::{AdmissionError, GreetedNode, check, features};

use super::serve::put;
use super::state::refuse_and_close;
use super::{Connection, State, new_account};
use crate::metrics::Op;
use crate::shared::STRANGER_WAITS;
use crate::worker_thread::WorkerThread;
use coppice_core::incarnation::Identity;

impl Connection {
    /// Whether its client has said hello.
    pub(super) fn has_greeted(&self) -> bool {
        self.state.borrow().lifecycle.client().is_some()
    }

    /// What it may do now.
    pub(in crate::worker_thread) fn rights(&self) -> Arc<Rights> {
        Arc::clone(self.state.borrow().lifecycle.rights())
    }

    /// Whether what it asks is admitted; if not, that is answered.
    pub(super) fn is_allowed(&self, thread: &RefCell<WorkerThread>, stream: u32, asked: &Asked) -> bool {
        let checked = check(self.state.borrow().lifecycle.rights(), asked);
        let refusal = match checked {
            Ok(()) => {
                if let Asked::Admin(admin) = asked
                    && admin.properties().changes
                {
                    let (rights, from, verb) = (self.rights(), From::of(self), admin.to_string());
                    let user = rights.user().unwrap_or("anybody: access control is off");
                    tracing::info!(user, from = %from.host, port = from.port, verb, "an operator's verb");
                }
                return true;
            }
            Err(AdmissionError::Forming) => Refused::NotInitialized,
            Err(AdmissionError::Denied(denial)) => {
                let (Denial { user, role, .. }, from) = (&denial, From::of(self));
                let (kind, op) = kind_of(asked);
                op.into_iter().for_each(|op| thread.borrow().metrics.worker.denied(op));
                tracing::warn!(user, needs = %role, kind, from = %from.host, port = from.port, "a request is denied");
                Refused::Denied { text: denial.to_string() }
            }
        };
        self.state.borrow_mut().refuse(stream, &refusal);
        thread.borrow_mut().touch_connection(self);
        false
    }

    /// Goes by other users; `false`: it ends, since it acts for nobody, or may do less than it was let in for.
    pub(in crate::worker_thread) fn follow(&self, access: &Access) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some(refusal) = state.lifecycle.follow(access, &mut state.pending) else { return true };
        self.take_leave(state, &refusal);
        false
    }

    /// A status or a verb waits for its answer from here on; `false`: as many do as may.
    pub fn control_begins(&self) -> bool {
        self.state.borrow_mut().pending.control_begins()
    }

    /// One is answered.
    pub fn control_ends(&self) {
        let state = &mut *self.state.borrow_mut();
        state.pending.control_ends();
        if let Some(refusal) = state.lifecycle.farewell(&state.pending) {
            self.take_leave(state, &refusal);
        }
    }

    /// Says this last.
    fn take_leave(&self, state: &mut State, refusal: &Refused) {
        state.refuse(0, refusal);
        self.bell.notify_one();
    }
}

/// Who is at the other end, for the log: a number in it makes no new kind of event.
struct From {
    host: String,
    port: u16,
}

impl From {
    fn of(connection: &Connection) -> From {
        let address = connection.stream.peer_addr().ok();
        From {
            host: address.map_or_else(|| "?".into(), |address| address.ip().to_string()),
            port: address.as_ref().map_or(0, SocketAddr::port),
        }
    }
}

/// What a request is called in the log, and counted as; none: verbs are not counted.
fn kind_of(asked: &Asked) -> (&'static str, Option<Op>) {
    match asked {
        Asked::Commands(_) => ("commands", Some(Op::Pack)),
        Asked::OpenSession(_) => ("open session", Some(Op::Open)),
        Asked::Read(_) => ("read", Some(Op::Get)),
        Asked::Range(_) | Asked::Collect(_) | Asked::Query(_) => ("range", Some(Op::Range)),
        Asked::Validate(_) => ("validate", Some(Op::Validate)),
        _ => ("verb", None),
    }
}

/// Answers a hello: the connection acts for a user from then on, or it is turned away.
pub(super) fn greet(thread: &RefCell<WorkerThread>, connection: &Rc<Connection>, stream: u32, hello: &Hello) {
    let shared = Arc::clone(&thread.borrow().shared);
    let node = GreetedNode {
        identity: shared
            .own
            .identity()
            .map(|Identity { cluster, node, incarnation, .. }| (cluster, NodeIdentity { node, incarnation })),
        features: features(shared.cluster.feature_level()),
        map_version: shared.cluster.map().version,
        inflight: shared.config.limits.inflight,
        inflight_bytes: shared.config.limits.inflight_bytes,
        is_draining: shared.is_draining(),
    };
    let reply = match coppice_core::connection::greet(hello, &node) {
        Ok(reply) => reply,
        Err(refusal) => return refuse_and_close(thread, connection, stream, refusal),
    };
    let certificate = connection.certificate().and_then(Names::client).map(|name| CertificateName(name.to_owned()));
    let credentials = Credentials { token: hello.token.as_ref().map(Token::hash), certificate };
    match shared.cluster.access().rights(&credentials) {
        Ok(rights) => {
            connection.state.borrow_mut().lifecycle.let_in(hello.client, Arc::clone(rights), credentials);
        }
        Err(stranger) => return turn_away(thread, connection, stream, &stranger),
    }
    let client_bytes = thread.borrow_mut().on_greeted(hello.client, connection.id);
    connection.state.borrow_mut().open_account(new_account(&shared, client_bytes));
    put(thread, connection, |out| encode_control(out, Kind::HelloOk, stream, &reply));
}

/// Wrong credentials cost whoever shows them time, and this node a timer.
fn turn_away(thread: &RefCell<WorkerThread>, connection: &Rc<Connection>, stream: u32, stranger: &Stranger) {
    let from = From::of(connection);
    tracing::warn!(from = %from.host, port = from.port, "a client is refused: {stranger}");
    let shared = Arc::clone(&thread.borrow().shared);
    connection.state.borrow_mut().lifecycle.turn_away();
    let Some(place) = shared.usage.place_for_stranger() else { return connection.close() };
    let (thread, connection) = (thread.borrow().this(), Rc::clone(connection));
    let text = stranger.to_string();
    crate::task::spawn(async move {
        tokio::time::sleep(STRANGER_WAITS).await;
        drop(place);
        refuse_and_close(&thread, &connection, stream, Refused::Unauthenticated { text });
    });
}
