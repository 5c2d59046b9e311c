//! What a session table does when its answers are more than it may keep: those who keep most lose theirs first, a
//! client with all its sessions or a session alone.
//!
//! A client that acknowledges nothing, under one session or under many, costs the table no more than
//! `table_bytes_max`, and costs other clients nothing: whoever keeps little keeps it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::SessionId;

use super::undo::SessionChange;
use super::{SessionLimits, SessionUndo, Sessions, row_digest};

/// A session that keeps fewer bytes is not ordered by size, and clients are in steps of so many: most packs then change
/// no order at all. A client of small sessions loses those that it used least recently; full of clients that keep less,
/// a table ends the sessions that were used least recently.
const LARGE_BYTES: usize = 4 << 10;

/// Bytes of all kept answers, and who keeps most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    total: usize,
    /// Of those that keep as much, the one that was opened first is the last.
    large: BTreeSet<(usize, Reverse<SessionId>)>,
    /// The same by client.
    large_of: BTreeSet<(u64, usize, Reverse<SessionId>)>,
    /// What each client keeps in all its sessions, and clients by steps of that.
    clients: BTreeMap<u64, usize>,
    largest: BTreeSet<(usize, u64)>,
}

impl Sizes {
    pub fn total(&self) -> usize {
        self.total
    }

    /// A session of `client` that kept `before` bytes keeps `after`.
    pub fn change(&mut self, (session, client): (SessionId, u64), before: usize, after: usize) {
        if before == after {
            return;
        }
        self.total = self.total - before + after;
        if before >= LARGE_BYTES {
            self.large.remove(&(before, Reverse(session)));
            self.large_of.remove(&(client, before, Reverse(session)));
        }
        if after >= LARGE_BYTES {
            self.large.insert((after, Reverse(session)));
            self.large_of.insert((client, after, Reverse(session)));
        }
        let kept = self.clients.entry(client).or_default();
        let (was, is) = (*kept, *kept - before + after);
        *kept = is;
        if is == 0 {
            self.clients.remove(&client);
        }
        if was / LARGE_BYTES != is / LARGE_BYTES {
            self.largest.remove(&(was / LARGE_BYTES, client));
            if is >= LARGE_BYTES {
                self.largest.insert((is / LARGE_BYTES, client));
            }
        }
    }

    fn largest(&self) -> Option<(usize, SessionId)> {
        self.large.last().map(|(bytes, Reverse(session))| (*bytes, *session))
    }

    /// The client that keeps most, if that is more than any session does.
    fn largest_client(&self) -> Option<u64> {
        let session = self.largest().map_or(0, |(bytes, _)| bytes / LARGE_BYTES);
        let (_, client) = self.largest.last().filter(|(steps, _)| *steps > session)?;
        Some(*client).filter(|_| !mutant!(answers_go_by_session))
    }

    /// Its session that keeps most; none: it has small ones only.
    fn largest_of(&self, client: u64) -> Option<SessionId> {
        let largest = self.large_of.range(..=(client, usize::MAX, Reverse(SessionId::default()))).next_back();
        largest.filter(|(of, ..)| *of == client).map(|(.., Reverse(session))| *session)
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
        while self.sizes.total() > limits.table_bytes_max && !mutant!(sessions_unbounded) {
            let client = self.sizes.largest_client();
            let largest = match client {
                Some(client) => self.sizes.largest_of(client),
                None => self.sizes.largest().map(|(_, session)| session),
            };
            if let Some(largest) = largest {
                self.forget_oldest(largest, undo);
                continue;
            }
            let of_client = client.and_then(|client| self.order.of(client).find(|session| *session != newest));
            let oldest = || self.order.by_use().map(|(_, session)| session).find(|session| *session != newest);
            let Some(oldest) = of_client.or_else(oldest) else { return };
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
        self.sizes.change((session, row.client), bytes, row.bytes);
        let dropped_after = row.dropped;
        undo.push(SessionUndo(SessionChange::Forgotten {
            session,
            forgotten_upto,
            bytes,
            dropped,
            dropped_after,
            digest,
        }));
    }
}
