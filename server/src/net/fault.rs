//! What a link does to its messages on purpose (`allow_faults`): loses them, or holds each back for a while. A demo
//! breaks its network with it; nothing else sets it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use coppice_core::connection::FrameSink;
use tokio::time::Instant;

use super::outbox::Outbox;

/// The fault of one link, and what it holds back.
#[derive(Debug, Default)]
pub struct Fault {
    cut: bool,
    delay: Duration,
    /// Frames and when they may go, in the order in which they were queued.
    held: VecDeque<(Instant, Vec<Bytes>)>,
    held_bytes: usize,
}

impl Fault {
    /// Loses everything from now on, what is held back too, or holds each message back for `delay`.
    pub fn set(&mut self, cut: bool, delay: Duration) {
        (self.cut, self.delay) = (cut, delay);
        if cut {
            self.forget();
        }
    }

    /// Whether messages are lost.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Whether messages wait here, or have to.
    pub fn holds(&self) -> bool {
        !self.delay.is_zero() || !self.held.is_empty()
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Takes frames to hold back.
    pub fn hold(&mut self, mut frames: Outbox) {
        self.held_bytes += frames.bytes();
        self.held.push_back((Instant::now() + self.delay, frames.take()));
    }

    /// When the next frames may go.
    pub fn due(&self) -> Option<Instant> {
        self.held.front().map(|(due, _)| *due)
    }

    /// Queues the frames whose time has come. None overtakes another.
    pub fn release(&mut self, outbox: &mut Outbox) {
        let now = Instant::now();
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            for piece in self.held.pop_front().into_iter().flat_map(|(_, pieces)| pieces) {
                self.held_bytes -= piece.len();
                outbox.push(piece);
            }
        }
    }

    /// What was held back is lost: the connection is gone, or cut.
    pub fn forget(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }
}
