//! What a caller asks for, and what it is told: commands and results that own their bytes. Knows nothing of sessions.

use std::sync::Arc;

use coppice_btree::{Condition, Edit, Op, OpResult, Update, Value};

use crate::wire::pack::{PackWriter, PushError, check_op, is_eight, is_known_everywhere};
use crate::wire::{Position, ResultRef, ScanOptions, Stretch};

/// One operation on one key. Strings of up to 15 bytes need no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Writes, whether or not the key was there.
    Put {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
        /// The new value, of at most [`VALUE_BYTES_MAX`](crate::wire::VALUE_BYTES_MAX) bytes.
        value: Value,
    },
    /// Writes only if the key is absent.
    Insert {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
        /// The new value, of at most [`VALUE_BYTES_MAX`](crate::wire::VALUE_BYTES_MAX) bytes.
        value: Value,
    },
    /// Removes the key and its value, if it is there.
    Delete {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
    },
    /// Writes only if the key holds exactly `expected`.
    Cas {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
        /// The value that the key must hold.
        expected: Value,
        /// The new value, of at most [`VALUE_BYTES_MAX`](crate::wire::VALUE_BYTES_MAX) bytes.
        value: Value,
    },
    /// Reads the value, at this place among the writes of a command.
    Get {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
    },
    /// Changes what is there: see [`Operation::update`]. Needs feature level 2 of the cluster, as do those below.
    Update {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
        /// An encoded [`Update`].
        terms: Value,
    },
    /// Reads what is known of the key without its value.
    Look {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
    },
    /// Gives value and expiry of the key to another key of the same partition.
    Move {
        /// The key, of at most [`KEY_BYTES_MAX`](crate::wire::KEY_BYTES_MAX) bytes.
        key: Value,
        /// The other key; what it holds is overwritten.
        to: Value,
        /// Only if the other key is absent.
        absent: bool,
    },
}

impl Operation {
    /// Writes `value`, whether or not the key was there.
    pub fn put(key: impl Into<Value>, value: impl Into<Value>) -> Operation {
        Operation::Put { key: key.into(), value: value.into() }
    }

    /// Writes `value` only if the key is absent.
    pub fn insert(key: impl Into<Value>, value: impl Into<Value>) -> Operation {
        Operation::Insert { key: key.into(), value: value.into() }
    }

    /// Removes the key and its value, if it is there.
    pub fn delete(key: impl Into<Value>) -> Operation {
        Operation::Delete { key: key.into() }
    }

    /// Writes `value` only if the key holds exactly `expected`.
    pub fn cas(key: impl Into<Value>, expected: impl Into<Value>, value: impl Into<Value>) -> Operation {
        Operation::Cas { key: key.into(), expected: expected.into(), value: value.into() }
    }

    /// Reads the value.
    pub fn get(key: impl Into<Value>) -> Operation {
        Operation::Get { key: key.into() }
    }

    /// Changes what is there, under a condition.
    ///
    /// ```
    /// use coppice_client::{Condition, Edit, Operation, Returns, Update};
    /// let count = Operation::update("visits", Update::new(Edit::Add(1)).returning(Returns::New));
    /// let take = Operation::update("job", Update::new(Edit::Set(b"mine")).when(Condition::Absent));
    /// ```
    pub fn update(key: impl Into<Value>, update: Update<'_>) -> Operation {
        let mut terms = Vec::new();
        update.write(&mut terms);
        Operation::Update { key: key.into(), terms: terms.into() }
    }

    /// Says whether a condition holds, and changes nothing: a guard of [`Command::guarded`].
    pub fn check(key: impl Into<Value>, condition: Condition<'_>) -> Operation {
        Operation::update(key, Update::new(Edit::Keep).when(condition))
    }

    /// Reads what is known of the key without its value.
    pub fn look(key: impl Into<Value>) -> Operation {
        Operation::Look { key: key.into() }
    }

    /// Gives value and expiry of `key` to the key `to` of the same partition.
    pub fn move_to(key: impl Into<Value>, to: impl Into<Value>) -> Operation {
        Operation::Move { key: key.into(), to: to.into(), absent: false }
    }

    /// The same, only if the key `to` is absent.
    pub fn move_to_absent(key: impl Into<Value>, to: impl Into<Value>) -> Operation {
        Operation::Move { key: key.into(), to: to.into(), absent: true }
    }

    /// The key that the operation is about.
    pub fn key(&self) -> &[u8] {
        match self {
            Operation::Put { key, .. }
            | Operation::Insert { key, .. }
            | Operation::Delete { key }
            | Operation::Cas { key, .. }
            | Operation::Get { key }
            | Operation::Update { key, .. }
            | Operation::Look { key }
            | Operation::Move { key, .. } => key,
        }
    }

