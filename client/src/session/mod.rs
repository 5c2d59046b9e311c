//! The client's side of the protocol, pure: numbers, packs, retries, hints, deadlines.
//!
//! It knows which node to ask for which key, repeats a command under the same number until it is answered
//! (protocol.md 6), and tells a failure that is sure from an outcome that is not known. It does not know sockets,
//! threads or clocks: a driver carries out [`Effect`]s and reports [`Input`]s.
//!
//! | room | what |
//! |---|---|
//! | `calls` | what callers wait for |
//! | `sessions` | the sessions of this client and the numbers in use |
//! | `queue`, `dispatch` | what waits for one partition; packing and sending it |
//! | `peers`, `connect` | nodes, connections, streams, silence |
//! | `answers` | replies and refusals |
//! | `ranges`, `comparison` | a range from one node; what its reader holds of it |
//! | `server_collects`, `collects` | a range across partitions, read and validated by one node, or in each by this client |
//! | `query`, `queries` | one attempt at a range across partitions; asking, collecting the parts, asking again |
//! | `routing` | the map: first contact, changes, re-routing |
//!
//! A command's life: *fresh* (no number, never sent), *packed* (numbered, in flight), perhaps *retry* (to be repeated
//! under its number; `maybe` once a sending ended without a sure refusal), then answered, failed or unknown.

mod answers;
mod calls;
mod collects;
mod comparison;
mod connect;
mod dispatch;
mod outcome;
mod peers;
mod queries;
mod query;
mod queue;
mod ranges;
mod routing;
mod server_collects;
mod sessions;

use std::sync::Arc;

use bytes::Bytes;
use calls::{Call, Calls};
pub use calls::{CallKey, Request};
pub use collects::KEYS_MAX;
pub use peers::ConnectionId;
use peers::{Draws, Peer};
use queue::Queues;
use sessions::Sessions;

use crate::command::{Answer, Command, Output};
use crate::config::Config;
use crate::error::{Error, Reason};
use crate::map::PartitionMap;
use crate::time::Time;
use crate::wire::pack::{Excess, PushError};
use crate::wire::{ClientId, ClusterId, Frame, KEY_BYTES_MAX, Position};

/// What [`Session::step`] takes.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time passed; wanted at [`Session::deadline`].
    Tick,
    /// Everything that arrived together was given: what waits is packed and sent now.
    TurnEnd,
    /// The connection is open; nothing was sent on it.
    Connected(ConnectionId),
    /// The connection could not be opened, or ended.
    Disconnected {
        connection: ConnectionId,
        /// Why, in words.
        reason: String,
    },
    /// A frame arrived.
    Frame {
        /// On which connection.
        connection: ConnectionId,
        frame: Frame,
    },
    /// The reader of a range has consumed so many bytes of its parts.
    Credit {
        call: CallKey,
        /// How many bytes more may come.
        bytes: u32,
    },
    /// The caller has stopped waiting. A command that was sent may still be executed.
    Cancel(CallKey),
}

/// What the driver is to do, in order per connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open a connection and report it.
    Connect {
        /// Its name from now on.
        connection: ConnectionId,
        /// `host:port`.
        address: String,
    },
    /// Write these bytes.
    Send {
        connection: ConnectionId,
        /// Whole frames.
        bytes: Bytes,
    },
    /// Close the connection; nothing need be reported.
    Close { connection: ConnectionId },
    /// A call is over.
    Complete {
        /// The caller's token.
        token: u64,
        /// [`Request::bytes`] of the call.
        bytes: usize,
        /// How it ended. A range that ended well has an [`Output::Loaded`] with the number of its pairs.
        result: Result<Answer<Output>, Error>,
    },
    /// A chunk of a range: the body of a `Part` frame, checked and in sequence. Of a query across partitions: part
    /// after part in the range's direction, and only when they are one moment (protocol.md 4, step 6; `collects`).
    Part {
        /// The caller's token.
        token: u64,
        /// See [`crate::wire::Part`].
        part: Bytes,
        /// Where it still held, if that is not the position that it names: it was validated there.
        as_of: Option<Position>,
    },
}

/// Why a call was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum SubmitError {
    /// Too many calls or bytes wait: take it up again when some are answered.
    Full(Box<Request>),
    /// It can never succeed.
    Refused(Error),
}

/// The client's side of the protocol. See the module.
#[derive(Debug)]
pub struct Session {
    config: Config,
    client: ClientId,
    draws: Draws,
    calls: Calls,
    sessions: Sessions,
    routes: routing::RoutingTable,
    cluster: Option<ClusterId>,
    queues: Queues,
    /// Calls that wait for a map.
    unrouted: Vec<CallKey>,
    peers: Vec<Peer>,
    collects: collects::Collects,
    queries: queries::Queries,
    map_search: routing::MapSearch,
    /// Distinguishes the sessions that this client opens.
    nonce: u64,
}

impl Session {
    /// A session that finds its cluster through `endpoints` (`host:port`). `seed` decides its draws.
    pub fn new(config: Config, client: ClientId, seed: u64, endpoints: Vec<String>) -> Session {
        let cluster = config.cluster;
        Session {
            config,
            client,
            draws: Draws(seed),
            calls: Calls::default(),
            sessions: Sessions::default(),
            routes: routing::RoutingTable::default(),
            cluster,
            queues: Queues::default(),
            unrouted: Vec::new(),
            peers: endpoints.into_iter().map(|address| Peer::new(address, None)).collect(),
            collects: collects::Collects::new(Draws(seed).next() % 2 == 1),
            queries: queries::Queries::default(),
            map_search: routing::MapSearch::default(),
            nonce: 0,
        }
    }

    /// The map that it routes by, once it has one.
    pub fn map(&self) -> Option<&Arc<PartitionMap>> {
        self.routes.map()
    }

