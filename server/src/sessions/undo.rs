//! What takes back one change of the session table.

use coppice_client::wire::SessionId;

use super::Row;

/// Takes back what one entry did to the table; apply in reverse order (ordering.md 2.3).
#[derive(Clone, Debug)]
pub struct SessionUndo(pub(super) Taken);

impl SessionUndo {
    /// Memory that it keeps.
    pub fn bytes(&self) -> u64 {
        let inside = size_of::<SessionUndo>();
        let beside = match &self.0 {
            Taken::Ended { row, .. } => size_of::<Row>() + row.bytes,
            Taken::Shared { sessions, .. } => sessions.len() * size_of::<SessionId>(),
            Taken::Opened { .. } | Taken::Used { .. } => 0,
        };
        (inside + beside) as u64
    }
}

#[derive(Clone, Debug)]
pub(super) enum Taken {
    /// The session was opened.
    Opened { session: SessionId, digest: u64 },
    /// The session was ended by log order.
    Ended { session: SessionId, row: Box<Row>, digest: u64 },
    /// A split copied these, for the first time.
    Shared { sessions: Vec<SessionId>, digest: u64 },
    /// A pack of it was executed.
    Used {
        session: SessionId,
        lowest_unacknowledged: u64,
        highest: u64,
        forgotten_upto: u64,
        last_used: u64,
        bytes: usize,
        dropped: u64,
        stored: u64,
        digest: u64,
    },
}
