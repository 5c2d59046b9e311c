//! Messages between nodes on their way: delay, loss, copies, cuts. It does not know what they say.

use coppice_testkit::random::Random;

use super::plan::{MS, Nanos, Network, Purpose, random};

/// A copy comes at most so much later.
const COPY_LATE: Nanos = 60_000 * MS;

/// The network between nodes.
#[derive(Debug)]
pub struct Net {
    rates: Network,
    random: Random,
    damages: Random,
    threads: Random,
    /// For each node, by how many cuts it is kept from hearing each other one.
    cuts: Vec<Vec<u32>>,
    /// Since when.
    since: Vec<Vec<Nanos>>,
    /// The present moment.
    pub now: Nanos,
}

/// A node that gets no echo for so long knows that a link is of no use.
const SILENT_AFTER: Nanos = 300 * MS;

impl Net {
    /// The network of a seed with `nodes` nodes.
    pub fn new(seed: u64, rates: Network, nodes: usize) -> Net {
        let damages = random(seed, Purpose::Damage, 1);
        Net {
            rates,
            random: random(seed, Purpose::Network, 2),
            damages,
            threads: random(seed, Purpose::Workers, 1),
            cuts: vec![vec![0; nodes]; nodes],
            since: vec![vec![0; nodes]; nodes],
            now: 0,
        }
    }

    /// One more node.
    pub fn grow(&mut self) {
        self.cuts.iter_mut().for_each(|cuts| cuts.push(0));
        self.cuts.push(vec![0; self.cuts.len() + 1]);
        self.since.iter_mut().for_each(|since| since.push(0));
        self.since.push(vec![0; self.since.len() + 1]);
    }

    /// How long a message takes.
    pub fn delay(&mut self) -> Nanos {
        let rates = &self.rates;
        let tail = self.random.chance(rates.tail);
        let extra = self.random.below(2 * rates.delay_mean as usize + 1) as Nanos;
        let late = if tail { self.random.below(2_000 * MS as usize) as Nanos } else { 0 };
        rates.delay_min + extra + late
    }

    /// When copies of a message from one node to another arrive, after now: none, one or two.
    pub fn send(&mut self, from: usize, to: usize) -> [Option<Nanos>; 2] {
        let first = self.delay();
        let lost = self.random.chance(self.rates.loss) || self.cuts[to][from] > 0;
        let copied = self.random.chance(self.rates.duplicates);
        let shift = self.random.below(16);
        let copy = copied.then(|| first + self.random.below((COPY_LATE >> shift) as usize) as Nanos);
        [(!lost).then_some(first), copy.filter(|_| self.cuts[to][from] == 0)]
    }

    /// What draws the damage of the message that is sent now, if it is damaged.
    pub fn damages(&mut self) -> Option<&mut Random> {
        let damaged = self.rates.damaged > 0 && (self.damages.below(10_000) as u32) < self.rates.damaged;
        damaged.then_some(&mut self.damages)
    }

    /// Whether `to` hears `from`.
    pub fn hears(&self, to: usize, from: usize) -> bool {
        self.cuts[to][from] == 0
    }

    /// Whether a node has found out that another one does not answer.
    pub fn is_silent(&self, from: usize, to: usize, now: Nanos) -> bool {
        let cut = |to: usize, from: usize| !self.hears(to, from) && self.since[to][from] + SILENT_AFTER <= now;
        cut(to, from) || cut(from, to)
    }

    /// How long a message between two threads of a node takes.
    pub fn between_threads(&mut self) -> Nanos {
        let shift = self.threads.below(12);
        self.threads.below((4 * MS as usize) >> shift) as Nanos
    }

    /// Whether the queue of a thread has no room for another one's message.
    pub fn overflows(&mut self) -> bool {
        self.rates.loss > 0 && self.threads.below(2_000) == 0
    }

    /// Whether a client's frame is the last one of its connection.
    pub fn breaks(&mut self) -> bool {
        self.random.chance(self.rates.client_cut)
    }

    /// Whether a connection attempt fails.
    pub fn refuses(&mut self) -> bool {
        self.random.chance(self.rates.connect_fails)
    }

    /// How late what a connection carried may be, for which nobody waits any more.
    pub fn lateness(&mut self) -> Nanos {
        let shift = self.random.below(8);
        self.random.below((2_000 * MS as usize) >> shift) as Nanos
    }

    /// One of two, as likely.
    pub fn either(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// Cuts (or mends, with `by` -1) what nodes of `side` hear of the others, and the other way unless `one_way`.
    pub fn cut(&mut self, side: u32, one_way: bool, by: i32) {
        let inside = |node: usize| side >> node & 1 == 1;
        for to in 0..self.cuts.len() {
            for from in 0..self.cuts.len() {
                let crosses = inside(to) != inside(from) && (inside(to) || !one_way);
                if crosses {
                    self.cut_pair(to, from, by);
                }
            }
        }
    }

    /// Keeps one node from hearing another one, or (with `by` -1) lets it hear again.
    pub fn cut_pair(&mut self, to: usize, from: usize, by: i32) {
        if self.cuts[to][from] == 0 {
            self.since[to][from] = self.now;
        }
        self.cuts[to][from] = self.cuts[to][from].saturating_add_signed(by);
    }

    /// Everything works from now on.
    pub fn heal(&mut self) {
        let Network { delay_min, delay_mean, .. } = self.rates;
        let none = Network {
            delay_min,
            delay_mean,
            tail: 0,
            loss: 0,
            duplicates: 0,
            client_cut: 0,
            connect_fails: 0,
            damaged: 0,
        };
        self.rates = none;
        self.cuts.iter_mut().flatten().for_each(|cuts| *cuts = 0);
    }
}
