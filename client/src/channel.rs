//! A connection that carries frames, plain or inside TLS. Both have the shape of tokio's `TcpStream`: read what has
//! come, write what the socket takes, wait for either. The plain one costs what the socket itself costs.
//!
//! Inside TLS nothing is buffered that was read: what a system call brought is decrypted into the caller's buffer, but
//! for the record that has not come whole. What is written is bounded by `UNSENT_BYTES_MAX`.

mod blocking;
mod stream;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IoSlice, Write};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use rustls::Connection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

pub use self::blocking::BlockingChannel;
use crate::resolve;
use crate::tls::names::{self, Names};
use crate::tls::{Tls, explain};
use crate::wire::NodeId;

/// Encrypted bytes that wait for the socket at most: four full records, one system call.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// Encrypted bytes that one system call reads at most.
const READ_BYTES_MAX: usize = 64 << 10;

/// What a record has beside its content.
const RECORD_OVERHEAD: usize = 64;

/// Bytes of a handshake that one system call reads.
const HANDSHAKE_READ_BYTES: usize = 4 << 10;

/// The first byte of every handshake of TLS.
const HANDSHAKE_RECORD: u8 = 22;

thread_local! {
    /// Where encrypted bytes are read to; empty between two reads.
    static ENCRYPTED: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES_MAX]);
}

/// See the module.
#[derive(Debug)]
pub enum Channel {
    /// As it is.
    Plain(TcpStream),
    /// Inside TLS.
    Secured(Box<TlsChannel>),
}

/// A connection inside TLS, after its handshake.
#[derive(Debug)]
pub struct TlsChannel {
    stream: TcpStream,
    session: RefCell<TlsSession>,
    /// Bytes that were decrypted and not read, or an end, need no socket to be readable.
    ready: Cell<bool>,
    names: Option<Names>,
    generation: u64,
}

#[derive(Debug)]
struct TlsSession {
    tls: Connection,
    /// What came together with the end of the handshake.
    early: BytesMut,
    /// The other end has said that it says no more.
    ended: bool,
}

/// Why there is no connection inside TLS.
#[derive(Debug)]
pub enum HandshakeError {
    /// The other end speaks another protocol: the connection is given back, to say so. Nothing was written to it.
    NoTls(TcpStream),
    /// Anything else, in words.
    Failed(io::Error),
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        match error {
            HandshakeError::NoTls(_) => io::Error::other("the other end speaks no TLS"),
            HandshakeError::Failed(error) => error,
        }
    }
}

/// A channel on its way to another thread, which may have another event loop.
#[derive(Debug)]
pub struct Parked {
    stream: std::net::TcpStream,
    secured: Option<Box<(TlsSession, Option<Names>, u64)>>,
}

impl Channel {
    /// Connects to a node's client port, `host:port`.
    ///
    /// # Errors
    /// The system's, or what is wrong with the other end's certificate, in words.
    pub async fn connect(address: &str, tls: Option<&Tls>) -> io::Result<Channel> {
        Channel::to_server(resolve::connect(address).await?, address, tls).await
    }

