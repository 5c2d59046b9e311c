//! Accepts the connections of one thread of the RESP port.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use coppice_client::channel::{Channel, HandshakeError};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::idle::{self, Idle};
use super::{Node, STOP_TIMEOUT, Thread, connection};
use crate::metrics::Queue;

/// TLS handshakes that are not over. One more ends the oldest of them, as at the native port.
const HANDSHAKES_MAX: usize = 256;

/// One part in so many of `limits.connections` is each port's own, however many come to the other one.
const OWN_SHARE: usize = 16;

/// A connection, counted until it is dropped.
pub struct Place(Arc<Node>);

impl Place {
    fn take(node: &Arc<Node>) -> Place {
        node.shared.usage.connection_opened();
        node.shared.metrics.resp().opened();
        Place(Arc::clone(node))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.usage.connection_closed();
        self.0.shared.metrics.resp().closed();
    }
}

/// Until the node stops.
pub async fn serve(node: Arc<Node>, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let idle = Idle::new(node.shared.config.busy_poll);
    let (clients, registry) = (Default::default(), Default::default());
    let thread = Rc::new(Thread { node: Arc::clone(&node), clients, registry, idle });
    let looking = tokio::task::spawn_local(idle::poll(Rc::clone(&thread)));
    let mut users = node.shared.cluster.access_changes();
    let mut connections = JoinSet::new();
    let mut handshakes: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => break,
            // A user may be gone whose connections hear of nothing else.
            _ = users.changed() => {
                thread.registry.wake_all();
                continue;
            }
            _ = connections.join_next(), if !connections.is_empty() => continue,
            accepted = crate::net::accept(&listener, node.shared.config.keepalive) => accepted,
        };
        let Some((stream, _)) = accepted else { continue };
        if is_full(&node) && !thread.registry.make_way() {
            node.shared.metrics.worker(0).rejected(Queue::Connections);
            say(stream, b"-ERR max number of clients reached (limits.connections)\r\n").await;
            continue;
        }
        let (place, thread, stopped) = (Place::take(&node), Rc::clone(&thread), stopped.clone());
        let secured = node.shared.tls().is_some();
        handshakes.retain(|handshake| !handshake.is_finished());
        if secured && handshakes.len() >= HANDSHAKES_MAX {
            handshakes.pop_front().inspect(AbortHandle::abort);
        }
        // Told when the handshake is over: from then on the connection is no handshake that may be ended.
        let handshake = crate::task::spawn({
            let node = Arc::clone(&node);
            async move {
                let timeout = node.shared.config.handshake_timeout;
                tokio::time::timeout(timeout, secure(&node, stream)).await.ok().flatten()
            }
        });
        if secured {
            handshakes.push_back(handshake.abort_handle());
        }
        connections.spawn_local(async move {
            let _place = place;
            if let Ok(Some(channel)) = handshake.await {
                connection::serve(thread, channel, stopped).await;
            }
        });
    }
    looking.abort();
    // What is under way is answered, and no request is read any more.
    _ = tokio::time::timeout(STOP_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

/// Whether one more needs another's place.
fn is_full(node: &Node) -> bool {
    let max = node.shared.config.limits.connections;
    let own = max.div_ceil(OWN_SHARE);
    node.shared.usage.connections() + own >= max && node.shared.metrics.resp().connections() >= own
}

async fn say(mut stream: TcpStream, text: &[u8]) {
    // The socket's buffer is empty, so this waits for nobody.
    _ = stream.try_write(text);
    _ = stream.shutdown().await;
}

/// The TLS handshake, if the node has certificates. Who speaks no TLS is told so.
async fn secure(node: &Node, stream: TcpStream) -> Option<Channel> {
    match Channel::accept_client(stream, node.shared.tls()).await {
        Ok(channel) => return Some(channel),
        Err(HandshakeError::NoTls(stream)) => {
            say(
                stream,
                b"-ERR this port speaks TLS: give the authority's certificate (redis-cli --tls --cacert FILE)\r\n",
            )
            .await;
        }
        Err(HandshakeError::Failed(error)) => tracing::debug!(%error, "a RESP client's TLS handshake failed"),
    }
    None
}
