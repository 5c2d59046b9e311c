//! Accepting connections.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// The next connection; none: it could not be taken, after a pause.
pub async fn accept(listener: &TcpListener, keepalive: Duration) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok((stream, from)) => {
            _ = stream.set_nodelay(true);
            // Whoever is gone without a word is noticed after a few unanswered probes.
            let probes = socket2::TcpKeepalive::new().with_time(keepalive).with_interval(keepalive / 3);
            _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&probes);
            Some((stream, from))
        }
        Err(error) => {
            // Out of descriptors, mostly: give the connections that stand a chance to end.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}