    /// The cluster, once known.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Which client this is.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The number that a waiting command was packed under: with [`Session::client`] it names the command in the logs.
    pub fn number(&self, call: CallKey) -> Option<u64> {
        Some(self.calls.get(call)?.number?.1)
    }

    /// Calls that wait.
    pub fn calls_waiting(&self) -> usize {
        self.calls.len()
    }

    /// [`Request::bytes`] of a call that waits.
    pub fn bytes_of(&self, call: CallKey) -> usize {
        self.calls.get(call).map_or(0, Call::bytes)
    }

    /// Takes a call; [`Effect::Complete`] with its token tells how it ended, not later than a little after `deadline`.
    /// It is sent at the next [`Input::TurnEnd`].
    pub fn submit(&mut self, token: u64, deadline: Time, request: Request) -> Result<CallKey, SubmitError> {
        let room = self.calls.len() < self.config.calls_max && self.calls.bytes() < self.config.bytes_max;
        if !room {
            return Err(SubmitError::Full(Box::new(request)));
        }
        check(&request).map_err(|reason| SubmitError::Refused(Error::failed(reason)))?;
        let eight = request.command().is_some_and(Command::is_eight);
        let resume = match &request {
            Request::Resume(_, resume) => Some(*resume),
            _ => None,
        };
        let key = self.calls.insert(token, deadline, request, eight);
        if let (Some(resume), Some(call)) = (resume, self.calls.get_mut(key)) {
            let session = self.sessions.insert(resume.session);
            self.sessions.resume_number(session, resume.number);
            call.number = Some((session, resume.number));
            call.maybe = true;
        }
        // A call that spans partitions is refused here if the map is known, else when it comes.
        match self.route(key) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.forget(key);
                Err(SubmitError::Refused(error))
            }
        }
    }

    /// The only way in. No I/O, no clock; randomness only from the seed.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Tick => self.tick(now, effects),
            Input::TurnEnd => {}
            Input::Connected(connection) => return self.on_connected(now, connection, effects),
            Input::Disconnected { connection, reason } => {
                return self.on_disconnected(now, connection, reason, effects);
            }
            Input::Frame { connection, frame } => return self.on_frame(now, connection, frame, effects),
            Input::Credit { call, bytes } => return self.on_credit(now, call, bytes, effects),
            Input::Cancel(call) => return self.on_cancel(call, effects),
        }
        self.dispatch(now, effects);
    }

    /// When `step(.., Input::Tick, ..)` is next wanted.
    pub fn deadline(&self) -> Option<Time> {
        let peers = self.peers.iter().map(Peer::deadline);
        let search = self.map_search.deadline(self.routes.map().is_none() && self.calls.len() > 0);
        let first = self
            .queues
            .deadline()
            .into_iter()
            .chain(peers)
            .chain(self.calls.deadline())
            .chain(search)
            .chain(self.queries.deadline());
        let first = first.chain(self.collects.deadline()).min();
        first.filter(|&first| first != Time::NEVER)
    }

    /// Ends all calls, as certainly or as unknown as they are.
    pub fn close(&mut self, effects: &mut Vec<Effect>) {
        for key in self.calls.keys() {
            self.end_closed(key, effects);
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.check_peers(now, effects);
        let overdue = self.calls.overdue(now);
        if !overdue.is_empty() {
            for key in overdue {
                self.end_overdue(now, key, effects);
            }
            let Session { queues, calls, unrouted, collects, .. } = self;
            collects.forget_done(calls);
            queues.iter_mut().for_each(|queue| queue.waiting.forget_done(calls));
            unrouted.retain(|key| calls.is_waiting(*key));
        }
        self.sessions.forget_kept(now);
    }

    /// Takes a call out that was never given to the caller.
    fn forget(&mut self, key: CallKey) -> Option<Call> {
        let call = self.calls.remove(key)?;
        if let Some((session, number)) = call.number {
            self.sessions.done(session, number);
        }
        Some(call)
    }
}

/// What can never succeed is not sent.
fn check(request: &Request) -> Result<(), Reason> {
    let command = match request {
        Request::Command(command) => command,
        Request::Resume(command, token) if command.checksum() != token.checksum => return Err(Reason::OtherCommand),
        Request::Resume(command, _) => command,
        Request::Get { key, .. } | Request::Look { key, .. } => return at_most("a key", key.len(), KEY_BYTES_MAX),
        Request::Keys { keys, .. } => {
            Excess::of("a read of one moment", "keys", keys.len(), KEYS_MAX)
                .map_err(|excess| Reason::TooLarge(excess.to_string()))?;
            let longest = keys.iter().map(|key| key.len()).max().ok_or(Reason::Invalid)?;
            return at_most("a key", longest, KEY_BYTES_MAX);
        }
        Request::Map => return Ok(()),
        Request::Range(range) => {
            let bounds = std::iter::once(&range.low).chain(&range.high);
            // One byte more: the end of a range that includes the longest key.
            let longest = bounds.map(|bound| bound.len()).max().unwrap_or(0);
            return at_most("an end of a range", longest, KEY_BYTES_MAX + 1);
        }
    };
    match command.check() {
        Ok(()) => Ok(()),
        Err(PushError::Invalid) => Err(Reason::Invalid),
        Err(PushError::TooLarge(excess)) => Err(Reason::TooLarge(excess.to_string())),
        Err(PushError::Full | PushError::NotEight | PushError::Order) => {
            Err(Reason::TooLarge("the command fits no frame".into()))
        }
    }
}

fn at_most(what: &'static str, bytes: usize, max: usize) -> Result<(), Reason> {
    Excess::of(what, "bytes", bytes, max).map_err(|excess| Reason::TooLarge(excess.to_string()))
}
