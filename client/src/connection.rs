//! One connection, driven by polling: connect, read frames, write bytes. Knows frames, not what they mean.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};

use crate::channel::Channel;
use crate::dial::dial;
use crate::error::describe;
use crate::resolve;
use crate::tls::Tls;
use crate::wire::{Frame, FrameDecoder};

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 16;
/// Slices given to one write.
const SLICES: usize = 64;

type Connecting = Pin<Box<dyn Future<Output = io::Result<Channel>> + Send>>;

enum State {
    Connecting(Connecting),
    Open(Channel),
}

/// See the module.
pub(crate) struct Connection {
    state: State,
    decoder: FrameDecoder,
    /// To be written. Bounded by what the session lets wait: it sends no more than its windows allow.
    out: VecDeque<Bytes>,
}

/// What reading brought.
pub(crate) enum Event {
    Connected,
    Frame(Frame),
    /// The connection is over, and why.
    Lost(String),
}

impl Connection {
    /// Begins to connect to `host:port`.
    pub fn open(address: String, tls: Option<Tls>) -> Connection {
        let connecting = async move {
            let stream = dial(|| resolve::connect(&address)).await?;
            Channel::to_server(stream, &address, tls.as_ref()).await
        };
        Connection {
            state: State::Connecting(Box::pin(connecting)),
            decoder: FrameDecoder::of_answers(),
            out: VecDeque::new(),
        }
    }

    pub fn send(&mut self, bytes: Bytes) {
        self.out.push_back(bytes);
    }

    /// Takes in what has arrived, up to a turn's worth. Returns whether there may be more at once.
    pub fn receive(&mut self, cx: &mut Context<'_>, mut event: impl FnMut(Event)) -> bool {
        if let State::Connecting(connecting) = &mut self.state {
            match connecting.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(stream)) => {
                    self.state = State::Open(stream);
                    event(Event::Connected);
                }
                Poll::Ready(Err(error)) => {
                    event(Event::Lost(describe(&error)));
                    return false;
                }
            }
        }
        let State::Open(stream) = &mut self.state else { return false };
        for _ in 0..READS_PER_TURN {
            match stream.poll_read_more(cx, self.decoder.space()) {
                Poll::Pending => return false,
                Poll::Ready(Ok(0)) => {
                    event(Event::Lost("closed the connection".into()));
                    return false;
                }
                Poll::Ready(Err(error)) => {
                    event(Event::Lost(describe(&error)));
                    return false;
                }
                Poll::Ready(Ok(_)) => {}
            }
            loop {
                match self.decoder.next_frame() {
                    Ok(Some(frame)) => event(Event::Frame(frame)),
                    Ok(None) => break,
                    Err(error) => {
                        event(Event::Lost(format!("sent no frames: {error}")));
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let State::Open(stream) = &mut self.state else { return Ok(()) };
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            let written = match stream.poll_write_more(cx, &slices[..count]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(written) => written?,
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            drop_written(&mut self.out, written);
        }
        match stream.poll_sent(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(flushed) => flushed,
        }
    }
}

fn drop_written(out: &mut VecDeque<Bytes>, mut bytes: usize) {
    while let Some(first) = out.front_mut() {
        if bytes < first.len() {
            return first.advance(bytes);
        }
        bytes -= first.len();
        out.pop_front();
    }
}
