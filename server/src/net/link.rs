//! The outgoing half of a worker thread's traffic to one other node: connects, hears who answers, writes what the
//! worker thread queues.
//!
//! What is queued while the link is down, or beyond its bound, is dropped: losing a message is harmless to Paxos,
//! holding it back for ever is not. Nothing is read here but echoes and refusals; the other node answers on a link of
//! its own.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use coppice_client::channel::Channel;
use coppice_client::resolve;
use coppice_client::tls::Tls;
use coppice_client::wire::{FrameDecoder, Kind, NodeId};
use coppice_core::connection::FrameSink;
use coppice_core::handshake::{Objection, PeerHello, Presence, WelcomeError, refusal_text};
use coppice_core::multicast::message::{self, MulticastMessage};
use coppice_core::wire::codec::Body;
use coppice_core::wire::peer::{self, Envelope};
use coppice_core::wire::peer_frame;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::dial::{WAITS, reach, redial};
use super::fault::Fault;
use super::handshake::{self, HandshakeError};
use super::outbox::Outbox;
use super::silence::Silence;
use crate::config::Address;

/// Bytes that wait for one node at most; beyond, messages are dropped and come again by retransmission.
const LINK_BYTES_MAX: usize = 64 << 20;

/// A frame is closed at this size, so that a reader never waits long for the end of one: 13 ms at 10 Mbit/s. Batches
/// of one turn that arrived as one would be voted for as one, decided as one and followed by one more such turn: a
/// window of them would be no more than one batch under way.
const FRAME_BYTES: usize = 16 << 10;

/// The longest wait after a refusal: each in a row doubles the first of [`WAITS`]. A node that has no cluster yet is
/// asked again soon, one of another cluster seldom.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(1);

/// What the owner and the task of a link share.
pub struct Link {
    node: NodeId,
    state: RefCell<State>,
    /// Rung when the socket did not take everything, in doubt, when the address changed and when the link ends.
    bell: Notify,
}

struct State {
    address: Address,
    /// Messages of this turn, not yet framed.
    body: Body,
    /// Multicast messages of this turn, not yet framed.
    multicast: Body,
    outbox: Outbox,
    stream: Option<Rc<Channel>>,
    silence: Silence,
    /// Another connection is tried beside this one, which may be useless.
    doubted: bool,
    /// Another connection takes over once it stands: this one began with certificates that have been replaced.
    renewing: bool,
    /// No echo came since a connection was doubted: another one proves nothing by standing.
    silent: bool,
    /// This connection stands since [`Link::say_alive`].
    fresh: bool,
    /// A connection has stood, and nothing has been refused since.
    served: bool,
    /// What is done to messages on purpose.
    fault: Fault,
    /// How far this node's log is durable, as the other one was told on this connection.
    told_durable: u64,
    /// Whether this node has no room, as the other one was told on this connection.
    told_full: bool,
    dropped: u64,
    closed: bool,
}

