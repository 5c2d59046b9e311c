//! What takes back one change of the session table.

use coppice_client::wire::SessionId;

use super::Row;

/// Takes back what one entry did to the table; apply in reverse order (protocol.md 2.3).
#[derive(Clone, Debug)]
pub struct SessionUndo(pub(super) SessionChange);

impl SessionUndo {
    /// Memory that it keeps.
    pub fn bytes(&self) -> u64 {
        let inside = size_of::<SessionUndo>();
        let beside = match &self.0 {
            SessionChange::Ended { row, .. } => size_of::<Row>() + row.bytes,
            SessionChange::Shared { sessions, .. } => sessions.len() * size_of::<SessionId>(),
            SessionChange::Opened { .. } | SessionChange::Used { .. } | SessionChange::Forgotten { .. } => 0,
        };
        (inside + beside) as u64
    }
}

#[derive(Clone, Debug)]
pub(super) enum SessionChange {
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
        /// With what the pack itself dropped: freed when it is decided.
        dropped_after: u64,
        stored: u64,
        digest: u64,
    },
    /// Its oldest answers were forgotten to make room for those of another session, or of its own.
    Forgotten { session: SessionId, forgotten_upto: u64, bytes: usize, dropped: u64, dropped_after: u64, digest: u64 },
}

/// The newest record, which is of a pack of `session`, has dropped answers up to here.
pub(super) fn note_dropped(undo: &mut [SessionUndo], session: SessionId, upto: u64) {
    if let Some(SessionUndo(SessionChange::Used { session: of, dropped_after, .. })) = undo.last_mut()
        && *of == session
    {
        *dropped_after = upto;
    }
}
