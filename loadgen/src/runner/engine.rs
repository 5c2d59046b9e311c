//! One worker's loop: send what is due, wait for ends, count. The same code drives real stores and the simulated one.

use hdrhistogram::Histogram;

use super::pacing::{Pace, Pacing};
use super::tally::{Ends, Tally, Times, record};
use super::{Live, Timeline};
use crate::target::{Done, End, Nanos, Target};
use crate::workload::{Key, Kind, Request, Source};

/// How often a worker tells how it is going.
const LIVE_INTERVAL: Nanos = 250_000_000;

/// The most requests sent between two looks at the answers: an open loop far behind must not forget to read.
const SEND_MAX: usize = 4_096;

/// What to do, for one worker.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Head, window, tail.
    pub timeline: Timeline,
    /// How requests are paced.
    pub pace: Pace,
    /// How many workers the run has.
    pub workers: u64,
    /// Number of this worker's first client: clients are numbered over all workers.
    pub first_client: u32,
    /// Draws think times.
    pub seed: u64,
    /// After the end of the run, answers are awaited this long.
    pub drain: Nanos,
    /// The target's time at which the run begins.
    pub start: Nanos,
}

/// What a slot remembers of its request: little, because thousands of slots are visited in no order.
#[derive(Clone, Copy)]
struct Slot {
    intended: Nanos,
    /// Requests of this client so far.
    number: u64,
    /// The key of a single request.
    key: Key,
    commands: u32,
    kind: Kind,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// No request is under way.
    Idle,
    /// The read of a read-modify-write.
    Reading,
    /// The request, or what is left of it.
    Last,
}

/// Runs a worker to its end.
pub fn run<T: Target>(target: &mut T, source: &mut Source, orders: &Orders, live: impl FnMut(Live)) -> Tally {
    let open = matches!(orders.pace, Pace::Open { .. });
    let slot = Slot { intended: 0, number: 0, key: 0, commands: 0, kind: Kind::Get, phase: Phase::Idle };
    let mut engine = Engine {
        slots: vec![slot; orders.pace.slots() as usize],
        pacing: Pacing::new(&orders.pace, orders.seed ^ u64::from(orders.first_client)),
        tally: Tally::new(&orders.timeline, open),
        under_way: 0,
        recent: Histogram::new(2).expect("two digits are a legal precision"),
        recent_ends: Ends::default(),
        told_at: 0,
        target,
        source,
        orders,
        live,
    };
    engine.run();
    engine.tally.first_error = engine.target.first_error();
    engine.tally
}

struct Engine<'a, T, L> {
    target: &'a mut T,
    source: &'a mut Source,
    orders: &'a Orders,
    slots: Vec<Slot>,
    pacing: Pacing,
    tally: Tally,
    under_way: usize,
    recent: Histogram<u64>,
    recent_ends: Ends,
    told_at: Nanos,
    live: L,
}

impl<T: Target, L: FnMut(Live)> Engine<'_, T, L> {
    fn run(&mut self) {
        let mut done = Vec::with_capacity(self.slots.len());
        let end = self.orders.timeline.end();
        loop {
            let now = self.now();
            if now >= end {
                break;
            }
            self.send_due(now);
            let next = self.pacing.next_due().unwrap_or(Nanos::MAX);
            self.poll(next.min(end).min(self.told_at + LIVE_INTERVAL), &mut done);
            self.tell();
        }
        for (intended, count) in self.pacing.untaken(end) {
            self.tally.never_sent(intended, count, end);
        }
        self.drain(&mut done);
    }

    /// Time since the start of the run; 0 before it.
    fn now(&self) -> Nanos {
        self.target.now().saturating_sub(self.orders.start)
    }

    fn send_due(&mut self, now: Nanos) {
        if self.target.now() < self.orders.start {
            return;
        }
        for _ in 0..SEND_MAX {
            let Some(due) = self.pacing.take(now) else { return };
            let client = self.orders.first_client + due.slot;
            let slot = &mut self.slots[due.slot as usize];
            let request = self.source.request(client, slot.number);
            self.under_way += 1;
            let first = match request {
                Request::ReadModifyWrite(key, _) => Request::Get(key),
                request => request,
            };
            *slot = Slot {
                intended: due.intended,
                number: slot.number + 1,
                key: request.key(),
                commands: request.commands(),
                kind: request.kind(),
                phase: if request.kind() == Kind::ReadModifyWrite { Phase::Reading } else { Phase::Last },
            };
            self.target.submit(due.slot, &first);
        }
    }

    fn poll(&mut self, until: Nanos, done: &mut Vec<Done>) {
        self.target.poll(until.saturating_add(self.orders.start), done);
        for done in done.drain(..) {
            self.ended(&done);
        }
    }

    fn ended(&mut self, done: &Done) {
        let slot = &mut self.slots[done.slot as usize];
        if slot.phase == Phase::Reading && done.end == End::Ok {
            slot.phase = Phase::Last;
            let value = self.source.value(self.orders.first_client + done.slot, slot.number - 1);
            return self.target.submit(done.slot, &Request::Put(slot.key, value));
        }
        // A target ends each request once; a second end would be counted for nothing.
        if slot.phase == Phase::Idle {
            return;
        }
        slot.phase = Phase::Idle;
        let ended = done.at.saturating_sub(self.orders.start);
        let times = Times { intended: slot.intended, ended };
        self.under_way -= 1;
        self.tally.add(slot.kind, slot.commands, times, done);
        self.recent_ends.add(done.end);
        if done.end == End::Ok {
            record(&mut self.recent, ended.saturating_sub(times.intended));
        }
        if slot.kind == Kind::Insert {
            self.source.ended(slot.key);
        }
        self.pacing.ended(done.slot, ended, done.end == End::Ok);
    }

    fn tell(&mut self) {
        let now = self.now();
        if now < self.told_at + LIVE_INTERVAL {
            return;
        }
        let over = std::time::Duration::from_nanos(now - self.told_at);
        let at_quantile = |q| self.recent.value_at_quantile(q);
        let live = Live { over, ends: self.recent_ends, p50: at_quantile(0.5), p99: at_quantile(0.99) };
        (self.live)(live);
        self.told_at = now;
        self.recent.reset();
        self.recent_ends = Ends::default();
    }

    /// Waits for the answers under way; what stays silent is unknown.
    fn drain(&mut self, done: &mut Vec<Done>) {
        let deadline = self.orders.timeline.end() + self.orders.drain;
        while self.under_way > 0 && self.now() < deadline {
            self.poll(deadline, done);
        }
        let at = self.target.now();
        for slot in 0..self.slots.len() {
            if self.slots[slot].phase != Phase::Idle {
                self.ended(&Done { slot: slot as u32, end: End::Unknown, at, found: 0 });
            }
        }
    }
}