    /// The same, borrowed.
    #[inline]
    pub fn op(&self) -> Op<'_> {
        match self {
            Operation::Put { key, value } => Op::Put { key, value },
            Operation::Insert { key, value } => Op::Insert { key, value },
            Operation::Delete { key } => Op::Delete { key },
            Operation::Cas { key, expected, value } => Op::Cas { key, expected, value },
            Operation::Get { key } => Op::Get { key },
            Operation::Update { key, terms } => Op::Update { key, terms },
            Operation::Look { key } => Op::Look { key },
            Operation::Move { key, to, absent } => Op::Move { key, to, absent: *absent },
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Operation::Put { key, value } | Operation::Insert { key, value } => key.len() + value.len(),
            Operation::Delete { key } | Operation::Get { key } | Operation::Look { key } => key.len(),
            Operation::Cas { key, expected, value } => key.len() + expected.len() + value.len(),
            Operation::Update { key, terms: other } | Operation::Move { key, to: other, .. } => key.len() + other.len(),
        }
    }
}

/// A command: what is executed under one number, at most once, at one position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// One operation.
    One(Operation),
    /// Several operations of one partition that take effect together.
    Many(Box<[Operation]>),
    /// Pairs of one partition, ascending by key, all of them new; else nothing is changed.
    Load(Box<[(Value, Value)]>),
    /// Several operations of one partition, of which the first are guards: see [`Command::guarded`].
    Guarded {
        /// How many of the operations are guards.
        guards: usize,
        /// The guards and what they guard.
        operations: Box<[Operation]>,
    },
}

impl From<Operation> for Command {
    fn from(operation: Operation) -> Command {
        Command::One(operation)
    }
}

impl Command {
    /// `operations` that take effect together if all `guards` hold ([`Operation::check`]), and else not at all. An
    /// operation that is not done, for the value is no number or its own condition does not hold, keeps no other from
    /// running.
    pub fn guarded(
        guards: impl IntoIterator<Item = Operation>,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Self {
        let mut all: Vec<Operation> = guards.into_iter().collect();
        let guards = all.len();
        all.extend(operations);
        Command::Guarded { guards, operations: all.into() }
    }

    /// Whether every version that speaks the protocol knows it.
    pub(crate) fn is_known_everywhere(&self) -> bool {
        match self {
            Command::One(operation) => is_known_everywhere(&operation.op()),
            Command::Many(operations) => operations.iter().all(|operation| is_known_everywhere(&operation.op())),
            Command::Load(_) => true,
            Command::Guarded { .. } => false,
        }
    }

    /// The first key; none only if there are no operations.
    pub fn first_key(&self) -> Option<&[u8]> {
        match self {
            Command::One(operation) => Some(operation.key()),
            Command::Many(operations) | Command::Guarded { operations, .. } => operations.first().map(Operation::key),
            Command::Load(pairs) => pairs.first().map(|(key, _)| &**key),
        }
    }

    /// Whether `test` holds for all keys.
    pub(crate) fn all_keys(&self, mut test: impl FnMut(&[u8]) -> bool) -> bool {
        let mut both = |operation: &Operation| {
            let op = operation.op();
            test(op.key()) && op.other_key().is_none_or(&mut test)
        };
        match self {
            Command::One(operation) => both(operation),
            Command::Many(operations) | Command::Guarded { operations, .. } => operations.iter().all(both),
            Command::Load(pairs) => pairs.iter().all(|(key, _)| test(key)),
        }
    }

    /// Whether every key and value is 8 bytes long.
    pub(crate) fn is_eight(&self) -> bool {
        match self {
            Command::One(operation) => is_eight(&operation.op()),
            Command::Many(operations) | Command::Guarded { operations, .. } => {
                operations.iter().all(|operation| is_eight(&operation.op()))
            }
            Command::Load(pairs) => pairs.iter().all(|(key, value)| is_eight(&Op::Put { key, value })),
        }
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        match self {
            Command::One(operation) => operation.bytes(),
            Command::Many(operations) | Command::Guarded { operations, .. } => {
                operations.iter().map(Operation::bytes).sum()
            }
            Command::Load(pairs) => pairs.iter().map(|(key, value)| key.len() + value.len()).sum(),
        }
    }

    /// Whether a pack takes it: checked when it is submitted, so that packing cannot fail later.
    pub(crate) fn check(&self) -> Result<(), PushError> {
        if let Command::One(operation) = self {
            return check_op(&operation.op());
        }
        let mut writer = PackWriter::new(Default::default(), Default::default(), 0, false, usize::MAX);
        self.push(&mut writer, 0)
    }

    /// Appends it to a pack.
    #[inline]
    pub(crate) fn push(&self, writer: &mut PackWriter, number: u64) -> Result<(), PushError> {
        match self {
            Command::One(operation) => writer.push(number, operation.op()),
            Command::Many(operations) => writer.push_many(number, operations.iter().map(Operation::op)),
            Command::Load(pairs) => writer.push_load(number, pairs.iter().map(|(key, value)| (&**key, &**value))),
            Command::Guarded { guards, operations } => {
                writer.push_guarded(number, *guards, operations.iter().map(Operation::op))
            }
        }
    }

    /// A checksum by which a resumed command is recognized.
    pub(crate) fn checksum(&self) -> u32 {
        let mut writer = PackWriter::new(Default::default(), Default::default(), 0, false, usize::MAX);
        match self.push(&mut writer, 0).ok().and_then(|()| writer.finish(Default::default(), 0)) {
            Some(frame) => crc32c::crc32c(&frame),
            None => 0,
        }
    }
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Of one operation.
    One(OpResult),
    /// Of several, in their order.
    Many(Vec<OpResult>),
    /// Of a load: so many pairs.
    Loaded(u64),
    /// Of a load: the key of this pair (from 0) was there, nothing was changed.
    NotLoaded(u64),
    /// Executed, but the results were more than an answer can hold.
    Omitted,
    /// This guard (from 0) does not hold, nothing was changed.
    Unmet(u64),
}

/// An output and where in the order of its partition it belongs (protocol.md 3). A read: behind the whole instance that
/// it observed last. Of the answers of one client, each asked for after the one before it, positions never go back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What the command answered.
    pub output: T,
    /// The position; of the first execution if the command was repeated.
    pub position: Position,
}

