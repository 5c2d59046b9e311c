//! The sequential store and its logs: partitions, their entries, tickets and release.

use std::collections::{BTreeMap, VecDeque};

use super::super::event::{Call, Change, Entry, Event, LogLine, Output, Position, Text, Ticket};
use super::{Gate, Shape};
use coppice_testkit::random::Random;

pub type Bytes = Text<'static>;

#[derive(Debug)]
pub struct Partition {
    pub number: u32,
    pub low: u32,
    pub high: u32,
    /// Where the next command stands, unless it begins a new instance.
    instance: u64,
    index: u32,
    /// The last entry.
    pub tip: Position,
    pub last_ticket: Option<Ticket>,
    /// Tickets in the log that are not released yet.
    held: VecDeque<usize>,
    /// Tickets sent and not placed yet.
    pub sent: VecDeque<usize>,
    /// Tickets sent and not released yet (protocol.md 4, release rule).
    queue: VecDeque<usize>,
    /// Tickets released in this log, for [`Store::is_open`].
    pub placed: u64,
    pub released: u64,
}

/// A ticket on its way.
#[derive(Debug)]
pub struct Sent {
    pub ticket: Ticket,
    pub partitions: Vec<u32>,
    pub waits: usize,
    pub released: bool,
    /// Of an older coordinator: it never completes.
    pub void: bool,
    /// Queries that wait for it.
    pub users: usize,
    /// Parts, by partition: position, bounds and the state there.
    pub parts: Vec<(Position, u32, u32, BTreeMap<u32, Bytes>)>,
}

pub struct Store<'a> {
    shape: &'a Shape,
    pub sink: &'a mut dyn FnMut(Event<'static>),
    pub state: BTreeMap<u32, Bytes>,
    pub partitions: Vec<Partition>,
    pub tickets: Vec<Sent>,
    ballot: u64,
    ticket: u64,
    partition_number: u32,
    change: u64,
}