impl Link {
    /// A link to `node` at `address`; [`Link::run`] serves it.
    pub fn new(node: NodeId, address: Address) -> Rc<Link> {
        let state = State {
            address,
            body: Body::default(),
            multicast: Body::default(),
            outbox: Outbox::default(),
            stream: None,
            silence: Silence::default(),
            doubted: false,
            renewing: false,
            silent: false,
            fresh: false,
            served: false,
            fault: Fault::default(),
            told_durable: 0,
            told_full: false,
            dropped: 0,
            closed: false,
        };
        Rc::new(Link { node, state: RefCell::new(state), bell: Notify::new() })
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether a connection stands.
    pub fn is_up(&self) -> bool {
        self.state.borrow().stream.is_some()
    }

    /// Whether a connection stands, and the other node answers on it: messages most likely arrive.
    pub fn answers(&self) -> bool {
        let state = self.state.borrow();
        state.stream.is_some() && !state.silent && !state.fault.is_cut()
    }

    /// Pieces that wait to be written.
    pub fn waiting(&self) -> usize {
        self.state.borrow().outbox.waiting()
    }

    /// Messages dropped so far.
    pub fn dropped(&self) -> u64 {
        self.state.borrow().dropped
    }

    /// Uses another address from the next connection on.
    pub fn set_address(&self, address: Address) {
        let mut state = self.state.borrow_mut();
        if state.address != address {
            state.address = address;
            state.stream = None;
            self.bell.notify_one();
        }
    }

    /// Loses all messages from now on, or holds each back for so long.
    pub fn set_fault(&self, cut: bool, delay: Duration) {
        self.state.borrow_mut().fault.set(cut, delay);
        self.bell.notify_one();
    }

    /// Has another connection take over, as soon as it stands.
    pub fn renew(&self) {
        let mut state = self.state.borrow_mut();
        state.renewing = state.stream.as_ref().is_some_and(|stream| stream.is_secured());
        self.bell.notify_one();
    }

    /// Ends the link's task.
    pub fn close(&self) {
        self.state.borrow_mut().closed = true;
        self.bell.notify_one();
    }

    /// Queues a message for the end of the turn.
    pub fn send(&self, envelope: &Envelope) {
        let mut state = self.state.borrow_mut();
        if !state.takes_more() {
            return;
        }
        peer::encode(&mut state.body, envelope);
        if state.body.len() >= FRAME_BYTES {
            state.seal();
        }
    }

    /// Queues a multicast message for the end of the turn.
    pub fn send_multicast(&self, message: &MulticastMessage) {
        let mut state = self.state.borrow_mut();
        if !state.takes_more() {
            return;
        }
        message::encode(&mut state.multicast, message);
        if state.multicast.len() >= FRAME_BYTES {
            state.seal();
        }
    }

    /// Lets the other node know at the end of the turn that this one lives. Returns whether the connection is another
    /// one than when this was last called.
    pub fn say_alive(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if state.stream.is_some() && !state.fault.is_cut() && !state.fault.holds() {
            state.outbox.push(peer_frame::frame(peer_frame::ALIVE, &[]).freeze());
        }
        std::mem::take(&mut state.fresh)
    }

    /// Writes what was queued, as far as the socket takes it now. `durable` is how far this node's log is durable: it
    /// goes out with the messages of the turn, so that whoever got a vote can tell a copy of this node that has
    /// forgotten it (hazards.md PX12). `full`: this node has no room.
    pub fn flush(&self, durable: u64, full: bool, now: Clock) {
        let mut state = self.state.borrow_mut();
        let speaks = state.stream.is_some() && !(state.body.is_empty() && state.multicast.is_empty());
        if speaks && state.silence.asks(now) {
            state.outbox.push(peer_frame::frame(peer_frame::ECHO, &[]).freeze());
        }
        if !state.doubted && state.silence.doubts(now) {
            (state.doubted, state.silent) = (true, true);
            self.bell.notify_one();
        }
        if state.told_full != full && state.stream.is_some() && !state.fault.is_cut() {
            state.told_full = full;
            state.outbox.push(peer_frame::frame(peer_frame::FULL, &[u8::from(full)]).freeze());
        }
        if !state.body.is_empty() && durable > state.told_durable && state.stream.is_some() {
            state.told_durable = durable;
            state.outbox.push(peer_frame::frame(peer_frame::DURABLE, &durable.to_le_bytes()).freeze());
        }
        state.seal();
        if state.fault.holds() {
            self.bell.notify_one();
        }
        drop(state);
        self.write();
    }

    fn write(&self) {
        let mut state = self.state.borrow_mut();
        let Some(stream) = state.stream.clone() else { return };
        match state.outbox.write_to(&stream) {
            Ok(true) => {}
            Ok(false) => self.bell.notify_one(),
            Err(error) => {
                tracing::debug!(node = %self.node, %error, "peer link lost");
                state.drop_connection();
                self.bell.notify_one();
            }
        }
    }

    /// Keeps the link connected until it is closed: what is sent goes to whom `opening` means, and to nobody else.
    /// `gone` is told when the other node's process has ended: its connection did, and its machine refuses another one.
    pub async fn run(self: Rc<Link>, opening: Opening, gone: impl Fn(NodeId)) {
        let (mut refusals, mut next) = (0, None);
        while let Some(address) = self.address() {
            let opened = match next.take() {
                Some(opened) => opened,
                None => tokio::select! {
                    opened = redial(|| self.open(address.clone(), &opening, &gone)) => opened,
                    () = self.changed(&address) => continue,
                },
            };
            let ended = match opened {
                Opened::Stands(stream) => self.serve(Rc::new(stream), &opening).await,
                Opened::Refused(reason) => {
                    // A cluster is being formed, most likely: the other one is about to be told who it is.
                    if refusals > 0 {
                        tracing::warn!(node = %self.node, %reason, "no link to a node");
                    }
                    Ended::Refused
                }
            };
            let wait = match ended {
                Ended::Replaced(opened) => {
                    tracing::debug!(node = %self.node, "a peer was silent; another connection takes over");
                    next = Some(opened);
                    continue;
                }
                Ended::Lost => {
                    refusals = 0;
                    WAITS[0]
                }
                Ended::Refused => {
                    refusals += 1;
                    REFUSED_WAIT_MAX.min(WAITS[0] * (1 << refusals.min(10)))
                }
            };
            _ = tokio::time::timeout(wait, self.bell.notified()).await;
        }
    }

    /// Where to connect; none: the link is closed.
    fn address(&self) -> Option<Address> {
        let state = self.state.borrow();
        (!state.closed).then(|| state.address.clone())
    }

    async fn open(&self, address: Address, opening: &Opening, gone: &impl Fn(NodeId)) -> io::Result<Opened> {
        let opened = open(address, opening).await;
        let refused = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused && std::mem::take(&mut self.state.borrow_mut().served) {
            tracing::debug!(node = %self.node, "a peer's process has ended");
            gone(self.node);
        }
        opened
    }

    /// Until the node is to be reached elsewhere, or not at all.
    async fn changed(&self, address: &Address) {
        while self.address().as_ref() == Some(address) {
            self.bell.notified().await;
        }
    }

    /// Serves a connection until it ends.
    async fn serve(&self, stream: Rc<Channel>, opening: &Opening) -> Ended {
        {
            let mut state = self.state.borrow_mut();
            state.stream = Some(Rc::clone(&stream));
            (state.told_durable, state.told_full) = (0, false);
            (state.fresh, state.served) = (true, true);
        }
        let mut decoder = FrameDecoder::default();
        let mut another = None;
        let ended = loop {
            let (pending, due) = {
                let mut state = self.state.borrow_mut();
                let State { fault, outbox, .. } = &mut *state;
                fault.release(outbox);
                let current = state.stream.as_ref().is_some_and(|current| Rc::ptr_eq(current, &stream));
                if !current || state.closed {
                    break Ended::Lost;
                }
                if !state.doubted && !state.renewing {
                    another = None;
                } else if another.is_none() {
                    let address = state.address.clone();
                    another = Some(Box::pin(redial(move || open(address.clone(), opening))));
                }
                (!state.outbox.is_empty() || stream.is_unsent(), state.fault.due())
            };
            tokio::select! {
                () = self.bell.notified() => {}
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                ready = stream.writable(), if pending => {
                    if ready.is_err() { break Ended::Lost }
                    self.state.borrow_mut().silence.progresses(Clock::now());
                    self.write();
                    tokio::task::yield_now().await;
                }
                opened = async { another.as_mut().expect("there is one").await }, if another.is_some() => {
                    let mut state = self.state.borrow_mut();
                    if !std::mem::take(&mut state.renewing) {
                        state.silence.replaced();
                    }
                    drop(state);
                    break Ended::Replaced(opened);
                }
                ready = stream.readable() => {
                    match if ready.is_err() { Heard::End } else { self.hear(&stream, &mut decoder) } {
                        Heard::Nothing => {}
                        Heard::End => break Ended::Lost,
                        Heard::Refusal => break Ended::Refused,
                    }
                }
            }
        };
        self.state.borrow_mut().drop_connection();
        ended
    }

    /// The other node says something only to give an echo, or to refuse us.
    fn hear(&self, stream: &Channel, decoder: &mut FrameDecoder) -> Heard {
        match stream.read(decoder.space()) {
            Ok(0) => return Heard::End,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
            Err(_) => return Heard::End,
        }
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) if frame.kind == peer_frame::ECHO => {
                    let mut state = self.state.borrow_mut();
                    state.silence.echoed(Clock::now());
                    (state.doubted, state.silent) = (false, false);
                }
                Ok(Some(frame)) if Kind::from_u8(frame.kind) == Some(Kind::Refused) => {
                    let text = refusal_text(&frame.body);
                    tracing::warn!(node = %self.node, reason = %text, "another node refuses this one");
                    return Heard::Refusal;
                }
                Ok(Some(_)) => {}
                Ok(None) => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }
}

