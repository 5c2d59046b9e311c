//! Random schedules from a seed: three partitions or more, coordinators deposed and left as zombies or killed, leaders
//! that lose part of their pipe, partitions without a majority, splits, timeouts that void, and loss, repetition and
//! reordering of every message. Each history is judged at every answer; then the faults stop, and everything must end.

use std::time::Duration;

use coppice_model::tickets::history::{Kind, OPS_MAX, Op, Status};
use coppice_model::tickets::stage::Stage;
use coppice_model::tickets::world::{KEYS, Message};
use coppice_ordering::PartitionId;
use coppice_testkit::random::Random;

/// Events under faults.
const EVENTS: usize = 400;
/// Operations left for the time after the faults.
const OPS_AFTER: usize = 6;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub answered: usize,
    pub completed: usize,
    pub aborted: usize,
}

/// What may happen in this run, in percent of the events.
struct Plan {
    partitions: u8,
    keep: usize,
    lose: usize,
    elect: usize,
    leaders: usize,
    time: usize,
    split: usize,
    /// This partition decides nothing.
    stuck: Option<PartitionId>,
}

impl Plan {
    fn draw(random: &mut Random) -> Plan {
        let mut often = |most: usize| if random.percent(50) { 1 + random.below(most) } else { 0 };
        let (keep, lose, elect, leaders) = (often(30), often(20), often(4), often(5));
        let (time, split) = (often(10), often(2));
        let partitions = 3 + random.below(3) as u8;
        let stuck = random.percent(15).then(|| PartitionId(1 + random.below(usize::from(partitions)) as u32));
        Plan { partitions, keep, lose, elect, leaders, time, split, stuck }
    }
}

pub struct Fuzz {
    stage: Stage,
    random: Random,
    plan: Plan,
    /// The last operation of each client.
    clients: Vec<Option<Op>>,
}

impl Fuzz {
    pub fn new(seed: u64) -> Fuzz {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        let clients = vec![None; 2 + random.below(4)];
        Fuzz { stage: Stage::serving(plan.partitions), random, plan, clients }
    }

    pub fn run(mut self) -> Tally {
        for _ in 0..EVENTS {
            self.event();
            self.stage.listen();
        }
        self.stage.settle();
        // It serves again: one query over everything sees every write that was answered, by the same check.
        for key in 1..=self.plan.partitions {
            let op = self.stage.plan_write(key * KEYS, None);
            self.stage.put(op);
        }
        let end = (self.plan.partitions + 1) * KEYS;
        let last = self.stage.query(KEYS, end);
        self.stage.settle();
        assert!(self.stage.answered(last), "a query after all faults has no result");
        self.tally()
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for op in &self.stage.world.history.ops {
            match (&op.kind, op.status) {
                (Kind::Query { .. }, Status::Answered) => tally.completed += 1,
                (Kind::Query { .. }, Status::Aborted) => tally.aborted += 1,
                (Kind::Write { .. }, Status::Answered) => tally.answered += 1,
                _ => {}
            }
        }
        tally
    }

    fn event(&mut self) {
        let kind = self.random.below(100);
        let plan = &self.plan;
        let (elect, leaders) = (plan.elect, plan.elect + plan.leaders);
        let (time, split) = (leaders + plan.time, leaders + plan.time + plan.split);
        match kind {
            kind if kind < elect => self.elect(),
            kind if kind < leaders => self.change_leader(),
            kind if kind < time => self.stage.pass(Duration::from_millis(20 + self.random.below(60) as u64)),
            kind if kind < split => self.split(),
            kind if kind < split + 18 => self.ask(),
            kind if kind < split + 35 => self.decide(),
            kind if kind < split + 42 => self.acknowledge(),
            _ => self.deliver(),
        }
    }

    fn elect(&mut self) {
        if self.random.percent(30) {
            self.stage.world.kill_coordinator();
        }
        self.stage.world.elect();
    }

    fn partition(&mut self) -> PartitionId {
        let at = self.random.below(self.stage.world.partitions.len());
        *self.stage.world.partitions.keys().nth(at).expect("a partition")
    }

