//! How a call can end without an answer. Two kinds only, because a caller acts on the difference: certainly not
//! executed, or not known.

use std::{fmt, io};

use bytes::Bytes;

use crate::resume::ResumeToken;
use crate::wire::{NodeId, PartitionId};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Certainly not executed, now or later. For a read: no answer.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// May have been executed, once at most. Writes only.
    #[error("{0}")]
    Unknown(Box<Unknown>),
}

/// What every call returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure without a place.
    pub(crate) fn failed(reason: Reason) -> Error {
        Error::Failed(Box::new(Failure { reason, place: Place::default() }))
    }

    /// Whether it is certain that nothing was executed.
    pub fn is_sure(&self) -> bool {
        matches!(self, Error::Failed(_))
    }

    /// The reason, if the call certainly had no effect.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Error::Failed(failure) => Some(&failure.reason),
            Error::Unknown(_) => None,
        }
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        match self {
            Error::Failed(failure) => &failure.place,
            Error::Unknown(unknown) => &unknown.place,
        }
    }

    /// What repeats the same command under the same number, if the outcome is unknown and may still be learned.
    pub fn resume_token(&self) -> Option<&ResumeToken> {
        match self {
            Error::Unknown(unknown) => unknown.resume.as_ref(),
            Error::Failed(_) => None,
        }
    }
}

/// A call that certainly had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why it had none.
    pub reason: Reason,
    /// The partition, and the nodes that could have served it.
    pub place: Place,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.reason, self.place)
    }
}

/// Why a call certainly had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No replica of the partition said that it leads, until the deadline.
    #[error("no leader")]
    NoLeader,
    /// No node that could serve it was reached, until the deadline.
    #[error("no node that could serve it was reached; does the cluster run there?")]
    Unreachable,
    /// The nodes answered `Busy` until the deadline, or each session was over before a command was executed in it: more
    /// clients want one than `sessions_max`. Which bound is reached.
    #[error("the servers are busy: {0}")]
    Busy(String),
    /// The disks of a majority of the partition, or the memory of the node that leads it, are at their limit; deletes
    /// are still taken. Which bound is reached.
    #[error("full: {0}")]
    Full(String),
    /// The deadline passed before it was sent, or (a read) before it was answered.
    #[error("timed out")]
    TimedOut,
    /// This client has too many calls waiting.
    #[error("too many calls are waiting in this client")]
    QueueFull,
    /// A key, a value or the command is above its limit: which, and what was found.
    #[error("too large: {0}")]
    TooLarge(String),
    /// A command without operations, or a load whose keys do not ascend.
    #[error("not a valid command")]
    Invalid,
    /// The keys belong to more than one partition.
    #[error("the keys belong to more than one partition")]
    SpansPartitions,
    /// The role of this client does not allow it.
    #[error("denied: {0}")]
    Denied(String),
    /// The nodes wait for `init`.
    #[error("the cluster is not initialized")]
    NotInitialized,
    /// The nodes speak another protocol version, belong to another cluster, or did not understand the request.
    #[error("{0}")]
    Incompatible(String),
    /// A range was interrupted after some of it was given out: go on behind this key, at another moment, or start anew.
    #[error("the range was interrupted")]
    Interrupted {
        /// The last key that was given out.
        last: Option<Bytes>,
    },
    /// A resumed command is not the one that the token was made for.
    #[error("the token belongs to another command")]
    OtherCommand,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// A write whose outcome is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Why nobody knows.
    pub cause: Cause,
    /// Repeats the same command under the same number: executed at most once.
    pub resume: Option<ResumeToken>,
    /// The partition, and the nodes that could have served it.
    pub place: Place,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outcome unknown: {}{}", self.cause, self.place)
    }
}

/// Why an outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// Sent, and no answer before the deadline.
    #[error("sent, no answer before the deadline")]
    NoAnswer,
    /// Sent without an answer; when it was repeated, the session was gone.
    #[error("the session expired")]
    SessionExpired,
    /// Its answer is no longer kept.
    #[error("the answer is no longer kept")]
    Forgotten,
    /// Sent without an answer; when it was repeated, its keys had come to lie in several partitions.
    #[error("the keys came to lie in several partitions")]
    SpansPartitions,
    /// Sent without an answer; when it was repeated, it was refused for good.
    #[error("refused when it was repeated")]
    Refused,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
}

/// Where a call ended: what an operator wants to know next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The partition, if it was found.
    pub partition: Option<PartitionId>,
    /// Its first key.
    pub low: Bytes,
    /// Its first key beyond.
    pub high: Option<Bytes>,
    /// The nodes that could have served it and what became of them.
    pub nodes: Vec<NodeError>,
}

/// Behind what happened, in brackets: the partition, and the nodes that failed. Nothing if none of it is known.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partition = self.partition.iter().map(ToString::to_string);
        let nodes = self.nodes.iter().filter(|node| !node.error.is_empty()).map(|node| match node.node {
            Some(id) => format!("{id} {}: {}", node.address, node.error),
            None => format!("{}: {}", node.address, node.error),
        });
        let parts: Vec<String> = partition.chain(nodes).collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join("; ")) }
    }
}

/// What is said of an address at which nobody listens.
pub const REFUSED: &str = "refused the connection";

/// An error in the words of operations.md 2: without the operating system's number.
pub fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => REFUSED.into(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "lost the connection".into(),
        io::ErrorKind::TimedOut => "timed out".into(),
        _ => error.to_string(),
    }
}

/// A node and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// Which node, if it was known.
    pub node: Option<NodeId>,
    /// Where it was tried.
    pub address: String,
    /// In words; empty: reached.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_where_and_what_became_of_each_node() {
        let node = |node, address: &str, error: &str| NodeError { node, address: address.into(), error: error.into() };
        let nodes = vec![
            node(Some(NodeId(1)), "127.0.0.1:7400", "refused the connection"),
            node(Some(NodeId(2)), "127.0.0.1:7410", ""),
            node(None, "127.0.0.1:7420", "timed out"),
        ];
        let place = Place { partition: Some(PartitionId(4)), nodes, ..Place::default() };
        let failed = Error::Failed(Box::new(Failure { reason: Reason::Unreachable, place: place.clone() }));
        assert_eq!(
            failed.to_string(),
            "no node that could serve it was reached; does the cluster run there? (p4; n1 127.0.0.1:7400: refused the \
             connection; 127.0.0.1:7420: timed out)"
        );
        let unknown = Unknown { cause: Cause::NoAnswer, resume: None, place };
        let said = Error::Unknown(Box::new(unknown)).to_string();
        assert!(said.starts_with("outcome unknown: sent, no answer before the deadline (p4; n1 "), "{said}");
        assert_eq!(Error::failed(Reason::Closed).to_string(), "the client is closed");
    }
}
