//! Which session ends first where there are as many as may be.
//!
//! That of the client which has most of them, and of these the one that was used least recently: a client that opens
//! sessions without end ends its own. Where no client has two, the one that was used least recently of all.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::wire::SessionId;

/// All sessions of a table in the order of their use, and by client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Order {
    by_use: BTreeSet<(u64, SessionId)>,
    by_client: BTreeSet<(u64, u64, SessionId)>,
    /// How many sessions a client has that has several, and the same by number.
    counts: BTreeMap<u64, usize>,
    largest: BTreeSet<(usize, u64)>,
}

impl Order {
    pub fn insert(&mut self, session: SessionId, client: u64, last_used: u64) {
        self.by_use.insert((last_used, session));
        let alone = self.oldest_of(client).is_none();
        self.by_client.insert((client, last_used, session));
        if !alone {
            let count = self.counts.get(&client).map_or(2, |count| count + 1);
            self.recount(client, count);
        }
    }

    pub fn remove(&mut self, session: SessionId, client: u64, last_used: u64) {
        self.by_use.remove(&(last_used, session));
        self.by_client.remove(&(client, last_used, session));
        if let Some(count) = self.counts.get(&client) {
            self.recount(client, count - 1);
        }
    }

    fn recount(&mut self, client: u64, count: usize) {
        if let Some(before) = self.counts.remove(&client) {
            self.largest.remove(&(before, client));
        }
        if count > 1 {
            self.counts.insert(client, count);
            self.largest.insert((count, client));
        }
    }

    /// The session was used at `now`, and at `before` before that.
    pub fn used(&mut self, session: SessionId, client: u64, before: u64, now: u64) {
        self.by_use.remove(&(before, session));
        self.by_use.insert((now, session));
        self.by_client.remove(&(client, before, session));
        self.by_client.insert((client, now, session));
    }

    /// From the one that was used least recently on, each with when that was.
    pub fn by_use(&self) -> impl Iterator<Item = (u64, SessionId)> {
        self.by_use.iter().copied()
    }

    /// Which one ends first to make room.
    pub fn first_to_go(&self) -> Option<SessionId> {
        let largest = self.largest.last().filter(|_| !mutant!(sessions_end_by_age));
        let of_largest = largest.and_then(|(_, client)| self.oldest_of(*client));
        of_largest.or_else(|| self.by_use.first().map(|(_, session)| *session))
    }

    fn oldest_of(&self, client: u64) -> Option<SessionId> {
        self.of(client).next()
    }

    /// Those of a client, from the one that was used least recently on.
    pub fn of(&self, client: u64) -> impl Iterator<Item = SessionId> {
        let from = self.by_client.range((client, 0, SessionId::default())..);
        from.take_while(move |(of, ..)| *of == client).map(|(.., session)| *session)
    }
}
