//! Doors of a node: who connects is greeted here, then handed to the shard that serves it.

use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::{FRAME_BYTES_MAX, Frame, FrameDecoder, Refusal};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::ToControl;
use crate::datadir::claim::Claim;
use crate::mailbox::Lane;
use crate::metrics::Queue;
use crate::net::peer_frame;
use crate::net::rpc::{Answer, PEER_PROTOCOL, PeerHello, Question, read_frame_into};
use crate::shard::ToShard;
use crate::shared::Shared;

/// Sockets that were bound before anything else was done, so that a port in use is said at once.
pub struct Listeners {
    /// Clients.
    pub native: StdTcpListener,
    /// Other nodes.
    pub peer: StdTcpListener,
}

impl Listeners {
    /// Serves both doors on this thread.
    pub(super) fn serve(self, shared: &Arc<Shared>) -> std::io::Result<()> {
        self.native.set_nonblocking(true)?;
        self.peer.set_nonblocking(true)?;
        tokio::task::spawn_local(clients(Arc::clone(shared), TcpListener::from_std(self.native)?));
        tokio::task::spawn_local(nodes(Arc::clone(shared), TcpListener::from_std(self.peer)?));
        Ok(())
    }
}

/// Accepts clients, one shard after the other.
pub(crate) async fn clients(shared: Arc<Shared>, listener: TcpListener) {
    let mut next = 0;
    loop {
        let Some(stream) = accept(&listener, shared.config.keepalive).await else { continue };
        if shared.connections() >= shared.config.limits.connections {
            shared.metrics.shard(0).busy(Queue::Connections);
            continue;
        }
        let Ok(stream) = stream.into_std() else { continue };
        let shard = next % shared.shards();
        next += 1;
        shared.connection_opened();
        if shared.sender(shard).push(Lane::Client, ToShard::Client(stream)).is_err() {
            shared.connection_closed();
            shared.metrics.shard(shard).busy(Queue::Mailbox);
        }
    }
}

/// Accepts nodes: one that sends messages goes to a shard, one that asks is answered.
pub(crate) async fn nodes(shared: Arc<Shared>, listener: TcpListener) {
    let mut next = 0;
    loop {
        let Some(stream) = accept(&listener, shared.config.keepalive).await else { continue };
        let shard = next % shared.shards();
        next += 1;
        let shared = Arc::clone(&shared);
        tokio::task::spawn_local(async move {
            let timeout = shared.config.handshake_timeout;
            // Whoever has not said who it is gets no more room than a client.
            let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
            let frame = match tokio::time::timeout(timeout, read_frame_into(&stream, &mut decoder)).await {
                Ok(Ok(frame)) => frame,
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                    return refuse(stream, format!("this is the port of other nodes: {error}")).await;
                }
                Ok(Err(_)) | Err(_) => return,
            };
            match frame.kind {
                peer_frame::HELLO => greet(&shared, stream, &frame, decoder, shard).await,
                peer_frame::CONTROL => answer(&shared, stream, &frame).await,
                peer_frame::SNAPSHOT_GET => super::snapshots::send(&shared, stream, &frame).await,
                kind => {
                    refuse(stream, format!("a frame of kind {kind} does not open a connection between nodes")).await
                }
            }
        });
    }
}

async fn accept(listener: &TcpListener, keepalive: Duration) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => {
            _ = stream.set_nodelay(true);
            // Whoever is gone without a word is noticed after a few unanswered probes.
            let probes = socket2::TcpKeepalive::new().with_time(keepalive).with_interval(keepalive / 3);
            _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&probes);
            Some(stream)
        }
        Err(error) => {
            // Out of descriptors, mostly: give the connections that stand a chance to end.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn greet(shared: &Arc<Shared>, stream: TcpStream, frame: &Frame, decoder: FrameDecoder, shard: usize) {
    let Ok(hello) = postcard::from_bytes::<PeerHello>(&frame.body) else {
        return refuse(stream, "the greeting cannot be read".into()).await;
    };
    let Some(own) = shared.identity() else {
        return refuse(stream, "this node belongs to no cluster yet".into()).await;
    };
    if hello.protocol != PEER_PROTOCOL {
        let text = format!("peer protocol {} is not {PEER_PROTOCOL}", hello.protocol);
        return refuse(stream, text).await;
    }
    if hello.cluster != own.cluster {
        // Said on both sides: each operator looks at the own log first.
        tracing::warn!(node = %hello.node, theirs = %hello.cluster, own = %own.cluster, "a node of another cluster is refused");
        let text = format!("you belong to cluster {}, this node to cluster {}", hello.cluster, own.cluster);
        return refuse(stream, text).await;
    }
    if hello.to != own.node {
        return refuse(stream, format!("you mean {}, this is {}", hello.to, own.node)).await;
    }
    let claim = Claim { incarnation: hello.incarnation, recovered_lsn: hello.recovered_lsn };
    if let Err(error) = shared.judge(hello.node, claim) {
        tracing::warn!(node = %hello.node, %error, "a node is refused");
        return refuse(stream, error.to_string()).await;
    }
    let received = decoder.into_rest();
    let Ok(stream) = stream.into_std() else { return };
    let input = ToShard::Peer { node: hello.node, stream, received };
    // A full mailbox closes the connection; the other node tries again.
    _ = shared.sender(shard).push(Lane::Client, input);
}

async fn answer(shared: &Arc<Shared>, mut stream: TcpStream, frame: &Frame) {
    let Ok(question) = postcard::from_bytes::<Question>(&frame.body) else {
        return refuse(stream, "the question cannot be read".into()).await;
    };
    let (sender, receiver) = oneshot::channel();
    shared.tell_control(ToControl::Question { question, reply: sender });
    let answer = receiver.await.unwrap_or_else(|_| Answer::Refused("the node is stopping".into()));
    let body = postcard::to_stdvec(&answer).expect("answers are plain data");
    _ = stream.write_all(&peer_frame::frame(peer_frame::CONTROL_REPLY, &body)).await;
}

async fn refuse(mut stream: TcpStream, text: String) {
    let mut out = bytes::BytesMut::new();
    Refusal::Denied { text }.encode(&mut out, 0);
    _ = stream.write_all(&out).await;
    _ = stream.shutdown().await;
}
