//! A frame that arrives on a connection: where the node is full of such, each has so long to become whole.

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use super::Shared;

/// Where the node is full of frames that are not whole, one of them has so long to become whole.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);

/// Part of a frame that has no more bytes than this is nobody's burden.
const ARRIVES_FREELY: usize = 64 << 10;

/// The frame that arrives on a connection, and what all such take of the node.
pub struct PartialFrame {
    shared: Arc<Shared>,
    bytes: usize,
    /// Since when it has been more than [`ARRIVES_FREELY`].
    since: Clock,
}

impl PartialFrame {
    /// Nothing has arrived.
    pub fn new(shared: Arc<Shared>) -> PartialFrame {
        PartialFrame { shared, bytes: 0, since: Clock::now() }
    }

    /// So many bytes of it are here.
    pub fn set(&mut self, bytes: usize) {
        if self.bytes <= ARRIVES_FREELY {
            self.since = Clock::now();
        }
        self.shared.usage.add_arriving_bytes(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
    }

    /// No more of it is read for now: too much has begun to arrive.
    pub fn must_wait(&self) -> bool {
        self.bytes > ARRIVES_FREELY && self.shared.usage.arrives_too_much()
    }

    /// It waits for too long.
    pub fn is_overdue(&self) -> bool {
        self.since.elapsed() > ARRIVES_WITHIN
    }
}

impl Drop for PartialFrame {
    fn drop(&mut self) {
        self.set(0);
    }
}
