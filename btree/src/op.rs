//! Commands on a tree, their results and their undo records. Knows nothing of who asked, or when.

use bytes::Bytes;

/// One command on the keys of one partition, borrowed from the bytes it arrived in: nothing is copied to run it.
///
/// `Get` appears inside [`Op::Many`] or in a read; a batch of updates holds the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op<'a> {
    /// Writes `value`, whether or not `key` was there. Result: [`OpResult::Put`] with the previous value.
    Put { key: &'a [u8], value: &'a [u8] },
    /// Writes `value` only if `key` is absent (papers.md D11). Result: [`OpResult::Insert`].
    Insert { key: &'a [u8], value: &'a [u8] },
    /// Removes `key`. Result: [`OpResult::Delete`] with the removed value.
    Delete { key: &'a [u8] },
    /// Writes `value` only if `key` holds exactly `expected`. Result: [`OpResult::Cas`].
    Cas { key: &'a [u8], expected: &'a [u8], value: &'a [u8] },
    /// Reads `key`. Result: [`OpResult::Get`].
    Get { key: &'a [u8] },
}

/// An owned value. Short values stay inline (the papers' case is 8 bytes), longer ones are shared.
pub type Value = Bytes;

/// What a command answers. Every mutation tells what was there before (reliability.md E2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpResult {
    Put {
        previous: Option<Value>,
    },
    /// `present` is the value that kept the insert from happening; `None` means inserted.
    Insert {
        present: Option<Value>,
    },
    Delete {
        previous: Option<Value>,
    },
    /// `current` is the value found at the key before the command, done or not.
    Cas {
        done: bool,
        current: Option<Value>,
    },
    Get {
        value: Option<Value>,
    },
}