/// How a connection ended.
enum Ended {
    Lost,
    Refused,
    /// It was silent, and this came of another one.
    Replaced(Opened),
}

/// What the other end of a link did.
enum Heard {
    Nothing,
    Refusal,
    End,
}

impl State {
    /// Whether a message may be queued; it is lost otherwise.
    fn takes_more(&mut self) -> bool {
        let waiting = self.outbox.bytes() + self.fault.held_bytes();
        let takes = self.stream.is_some() && !self.fault.is_cut() && waiting <= LINK_BYTES_MAX;
        self.dropped += u64::from(!takes);
        takes
    }

    /// Makes frames of the Paxos and multicast messages of this turn.
    fn seal(&mut self) {
        if self.body.is_empty() && self.multicast.is_empty() {
            return;
        }
        let mut held = Outbox::default();
        let holds = self.fault.holds();
        let outbox = if holds { &mut held } else { &mut self.outbox };
        if !self.body.is_empty() {
            outbox.push_frame(peer_frame::MESSAGES, &mut self.body);
        }
        if !self.multicast.is_empty() {
            outbox.push_frame(peer_frame::MULTICAST, &mut self.multicast);
        }
        if holds {
            self.fault.hold(held);
        }
    }

    fn drop_connection(&mut self) {
        self.stream = None;
        self.silence.forget();
        (self.doubted, self.renewing) = (false, false);
        self.fault.forget();
        self.outbox.clear();
        self.body.take_pieces();
        self.multicast.take_pieces();
    }
}

