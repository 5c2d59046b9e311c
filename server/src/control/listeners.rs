//! The ports of a node: who connects is greeted here, then handed to the worker thread that serves it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::TcpListener as StdTcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use coppice_client::channel::{Channel, HandshakeError};
use coppice_client::wire::{Frame, FrameDecoder, Kind};
use coppice_core::handshake::{self, HELLO_BYTES_MAX, Presence, Purpose, refusal_text};
use coppice_core::question::{Answer, Asker, Question};
use coppice_core::wire::peer_frame;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::Handle;
use crate::mailbox::Priority;
use crate::messages::ToControl;
use crate::metrics::Queue;
use crate::net::accept;
use crate::net::handshake::read_frame;
use crate::net::ungreeted::Ungreeted;
use crate::shared::Shared;
use crate::worker_thread::ToWorker;

/// Client connections beyond the limit for as long as others that give way to them are being closed.
const CLOSING_MAX: usize = 64;

/// What the kernel takes of one client's answers before they can go: as much as is written at once.
#[cfg(target_os = "linux")]
const UNSENT_MAX: u32 = 256 << 10;

/// Sockets that were bound before anything else was done, so that a port in use is said at once.
pub struct Listeners {
    /// Clients.
    pub native: StdTcpListener,
    /// Other nodes.
    pub peer: StdTcpListener,
}

impl Listeners {
    /// For the event loop of this thread.
    pub(super) fn open(self) -> std::io::Result<OpenListeners> {
        self.native.set_nonblocking(true)?;
        self.peer.set_nonblocking(true)?;
        Ok(OpenListeners { native: TcpListener::from_std(self.native)?, peer: TcpListener::from_std(self.peer)? })
    }
}

/// The ports on this thread's event loop.
pub(super) struct OpenListeners {
    native: TcpListener,
    peer: TcpListener,
}

impl OpenListeners {
    /// Serves both ports on this thread.
    pub(super) fn serve(self, shared: &Arc<Handle>) {
        crate::task::spawn(clients(Arc::clone(shared), self.native));
        crate::task::spawn(nodes(Arc::clone(shared), self.peer));
    }

    /// Tells whoever comes how far the node's recovery is, until `done`.
    pub(super) async fn refuse_until<T>(&self, shared: &Arc<Handle>, done: impl Future<Output = T>) -> T {
        tokio::pin!(done);
        let mut tell = tokio::time::interval_at(tokio::time::Instant::now() + RECOVERY_TOLD, RECOVERY_TOLD);
        let refusals = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let keepalive = shared.config.keepalive;
            let (accepted, is_client) = tokio::select! {
                biased;
                done = &mut done => return done,
                _ = tell.tick() => {
                    tracing::info!(progress = shared.recovery.text(), "recovering");
                    continue;
                }
                client = accept(&self.native, keepalive) => (client, true),
                node = accept(&self.peer, keepalive) => (node, false),
            };
            let (Some((stream, _)), Ok(place)) = (accepted, Arc::clone(&refusals).try_acquire_owned()) else {
                continue;
            };
            let shared = Arc::clone(shared);
            crate::task::spawn(async move {
                let refusing = async {
                    let secured =
                        if is_client { secure(&shared, stream).await } else { secure_node(&shared, stream).await };
                    if let Some(stream) = secured {
                        let frame = handshake::not_yet(&shared.recovery.text());
                        say_no(stream, frame).await;
                    }
                };
                _ = tokio::time::timeout(shared.config.handshake_timeout, refusing).await;
                drop(place);
            });
        }
    }
}

/// How often a node that recovers says how far that is.
const RECOVERY_TOLD: Duration = Duration::from_secs(2);

/// Clients whose TLS handshake is not over. One more ends the oldest of them: a handshake takes two round trips, so
/// only the slow are in its way.
const HANDSHAKES_MAX: usize = 256;

/// Accepts clients, one worker thread after the other.
pub(crate) async fn clients(shared: Arc<Handle>, listener: TcpListener) {
    let mut next = 0;
    let mut handshakes: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Some((stream, _)) = accept(&listener, shared.config.keepalive).await else { continue };
        leave_little_unsent(&stream);
        // A full worker thread makes way by closing others, which takes a moment.
        if shared.usage.connections() >= shared.config.limits.connections + CLOSING_MAX {
            shared.metrics.worker(0).rejected(Queue::Connections);
            continue;
        }
        let (thread, place) = (next % shared.workers.count(), Place::take(&shared));
        next += 1;
        if shared.tls().is_none() {
            place.give(Channel::Plain(stream), thread);
            continue;
        }
        handshakes.retain(|handshake| !handshake.is_finished());
        if handshakes.len() >= HANDSHAKES_MAX
            && let Some(oldest) = handshakes.pop_front()
        {
            oldest.abort();
        }
        let handshake = crate::task::spawn(async move {
            let timeout = place.0.config.handshake_timeout;
            if let Ok(Some(channel)) = tokio::time::timeout(timeout, secure(&place.0, stream)).await {
                place.give(channel, thread);
            }
        });
        handshakes.push_back(handshake.abort_handle());
    }
}

