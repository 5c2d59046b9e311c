//! Coordinators, partitions and clients, without a network: what they say goes to whoever drives the world, who decides
//! what arrives, when, how often, and whether at all. Every drive is judged by the same rules. The parts of a world are
//! shared, because an exhaustive search copies it at every step.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use coppice_ordering::multicast::{Change, Coordinator, CoordinatorSettings, Effect, Input, Place, Query};
use coppice_ordering::{Ballot, ChangeId, ConfirmToken, MapVersion, PartitionId, QueryId, Ticket, Time};

use super::collect::Collecting;
use super::history::{History, Op, Status};
use super::partition::{Entry, Partition, Said};

/// Keys of one partition at the start: p1 has 10..20, p2 20..30 and so on.
pub const KEYS: u8 = 10;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// To the leader of the partition.
    Place { to: PartitionId, place: Rc<Place> },
    /// To the leader of the partition.
    Released { to: PartitionId, watermark: Ticket },
    /// To whichever coordinator.
    Placed { from: PartitionId, ticket: Ticket },
    /// The end of a confirmation round, to the coordinator that began it.
    Confirmed { to: usize, token: ConfirmToken },
}

/// The directory: the decided map and its changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Map {
    version: MapVersion,
    /// Low key and partition, ascending.
    boundaries: BTreeMap<u8, PartitionId>,
    end: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seat {
    coordinator: Coordinator,
    /// The map that its node has decided; a deposed one hears no news.
    map: Map,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Time,
    settings: CoordinatorSettings,
    /// The i-th leads in ballot i + 1. All but the last are deposed, and do not know it.
    seats: Vec<Rc<Seat>>,
    /// Rounds begun and not acknowledged.
    confirming: BTreeSet<(usize, ConfirmToken)>,
    pub partitions: BTreeMap<PartitionId, Rc<Partition>>,
    map: Map,
    /// Decided changes that nobody said to be done.
    changes: Vec<Change>,
    pub history: History,
    pub collecting: Collecting,
    /// Said since the driver last took it.
    pub out: Vec<Message>,
}

impl World {
    /// So many partitions, no coordinator yet.
    pub fn new(partitions: u8, settings: CoordinatorSettings) -> World {
        let ids = 1..=partitions;
        let map = Map {
            version: MapVersion(1),
            boundaries: ids.clone().map(|id| (id * KEYS, PartitionId(u32::from(id)))).collect(),
            end: (partitions + 1) * KEYS,
        };
        let partition = |id: u8| Partition::new(PartitionId(u32::from(id)), (id * KEYS, (id + 1) * KEYS));
        World {
            now: Time::ZERO,
            settings,
            seats: Vec::new(),
            confirming: BTreeSet::new(),
            partitions: ids.map(|id| (PartitionId(u32::from(id)), Rc::new(partition(id)))).collect(),
            map,
            changes: Vec::new(),
            history: History::default(),
            collecting: Collecting::AsItShould,
            out: Vec::new(),
        }
    }

    /// Another replica is elected in the directory: from now on no earlier coordinator's round can be acknowledged.
    pub fn elect(&mut self) -> usize {
        let seat = self.seats.len();
        let coordinator = Coordinator::new(self.settings.clone());
        self.seats.push(Rc::new(Seat { coordinator, map: self.map.clone() }));
        let ballot = Ballot::new(seat as u64 + 1, seat as u32);
        let partitions = self.map.boundaries.values().copied().collect();
        let (map, changes) = (self.map.version, self.changes.clone());
        self.step(seat, Input::Lead { ballot, map, partitions, changes });
        seat
    }

    /// The newest coordinator's node is gone, and with it what it knew; its clients hear that.
    pub fn kill_coordinator(&mut self) {
        let seat = self.seats.len() - 1;
        self.step(seat, Input::Resign);
    }

    /// Coordinators so far.
    pub fn seats(&self) -> usize {
        self.seats.len()
    }

    pub fn coordinator(&self, seat: usize) -> &Coordinator {
        &self.seats[seat].coordinator
    }