impl<'a> Store<'a> {
    pub fn new(shape: &'a Shape, sink: &'a mut dyn FnMut(Event<'static>)) -> Store<'a> {
        let mut store = Store {
            shape,
            sink,
            state: BTreeMap::new(),
            partitions: Vec::new(),
            tickets: Vec::new(),
            ballot: 1,
            ticket: 0,
            partition_number: 0,
            change: 0,
        };
        for at in 0..shape.partitions {
            // Boundaries lie at ordinary keys.
            let all = u64::from(shape.keys / shape.stride());
            let cut = |at: u32| (all * u64::from(at) / u64::from(shape.partitions)) as u32 * shape.stride();
            let position = Position { partition: at + 1, instance: 0, index: 0 };
            store.born(position, None, cut(at), cut(at + 1), None);
        }
        store
    }

    fn born(&mut self, at: Position, from: Option<Position>, low: u32, high: u32, ticket: Option<Ticket>) {
        self.partition_number = self.partition_number.max(at.partition);
        let lowest = if low == 0 { Text::Borrowed(&b""[..]) } else { self.shape.key(low) };
        let high_key = self.shape.bound(high);
        self.log(LogLine {
            position: at,
            replica: 1,
            ballot: None,
            entry: Entry::Born { from, low: lowest, high: high_key, ticket },
            hit: true,
        });
        let partition = Partition {
            number: at.partition,
            low,
            high,
            instance: 1,
            index: 0,
            tip: at,
            last_ticket: ticket,
            held: VecDeque::new(),
            sent: VecDeque::new(),
            queue: VecDeque::new(),
            placed: 0,
            released: 0,
        };
        let slot = self.partitions.partition_point(|each| each.low < low);
        self.partitions.insert(slot, partition);
    }

    fn log(&mut self, line: LogLine<'static>) {
        if self.shape.logs {
            for replica in 2..=self.shape.replicas {
                (self.sink)(Event::Log(LogLine { replica, ..line.clone() }));
            }
            (self.sink)(Event::Log(line));
        }
    }

    /// The partition that owns a key, by its place in the list.
    pub fn owner(&self, key: u32) -> usize {
        self.partitions.partition_point(|partition| partition.low <= key) - 1
    }

    pub fn by_number(&mut self, number: u32) -> Option<&mut Partition> {
        self.partitions.iter_mut().find(|partition| partition.number == number)
    }

    /// Appends an entry to a partition's log.
    pub fn append(&mut self, at: usize, entry: Entry<'static>, hit: bool, random: &mut Random) -> Position {
        let partition = &mut self.partitions[at];
        if partition.index > 0 && (partition.index >= self.shape.batch || random.chance(300)) {
            partition.instance += 1;
            partition.index = 0;
        }
        let position = Position { partition: partition.number, instance: partition.instance, index: partition.index };
        partition.index += 1;
        partition.tip = position;
        let ballot = Some((self.ballot, 1));
        self.log(LogLine { position, replica: 1, ballot, entry, hit });
        position
    }

    /// Runs one call.
    pub fn execute(&mut self, call: &Call<'static>) -> Output<'static> {
        let shape = self.shape;
        let number = |key: &Bytes| shape.number(key);
        let state = &mut self.state;
        match call {
            Call::Get { key } => Output::Value(state.get(&number(key)).cloned()),
            Call::Put { key, value } => Output::Value(state.insert(number(key), value.clone())),
            Call::Insert { key, value } => {
                let present = state.get(&number(key)).cloned();
                if present.is_none() {
                    state.insert(number(key), value.clone());
                }
                Output::Value(present)
            }
            Call::Delete { key } => Output::Value(state.remove(&number(key))),
            Call::Cas { key, old, value } => {
                let was = state.get(&number(key)).cloned();
                let done = was.as_ref() == Some(old);
                if done {
                    state.insert(number(key), value.clone());
                }
                Output::Cas(done, was)
            }
            Call::Range { .. } => Output::Pairs(Vec::new()),
            Call::Many(calls) => Output::List(calls.iter().map(|call| self.execute(call)).collect()),
        }
    }

    /// The pairs of a range, as an answer has them.
    pub fn pairs(&self, low: u32, high: u32) -> Vec<(Bytes, Bytes)> {
        self.state.range(low..high.max(low)).map(|(number, value)| (self.shape.key(*number), value.clone())).collect()
    }

    /// Sends a new ticket to partitions, by number.
    pub fn send(&mut self, partitions: Vec<u32>) -> usize {
        self.ticket += 1;
        let ticket = Ticket { round: self.ballot, replica: 1, number: self.ticket };
        let index = self.tickets.len();
        for &number in &partitions {
            if let Some(partition) = self.by_number(number) {
                partition.sent.push_back(index);
                partition.queue.push_back(index);
            }
        }
        let waits = partitions.len();
        self.tickets.push(Sent {
            ticket,
            partitions,
            waits,
            released: false,
            void: false,
            users: 0,
            parts: Vec::new(),
        });
        index
    }

    /// A partition places the next ticket sent to it.
    pub fn place(&mut self, at: usize, change: Option<Change<'static>>, random: &mut Random) -> Option<Position> {
        let index = self.partitions[at].sent.pop_front()?;
        let ticket = self.tickets[index].ticket;
        let last = self.partitions[at].last_ticket;
        let previous = last.filter(|last| last.same_ballot(ticket));
        if random.chance(self.shape.repeats) {
            // A copy whose predecessor was lost: it does not fit.
            let wrong = Some(Ticket { round: 0, replica: 9, number: 9 });
            self.append(at, Entry::Place { ticket, previous: wrong, change: None }, false, random);
        }
        let position = self.append(at, Entry::Place { ticket, previous, change }, true, random);
        let partition = &mut self.partitions[at];
        partition.last_ticket = Some(ticket);
        partition.placed += 1;
        partition.held.push_back(index);
        let (low, high) = (partition.low, partition.high);
        let sent = &mut self.tickets[index];
        if sent.users > 0 {
            let part = self.state.range(low..high).map(|(key, value)| (*key, value.clone())).collect();
            sent.parts.push((position, low, high, part));
        }
        sent.waits -= 1;
        self.release();
        Some(position)
    }

    /// Releases what may be released by the gate's rule.
    fn release(&mut self) {
        loop {
            let heads: Vec<usize> =
                self.partitions.iter().flat_map(|partition| partition.queue.iter().copied()).collect();
            let free = heads.into_iter().find(|index| {
                let sent = &self.tickets[*index];
                let heads_all = self.partitions.iter().all(|partition| {
                    !sent.partitions.contains(&partition.number) || partition.queue.front() == Some(index)
                });
                sent.waits == 0 && (heads_all || self.shape.gate != Gate::Right)
            });
            let Some(index) = free else { break };
            self.tickets[index].released = true;
            self.partitions.iter_mut().for_each(|partition| partition.queue.retain(|each| *each != index));
        }
        for partition in &mut self.partitions {
            while partition.held.front().is_some_and(|index| self.tickets[*index].released || self.tickets[*index].void)
            {
                // What is void is freed by the next ballot's first ticket alone (protocol.md 4.2).
                let first = partition.held.iter().position(|index| self.tickets[*index].released);
                let Some(first) = first else { break };
                let freed = if self.tickets[partition.held[0]].void { first + 1 } else { 1 };
                partition.held.drain(..freed);
                partition.released += freed as u64;
            }
        }
    }

    /// Whether an answer that observed `placed` tickets in partition `number` may leave.
    pub fn is_open(&self, number: u32, placed: u64) -> bool {
        let partition = self.partitions.iter().find(|partition| partition.number == number);
        self.shape.gate == Gate::Off || partition.is_none_or(|partition| partition.released >= placed)
    }

    /// Nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.partitions.iter().all(|partition| partition.queue.is_empty() && partition.held.is_empty())
    }

    /// A new coordinator: what is not released never completes; an empty ticket to every partition.
    pub fn new_coordinator(&mut self) {
        self.ballot += 1;
        self.ticket = 0;
        for partition in &mut self.partitions {
            for index in partition.queue.drain(..) {
                self.tickets[index].void = true;
                self.tickets[index].parts.clear();
            }
            partition.sent.clear();
        }
        self.send(self.partitions.iter().map(|partition| partition.number).collect());
    }

    /// Splits a partition, when nothing is on its way.
    pub fn split(&mut self, at: usize, cut: u32, random: &mut Random) {
        self.change += 1;
        let (number, high) = (self.partitions[at].number, self.partitions[at].high);
        let to = self.partition_number + 1;
        self.send(vec![number]);
        let change = Change::Split { id: self.change, key: self.shape.key(cut), to };
        let Some(position) = self.place(at, Some(change), random) else { return };
        self.partitions[at].high = cut;
        let ticket = self.partitions[at].last_ticket;
        let first = Position { partition: to, instance: 0, index: 0 };
        self.born(first, Some(position), cut, high, ticket);
    }

    /// Merges a partition into its left neighbour, when nothing is on its way.
    pub fn merge(&mut self, at: usize, random: &mut Random) {
        let (from, to) = (self.partitions[at].number, self.partitions[at - 1].number);
        self.change += 1;
        self.send(vec![from]);
        let Some(sealed) = self.place(at, Some(Change::Seal { id: self.change }), random) else { return };
        self.change += 1;
        self.send(vec![from, to]);
        self.place(at, Some(Change::End { id: self.change, to }), random);
        self.place(at - 1, Some(Change::Take { id: self.change, from: sealed }), random);
        self.partitions[at - 1].high = self.partitions[at].high;
        self.partitions.remove(at);
    }
}
