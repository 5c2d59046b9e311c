//! What the simulator itself knows of tickets: who was sent which, which queries they carry, where they counted, what
//! was released. Coordinators are held against it whenever they say something, replicas whenever they answer (the
//! invariants I9 to I12 of hazards.md 4).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_client::wire::PartitionId;
use coppice_core::ids;
use coppice_ordering::multicast::{Effect, Work};
use coppice_ordering::{Ballot, QueryId, Ticket};

use super::found::{Found, broken};
use super::groups::Groups;
use super::ledger::Ledger;
use super::plan::Nanos;

/// One ticket, as its coordinator sent it.
#[derive(Clone, Debug, Default)]
struct IssuedTicket {
    partitions: BTreeSet<PartitionId>,
    queries: BTreeSet<QueryId>,
    is_change: bool,
    /// Each of its queries was completed or aborted, or its change is done.
    ended: BTreeSet<QueryId>,
    is_done: bool,
}

impl IssuedTicket {
    /// Neither released nor voided, as far as its queries, or its change, tell. The first one of a ballot has none.
    fn is_open(&self) -> bool {
        match self.is_change {
            true => !self.is_done,
            false => self.ended.len() < self.queries.len(),
        }
    }
}

/// All tickets.
#[derive(Debug, Default)]
pub struct Tickets {
    issued: BTreeMap<Ticket, IssuedTicket>,
    /// By ballot, since each coordinator counts its own.
    queries: BTreeMap<(Ballot, QueryId), Ticket>,
    aborted: BTreeSet<(Ballot, QueryId)>,
    /// Over which keys they go.
    ranges: BTreeMap<(Ballot, QueryId), (Bytes, Option<Bytes>)>,
    /// The highest watermark that any coordinator told.
    released: BTreeMap<PartitionId, Ticket>,
    /// When a replica of the directory began to lead.
    leaders: Vec<(Ballot, Nanos)>,
}

impl Tickets {
    /// A replica of the directory leads.
    pub fn leads(&mut self, ballot: Ballot, now: Nanos) {
        self.leaders.push((ballot, now));
    }

    /// A coordinator is asked for a query.
    pub fn asked(&mut self, ballot: Ballot, query: QueryId, low: &Bytes, high: Option<&Bytes>) {
        self.ranges.insert((ballot, query), (low.clone(), high.cloned()));
    }

    /// The highest ticket of a partition up to which all are released or voided.
    pub fn released(&self, partition: PartitionId) -> Option<Ticket> {
        self.released.get(&partition).copied()
    }

    /// A coordinator, in this ballot so far, asks for this in one step: in any order.
    pub fn coordinated(
        &mut self,
        (groups, ledger): (&Groups, &Ledger),
        ballot: Option<Ballot>,
        effects: &[Effect],
    ) -> Found {
        effects.iter().for_each(|effect| self.note(ballot, effect));
        for effect in effects {
            match effect {
                Effect::Complete { query, ticket } => {
                    if self.aborted.contains(&(ticket.ballot, *query)) {
                        return broken("I12 a voided ticket", format!("{ticket} was voided, and completes {query}"));
                    }
                    self.ends(groups, *ticket)?;
                    if let Some((low, high)) = self.ranges.remove(&(ticket.ballot, *query)) {
                        ledger.check_tiles(*ticket, (&low, high.as_ref()))?;
                    }
                    self.end(ticket.ballot, *query);
                }
                Effect::Changed { ticket, .. } => {
                    self.ends(groups, *ticket)?;
                    self.issued.entry(*ticket).or_default().is_done = true;
                }
                _ => {}
            }
        }
        for effect in effects {
            if let Effect::Released { partition, watermark } = effect {
                self.tells(ids::partition(*partition), *watermark)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, ballot: Option<Ballot>, effect: &Effect) {
        match effect {
            Effect::Place { partition, place } => {
                let issued = self.issued.entry(place.ticket).or_default();
                issued.partitions.insert(ids::partition(*partition));
                issued.is_change |= matches!(place.work, Work::Change { .. });
            }
            Effect::Cut { query, ticket } => {
                self.issued.entry(*ticket).or_default().queries.insert(*query);
                self.queries.insert((ticket.ballot, *query), *ticket);
            }
            Effect::Aborted { query, .. } => {
                if let Some(ballot) = ballot {
                    self.aborted.insert((ballot, *query));
                    self.end(ballot, *query);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, ballot: Ballot, query: QueryId) {
        if let Some(issued) = self.queries.get(&(ballot, query)).and_then(|ticket| self.issued.get_mut(ticket)) {
            issued.ended.insert(query);
        }
    }

    /// A ticket of queries or of a change is released: decided in all its partitions, first in each queue, and then the
    /// leadership was confirmed (I11).
    fn ends(&self, groups: &Groups, ticket: Ticket) -> Found {
        let Some(issued) = self.issued.get(&ticket) else {
            return broken("I11 an unknown ticket", format!("{ticket} is released, and was never sent"));
        };
        let mut last = 0;
        for &partition in &issued.partitions {
            let Some(at) = groups.get(&partition).and_then(|group| group.placed_at(ticket)) else {
                return broken("I11 not placed", format!("{ticket} is released, and {partition} has not decided it"));
            };
            last = last.max(at);
            let before = self.issued.range(Ticket { n: 0, ..ticket }..ticket);
            let mut ahead = before.filter(|(_, other)| other.partitions.contains(&partition) && other.is_open());
            if let Some((other, _)) = ahead.next() {
                let what = format!("{ticket} is released, and {other} is before it in {partition}");
                return broken("I11 not first in a queue", what);
            }
        }
        match self.leaders.iter().find(|(ballot, since)| *ballot > ticket.ballot && *since < last) {
            Some((ballot, _)) => {
                let what = format!("{ticket} is released, and {ballot} led before it was placed everywhere");
                broken("I11 not confirmed", what)
            }
            None => Ok(()),
        }
    }

    /// A partition is told a watermark (I12).
    fn tells(&mut self, partition: PartitionId, watermark: Ticket) -> Found {
        let mut covered = self.issued.range(Ticket { n: 0, ..watermark }..=watermark);
        if let Some((open, _)) = covered.find(|(_, issued)| issued.partitions.contains(&partition) && issued.is_open())
        {
            let what = format!("{partition} is told {watermark}, and {open} is neither released nor voided");
            return broken("I12 watermark", what);
        }
        let released = self.released.entry(partition).or_insert(watermark);
        *released = watermark.max(*released);
        Ok(())
    }
}
