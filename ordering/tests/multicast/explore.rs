//! An exhaustive search of small worlds: every order of every event within the bounds, over the real coordinator,
//! chain, reporter and gate, judged at every answer (reliability.md 7, models).
//!
//! The network is the set of all messages ever said: each may arrive at any time, in any order, again and again, or
//! never. A coordinator may be deposed at any moment and go on as a zombie; a partition may lose its leader with any
//! part of its pipe; a confirmation is acknowledged while its coordinator is the newest. Clients are the observers of
//! real time: they ask as late as possible (a write when it is ordered, a query when its coordinator has it) and are
//! answered as early as possible, which is the hardest for the protocol.
//!
//! What is left out because it can make no difference: a message whose arrival changes nothing from now on; a `Place`
//! that would be a no-op and stays one; acknowledging a round while a later one of its coordinator waits too (it could
//! have been acknowledged before that began). In `eager` worlds every message but `Place` arrives at once, and rounds
//! are acknowledged at once: arriving later only answers later, and an answer that comes later binds the order less.
//! One smaller world is not eager, and shows that.
//!
//! Bounds: WORLDS below. About 1 150 000 states in all, half of them in `zombie`; 30 s on one core in the test profile.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use coppice_ordering::multicast::CoordinatorSettings;
use coppice_ordering::{ConfirmToken, PartitionId};

use crate::history::{Kind, Op, Status};
use crate::stage::Stage;
use crate::world::{Message, World};

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub partitions: u8,
    pub queries: &'static [Asked],
    /// Keys written, each list by one client, one after the other.
    pub writes: &'static [&'static [u8]],
    /// Coordinators, one after the other.
    pub seats: usize,
    /// Times that a partition changes its leader.
    pub leaders: u8,
    /// Entries undecided in a log; without leader changes deciding at once loses nothing.
    pub pipe: usize,
    /// Times that `place_timeout` passes.
    pub timeouts: u8,
    /// A split at this key.
    pub split: Option<u8>,
    /// Only a `Place` takes its time.
    pub eager: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Elect,
    Ask(usize, Op),
    Write(Op),
    Deliver(Message),
    Acknowledge(usize, ConfirmToken),
    Decide(PartitionId),
    ChangeLeader(PartitionId, u64),
    Timeout,
    Split(u8),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    world: World,
    sent: BTreeSet<Message>,
    leaders: u8,
    timeouts: u8,
    split: bool,
    eager: bool,
}

/// What a search came to.
#[derive(Debug, Default)]
pub struct Found {
    pub states: usize,
    pub steps: usize,
    /// States in which all that was asked has its end.
    pub ended: usize,
    /// The first violation, and how to get there.
    pub violation: Option<(String, Vec<String>)>,
}

/// Folded multiplication: the states are many, and SipHash would be most of the work.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (product >> 64) as u64 ^ product as u64 ^ self.0.rotate_left(23);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        let mut z = self.0 ^ self.0 >> 29;
        z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 32
    }
}

fn fingerprint(node: &Node) -> u64 {
    let mut mix = Mix::default();
    node.hash(&mut mix);
    mix.finish()
}

impl Node {
    fn first(bounds: &Bounds) -> Node {
        let mut stage = Stage::serving(bounds.partitions);
        for (ranges, _) in bounds.queries {
            stage.world.history.plan(Kind::Query { ranges: ranges.to_vec() }, None);
        }
        for keys in bounds.writes {
            let mut after = None;
            for key in *keys {
                after = Some(stage.world.history.plan(Kind::Write { key: *key }, after));
            }
        }
        let Bounds { leaders, timeouts, split, eager, .. } = *bounds;
        Node { world: stage.world, sent: BTreeSet::new(), leaders, timeouts, split: split.is_some(), eager }
    }

