use bytes::Bytes;
use coppice_client::wire::{ClusterId, Frame, PartitionId};
use coppice_core::handshake::{PEER_PROTOCOL, PeerWelcome, Purpose, frame_of, read_hello};
use coppice_core::multicast::message::MulticastBody;
use coppice_ordering::message::{Heartbeat, Phase2a};
use coppice_ordering::{Ballot, Batch, Commands, HeartbeatRound, Instance, ReplicaId, Ticket};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::runtime::LocalOptions;

use super::*;

/// Whatever is expected comes within this, or the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A link that is in doubt connects again within this.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// An echo is in doubt after less.
const LATE: Duration = Duration::from_secs(1);

/// Longer than anything takes that is not held back.
const DELAY: Duration = Duration::from_millis(300);

fn message(n: u64) -> MulticastMessage {
    MulticastMessage::new(PartitionId(4), MulticastBody::Released(Ticket { ballot: Ballot::new(2, 1), n }))
}

fn envelope() -> Envelope {
    let heartbeat = Heartbeat {
        ballot: Ballot::new(2, 1),
        round: HeartbeatRound(1),
        decided_upto: Instance(3),
        held_upto: Instance(3),
        released: None,
        lease: Duration::ZERO,
        quiesce: Duration::ZERO,
    };
    Envelope { group: 4, to: ReplicaId(2), from: ReplicaId(1), message: heartbeat.into() }
}

/// The other end of a link.
struct Far {
    listener: Rc<TcpListener>,
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Far {
    /// The next connection, which says hello.
    async fn accept(listener: &Rc<TcpListener>) -> Far {
        let accepted = tokio::time::timeout(CONNECTS_WITHIN, listener.accept()).await;
        let (stream, _) = accepted.expect("it connects").expect("a connection");
        let decoder = FrameDecoder::new(peer_frame::FRAME_BYTES_MAX);
        let mut far = Far { listener: Rc::clone(listener), stream, decoder };
        let said = read_hello(&far.next().await);
        assert_eq!(said.map(|hello| (hello.purpose, hello.to)), Ok((Purpose::Messages, Some(NodeId(2)))));
        far
    }

    /// The next connection, which is answered by who is meant.
    async fn greet(listener: &Rc<TcpListener>) -> Far {
        let mut far = Far::accept(listener).await;
        far.answer(presence(2)).await;
        far
    }

    async fn answer(&mut self, from: Presence) {
        let welcome = PeerWelcome { protocol: PEER_PROTOCOL, from: Some(from) };
        let welcome = frame_of(peer_frame::WELCOME, &welcome);
        self.stream.write_all(&welcome).await.expect("the link stands");
    }

    async fn next(&mut self) -> Frame {
        let next = handshake::read_frame(&mut self.stream, &mut self.decoder);
        tokio::time::timeout(PATIENCE, next).await.expect("a frame comes").expect("the link stands")
    }

    /// The next frame that asks for no echo.
    async fn frame(&mut self) -> Frame {
        loop {
            let frame = self.next().await;
            if frame.kind != peer_frame::ECHO {
                return frame;
            }
        }
    }
}

fn presence(node: u32) -> Presence {
    Presence { node: NodeId(node), ..Presence::default() }
}

fn opening() -> Opening {
    let from = Some(presence(1));
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Messages, from, to: Some(NodeId(2)) };
    Opening { hello, tls: None, judge: Box::new(|_| Ok(())), vetted: Box::new(|_| ()) }
}

