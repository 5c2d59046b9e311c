//! Commands on a tree and their results. Knows nothing of who asked, or when.

use crate::update::{Update, UpdateOutcome};
use crate::value::Value;

/// One command on one key, borrowed from the bytes it arrived in: nothing is copied to run it.
///
/// `Get` appears inside a command of several operations or in a read; a batch of updates holds the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op<'a> {
    /// Writes `value`, whether or not `key` was there. Result: [`OpResult::Put`] with the previous value.
    Put {
        /// Where to write.
        key: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Writes `value` only if `key` is absent (papers.md D11). Result: [`OpResult::Insert`].
    Insert {
        /// Where to write.
        key: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Removes `key`. Result: [`OpResult::Delete`] with the removed value.
    Delete {
        /// What to remove.
        key: &'a [u8],
    },
    /// Writes `value` only if `key` holds exactly `expected`. Result: [`OpResult::Cas`].
    Cas {
        /// Where to write.
        key: &'a [u8],
        /// What must be there.
        expected: &'a [u8],
        /// What to write.
        value: &'a [u8],
    },
    /// Reads `key`. Result: [`OpResult::Get`].
    Get {
        /// What to read.
        key: &'a [u8],
    },
    /// Changes what is there, under a condition. Result: [`OpResult::Update`].
    Update {
        /// What to change.
        key: &'a [u8],
        /// An encoded [`Update`](crate::Update): it is read where it is executed, so that it makes no other command
        /// larger.
        terms: &'a [u8],
    },
    /// Reads what is known of `key` without its value. Result: [`OpResult::Look`].
    Look {
        /// What to look at.
        key: &'a [u8],
    },
    /// Gives the value of `key` to another key. Result: [`OpResult::Update`].
    Move {
        /// What to move.
        key: &'a [u8],
        /// Where to.
        to: &'a [u8],
        /// Only if `to` is absent.
        absent: bool,
    },
}

impl<'a> Op<'a> {
    /// Its name, as operators type and read it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Insert { .. } => "insert",
            Self::Delete { .. } => "delete",
            Self::Cas { .. } => "cas",
            Self::Get { .. } => "get",
            Self::Update { .. } => "update",
            Self::Look { .. } => "look",
            Self::Move { .. } => "move",
        }
    }

    /// The value that the key must hold for the command to write.
    pub fn expected(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Cas { expected, .. } => Some(expected),
            _ => None,
        }
    }

    /// The value that the command may write, if that does not depend on what is there.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put { value, .. } | Self::Insert { value, .. } | Self::Cas { value, .. } => Some(value),
            _ => None,
        }
    }

    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Get { .. } | Self::Look { .. } => true,
            Self::Update { terms, .. } => Update::read(terms).is_some_and(|update| update.is_check()),
            _ => false,
        }
    }

    /// The other key that the command is about, if there is one.
    #[inline]
    pub fn other_key(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Move { to, .. } => Some(to),
            _ => None,
        }
    }

    /// The key that the command is about.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Self::Put { key, .. }
            | Self::Insert { key, .. }
            | Self::Delete { key }
            | Self::Cas { key, .. }
            | Self::Get { key }
            | Self::Update { key, .. }
            | Self::Look { key }
            | Self::Move { key, .. } => key,
        }
    }
}

/// What a command answers. Every mutation tells what was there before (hazards.md E2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// Answers [`Op::Put`].
    Put {
        /// The value that was overwritten; `None`: the key was absent.
        previous: Option<Value>,
    },
    /// Answers [`Op::Insert`].
    Insert {
        /// The value that kept the insert from happening; `None`: inserted.
        present: Option<Value>,
    },
    /// Answers [`Op::Delete`].
    Delete {
        /// The removed value; `None`: there was nothing to remove.
        previous: Option<Value>,
    },
    /// Answers [`Op::Cas`].
    Cas {
        /// Whether the new value was written.
        done: bool,
        /// The value found before the command, done or not; `None`: the key was absent.
        current: Option<Value>,
    },
    /// Answers [`Op::Get`].
    Get {
        /// The value; `None`: the key is absent.
        value: Option<Value>,
    },
    /// Answers [`Op::Update`] and [`Op::Move`].
    Update {
        /// Whether it was done, or why not.
        outcome: UpdateOutcome,
        /// Whether the key is there afterwards; of a move, the other key.
        exists: bool,
        /// Bytes of its value afterwards.
        length: u32,
        /// The value that was asked for, if there is one.
        value: Option<Value>,
    },
    /// Answers [`Op::Look`].
    Look {
        /// Whether the key is there.
        exists: bool,
        /// Bytes of its value.
        length: u32,
        /// Milliseconds until it expires; `None`: it does not. A tree knows of none.
        remaining: Option<u64>,
    },
}

const _: () = assert!(size_of::<Op<'static>>() == 56 && size_of::<OpResult>() == 24);

impl OpResult {
    /// The value in it: what the command found.
    #[inline]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Put { previous: value }
            | Self::Insert { present: value }
            | Self::Delete { previous: value }
            | Self::Cas { current: value, .. }
            | Self::Get { value }
            | Self::Update { value, .. } => value.as_ref(),
            Self::Look { .. } => None,
        }
    }
}
