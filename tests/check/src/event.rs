//! The events of a history file, one per JSON line (hazards.md 3.1). Knows the format's meaning, not its letters
//! (`json.rs`, `read.rs`, `write.rs`) and not what a legal history is.
//!
//! Beyond the lines shown in hazards.md 3.1:
//!
//! - A log line of a `cmd` may carry `"low"`, the lowest unacknowledged number that came with it, `"s"`, its session
//!   (partition, instance, index), and, when it did not count, `"why":"expired"`.
//! - `hit` means: it counted. A command that executed counts, whatever it answered (an insert onto a present key too).
//! - `do`: `cmd`, `place`, `split` (`tk`, `prev`, `id` of the change, `k` the first key that leaves, `to` the new
//!   partition), `seal` (`tk`, `prev`, `id`), `merge` (`tk`, `prev`, `id`; in the partition that takes: `from`, the
//!   sealed position; in the one that ends: `to`), `conf`, `noop`, `open`, `born` (`from`, `lo`, `hi`, `tk` the last
//!   ticket it starts with; without `from`: a partition that the history starts with, at that position).
//! - `{"e":"digest","p":4,"r":1,"i":9000,"d":"..","tree":".."}`: a replica's digests of its whole decided state, and of
//!   its tree alone, after instance `i` (E6).
//! - A range may carry `"limit"`, the most pairs that it asks for, and `"rev":true`, which takes those from its high end.
//!   An answer that is full says something of the keys up to its last pair only. Pairs are in key order either way.
//! - A dump of a real cluster has one line per entry: logs were compared while it was made. `r` is the log that it was
//!   taken from, by its node's number (disks that were lost count on behind the last node), 0 of a `born`; `b` is the
//!   ballot, `[round, replica]`, in which that log accepted it.
//! - The same `id` may have several `ret` lines: answers to repeated sendings. They must be identical (B3).
//! - Texts are the bytes themselves when they are UTF-8, else `0x` and hexadecimal digits ([`text_of`], [`bytes_of`]).

use std::borrow::Cow;
use std::fmt;

/// A key, a value or another string of a history: its bytes.
pub type Text<'a> = Cow<'a, [u8]>;

/// No answer: the operation may have happened, or may still.
pub const NEVER: u64 = u64::MAX;

/// A place in a partition's log. Prints as `p4#8801.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The partition whose log it is.
    pub partition: u32,
    /// The Paxos instance, from 1; 0 is before all.
    pub instance: u64,
    /// The command within the instance's batch, from 0.
    pub index: u32,
}

impl Position {
    /// The place within its log, for comparison with others of the same partition.
    pub fn place(self) -> (u64, u32) {
        (self.instance, self.index)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}#{}.{}", self.partition, self.instance, self.index)
    }
}

/// A ticket (protocol.md 4): coordinator ballot and number. Prints as `~3.57`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Round of the coordinator's ballot.
    pub round: u64,
    /// Replica of the coordinator's ballot.
    pub replica: u32,
    /// Counts up within the ballot.
    pub number: u64,
}

