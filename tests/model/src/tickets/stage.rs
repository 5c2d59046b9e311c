//! A world and its network under a script's hand: every message waits until the script delivers or loses it.

use std::time::Duration;

use coppice_ordering::multicast::CoordinatorSettings;
use coppice_ordering::{PartitionId, Time};

use super::history::{Kind, Op, Status};
use super::partition::Entry;
use super::world::{Message, World};

/// Turns after which a world that is left alone must be at rest.
const TURNS_MAX: usize = 1_000;

pub struct Stage {
    pub world: World,
    /// Said and not delivered.
    pub air: Vec<Message>,
    /// Messages said so far.
    pub said: usize,
}

impl Stage {
    /// Partitions and a coordinator in ballot 1 whose first tickets are released.
    pub fn serving(partitions: u8) -> Stage {
        let mut stage = Stage::empty(partitions);
        stage.world.elect();
        stage.settle();
        stage
    }

    /// Partitions without a coordinator.
    pub fn empty(partitions: u8) -> Stage {
        Stage { world: World::new(partitions, CoordinatorSettings::default()), air: Vec::new(), said: 0 }
    }

    pub fn plan_query(&mut self, low: u8, high: u8) -> Op {
        self.world.history.plan(Kind::Query { ranges: vec![(low, high)] }, None)
    }

    pub fn plan_write(&mut self, key: u8, after: Option<Op>) -> Op {
        self.world.history.plan(Kind::Write { key }, after)
    }

    /// A query that reaches the newest coordinator now.
    pub fn query(&mut self, low: u8, high: u8) -> Op {
        let op = self.plan_query(low, high);
        let seat = self.world.seats() - 1;
        self.world.query(seat, op);
        self.listen();
        op
    }

    /// A write that is ordered and decided now.
    pub fn write(&mut self, key: u8) -> Op {
        let op = self.plan_write(key, None);
        self.put(op);
        op
    }

    /// The same for a planned one.
    pub fn put(&mut self, op: Op) {
        let partition = self.world.owner(self.world.history.key(op));
        self.world.write(op);
        self.decide(partition.0);
    }

    /// The same, if its client is free to ask for it.
    pub fn put_if_free(&mut self, op: Op) -> bool {
        let free = self.world.history.may_invoke(op);
        if free {
            self.put(op);
        }
        free
    }

    pub fn answered(&self, op: Op) -> bool {
        self.world.history.ops[op].status == Status::Answered
    }

    pub fn aborted(&self, op: Op) -> bool {
        self.world.history.ops[op].status == Status::Aborted
    }

    pub fn listen(&mut self) {
        self.said += self.world.out.len();
        self.air.append(&mut self.world.out);
    }

    /// Everything in the partition's pipe is decided.
    pub fn decide(&mut self, partition: u32) {
        self.world.decide(PartitionId(partition), usize::MAX);
        self.listen();
    }

    /// Takes messages out of the air.
    pub fn take(&mut self, which: impl Fn(&Message) -> bool) -> Vec<Message> {
        self.listen();
        let (taken, left) = std::mem::take(&mut self.air).into_iter().partition(|message| which(message));
        self.air = left;
        taken
    }

    /// Delivers the messages that are in the air now; there must be one.
    pub fn deliver(&mut self, which: impl Fn(&Message) -> bool) {
        let taken = self.take(which);
        assert!(!taken.is_empty(), "nothing to deliver among {:?}", self.air);
        taken.into_iter().for_each(|message| self.world.deliver(message));
        self.listen();
    }

    /// The query's `Place` reaches the partition and is decided there.
    pub fn place(&mut self, op: Op, partition: u32) {
        self.pipe(op, partition);
        self.decide(partition);
    }

    /// The query's `Place` reaches the partition's pipe.
    pub fn pipe(&mut self, op: Op, partition: u32) {
        self.deliver(|message| place_of(message, op, partition));
    }

    /// What the partition has placed reaches the coordinators.
    pub fn report(&mut self, partition: u32) {
        self.deliver(|message| matches!(message, Message::Placed { from, .. } if from.0 == partition));
    }

    /// Rounds that can be acknowledged are, and their coordinators hear it.
    pub fn confirm(&mut self) {
        for round in self.world.confirming() {
            self.world.acknowledge(round);
        }
        for message in self.take(|message| matches!(message, Message::Confirmed { .. })) {
            self.world.deliver(message);
        }
        self.listen();
    }

    /// Watermarks reach the partition.
    pub fn hear(&mut self, partition: u32) {
        for message in self.take(|message| matches!(message, Message::Released { to, .. } if to.0 == partition)) {
            self.world.deliver(message);
        }
        self.listen();
    }

