//! Clients on the store: operations begin, execute and end at random moments.

use std::collections::BTreeSet;

use super::super::event::{Call, Entry, Event, Head, Invoke, Output, Position, Return, Status, Text, Ticket};
use super::super::marks::{Kind, Mark, Move, MoveResult};
use super::Shape;
use super::store::{Bytes, Store};
use coppice_testkit::random::Random;

/// An operation in flight.
struct Flying {
    id: u64,
    client: u32,
    number: u64,
    call: Call<'static>,
    /// Its first key, or the range's bounds.
    low: u32,
    high: u32,
    stage: Stage,
    /// No answer will be recorded.
    lost: bool,
    stale: bool,
    /// It moves its client's ladder or token.
    moves: bool,
}

enum Stage {
    Invoked,
    /// A query whose ticket is on its way.
    Sent(usize),
    /// Ready, once the gate is open: partition and tickets that it observed there.
    Done {
        output: Output<'static>,
        positions: Vec<Position>,
        ticket: Option<Ticket>,
        gate: Option<(u32, u64)>,
    },
    Refused,
}

/// Places of a ladder or a token at most.
const PLACES_MAX: usize = 4;

/// A generator at work.
pub struct Run<'a> {
    shape: &'a Shape,
    random: Random,
    store: Store<'a>,
    now: u64,
    started: usize,
    flying: Vec<Flying>,
    idle: Vec<u32>,
    numbers: Vec<u64>,
    /// The ladder or token of each client that has one and was told of all its moves.
    marks: Vec<Option<Mark>>,
}

