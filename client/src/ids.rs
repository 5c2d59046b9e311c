//! Names of things that clients see, and how they print.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A partition, and its Paxos group; prints `p4`. 0 is the directory.
    PartitionId(u32),
    "p"
);
id!(
    /// A server process with its data directory; prints `n1`.
    NodeId(u32),
    "n"
);
id!(
    /// A replica of one group, counted up per group and never used again; prints `r1`.
    ReplicaId(u32),
    "r"
);
id!(
    /// The version of a partition map; every change of the map raises it.
    MapVersion(u64),
    ""
);

impl PartitionId {
    /// Group 0, whose state is the partition map.
    pub const DIRECTORY: PartitionId = PartitionId(0);
}

/// A client: 64 random bits, drawn once per process and handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{:016x}", self.0)
    }
}

/// A cluster: 128 random bits, drawn by `init`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ClusterId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<ClusterId, Self::Err> {
        u128::from_str_radix(text, 16).map(ClusterId)
    }
}

/// A place in a partition's log; prints `p2#1841.0`, and `p2#1841` behind all commands of the instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The partition whose log it is in.
    pub partition: PartitionId,
    /// Instance, from 1; 0 is before the first.
    pub instance: u64,
    /// Index of the command in the instance's batch; [`Position::WHOLE`]: behind all of them.
    pub index: u32,
}

impl Position {
    /// The index of a read that saw every command of its instance.
    pub const WHOLE: u32 = u32::MAX;

    /// The place behind every command of the instance: where a read stands that saw all of it.
    pub fn whole(self) -> Position {
        Position { index: Position::WHOLE, ..self }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.index == Position::WHOLE {
            return write!(f, "{}#{}", self.partition, self.instance);
        }
        write!(f, "{}#{}.{}", self.partition, self.instance, self.index)
    }
}

/// A session: the position of the command that opened it (protocol.md 6). It stays the name after a split or merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId {
    /// The partition that it was opened in, not always the one that it is used in.
    pub partition: PartitionId,
    /// Instance of the opening command.
    pub instance: u64,
    /// Its index in the batch.
    pub index: u32,
}

impl SessionId {
    /// The session that was opened at `position`.
    pub fn at(position: Position) -> SessionId {
        let Position { partition, instance, index } = position;
        SessionId { partition, instance, index }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}.{}", self.partition, self.instance, self.index)
    }
}

/// A ticket of a query across partitions (protocol.md 4): the coordinator's ballot and a count; prints `~3.57`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// Round of the coordinator's ballot.
    pub round: u64,
    /// Replica of the coordinator's ballot.
    pub replica: ReplicaId,
    /// Counts the tickets of this ballot.
    pub n: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "~{}.{}", self.round, self.n)
    }
}

/// What a replica had seen change when a range was read there: named to the same one later, it tells whether anything
/// of the range has changed since. Means nothing to anybody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// The replica that counted it.
    pub replica: ReplicaId,
    /// Counts the starts of its node.
    pub incarnation: u64,
    /// When the replica began to run there, by a clock of its own.
    pub began: u64,
    /// Changes since then.
    pub changes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_as_the_experience_page_says() {
        let position = Position { partition: PartitionId(2), instance: 1841, index: 0 };
        assert_eq!(position.to_string(), "p2#1841.0");
        assert_eq!(position.whole().to_string(), "p2#1841");
        assert!(position.whole() > Position { index: 9, ..position });
        assert_eq!(SessionId::at(position).to_string(), "p2#1841.0");
        assert_eq!(NodeId(1).to_string(), "n1");
        assert_eq!(Ticket { round: 3, replica: ReplicaId(1), n: 57 }.to_string(), "~3.57");
    }
}