    /// Makes a channel of a connection to a node's client port, `host:port`, whose certificate must name the host.
    ///
    /// # Errors
    /// As above.
    pub async fn to_server(stream: TcpStream, address: &str, tls: Option<&Tls>) -> io::Result<Channel> {
        // Whoever packs waits for nobody: what is written leaves at once.
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Channel::Plain(stream)) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|_| io::Error::other("no certificate can name this host"))?;
        Channel::dialled(stream, tls.to_server(), name).await
    }

    /// Makes a channel of a connection to a node's peer port: it must show the certificate of `node`, or of any.
    ///
    /// # Errors
    /// As above.
    pub async fn to_node(stream: TcpStream, tls: Option<&Tls>, node: Option<NodeId>) -> io::Result<Channel> {
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Channel::Plain(stream)) };
        Channel::dialled(stream, tls.to_node(), names::wanted(node)).await
    }

    async fn dialled(
        stream: TcpStream,
        (config, generation): (Arc<rustls::ClientConfig>, u64),
        name: ServerName<'static>,
    ) -> io::Result<Channel> {
        let session = rustls::ClientConnection::new(config, name).map_err(|error| io_error(&error))?;
        Ok(handshake(stream, session.into(), generation).await?)
    }

    /// Takes a client's connection; without certificates as it is.
    ///
    /// # Errors
    /// See [`HandshakeError`]. Whoever calls bounds how long it takes.
    pub async fn accept_client(stream: TcpStream, tls: Option<&Tls>) -> Result<Channel, HandshakeError> {
        Channel::accepted(stream, tls.map(Tls::for_clients)).await
    }

    /// Takes a node's connection; without certificates as it is. Whose certificate it has shown is in
    /// [`Channel::names`].
    ///
    /// # Errors
    /// As above.
    pub async fn accept_node(stream: TcpStream, tls: Option<&Tls>) -> Result<Channel, HandshakeError> {
        Channel::accepted(stream, tls.map(Tls::for_nodes)).await
    }

    async fn accepted(
        stream: TcpStream,
        config: Option<Option<(Arc<rustls::ServerConfig>, u64)>>,
    ) -> Result<Channel, HandshakeError> {
        let Some(config) = config else { return Ok(Channel::Plain(stream)) };
        let config = config.ok_or_else(|| HandshakeError::Failed(io::Error::other("this end has no certificate")));
        let (config, generation) = config?;
        let session = rustls::ServerConnection::new(config);
        let session = session.map_err(|error| HandshakeError::Failed(io_error(&error)))?;
        handshake(stream, session.into(), generation).await
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Channel::Plain(stream) => stream,
            Channel::Secured(secured) => &secured.stream,
        }
    }

    /// Whom the other end's certificate names, if it has shown one. It was verified.
    pub fn names(&self) -> Option<&Names> {
        match self {
            Channel::Plain(_) => None,
            Channel::Secured(secured) => secured.names.as_ref(),
        }
    }

    /// Where the other end is.
    ///
    /// # Errors
    /// The system's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Whether it is inside TLS.
    pub fn is_secured(&self) -> bool {
        matches!(self, Channel::Secured(_))
    }

    /// Whether certificates have changed since its handshake.
    pub fn is_outdated(&self, tls: Option<&Tls>) -> bool {
        match (self, tls) {
            (Channel::Secured(secured), Some(tls)) => secured.generation != tls.generation(),
            _ => false,
        }
    }

    /// Waits until there may be something to read.
    ///
    /// # Errors
    /// The system's.
    pub async fn readable(&self) -> io::Result<()> {
        if let Channel::Secured(secured) = self
            && secured.ready.get()
        {
            return Ok(());
        }
        self.socket().readable().await
    }

    /// Waits until the socket may take something.
    ///
    /// # Errors
    /// The system's.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// Reads what has come, up to the room in `into` or one record more, as `TcpStream::try_read_buf` does. A read that
    /// does not fill its room has taken all there was, so the socket counts as not readable until the system says that
    /// it is again: that saves a system call for each message that comes alone. An end that came with the bytes is
    /// still seen, since it stays known apart from them.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come, the system's, or why the bytes are no TLS.
    pub fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Channel::Plain(stream) => {
                let room = into.capacity() - into.len();
                let read = stream.try_read_buf(into)?;
                if 0 < read && read < room {
                    nothing_more(stream);
                }
                Ok(read)
            }
            Channel::Secured(secured) => secured.read(into),
        }
    }

    /// Writes as much as is taken now.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing, else the system's.
    pub fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Channel::Plain(stream) => match slices {
                [one] => stream.try_write(one),
                _ => stream.try_write_vectored(slices),
            },
            Channel::Secured(secured) => secured.write_vectored(slices),
        }
    }

    /// Whether bytes that were taken have not reached the socket: [`Channel::try_flush`] when it is writable.
    pub fn is_unsent(&self) -> bool {
        match self {
            Channel::Plain(_) => false,
            Channel::Secured(secured) => secured.session.borrow().tls.wants_write(),
        }
    }

    /// Writes what was taken and has not reached the socket; whether all has now.
    ///
    /// # Errors
    /// The system's.
    pub fn try_flush(&self) -> io::Result<bool> {
        match self {
            Channel::Plain(_) => Ok(true),
            Channel::Secured(secured) => secured.session.borrow_mut().flush(&secured.stream),
        }
    }

    /// Reads as [`Channel::read`] does, until there is something.
    pub fn poll_read_more(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        let secured = match self {
            Channel::Plain(stream) => return pin!(stream.read_buf(into)).poll(cx),
            Channel::Secured(secured) => secured,
        };
        loop {
            match secured.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(secured.stream.poll_read_ready(cx))?,
                read => return Poll::Ready(read),
            }
        }
    }

    /// Writes as [`Channel::write_vectored`] does, once something is taken.
    pub fn poll_write_more(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let secured = match self {
            Channel::Plain(stream) => {
                return match slices {
                    [one] => Pin::new(stream).poll_write(cx, one),
                    _ => Pin::new(stream).poll_write_vectored(cx, slices),
                };
            }
            Channel::Secured(secured) => secured,
        };
        loop {
            match secured.write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(secured.stream.poll_write_ready(cx))?,
                written => return Poll::Ready(written),
            }
        }
    }

    /// Brings what was taken to the socket.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.try_flush()? {
            ready!(self.socket().poll_write_ready(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads at least one byte; 0: the end.
    ///
    /// # Errors
    /// The system's, or why the bytes are no TLS.
    pub async fn read_some(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read_more(cx, into)).await
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// The system's.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = std::future::poll_fn(|cx| self.poll_write_more(cx, &[IoSlice::new(bytes)])).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
        std::future::poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Says that nothing more is said. Best effort.
    pub async fn shutdown(&mut self) {
        if let Channel::Secured(secured) = self {
            secured.session.get_mut().tls.send_close_notify();
            _ = std::future::poll_fn(|cx| self.poll_sent(cx)).await;
        }
        let stream = match self {
            Channel::Plain(stream) => stream,
            Channel::Secured(secured) => &mut secured.stream,
        };
        _ = stream.shutdown().await;
    }

    /// Takes it off this thread's event loop.
    ///
    /// # Errors
    /// The system's.
    pub fn park(self) -> io::Result<Parked> {
        match self {
            Channel::Plain(stream) => Ok(Parked { stream: stream.into_std()?, secured: None }),
            Channel::Secured(secured) => {
                let TlsChannel { stream, session, names, generation, .. } = *secured;
                let secured = Some(Box::new((session.into_inner(), names, generation)));
                Ok(Parked { stream: stream.into_std()?, secured })
            }
        }
    }
}

impl Parked {
    /// Puts it on the event loop of this thread.
    ///
    /// # Errors
    /// The system's.
    pub fn resume(self) -> io::Result<Channel> {
        self.stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(self.stream)?;
        let Some(secured) = self.secured else { return Ok(Channel::Plain(stream)) };
        let (session, names, generation) = *secured;
        let ready = Cell::new(session.is_ready());
        Ok(Channel::Secured(Box::new(TlsChannel { stream, session: RefCell::new(session), ready, names, generation })))
    }

    /// A connection that waits for its bytes, at most so long each time.
    ///
    /// # Errors
    /// The system's.
    pub fn blocking(self, silence_max: Duration) -> io::Result<BlockingChannel> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(silence_max))?;
        self.stream.set_write_timeout(Some(silence_max))?;
        Ok(BlockingChannel { stream: self.stream, session: self.secured.map(|secured| secured.0) })
    }
}

