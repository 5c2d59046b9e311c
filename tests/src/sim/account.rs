//! What clients did and what the logs hold, in the words of the checkers; and the judgement of a run.

use std::collections::BTreeMap;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{PartitionId, Position as WirePosition, SessionId};
use coppice_ordering::Batch;
use coppice_server::entry::{Entry as LogEntry, entries};
use coppice_server::machine::Outcome;

use super::faults::Kind;
use super::oracle::{Group, Oracle};
use super::plan::Nanos;
use crate::check::beyond::{Finding, checks};
use crate::check::event::{
    Call, Entry, Event, Fault, Head, Invoke, LogLine, Output, Position, Return, Status, Text, Ticket,
};
use crate::check::history::History;
use crate::check::verdict::Verdict;
use crate::check::{tier0, tier1};
use crate::words::{self, call_of, position, positions, text, ticket};

/// Numbers of commands that never got one of their client: above all that do.
const UNNUMBERED: u64 = 1 << 60;

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum End {
    /// With a result.
    Answered {
        /// It.
        output: Output<'static>,
        /// Where.
        positions: Vec<WirePosition>,
        /// Of a query over several partitions.
        ticket: Option<Ticket>,
    },
    /// For sure without an effect.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Operation {
    client: u64,
    invoked: Nanos,
    call: Call<'static>,
    stale: bool,
    /// The number that the client's session gave it.
    number: Option<u64>,
    returned: Nanos,
    end: Option<End>,
}

/// All operations of a run.
#[derive(Debug, Default)]
pub struct Account {
    operations: Vec<Operation>,
    faults: Vec<(Nanos, String)>,
    open: usize,
    bounds: Vec<(u32, Text<'static>, Option<Text<'static>>)>,
}

impl Account {
    /// Nothing happened yet; the partitions are those of `map`.
    pub fn new(map: &PartitionMap) -> Account {
        let bounds = map.partitions.iter();
        let bounds = bounds.map(|entry| (entry.partition.0, text(&entry.low), entry.high.as_deref().map(text)));
        Account { bounds: bounds.collect(), ..Account::default() }
    }

    /// A call is made. Returns its index.
    pub fn invoke(&mut self, client: u64, now: Nanos, call: Call<'static>, stale: bool) -> usize {
        self.open += 1;
        let operation = Operation { client, invoked: now, call, stale, number: None, returned: 0, end: None };
        self.operations.push(operation);
        self.operations.len() - 1
    }

    /// It was numbered.
    pub fn number(&mut self, index: usize, number: u64) {
        self.operations[index].number = Some(number);
    }

    /// It ended.
    pub fn end(&mut self, index: usize, now: Nanos, end: End) {
        let operation = &mut self.operations[index];
        if operation.end.is_none() {
            self.open -= 1;
            (operation.returned, operation.end) = (now, Some(end));
        }
    }

    /// A fault was made.
    pub fn fault(&mut self, now: Nanos, kind: &Kind) {
        self.faults.push((now, format!("{kind:?}")));
    }

    /// Operations that wait.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Operations that were answered.
    pub fn answered(&self) -> u64 {
        let answered = |operation: &&Operation| matches!(operation.end, Some(End::Answered { .. }));
        self.operations.iter().filter(answered).count() as u64
    }

    /// The first few operations that wait.
    pub fn waiting(&self) -> String {
        let open = self.operations.iter().filter(|operation| operation.end.is_none());
        let words = open.take(5).map(|open| format!("c{} {:?} since {}", open.client, open.call, open.invoked));
        words.collect::<Vec<_>>().join("; ")
    }

    /// Everything as events of a history.
    pub fn events(&self, oracle: &Oracle) -> Vec<Event<'static>> {
        let mut events = vec![Event::Head(Head::default())];
        for (at, what) in &self.faults {
            events.push(Event::Fault(Fault { at: *at, action: text(what.as_bytes()), who: text(b"") }));
        }
        for (index, operation) in self.operations.iter().enumerate() {
            self.operation(index as u64, operation, oracle, &mut events);
        }
        for (partition, low, high) in &self.bounds {
            let position = Position { partition: *partition, instance: 0, index: 0 };
            let entry = Entry::Born { from: None, low: low.clone(), high: high.clone(), ticket: None };
            events.push(Event::Log(LogLine { position, replica: 0, entry, hit: true }));
        }
        for (group, state) in oracle.groups().filter(|(group, _)| *group != PartitionId::DIRECTORY) {
            dump(group, state, &mut events);
        }
        events
    }

    fn operation(&self, id: u64, operation: &Operation, oracle: &Oracle, events: &mut Vec<Event<'static>>) {
        let number = operation.number.unwrap_or(UNNUMBERED + id);
        let &Operation { client, invoked, stale, returned, .. } = operation;
        let call = operation.call.clone();
        events.push(Event::Invoke(Invoke { id, at: invoked, client, number, call, stale }));
        let reads = matches!(operation.call, Call::Get { .. } | Call::Range { .. });
        let (status, output, positions, ticket) = match &operation.end {
            Some(End::Answered { output, positions, ticket }) => {
                let place = |at: &WirePosition| match reads && ticket.is_none() {
                    true => last_of(oracle, *at),
                    false => position(*at),
                };
                (Status::Ok, output.clone(), positions.iter().map(place).collect(), *ticket)
            }
            Some(End::Refused) => (Status::No, Output::Value(None), Vec::new(), None),
            Some(End::Unknown) | None => return,
        };
        events.push(Event::Return(Return { id, at: returned, status, output, positions, ticket }));
    }

    /// Checks the run: exactly by the logs, then by the answers alone, then what goes beyond (reliability.md 3).
    pub fn judge(&self, oracle: &Oracle) -> Result<(), (&'static str, String)> {
        let events = self.events(oracle);
        let history = History::from_events(&events).map_err(|what| ("history", what))?;
        let certificate = tier0::check(&history);
        pass("tier 0", &history, &certificate.verdict)?;
        if let Some(complaint) = history.unequal.first() {
            return Err(("B3", complaint.what.clone()));
        }
        let limits = tier1::Limits { steps: 2_000_000, ..tier1::Limits::default() };
        // Beyond its limits the search says nothing; tier 0 has passed.
        let answers = tier1::check(&history, certificate.judged.as_ref(), limits);
        if answers.is_fail() {
            pass("tier 1", &history, &answers)?;
        }
        for (id, _, finding) in checks(&history, certificate.judged.as_ref()) {
            if let Finding::Fail(what) = finding {
                return Err((id, what));
            }
        }
        Ok(())
    }
}

