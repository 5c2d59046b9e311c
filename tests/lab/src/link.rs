//! One direction between two nodes: a rate, a delay and a finite queue (papers.md A15). It knows bytes and times; what
//! it carries is nothing to it.
//!
//! Packets leave one after another at the link's rate, and arrive a delay later. A real link loses what its queue
//! cannot hold; whoever sends over TCP then slows down and repeats, and the paper saw a tenth of the rate come through.
//! A link between two TCP connections cannot lose anything, so that tenth is what is emulated: with more undelivered
//! than the queue holds the link is congested, and stays so until half of that is left.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_ordering::Time;

/// A congested link moves at this fraction of its rate.
const CONGESTED: u64 = 10;

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes per second, at least 1.
    pub rate: u64,
    /// From the last byte's leaving to its arrival.
    pub delay: Duration,
    /// Undelivered bytes beyond which it is congested; none: it never is.
    pub queue: Option<u64>,
}

impl Shape {
    /// The paper's cluster: 940 Mbit/s of 2^20, and a network that loses nothing.
    pub const LAN: Shape = Shape { rate: 940 * (1 << 20) / 8, delay: Duration::from_micros(50), queue: None };
    /// The paper's Emulab: 10 Mbit/s, of which 9.4 of 2^20 carry payload, 50 ms.
    pub const WAN: Shape =
        Shape { rate: 94 * (1 << 20) / 80, delay: Duration::from_millis(50), queue: Some(1_200 << 10) };
}

/// What a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Bytes that were sent and have not arrived.
    pub undelivered: u64,
    /// The most that ever were.
    pub undelivered_max: u64,
    /// Times that it became congested.
    pub congestions: u64,
    /// For how long it was.
    pub congested: Duration,
}

#[derive(Debug)]
struct Packet<T> {
    bytes: u64,
    what: T,
}

/// A link that carries packets of `T`.
#[derive(Debug)]
pub struct Link<T> {
    shape: Shape,
    /// Up to when everything below is worked out.
    at: Time,
    /// Not left yet, oldest first.
    queue: VecDeque<Packet<T>>,
    /// Of the oldest one's bytes, those that have not left, in billionths: rate times nanoseconds.
    left: u128,
    /// Left and under way, in the order of their arrivals.
    flying: VecDeque<(Time, Packet<T>)>,
    congested: bool,
    carried: LinkCounters,
}

/// Billionths of a byte.
fn work(bytes: u64) -> u128 {
    u128::from(bytes) * 1_000_000_000
}

impl<T> Link<T> {
    /// An idle link.
    pub fn new(shape: Shape) -> Link<T> {
        let (queue, flying) = (VecDeque::new(), VecDeque::new());
        Link { shape, at: Time::ZERO, queue, left: 0, flying, congested: false, carried: LinkCounters::default() }
    }

    /// Is like this from now on; what is under way arrives when it would have.
    pub fn set(&mut self, now: Time, shape: Shape, arrived: &mut Vec<T>) {
        self.step(now, arrived);
        self.shape = shape;
        self.weigh();
    }

    /// A packet is sent. Times never go back: an earlier one counts as the latest.
    pub fn send(&mut self, now: Time, bytes: usize, what: T, arrived: &mut Vec<T>) {
        self.step(now, arrived);
        let bytes = bytes as u64;
        if self.queue.is_empty() {
            self.left = work(bytes);
        }
        self.queue.push_back(Packet { bytes, what });
        self.carried.undelivered += bytes;
        self.carried.undelivered_max = self.carried.undelivered_max.max(self.carried.undelivered);
        self.weigh();
    }

    /// Moves time on; what has arrived by then is appended, oldest first.
    pub fn step(&mut self, now: Time, arrived: &mut Vec<T>) {
        // Between two of these the rate is one and the same.
        while let Some(next) = self.deadline().filter(|next| *next <= now) {
            self.pass(next);
            if self.left == 0
                && let Some(packet) = self.queue.pop_front()
            {
                self.left = self.queue.front().map_or(0, |packet| work(packet.bytes));
                // A shorter delay does not let a later packet overtake.
                let last = self.flying.back().map_or(Time::ZERO, |(at, _)| *at);
                self.flying.push_back((last.max(self.at + self.shape.delay), packet));
            }
            while let Some((_, packet)) = self.flying.pop_front_if(|(at, _)| *at <= self.at) {
                self.carried.bytes += packet.bytes;
                self.carried.undelivered -= packet.bytes;
                arrived.push(packet.what);
                self.weigh();
            }
        }
        self.pass(now.max(self.at));
    }

