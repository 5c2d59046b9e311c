//! The way out of the gate while the directory has no majority: tickets that free themselves (protocol.md 4.4).
//!
//! A client takes no completion of a query that comes later than the ticket's deadline after it sent that attempt, and
//! it learns the deadline with the cut, without which no completion counts. It sent before the ticket was delivered.
//! So twice the deadline after a replica delivered it, by clocks whose rates agree within a factor of two, either the
//! query had been completed, and its R(Q) has passed (protocol.md 5), or it never counts, as if it were voided. Fact
//! (iii) of the proof holds for what is answered then; the others do not speak of the gate, and the coordinator, which
//! is told nothing, releases in the order of its queues as ever. Here alone two clocks are compared.
//!
//! - In order: opening the gate up to a ticket answers for all before it. Each waits for its own deadline, or for the
//!   longest there is; a ticket goes when it and all before it may go.
//! - Undo: what is undone was not delivered, and its clock ends. It frees nothing before it is decided.
//! - Snapshot, start, split: what came before is known by the last ticket alone. Who asked for any of it had done so
//!   before; so that one goes after twice the longest deadline, counted from when the state is here. A child begins
//!   with its parent's last ticket in this way.
//! - Merge: the ticket at which a neighbour is taken in answers for that one's tickets too, whose deadlines are not
//!   known here. It goes as one of a snapshot.
//! - Changes of the map are never voided. No client waits for their tickets; what these hold here is held for the
//!   queries before them, which go first. When the change is done is said by the coordinator alone.
//! - Each replica by its own clock, from its own delivery: it believes nobody else's, and tells nobody.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{Instance, Ticket, Time};

/// Tickets that are kept apart. Beyond, the oldest that are decided go together, when the later of them may: more than
/// this wait only while a log is read that knows of no release, or where nothing is released for very long.
const WAITING_MAX: usize = 4_096;

/// A ticket that was delivered and that nobody has released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    instance: Instance,
    ticket: Ticket,
    /// After which its clients discard its result, if that is known.
    deadline: Option<Duration>,
    /// When it was first seen here. Clients asked before.
    since: Option<Time>,
}

/// The tickets that hold the outputs of one replica, and when each frees itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Escape {
    /// Ascending; each stands for those before it too that are not here. At most [`WAITING_MAX`] and what is undecided.
    waiting: VecDeque<Waiting>,
    /// For tickets of which no deadline is known. `None`: they never free themselves.
    longest: Option<Duration>,
    /// Up to here the coordinator released.
    released: Option<Ticket>,
    /// Tickets that freed themselves.
    freed: u64,
}

impl Escape {
    /// At a replica whose state at `instance` ends in `last_ticket`.
    pub fn new(instance: Instance, last_ticket: Option<Ticket>) -> Escape {
        let mut escape = Escape::default();
        escape.installed(instance, last_ticket);
        escape
    }

    /// Tickets without a deadline that is known free themselves as if it were this one: no client takes any result
    /// later. `None`: they never do.
    pub fn set_longest(&mut self, longest: Option<Duration>) {
        self.longest = longest;
    }

    /// A ticket counted when `instance` was executed. `deadline`: of its [`super::Place`]; none where it answers for
    /// tickets of another log.
    pub fn placed(&mut self, instance: Instance, ticket: Ticket, deadline: Option<Duration>) {
        if Some(ticket) > self.released {
            self.waiting.push_back(Waiting { instance, ticket, deadline, since: None });
        }
    }

    /// What was executed from `from` on is undone.
    pub fn undo_from(&mut self, from: Instance) {
        self.waiting.truncate(self.waiting.partition_point(|waiting| waiting.instance < from));
    }

    /// A snapshot taken at `instance` is in place; its state ends in `last_ticket`.
    pub fn installed(&mut self, instance: Instance, last_ticket: Option<Ticket>) {
        let newest = self.waiting.back().map(|waiting| waiting.ticket);
        if let Some(ticket) = last_ticket.filter(|_| last_ticket > newest) {
            self.placed(instance, ticket, None);
        }
    }

