//! What clients did and what the logs hold, in the words of the checkers; and the judgement of a run.

use std::collections::BTreeMap;

use coppice_check::beyond::{Finding, checks};
use coppice_check::event::{
    Call, Change, Entry, Event, Fault, Head, Invoke, LogLine, Output, Position, Return, Status, Ticket,
};
use coppice_check::history::History;
use coppice_check::verdict::Verdict;
use coppice_check::{certificate, search};
use coppice_client::wire::{Command, CommandRefusal, Pack, PartitionId, Position as WirePosition, SessionId};
use coppice_core::machine::entry::{Entry as LogEntry, entries};
use coppice_core::machine::partition::{BoundaryChange, BoundaryStep};
use coppice_core::machine::{Answer, Outcome};
use coppice_ordering::Batch;
use coppice_ordering::multicast::{Place, Work};
use coppice_words::{self as words, call_of, position, positions, text, ticket};

use super::content::is_beyond;
use super::groups::Group;
use super::oracle::Oracle;
use super::plan::fault::Kind;
use super::plan::{Nanos, Verdicts};
use super::positions::Positions;

/// Numbers of commands that never got one of their client: above all that do.
const UNNUMBERED: u64 = 1 << 60;

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum End {
    /// With a result.
    Answered {
        output: Output<'static>,
        positions: Vec<WirePosition>,
        /// Of a query over several partitions.
        ticket: Option<Ticket>,
    },
    /// For sure without an effect.
    Refused,
    /// Nobody knows.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Operation {
    client: u64,
    invoked: Nanos,
    call: Call<'static>,
    stale: bool,
    /// The numbers that the client's session gave it, the newest last.
    numbers: Vec<u64>,
    returned: Nanos,
    end: Option<End>,
}

/// All operations of a run.
#[derive(Debug, Default)]
pub struct Account {
    operations: Vec<Operation>,
    faults: Vec<(Nanos, String)>,
    open: usize,
    /// How far answers have seen.
    pub positions: Positions,
}

impl Account {
    /// A call is made. Returns its index.
    pub fn invoke(&mut self, client: u64, now: Nanos, call: Call<'static>, stale: bool) -> usize {
        self.open += 1;
        let operation = Operation { client, invoked: now, call, stale, numbers: Vec::new(), returned: 0, end: None };
        self.operations.push(operation);
        self.operations.len() - 1
    }

    /// It was numbered.
    pub fn number(&mut self, index: usize, number: u64) {
        let numbers = &mut self.operations[index].numbers;
        if numbers.last() != Some(&number) {
            numbers.push(number);
        }
    }

