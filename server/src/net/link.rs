//! The outgoing half of a shard's traffic to one other node: connects, says who it is, writes what the shard queues.
//!
//! What is queued while the link is down, or beyond its bound, is dropped: losing a message is harmless to Paxos,
//! holding it back for ever is not. Nothing is read here but refusals; the other node answers on a link of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use coppice_client::wire::{FrameDecoder, Kind, NodeId};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::codec::Body;
use super::outbox::Outbox;
use super::peer::{self, Envelope};
use super::peer_frame;
use crate::config::Address;
use crate::multicast::letter::{self, Letter};

/// Bytes that wait for one node at most; beyond, messages are dropped and come again by retransmission.
const LINK_BYTES_MAX: usize = 64 << 20;

/// A frame is closed at this size, so that a reader never waits long for the end of one.
const FRAME_BYTES: usize = 1 << 20;

/// Wait between two attempts to connect: short, because a node that restarts should be heard at once.
const RECONNECT_WAITS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100)];

/// The longest wait after a refusal: each in a row doubles the first of [`RECONNECT_WAITS`]. A node that has no cluster
/// yet is asked again soon, one of another cluster seldom.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What the owner and the task of a link share.
pub struct Link {
    node: NodeId,
    state: RefCell<State>,
    /// Rung when the socket did not take everything, when the address changed and when the link ends.
    bell: Notify,
}

struct State {
    address: Address,
    /// Messages of this turn, not yet framed.
    body: Body,
    /// Letters of this turn, not yet framed.
    letters: Body,
    outbox: Outbox,
    stream: Option<Rc<TcpStream>>,
    /// How far this node's log is durable, as the other one was told on this connection.
    told_durable: u64,
    dropped: u64,
    closed: bool,
}

impl Link {
    /// A link to `node` at `address`; [`Link::run`] serves it.
    pub fn new(node: NodeId, address: Address) -> Rc<Link> {
        let state = State {
            address,
            body: Body::default(),
            letters: Body::default(),
            outbox: Outbox::default(),
            stream: None,
            told_durable: 0,
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

    /// Ends the link's task.
    pub fn close(&self) {
        self.state.borrow_mut().closed = true;
        self.bell.notify_one();
    }

    /// Queues a message for the end of the turn.
    pub fn send(&self, envelope: &Envelope) {
        let mut state = self.state.borrow_mut();
        if state.stream.is_none() || state.outbox.bytes() > LINK_BYTES_MAX {
            state.dropped += 1;
            return;
        }
        peer::encode(&mut state.body, envelope);
        if state.body.len() >= FRAME_BYTES {
            state.seal();
        }
    }

    /// Queues a letter of the multicast for the end of the turn.
    pub fn send_letter(&self, letter: &Letter) {
        let mut state = self.state.borrow_mut();
        if state.stream.is_none() || state.outbox.bytes() > LINK_BYTES_MAX {
            state.dropped += 1;
            return;
        }
        letter::encode(&mut state.letters, letter);
        if state.letters.len() >= FRAME_BYTES {
            state.seal();
        }
    }

    /// Writes what was queued, as far as the socket takes it now. `durable` is how far this node's log is durable: it
    /// goes out with the messages of the turn, so that whoever got a vote can tell a copy of this node that has
    /// forgotten it (reliability.md PX12).
    pub fn flush(&self, durable: u64) {
        let mut state = self.state.borrow_mut();
        if !state.body.is_empty() && durable > state.told_durable && state.stream.is_some() {
            state.told_durable = durable;
            state.outbox.push(peer_frame::frame(peer_frame::DURABLE, &durable.to_le_bytes()).freeze());
        }
        state.seal();
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

    /// Keeps the link connected until it is closed. `hello` opens every connection.
    pub async fn run(self: Rc<Link>, hello: BytesMut) {
        let (mut attempt, mut refusals) = (0, 0);
        loop {
            let (address, closed) = {
                let state = self.state.borrow();
                (state.address.clone(), state.closed)
            };
            if closed {
                return;
            }
            match tokio::time::timeout(CONNECT_TIMEOUT, connect(&address)).await {
                Ok(Ok(stream)) => {
                    attempt = 0;
                    refusals = if self.serve(Rc::new(stream), &hello).await { refusals + 1 } else { 0 };
                }
                Ok(Err(error)) => {
                    refusals = 0;
                    tracing::debug!(node = %self.node, %address, %error, "peer refused the connection");
                }
                Err(_) => {
                    refusals = 0;
                    tracing::debug!(node = %self.node, %address, "peer did not answer");
                }
            }
            let wait = match refusals {
                0 => RECONNECT_WAITS[attempt.min(RECONNECT_WAITS.len() - 1)],
                _ => REFUSED_WAIT_MAX.min(RECONNECT_WAITS[0] * (1 << refusals.min(10))),
            };
            attempt += 1;
            _ = tokio::time::timeout(wait, self.bell.notified()).await;
        }
    }

    /// Serves a connection until it ends: `true` when the other node refused it.
    async fn serve(&self, stream: Rc<TcpStream>, hello: &BytesMut) -> bool {
        {
            let mut state = self.state.borrow_mut();
            state.outbox.push(hello.clone().freeze());
            state.stream = Some(Rc::clone(&stream));
            state.told_durable = 0;
        }
        self.write();
        let mut decoder = FrameDecoder::default();
        let mut refused = false;
        loop {
            let pending = {
                let state = self.state.borrow();
                let current = state.stream.as_ref().is_some_and(|current| Rc::ptr_eq(current, &stream));
                if !current || state.closed {
                    break;
                }
                !state.outbox.is_empty()
            };
            tokio::select! {
                () = self.bell.notified() => {}
                ready = stream.writable(), if pending => {
                    if ready.is_err() { break }
                    self.write();
                }
                ready = stream.readable() => {
                    match if ready.is_err() { Heard::End } else { self.hear(&stream, &mut decoder) } {
                        Heard::Nothing => {}
                        Heard::End => break,
                        Heard::Refusal => {
                            refused = true;
                            break;
                        }
                    }
                }
            }
        }
        self.state.borrow_mut().drop_connection();
        refused
    }

    /// The other node says something only to refuse us.
    fn hear(&self, stream: &TcpStream, decoder: &mut FrameDecoder) -> Heard {
        match stream.try_read_buf(decoder.space()) {
            Ok(0) => return Heard::End,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Heard::Nothing,
            Err(_) => return Heard::End,
        }
        match decoder.next_frame() {
            Ok(Some(frame)) if Kind::from_u8(frame.kind) == Some(Kind::Refused) => {
                let text = super::rpc::refusal_text(&frame.body);
                tracing::warn!(node = %self.node, reason = %text, "another node refuses this one");
                Heard::Refusal
            }
            Ok(_) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }
}

/// What the other end of a link did.
enum Heard {
    Nothing,
    Refusal,
    End,
}

impl State {
    fn seal(&mut self) {
        if !self.body.is_empty() {
            peer_frame::put(&mut self.outbox, peer_frame::MESSAGES, &mut self.body);
        }
        if !self.letters.is_empty() {
            peer_frame::put(&mut self.outbox, peer_frame::LETTERS, &mut self.letters);
        }
    }

    fn drop_connection(&mut self) {
        self.stream = None;
        self.outbox.clear();
        self.body.take_pieces();
        self.letters.take_pieces();
    }
}

async fn connect(address: &Address) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((address.host(), address.port())).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