    fn actions(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        let world = &self.world;
        let room = |partition: PartitionId| {
            world.partitions.get(&partition).is_some_and(|partition| partition.undecided() < bounds.pipe)
        };
        if world.seats() < bounds.seats {
            actions.push(Action::Elect);
        }
        for (op, operation) in world.history.ops.iter().enumerate() {
            match operation.kind {
                Kind::Query { .. } if operation.status == Status::Planned => {
                    let seat = bounds.queries[op].1;
                    actions.extend((seat + 1 == world.seats()).then_some(Action::Ask(seat, op)));
                }
                Kind::Write { key } => {
                    let owner = world.owner(key);
                    // A client whose write is lost sends it again.
                    let has = world.partitions.get(&owner).is_some_and(|partition| partition.has(op));
                    let lost = operation.status == Status::Invoked && !has;
                    if (world.history.may_invoke(op) || lost) && room(owner) {
                        actions.push(Action::Write(op));
                    }
                }
                Kind::Query { .. } => {}
            }
        }
        let arrives = |message: &&Message| match message {
            Message::Place { to, place } => room(*to) && world.partitions[to].would_place(place, self.leaders > 0),
            Message::Released { .. } | Message::Placed { .. } | Message::Confirmed { .. } => true,
        };
        actions.extend(self.sent.iter().filter(arrives).cloned().map(Action::Deliver));
        actions.extend(world.confirming().last().map(|(seat, token)| Action::Acknowledge(*seat, *token)));
        for (id, partition) in &world.partitions {
            let undecided = partition.undecided();
            if undecided > 0 {
                actions.push(Action::Decide(*id));
            }
            if self.leaders > 0 {
                actions.extend((0..1_u64 << undecided).map(|survives| Action::ChangeLeader(*id, survives)));
            }
        }
        if self.timeouts > 0 {
            actions.push(Action::Timeout);
        }
        if self.split {
            actions.extend(bounds.split.map(Action::Split));
        }
        actions
    }

    fn act(&mut self, action: Action) {
        let world = &mut self.world;
        match action {
            Action::Elect => drop(world.elect()),
            Action::Ask(seat, op) => world.query(seat, op),
            Action::Write(op) => world.write(op),
            Action::Deliver(Message::Placed { from, ticket }) => {
                self.sent.remove(&Message::Placed { from, ticket });
                world.placed(ticket.ballot.replica.0 as usize, from, ticket);
            }
            Action::Deliver(message) => {
                if let Message::Confirmed { to, token } = message {
                    let older =
                        |m: &Message| matches!(m, Message::Confirmed { to: t, token: o } if *t == to && *o <= token);
                    self.sent.retain(|message| !older(message));
                }
                world.deliver(message);
            }
            Action::Acknowledge(seat, token) => {
                world.forget_rounds_before(seat, token);
                world.acknowledge((seat, token));
            }
            Action::Decide(partition) => world.decide(partition, 1),
            Action::ChangeLeader(partition, survives) => {
                self.leaders -= 1;
                world.change_leader(partition, |at| survives & 1 << at != 0);
            }
            Action::Timeout => {
                self.timeouts -= 1;
                let timeout: Duration = CoordinatorSettings::default().place_timeout;
                world.pass(world.now + timeout);
            }
            Action::Split(key) => {
                self.split = false;
                world.split(key);
            }
        }
        self.follow();
    }

    fn follow(&mut self) {
        let world = &mut self.world;
        // Without a change of leader to come, an entry that is not decided yet is as good as not proposed yet.
        if self.leaders == 0 {
            let ids: Vec<PartitionId> = world.partitions.keys().copied().collect();
            ids.into_iter().for_each(|id| world.decide(id, usize::MAX));
        }
        if self.eager
            && let Some(round) = world.confirming().last().copied()
        {
            world.forget_rounds_before(round.0, round.1);
            world.acknowledge(round);
        }
        for message in std::mem::take(&mut world.out) {
            if self.eager && !matches!(message, Message::Place { .. }) {
                world.deliver(message);
            } else {
                self.sent.insert(message);
            }
        }
        if world.out.is_empty() && (world.confirming().is_empty() || !self.eager) {
            self.tidy();
        } else {
            self.follow();
        }
    }

    /// Forgets what can make no difference from now on.
    fn tidy(&mut self) {
        let (world, leaders) = (&self.world, self.leaders);
        self.sent.retain(|message| match message {
            Message::Place { to, place } => {
                world.partitions.get(to).is_none_or(|partition| !partition.is_past(place.ticket))
            }
            Message::Released { to, watermark } => {
                leaders > 0 || world.partitions.get(to).is_none_or(|partition| !partition.knows(*watermark))
            }
            Message::Placed { .. } | Message::Confirmed { .. } => true,
        });
    }

    fn has_ended(&self) -> bool {
        self.world.history.ops.iter().all(|op| matches!(op.status, Status::Answered | Status::Aborted))
    }
}

