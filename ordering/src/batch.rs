//! What one instance decides: a batch of commands, a configuration, or nothing.
//!
//! Payload is opaque here and is never copied: a batch keeps the handles of the submissions that went into it, and
//! every message and log record of the batch shares them.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::ReplicaId;

/// The value of an instance. Cloning is cheap: no payload is copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// Fills a hole that a new leader found (protocol.md 1.1).
    NoOp,
    /// Client commands.
    Commands(Commands),
    /// A membership change, alone in flight (protocol.md 1.5).
    Configuration(Configuration),
}

impl Batch {
    /// Payload bytes, as the window counts them.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        match self {
            Batch::Commands(commands) => commands.len_bytes(),
            Batch::NoOp | Batch::Configuration(_) => 0,
        }
    }

    /// Number of commands.
    #[inline]
    pub fn count(&self) -> u32 {
        match self {
            Batch::Commands(commands) => commands.count(),
            Batch::NoOp | Batch::Configuration(_) => 0,
        }
    }

    /// The configuration, if the batch is one.
    pub fn as_configuration(&self) -> Option<&Configuration> {
        match self {
            Batch::Configuration(configuration) => Some(configuration),
            Batch::NoOp | Batch::Commands(_) => None,
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batch::NoOp => write!(f, "noop"),
            Batch::Commands(commands) => write!(f, "{commands}"),
            Batch::Configuration(configuration) => write!(f, "{configuration}"),
        }
    }
}

/// Commands of one batch: the submissions as they came, in order.
///
/// Two values are equal if their bytes are, however these are cut into parts: the leader holds one part per
/// submission, a follower the one part that came off the wire.
#[derive(Clone)]
pub struct Commands {
    count: u32,
    len_bytes: usize,
    parts: Parts,
}

#[derive(Clone)]
enum Parts {
    One([Bytes; 1]),
    Many(Arc<[Bytes]>),
}

impl Commands {
    /// `count` commands in one piece, as they come off the wire or the log.
    pub fn new(count: u32, bytes: Bytes) -> Commands {
        Commands { count, len_bytes: bytes.len(), parts: Parts::One([bytes]) }
    }

    /// `count` commands in the submissions `parts`, in order. One allocation, of the list of handles.
    pub fn from_parts(count: u32, parts: &mut Vec<Bytes>) -> Commands {
        let len_bytes = parts.iter().map(Bytes::len).sum();
        let parts = match parts.len() {
            1 => Parts::One([parts.remove(0)]),
            _ => Parts::Many(parts.drain(..).collect()),
        };
        Commands { count, len_bytes, parts }
    }

    /// Number of commands.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Total length of all parts, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The payload: the parts, one after the other.
    pub fn parts(&self) -> &[Bytes] {
        match &self.parts {
            Parts::One(part) => part,
            Parts::Many(parts) => parts,
        }
    }

    /// The payload in one piece: shared if it is one already, else copied. Complexity: its length at worst.
    pub fn to_bytes(&self) -> Bytes {
        match &self.parts {
            Parts::One([part]) => part.clone(),
            Parts::Many(parts) => parts.concat().into(),
        }
    }

    fn bytes(&self) -> impl Iterator<Item = &u8> {
        self.parts().iter().flat_map(|part| part.iter())
    }
}

impl PartialEq for Commands {
    fn eq(&self, other: &Commands) -> bool {
        self.count == other.count
            && self.len_bytes == other.len_bytes
            && match (self.parts(), other.parts()) {
                ([a], [b]) => a == b,
                _ => self.bytes().eq(other.bytes()),
            }
    }
}

impl Eq for Commands {}

impl Hash for Commands {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.count.hash(state);
        self.len_bytes.hash(state);
        self.bytes().for_each(|byte| state.write_u8(*byte));
    }
}

/// Sizes only: what panics and logs print of a batch, a message or a record holds no key and no value.
impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commands({} in {} B)", self.count, self.len_bytes)
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tests submit short words; anything else prints as its size.
        let text = |part: &Bytes| std::str::from_utf8(part).ok().filter(|s| s.len() <= 12).map(|s| s.trim().to_owned());
        match self.parts().iter().map(text).collect::<Option<Vec<String>>>() {
            Some(words) if words.len() <= 8 => write!(f, "[{}]", words.join(" ")),
            _ => write!(f, "[{} commands, {} B]", self.count, self.len_bytes),
        }
    }
}

/// Who replicates a group. Decided at instance j it governs every instance after j, until the next one (protocol.md
/// 1.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Configuration {
    /// They promise, vote, elect and are elected. At most [`crate::quorum::VOTERS_MAX`].
    pub voters: BTreeSet<ReplicaId>,
    /// They receive and execute everything, and are in no quorum.
    pub learners: BTreeSet<ReplicaId>,
    /// Removed by this configuration. They keep their log and answer `CatchUp` until a quorum of `voters` durably holds
    /// everything up to the entry; the leader tells them when. Filled in by the leader that proposes it.
    pub leaving: BTreeSet<ReplicaId>,
}

impl Configuration {
    /// A configuration of these voters and nobody else.
    pub fn of_voters(voters: impl IntoIterator<Item = ReplicaId>) -> Configuration {
        Configuration { voters: voters.into_iter().collect(), ..Configuration::default() }
    }

    /// Voters and learners, in id order.
    pub fn members(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.voters.union(&self.learners).copied()
    }

    /// Whether `replica` votes or learns.
    pub fn is_member(&self, replica: ReplicaId) -> bool {
        self.voters.contains(&replica) || self.learners.contains(&replica)
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |set: &BTreeSet<ReplicaId>| set.iter().map(ReplicaId::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{{{}", list(&self.voters))?;
        if !self.learners.is_empty() {
            write!(f, " | learners {}", list(&self.learners))?;
        }
        if !self.leaving.is_empty() {
            write!(f, " | leaving {}", list(&self.leaving))?;
        }
        write!(f, "}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_equal_however_they_are_cut() {
        let mut parts = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")];
        let cut = Commands::from_parts(2, &mut parts);
        assert_eq!(cut, Commands::new(2, Bytes::from_static(b"abc")));
        assert_ne!(cut, Commands::new(2, Bytes::from_static(b"abd")));
        assert_eq!(cut.to_bytes(), Bytes::from_static(b"abc"));
        assert_eq!(cut.to_string(), "[ab c]");
        assert!(parts.is_empty());
    }

    /// Two batches that had to be equal and were not ended the process with both of them in its log.
    #[test]
    fn what_is_printed_of_a_batch_that_is_wrong_holds_no_key_and_no_value() {
        let batch = Batch::Commands(Commands::new(3, Bytes::from_static(b"a secret key and its value")));
        assert_eq!(format!("{batch:?}"), "Commands(Commands(3 in 26 B))");
    }
}