impl<T> Answer<T> {
    /// The same position with another output.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { output: change(self.output), position: self.position }
    }
}

pub(crate) fn owned(bytes: &[u8]) -> Value {
    Value::from(bytes)
}

fn owned_result(result: &ResultRef<'_>) -> Option<OpResult> {
    Some(match *result {
        ResultRef::Put { previous } => OpResult::Put { previous: previous.map(owned) },
        ResultRef::Insert { present } => OpResult::Insert { present: present.map(owned) },
        ResultRef::Delete { previous } => OpResult::Delete { previous: previous.map(owned) },
        ResultRef::Cas { done, current } => OpResult::Cas { done, current: current.map(owned) },
        ResultRef::Get { value } => OpResult::Get { value: value.map(owned) },
        ResultRef::Update { outcome, exists, length, value } => {
            OpResult::Update { outcome, exists, length, value: value.map(owned) }
        }
        ResultRef::Look { exists, length, remaining } => OpResult::Look { exists, length, remaining },
        _ => return None,
    })
}

fn answers(operation: &Operation, result: &ResultRef<'_>) -> bool {
    matches!(
        (operation, result),
        (Operation::Put { .. }, ResultRef::Put { .. })
            | (Operation::Insert { .. }, ResultRef::Insert { .. })
            | (Operation::Delete { .. }, ResultRef::Delete { .. })
            | (Operation::Cas { .. }, ResultRef::Cas { .. })
            | (Operation::Get { .. }, ResultRef::Get { .. })
            | (Operation::Update { .. } | Operation::Move { .. }, ResultRef::Update { .. })
            | (Operation::Look { .. }, ResultRef::Look { .. })
    )
}

impl Command {
    /// The output in `result`, if it is one that this command can have: an answer to something else is never believed.
    pub(crate) fn output(&self, result: &ResultRef<'_>) -> Option<Output> {
        match (self, result) {
            (Command::One(operation), result) if answers(operation, result) => owned_result(result).map(Output::One),
            (Command::Many(_) | Command::Guarded { .. }, ResultRef::Many(many)) => {
                let operations = match self {
                    Command::Many(operations) => operations,
                    Command::Guarded { guards, operations } => operations.get(*guards..)?,
                    _ => return None,
                };
                let fits = many.len() == operations.len()
                    && operations.iter().zip(many.iter()).all(|(operation, result)| answers(operation, &result));
                if !fits {
                    return None;
                }
                many.iter().map(|result| owned_result(&result)).collect::<Option<Vec<_>>>().map(Output::Many)
            }
            (Command::Many(_) | Command::Guarded { .. }, ResultRef::Omitted) => Some(Output::Omitted),
            (Command::Guarded { guards, .. }, ResultRef::Unmet { guard }) if *guard < *guards as u64 => {
                Some(Output::Unmet(*guard))
            }
            (Command::Load(all), ResultRef::Loaded { pairs }) if *pairs == all.len() as u64 => {
                Some(Output::Loaded(*pairs))
            }
            (Command::Load(all), ResultRef::NotLoaded { present }) if *present < all.len() as u64 => {
                Some(Output::NotLoaded(*present))
            }
            _ => None,
        }
    }
}

/// How a read is served (protocol.md 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadMode {
    /// Linearizable, by the leader.
    #[default]
    Leader,
    /// Linearizable, by a replica drawn at random, which asks the leader for a position.
    AnyReplica,
    /// The decided state of a replica drawn at random. No real-time order.
    Stale,
}

/// A range, as the session takes it: stale ones inside one partition, others over any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeCall {
    /// First key.
    pub low: Value,
    /// First key beyond; none: the end of the key space.
    pub high: Option<Value>,
    /// How it is read.
    pub scan: ScanOptions,
    /// How it is served.
    pub mode: ReadMode,
    /// What the reader holds, ascending: of a stretch that reads the same it hears that instead of the pairs. Nodes
    /// that do not compare send all pairs, as do all where the range is not read whole and upward.
    pub stretches: Option<Arc<[Stretch]>>,
}
