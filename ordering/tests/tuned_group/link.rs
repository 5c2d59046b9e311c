//! One direction between two replicas, in virtual time: a rate, a delay, and a queue beyond which it is congested and
//! moves at a tenth of its rate until half of that is left (papers.md A15).

use std::collections::VecDeque;
use std::time::Duration;

use coppice_ordering::Time;

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Bytes per second.
    pub rate: f64,
    pub delay: Duration,
    /// Undelivered bytes beyond which it is congested.
    pub queue: Option<usize>,
}

impl Shape {
    pub const LAN: Shape = Shape { rate: 940.0 * 131_072.0, delay: Duration::from_micros(50), queue: None };
    pub const WAN: Shape = Shape { rate: 9.4 * 131_072.0, delay: Duration::from_millis(50), queue: Some(1_200 << 10) };
}

#[derive(Debug)]
pub struct Link<T> {
    pub shape: Shape,
    /// Not left yet; the front one is leaving.
    queue: VecDeque<(usize, T)>,
    undelivered: usize,
    congested: bool,
    pub congestions: u64,
    pub carried: u64,
}

impl<T> Link<T> {
    pub fn new(shape: Shape) -> Link<T> {
        Link { shape, queue: VecDeque::new(), undelivered: 0, congested: false, congestions: 0, carried: 0 }
    }

    /// When the front one has left, if it begins to leave now.
    fn leaving(&self, now: Time) -> Option<Time> {
        let (bytes, _) = self.queue.front()?;
        let rate = if self.congested { self.shape.rate / 10.0 } else { self.shape.rate };
        Some(now + Duration::from_secs_f64(*bytes as f64 / rate))
    }

    /// Returns when it has left, if it is the first one.
    pub fn send(&mut self, now: Time, bytes: usize, what: T) -> Option<Time> {
        self.undelivered += bytes;
        self.queue.push_back((bytes, what));
        self.weigh();
        if self.queue.len() == 1 { self.leaving(now) } else { None }
    }

    /// The front one has left: it arrives at the time returned, and the next one has left at the other.
    pub fn left(&mut self, now: Time) -> Option<(Time, usize, T, Option<Time>)> {
        let (bytes, what) = self.queue.pop_front()?;
        Some((now + self.shape.delay, bytes, what, self.leaving(now)))
    }

    pub fn arrived(&mut self, bytes: usize) {
        self.undelivered -= bytes;
        self.carried += bytes as u64;
        self.weigh();
    }

    fn weigh(&mut self) {
        let congested = match self.shape.queue {
            Some(queue) if self.congested => self.undelivered > queue / 2,
            Some(queue) => self.undelivered > queue,
            None => false,
        };
        self.congestions += u64::from(congested && !self.congested);
        self.congested = congested;
    }
}