/// Waits until the link uses another connection than when this was last called.
async fn stands(link: &Link) {
    let deadline = Instant::now() + PATIENCE;
    while !std::mem::take(&mut link.state.borrow_mut().fresh) {
        assert!(Instant::now() < deadline, "it never stands");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs `test` with both ends of a link that stands.
fn linked<F: Future<Output = ()>>(test: impl FnOnce(Rc<Link>, Far) -> F) {
    linked_until(|_| {}, test);
}

/// The same; `gone` is told when the process at the far end has ended.
fn linked_until<F: Future<Output = ()>>(gone: impl Fn(NodeId) + 'static, test: impl FnOnce(Rc<Link>, Far) -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default()).expect("a runtime");
    runtime.block_on(async {
        let listener = Rc::new(TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let address = listener.local_addr().expect("bound").to_string().parse().expect("an address");
        let link = Link::new(NodeId(2), address);
        crate::task::spawn(Rc::clone(&link).run(opening(), gone));
        let far = Far::greet(&listener).await;
        drop(listener);
        stands(&link).await;
        test(link, far).await;
    });
}

/// Multicast messages once lay here until something else woke the link's task. So the first tickets of a new
/// coordinator came late or never, the gates of all partitions stayed shut, and after a restart clients saw no leader.
#[test]
fn a_multicast_message_leaves_at_the_end_of_its_turn_although_no_other_goes_with_it() {
    linked(|link, mut far| async move {
        for n in 1..4 {
            link.send_multicast(&message(n));
            link.flush(0, false, Clock::now());
            let frame = far.frame().await;
            assert_eq!((frame.kind, message::decode(&frame.body)), (peer_frame::MULTICAST, Ok(vec![message(n)])));
        }
    });
}

#[test]
fn a_full_disk_is_told_once_and_room_again() {
    linked(|link, mut far| async move {
        for full in [true, true, false, false, true] {
            link.flush(0, full, Clock::now());
        }
        for told in [1, 0, 1] {
            let frame = far.frame().await;
            assert_eq!((frame.kind, &frame.body[..]), (peer_frame::FULL, &[told][..]));
        }
    });
}

/// Once whoever answered at an address was sent everything, and dropped it: a node of another cluster, or another
/// node of this one behind an old address.
#[test]
fn nothing_is_sent_to_who_is_not_meant() {
    linked(|link, far| async move {
        let Far { listener, stream, .. } = far;
        drop(stream);
        let foreign = Presence { cluster: ClusterId(9), ..presence(2) };
        for wrong in [presence(3), foreign] {
            let mut far = Far::accept(&listener).await;
            far.answer(wrong).await;
            link.send(&envelope());
            link.flush(0, false, Clock::now());
            // Whoever is believed hears nothing.
            let frame = tokio::time::timeout(Duration::from_secs(20), far.next()).await.expect("a refusal");
            assert_eq!(Kind::from_u8(frame.kind), Some(Kind::Refused), "why is said at the other end too");
            assert!(!link.is_up());
        }
        let _stands = Far::greet(&listener).await;
        stands(&link).await;
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
        link.flush(0, false, Clock::now());
        for messages in [1, 1, 1, 2] {
            let envelopes = peer::decode(far.frame().await.body).expect("messages");
            assert_eq!(envelopes.len(), messages);
        }
    });
}

#[test]
fn a_cut_loses_messages_and_multicast_and_ends_with_it() {
    linked(|link, mut far| async move {
        link.set_fault(true, Duration::ZERO);
        link.send(&envelope());
        link.send_multicast(&message(1));
        link.flush(0, false, Clock::now());
        assert_eq!(link.dropped(), 2);
        link.set_fault(false, Duration::ZERO);
        link.send_multicast(&message(2));
        link.flush(0, false, Clock::now());
        assert_eq!(message::decode(&far.frame().await.body), Ok(vec![message(2)]));
    });
}

#[test]
fn a_slow_link_holds_everything_back_and_keeps_its_order() {
    linked(|link, mut far| async move {
        link.set_fault(false, DELAY);
        let begun = Instant::now();
        link.send(&envelope());
        link.send_multicast(&message(1));
        link.flush(0, false, Clock::now());
        link.set_fault(false, Duration::ZERO);
        link.send_multicast(&message(2));
        link.flush(0, false, Clock::now());
        assert_eq!(far.frame().await.kind, peer_frame::MESSAGES);
        assert!(begun.elapsed() >= DELAY);
        assert_eq!(message::decode(&far.frame().await.body), Ok(vec![message(1)]));
        assert_eq!(message::decode(&far.frame().await.body), Ok(vec![message(2)]));
    });
}

#[test]
fn what_is_held_back_is_lost_with_a_cut() {
    linked(|link, mut far| async move {
        link.set_fault(false, DELAY);
        link.send_multicast(&message(1));
        link.flush(0, false, Clock::now());
        link.set_fault(true, Duration::ZERO);
        link.set_fault(false, Duration::ZERO);
        link.send_multicast(&message(2));
        link.flush(0, false, Clock::now());
        assert_eq!(message::decode(&far.frame().await.body), Ok(vec![message(2)]));
    });
}

/// A connection that the kernel gave up for a while, after packets were lost, once stayed in use: a node was deaf
/// for as long again as it had been cut off.
#[test]
fn a_silent_connection_is_replaced_by_one_that_works() {
    linked(|link, far| async move {
        let begun = Clock::now();
        link.send(&envelope());
        link.flush(0, false, begun);
        link.flush(0, false, begun + LATE);
        let mut new = Far::greet(&far.listener).await;
        stands(&link).await;
        link.send_multicast(&message(1));
        link.flush(0, false, begun + LATE);
        assert_eq!(new.next().await.kind, peer_frame::ECHO, "it is asked at once");
        assert_eq!(message::decode(&new.next().await.body), Ok(vec![message(1)]));
        // It was not closed from the other end.
        drop(far);
    });
}

#[test]
fn a_connection_that_gives_an_echo_stays() {
    linked(|link, mut far| async move {
        let begun = Clock::now();
        link.send(&envelope());
        link.flush(0, false, begun);
        assert_eq!(far.next().await.kind, peer_frame::ECHO);
        let echo = peer_frame::frame(peer_frame::ECHO, &[]);
        far.stream.writable().await.expect("the link stands");
        assert_eq!(far.stream.try_write(&echo).expect("the link stands"), echo.len());
        // The next question is asked when this one is answered, and not before.
        let deadline = Instant::now() + CONNECTS_WITHIN;
        while !link.state.borrow_mut().silence.asks(begun + LATE) {
            assert!(Instant::now() < deadline, "the echo is heard");
            tokio::task::yield_now().await;
        }
        assert!(!link.state.borrow().doubted);
    });
}

#[test]
fn a_process_that_has_ended_is_told_once_and_one_that_closed_a_connection_is_not() {
    let told = Rc::new(std::cell::Cell::new(0));
    let count = Rc::clone(&told);
    linked_until(
        move |_| count.set(count.get() + 1),
        |_, far| async move {
            let Far { listener, stream, .. } = far;
            drop(stream);
            let again = Far::greet(&listener).await;
            assert_eq!(told.get(), 0, "it answers");
            drop((again, listener));
            let deadline = Instant::now() + PATIENCE;
            while told.get() == 0 {
                assert!(Instant::now() < deadline, "nobody is told");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(DELAY).await;
            assert_eq!(told.get(), 1);
        },
    );
}

#[cfg(feature = "mutants")]
#[test]
fn an_answerer_that_is_not_checked_is_caught() {
    let test = "net::link::tests::nothing_is_sent_to_who_is_not_meant";
    planted::assert_caught("answerer_not_checked", test);
}

#[cfg(feature = "mutants")]
#[test]
fn a_silence_that_is_borne_is_caught() {
    let test = "net::link::tests::a_silent_connection_is_replaced_by_one_that_works";
    planted::assert_caught("silence_is_borne", test);
}