/// Whether who answers may be talked to, or why not.
pub type Judge = Box<dyn Fn(&Presence) -> Result<(), Objection>>;

/// Hears what the other node said of this one.
pub type Vetted = Box<dyn Fn(Result<(), &str>)>;

/// What opens the connections of a link.
pub struct Opening {
    /// The first frame.
    pub hello: PeerHello,
    /// Certificates; none: in the clear.
    pub tls: Option<Tls>,
    /// Whether who answers may be talked to, beside being who is meant.
    pub judge: Judge,
    /// Hears that the other node has let this one in, or why it says that this one is a copy.
    pub vetted: Vetted,
}

/// What came of a connection.
enum Opened {
    /// Who is meant is there.
    Stands(Channel),
    /// One of the two refuses the other.
    Refused(String),
}

async fn open(address: Address, opening: &Opening) -> io::Result<Opened> {
    reach(|| connect(address.clone()), |stream| greet(stream, opening)).await
}

async fn connect(address: Address) -> io::Result<TcpStream> {
    resolve::connect(&address.to_string()).await
}

async fn greet(stream: TcpStream, opening: &Opening) -> io::Result<Opened> {
    let opened = async {
        let mut stream = Channel::to_node(stream, opening.tls.as_ref(), opening.hello.to).await?;
        handshake::dial(&mut stream, &opening.hello, &opening.judge).await?;
        Ok(stream)
    };
    match opened.await {
        Ok(stream) => {
            (opening.vetted)(Ok(()));
            Ok(Opened::Stands(stream))
        }
        // What a certificate proves, or fails to prove, does not change by asking again at once.
        Err(HandshakeError::Io(error)) if error.kind() != io::ErrorKind::Other => Err(error),
        Err(error) => {
            if let HandshakeError::Welcome(WelcomeError::Copy(text)) = &error {
                (opening.vetted)(Err(text));
            }
            Ok(Opened::Refused(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests;
