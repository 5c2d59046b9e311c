//! The partition's side of the multicast: its last ticket, and what its replicas tell the coordinator (protocol.md 4,
//! steps 3 and 5, and 4.3).
//!
//! [`Chain`] is replicated state and is changed by the log alone. [`PlacementAcknowledger`] is volatile and changes
//! nothing in the log.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{Instance, Ticket, Time};

/// The last ticket in a partition's log. `Copy`: what an undo record keeps, and what a snapshot stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    last: Option<Ticket>,
}

impl Chain {
    /// A chain that ends in `last`.
    pub fn new(last: Option<Ticket>) -> Chain {
        Chain { last }
    }

    /// The last ticket that counted.
    pub fn last_ticket(self) -> Option<Ticket> {
        self.last
    }

    /// A `Place` is delivered. It counts only if it continues the chain of its ballot, or begins that of a newer one;
    /// else it is a no-op, and the coordinator sends it again (protocol.md 4, step 3).
    #[must_use]
    pub fn place(&mut self, ticket: Ticket, prev: Option<Ticket>) -> bool {
        let counts = match (prev, self.last) {
            (Some(prev), Some(last)) => {
                let follows = prev == last && prev < ticket && prev.ballot == ticket.ballot;
                let unchecked = mutant!(no_prev_check) && ticket > last;
                let late = mutant!(old_ballot_counts) && ticket.ballot < last.ballot;
                let twice = mutant!(place_twice) && ticket == last;
                follows || unchecked || late || twice
            }
            (Some(_), None) => mutant!(no_prev_check),
            (None, Some(last)) => {
                let newer = ticket.ballot > last.ballot;
                let again = mutant!(prev_none_again) && ticket.ballot == last.ballot;
                let twice = mutant!(place_twice) && ticket == last;
                let late = mutant!(old_ballot_counts) && ticket.ballot < last.ballot;
                newer || again || twice || late
            }
            (None, None) => true,
        };
        if counts {
            self.last = Some(ticket);
        }
        counts
    }

    /// The chain of a partition that is split off: it goes on where its parent's stands, at the split's own ticket
    /// (protocol.md 8, hazards.md MV4).
    #[must_use]
    pub fn child(self) -> Chain {
        if mutant!(fork_no_ticket) { Chain::default() } else { self }
    }

    /// The chain of a partition that takes in another one: the higher last ticket (protocol.md 8).
    #[must_use]
    pub fn merged(self, other: Chain) -> Chain {
        self.max(other)
    }
}

/// A follower repeats itself so much more seldom than a leader: while the directory has no majority nobody answers.
const FOLLOWER_INTERVALS: u32 = 4;

/// Tells the coordinator what is placed, again and again until it is released (protocol.md 4, step 5, and 4.3).
///
/// Beside every replica of a partition. The leader tells at once. A follower that knows a ticket to be decided tells
/// too, if it has heard of no release for an interval: the way between the leader and the coordinator may be cut. That
/// a ticket and all below it are decided is true whoever says so (protocol.md 4, step 5). It is told of the same events
/// as the gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlacementAcknowledger {
    /// Between two tellings of the same.
    interval: Duration,
    leading: bool,
    decided_upto: Instance,
    /// The last ticket of the decided log.
    decided: Option<Ticket>,
    /// Tickets that counted above `decided_upto`, ascending. At most one instance each, so bounded by what is executed
    /// ahead of the decisions.
    executed: VecDeque<(Instance, Ticket)>,
    /// Every ticket up to here is released. Never goes back, never guessed.
    released: Option<Ticket>,
    /// What was told last, or at a follower is to be told, and when it is told again.
    told: Option<(Ticket, Time)>,
    /// To be told once whatever the watermark says, because that passes voided tickets too: a ticket was decided, or
    /// the coordinator asks for one that is.
    owed: bool,
}

impl PlacementAcknowledger {
    /// At a replica whose state has decided `decided_upto` and ends in `last_ticket`. `interval`: between two tellings
    /// of the same ticket.
    pub fn new(interval: Duration, decided_upto: Instance, last_ticket: Option<Ticket>) -> PlacementAcknowledger {
        PlacementAcknowledger {
            interval,
            leading: false,
            decided_upto,
            decided: last_ticket,
            executed: VecDeque::new(),
            released: None,
            told: None,
            owed: false,
        }
    }

    /// This replica leads: the chain is in the log, so it knows what to tell, and tells it at once. What of it is
    /// released it does not know (hazards.md TK7).
    pub fn lead(&mut self) {
        self.leading = true;
        self.told = None;
        if mutant!(released_guessed) {
            self.released = self.released.max(self.decided);
        }
    }