    /// Every ticket up to `watermark` is released.
    pub fn released(&mut self, watermark: Ticket) {
        self.released = self.released.max(Some(watermark));
        while self.waiting.pop_front_if(|waiting| waiting.ticket <= watermark).is_some() {}
    }

    /// The last ticket that frees itself now, with all before it, where everything up to `decided_upto` is decided. The
    /// clocks of tickets that came since the last call start here: `now` was read after they had come.
    pub fn poll(&mut self, now: Time, decided_upto: Instance) -> Option<Ticket> {
        self.waiting.iter_mut().rev().take_while(|waiting| waiting.since.is_none()).for_each(|waiting| {
            waiting.since = Some(now);
        });
        while self.waiting.len() > WAITING_MAX && self.waiting[1].instance <= decided_upto {
            self.unite_oldest();
        }
        let mut last = None;
        let longest = self.longest;
        let due = |waiting: &mut Waiting| {
            waiting.instance <= decided_upto && until(waiting, longest).is_some_and(|until| until <= now)
        };
        while let Some(waiting) = self.waiting.pop_front_if(due) {
            last = Some(waiting.ticket);
            self.freed += 1;
        }
        last
    }

    /// The two oldest become one, which frees itself when both may.
    fn unite_oldest(&mut self) {
        let oldest = self.waiting.pop_front();
        if let Some((oldest, next)) = oldest.zip(self.waiting.front_mut()) {
            next.deadline = oldest.deadline.zip(next.deadline).map(|(one, other)| one.max(other));
        }
    }

    /// When [`Escape::poll`] is next wanted, if nothing else happens.
    pub fn deadline(&self, decided_upto: Instance) -> Option<Time> {
        // One that is not decided is looked at when it is.
        let first = self.waiting.front().filter(|waiting| waiting.instance <= decided_upto)?;
        until(first, self.longest)
    }

    /// Tickets that freed themselves; those that were united count as one.
    pub fn freed(&self) -> u64 {
        self.freed
    }
}

