//! What a leader has in flight: instances proposed and not yet decided, with their votes (papers.md A6).
//!
//! Bounded in instances and in bytes from the oldest undecided one on. Knows nothing of ballots: it lives as long as
//! one.

use std::collections::VecDeque;

use crate::ids::{Instance, Time};
use crate::quorum::{Quorum, VoteSet};

/// One proposed instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InFlight {
    pub votes: VoteSet,
    pub decided: bool,
    pub bytes: usize,
    pub count: u32,
    pub proposed_at: Time,
    /// Last sent, first time included.
    pub sent_at: Time,
    pub resent: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    /// The oldest instance that is not decided, or the next one to propose.
    first: Instance,
    /// `ring[k]` is instance `first + k`; the front one is undecided.
    ring: VecDeque<InFlight>,
    /// Sum of the ring's bytes.
    bytes: usize,
    /// The newest decided instance, and when the last one was decided, whichever it was.
    progress: (Instance, Time),
}

impl InFlight {
    fn waited_for_since(&self, instance: Instance, (newest, at): (Instance, Time)) -> Time {
        if instance < newest { self.sent_at } else { self.sent_at.max(at) }
    }
}

impl Window {
    pub fn starting_at(first: Instance) -> Window {
        Window { first, ..Window::default() }
    }

    /// The instance that is proposed next.
    pub fn next(&self) -> Instance {
        Instance(self.first.0 + self.ring.len() as u64)
    }

    /// Instances from the oldest undecided one to the newest.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a batch of `bytes` may be proposed now. An empty window takes any.
    pub fn has_room(&self, bytes: usize, window: u32, window_bytes_max: usize) -> bool {
        // Nothing else bounds what speculation executes and must be able to undo (hazards.md SP9).
        mutant!(undo_unbounded)
            || self.ring.is_empty()
            || (self.ring.len() < window as usize && self.bytes + bytes <= window_bytes_max)
    }

    /// Proposes the next instance.
    pub fn push(&mut self, bytes: usize, count: u32, now: Time) -> Instance {
        let instance = self.next();
        self.bytes += bytes;
        self.ring.push_back(InFlight {
            votes: VoteSet::default(),
            decided: false,
            bytes,
            count,
            proposed_at: now,
            sent_at: now,
            resent: false,
        });
        instance
    }

    /// The voter at `position` accepted all of `first..=last`. Calls `decided` for each instance that this decides.
    pub fn vote(
        &mut self,
        quorum: &Quorum,
        position: usize,
        (first, last): (Instance, Instance),
        now: Time,
        mut decided: impl FnMut(Instance, &InFlight),
    ) {
        let low = first.0.max(self.first.0);
        let high = last.0.saturating_add(1).min(self.next().0);
        for instance in low..high {
            let flight = &mut self.ring[(instance - self.first.0) as usize];
            flight.votes.insert(position);
            if !flight.decided && quorum.is_reached_by(flight.votes) {
                flight.decided = true;
                self.progress = (self.progress.0.max(Instance(instance)), now);
                decided(Instance(instance), flight);
            }
        }
    }

    /// Removes the oldest instance if it is decided.
    pub fn pop_decided(&mut self) -> Option<Instance> {
        let flight = self.ring.pop_front_if(|flight| flight.decided)?;
        self.bytes -= flight.bytes;
        let instance = self.first;
        self.first = instance.next();
        Some(instance)
    }

    /// Undecided instances, oldest first, with the time since when each is waited for. While something behind which it
    /// was sent is decided, an instance only waits for its turn on the link (RFC 6298, 5.3); one that was overtaken by
    /// a later one may be lost.
    pub fn undecided_mut(&mut self) -> impl Iterator<Item = (Instance, Time, &mut InFlight)> {
        let (first, progress) = (self.first.0, self.progress);
        let numbered = self.ring.iter_mut().enumerate().map(move |(k, flight)| (Instance(first + k as u64), flight));
        let undecided = numbered.filter(|(_, flight)| !flight.decided);
        undecided.map(move |(instance, flight)| (instance, flight.waited_for_since(instance, progress), flight))
    }

    /// Since when the oldest undecided instance is waited for.
    pub fn oldest_since(&self) -> Option<Time> {
        Some(self.ring.front()?.waited_for_since(self.first, self.progress))
    }

    pub fn assert_invariants(&self) {
        assert_eq!(self.bytes, self.ring.iter().map(|flight| flight.bytes).sum::<usize>());
        assert!(
            self.ring.front().is_none_or(|flight| !flight.decided),
            "the oldest instance is decided, but in flight"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Configuration;
    use crate::ids::ReplicaId;

    #[test]
    fn instances_are_decided_in_any_order_and_leave_in_log_order() {
        // papers.md A6: decided in any order, applied in log order.
        let quorum = Quorum::of(&Configuration::of_voters((0..3).map(ReplicaId)));
        let mut window = Window::starting_at(Instance(5));
        for bytes in [10, 20, 30] {
            window.push(bytes, 1, Time::ZERO);
        }
        let mut seen = Vec::new();
        window.vote(&quorum, 0, (Instance(1), Instance(9)), Time::ZERO, |i, _| seen.push(i.0));
        window.vote(&quorum, 1, (Instance(6), Instance(7)), Time::ZERO, |i, _| seen.push(i.0));
        assert_eq!((seen.as_slice(), window.pop_decided()), ([6, 7].as_slice(), None));
        window.vote(&quorum, 2, (Instance(5), Instance(5)), Time::ZERO, |i, _| seen.push(i.0));
        let popped: Vec<u64> = std::iter::from_fn(|| window.pop_decided()).map(|i| i.0).collect();
        assert_eq!((popped.as_slice(), window.bytes(), window.next()), ([5, 6, 7].as_slice(), 0, Instance(8)));
    }

    #[test]
    fn an_oversized_batch_goes_alone() {
        let mut window = Window::starting_at(Instance(1));
        assert!(window.has_room(5_000, 4, 1_000));
        window.push(5_000, 1, Time::ZERO);
        assert!(!window.has_room(1, 4, 1_000));
    }
}
