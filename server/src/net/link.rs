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
use tokio::time::Instant;

use super::codec::Body;
use super::fault::Fault;
use super::outbox::Outbox;
use super::peer::{self, Envelope};
use super::peer_frame;
use crate::config::Address;
use crate::multicast::letter::{self, Letter};

/// Bytes that wait for one node at most; beyond, messages are dropped and come again by retransmission.
const LINK_BYTES_MAX: usize = 64 << 20;

/// A frame is closed at this size, so that a reader never waits long for the end of one: 13 ms at 10 Mbit/s. Batches
/// of one turn that arrived as one would be voted for as one, decided as one and followed by one more such turn: a
/// window of them would be no more than one batch under way.
const FRAME_BYTES: usize = 16 << 10;

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
    /// What is done to messages on purpose.
    fault: Fault,
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
            fault: Fault::default(),
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

    /// Loses all messages from now on, or holds each back for so long.
    pub fn set_fault(&self, cut: bool, delay: Duration) {
        self.state.borrow_mut().fault.set(cut, delay);
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

    /// Queues a letter of the multicast for the end of the turn.
    pub fn send_letter(&self, letter: &Letter) {
        let mut state = self.state.borrow_mut();
        if !state.takes_more() {
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
            let (pending, due) = {
                let mut state = self.state.borrow_mut();
                let State { fault, outbox, .. } = &mut *state;
                fault.release(outbox);
                let current = state.stream.as_ref().is_some_and(|current| Rc::ptr_eq(current, &stream));
                if !current || state.closed {
                    break;
                }
                (!state.outbox.is_empty(), state.fault.due())
            };
            tokio::select! {
                () = self.bell.notified() => {}
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
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
    /// Whether a message may be queued; it is lost otherwise.
    fn takes_more(&mut self) -> bool {
        let waiting = self.outbox.bytes() + self.fault.held_bytes();
        let takes = self.stream.is_some() && !self.fault.is_cut() && waiting <= LINK_BYTES_MAX;
        self.dropped += u64::from(!takes);
        takes
    }

    /// Makes frames of the messages and letters of this turn.
    fn seal(&mut self) {
        if self.body.is_empty() && self.letters.is_empty() {
            return;
        }
        let mut held = Outbox::default();
        let holds = self.fault.holds();
        let outbox = if holds { &mut held } else { &mut self.outbox };
        if !self.body.is_empty() {
            peer_frame::put(outbox, peer_frame::MESSAGES, &mut self.body);
        }
        if !self.letters.is_empty() {
            peer_frame::put(outbox, peer_frame::LETTERS, &mut self.letters);
        }
        if holds {
            self.fault.hold(held);
        }
    }

    fn drop_connection(&mut self) {
        self.stream = None;
        self.fault.forget();
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_client::wire::{Frame, PartitionId};
    use coppice_ordering::message::{Heartbeat, Phase2a};
    use coppice_ordering::{Ballot, Batch, Beat, Commands, Instance, ReplicaId, Ticket};
    use tokio::net::TcpListener;

    use super::*;
    use crate::multicast::letter::Word;

    /// Whatever is expected comes within this, or the test fails.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Longer than anything takes that is not held back.
    const DELAY: Duration = Duration::from_millis(300);

    fn letter(n: u64) -> Letter {
        Letter { partition: PartitionId(4), word: Word::Released(Ticket { ballot: Ballot::new(2, 1), n }) }
    }

    fn envelope() -> Envelope {
        let heartbeat = Heartbeat {
            ballot: Ballot::new(2, 1),
            beat: Beat(1),
            decided_upto: Instance(3),
            held_upto: Instance(3),
            released: None,
            lease: Duration::ZERO,
        };
        Envelope { group: 4, to: ReplicaId(2), from: ReplicaId(1), message: heartbeat.into() }
    }

    /// The other end of a link.
    struct Far {
        stream: TcpStream,
        decoder: FrameDecoder,
    }

    impl Far {
        async fn frame(&mut self) -> Frame {
            let next = super::super::rpc::read_frame_into(&self.stream, &mut self.decoder);
            tokio::time::timeout(PATIENCE, next).await.expect("a frame comes").expect("the link stands")
        }
    }

    /// Runs `test` with both ends of a link that has said hello.
    fn linked<F: Future<Output = ()>>(test: impl FnOnce(Rc<Link>, Far) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound").to_string().parse().expect("an address");
            let link = Link::new(NodeId(2), address);
            tokio::task::spawn_local(Rc::clone(&link).run(peer_frame::frame(peer_frame::HELLO, b"me")));
            let (stream, _) = listener.accept().await.expect("it connects");
            let mut far = Far { stream, decoder: FrameDecoder::new(peer_frame::FRAME_BYTES_MAX) };
            assert_eq!(far.frame().await.kind, peer_frame::HELLO);
            test(link, far).await;
        });
    }

    /// Letters once lay here until something else woke the link's task. So the first tickets of a new coordinator came
    /// late or never, the gates of all partitions stayed shut, and after a restart clients saw no leader.
    #[test]
    fn a_letter_leaves_at_the_end_of_its_turn_although_no_message_goes_with_it() {
        linked(|link, mut far| async move {
            for n in 1..4 {
                link.send_letter(&letter(n));
                link.flush(0);
                let frame = far.frame().await;
                assert_eq!((frame.kind, letter::decode(&frame.body)), (peer_frame::LETTERS, Ok(vec![letter(n)])));
            }
        });
    }

    /// A window of ten batches once went through a slow link like one batch of ten times the size.
    #[test]
    fn batches_of_one_turn_come_one_by_one_and_small_messages_together() {
        linked(|link, mut far| async move {
            let batch = |instance| {
                let commands = Commands::new(1, Bytes::from(vec![7; FRAME_BYTES]));
                let (ballot, instance, batch) = (Ballot::new(2, 1), Instance(instance), Batch::Commands(commands));
                let message = Phase2a { ballot, instance, batch, decided_upto: Instance(0), released: None }.into();
                Envelope { message, ..envelope() }
            };
            [batch(1), batch(2), batch(3), envelope(), envelope()].iter().for_each(|envelope| link.send(envelope));
            link.flush(0);
            for messages in [1, 1, 1, 2] {
                let envelopes = peer::decode(far.frame().await.body).expect("messages");
                assert_eq!(envelopes.len(), messages);
            }
        });
    }

    #[test]
    fn a_cut_loses_messages_and_letters_and_ends_with_it() {
        linked(|link, mut far| async move {
            link.set_fault(true, Duration::ZERO);
            link.send(&envelope());
            link.send_letter(&letter(1));
            link.flush(0);
            assert_eq!(link.dropped(), 2);
            link.set_fault(false, Duration::ZERO);
            link.send_letter(&letter(2));
            link.flush(0);
            assert_eq!(letter::decode(&far.frame().await.body), Ok(vec![letter(2)]));
        });
    }

    #[test]
    fn a_slow_link_holds_everything_back_and_keeps_its_order() {
        linked(|link, mut far| async move {
            link.set_fault(false, DELAY);
            let begun = Instant::now();
            link.send(&envelope());
            link.send_letter(&letter(1));
            link.flush(0);
            link.set_fault(false, Duration::ZERO);
            link.send_letter(&letter(2));
            link.flush(0);
            assert_eq!(far.frame().await.kind, peer_frame::MESSAGES);
            assert!(begun.elapsed() >= DELAY);
            assert_eq!(letter::decode(&far.frame().await.body), Ok(vec![letter(1)]));
            assert_eq!(letter::decode(&far.frame().await.body), Ok(vec![letter(2)]));
        });
    }

    #[test]
    fn what_is_held_back_is_lost_with_a_cut() {
        linked(|link, mut far| async move {
            link.set_fault(false, DELAY);
            link.send_letter(&letter(1));
            link.flush(0);
            link.set_fault(true, Duration::ZERO);
            link.set_fault(false, Duration::ZERO);
            link.send_letter(&letter(2));
            link.flush(0);
            assert_eq!(letter::decode(&far.frame().await.body), Ok(vec![letter(2)]));
        });
    }
}
