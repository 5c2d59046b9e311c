//! What a command becomes for the cluster, and what its results become for the client.

use bytes::Bytes;
use coppice_btree::UpdateOutcome;
use coppice_client::command::{Command, Operation, Output};
use coppice_client::{KEYS_MAX, OpResult, Range, Value};

use super::cursors::Cursors;
use super::glob;
use super::number;
use super::reply::Reply;

/// What a request becomes.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// It needs nothing of the cluster.
    Reply(Reply),
    /// Operations on keys.
    Work(Work),
    /// A range, which may span partitions.
    Range(RangePlan),
}

/// Operations of one command, which take effect together.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What must hold, else nothing is done.
    pub guards: Vec<Operation>,
    /// What is done.
    pub operations: Vec<Operation>,
    /// What their results become.
    pub answer: Answer,
}

/// What the results of operations become.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `+OK`, if it was done.
    Ok,
    /// `+OK`, or nil if a condition does not hold.
    OkOrNil,
    /// The value in the result, or nil.
    Value,
    /// The value of each result, or nil.
    Values,
    /// A part of the value: from and to, counted from its end if they are negative.
    Part(i64, i64),
    /// How many results say that there was something.
    Count,
    /// 1 if it was done, else 0.
    IsDone,
    /// The length of the value.
    Length,
    /// The value as a number.
    Number,
    /// How long the key lives yet, or when it ends.
    Lifetime {
        /// In milliseconds, else in seconds.
        milliseconds: bool,
        /// As Unix time.
        absolute: bool,
    },
    /// 1 if the key had an end, which is gone.
    HadEnd,
    /// `string` or `none`.
    Type,
    /// Each command of a transaction with the number of its results.
    Exec(Vec<(usize, Queued)>),
}

/// A command of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum Queued {
    /// Its results become this.
    Answer(Answer),
    /// It needs none.
    Reply(Reply),
}

/// A range that is read, and what it becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct RangePlan {
    /// Which keys, and how.
    pub range: Range,
    /// Of these the keys that match; none: all.
    pub pattern: Option<Bytes>,
    /// What they become.
    pub answer: RangeAnswer,
}

/// What the keys of a range become.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeAnswer {
    /// How many there are.
    Count,
    /// Keys and values.
    Pairs {
        /// Without the values.
        keys_only: bool,
        /// So many were asked for; none: all.
        limit: Option<u64>,
    },
    /// Its keys.
    Keys,
    /// The keys of a page, and the cursor of the next one.
    Page,
    /// The first key: the next question is for the last one.
    RandomFirst,
    /// The last key: the next question is for one between.
    RandomLast(Value),
    /// A key between, or else the last one.
    RandomBetween(Value),
}

/// What a range came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranged {
    /// Its pairs, of those that match; of a count: none.
    pub pairs: Vec<(Value, Value)>,
    /// The last key that was looked at.
    pub last: Option<Value>,
    /// How many there are.
    pub count: u64,
    /// A limit ended it.
    pub is_limited: bool,
}

impl Ranged {
    /// One pair more of the range. Returns the steps that a pattern may have cost.
    pub fn look_at(&mut self, pattern: Option<&Bytes>, key: &[u8], value: &[u8]) -> usize {
        self.last = Some(key.into());
        if pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            self.pairs.push((key.into(), value.into()));
        }
        pattern.map_or(0, |pattern| pattern.len()) * key.len()
    }
}

/// The strings of a request, and what its plan depends on beside them.
pub struct Arguments<'a> {
    /// The name first.
    pub strings: &'a [&'a [u8]],
    /// By this node's clock, in milliseconds of Unix time.
    pub now: u64,
    /// The cursors of this node.
    pub cursors: &'a Cursors,
}

/// What is said of a number that is none.
pub const NOT_AN_INTEGER: &str = "value is not an integer or out of range";

/// What is said of words that are in no order that is known.
pub fn syntax_error() -> Reply {
    Reply::err("syntax error")
}