    fn change_leader(&mut self) {
        let (partition, survives) = (self.partition(), self.random.next());
        if Some(partition) != self.plan.stuck {
            self.stage.world.change_leader(partition, |at| survives >> (at % 64) & 1 == 1);
        }
    }

    fn split(&mut self) {
        if self.stage.world.partitions.len() < 8 && self.stage.world.changes_open() == 0 {
            let key = KEYS + self.random.below(usize::from(self.plan.partitions * KEYS)) as u8;
            if self.stage.world.may_split(key) {
                self.stage.world.split(key);
            }
        }
    }

    /// A client that is free asks for something: a write, or a query of some range at some coordinator.
    fn ask(&mut self) {
        let client = self.random.below(self.clients.len());
        let waits = self.clients[client].is_some_and(|op| self.stage.world.history.ops[op].status == Status::Invoked);
        let left = OPS_MAX - self.stage.world.history.ops.len();
        if waits || left <= usize::from(self.plan.partitions) + OPS_AFTER {
            return;
        }
        let keys = usize::from(self.plan.partitions * KEYS);
        // An aborted query is no obstacle: its client goes on.
        let after = self.clients[client].filter(|op| self.stage.answered(*op));
        let low = KEYS + self.random.below(keys) as u8;
        let world = &mut self.stage.world;
        let op = if self.random.percent(55) {
            let op = world.history.plan(Kind::Write { key: low }, after);
            world.write(op);
            op
        } else {
            let high = low + 1 + self.random.below(usize::from((self.plan.partitions + 1) * KEYS - low)) as u8;
            let high = high.min((self.plan.partitions + 1) * KEYS);
            let op = world.history.plan(Kind::Query { ranges: vec![(low, high)] }, after);
            // Mostly the newest one; now and then one that does not know yet that it is deposed.
            let newest = world.seats() - 1;
            let seat = if self.random.percent(85) { newest } else { self.random.below(newest + 1) };
            world.query(seat, op);
            op
        };
        self.clients[client] = Some(op);
    }

    fn decide(&mut self) {
        let (partition, count) = (self.partition(), 1 + self.random.below(4));
        if Some(partition) != self.plan.stuck {
            self.stage.world.decide(partition, count);
        }
    }

    fn acknowledge(&mut self) {
        let rounds = self.stage.world.confirming();
        if !rounds.is_empty() {
            let round = rounds[self.random.below(rounds.len())];
            self.stage.world.acknowledge(round);
        }
    }

    /// Some message arrives, or is lost; it may stay, to arrive again.
    fn deliver(&mut self) {
        if self.stage.air.is_empty() {
            return;
        }
        // Mostly one of the oldest.
        let most = if self.random.percent(70) { 4.min(self.stage.air.len()) } else { self.stage.air.len() };
        let at = self.random.below(most);
        let message = self.stage.air[at].clone();
        if !self.random.percent(self.plan.keep) {
            self.stage.air.remove(at);
        }
        if self.random.percent(self.plan.lose) {
            return;
        }
        match message {
            // Past a leader's filter: an older leader may have let it in.
            Message::Place { to, place } if self.random.percent(10) => {
                self.stage.world.append(to, coppice_model::tickets::partition::Entry::Place(place));
            }
            other => self.stage.world.deliver(other),
        }
    }
}

/// `FUZZ_SEEDS=from..to` runs others; a failure names its seed.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("FUZZ_SEEDS") else { return default };
    let (from, to) = range.split_once("..").expect("FUZZ_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn random_schedules_have_one_order() {
    let (mut sum, mut failed) = (Tally::default(), Vec::new());
    for seed in seeds(0..2_000) {
        match std::panic::catch_unwind(|| Fuzz::new(seed).run()) {
            Ok(tally) => {
                sum.answered += tally.answered;
                sum.completed += tally.completed;
                sum.aborted += tally.aborted;
            }
            Err(_) => failed.push(seed),
        }
        if failed.len() >= 10 {
            break;
        }
    }
    let replay = "FUZZ_SEEDS=N..N+1 cargo test -p coppice-model --test multicast random";
    assert!(failed.is_empty(), "seeds {failed:?} fail; replay: {replay}");
    println!("{sum:?}");
}
