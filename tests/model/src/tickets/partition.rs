//! A partition as the multicast sees it: a log with a decided part and a pipe, the real chain, acknowledger and gate,
//! and a leader that may change and lose what is not decided.

use std::rc::Rc;
use std::time::Duration;

use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Chain, ChangeId, Gate, Instance, PartitionId, PlacementAcknowledger, Ticket, Time};

use super::history::{History, Op, Part, Status};

/// Between two `Placed` of the same ticket.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(20);

/// One instance holds one entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Write(Op),
    Place(Rc<Place>),
    NoOp,
}

impl Entry {
    /// The queries that a place answers.
    pub fn queries(place: &Place) -> impl Iterator<Item = Op> + '_ {
        let subs = match &place.work {
            Work::Queries(subs) => subs.as_slice(),
            Work::Nothing | Work::Change { .. } => &[],
        };
        subs.iter().map(|sub| sub.query.0 as Op)
    }
}

/// The replicated state at one position of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    chain: Chain,
    /// The upper bound of the keys; a split moves it.
    high: u8,
    applied: Vec<ChangeId>,
    /// Writes that took effect, here or where this partition was split off: the sessions.
    done: u64,
}

/// A partition that is split off.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    child: PartitionId,
    at: usize,
    low: u8,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    pub id: PartitionId,
    low: u8,
    /// The log that this one goes on from, and up to where.
    pub born: Option<(PartitionId, usize)>,
    pub log: Vec<Entry>,
    /// The log's verdict on each entry, all of which ran speculatively: whether it took effect.
    pub hits: Vec<bool>,
    pub decided: usize,
    /// The last ticket at the beginning of this log.
    first: Option<Ticket>,
    last_executed: State,
    /// Before each entry above `decided`.
    marks: Vec<State>,
    /// Parts and forks of entries above `decided`.
    parts: Vec<(Op, Part)>,
    forks: Vec<Fork>,
    gate: Gate<Op>,
    acknowledger: PlacementAcknowledger,
}

/// What a partition says after an event.
#[derive(Default)]
pub struct Said {
    pub answered: Vec<Op>,
    pub placed: Option<Ticket>,
    pub parts: Vec<(Op, Part)>,
    pub forks: Vec<Fork>,
}

impl Partition {
    pub fn new(id: PartitionId, (low, high): (u8, u8)) -> Partition {
        let state = State { chain: Chain::default(), high, applied: Vec::new(), done: 0 };
        Partition { born: None, ..Partition::child(id, Fork { child: id, at: 0, low, state }) }
    }

    /// Starts from a fork of `parent`, at the parent's last ticket.
    pub fn child(parent: PartitionId, fork: Fork) -> Partition {
        let Fork { child, at, low, state } = fork;
        let first = state.chain.last_ticket();
        let mut acknowledger = PlacementAcknowledger::new(REPORT_INTERVAL, Instance::ZERO, first);
        acknowledger.lead();
        Partition {
            id: child,
            low,
            born: Some((parent, at)),
            log: Vec::new(),
            hits: Vec::new(),
            decided: 0,
            first,
            last_executed: state,
            marks: Vec::new(),
            parts: Vec::new(),
            forks: Vec::new(),
            gate: Gate::new(Instance::ZERO, None),
            acknowledger,
        }
    }

    /// Whether a reply as of this position may leave now: that is for the gate to say.
    pub fn lets_out(&self, position: usize) -> bool {
        let places = self.log[..position].iter().zip(&self.hits).rev();
        let last = places.filter(|(_, hit)| **hit).find_map(|(entry, _)| match entry {
            Entry::Place(place) => Some(place.ticket),
            Entry::Write(_) | Entry::NoOp => None,
        });
        let mut gate = Gate::new(Instance::ZERO, None);
        gate.hold(Instance(position as u64), last.or(self.first), ());
        gate.decided(Instance(self.decided as u64));
        if let Some(watermark) = self.acknowledger.watermark() {
            gate.released(watermark);
        }
        gate.pop().is_some()
    }

    /// The keys that it has after all that is decided.
    pub fn bounds(&self) -> (u8, u8) {
        (self.low, self.marks.first().unwrap_or(&self.last_executed).high)
    }

    /// Entries in the pipe.
    pub fn undecided(&self) -> usize {
        self.log.len() - self.decided
    }

    /// Replies behind the gate.
    pub fn held(&self) -> usize {
        self.gate.len()
    }

    /// Whether the write stands in the log already.
    pub fn has(&self, op: Op) -> bool {
        self.last_executed.done & 1 << op != 0
    }

    /// When the acknowledger wants to repeat itself.
    pub fn deadline(&self) -> Option<Time> {
        self.acknowledger.deadline()
    }

    /// A `Place` reaches the leader.
    pub fn propose_place(&mut self, place: Rc<Place>, history: &History) {
        if self.acknowledger.wants(place.ticket) {
            self.append(Entry::Place(place), history);
        }
    }

    /// Whether a `Place` that arrives now counts, or may count later if `lossy` pipes lose what stands before it.
    pub fn would_place(&self, place: &Place, lossy: bool) -> bool {
        let mut chain = self.last_executed.chain;
        Some(place.ticket) > chain.last_ticket()
            && (chain.place(place.ticket, place.prev) || lossy && self.undecided() > 0)
    }

    /// Whether this ticket can never count again here.
    pub fn is_past(&self, ticket: Ticket) -> bool {
        self.undecided() == 0 && Some(ticket) <= self.last_executed.chain.last_ticket()
    }

