//! Majorities: who counts, and how many are enough (papers.md A1). Knows nothing of messages.
//!
//! Learners and removed replicas are in no quorum (protocol.md 1.5, hazards.md PX10): they are not in here.

use crate::batch::Configuration;
use crate::ids::ReplicaId;

/// Most voters of a group: votes of an instance are one 64-bit set, and more than this serve nobody.
pub const VOTERS_MAX: usize = 32;

/// Most learners of a group: the leader sends every batch to each.
pub const LEARNERS_MAX: usize = 32;

/// The voters of one configuration, in id order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quorum {
    voters: Vec<ReplicaId>,
}

/// Which voters have voted, by their position in the [`Quorum`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VoteSet(u64);

impl VoteSet {
    /// Adds the voter at `position`; false if it was there.
    pub fn insert(&mut self, position: usize) -> bool {
        let bit = 1_u64 << position;
        let new = self.0 & bit == 0;
        self.0 |= bit;
        new
    }

    /// Whether the voter at `position` has voted.
    pub fn contains(self, position: usize) -> bool {
        self.0 & (1 << position) != 0
    }

    /// How many have voted.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether nobody has.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Quorum {
    /// The quorum system of a configuration: any majority of its voters.
    pub fn of(configuration: &Configuration) -> Quorum {
        assert!(configuration.voters.len() <= VOTERS_MAX, "{configuration}: more than {VOTERS_MAX} voters");
        let mut voters: Vec<ReplicaId> = configuration.voters.iter().copied().collect();
        if mutant!(learner_votes) {
            voters.extend(&configuration.learners);
        }
        if mutant!(removed_votes) {
            voters.extend(&configuration.leaving);
        }
        Quorum { voters }
    }

    /// The voters, in id order.
    pub fn voters(&self) -> &[ReplicaId] {
        &self.voters
    }

    /// The position of `replica`, if it is a voter.
    pub fn position(&self, replica: ReplicaId) -> Option<usize> {
        self.voters.iter().position(|voter| *voter == replica)
    }

    /// How many votes are enough. Two sets of this size always share a voter.
    pub fn majority(&self) -> usize {
        if mutant!(learner_votes) || mutant!(removed_votes) {
            // Whoever counts strangers asks for no more votes than before.
            return self.voters.len().saturating_sub(1) / 2 + 1;
        }
        self.voters.len() / 2 + 1
    }

    /// Whether `votes` are enough.
    pub fn is_reached_by(&self, votes: VoteSet) -> bool {
        votes.len() >= self.majority()
    }

    /// The greatest value that a majority has reached, given each voter's own in any order. `None` without voters.
    pub fn reached<T: Ord + Copy>(&self, value: impl Fn(ReplicaId) -> T) -> Option<T> {
        let mut values = [None; VOTERS_MAX];
        let n = self.voters.len().min(VOTERS_MAX);
        for (slot, voter) in values.iter_mut().zip(&self.voters) {
            *slot = Some(value(*voter));
        }
        let values = &mut values[..n];
        values.sort_unstable_by(|a, b| b.cmp(a));
        values.get(self.majority() - 1).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quorum(n: u32) -> Quorum {
        Quorum::of(&Configuration::of_voters((0..n).map(ReplicaId)))
    }

    #[test]
    fn any_two_majorities_share_a_voter() {
        for n in 1..=7 {
            assert!(2 * quorum(n).majority() > n as usize);
            assert!(2 * (quorum(n).majority() - 1) <= n as usize);
        }
    }

    #[test]
    fn reached_is_the_value_that_a_majority_has() {
        let values = [7, 3, 9, 1, 5];
        assert_eq!(quorum(5).reached(|r| values[r.0 as usize]), Some(5));
        assert_eq!(quorum(4).reached(|r| values[r.0 as usize]), Some(3));
        assert_eq!(quorum(1).reached(|r| values[r.0 as usize]), Some(7));
        assert_eq!(quorum(0).reached(|r| values[r.0 as usize]), None);
    }

    #[test]
    fn learners_and_leavers_are_in_no_quorum() {
        let mut configuration = Configuration::of_voters([ReplicaId(1), ReplicaId(4)]);
        configuration.learners.insert(ReplicaId(2));
        configuration.leaving.insert(ReplicaId(3));
        let quorum = Quorum::of(&configuration);
        assert_eq!(quorum.voters(), [ReplicaId(1), ReplicaId(4)]);
        assert_eq!(quorum.position(ReplicaId(2)), None);
        assert_eq!(quorum.position(ReplicaId(3)), None);
    }
}
