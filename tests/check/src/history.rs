//! A whole history in memory, compact: keys and values are numbers, operations are in order of invocation. Knows what
//! was asked, answered and logged; refuses to know what is legal, but for answers that no state at all could give.

use super::event::{Position, Status, Ticket, text_of};
use super::intern::{Interner, NONE, UNSAID};

/// Which call an operation or a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Get,
    Put,
    Insert,
    Delete,
    Cas,
    Range,
    Many,
}

impl Kind {
    /// As it is written in a history.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Insert => "insert",
            Kind::Delete => "delete",
            Kind::Cas => "cas",
            Kind::Range => "range",
            Kind::Many => "many",
        }
    }
}

/// One call on one key, and what its answer says. Keys and values are numbers of the history's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Never `Many`; `Range` only as the step of a range operation, whose `key` is its low bound.
    pub kind: Kind,
    /// Answered, and it changed the key.
    pub done: bool,
    pub key: u32,
    /// The value that it writes, if it does.
    pub value: u32,
    /// The value that a cas expects.
    pub old: u32,
    /// The value that was there, according to the answer; `NONE`: nothing; `UNSAID`: the answer does not say.
    pub seen: u32,
}

impl Step {
    /// What the key holds afterwards if the answer is true; `None`: what it held before.
    pub fn writes(&self) -> Option<u32> {
        match self.kind {
            Kind::Put | Kind::Insert | Kind::Cas if self.done => Some(self.value),
            Kind::Delete if self.done => Some(NONE),
            _ => None,
        }
    }

    /// What it does to a key that holds `current`: the new content, if it changes.
    pub fn execute(&self, current: u32) -> Option<u32> {
        match self.kind {
            Kind::Put => Some(self.value),
            Kind::Insert if current == NONE => Some(self.value),
            Kind::Delete if current != NONE => Some(NONE),
            Kind::Cas if current == self.old && current != NONE => Some(self.value),
            _ => None,
        }
    }
}

/// A stretch of one of the history's arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Span {
    pub(super) fn of<T>(self, arena: &[T]) -> &[T] {
        &arena[self.start as usize..(self.start + self.len) as usize]
    }

    pub(super) fn push<T>(arena: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Span {
        let start = arena.len();
        arena.extend(items);
        let fits = |length: usize| u32::try_from(length).expect("fewer than 2^32 pairs in one history");
        Span { start: fits(start), len: fits(arena.len() - start) }
    }
}

#[derive(Clone, Debug)]
pub struct Operation {
    /// Its id in the file.
    pub id: u64,
    pub client: u64,
    /// The client's number.
    pub number: u64,
    /// Nanoseconds.
    pub invoked: u64,
    /// Nanoseconds; `NEVER` = unanswered.
    pub returned: u64,
    /// The call; of a `Many` only the kind is set.
    pub step: Step,
    /// The first key behind a range; `NONE`: unbounded.
    pub high: u32,
    /// The most pairs that a range asks for; 0: all. A full answer covers no more than its pairs: then the bounds are
    /// narrowed to those.
    pub limit: u32,
    /// A limited range takes its pairs from its high end.
    pub reverse: bool,
    /// `None` = unanswered.
    pub status: Option<Status>,
    /// A stale read.
    pub stale: bool,
    pub(super) pairs: Span,
    pub(super) steps: Span,
    pub(super) parts: Span,
    pub(super) ticket: u32,
    /// Of kind, keys and values, for comparison with the logs.
    pub fingerprint: u64,
}

impl Operation {
    /// Answered, with a result.
    pub fn is_ok(&self) -> bool {
        self.status == Some(Status::Ok)
    }

    /// The kind of call.
    pub fn kind(&self) -> Kind {
        self.step.kind
    }

    /// A get or a range: never in a log.
    pub fn is_read(&self) -> bool {
        matches!(self.step.kind, Kind::Get | Kind::Range)
    }
}

/// A map change in a log, with keys as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    Split { id: u64, key: u32, to: u32 },
    Seal { id: u64 },
    Take { id: u64, from: Position },
    End { id: u64, to: u32 },
}

/// What a log entry is, with keys as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    Command { client: u64, number: u64, fingerprint: u64, low: u64, session: Option<Position>, expired: bool },
    Place { ticket: Ticket, previous: Option<Ticket>, change: Option<LogChange> },
    Born { from: Option<Position>, low: u32, high: u32, ticket: Option<Ticket> },
    Other,
}

/// One line of one replica's dump.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry {
    pub position: Position,
    pub replica: u32,
    /// The replica's own verdict.
    pub hit: bool,
    /// Index into [`History::log_kinds`]: most lines of other replicas repeat the first one's.
    pub kind: u32,
}

#[derive(Clone, Debug)]
pub struct DigestLine {
    pub partition: u32,
    pub replica: u32,
    pub instance: u64,
    pub state: Vec<u8>,
    pub tree: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct FaultLine {
    pub at: u64,
    pub action: String,
    pub who: String,
}

/// A complaint about single operations, in words.
#[derive(Clone, Debug)]
pub struct Complaint {
    /// Index of the operation.
    pub operation: u32,
    /// In words.
    pub what: String,
}

/// A whole history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Source revision, if said.
    pub commit: String,
    /// Seed, if said.
    pub seed: String,
    /// All keys and bounds; numbers are in key order.
    pub keys: Interner,
    /// All values.
    pub values: Interner,
    /// The map at the start, in key order.
    pub state: Vec<(u32, u32)>,
    /// In order of invocation; stale reads are apart, in `stale`.
    pub operations: Vec<Operation>,
    /// Stale reads, in order of invocation.
    pub stale: Vec<Operation>,
    /// Answered operations, in order of their answers.
    pub returns: Vec<u32>,
    /// All dumps' lines, by position and replica.
    pub log: Vec<LogEntry>,
    /// See [`LogEntry::kind`].
    pub log_kinds: Vec<LogKind>,
    pub digests: Vec<DigestLine>,
    pub faults: Vec<FaultLine>,
    /// Answers that no state could give: pairs outside of the range, a cas that contradicts itself.
    pub impossible: Vec<Complaint>,
    /// Answers to repeated sendings that differ from the first (B3).
    pub unequal: Vec<Complaint>,
    pub(super) pairs: Vec<(u32, u32)>,
    pub(super) steps: Vec<Step>,
    pub(super) parts: Vec<Position>,
    pub(super) tickets: Vec<Ticket>,
}

impl History {
    /// The steps of an operation; a range has none but its bounds.
    pub fn steps<'a>(&'a self, operation: &'a Operation) -> &'a [Step] {
        if operation.kind() == Kind::Many {
            operation.steps.of(&self.steps)
        } else {
            std::slice::from_ref(&operation.step)
        }
    }

    /// What a range returned.
    pub fn pairs(&self, operation: &Operation) -> &[(u32, u32)] {
        operation.pairs.of(&self.pairs)
    }

    /// The positions of an answer.
    pub fn positions(&self, operation: &Operation) -> &[Position] {
        operation.parts.of(&self.parts)
    }

    /// The ticket of an answer.
    pub fn ticket(&self, operation: &Operation) -> Option<Ticket> {
        self.tickets.get(operation.ticket as usize).copied()
    }

    /// A key, as text.
    pub fn key(&self, key: u32) -> String {
        if key == NONE { "(end)".into() } else { text_of(self.keys.get(key)).into_owned() }
    }

    /// A value or "nothing", as text.
    pub fn value(&self, value: u32) -> String {
        match value {
            NONE => "nothing".into(),
            UNSAID => "what is not said".into(),
            value => text_of(self.values.get(value)).into_owned(),
        }
    }
}