impl Arguments<'_> {
    /// String `at`.
    pub fn bytes(&self, at: usize) -> &[u8] {
        self.strings.get(at).map_or(&[], |bytes| bytes)
    }

    /// String `at` as a key or a value.
    pub fn value(&self, at: usize) -> Value {
        Value::from(self.bytes(at))
    }

    /// String `at` as a number.
    ///
    /// # Errors
    /// It is none.
    pub fn integer(&self, at: usize) -> Result<i64, Reply> {
        number::signed(self.bytes(at)).ok_or_else(|| Reply::err(NOT_AN_INTEGER))
    }

    /// Whether string `at` is this word, in any case.
    pub fn is(&self, at: usize, word: &str) -> bool {
        self.bytes(at).eq_ignore_ascii_case(word.as_bytes())
    }

    /// How many strings there are.
    pub fn count(&self) -> usize {
        self.strings.len()
    }
}

impl Planned {
    /// Operations without guards.
    pub fn work(operations: Vec<Operation>, answer: Answer) -> Planned {
        Planned::Work(Work { guards: Vec::new(), operations, answer })
    }

    /// One operation.
    pub fn one(operation: Operation, answer: Answer) -> Planned {
        Planned::work(vec![operation], answer)
    }
}

impl Work {
    /// The keys that it is about.
    pub fn keys(&self) -> impl Iterator<Item = &Value> {
        self.guards.iter().chain(&self.operations).flat_map(keys)
    }

    /// The key, if all that it does is to get one or to look at one, and which of these.
    pub fn read_of_one(&self) -> Option<(Value, bool)> {
        match &self.operations[..] {
            [Operation::Get { key }] if self.guards.is_empty() => Some((key.clone(), false)),
            [Operation::Look { key }] if self.guards.is_empty() => Some((key.clone(), true)),
            _ => None,
        }
    }

    /// Whether it reads keys as of one moment, wherever they lie.
    pub fn reads_anywhere(&self) -> bool {
        let (reads, few) = (self.guards.is_empty() && self.is_read(), self.operations.len() <= KEYS_MAX);
        reads && few && matches!(self.answer, Answer::Values | Answer::Count)
    }

    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        self.operations.iter().all(|operation| operation.op().is_read())
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.guards.iter().chain(&self.operations).map(bytes).sum()
    }

    /// Results that may hold a value.
    pub fn values(&self) -> usize {
        let is_look = |operation: &&Operation| matches!(operation, Operation::Look { .. });
        if self.answers_little() { 0 } else { self.operations.iter().filter(|operation| !is_look(operation)).count() }
    }

    /// Whether its results are small, however large the values are: then it may share a command with others.
    pub fn answers_little(&self) -> bool {
        match self.answer {
            Answer::Ok | Answer::IsDone | Answer::Number | Answer::Length => self.guards.is_empty(),
            _ => false,
        }
    }

    /// The command that carries it out.
    pub fn command(self) -> Command {
        let Work { guards, mut operations, .. } = self;
        if !guards.is_empty() {
            return Command::guarded(guards, operations);
        }
        match operations.pop() {
            Some(only) if operations.is_empty() => Command::One(only),
            last => {
                operations.extend(last);
                Command::Many(operations.into())
            }
        }
    }
}

fn keys(operation: &Operation) -> impl Iterator<Item = &Value> {
    let (key, other) = match operation {
        Operation::Put { key, .. }
        | Operation::Insert { key, .. }
        | Operation::Delete { key }
        | Operation::Cas { key, .. }
        | Operation::Get { key }
        | Operation::Update { key, .. }
        | Operation::Look { key } => (key, None),
        Operation::Move { key, to, .. } => (key, Some(to)),
    };
    std::iter::once(key).chain(other)
}

fn bytes(operation: &Operation) -> usize {
    let op = operation.op();
    let operand = match operation {
        Operation::Update { terms, .. } => terms.len(),
        _ => op.value().map_or(0, <[u8]>::len),
    };
    op.key().len() + op.other_key().map_or(0, <[u8]>::len) + operand
}

/// The results in an output; none: they were more than an answer holds.
pub fn results(output: Output) -> Option<Vec<OpResult>> {
    match output {
        Output::One(result) => Some(vec![result]),
        Output::Many(results) => Some(results),
        _ => None,
    }
}

/// What an update came to, if it was not done for what the value is.
fn fault(result: &OpResult) -> Option<Reply> {
    let OpResult::Update { outcome, .. } = result else { return None };
    let text = match outcome {
        UpdateOutcome::Done | UpdateOutcome::Unmet => return None,
        UpdateOutcome::NotInteger => NOT_AN_INTEGER,
        UpdateOutcome::Overflow => "increment or decrement would overflow",
        UpdateOutcome::NotFloat => "value is not a valid float",
        UpdateOutcome::TooLong => "string exceeds maximum allowed size (1 MiB)",
        UpdateOutcome::Missing => "no such key",
    };
    Some(Reply::err(text))
}

