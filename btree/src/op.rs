//! Commands on a tree and their results. Knows nothing of who asked, or when.

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
        }
    }

    /// The value that the key must hold for the command to write.
    pub fn expected(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Cas { expected, .. } => Some(expected),
            _ => None,
        }
    }

    /// The value that the command may write.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Put { value, .. } | Self::Insert { value, .. } | Self::Cas { value, .. } => Some(value),
            Self::Delete { .. } | Self::Get { .. } => None,
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
            | Self::Get { key } => key,
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
}

impl OpResult {
    /// The value in it: what the command found.
    #[inline]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Put { previous: value }
            | Self::Insert { present: value }
            | Self::Delete { previous: value }
            | Self::Cas { current: value, .. }
            | Self::Get { value } => value.as_ref(),
        }
    }
}
