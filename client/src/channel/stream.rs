//! A channel as tokio's traits see it: for what is said once on a connection. What is said often has ways of its own,
//! which copy less.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Channel;

impl AsyncRead for Channel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let secured = match self.get_mut() {
            Channel::Plain(stream) => return Pin::new(stream).poll_read(cx, buf),
            Channel::Secured(secured) => secured,
        };
        // An answer is waited for: what it answers must have left.
        if !secured.session.get_mut().flush(&secured.stream)? {
            _ = secured.stream.poll_write_ready(cx)?;
        }
        let mut into = BytesMut::with_capacity(buf.remaining());
        while let Err(error) = secured.read(&mut into) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Poll::Ready(Err(error));
            }
            ready!(secured.stream.poll_read_ready(cx))?;
        }
        let taken = into.split_to(into.len().min(buf.remaining()));
        buf.put_slice(&taken);
        secured.give_back(into);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_more(cx, &[IoSlice::new(bytes)])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_sent(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let channel = self.get_mut();
        ready!(channel.poll_sent(cx))?;
        match channel {
            Channel::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Channel::Secured(secured) => Pin::new(&mut secured.stream).poll_shutdown(cx),
        }
    }
}