    /// Whether this watermark is no news.
    pub fn knows(&self, watermark: Ticket) -> bool {
        Some(watermark) <= self.acknowledger.watermark()
    }

    /// Into the pipe, whatever the leader thinks of it: an older leader may have let it in.
    pub fn append(&mut self, entry: Entry, history: &History) {
        self.log.push(entry);
        let instance = self.log.len();
        self.marks.push(self.last_executed.clone());
        let hit = match self.log[instance - 1].clone() {
            Entry::NoOp => false,
            Entry::Write(op) => self.write(instance, op, history),
            Entry::Place(place) => self.place(instance, &place, history),
        };
        self.hits.push(hit);
    }

    fn write(&mut self, instance: usize, op: Op, history: &History) -> bool {
        let known = self.has(op);
        // Checked when applied, not when routed (hazards.md MV2). A repeated number gets the stored reply.
        let mine = (self.low..self.last_executed.high).contains(&history.key(op));
        if known || mine {
            self.last_executed.done |= 1 << op;
            self.gate.hold(Instance(instance as u64), self.last_executed.chain.last_ticket(), op);
        }
        mine && !known
    }

    fn place(&mut self, instance: usize, place: &Place, history: &History) -> bool {
        let last = self.last_executed.chain.last_ticket();
        if !self.last_executed.chain.place(place.ticket, place.prev) {
            return false;
        }
        assert!(Some(place.ticket) > last, "I10: {} counts after {last:?} in {}", place.ticket, self.id);
        self.acknowledger.placed(Instance(instance as u64), place.ticket);
        for op in Entry::queries(place) {
            // As of this position, cut by the bounds that hold here.
            let ranges = history.ranges(op, (self.low, self.last_executed.high));
            self.parts.push((op, Part { instance, ranges }));
        }
        if let Work::Change { id, payload } = &place.work {
            self.split(*id, payload, instance);
        }
        true
    }

    /// `[parent, key, child]`. Idempotent by the change's id (hazards.md MV8).
    fn split(&mut self, id: ChangeId, payload: &[u8], at: usize) {
        let [parent, low, child] = payload else { panic!("a split of three bytes") };
        if self.last_executed.applied.contains(&id) {
            return;
        }
        self.last_executed.applied.push(id);
        if self.id != PartitionId(u32::from(*parent)) {
            return;
        }
        let state = State { chain: self.last_executed.chain.child(), ..self.last_executed.clone() };
        self.last_executed.high = *low;
        self.forks.push(Fork { child: PartitionId(u32::from(*child)), at, low: *low, state });
    }

    /// The next `count` entries of the pipe are decided.
    pub fn decide(&mut self, count: usize, said: &mut Said) {
        let count = count.min(self.undecided());
        self.decided += count;
        self.marks.drain(..count);
        let parts = self.parts.iter().take_while(|(_, part)| part.instance <= self.decided).count();
        said.parts.extend(self.parts.drain(..parts));
        let forks = self.forks.iter().take_while(|fork| fork.at <= self.decided).count();
        said.forks.extend(self.forks.drain(..forks));
        let upto = Instance(self.decided as u64);
        self.gate.decided(upto);
        self.acknowledger.decided(upto);
    }

    pub fn released(&mut self, watermark: Ticket) {
        self.acknowledger.released(watermark);
    }

    /// What may leave after an event.
    pub fn say(&mut self, now: Time, said: &mut Said) {
        if let Some(watermark) = self.acknowledger.watermark() {
            self.gate.released(watermark);
        }
        said.answered.extend(std::iter::from_fn(|| self.gate.pop()));
        said.placed = self.acknowledger.poll(now);
    }

    /// Another replica leads: it finds the decided log, and of the pipe what `survives`, with no-ops in the holes.
    /// Whoever waits asks again under the same number and gets the stored reply, through the new leader's gate.
    pub fn change_leader(&mut self, survives: impl Fn(usize) -> bool, history: &History, said: &mut Said) {
        let decided = Instance(self.decided as u64);
        // What ran speculatively is undone: by the real acknowledger and gate, and by the marks.
        self.acknowledger.undo_from(decided.next());
        self.gate.undo_from(decided.next()).for_each(drop);
        self.hits.truncate(self.decided);
        self.parts.clear();
        self.forks.clear();
        if let Some(mark) = self.marks.drain(..).next() {
            self.last_executed = mark;
        }
        let mut pipe = self.log.split_off(self.decided);
        pipe.iter_mut().enumerate().filter(|(at, _)| !survives(*at)).for_each(|(_, entry)| *entry = Entry::NoOp);
        pipe.truncate(pipe.iter().rposition(|entry| *entry != Entry::NoOp).map_or(0, |at| at + 1));
        self.gate = Gate::new(decided, None);
        self.acknowledger =
            PlacementAcknowledger::new(REPORT_INTERVAL, decided, self.last_executed.chain.last_ticket());
        let mut last = self.first;
        for index in 0..self.decided {
            match &self.log[index] {
                Entry::Place(place) if self.hits[index] => last = Some(place.ticket),
                Entry::Write(op) if self.hits[index] && history.ops[*op].status == Status::Invoked => {
                    self.gate.hold(Instance(index as u64 + 1), last, *op);
                }
                _ => {}
            }
        }
        pipe.into_iter().for_each(|entry| self.append(entry, history));
        // It serves when all that it found is decided (protocol.md 7).
        self.decide(usize::MAX, said);
        self.acknowledger.lead();
    }
}
