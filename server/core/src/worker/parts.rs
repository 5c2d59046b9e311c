//! Parts of queries whose clients are not connected to this node yet.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_client::wire::ClientId;
use coppice_ordering::Time;

use crate::replica::QueryPart;
use crate::settings::ClusterSettings;

/// Parts that wait so. Beyond, the oldest are dropped: their clients ask again.
const PARKED_PARTS_MAX: usize = 4_096;

/// Parts that wait, in the order in which they came. Each has a snapshot.
pub(super) struct ParkedParts {
    parts: VecDeque<(Time, Box<QueryPart>)>,
    /// How long they wait.
    wait: Duration,
}

impl Default for ParkedParts {
    fn default() -> ParkedParts {
        ParkedParts { parts: VecDeque::new(), wait: ClusterSettings::default().responder_connect_timeout }
    }
}

impl ParkedParts {
    pub(super) fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn park(&mut self, now: Time, part: Box<QueryPart>) {
        if self.parts.len() >= PARKED_PARTS_MAX {
            self.parts.pop_front();
        }
        self.parts.push_back((now, part));
    }

    /// Those of a client that has connected.
    pub(super) fn unpark(&mut self, client: ClientId) -> impl Iterator<Item = Box<QueryPart>> + use<> {
        let parked = std::mem::take(&mut self.parts).into_iter();
        let (found, rest): (VecDeque<_>, _) = parked.partition(|(_, part)| part.partition_query.client == client);
        self.parts = rest;
        found.into_iter().map(|(_, part)| part)
    }

    /// Drops those that have waited for too long.
    pub(super) fn expire(&mut self, now: Time) {
        while self.parts.front().is_some_and(|(since, _)| now.since(*since) > self.wait) {
            self.parts.pop_front();
        }
    }
}
