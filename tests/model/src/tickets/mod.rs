//! An exhaustive search of small worlds: every order of every event within the bounds, over the real coordinator,
//! chain, acknowledger and gate, judged at every answer (hazards.md 7, models).
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
//! Two worlds are not eager, and show that: one with a change of the coordinator, one of three partitions and queries.
//!
//! Ranges that are read twice without a ticket take part by their rules (`collect`): each partition answers at any
//! position that these allow, and what a range saw of a write binds the order, as do those that were answered before
//! it. Worlds in which something is left out that this takes must break (`WEAK`).
//!
//! Bounds: `worlds`. About 11 600 000 states in those with a name: 7 000 000 in `lazy of three`, half of the others in
//! `read twice, of three`.

pub mod collect;
pub mod history;
mod part;
pub mod partition;
pub mod scripts;
pub mod stage;
pub mod world;
mod worlds;

use std::collections::BTreeSet;
use std::time::Duration;

use collect::Collecting;
use coppice_ordering::multicast::CoordinatorSettings;
use coppice_ordering::{ConfirmToken, PartitionId};
use history::{Kind, Op, Status};
use stage::Stage;
use world::{Message, World};
pub use worlds::{WEAK, WORLDS, worlds};

use super::search::Model;

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub partitions: u8,
    pub queries: Vec<Asked>,
    /// Ranges that are read twice, without a ticket.
    pub collects: Vec<Vec<(u8, u8)>>,
    pub collecting: Collecting,
    /// Keys written, each list by one client, one after the other.
    pub writes: Vec<Vec<u8>>,
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

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bounds { partitions, queries, writes, seats, leaders, pipe, timeouts, split, eager, .. } = self;
        let writes: usize = writes.iter().map(Vec::len).sum();
        write!(f, "{partitions} partitions, {} queries, {writes} writes, {seats} coordinators", queries.len())?;
        write!(f, ", {leaders} changes of a leader, {pipe} undecided entries of a log, {timeouts} place_timeouts")?;
        write!(f, ", {} splits", u8::from(split.is_some()))?;
        if !self.collects.is_empty() {
            write!(f, ", {} ranges read twice{}", self.collects.len(), self.collecting)?;
        }
        f.write_str(if *eager { "; only a Place takes its time" } else { "; every message takes its time" })
    }
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Elect,
    Ask(usize, Op),
    Write(Op),
    Deliver(Message),
    Acknowledge(usize, ConfirmToken),
    Decide(PartitionId),
    ChangeLeader(PartitionId, u64),
    Timeout,
    Split(u8),
    /// A partition reads its part of a collect, or says whether it has changed, as of this position.
    Collect(Op, PartitionId, usize),
}

/// A world, and what is left of its bounds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Node {
    world: World,
    sent: BTreeSet<Message>,
    leaders: u8,
    timeouts: u8,
    split: bool,
    eager: bool,
}

impl Node {
    fn first(bounds: &Bounds) -> Node {
        let mut stage = Stage::serving(bounds.partitions);
        for (ranges, _) in &bounds.queries {
            stage.world.history.plan(Kind::Query { ranges: ranges.to_vec() }, None);
        }
        for keys in &bounds.writes {
            let mut after = None;
            for key in keys {
                after = Some(stage.world.history.plan(Kind::Write { key: *key }, after));
            }
        }
        for ranges in &bounds.collects {
            stage.world.history.plan(Kind::Collect { ranges: ranges.clone() }, None);
        }
        stage.world.collecting = bounds.collecting;
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
                    let newest = world.seats() - 1;
                    let seat = bounds.queries[op].1.unwrap_or(newest);
                    actions.extend((seat == newest).then_some(Action::Ask(seat, op)));
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
                Kind::Collect { .. } => {
                    for id in world.partitions.keys() {
                        let positions = world.positions(op, *id).into_iter();
                        actions.extend(positions.map(|at| Action::Collect(op, *id, at)));
                    }
                }
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
            Action::Collect(op, partition, position) => world.collect(op, partition, position),
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

/// A query: the ranges that it reads, and the coordinator that is asked; none: the newest there is. Asking a deposed
/// one is like having asked it before: nobody waits for an answer.
type Asked = (Vec<(u8, u8)>, Option<usize>);

impl Model for Bounds {
    type State = Node;
    type Action = Action;

    fn first(&self) -> Node {
        Node::first(self)
    }

    fn actions(&self, state: &Node) -> Vec<Action> {
        state.actions(self)
    }

    fn act(&self, state: &mut Node, action: Action) {
        state.act(action);
    }

    fn has_ended(&self, state: &Node) -> bool {
        state.has_ended()
    }
}
