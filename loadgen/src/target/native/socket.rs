//! One connection of a session: opening, frames in, bytes out, never waiting.

use std::collections::VecDeque;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use coppice_client::channel::Channel;
use coppice_client::error::describe;
use coppice_client::tls::Tls;
use coppice_client::wire::{Frame, FrameDecoder};

/// Buffers handed to one system call.
const SLICES_MAX: usize = 64;

/// What happened on a socket, besides frames.
#[derive(Debug)]
pub enum Event {
    /// It is open.
    Connected,
    /// A frame came.
    Frame(Frame),
    /// It could not be opened, or ended; do not use it.
    Ended(String),
}

type Opening = Pin<Box<dyn Future<Output = std::io::Result<Channel>>>>;

enum State {
    Opening(Opening),
    Open(Channel),
    Ended,
}

/// A connection.
pub struct Socket {
    state: State,
    decoder: FrameDecoder,
    out: VecDeque<Bytes>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("out", &self.out.len()).finish_non_exhaustive()
    }
}

impl Socket {
    /// Begins to connect to `host:port`.
    pub fn open(address: String, tls: Option<Tls>) -> Socket {
        let opening = async move { Channel::connect(&address, tls.as_ref()).await };
        Socket { state: State::Opening(Box::pin(opening)), decoder: FrameDecoder::of_answers(), out: VecDeque::new() }
    }

    /// Queues whole frames.
    pub fn send(&mut self, bytes: Bytes) {
        self.out.push_back(bytes);
    }

    /// Writes and reads as far as it goes; tells what happened at once, while its bytes are in the cache.
    pub fn progress(&mut self, cx: &mut Context<'_>, mut event: impl FnMut(Event)) {
        if let State::Opening(opening) = &mut self.state {
            let Poll::Ready(opened) = opening.as_mut().poll(cx) else { return };
            match opened {
                Ok(stream) => {
                    self.state = State::Open(stream);
                    // The session greets first; what it says comes with the next turn.
                    return event(Event::Connected);
                }
                Err(error) => return event(self.end(&error)),
            }
        }
        let moved = self.write(cx).and_then(|()| self.read(cx, &mut event));
        if let Err(error) = moved {
            event(self.end(&error));
        }
    }

    fn end(&mut self, error: &std::io::Error) -> Event {
        self.state = State::Ended;
        self.out.clear();
        Event::Ended(describe(error))
    }

    /// Writes what is queued.
    pub fn write(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        let Socket { state: State::Open(stream), out, .. } = self else { return Ok(()) };
        while !out.is_empty() {
            let sent = match out.len() {
                1 => stream.poll_write_more(cx, &[IoSlice::new(&out[0])]),
                _ => {
                    let slices: Vec<IoSlice<'_>> = out.iter().take(SLICES_MAX).map(|b| IoSlice::new(b)).collect();
                    stream.poll_write_more(cx, &slices)
                }
            };
            match sent {
                Poll::Ready(count) => written(out, count?),
                Poll::Pending => return Ok(()),
            }
        }
        match stream.poll_sent(cx) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Ok(()),
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, event: &mut impl FnMut(Event)) -> std::io::Result<()> {
        let State::Open(stream) = &mut self.state else { return Ok(()) };
        loop {
            match stream.poll_read_more(cx, self.decoder.space()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(std::io::Error::other("the node closed the connection")),
                Poll::Ready(read) => drop(read?),
            }
            while let Some(frame) = self.decoder.next_frame().map_err(std::io::Error::other)? {
                event(Event::Frame(frame));
            }
        }
    }
}

/// Drops the first `count` bytes of what is queued.
fn written(out: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(front) = out.front_mut() {
        if count < front.len() {
            bytes::Buf::advance(front, count);
            return;
        }
        count -= front.len();
        out.pop_front();
    }
}
