//! Authorization: whom a connection acts for, and whether that user may do what it asks. Asked before a request is
//! admitted, so that what is denied costs nothing but its decoding.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use coppice_btree::Op as TreeOp;
use coppice_client::tls::names::Names;
use coppice_client::token::Token;
use coppice_client::wire::control::encode_control;
use coppice_client::wire::frame::HEADER_BYTES;
use coppice_client::wire::{
    Command, CommandsRequest, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hello, Kind, PartitionId, Permission,
    Refusal as Refused, Request as Asked, Role,
};
use coppice_core::access::{Access, CertificateName, Credentials, Denial, Needs, Rights, Stranger};

use super::serve::put;
use super::state::refuse_and_close;
use super::translate;
use super::{Connection, State, new_account};
use crate::metrics::Op;
use crate::worker_thread::WorkerThread;

/// Whoever shows wrong credentials waits so long for the answer. Less than a client waits for a connection, so that it
/// learns why; it holds no thread meanwhile, and is not read.
const STRANGER_WAITS: Duration = Duration::from_millis(500);

/// Connections of strangers that may wait at a node; beyond, they are closed at once and without an answer.
pub const STRANGERS_MAX: usize = 64;

/// Why a request is not admitted.
#[derive(Debug)]
pub(super) enum AdmissionError {
    /// The user may not do that.
    Denied(Denial),
    /// The node does not know yet who may.
    Forming,
}

/// Whether `rights` allow what is asked.
pub(super) fn check(rights: &Rights, asked: &Asked) -> Result<(), AdmissionError> {
    if rights.all_keys(Role::Admin) {
        return Ok(());
    }
    let allowed = |allowed: bool, role: Role, of: Needs<'_>| match allowed {
        true => Ok(()),
        false if rights.is_forming() => Err(AdmissionError::Forming),
        false => Err(AdmissionError::Denied(rights.denial(role, of))),
    };
    let range = |low: &[u8], high: Option<&[u8]>| {
        allowed(rights.range(Role::Read, low, high), Role::Read, Needs::Range(low, high))
    };
    match asked {
        Asked::Admin(admin) if rights.verb(admin) => Ok(()),
        Asked::Hello(_) | Asked::Ping | Asked::MapGet(_) | Asked::Status(_) => Ok(()),
        // About what was admitted before.
        Asked::Credit(_) | Asked::Cancel | Asked::PartCredit { .. } | Asked::PartCancel { .. } => Ok(()),
        Asked::Admin(admin) => {
            let some = admin.properties().permission == Permission::AdminOfSomeKeys;
            allowed(false, Role::Admin, if some { Needs::SomeKeys } else { Needs::AllKeys })
        }
        Asked::OpenSession(_) => allowed(rights.some_keys(Role::Write), Role::Write, Needs::SomeKeys),
        Asked::Commands(commands) => match denied_key(rights, commands) {
            None => Ok(()),
            Some((role, key)) => allowed(false, role, Needs::Key(key)),
        },
        Asked::Read(_) if rights.all_keys(Role::Read) => Ok(()),
        Asked::Read(read) => match read.keys().find(|key| !rights.key(Role::Read, key)) {
            None => Ok(()),
            Some(key) => allowed(false, Role::Read, Needs::Key(key)),
        },
        Asked::Range(asked) => range(&asked.low, asked.high.as_deref()),
        Asked::Validate(asked) => asked.ranges().try_for_each(|asked| range(asked.low, asked.high)),
        Asked::Collect(asked) => (0..asked.parts.len()).try_for_each(|part| {
            let (low, high) = asked.bounds(part);
            range(low, high.map(|high| &**high))
        }),
        Asked::Query(asked) => range(&asked.low, asked.high.as_deref()),
    }
}

/// The first key of a pack that `rights` do not allow, and the role that it takes.
fn denied_key<'a>(rights: &Rights, commands: &'a CommandsRequest) -> Option<(Role, &'a [u8])> {
    if rights.all_keys(Role::Write) {
        return None;
    }
    // It was decoded whole: an error would be one of ours, and lets nobody in.
    let Ok(pack) = commands.pack() else { return Some((Role::Admin, &[])) };
    let role = |op: &TreeOp<'_>| if matches!(op, TreeOp::Get { .. }) { Role::Read } else { Role::Write };
    let denied = |op: TreeOp<'a>| (!rights.key(role(&op), op.key())).then(|| (role(&op), op.key()));
    pack.commands().find_map(|(_, command)| match command {
        Command::Op(op) => denied(op),
        Command::Many(many) => many.iter().find_map(denied),
        Command::Load(load) => {
            load.iter().map(|(key, _)| key).find(|key| !rights.key(Role::Write, key)).map(|key| (Role::Write, key))
        }
    })
}

