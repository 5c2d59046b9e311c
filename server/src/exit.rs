//! How the program ends.

/// How a command ended, for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// Failed; `status`: degraded.
    Failed = 1,
    /// Usage, configuration, too large.
    Usage = 2,
    /// No quorum, unreachable, or refused until the deadline: certainly not executed.
    Unavailable = 3,
    /// No such key, node or partition.
    NotFound = 4,
    /// A condition did not hold.
    Condition = 5,
    /// Sent, and no answer before the deadline.
    Unknown = 6,
}