impl<'a> Run<'a> {
    pub fn new(shape: &'a Shape, sink: &'a mut dyn FnMut(Event<'static>)) -> Run<'a> {
        let mut random = Random::new(shape.seed);
        let state: Vec<(Bytes, Bytes)> = (0..shape.keys)
            .step_by(shape.stride() as usize)
            .filter(|_| random.chance(shape.filled))
            .map(|number| (shape.key(number), Text::Owned(format!("0.{number}").into_bytes())))
            .collect();
        let mark = |client: u32| Mark::new(Kind::ALL[client as usize % 3], shape.places(client).min(PLACES_MAX));
        let marked = if shape.marks > 0 { shape.marks_of_a_kind() } else { 0 };
        let marks = (0..shape.clients).map(|client| (client < marked).then(|| mark(client))).collect();
        let seed = Text::Owned(format!("0x{:x}", shape.seed).into_bytes());
        sink(Event::Head(Head { commit: Text::Borrowed(b"synthetic"), seed, state: state.clone(), ..Head::default() }));
        let mut store = Store::new(shape, sink);
        for (key, value) in state {
            store.execute(&Call::Put { key, value });
        }
        Run {
            shape,
            random,
            store,
            now: 1_000,
            started: 0,
            flying: Vec::new(),
            idle: (0..shape.clients).rev().collect(),
            numbers: vec![0; shape.clients as usize],
            marks,
        }
    }

    pub fn run(mut self) {
        while self.started < self.shape.operations || !self.flying.is_empty() {
            self.now += self.random.below(1_000) as u64;
            if self.started < self.shape.operations && !self.idle.is_empty() && self.random.chance(500) {
                self.invoke();
                self.change_map();
            } else if self.random.chance(400) {
                let at = self.random.below(self.store.partitions.len());
                self.store.place(at, None, &mut self.random);
            } else if !self.flying.is_empty() {
                let at = self.random.below(self.flying.len());
                self.advance(at);
            }
        }
        while !self.store.is_quiet() && self.store.partitions.iter().any(|partition| !partition.sent.is_empty()) {
            for at in 0..self.store.partitions.len() {
                self.store.place(at, None, &mut self.random);
            }
        }
    }

    fn change_map(&mut self) {
        if self.random.chance(self.shape.coordinators) {
            self.store.new_coordinator();
            for flying in &mut self.flying {
                if matches!(flying.stage, Stage::Sent(index) if !self.store.tickets[index].released) {
                    flying.stage = Stage::Invoked;
                }
            }
        }
        if !self.random.chance(self.shape.changes) || !self.store.is_quiet() {
            return;
        }
        let at = self.random.below(self.store.partitions.len());
        let (low, high) = (self.store.partitions[at].low, self.store.partitions[at].high);
        if self.random.chance(500) && at > 0 {
            let ended = self.store.partitions[at].number;
            self.store.merge(at, &mut self.random);
            // What waits for the gate of a partition that ends has passed it: nothing was on its way.
            debug_assert!(self.store.is_open(ended, u64::MAX));
        } else if high - low > self.shape.stride() {
            let stride = self.shape.stride();
            let cut = low + stride * (1 + self.random.below(((high - low) / stride - 1) as usize) as u32);
            self.store.split(at, cut, &mut self.random);
        }
    }

    fn invoke(&mut self) {
        let Some(client) = self.idle.pop() else { return };
        let swap = self.random.below(self.idle.len() + 1);
        let client = match self.idle.get_mut(swap) {
            Some(other) => std::mem::replace(other, client),
            None => client,
        };
        self.numbers[client as usize] += 1;
        let number = self.numbers[client as usize];
        let moves = self.marks[client as usize].is_some() && self.random.chance(self.shape.marks);
        let (call, low, high) = if moves { self.step(client, number) } else { self.call(client, number) };
        let read = matches!(call, Call::Get { .. } | Call::Range { .. });
        let stale = read && self.random.chance(self.shape.stale);
        self.started += 1;
        let id = self.started as u64;
        let (call_, at) = (call.clone(), self.now);
        let client_ = u64::from(client) + 1;
        (self.store.sink)(Event::Invoke(Invoke { id, at, client: client_, number, call: call_, stale }));
        let lost = self.random.chance(self.shape.unanswered);
        if lost {
            self.idle.push(client);
            if moves {
                self.marks[client as usize] = None;
            }
            if self.random.chance(500) {
                return;
            }
        }
        let refused = self.random.chance(self.shape.refused);
        let stage = if refused { Stage::Refused } else { Stage::Invoked };
        self.flying.push(Flying { id, client, number, call, low, high, stage, lost, stale, moves });
    }

    /// The next move of a client's ladder or token.
    fn step(&mut self, client: u32, number: u64) -> (Call<'static>, u32, u32) {
        let next = self.marks[client as usize].as_ref().map(|mark| (mark.kind(), mark.next()));
        let (kind, next) = next.unwrap_or((Kind::Ladder, Move::Insert(0)));
        let (Move::Insert(place) | Move::Delete(place)) = next;
        let low = self.shape.place(kind, client, place);
        let key = self.shape.key(low);
        let call = match next {
            Move::Insert(_) => {
                Call::Insert { key, value: Text::Owned(format!("{}.{number}", client + 1).into_bytes()) }
            }
            Move::Delete(_) => Call::Delete { key },
        };
        (call, low, low + 1)
    }

    fn call(&mut self, client: u32, number: u64) -> (Call<'static>, u32, u32) {
        let keys = self.shape.keys;
        let draw = self.random.below(1_000) as u32;
        let stride = self.shape.stride();
        let low = self.random.below((keys / stride) as usize) as u32 * stride;
        let Shape { gets, ranges, many, .. } = *self.shape;
        if draw < ranges {
            let (low, high) = if self.random.chance(self.shape.whole) {
                (0, keys)
            } else {
                (low, low + self.random.below((keys - low) as usize + 1) as u32)
            };
            let text = if low == 0 { Text::Borrowed(&b""[..]) } else { self.shape.key(low) };
            return (Call::Range { low: text, high: self.shape.bound(high), limit: 0, reverse: false }, low, high);
        }
        if draw < ranges + gets {
            return (Call::Get { key: self.shape.key(low) }, low, low + 1);
        }
        if draw < ranges + gets + many {
            let partition = &self.store.partitions[self.store.owner(low)];
            let (from, to) = (partition.low, partition.high);
            let calls = (0..1 + self.random.below(4))
                .map(|step| {
                    let target = from + self.random.below(((to - from) / stride) as usize) as u32 * stride;
                    self.single(target, format!("{}.{number}.{step}", client + 1), true)
                })
                .collect();
            return (Call::Many(calls), low, low + 1);
        }
        (self.single(low, format!("{}.{number}", client + 1), false), low, low + 1)
    }

    fn single(&mut self, target: u32, value: String, get: bool) -> Call<'static> {
        let (key, value) = (self.shape.key(target), Text::Owned(value.into_bytes()));
        match self.random.below(100) {
            0..45 => Call::Put { key, value },
            45..62 => Call::Insert { key, value },
            62..85 => Call::Delete { key },
            _ if get => Call::Get { key },
            _ => match self.store.state.get(&target).cloned() {
                Some(old) => Call::Cas { key, old, value },
                None => Call::Cas { key, old: Text::Borrowed(b"never"), value },
            },
        }
    }

    fn advance(&mut self, at: usize) {
        let random = &mut self.random;
        let store = &mut self.store;
        let flying = &mut self.flying[at];
        match &mut flying.stage {
            Stage::Refused => {
                let status = Status::No;
                self.finish(at, status, Output::Value(None), Vec::new(), None);
            }
            Stage::Invoked if matches!(flying.call, Call::Range { .. }) => range(store, flying, random),
            Stage::Invoked if matches!(flying.call, Call::Get { .. }) => {
                let owner = store.owner(flying.low);
                let output = store.execute(&flying.call);
                let partition = &store.partitions[owner];
                let gate = (!flying.stale).then_some((partition.number, partition.placed));
                flying.stage = Stage::Done { output, positions: vec![partition.tip], ticket: None, gate };
            }
            Stage::Invoked => command(store, flying, random, self.shape),
            Stage::Sent(index) => {
                let sent = &mut store.tickets[*index];
                if sent.released || (self.shape.gate == super::Gate::Off && sent.waits == 0) {
                    let mut parts: Vec<_> = sent.parts.iter().collect();
                    parts.sort_by_key(|part| part.1);
                    let positions: Vec<_> = parts.iter().map(|part| part.0).collect();
                    let inside = |number: &u32| (flying.low..flying.high).contains(number);
                    let pairs = parts.iter().flat_map(|part| part.3.iter()).filter(|pair| inside(pair.0));
                    let pairs: Vec<_> = pairs.map(|(number, value)| (self.shape.key(*number), value.clone())).collect();
                    let ticket = Some(sent.ticket);
                    sent.users -= 1;
                    if sent.users == 0 {
                        sent.parts = Vec::new();
                    }
                    flying.stage = Stage::Done { output: Output::Pairs(pairs), positions, ticket, gate: None };
                }
            }
            Stage::Done { output, positions, ticket, gate } => {
                if gate.is_none_or(|(number, placed)| store.is_open(number, placed)) {
                    let output = std::mem::replace(output, Output::Value(None));
                    let (positions, ticket) = (std::mem::take(positions), *ticket);
                    self.finish(at, Status::Ok, output, positions, ticket);
                }
            }
        }
    }

    fn finish(
        &mut self,
        at: usize,
        status: Status,
        output: Output<'static>,
        positions: Vec<Position>,
        ticket: Option<Ticket>,
    ) {
        let flying = self.flying.swap_remove(at);
        if !flying.lost {
            if let Some(mark) = self.marks[flying.client as usize].as_mut().filter(|_| flying.moves) {
                // This store has one client at a mark: what was done was done to what it knew.
                let told = if status == Status::No { MoveResult::Refused } else { MoveResult::Done };
                mark.told(told);
            }
            let answer = Return { id: flying.id, at: self.now, status, output, positions, ticket };
            (self.store.sink)(Event::Return(answer));
            self.idle.push(flying.client);
        }
    }
}

/// A range: read at once if it lies in one partition, else by a ticket.
fn range(store: &mut Store<'_>, flying: &mut Flying, random: &mut Random) {
    let (low, high) = (flying.low, flying.high);
    let covers: Vec<usize> = (0..store.partitions.len())
        .filter(|at| low < high && store.partitions[*at].low < high && store.partitions[*at].high > low)
        .collect();
    if covers.len() > 1 && !flying.stale {
        let numbers = covers.iter().map(|at| store.partitions[*at].number).collect::<BTreeSet<_>>();
        // Queries that arrive while a round is out share a ticket.
        let last = store.tickets.len().wrapping_sub(1);
        let shared = store.tickets.get(last).is_some_and(|sent| {
            sent.waits == sent.partitions.len() && !sent.void && numbers.iter().eq(sent.partitions.iter())
        });
        let index = if shared && random.chance(500) { last } else { store.send(numbers.into_iter().collect()) };
        store.tickets[index].users += 1;
        flying.stage = Stage::Sent(index);
        return;
    }
    let at = covers.first().copied().unwrap_or(0);
    let positions = covers.iter().map(|at| store.partitions[*at].tip).collect::<Vec<_>>();
    let positions = if positions.is_empty() { vec![store.partitions[at].tip] } else { positions };
    let gate = (!flying.stale).then_some((store.partitions[at].number, store.partitions[at].placed));
    let output = Output::Pairs(store.pairs(low, high));
    flying.stage = Stage::Done { output, positions, ticket: None, gate };
}

/// A command: into its partition's log, perhaps also, without counting, into others or twice.
fn command(store: &mut Store<'_>, flying: &mut Flying, random: &mut Random, shape: &Shape) {
    let first = match &flying.call {
        Call::Many(calls) => calls.first().map_or(flying.low, |call| key_of(shape, call)),
        call => key_of(shape, call),
    };
    let at = store.owner(first);
    let entry = Entry::Command {
        client: u64::from(flying.client) + 1,
        number: flying.number,
        call: flying.call.clone(),
        low: 0,
        session: None,
        expired: false,
    };
    let (low, high) = (store.partitions[at].low, store.partitions[at].high);
    if let Call::Many(calls) = &flying.call
        && calls.iter().any(|call| !(low..high).contains(&key_of(shape, call)))
    {
        // The partition was split meanwhile: no partition has all its keys.
        store.append(at, entry, false, random);
        flying.stage = Stage::Refused;
        return;
    }
    if random.chance(shape.repeats) {
        let other = random.below(store.partitions.len());
        if other != at {
            store.append(other, entry.clone(), false, random);
        }
    }
    let position = store.append(at, entry.clone(), true, random);
    let output = store.execute(&flying.call);
    if random.chance(shape.repeats) {
        store.append(at, entry, false, random);
    }
    let partition = &store.partitions[at];
    let gate = Some((partition.number, partition.placed));
    flying.stage = Stage::Done { output, positions: vec![position], ticket: None, gate };
}

fn key_of(shape: &Shape, call: &Call<'static>) -> u32 {
    match call {
        Call::Get { key } | Call::Put { key, .. } | Call::Insert { key, .. } => shape.number(key),
        Call::Delete { key } | Call::Cas { key, .. } => shape.number(key),
        Call::Range { .. } | Call::Many(_) => 0,
    }
}