    /// Feeds a coordinator and does what it says.
    pub fn step(&mut self, seat: usize, input: Input) {
        let mut effects = Vec::new();
        Rc::make_mut(&mut self.seats[seat]).coordinator.step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Place { partition, place } => {
                    self.out.push(Message::Place { to: partition, place: Rc::new(place) })
                }
                Effect::Released { partition, watermark } => {
                    self.out.push(Message::Released { to: partition, watermark });
                }
                Effect::Confirm(token) => drop(self.confirming.insert((seat, token))),
                Effect::Cut { .. } => {}
                Effect::Complete { query, .. } => self.complete(query),
                Effect::Aborted { query, .. } | Effect::Refused { query, .. } => {
                    let op = query.0 as Op;
                    assert_ne!(self.history.ops[op].status, Status::Answered, "I12: a completed query is aborted");
                    self.history.change(op).status = Status::Aborted;
                }
                Effect::Changed { id, .. } => self.changes.retain(|change| change.id != id),
            }
        }
    }

    fn complete(&mut self, query: QueryId) {
        let op = query.0 as Op;
        assert_eq!(self.history.ops[op].status, Status::Invoked, "I12: an aborted query is completed");
        self.history.tiles(op).unwrap_or_else(|why| panic!("{why}"));
        self.history.answer(op);
        self.judge();
    }

    pub(super) fn judge(&self) {
        self.history.check(&self.partitions).unwrap_or_else(|why| panic!("not linearizable: {why}"));
    }

    /// A client's query reaches this coordinator, which cuts it by the map of its node.
    pub fn query(&mut self, seat: usize, op: Op) {
        self.history.invoke(op);
        let map = &self.seats[seat].map;
        let ends = map.boundaries.keys().skip(1).copied().chain([map.end]);
        let ranges = map.boundaries.iter().zip(ends).map(|((from, partition), to)| (*partition, *from, to));
        let parts = ranges.filter(|(_, from, to)| !self.history.ranges(op, (*from, *to)).is_empty());
        let parts = parts.map(|(partition, ..)| (partition, Bytes::new())).collect();
        let query = Query { id: QueryId(op as u64), map: map.version, parts };
        self.step(seat, Input::Query(query));
    }

    /// Into a partition's pipe, past its present leader.
    pub fn append(&mut self, partition: PartitionId, entry: Entry) {
        self.at(partition, |partition, history, _| partition.append(entry, history));
    }

    /// A client's write, first sent or again, reaches the leader of the partition that owns its key by the newest map.
    pub fn write(&mut self, op: Op) {
        let partition = self.owner(self.history.key(op));
        self.write_at(partition, op);
    }

    /// The same by an older map.
    pub fn write_at(&mut self, partition: PartitionId, op: Op) {
        if self.history.ops[op].status == Status::Planned {
            self.history.invoke(op);
        }
        self.append(partition, Entry::Write(op));
    }

    pub fn owner(&self, key: u8) -> PartitionId {
        let owner = self.map.boundaries.range(..=key).next_back();
        *owner.expect("every key has an owner").1
    }

    /// Whether a boundary may be set at this key.
    pub fn may_split(&self, key: u8) -> bool {
        !self.map.boundaries.contains_key(&key) && self.map.boundaries.keys().next().is_some_and(|low| *low < key)
    }

    /// The directory decides to split the partition that owns `key` there; its leader tells its coordinator.
    pub fn split(&mut self, key: u8) -> PartitionId {
        let (parent, child) = (self.owner(key), PartitionId(self.map.boundaries.len() as u32 + 1));
        self.map.version = MapVersion(self.map.version.0 + 1);
        self.map.boundaries.insert(key, child);
        let change = Change {
            id: ChangeId(self.map.version.0),
            map: self.map.version,
            partitions: BTreeSet::from([parent, child]),
            first: None,
            payload: Bytes::from(vec![parent.0 as u8, key, child.0 as u8]),
        };
        self.changes.push(change.clone());
        if let Some(seat) = self.seats.len().checked_sub(1) {
            Rc::make_mut(&mut self.seats[seat]).map = self.map.clone();
            self.step(seat, Input::Change(change));
        }
        child
    }

    /// Changes that nobody said to be done.
    pub fn changes_open(&self) -> usize {
        self.changes.len()
    }

    pub fn deliver(&mut self, message: Message) {
        match message {
            Message::Place { to, place } => {
                self.at(to, |partition, history, _| partition.propose_place(place, history));
            }
            Message::Released { to, watermark } => self.at(to, |partition, _, _| partition.released(watermark)),
            Message::Placed { from, ticket } => {
                // To the coordinator that gave this ticket out, and to the present one.
                let seat = ticket.ballot.replica.0 as usize;
                for seat in BTreeSet::from([seat, self.seats.len() - 1]) {
                    self.placed(seat, from, ticket);
                }
            }
            Message::Confirmed { to, token } => self.step(to, Input::Confirmed(token)),
        }
    }

    /// `Placed` reaches one coordinator.
    pub fn placed(&mut self, seat: usize, partition: PartitionId, ticket: Ticket) {
        self.step(seat, Input::Placed { partition, ticket });
    }

    /// Rounds that a quorum can still acknowledge: none of a deposed coordinator.
    pub fn confirming(&self) -> Vec<(usize, ConfirmToken)> {
        self.confirming.iter().filter(|(seat, _)| seat + 1 == self.seats.len()).copied().collect()
    }

    /// A quorum acknowledges a round; that it did is on its way.
    pub fn acknowledge(&mut self, (seat, token): (usize, ConfirmToken)) {
        assert!(self.confirming.remove(&(seat, token)) && seat + 1 == self.seats.len());
        self.out.push(Message::Confirmed { to: seat, token });
    }

    /// Rounds before this one are as good as never begun: it confirms all that they would.
    pub fn forget_rounds_before(&mut self, seat: usize, token: ConfirmToken) {
        self.confirming.retain(|round| round.0 != seat || round.1 >= token);
    }

    /// The next `count` entries of a partition's pipe are decided.
    pub fn decide(&mut self, partition: PartitionId, count: usize) {
        self.at(partition, |partition, _, said| partition.decide(count, said));
    }

    /// Another replica leads the partition, and finds of the pipe what `survives`.
    pub fn change_leader(&mut self, partition: PartitionId, survives: impl Fn(usize) -> bool) {
        self.at(partition, |partition, history, said| partition.change_leader(&survives, history, said));
    }

    /// It is `to`: who waits for that acts.
    pub fn pass(&mut self, to: Time) {
        self.now = self.now.max(to);
        for seat in 0..self.seats.len() {
            if self.seats[seat].coordinator.deadline().is_some_and(|at| at <= self.now) {
                self.step(seat, Input::Tick);
            }
        }
        let due = |partition: &Partition| partition.deadline().is_some_and(|at| at <= self.now);
        let due: Vec<PartitionId> = self.partitions.values().filter(|p| due(p)).map(|p| p.id).collect();
        for partition in due {
            self.at(partition, |_, _, _| {});
        }
    }

    /// What somebody waits for next.
    pub fn deadline(&self) -> Option<Time> {
        let seats = self.seats.iter().filter_map(|seat| seat.coordinator.deadline());
        seats.chain(self.partitions.values().filter_map(|partition| partition.deadline())).min()
    }

    /// Something happens at a partition; then all that may leave leaves.
    fn at(&mut self, id: PartitionId, event: impl FnOnce(&mut Partition, &History, &mut Said)) {
        // It may not be born yet: then nobody listens.
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let mut said = Said::default();
        event(Rc::make_mut(partition), &self.history, &mut said);
        self.let_out(id, said);
    }

    fn let_out(&mut self, id: PartitionId, mut said: Said) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        Rc::make_mut(partition).say(self.now, &mut said);
        for (op, part) in said.parts {
            self.history.change(op).parts.entry(id).or_insert(part);
        }
        for fork in said.forks {
            let child = Partition::child(id, fork);
            let born = child.id;
            self.partitions.entry(born).or_insert(Rc::new(child));
            self.let_out(born, Said::default());
        }
        if let Some(ticket) = said.placed {
            self.out.push(Message::Placed { from: id, ticket });
        }
        for op in said.answered {
            if self.history.ops[op].status == Status::Invoked {
                self.history.answer(op);
                self.judge();
            }
        }
    }
}