    /// The numbers that it had.
    pub fn numbers(&self, index: usize) -> &[u64] {
        &self.operations[index].numbers
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

    /// The longest that anybody waited between two moments, for an answer that came later or never; and for what.
    pub fn longest_wait(&self, (from, to): (Nanos, Nanos)) -> (Nanos, String) {
        let wait = |operation: &Operation| {
            let ended = if operation.end.is_some() { operation.returned } else { to };
            ended.min(to).saturating_sub(operation.invoked.max(from))
        };
        let longest = self.operations.iter().filter(|operation| !operation.stale).max_by_key(|each| wait(each));
        let words = |each: &Operation| format!("c{} {:?} since {}", each.client, each.call, each.invoked);
        longest.map_or((0, String::new()), |longest| (wait(longest), words(longest)))
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
        let groups = || oracle.groups().filter(|(group, _)| *group != PartitionId::DIRECTORY);
        let mut known = Known::default();
        groups().for_each(|(group, state)| known.note(group, state));
        for (group, state) in groups() {
            let born = &state.born;
            let entry = Entry::Born {
                from: known.born.get(&group).copied(),
                low: text(&born.low),
                high: born.high.as_deref().map(text),
                ticket: born.ticket.map(ticket),
            };
            let position = Position { partition: group.0, instance: born.instance, index: 0 };
            events.push(Event::Log(LogLine { position, replica: 0, ballot: None, entry, hit: true }));
            dump(group, state, &known, &mut events);
        }
        events
    }

    fn operation(&self, id: u64, operation: &Operation, oracle: &Oracle, events: &mut Vec<Event<'static>>) {
        let number = operation.numbers.last().copied().unwrap_or(UNNUMBERED + id);
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

    /// Checks the run: exactly by the logs, then by the answers alone, then what goes beyond (hazards.md 3).
    pub fn judge(&self, oracle: &Oracle, judged: Verdicts) -> Result<(), (&'static str, String)> {
        oracle.same_pairs()?;
        let events = self.events(oracle);
        let history = History::from_events(&events).map_err(|what| ("history", what))?;
        let found = certificate::check(&history);
        if judged.certificate {
            pass("certificate", &history, &found.verdict)?;
        }
        if let Some(complaint) = history.unequal.first() {
            return Err(("B3", complaint.what.clone()));
        }
        let limits = search::Limits { steps: 2_000_000, ..search::Limits::default() };
        // Beyond its limits the search says nothing; the certificate has passed.
        if judged.search {
            let answers = search::check(&history, found.judged.as_ref(), limits);
            if answers.is_fail() {
                pass("search", &history, &answers)?;
            }
        }
        for (id, _, finding) in checks(&history, found.judged.as_ref()) {
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
    let batch = group.and_then(|(_, state)| state.at(at.instance));
    let count = batch.map_or(0, Batch::count);
    Position { index: count.saturating_sub(1), ..position(at) }
}

/// What the logs of several groups say together.
#[derive(Default)]
struct Known {
    /// Who opened each session.
    clients: BTreeMap<SessionId, u64>,
    /// Where the split stands that made a partition.
    born: BTreeMap<PartitionId, Position>,
    /// Where a partition was sealed.
    sealed: BTreeMap<PartitionId, Position>,
}

impl Known {
    fn note(&mut self, group: PartitionId, state: &Group) {
        each_entry(group, state, |position, entry, answer| match entry {
            LogEntry::Open(open) => {
                if let Outcome::Opened(session) = answer.outcome {
                    self.clients.insert(session, open.client.0);
                }
            }
            LogEntry::Place(place) if state.placed.contains(&position.place()) => match change_of(&place) {
                // A change that is placed again does nothing: the first one counts.
                Some(BoundaryStep::Split { child, .. }) => _ = self.born.entry(child).or_insert(position),
                Some(BoundaryStep::Seal { partition, .. }) => _ = self.sealed.entry(partition).or_insert(position),
                _ => {}
            },
            _ => {}
        });
    }

    /// What a ticket's change does in the log of `group`.
    fn told(&self, group: PartitionId, place: &Place) -> Option<Change<'static>> {
        let change: BoundaryChange = boundary_of(place)?;
        let id = change.version.0;
        Some(match change.step {
            // The child places the ticket too: it begins with it.
            BoundaryStep::Split { parent, .. } if parent != group => return None,
            BoundaryStep::Split { child, at, .. } => Change::Split { id, key: text(&at), to: child.0 },
            BoundaryStep::Seal { .. } => Change::Seal { id },
            BoundaryStep::Join { partition, target } if partition == group => Change::End { id, to: target.0 },
            BoundaryStep::Join { partition, .. } => Change::Take { id, from: *self.sealed.get(&partition)? },
        })
    }
}

fn boundary_of(place: &Place) -> Option<BoundaryChange> {
    let Work::Change { payload, .. } = &place.work else { return None };
    postcard::from_bytes(payload).ok()
}

fn change_of(place: &Place) -> Option<BoundaryStep> {
    boundary_of(place).map(|change| change.step)
}

/// Gives every entry of a group's decided log, with what it came to, to `sink`.
fn each_entry<'a>(group: PartitionId, state: &'a Group, mut sink: impl FnMut(Position, LogEntry<'a>, &'a Answer)) {
    for (instance, (batch, answers)) in (state.born.instance + 1..).zip(state.decided.iter().zip(&state.answers)) {
        let Batch::Commands(commands) = batch else { continue };
        let parts = commands.parts().iter().flat_map(|part| entries(part));
        for (entry, answer) in parts.zip(answers) {
            sink(Position { partition: group.0, instance, index: answer.index }, entry, answer);
        }
    }
}

/// One group's decided log with the verdicts of the machine that executed it without speculation.
fn dump(group: PartitionId, state: &Group, known: &Known, events: &mut Vec<Event<'static>>) {
    let line = |position, entry, hit| Event::Log(LogLine { position, replica: 0, ballot: None, entry, hit });
    for (instance, batch) in (state.born.instance + 1..).zip(&state.decided) {
        if !matches!(batch, Batch::Commands(_)) {
            events.push(line(Position { partition: group.0, instance, index: 0 }, Entry::Other, true));
        }
    }
    each_entry(group, state, |position, entry, answer| match entry {
        LogEntry::Pack { pack, .. } => dump_pack(position, &pack, answer, known, events),
        LogEntry::Place(place) => {
            let hit = state.placed.contains(&position.place());
            let (ticket, previous) = (ticket(place.ticket), place.prev.map(ticket));
            let entry = Entry::Place { ticket, previous, change: known.told(group, &place) };
            events.push(line(position, entry, hit));
        }
        LogEntry::Open(_) | LogEntry::Directory(_) | LogEntry::Limits(_) | LogEntry::Expire(..) | LogEntry::Unknown => {
            events.push(line(position, Entry::Other, true));
        }
    });
}

/// Whether a command is about keys that no history holds.
fn is_update(command: &Command<'_>) -> bool {
    match command {
        Command::Op(op) => is_beyond(op.key()),
        Command::Many(operations) => operations.iter().next().is_some_and(|op| is_beyond(op.key())),
        Command::Load(_) => false,
    }
}

fn dump_pack(first: Position, pack: &Pack<'_>, answer: &Answer, known: &Known, events: &mut Vec<Event<'static>>) {
    let results = match &answer.outcome {
        Outcome::Pack(bytes) => positions(bytes),
        _ => Vec::new(),
    };
    let session = pack.session();
    for (offset, (number, command)) in (0..).zip(pack.commands()) {
        let position = Position { index: first.index + offset, ..first };
        let entry = match results.get(offset as usize) {
            // Its session had ended, or the partition: nothing ran, and the client may have numbered it anew since.
            // Outside the bounds it surely did not run: its client sends it elsewhere, under another number.
            None | Some((_, Some(CommandRefusal::WrongPartition { .. } | CommandRefusal::Later))) => Entry::Other,
            Some(_) => Entry::Command {
                client: known.clients.get(&session).copied().unwrap_or(u64::MAX),
                number,
                call: if is_update(&command) { Call::Many(Vec::new()) } else { call_of(&command) },
                low: pack.lowest_unacknowledged(),
                session: Some(words::session(session)),
                expired: false,
            },
        };
        let own = results.get(offset as usize).map(|(told, refusal)| (words::position(*told), refusal.is_none()));
        let hit = matches!(entry, Entry::Other) || own == Some((position, true));
        events.push(Event::Log(LogLine { position, replica: 0, ballot: None, entry, hit }));
    }
}
