//! What a session table does when its answers are more than it may keep: those who keep most lose theirs first.
//!
//! A client that acknowledges nothing, under one session or under many, costs the table no more than
//! `table_bytes_max`, and costs other clients nothing: whoever keeps little keeps it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use coppice_client::wire::SessionId;

use super::undo::Taken;
use super::{SessionLimits, SessionUndo, Sessions, row_digest};

/// A session that keeps fewer bytes is not ordered by size: most packs then change no order at all. Full of such
/// sessions, a table ends those that were used least recently.
const LARGE_BYTES: usize = 4 << 10;

/// Bytes of all kept answers, and which sessions keep most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    total: usize,
    /// Of those that keep as much, the one that was opened first is the last.
    large: BTreeSet<(usize, Reverse<SessionId>)>,
}

impl Sizes {
    pub fn total(&self) -> usize {
        self.total
    }

    /// A session that kept `before` bytes keeps `after`.
    pub fn change(&mut self, session: SessionId, before: usize, after: usize) {
        if before == after {
            return;
        }
        self.total = self.total - before + after;
        if before >= LARGE_BYTES {
            self.large.remove(&(before, Reverse(session)));
        }
        if after >= LARGE_BYTES {
            self.large.insert((after, Reverse(session)));
        }
    }

    fn largest(&self) -> Option<SessionId> {
        self.large.last().map(|(_, Reverse(session))| *session)
    }
}

impl Sessions {
    /// Bytes of all answers that the table keeps.
    pub fn bytes(&self) -> usize {
        self.sizes.total()
    }

    /// Forgets answers until the table is within its bound, and ends sessions if it must; `newest` has just stored
    /// some. Not between the operations of a pack and its answers: its session may be one that ends.
    pub fn relieve(&mut self, newest: SessionId, limits: &SessionLimits, undo: &mut Vec<SessionUndo>) {
        while self.sizes.total() > limits.table_bytes_max && !crate::mutant!(sessions_unbounded) {
            if let Some(largest) = self.sizes.largest() {
                self.forget_oldest(largest, undo);
                continue;
            }
            let oldest = self.order.by_use().map(|(_, session)| session).find(|session| *session != newest);
            let Some(oldest) = oldest else { return };
            self.end(oldest, undo);
        }
    }

    /// Forgets the oldest answers of `session`: they are never executed again.
    fn forget_oldest(&mut self, session: SessionId, undo: &mut Vec<SessionUndo>) {
        let Some(row) = self.rows.get_mut(&session) else { return };
        let (digest, forgotten_upto, bytes, dropped) = (self.digest, row.forgotten_upto, row.bytes, row.dropped);
        self.digest = self.digest.wrapping_sub(row_digest(session, row));
        if let Some(forgotten) = row.forget_front() {
            self.digest = self.digest.wrapping_sub(forgotten);
        }
        self.digest = self.digest.wrapping_add(row_digest(session, row));
        self.sizes.change(session, bytes, row.bytes);
        let dropped_after = row.dropped;
        undo.push(SessionUndo(Taken::Forgotten { session, forgotten_upto, bytes, dropped, dropped_after, digest }));
    }
}
