//! Limits on the connections of admin HTTP: how many, and how long one may stay silent. Without them a few forgotten
//! sockets would use up the process's descriptors.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Probes, a scraper and a few people with a browser; beyond, a connection waits in the backlog for a free place.
const CONNECTIONS_MAX: usize = 64;

/// A connection on which neither side moved a byte for this long is closed. Longer than a scrape interval of 15 s.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// From the first byte of a request until the beginning of its answer, and from the accept until the first byte. Who
/// sends a byte now and then would hold a place for ever. No answer takes longer than two seconds.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A listener that holds back while 64 connections are open.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    /// Over a listener.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        // axum's own accept logs what fails and waits when descriptors have run out.
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        let end = Box::pin(tokio::time::sleep(REQUEST_MAX));
        (Connection { stream, end, asking: true, _place: place }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection; it gives its place back when dropped.
pub struct Connection {
    stream: TcpStream,
    /// It is closed then, if nothing can be read or written.
    end: Pin<Box<Sleep>>,
    /// A request has begun and no answer yet.
    asking: bool,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn ends_after(&mut self, time: Duration) {
        self.end.as_mut().reset(Instant::now() + time);
    }

    /// What is still pending fails when the time is over.
    fn bounded<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, into) else { return self.bounded(cx) };
        if !std::mem::replace(&mut self.asking, true) {
            self.ends_after(REQUEST_MAX);
        }
        // More of a request that takes too long is not read.
        match self.bounded(cx) {
            Poll::Ready(late) => Poll::Ready(read.and(late)),
            Poll::Pending => Poll::Ready(read),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) else { return self.bounded(cx) };
        self.asking = false;
        self.ends_after(IDLE_MAX);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