/// A connection of a client, counted until it is dropped or given to a worker thread.
struct Place(Arc<Handle>);

impl Place {
    fn take(shared: &Arc<Handle>) -> Place {
        shared.usage.connection_opened();
        Place(Arc::clone(shared))
    }

    /// The worker thread counts it from now on.
    fn give(self, channel: Channel, thread: usize) {
        let Ok(stream) = channel.park() else { return };
        match self.0.workers.push(thread, Priority::Client, ToWorker::Client(stream)) {
            Ok(()) => self.0.usage.connection_opened(),
            Err(_) => self.0.metrics.worker(thread).rejected(Queue::Mailbox),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.usage.connection_closed();
    }
}

/// Where a connection comes from, for the log: a number in it makes no new kind of event.
fn place(stream: &TcpStream) -> (String, u16) {
    stream.peer_addr().map_or_else(|_| ("?".into(), 0), |address| (address.ip().to_string(), address.port()))
}

/// The TLS handshake of a client, if the node has certificates. Who speaks no TLS is told so.
async fn secure(shared: &Shared, stream: TcpStream) -> Option<Channel> {
    let (from, port) = place(&stream);
    match Channel::accept_client(stream, shared.tls()).await {
        Ok(channel) => return Some(channel),
        Err(HandshakeError::NoTls(stream)) => {
            refuse(Channel::Plain(stream), "this port speaks TLS: give the authority's certificate (--tls-ca FILE)")
                .await;
        }
        Err(HandshakeError::Failed(error)) => tracing::info!(%from, port, %error, "a client's TLS handshake failed"),
    }
    None
}

/// The TLS handshake of a node, if there are certificates.
async fn secure_node(shared: &Shared, stream: TcpStream) -> Option<Channel> {
    let (from, port) = place(&stream);
    match Channel::accept_node(stream, shared.tls()).await {
        Ok(channel) => return Some(channel),
        Err(HandshakeError::NoTls(stream)) => {
            tracing::warn!(%from, port, "a connection without TLS at the peer port");
            refuse(Channel::Plain(stream), "this is the port of other nodes, and they speak TLS (tls.ca, tls.cert)")
                .await;
        }
        Err(HandshakeError::Failed(error)) => tracing::warn!(%from, port, %error, "a node's TLS handshake failed"),
    }
    None
}

/// Questions of other nodes, and snapshots for them, under way at once. Beyond, they are refused, and come again.
const QUESTIONS_MAX: usize = 256;

/// The same for what forming a cluster and adding a node ask: whoever reaches the port may, and takes no place from the
/// nodes of the cluster.
const FORMING_QUESTIONS_MAX: usize = 32;

/// Longest question, with its header: a map of all partitions.
const QUESTION_BYTES_MAX: usize = 4 << 20;

/// How long another node may take to read an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts nodes. Whoever has proved to be one is served for what it came.
pub(crate) async fn nodes(shared: Arc<Handle>, listener: TcpListener) {
    let mut next = 0;
    let ungreeted: Rc<RefCell<Ungreeted<AbortHandle>>> = Rc::default();
    let places = Rc::new(Places::default());
    loop {
        let Some((stream, from)) = accept(&listener, shared.config.keepalive).await else { continue };
        let thread = next % shared.workers.count();
        next += 1;
        let (shared, places, crowd) = (Arc::clone(&shared), Rc::clone(&places), Rc::clone(&ungreeted));
        let greeting = crate::task::spawn(async move {
            let timeout = shared.config.handshake_timeout;
            if let Ok(Some(peer)) = tokio::time::timeout(timeout, greet(&shared, stream)).await {
                // A stranger can greet too, as one that belongs to no cluster.
                if peer.purpose != Purpose::Forming {
                    crowd.borrow_mut().greeted(from.ip());
                }
                crate::task::spawn(serve(shared, peer, thread, places));
            }
        });
        let surplus = ungreeted.borrow_mut().add(from.ip(), greeting.abort_handle(), AbortHandle::is_finished);
        surplus.inspect(AbortHandle::abort);
        // A greeting that is here already is read before the next connection is taken.
        tokio::task::yield_now().await;
    }
}

/// Places of questions, and of snapshots, under way.
struct Places {
    questions: Semaphore,
    forming: Semaphore,
}

impl Default for Places {
    fn default() -> Places {
        Places { questions: Semaphore::new(QUESTIONS_MAX), forming: Semaphore::new(FORMING_QUESTIONS_MAX) }
    }
}

/// A connection whose ends have said who they are.
pub(super) struct ProvenPeer {
    /// The connection.
    pub stream: Channel,
    /// Came behind the greeting.
    pub received: BytesMut,
    pub purpose: Purpose,
    /// Who is there; none: a process that belongs to no cluster yet.
    pub from: Option<Presence>,
}

/// Hears who is calling and says who answers, or refuses.
async fn greet(shared: &Shared, stream: TcpStream) -> Option<ProvenPeer> {
    let mut stream = secure_node(shared, stream).await?;
    let mut decoder = FrameDecoder::new(HELLO_BYTES_MAX);
    let frame = match read_frame(&mut stream, &mut decoder).await {
        Ok(frame) => frame,
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            refuse(stream, &format!("this is the port of other nodes: {error}")).await;
            return None;
        }
        Err(_) => return None,
    };
    let map = shared.cluster.map();
    let judge = |them: &Presence| shared.judge(them);
    match handshake::accept(&frame, stream.names(), shared.own.presence(), &map, judge) {
        Ok((hello, welcome)) => {
            stream.write_all(&welcome).await.ok()?;
            Some(ProvenPeer { stream, received: decoder.into_rest(), purpose: hello.purpose, from: hello.from })
        }
        Err((node, objection)) => {
            // A process that belongs to no cluster refuses no node.
            if let Some(node) = node.filter(|_| shared.own.presence().is_some()) {
                // Said on both sides: each operator looks at the own log first.
                tracing::warn!(%node, reason = objection.text(), "a node is refused");
            }
            say_no(stream, objection.frame()).await;
            None
        }
    }
}

