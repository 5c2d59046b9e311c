//! The heartbeat rounds of a leader: which were begun and when, when the next one is due, and how near the others are
//! by their acknowledgements (protocol.md 1.3, 7).

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::ids::{HeartbeatRound, Time};

/// Rounds whose begin is remembered: at one per `CONFIRM_INTERVAL` more than the longest round trip that matters.
const ROUNDS_REMEMBERED: usize = 1_024;

/// Rounds that find nothing to do before a group is quiescent: a pause between two commands is none.
const QUIET_ROUNDS: u32 = 10;

/// The heartbeat rounds of a ballot: which were begun, and when the next ones are due.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Heartbeats {
    /// The newest round; 0 before the first.
    pub newest: HeartbeatRound,
    /// When the newest rounds were begun; the last one is `newest`.
    begun_at: VecDeque<Time>,
    /// When the next round to everybody is due.
    pub next_at: Time,
    /// No round for reads before this.
    pub reads_at: Time,
    /// Since when the newest round, begun for reads, waits for the few that were asked.
    pub few_since: Option<Time>,
    /// Rounds in a row that found nothing to do.
    quiet_rounds: u32,
    /// The group is quiescent: the others were told that the next round comes within this.
    quiescent: Option<Duration>,
}

impl Heartbeats {
    /// Begins a round: its number is new in this ballot (hazards.md RD2).
    pub fn begin(&mut self, now: Time) -> HeartbeatRound {
        if !(mutant!(round_reused) && self.newest.0 > 0) {
            self.newest = self.newest.next();
            self.begun_at.push_back(now);
            if self.begun_at.len() > ROUNDS_REMEMBERED {
                self.begun_at.pop_front();
            }
        }
        self.newest
    }

    /// When `round` was begun, if that is remembered.
    pub fn begun_at(&self, round: HeartbeatRound) -> Option<Time> {
        let back = self.newest.0.checked_sub(round.0)? as usize;
        let index = self.begun_at.len().checked_sub(back + 1)?;
        self.begun_at.get(index).copied()
    }

    /// A quorum has acknowledged this round: the few that are asked for reads answer, as far as that.
    pub fn note_acked(&mut self, round: HeartbeatRound) {
        let unanswered = self.begun_at(round.next());
        let since = self.few_since.filter(|_| round < self.newest);
        self.few_since = since.map(|since| unanswered.map_or(since, |begun| begun.max(since)));
    }

    pub fn is_quiescent(&self) -> bool {
        self.quiescent.is_some()
    }

    /// How much longer than usual the others are left alone.
    pub fn quiescent_for(&self) -> Duration {
        self.quiescent.unwrap_or_default()
    }

    /// A round to everybody begins, with nothing to do if `idle`: how long until the next one, if that is longer than
    /// usual. True beside it: the group was quiescent for longer until now.
    pub fn note_round(&mut self, idle: bool, interval: Duration) -> (Option<Duration>, bool) {
        self.quiet_rounds = if idle { self.quiet_rounds.saturating_add(1) } else { 0 };
        let quiescent = (self.quiet_rounds > QUIET_ROUNDS).then_some(interval);
        let ends = self.quiescent.is_some_and(|told| quiescent.is_none_or(|interval| interval < told));
        if ends {
            self.quiet_rounds = 0;
        }
        self.quiescent = quiescent;
        (quiescent, ends)
    }

    /// The group is quiescent no more.
    pub fn wake(&mut self) {
        (self.quiescent, self.quiet_rounds) = (None, 0);
    }
}

/// The shortest of the newest samples: those of the running period and of the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShortestRoundTrip {
    since: Time,
    now: Option<Duration>,
    before: Option<Duration>,
}

/// A way that got longer is believed after at most twice this.
const SHORTEST_PERIOD: Duration = Duration::from_secs(2);

/// Measured, and no part of a hash (hazards.md 7, models).
impl Hash for ShortestRoundTrip {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl ShortestRoundTrip {
    pub fn sample(&mut self, at: Time, took: Duration) {
        if at - self.since >= SHORTEST_PERIOD {
            (self.since, self.before, self.now) = (at, self.now, None);
        }
        self.now = Some(self.now.map_or(took, |now| now.min(took)));
    }

    pub fn shortest(&self) -> Option<Duration> {
        self.now.into_iter().chain(self.before).min()
    }
}