impl Connection {
    /// What it may do now.
    pub(super) fn rights(&self) -> Arc<Rights> {
        Arc::clone(&self.state.borrow().principal.rights)
    }

    /// The longest frame that is read: who has not greeted is nobody's client yet, and pays for nothing.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let greeted = self.state.borrow().principal.client.is_some() || mutant!(strangers_send_large_frames);
        if greeted { FRAME_BYTES_MAX } else { HEADER_BYTES + HELLO_BYTES_MAX }
    }

    /// The mark of the sessions that it opens and uses.
    pub(super) fn owner(&self) -> Option<u64> {
        self.state.borrow().principal.rights.owner()
    }

    /// Whether it may receive what is in a range: parts of queries come unasked, to whom the query names.
    pub fn may_receive(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.state.borrow().principal.rights.range(Role::Read, low, high)
    }

    /// Whether what it asks is admitted; if not, that is answered.
    pub(super) fn is_allowed(&self, thread: &RefCell<WorkerThread>, stream: u32, asked: &Asked) -> bool {
        let checked = check(&self.state.borrow().principal.rights, asked);
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
        let mut state = self.state.borrow_mut();
        // Who has not greeted is judged then.
        if state.principal.client.is_none() || state.ending.closing || state.ending.why.is_some() {
            return true;
        }
        let text = match access.rights_again(&state.principal.credentials, &state.principal.rights) {
            Ok(rights) => {
                state.principal.rights = rights;
                return true;
            }
            Err(text) => text,
        };
        state.principal.rights = Arc::new(Rights::while_forming());
        state.principal.is_stranger = true;
        state.ranges.drop_all(|_| true);
        state.parts.drop_all(|_| true);
        state.ending.why = Some(text);
        let ends = state.end_without_verbs();
        drop(state);
        if ends {
            self.bell.notify_one();
        }
        !ends
    }

    /// A verb waits for its answer.
    pub fn verb_begins(&self) {
        self.state.borrow_mut().ending.verbs += 1;
    }

    /// A verb was answered. Whoever switched access control on, or took the own role, hears that before it ends.
    pub fn verb_ends(&self) {
        let mut state = self.state.borrow_mut();
        state.ending.verbs = state.ending.verbs.saturating_sub(1);
        if state.end_without_verbs() {
            self.bell.notify_one();
        }
    }
}

impl State {
    /// Ends the connection, if it is to end and no verb waits; whether it does.
    fn end_without_verbs(&mut self) -> bool {
        if self.ending.verbs > 0 {
            return false;
        }
        let Some(text) = self.ending.why.take() else { return false };
        self.refuse(0, &Refused::Unauthenticated { text });
        self.ending.closing = true;
        true
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
    // Whoever is someone else from here on would be reached, and forgotten, as the first one.
    if connection.state.borrow().principal.client.is_some() {
        let text = "Hello comes once, first on a connection: open another one".into();
        return refuse_and_close(thread, connection, stream, Refused::BadRequest { text });
    }
    let shared = Arc::clone(&thread.borrow().shared);
    let reply = match translate::greet(&shared, hello) {
        Ok(reply) => reply,
        Err(refusal) => return refuse_and_close(thread, connection, stream, refusal),
    };
    let certificate = connection.certificate().and_then(Names::client).map(|name| CertificateName(name.to_owned()));
    let credentials = Credentials { token: hello.token.as_ref().map(Token::hash), certificate };
    match shared.cluster.access().rights(&credentials) {
        Ok(rights) => {
            let mut state = connection.state.borrow_mut();
            state.principal.rights = Arc::clone(rights);
            state.principal.credentials = credentials;
            state.principal.client = Some(hello.client);
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
    connection.state.borrow_mut().principal.is_stranger = true;
    if !shared.usage.stranger_waits(STRANGERS_MAX) {
        return connection.close();
    }
    let (thread, connection) = (thread.borrow().this(), Rc::clone(connection));
    let text = stranger.to_string();
    crate::task::spawn(async move {
        tokio::time::sleep(STRANGER_WAITS).await;
        shared.usage.stranger_goes();
        refuse_and_close(&thread, &connection, stream, Refused::Unauthenticated { text });
    });
}

/// The part of a query may go to this connection.
pub fn may_give(
    connection: &Connection,
    share: &coppice_core::multicast::PartitionQuery,
    partition: PartitionId,
) -> bool {
    let allowed = connection.may_receive(&share.low, share.high.as_deref());
    if !allowed {
        tracing::warn!(%partition, "a part of a query is withheld: its client may not read it");
    }
    allowed
}

#[cfg(test)]
mod tests;