/// Walks through every state within the bounds, depth first, until one breaks a rule.
pub fn explore(bounds: &Bounds) -> Found {
    let mut found = Found::default();
    let mut visited: HashSet<u64, BuildHasherDefault<Mix>> = HashSet::default();
    let first = Node::first(bounds);
    visited.insert(fingerprint(&first));
    let mut path: Vec<(Node, Vec<Action>, Option<Action>)> = vec![(first.clone(), first.actions(bounds), None)];
    while let Some((node, actions, _)) = path.last_mut() {
        let Some(action) = actions.pop() else {
            found.ended += usize::from(node.has_ended());
            path.pop();
            continue;
        };
        let mut next = node.clone();
        found.steps += 1;
        let said = action.clone();
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| next.act(action.clone()))) {
            let text = why.downcast_ref::<String>().cloned();
            let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
            let mut story: Vec<String> =
                path.iter().filter_map(|(_, _, by)| Some(format!("{:?}", by.as_ref()?))).collect();
            story.push(format!("{said:?}"));
            found.violation = Some((text, story));
            break;
        }
        if visited.insert(fingerprint(&next)) {
            let actions = next.actions(bounds);
            path.push((next, actions, Some(said)));
        }
    }
    found.states = visited.len();
    found
}

/// A query: the ranges that it reads, and the coordinator that is asked. Asking a deposed one is like having asked it
/// before: nobody waits for an answer.
type Asked = (&'static [(u8, u8)], usize);

/// All orders in which three overlapping queries of two partitions each are placed, with the writes of ordering.md 5:
/// x, then y, by one client, and w by another.
const TRIANGLE: Bounds = Bounds {
    partitions: 3,
    queries: &[(&[(20, 40)], 0), (&[(10, 30)], 0), (&[(10, 20), (30, 40)], 0)],
    writes: &[&[11, 31], &[21]],
    seats: 1,
    leaders: 0,
    pipe: 1,
    timeouts: 0,
    split: None,
    eager: true,
};

/// The same, with a change of the coordinator at any moment; the third query goes to the new one.
const ZOMBIE: Bounds =
    Bounds { queries: &[(&[(20, 40)], 0), (&[(10, 30)], 0), (&[(10, 20), (30, 40)], 1)], seats: 2, ..TRIANGLE };

/// Two partitions and every message in its own time, with a change of the coordinator.
const LAZY: Bounds = Bounds {
    partitions: 2,
    queries: &[(&[(10, 30)], 0), (&[(10, 30)], 1)],
    writes: &[&[11, 21]],
    seats: 2,
    eager: false,
    ..TRIANGLE
};

/// A partition's leader changes and may lose any part of a pipe of two.
const LEADERS: Bounds = Bounds {
    partitions: 2,
    queries: &[(&[(10, 30)], 0), (&[(10, 30)], 0)],
    writes: &[&[11, 21], &[22]],
    leaders: 1,
    pipe: 2,
    ..TRIANGLE
};

/// `place_timeout` passes once, at any moment.
const TIMEOUT: Bounds = Bounds { timeouts: 1, queries: &[(&[(20, 40)], 0), (&[(10, 30)], 0)], ..TRIANGLE };

/// P1 is split at any moment.
const SPLIT: Bounds = Bounds {
    partitions: 2,
    queries: &[(&[(10, 30)], 0), (&[(10, 30)], 0)],
    writes: &[&[16, 21], &[11]],
    split: Some(15),
    ..TRIANGLE
};

/// Every world, by name.
pub const WORLDS: &[(&str, &Bounds)] = &[
    ("triangle", &TRIANGLE),
    ("zombie", &ZOMBIE),
    ("lazy", &LAZY),
    ("leaders", &LEADERS),
    ("timeout", &TIMEOUT),
    ("split", &SPLIT),
];

/// Walks through the world of this name; panics where a rule is broken, with the way there.
pub fn search(name: &str) {
    let (_, bounds) = WORLDS.iter().find(|(world, _)| *world == name).expect("a world of this name");
    let since = std::time::Instant::now();
    let found = explore(bounds);
    let (states, steps, ended) = (found.states, found.steps, found.ended);
    println!("{name}: {states} states, {steps} steps, {ended} with all at their end, {:?}", since.elapsed());
    if let Some((why, story)) = &found.violation {
        story.iter().for_each(|line| println!("  {line}"));
        panic!("{why}");
    }
    assert!(ended > 0, "{name}: nothing ever ends");
}

/// The largest world has a test of its own, so that it runs beside the others.
#[test]
fn every_order_of_a_zombie_coordinator_is_linearizable() {
    search("zombie");
}

#[test]
fn every_order_of_the_other_small_worlds_is_linearizable() {
    WORLDS.iter().filter(|(name, _)| *name != "zombie").for_each(|(name, _)| search(name));
}