    pub fn pass(&mut self, time: Duration) {
        let now: Time = self.world.now + time;
        self.world.pass(now);
        self.listen();
    }

    /// Everything arrives that goes to or comes from these partitions, until nothing more happens. No time passes.
    pub fn settle_only(&mut self, partitions: &[u32]) {
        let alive = |id: &PartitionId| partitions.contains(&id.0);
        loop {
            let taken = self.take(|message| match message {
                Message::Place { to: id, .. } | Message::Released { to: id, .. } | Message::Placed { from: id, .. } => {
                    alive(id)
                }
                Message::Confirmed { .. } => true,
            });
            let idle = taken.is_empty() && self.world.confirming().is_empty();
            taken.into_iter().for_each(|message| self.world.deliver(message));
            partitions.iter().for_each(|id| self.decide(*id));
            self.confirm();
            if idle {
                return;
            }
        }
    }

    /// One turn in which everything arrives and every pipe is decided. Whether anything happened.
    pub fn turn(&mut self) -> bool {
        let taken = self.take(|_| true);
        let mut moved = !taken.is_empty();
        taken.into_iter().for_each(|message| self.world.deliver(message));
        for round in self.world.confirming() {
            self.world.acknowledge(round);
            moved = true;
        }
        let ids: Vec<PartitionId> = self.world.partitions.keys().copied().collect();
        for id in ids {
            let full = self.world.partitions.get(&id).is_some_and(|partition| partition.undecided() > 0);
            if full {
                self.world.decide(id, usize::MAX);
                moved = true;
            }
        }
        self.listen();
        moved
    }

    /// The smallest step: one message arrives, or one entry is decided, or one round is acknowledged, in turns. Whether
    /// anything was left to do.
    pub fn small_step(&mut self, number: usize) -> bool {
        self.listen();
        let full = self.world.partitions.values().find(|partition| partition.undecided() > 0).map(|full| full.id);
        match (full, self.world.confirming().first().copied()) {
            (Some(id), _) if number % 2 == 1 || self.air.is_empty() => self.world.decide(id, 1),
            (_, Some(round)) if number % 2 == 1 || self.air.is_empty() => self.world.acknowledge(round),
            _ if self.air.is_empty() => return false,
            _ => {
                let message = self.air.remove(0);
                self.world.deliver(message);
            }
        }
        self.listen();
        true
    }

    /// Clients whose write is lost send it again.
    fn retry(&mut self) -> bool {
        let mut moved = false;
        for op in 0..self.world.history.ops.len() {
            let operation = &self.world.history.ops[op];
            if let Kind::Write { key } = operation.kind
                && operation.status == Status::Invoked
                && self.world.partitions.get(&self.world.owner(key)).is_some_and(|partition| !partition.has(op))
            {
                self.world.write(op);
                moved = true;
            }
        }
        moved
    }

    /// Stops losses: everything ends, or the script fails.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.turn() || self.retry() {
                continue;
            }
            if self.at_rest() {
                return;
            }
            let deadline = self.world.deadline().unwrap_or_else(|| panic!("nobody waits, but {}", self.unfinished()));
            self.world.pass(deadline);
            self.listen();
        }
        panic!("no end: {}", self.unfinished());
    }

    fn at_rest(&self) -> bool {
        let over = |status| !matches!(status, Status::Invoked);
        self.world.history.ops.iter().all(|op| over(op.status))
            && self.world.partitions.values().all(|partition| partition.held() == 0)
            && self.world.changes_open() == 0
            && (0..self.world.seats()).all(|seat| seat + 1 < self.world.seats() || self.rests(seat))
    }

    fn rests(&self, seat: usize) -> bool {
        self.world.coordinator(seat).in_flight() == (0, 0)
    }

    fn unfinished(&self) -> String {
        let ops = self.world.history.ops.iter().enumerate().filter(|(_, op)| op.status == Status::Invoked);
        let ops: Vec<String> = ops.map(|(op, operation)| format!("{op}:{:?}", operation.kind)).collect();
        let held: Vec<String> =
            self.world.partitions.values().map(|p| format!("{} holds {}", p.id, p.held())).collect();
        let newest = self.world.coordinator(self.world.seats() - 1);
        format!("{ops:?} have no end; {held:?}; {} changes open; {newest:?}", self.world.changes_open())
    }
}

pub fn place_of(message: &Message, op: Op, partition: u32) -> bool {
    let Message::Place { to, place } = message else { return false };
    to.0 == partition && Entry::queries(place).any(|other| other == op)
}