    /// When something leaves or arrives next, if nothing more is sent.
    pub fn deadline(&self) -> Option<Time> {
        let leaves = (!self.queue.is_empty()).then(|| {
            let ns = self.left.div_ceil(u128::from(self.rate()));
            Time(self.at.0.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX)))
        });
        self.flying.front().map(|(at, _)| *at).into_iter().chain(leaves).min()
    }

    /// What it has done so far.
    pub fn carried(&self) -> LinkCounters {
        self.carried
    }

    fn rate(&self) -> u64 {
        let slower = if self.congested { CONGESTED } else { 1 };
        (self.shape.rate / slower).max(1)
    }

    /// Nothing leaves or arrives before `now`.
    fn pass(&mut self, now: Time) {
        let passed = now.since(self.at);
        self.left = self.left.saturating_sub(passed.as_nanos() * u128::from(self.rate()));
        if self.congested {
            self.carried.congested += passed;
        }
        self.at = now;
    }

    /// Begins or ends a congestion.
    fn weigh(&mut self) {
        let undelivered = self.carried.undelivered;
        let congested = match self.shape.queue {
            Some(queue) if self.congested => undelivered > queue / 2,
            Some(queue) => undelivered > queue,
            None => false,
        };
        self.carried.congestions += u64::from(congested && !self.congested);
        self.congested = congested;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// A frame of Ethernet.
    const PACKET: u64 = 1_460;

    /// `volumes` are sent at once, and each again, a one-way delay after its last byte arrived: a window of batches and
    /// their votes. Bytes per second that arrive once that is steady.
    fn closed_loop(shape: Shape, batches: usize, batch: u64) -> (f64, LinkCounters) {
        let mut link = Link::new(shape);
        let mut arrived = Vec::new();
        // Packets of one batch; the last one is marked.
        let send = |link: &mut Link<bool>, now: Time, arrived: &mut Vec<bool>| {
            let mut left = batch;
            while left > 0 {
                let bytes = left.min(PACKET);
                left -= bytes;
                link.send(now, bytes as usize, left == 0, arrived);
            }
        };
        (0..batches).for_each(|_| send(&mut link, Time::ZERO, &mut arrived));
        let mut votes: VecDeque<Time> = VecDeque::new();
        let (mut now, half, end) = (Time::ZERO, Time(30 * SECOND), Time(60 * SECOND));
        let mut at_half = 0;
        while now < end {
            now = link.deadline().into_iter().chain(votes.front().copied()).min().expect("a loop never rests");
            link.step(now, &mut arrived);
            while votes.pop_front_if(|at| *at <= now).is_some() {
                send(&mut link, now, &mut arrived);
            }
            for _ in arrived.drain(..).filter(|last| *last) {
                votes.push_back(now + shape.delay);
            }
            if now < half {
                at_half = link.carried().bytes;
            }
        }
        ((link.carried().bytes - at_half) as f64 / 30.0, link.carried())
    }

    #[test]
    fn rate_and_delay_are_those_asked_for() {
        // papers.md A15: within 2 %.
        for shape in [Shape::LAN, Shape::WAN, Shape { rate: 1_000, ..Shape::LAN }] {
            let (mut link, mut arrived) = (Link::new(shape), Vec::new());
            for number in 0..100 {
                link.send(Time::ZERO, PACKET as usize, number, &mut arrived);
            }
            let mut times = Vec::new();
            while let Some(next) = link.deadline() {
                link.step(next, &mut arrived);
                times.extend(arrived.drain(..).map(|number| (number, next)));
            }
            assert!(times.iter().map(|(number, _)| *number).eq(0..100), "in the order in which they were sent");
            let alone = PACKET as f64 / shape.rate as f64 + shape.delay.as_secs_f64();
            let all = 100.0 * PACKET as f64 / shape.rate as f64 + shape.delay.as_secs_f64();
            for (took, expected) in [(times[0].1, alone), (times[99].1, all)] {
                let ratio = took.0 as f64 / 1e9 / expected;
                assert!((0.98..1.02).contains(&ratio), "{shape:?}: {took:?}, not {expected} s");
            }
        }
    }

    #[test]
    fn a_volume_of_more_than_the_queue_collapses_to_a_tenth_and_a_smaller_one_keeps_the_rate() {
        volumes(&[(5, 256)], &[(10, 100)]);
    }

    #[test]
    #[ignore = "long: six volumes"]
    fn volumes_of_more_than_the_queue_collapse_to_a_tenth_and_smaller_ones_keep_the_rate() {
        volumes(&[(5, 256), (10, 130), (20, 64)], &[(5, 224), (10, 100), (20, 56)]);
        // The same volumes on the other network are nothing.
        let (got, carried) = closed_loop(Shape::LAN, 10, 130 << 10);
        assert!(got / Shape::LAN.rate as f64 > 0.98 && carried.congestions == 0, "{got}: {carried:?}");
    }

    /// papers.md A14, A15. That many batches of that many KiB are under way all the time.
    fn volumes(too_large: &[(usize, u64)], small_enough: &[(usize, u64)]) {
        let rate = Shape::WAN.rate as f64;
        for &(batches, kib) in too_large {
            let (got, carried) = closed_loop(Shape::WAN, batches, kib << 10);
            let share = got / rate;
            assert!((0.098..0.102).contains(&share), "({batches}, {kib} KiB): {share} of the rate");
            assert_eq!(carried.congestions, 1, "it never came out: {carried:?}");
            assert!(carried.congested > Duration::from_secs(59), "{carried:?}");
        }
        for &(batches, kib) in small_enough {
            let (got, carried) = closed_loop(Shape::WAN, batches, kib << 10);
            let share = got / rate;
            assert!((0.98..1.001).contains(&share), "({batches}, {kib} KiB): {share} of the rate");
            assert_eq!((carried.congestions, carried.congested), (0, Duration::ZERO));
        }
    }

    #[test]
    fn a_congestion_ends_when_half_of_the_queue_is_left_and_is_counted() {
        let shape = Shape { rate: 1_000, delay: Duration::ZERO, queue: Some(1_000) };
        let (mut link, mut arrived) = (Link::new(shape), Vec::new());
        (0..11).for_each(|number| link.send(Time::ZERO, 100, number, &mut arrived));
        // 1100 bytes: 600 leave at 100 bytes per second, the others at 1000.
        link.step(Time(6 * SECOND - 1), &mut arrived);
        assert_eq!((arrived.len(), link.carried().undelivered), (5, 600));
        link.step(Time(6 * SECOND + SECOND / 2), &mut arrived);
        assert_eq!((arrived.len(), link.deadline()), (11, None));
        let congested = Duration::from_secs(6);
        let expected = LinkCounters { bytes: 1_100, undelivered: 0, undelivered_max: 1_100, congestions: 1, congested };
        assert_eq!(link.carried(), expected);
        // Exactly full is not too much.
        (0..10).for_each(|number| link.send(Time(10 * SECOND), 100, number, &mut arrived));
        link.step(Time(11 * SECOND), &mut arrived);
        assert_eq!((arrived.len(), link.carried().congestions), (21, 1));
    }

    #[test]
    fn a_link_that_changes_keeps_the_order_of_what_it_carries() {
        let slow = Shape { rate: 1_000_000, delay: Duration::from_secs(1), queue: None };
        let fast = Shape { delay: Duration::ZERO, ..slow };
        let (mut link, mut arrived) = (Link::new(slow), Vec::new());
        link.send(Time::ZERO, 1_000, 1, &mut arrived);
        link.set(Time(SECOND / 2), fast, &mut arrived);
        link.send(Time(SECOND / 2), 1_000, 2, &mut arrived);
        link.step(Time(SECOND), &mut arrived);
        assert!(arrived.is_empty(), "the first one left with a second to go, and the other one stays behind it");
        link.step(Time(SECOND + SECOND / 1_000), &mut arrived);
        assert_eq!(arrived, [1, 2]);
        // Half of a packet at one rate, the rest at another.
        link.send(Time(2 * SECOND), 1_000_000, 3, &mut arrived);
        link.set(Time(2 * SECOND + SECOND / 2), Shape { rate: 2_000_000, ..fast }, &mut arrived);
        assert_eq!(link.deadline(), Some(Time(2 * SECOND + 3 * SECOND / 4)));
        // An empty packet takes no time: it marks an end.
        link.send(Time(3 * SECOND), 0, 4, &mut arrived);
        link.step(Time(3 * SECOND), &mut arrived);
        assert_eq!(arrived, [1, 2, 3, 4]);
    }
}
