//! A store in virtual time: servers with a queue, so that the loops can be checked against theory. Used by tests only,
//! and public because the tests of other crates may want the same ruler.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Done, End, Nanos, Target};
use crate::random::Rng;
use crate::workload::Request;

/// How long a server works on one request.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// Always the same.
    Fixed(Nanos),
    /// Evenly between two times.
    Even(Nanos, Nanos),
}

/// First come, first served, by several servers; stalls at will.
#[derive(Debug)]
pub struct SimulatedTarget {
    now: Nanos,
    free_at: Vec<Nanos>,
    service: Service,
    /// (from, to): what would begin in between begins at its end.
    stalls: Vec<(Nanos, Nanos)>,
    /// Requests in these numbers (counted from 0) end so, after no work at all.
    refused: fn(u64) -> Option<End>,
    taken: u64,
    rng: Rng,
    ends: BinaryHeap<Reverse<(Nanos, u64, u32, u8)>>,
}

impl SimulatedTarget {
    /// Idle servers at time 0.
    pub fn new(servers: usize, service: Service) -> SimulatedTarget {
        SimulatedTarget {
            now: 0,
            free_at: vec![0; servers],
            service,
            stalls: Vec::new(),
            refused: |_| None,
            taken: 0,
            rng: Rng::new(1, 0),
            ends: BinaryHeap::new(),
        }
    }

    /// The same, standing still between two times.
    pub fn stalled(mut self, from: Nanos, to: Nanos) -> SimulatedTarget {
        self.stalls.push((from, to));
        self
    }

    /// The same, refusing some requests by their number.
    pub fn refusing(mut self, refused: fn(u64) -> Option<End>) -> SimulatedTarget {
        self.refused = refused;
        self
    }

    fn work(&mut self) -> Nanos {
        match self.service {
            Service::Fixed(time) => time,
            Service::Even(low, high) => low + self.rng.below(high - low + 1),
        }
    }
}

const ENDS: [End; 4] = [End::Ok, End::Failed, End::Busy, End::Unknown];

impl Target for SimulatedTarget {
    fn now(&self) -> Nanos {
        self.now
    }

    fn submit(&mut self, slot: u32, _request: &Request) {
        let end = (self.refused)(self.taken).unwrap_or(End::Ok);
        self.taken += 1;
        let at = match end {
            End::Ok => {
                let work = self.work();
                let server = self.free_at.iter_mut().min().expect("there is a server");
                let mut start = self.now.max(*server);
                for &(from, to) in &self.stalls {
                    if start + work > from && start < to {
                        start = to;
                    }
                }
                *server = start + work;
                *server
            }
            _ => self.now + 1,
        };
        self.ends.push(Reverse((at, self.taken, slot, ENDS.iter().position(|&e| e == end).unwrap_or(0) as u8)));
    }

    fn poll(&mut self, until: Nanos, done: &mut Vec<Done>) {
        let next = self.ends.peek().map_or(Nanos::MAX, |Reverse((at, ..))| *at);
        self.now = self.now.max(next.min(until));
        while let Some(&Reverse((at, _, slot, end))) = self.ends.peek() {
            if at > self.now {
                break;
            }
            self.ends.pop();
            done.push(Done { slot, end: ENDS[usize::from(end)], at, found: 0 });
        }
    }

    fn first_error(&mut self) -> Option<String> {
        None
    }
}
