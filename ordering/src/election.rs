//! Elections: timeouts, the pre-vote, and who is heard (protocol.md 1.1, 1.3). Liveness only: nothing here is part of
//! the safety argument.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::ids::{Ballot, ReplicaId, Round, Time};
use crate::quorum::VoteSet;
use crate::settings::Settings;

/// A Phase 1 may take up to so many doublings of an election timeout: 19 seconds by default.
const PATIENCE_DOUBLINGS_MAX: u32 = 6;

/// Candidacies before a leader that nothing is concluded from: two may stand at once, and one may end.
const CANDIDACIES_USUAL: u32 = 2;

/// SplitMix64: the only randomness of the core, from the seed in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..low + width`.
    pub fn duration(&mut self, low: Duration, width: Duration) -> Duration {
        let width = u64::try_from(width.as_nanos()).unwrap_or(u64::MAX).max(1);
        low + Duration::from_nanos(self.next() % width)
    }
}

/// A pre-vote under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PreVoting {
    pub granted: VoteSet,
    /// When those are asked again that have not granted: a message may be lost, or a peer not connected yet, or the
    /// replica there may begin a moment later than this one, as those of a split's child do.
    pub retry_at: Time,
    /// How long that is after the last time: at first not long, twice as long each time.
    pub pause: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Election {
    /// The highest ballot whose leader was heard.
    pub leader_ballot: Ballot,
    /// Its leader, while it is not lost.
    pub leader: Option<ReplicaId>,
    /// When it was last heard.
    pub heard_at: Option<Time>,
    /// How much longer it may be silent, as it said itself.
    quiesce: Duration,
    /// When to act if nothing is heard: ask for pre-votes, or look for news without a vote.
    pub timeout_at: Time,
    /// The timeout drawn for the present leadership.
    drawn: Duration,
    /// The highest round seen anywhere. The next one is above it.
    pub round_seen: Round,
    /// Counts own pre-votes.
    pub attempt: u64,
    pub pre_voting: Option<PreVoting>,
    /// Candidacies since somebody led, own ones and others'.
    candidacies: u32,
    pub random: Random,
}

/// Without what is drawn and timed: an exhaustive search lets time pass as it likes (hazards.md 7).
impl Hash for Election {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Election { leader_ballot, leader, round_seen, attempt, pre_voting, .. } = self;
        (leader_ballot, leader, round_seen, attempt, pre_voting).hash(state);
    }
}

impl Election {
    pub fn new(seed: u64, id: ReplicaId, promised: Ballot) -> Election {
        let mut random = Random(seed ^ u64::from(id.0).wrapping_mul(0x2545_f491_4f6c_dd1d));
        random.next();
        Election {
            leader_ballot: Ballot::ZERO,
            leader: None,
            heard_at: None,
            quiesce: Duration::ZERO,
            timeout_at: Time::ZERO,
            drawn: Duration::ZERO,
            round_seen: promised.round,
            attempt: 0,
            pre_voting: None,
            candidacies: 0,
            random,
        }
    }

    /// Something of the present leader arrived.
    pub fn heard(&mut self, now: Time) {
        self.heard_at = Some(now);
        self.quiesce = Duration::ZERO;
        self.timeout_at = now + self.drawn;
        self.pre_voting = None;
    }

    /// The present leader, heard just now, will be silent for so long.
    pub fn quiesces(&mut self, quiesce: Duration) {
        self.quiesce = quiesce;
        self.timeout_at = self.timeout_at + quiesce;
    }

    /// The present leader's node was last heard at `since`: it is quiescent no more.
    pub fn wake(&mut self, since: Time) {
        if !std::mem::take(&mut self.quiesce).is_zero() {
            let heard_at = self.heard_at.map_or(since, |at| at.max(since));
            self.heard_at = Some(heard_at);
            self.timeout_at = heard_at + self.drawn;
        }
    }

    /// The present leader's process has ended. Who acts first is drawn from one heartbeat interval.
    pub fn gone(&mut self, now: Time, settings: &Settings) {
        (self.heard_at, self.quiesce) = (None, Duration::ZERO);
        let soon = now + self.random.duration(Duration::ZERO, settings.heartbeat_interval);
        self.timeout_at = self.timeout_at.min(soon);
    }

    /// How long a Phase 1 may take: longer after each that came to nothing, for it waits for flushes, which on a slow
    /// disk take longer than any timeout that finds a lost leader soon.
    pub fn phase1_patience(&self, settings: &Settings) -> Duration {
        self.patience(settings)
    }

    /// An election timeout, or many where candidates come and go and none gets its quorum in time.
    fn patience(&self, settings: &Settings) -> Duration {
        let futile = self.candidacies.saturating_sub(CANDIDACIES_USUAL).min(PATIENCE_DOUBLINGS_MAX);
        settings.election_timeout * (1 << if mutant!(phase1_impatient) { 0 } else { futile })
    }

    /// Somebody stands for leader: this replica, or one that it promised to.
    pub fn stands(&mut self) {
        self.candidacies = self.candidacies.saturating_add(1);
    }

    /// Somebody leads.
    pub fn elected(&mut self) {
        self.candidacies = 0;
    }

    /// Draws the timeout of a leadership: one to two election timeouts.
    pub fn draw(&mut self, settings: &Settings) {
        self.drawn = self.random.duration(settings.election_timeout, settings.election_timeout);
    }

    /// Whether the leader is lost to this replica: it answers pre-votes by it. One heartbeat less than the timeout, so
    /// that the first replica to time out finds the others ready.
    pub fn leader_is_lost(&self, now: Time, settings: &Settings) -> bool {
        let lost_after = settings.election_timeout - settings.heartbeat_interval;
        self.leader.is_none() || self.heard_at.is_none_or(|at| now - at >= lost_after + self.quiesce)
    }

    /// Tries again after half to one election timeout, and later where that was too soon for whoever stood before.
    pub fn retry_later(&mut self, now: Time, settings: &Settings) {
        let half = self.patience(settings) / 2;
        self.timeout_at = now + self.random.duration(half, half);
    }

    pub fn saw(&mut self, ballot: Ballot) {
        self.round_seen = self.round_seen.max(ballot.round);
    }
}
