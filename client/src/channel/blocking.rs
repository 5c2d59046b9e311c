//! A channel for a thread that does nothing else: it waits for its bytes.

use std::io::{self, Read, Write};

use bytes::BytesMut;

use super::{ENCRYPTED, HANDSHAKE_READ_BYTES, TlsSession, io_error};
use crate::tls::{Tls, names};
use crate::wire::NodeId;

/// A connection for a thread that does nothing else.
#[derive(Debug)]
pub struct BlockingChannel {
    pub(super) stream: std::net::TcpStream,
    pub(super) session: Option<TlsSession>,
}

impl BlockingChannel {
    /// Makes a connection of `stream` to the peer port of a node; it must show the certificate of `node`. Its timeouts
    /// hold.
    ///
    /// # Errors
    /// The system's, or what is wrong with the other end's certificate, in words.
    pub fn to_node(mut stream: std::net::TcpStream, tls: Option<&Tls>, node: NodeId) -> io::Result<BlockingChannel> {
        let Some(tls) = tls else { return Ok(BlockingChannel { stream, session: None }) };
        let session = rustls::ClientConnection::new(tls.to_node().0, names::wanted(Some(node)));
        let mut session = TlsSession::new(session.map_err(|error| io_error(&error))?.into());
        let mut buffer = vec![0; HANDSHAKE_READ_BYTES];
        while session.tls.is_handshaking() || session.tls.wants_write() {
            while session.tls.wants_write() {
                session.tls.write_tls(&mut stream)?;
            }
            if session.tls.is_handshaking() {
                let read = stream.read(&mut buffer)?;
                session.take_handshake(&buffer[..read])?;
            }
        }
        Ok(BlockingChannel { stream, session: Some(session) })
    }

    /// Reads what has come; 0: the end.
    ///
    /// # Errors
    /// The system's, or why the bytes are no TLS.
    pub fn read_some(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        let before = into.len();
        ENCRYPTED.with_borrow_mut(|buffer| {
            let Some(session) = &mut self.session else {
                let read = self.stream.read(buffer)?;
                into.extend_from_slice(&buffer[..read]);
                return Ok(read);
            };
            session.take_early(into);
            while into.len() == before && !session.ended {
                let read = self.stream.read(buffer)?;
                if read == 0 {
                    break;
                }
                session.decrypt(&buffer[..read], into)?;
                while session.tls.wants_write() {
                    session.tls.write_tls(&mut self.stream)?;
                }
            }
            Ok(into.len() - before)
        })
    }
}

impl Read for BlockingChannel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.session.is_none() {
            return self.stream.read(bytes);
        }
        let mut into = BytesMut::with_capacity(bytes.len());
        self.read_some(&mut into)?;
        let taken = into.split_to(into.len().min(bytes.len()));
        bytes[..taken.len()].copy_from_slice(&taken);
        if let Some(session) = self.session.as_mut().filter(|_| !into.is_empty()) {
            session.early = into;
        }
        Ok(taken.len())
    }
}

impl Write for BlockingChannel {
    /// What is taken has reached the socket.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.write(bytes) };
        let written = session.tls.writer().write(bytes)?;
        while session.tls.wants_write() {
            session.tls.write_tls(&mut self.stream)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