impl Ticket {
    /// Whether both come from one coordinator ballot.
    pub fn same_ballot(self, other: Ticket) -> bool {
        (self.round, self.replica) == (other.round, other.replica)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "~{}.{}", self.round, self.number)
    }
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// What the run was; the first line of a history, absent in dumps.
    Head(Head<'a>),
    /// An operation begins.
    Invoke(Invoke<'a>),
    /// Its answer was read to the end.
    Return(Return<'a>),
    /// A fault that was made.
    Fault(Fault<'a>),
    /// One entry of a replica's decided log.
    Log(LogLine<'a>),
    /// A replica's digests.
    Digest(Digest<'a>),
}

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// Source revision that ran.
    pub commit: Text<'a>,
    /// Seed of the run, as it is written for `replay`.
    pub seed: Text<'a>,
    /// How gets and ranges are confirmed, `quorum` or `lease`; empty: not said.
    pub reads: Text<'a>,
    /// Whether nodes execute ahead of decisions, if said.
    pub speculation: Option<bool>,
    /// The whole map at the start (long runs are cut at rest).
    pub state: Vec<(Text<'a>, Text<'a>)>,
}

/// What an operation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    Get { key: Text<'a> },
    Put { key: Text<'a>, value: Text<'a> },
    Insert { key: Text<'a>, value: Text<'a> },
    Delete { key: Text<'a> },
    Cas { key: Text<'a>, old: Text<'a>, value: Text<'a> },
    Range { low: Text<'a>, high: Option<Text<'a>>, limit: u32, reverse: bool },
    Many(Vec<Call<'a>>),
}

/// `inv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoke<'a> {
    /// Unique in the history.
    pub id: u64,
    /// Nanoseconds of the clients' one monotonic clock.
    pub at: u64,
    pub client: u64,
    /// The client's number of the command; together with `client` it names a mutation in the logs.
    pub number: u64,
    /// What is asked.
    pub call: Call<'a>,
    /// A stale read: not part of the linearizable history, checked against its position alone.
    pub stale: bool,
}

/// `st` of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was done; `out` is the result.
    Ok,
    /// Every sending ended in a sure error: it has no effect, now or later.
    No,
}

/// `out` of an answer, before it is known which call it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<'a> {
    /// A value or null: get, put, insert, delete.
    Value(Option<Text<'a>>),
    /// `true`: a put or a delete was done, and what was there before is not said.
    Done,
    /// `[done, value that was there]`.
    Cas(bool, Option<Text<'a>>),
    /// The pairs of a range.
    Pairs(Vec<(Text<'a>, Text<'a>)>),
    /// The results of a `many`, in order.
    List(Vec<Output<'a>>),
}

/// `ret`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return<'a> {
    /// The operation answered.
    pub id: u64,
    /// Nanoseconds, as in [`Invoke::at`].
    pub at: u64,
    /// Done, or surely not.
    pub status: Status,
    /// The result; `Value(None)` where there is none.
    pub output: Output<'a>,
    /// Positions: one, or one per part.
    pub positions: Vec<Position>,
    /// The ticket of a cross-partition query.
    pub ticket: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    /// Nanoseconds, as in [`Invoke::at`].
    pub at: u64,
    /// What was done.
    pub action: Text<'a>,
    /// To whom.
    pub who: Text<'a>,
}

/// What a log line says about its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A client's command.
    Command {
        client: u64,
        number: u64,
        /// What it asks.
        call: Call<'a>,
        /// Lowest unacknowledged number that came with it; 0 = not said.
        low: u64,
        /// Its session, if said.
        session: Option<Position>,
        /// The replica refused it because its session is gone.
        expired: bool,
    },
    /// A ticket: of queries, or of a map change.
    Place {
        ticket: Ticket,
        /// The one of this ballot before it in this partition.
        previous: Option<Ticket>,
        /// What else it does here.
        change: Option<Change<'a>>,
    },
    /// A partition begins.
    Born {
        /// Where it was cut from; empty: the history starts with it.
        from: Option<Position>,
        /// First key.
        low: Text<'a>,
        /// First key behind it; `None`: no bound.
        high: Option<Text<'a>>,
        /// The last ticket it starts with.
        ticket: Option<Ticket>,
    },
    /// Nothing that this page checks: `noop`, `conf`, `open`.
    Other,
}

/// A map change carried by a ticket (protocol.md 8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Keys from `key` on leave for partition `to`.
    Split { id: u64, key: Text<'a>, to: u32 },
    /// No more commands here.
    Seal { id: u64 },
    /// This partition takes the keys of a sealed one, as of `from`.
    Take { id: u64, from: Position },
    /// This partition ends; `to` has its keys.
    End { id: u64, to: u32 },
}

/// `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// Where it stands.
    pub position: Position,
    /// Whose dump says so; 0: said of all that were compared.
    pub replica: u32,
    /// The ballot in which that replica accepted it, round and replica, if said. Another one may have accepted the same
    /// in another.
    pub ballot: Option<(u64, u32)>,
    /// What it is.
    pub entry: Entry<'a>,
    /// The replica's own verdict: it counted.
    pub hit: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest<'a> {
    pub partition: u32,
    pub replica: u32,
    /// After this instance.
    pub instance: u64,
    /// Of the whole decided state: tree, sessions, last ticket, configuration.
    pub state: Text<'a>,
    /// Of the tree alone, if said.
    pub tree: Option<Text<'a>>,
}

/// How bytes are written as a text of a history: as they are when they are UTF-8, else `0x..`.
pub fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().fold("0x".to_string(), |mut text, byte| {
            text.push_str(&format!("{byte:02x}"));
            text
        })),
    }
}

/// The bytes that [`text_of`] wrote: hexadecimal digits after `0x` are bytes if those bytes are not UTF-8.
pub fn bytes_of(text: Text<'_>) -> Text<'_> {
    let Some(digits) = text.strip_prefix(b"0x").filter(|digits| digits.len().is_multiple_of(2)) else { return text };
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    match digits.chunks_exact(2).map(pair).collect::<Option<Vec<u8>>>() {
        Some(bytes) if std::str::from_utf8(&bytes).is_err() => Text::Owned(bytes),
        _ => text,
    }
}