fn until(waiting: &Waiting, longest: Option<Duration>) -> Option<Time> {
    let deadline = waiting.deadline.or(longest)?;
    // A client whose clock runs at half the rate of this one still takes what is completed until then.
    let factor = if mutant!(escape_early) { 1 } else { 2 };
    Some(waiting.since? + factor * deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ballot;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(5));

    fn ticket(n: u64) -> Ticket {
        Ticket { ballot: Ballot::new(1, 0), n }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_ticket_frees_itself_after_twice_the_deadline() {
        // protocol.md 4.4.
        let mut escape = Escape::default();
        escape.placed(Instance(1), ticket(1), DEADLINE);
        assert_eq!(escape.poll(at(100), Instance(1)), None);
        assert_eq!(escape.deadline(Instance(1)), Some(at(110)));
        assert_eq!(escape.poll(at(109), Instance(1)), None, "a client with a slow clock may still take the result");
        assert_eq!(escape.poll(at(110), Instance(1)), Some(ticket(1)));
        assert_eq!((escape.poll(at(111), Instance(1)), escape.deadline(Instance(1))), (None, None));
    }

    #[test]
    fn one_without_a_deadline_holds_those_behind_it() {
        let mut escape = Escape::default();
        escape.placed(Instance(1), ticket(1), None);
        escape.placed(Instance(2), ticket(2), DEADLINE);
        escape.poll(at(0), Instance(2));
        assert_eq!((escape.poll(at(1_000), Instance(2)), escape.deadline(Instance(2))), (None, None));
        let mut told = escape.clone();
        told.released(ticket(1));
        assert_eq!(told.poll(at(1_000), Instance(2)), Some(ticket(2)));
        escape.set_longest(Some(Duration::from_secs(60)));
        assert_eq!(escape.deadline(Instance(2)), Some(at(120)));
        assert_eq!(escape.poll(at(120), Instance(2)), Some(ticket(2)), "and all before it");
    }

    #[test]
    fn one_that_is_undone_or_undecided_frees_nothing() {
        let mut escape = Escape::default();
        escape.placed(Instance(1), ticket(1), DEADLINE);
        escape.placed(Instance(2), ticket(2), DEADLINE);
        escape.poll(at(0), Instance(0));
        assert_eq!((escape.poll(at(10), Instance(0)), escape.deadline(Instance(0))), (None, None));
        escape.undo_from(Instance(2));
        assert_eq!(escape.poll(at(20), Instance(2)), Some(ticket(1)));
    }

    #[test]
    fn the_clock_of_what_a_snapshot_ends_in_starts_when_it_is_installed() {
        let mut escape = Escape::new(Instance(7), Some(ticket(3)));
        escape.set_longest(Some(Duration::from_secs(60)));
        assert_eq!(escape.poll(at(1_000), Instance(7)), None);
        escape.installed(Instance(9), Some(ticket(3)));
        assert_eq!(escape.deadline(Instance(9)), Some(at(1_120)));
        assert_eq!(escape.poll(at(1_120), Instance(9)), Some(ticket(3)));
    }

    #[test]
    fn a_ticket_does_not_go_before_those_before_it() {
        // The deadline was made shorter between the two.
        let mut escape = Escape::default();
        escape.placed(Instance(1), ticket(1), Some(Duration::from_secs(50)));
        escape.placed(Instance(2), ticket(2), DEADLINE);
        escape.poll(at(0), Instance(2));
        assert_eq!(escape.poll(at(99), Instance(2)), None);
        assert_eq!(escape.poll(at(100), Instance(2)), Some(ticket(2)));
        assert_eq!(escape.freed(), 2);
    }

    #[test]
    fn a_snapshot_answers_for_all_that_it_skips() {
        let mut escape = Escape::default();
        escape.set_longest(Some(Duration::from_secs(60)));
        escape.placed(Instance(1), ticket(1), DEADLINE);
        escape.poll(at(0), Instance(1));
        escape.installed(Instance(9), Some(ticket(7)));
        escape.placed(Instance(10), ticket(8), DEADLINE);
        assert_eq!(escape.poll(at(10), Instance(10)), Some(ticket(1)));
        assert_eq!(escape.poll(at(129), Instance(10)), None);
        assert_eq!(escape.poll(at(130), Instance(10)), Some(ticket(8)), "nobody knows which deadlines it skipped");
    }

    #[test]
    fn what_is_released_waits_no_more() {
        let mut escape = Escape::default();
        escape.placed(Instance(1), ticket(1), DEADLINE);
        escape.placed(Instance(2), ticket(2), DEADLINE);
        escape.released(ticket(2));
        // Undone, and decided again.
        escape.undo_from(Instance(1));
        escape.placed(Instance(1), ticket(1), DEADLINE);
        escape.poll(at(0), Instance(2));
        assert_eq!(
            (escape.poll(at(1_000), Instance(2)), escape.deadline(Instance(2)), escape.freed()),
            (None, None, 0)
        );
    }

    #[test]
    fn too_many_tickets_go_together_and_not_before_any_of_them() {
        let mut escape = Escape::default();
        let many = WAITING_MAX as u64 + 10;
        for n in 1..=many {
            let deadline = Duration::from_secs(if n == 3 { 60 } else { 1 });
            escape.placed(Instance(n), ticket(n), Some(deadline));
            escape.poll(at(0), Instance(0));
        }
        assert_eq!(escape.waiting.len(), many as usize, "undecided ones stay apart: they may be undone");
        escape.poll(at(1), Instance(many));
        assert_eq!(escape.waiting.len(), WAITING_MAX);
        assert_eq!(escape.poll(at(119), Instance(many)), None);
        assert_eq!(escape.poll(at(120), Instance(many)), Some(ticket(many)));
    }
}