fn is_done(result: &OpResult) -> bool {
    match result {
        OpResult::Put { .. } => true,
        OpResult::Insert { present } => present.is_none(),
        OpResult::Delete { previous } => previous.is_some(),
        OpResult::Cas { done, .. } => *done,
        OpResult::Get { value } => value.is_some(),
        OpResult::Update { outcome, .. } => *outcome == UpdateOutcome::Done,
        OpResult::Look { exists, .. } => *exists,
    }
}

impl Answer {
    /// What the client is told. `now`: by this node's clock, in milliseconds of Unix time.
    pub fn reply(self, results: &[OpResult], now: u64) -> Reply {
        if let Answer::Exec(commands) = self {
            let mut rest = results;
            let replies = commands.into_iter().map(|(count, queued)| {
                let (own, others) = rest.split_at(count.min(rest.len()));
                rest = others;
                match queued {
                    Queued::Answer(answer) => answer.reply(own, now),
                    Queued::Reply(reply) => reply,
                }
            });
            return Reply::Array(replies.collect());
        }
        if let Some(fault) = results.iter().find_map(fault) {
            return fault;
        }
        let first = results.first();
        let value = || first.and_then(OpResult::value).cloned();
        let done = results.iter().all(is_done);
        match self {
            Answer::Ok => Reply::OK,
            Answer::OkOrNil => {
                if done {
                    Reply::OK
                } else {
                    Reply::Nil
                }
            }
            Answer::Value => Reply::maybe(value()),
            Answer::Values => {
                Reply::Array(results.iter().map(|result| Reply::maybe(result.value().cloned())).collect())
            }
            Answer::Part(from, to) => Reply::bulk(part(&value().unwrap_or(Value::EMPTY), from, to)),
            Answer::Count => Reply::count(results.iter().filter(|result| is_done(result)).count()),
            Answer::IsDone => Reply::Integer(i64::from(done)),
            Answer::Length => match first {
                Some(OpResult::Update { length, .. } | OpResult::Look { length, .. }) => Reply::count(*length),
                _ => Reply::count(value().map_or(0, |value| value.len())),
            },
            Answer::Number => value().and_then(|value| number::signed(&value)).map_or(Reply::Nil, Reply::Integer),
            Answer::Lifetime { milliseconds, absolute } => match first {
                Some(OpResult::Look { exists: true, remaining: Some(left), .. }) => {
                    let end = if absolute { left.saturating_add(now) } else { *left };
                    Reply::count(if milliseconds { end } else { end.saturating_add(500) / 1_000 })
                }
                Some(OpResult::Look { exists: true, .. }) => Reply::Integer(-1),
                _ => Reply::Integer(-2),
            },
            Answer::HadEnd => {
                let had = matches!(first, Some(OpResult::Look { remaining: Some(_), .. }));
                Reply::Integer(i64::from(had))
            }
            Answer::Type => Reply::Simple(if done { "string" } else { "none" }),
            Answer::Exec(_) => Reply::NilArray,
        }
    }

    /// What the client is told if a guard does not hold.
    pub fn unmet(self) -> Reply {
        match self {
            Answer::Exec(_) => Reply::NilArray,
            _ => Reply::Integer(0),
        }
    }

    /// What the client is told if all was done and the results are more than an answer holds.
    pub fn omitted(self) -> Reply {
        match self {
            Answer::Ok => Reply::OK,
            _ => Reply::err("it was carried out, and its results are more than 2 MiB, which an answer may hold"),
        }
    }
}

/// A part of a string, both ends included, as GETRANGE counts.
fn part(value: &[u8], from: i64, to: i64) -> &[u8] {
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (from, to) = (place(from), place(to).min(length - 1));
    if (from > to) || length == 0 { &[] } else { &value[from as usize..=to as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_counted_from_either_end() {
        for (from, to, wanted) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (5, 3, ""),
            (20, 30, ""),
            (-100, 3, "This"),
            (0, -100, "T"),
            (i64::MIN, i64::MAX, "This is a string"),
        ] {
            assert_eq!(part(b"This is a string", from, to), wanted.as_bytes(), "{from} {to}");
        }
        assert_eq!(part(b"", 0, -1), b"");
    }
}