async fn serve(shared: Arc<Handle>, peer: ProvenPeer, thread: usize, places: Rc<Places>) {
    if peer.purpose == Purpose::Messages {
        let ProvenPeer { stream, received, from: Some(them), .. } = peer else { return };
        let Ok(stream) = stream.park() else { return };
        let slot = shared.peer_slots().take(them.node);
        let input = ToWorker::Peer { node: them.node, boot_id: them.claim.boot_id, stream, received, slot };
        // A full mailbox closes the connection; the other node tries again.
        _ = shared.workers.push(thread, Priority::Client, input);
        return;
    }
    let of_cluster = peer.purpose != Purpose::Forming;
    let places = if of_cluster { &places.questions } else { &places.forming };
    let Ok(_permit) = places.try_acquire() else {
        return refuse(peer.stream, "this node answers too many questions already").await;
    };
    match peer.purpose {
        Purpose::Snapshot => super::snapshots::send(&shared, peer).await,
        _ => answer(&shared, peer).await,
    }
}

/// The first frame behind the greeting.
pub(super) async fn first_frame(
    shared: &Shared,
    peer: &mut ProvenPeer,
    (kind, bytes_max): (u8, usize),
) -> Option<Frame> {
    let mut decoder = FrameDecoder::new(bytes_max);
    decoder.feed(&std::mem::take(&mut peer.received));
    let reading = read_frame(&mut peer.stream, &mut decoder);
    let frame = tokio::time::timeout(shared.config.handshake_timeout, reading).await.ok()?.ok()?;
    if Kind::from_u8(frame.kind) == Some(Kind::Refused) {
        let node = peer.from.map(|them| them.node).unwrap_or_default();
        let reason = refusal_text(&frame.body);
        tracing::warn!(%node, %reason, "another node refuses this one");
        return None;
    }
    (frame.kind == kind).then_some(frame)
}

/// A client that does not read leaves little in the kernel, whose buffers nothing here counts; otherwise they grow to
/// megabytes each. What is under way is not bounded by it, so long links are used as before.
fn leave_little_unsent(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_MAX) {
        tracing::debug!(%error, "unsent bytes of a connection are not bounded");
    }
}

async fn answer(shared: &Arc<Handle>, mut peer: ProvenPeer) {
    let wanted = (peer_frame::CONTROL, QUESTION_BYTES_MAX);
    let Some(frame) = first_frame(shared, &mut peer, wanted).await else { return };
    let Ok(question) = postcard::from_bytes::<Question>(&frame.body) else {
        return refuse(peer.stream, "the question cannot be read").await;
    };
    let ProvenPeer { mut stream, purpose, from, .. } = peer;
    let (sender, receiver) = oneshot::channel();
    shared.tell_control(ToControl::Question {
        asker: Box::new(Asker { purpose, from }),
        question: Box::new(question),
        reply: sender,
    });
    let answer = receiver.await.unwrap_or_else(|_| Answer::Refused("the node is stopping".into()));
    let body = postcard::to_stdvec(&answer).expect("answers are plain data");
    let frame = peer_frame::frame(peer_frame::CONTROL_REPLY, &body);
    _ = tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&frame)).await;
}

async fn refuse(stream: Channel, text: &str) {
    say_no(stream, handshake::refusal(text)).await;
}

async fn say_no(mut stream: Channel, frame: BytesMut) {
    let telling = async {
        _ = stream.write_all(&frame).await;
        stream.shutdown().await;
    };
    _ = tokio::time::timeout(ANSWER_TIMEOUT, telling).await;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Without the bound, Linux takes some three megabytes of them.
    #[tokio::test]
    async fn answers_that_nobody_reads_stay_out_of_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _reads_nothing = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("accepted");
        let (stream, _) = accept(&listener, Duration::from_secs(10)).await.expect("accepted");
        leave_little_unsent(&stream);
        let (answer, mut taken) = (vec![0; 64 << 10], 0);
        let full = Duration::from_millis(500);
        while tokio::time::timeout(full, stream.writable()).await.is_ok() && taken < 64 << 20 {
            match stream.try_write(&answer) {
                Ok(count) => taken += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert!(taken < 1 << 20, "{taken} bytes");
    }
}