    /// It leads no more.
    pub fn follow(&mut self) {
        self.leading = false;
        self.told = None;
        self.owed = false;
    }

    /// A [`super::Place`] with this ticket arrived at the leader: whether to submit it to the log. If not, it is there
    /// already, and a `Placed` is due.
    #[must_use]
    pub fn wants(&mut self, ticket: Ticket) -> bool {
        let last_executed = self.executed.back().map(|(_, ticket)| *ticket).or(self.decided);
        if !ticket.may_follow(last_executed) {
            return false;
        }
        if last_executed < Some(ticket) {
            return true;
        }
        self.owed |= self.leading
            && Some(ticket) <= self.decided
            && last_executed.is_some_and(|last_executed| last_executed.ballot == ticket.ballot);
        false
    }

    /// A ticket counted when `instance` was executed.
    pub fn placed(&mut self, instance: Instance, ticket: Ticket) {
        if instance <= self.decided_upto {
            self.decided = self.decided.max(Some(ticket));
            return;
        }
        match self.executed.back_mut() {
            Some(back) if back.0 == instance => back.1 = ticket,
            _ => self.executed.push_back((instance, ticket)),
        }
    }

    /// What was executed from `from` on is undone.
    pub fn undo_from(&mut self, from: Instance) {
        self.executed.truncate(self.executed.partition_point(|(instance, _)| *instance < from));
    }

    /// Everything up to `upto` is decided, and was executed as decided.
    pub fn decided(&mut self, upto: Instance) {
        self.decided_upto = self.decided_upto.max(upto);
        while let Some((_, ticket)) = self.executed.pop_front_if(|(instance, _)| *instance <= upto) {
            self.decided = Some(ticket);
            self.owed = self.leading;
        }
    }

    /// A snapshot taken at `instance` is in place; its state ends in `last_ticket`.
    pub fn installed(&mut self, instance: Instance, last_ticket: Option<Ticket>) {
        self.decided_upto = instance;
        self.decided = last_ticket;
        self.executed.clear();
    }

    /// The coordinator, or another replica of the group, says that every ticket up to `watermark` is released.
    pub fn released(&mut self, watermark: Ticket) {
        let known = self.released.max(self.decided);
        if watermark.may_follow(known) {
            self.released = self.released.max(Some(watermark));
        }
    }

    /// The watermark: what the gate and the group are to be told.
    pub fn watermark(&self) -> Option<Ticket> {
        if mutant!(watermark_of_what_is_placed) && !self.leading {
            return self.released.max(self.decided);
        }
        self.released
    }

    /// The last ticket of the decided log.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.decided
    }

    /// What to tell the coordinator now: this ticket, and everything below it, is decided here.
    pub fn poll(&mut self, now: Time) -> Option<Ticket> {
        let last = self.last_to_tell()?;
        if !self.leading && Some(last) > self.released && self.told.is_none_or(|(told, _)| told != last) {
            // The leader tells at once: its word, and what comes of it, have an interval.
            self.told = Some((last, now + self.interval));
            return None;
        }
        let ticket = self.due(now, last)?;
        let again = if self.leading { self.interval } else { FOLLOWER_INTERVALS * self.interval };
        self.told = Some((ticket, now + again));
        self.owed = false;
        Some(ticket)
    }

    fn last_to_tell(&self) -> Option<Ticket> {
        // Told above an undecided instance, it could be that something else gets there (hazards.md TK14).
        let undecided =
            if self.leading { mutant!(placed_above_hole) } else { mutant!(follower_acknowledges_undecided) };
        let last_executed = self.executed.back().filter(|_| undecided).map(|(_, ticket)| *ticket);
        last_executed.or(self.decided).filter(|_| self.leading || !mutant!(leader_alone_acknowledges))
    }

    fn due(&self, now: Time, last: Ticket) -> Option<Ticket> {
        if self.owed {
            return Some(last);
        }
        let fresh = self.told.is_none_or(|(told, again)| told < last || again <= now && !mutant!(placed_once));
        (fresh && Some(last) > self.released).then_some(last)
    }

    /// When [`PlacementAcknowledger::poll`] is next wanted, if nothing else happens. A moment that has passed means
    /// now.
    pub fn deadline(&self) -> Option<Time> {
        let last = self.last_to_tell()?;
        let (told, again) = self.told.unwrap_or((last, Time::ZERO));
        if self.owed || told < last && Some(last) > self.released {
            return Some(Time::ZERO);
        }
        (Some(last) > self.released).then_some(again)
    }
}