fn pass(check: &'static str, history: &History, verdict: &Verdict) -> Result<(), (&'static str, String)> {
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail(violation) => Err((check, violation.words(history).join("\n    "))),
        Verdict::Unknown(why) => Err((check, format!("unknown: {why}"))),
    }
}

/// A read saw all of its instance: its place is the last one there.
fn last_of(oracle: &Oracle, at: WirePosition) -> Position {
    let group = oracle.groups().find(|(group, _)| *group == at.partition);
    let batch = group.and_then(|(_, state)| state.decided.get((at.instance as usize).checked_sub(1)?));
    let count = batch.map_or(0, Batch::count);
    Position { index: count.saturating_sub(1), ..position(at) }
}

/// The place of entry `index` of the batch at place `at` of the list of batches.
fn place(group: PartitionId, at: usize, index: u32) -> Position {
    Position { partition: group.0, instance: at as u64 + 1, index }
}

/// One group's decided log with the verdicts of the machine that executed it without speculation.
fn dump(group: PartitionId, state: &Group, events: &mut Vec<Event<'static>>) {
    let mut clients: BTreeMap<SessionId, u64> = BTreeMap::new();
    for (at, (batch, answers)) in state.decided.iter().zip(&state.answers).enumerate() {
        let place = |index| place(group, at, index);
        let Batch::Commands(commands) = batch else {
            events.push(Event::Log(LogLine { position: place(0), replica: 0, entry: Entry::Other, hit: true }));
            continue;
        };
        let parts = commands.parts().iter().flat_map(|part| entries(part));
        for (entry, answer) in parts.zip(answers) {
            match entry {
                LogEntry::Pack(pack) => {
                    let results = match &answer.outcome {
                        Outcome::Pack(bytes) => positions(bytes),
                        _ => Vec::new(),
                    };
                    let session = pack.session();
                    for (offset, (number, command)) in pack.commands().enumerate() {
                        let position = place(answer.index + offset as u32);
                        let Some(own) = results.get(offset) else {
                            // Its session had ended: nothing ran, and the client may have numbered it anew since.
                            events.push(Event::Log(LogLine { position, replica: 0, entry: Entry::Other, hit: true }));
                            continue;
                        };
                        let hit = own.1.is_none() && words::position(own.0) == position;
                        let entry = Entry::Command {
                            client: clients.get(&session).copied().unwrap_or(u64::MAX),
                            number,
                            call: call_of(&command),
                            low: pack.lowest_unacknowledged(),
                            session: Some(words::session(session)),
                            expired: false,
                        };
                        events.push(Event::Log(LogLine { position, replica: 0, entry, hit }));
                    }
                }
                LogEntry::Open(open) => {
                    if let Outcome::Opened(session) = answer.outcome {
                        clients.insert(session, open.client.0);
                    }
                    let position = place(answer.index);
                    events.push(Event::Log(LogLine { position, replica: 0, entry: Entry::Other, hit: true }));
                }
                LogEntry::Place(place) => {
                    let position = self::place(group, at, answer.index);
                    let hit = state.placed.contains(&(position.instance, position.index));
                    let (ticket, previous) = (ticket(place.ticket), place.prev.map(ticket));
                    let entry = Entry::Place { ticket, previous, change: None };
                    events.push(Event::Log(LogLine { position, replica: 0, entry, hit }));
                }
                LogEntry::Directory(_) | LogEntry::Unknown => {
                    let position = place(answer.index);
                    events.push(Event::Log(LogLine { position, replica: 0, entry: Entry::Other, hit: true }));
                }
            }
        }
    }
}