/// What a socket takes and gives without waiting, in the shape that the session asks for.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Nothing is heard of the system between a read and this: both are on the thread that asks it.
fn nothing_more(stream: &TcpStream) {
    drop(stream.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into())));
}

fn io_error(error: &rustls::Error) -> io::Error {
    io::Error::other(explain(error))
}

async fn handshake(stream: TcpStream, tls: Connection, generation: u64) -> Result<Channel, HandshakeError> {
    let failed = HandshakeError::Failed;
    let mut session = TlsSession::new(tls);
    let (mut buffer, mut first) = (vec![0; HANDSHAKE_READ_BYTES], true);
    loop {
        while !session.flush(&stream).map_err(failed)? {
            stream.writable().await.map_err(failed)?;
        }
        if !session.tls.is_handshaking() {
            break;
        }
        stream.readable().await.map_err(failed)?;
        let read = match stream.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read.map_err(failed)?,
        };
        if first && read > 0 && buffer[0] != HANDSHAKE_RECORD && matches!(session.tls, Connection::Server(_)) {
            return Err(HandshakeError::NoTls(stream));
        }
        first = false;
        if let Err(error) = session.take_handshake(&buffer[..read]) {
            // The other end is told why, if the socket takes it.
            _ = session.flush(&stream);
            return Err(failed(error));
        }
    }
    let names = session.tls.peer_certificates().and_then(|chain| chain.first()).map(Names::of);
    let ready = Cell::new(session.is_ready());
    Ok(Channel::Secured(Box::new(TlsChannel { stream, session: RefCell::new(session), ready, names, generation })))
}

impl TlsSession {
    fn new(mut tls: Connection) -> TlsSession {
        tls.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        TlsSession { tls, early: BytesMut::new(), ended: false }
    }

    fn is_ready(&self) -> bool {
        self.ended || !self.early.is_empty()
    }

    fn take_early(&mut self, into: &mut BytesMut) {
        if !self.early.is_empty() {
            into.extend_from_slice(&std::mem::take(&mut self.early));
        }
    }

    fn take_handshake(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed the connection during the handshake"));
        }
        let mut early = std::mem::take(&mut self.early);
        let taken = self.decrypt(bytes, &mut early);
        self.early = early;
        taken
    }

    /// Takes in what the socket gave, and appends what it says to `into`.
    fn decrypt(&mut self, mut bytes: &[u8], into: &mut BytesMut) -> io::Result<()> {
        while !bytes.is_empty() && !self.ended {
            self.tls.read_tls(&mut bytes)?;
            let state = self.tls.process_new_packets().map_err(|error| io_error(&error))?;
            self.ended |= state.peer_has_closed();
            let mut left = state.plaintext_bytes_to_read();
            into.reserve(left);
            while left > 0 {
                let mut reader = self.tls.reader();
                let chunk = reader.fill_buf()?;
                let length = chunk.len();
                into.extend_from_slice(chunk);
                reader.consume(length);
                left = left.saturating_sub(length.max(1));
            }
        }
        Ok(())
    }

    /// Whether all has reached the socket.
    fn flush(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Socket(stream)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl TlsChannel {
    /// What was read and not taken comes first with the next read.
    fn give_back(&mut self, rest: BytesMut) {
        if !rest.is_empty() {
            self.session.get_mut().early = rest;
            self.ready.set(true);
        }
    }

    fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        let before = into.len();
        if !session.early.is_empty() {
            session.take_early(into);
            self.ready.set(session.ended);
            return Ok(into.len() - before);
        }
        if session.ended {
            return Ok(0);
        }
        ENCRYPTED.with_borrow_mut(|buffer| {
            let room = (into.capacity() - before + RECORD_OVERHEAD).min(buffer.len());
            let read = self.stream.try_read(&mut buffer[..room])?;
            if read == 0 {
                return Ok(0);
            }
            if read < room {
                nothing_more(&self.stream);
            }
            let decrypted = session.decrypt(&buffer[..read], into);
            // Answers of the session itself: why the bytes are refused, or new keys.
            _ = session.flush(&self.stream);
            decrypted?;
            self.ready.set(session.ended);
            match into.len() - before {
                0 if session.ended => Ok(0),
                0 => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        })
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        if !session.flush(&self.stream)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = session.tls.writer().write_vectored(slices)?;
        session.flush(&self.stream)?;
        Ok(taken)
    }
}
