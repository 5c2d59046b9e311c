//! Groups with nothing to do (protocol.md 1.3): their leaders beat seldom, and say so. That nodes live is known from
//! elsewhere meanwhile, and once for all groups: whoever drives a group tells it of nodes that are lost.

use std::time::Duration;

use crate::ids::{Beat, ReplicaId, Time};
use crate::paxos::Paxos;
use crate::proposer::Proposer;
use crate::settings::Reads;
use crate::step::Effect;

/// Rounds that find nothing to do before a group rests: a pause between two commands is none.
const QUIET_ROUNDS: u32 = 10;

/// An acknowledgement may take so many rounds: over a long way, the newest is always under way.
const ACKED_WITHIN: u64 = 4;

impl Paxos {
    /// Whether everything is done, and known to all replicas.
    fn is_idle(&self, proposer: &Proposer) -> bool {
        let decided_upto = self.learner.decided_upto;
        let knows = |peer: &crate::proposer::Peer| {
            peer.durable_upto >= decided_upto && peer.acked.0 + ACKED_WITHIN >= proposer.beat.0
        };
        proposer.serving
            && proposer.may_propose()
            && proposer.window.is_empty()
            && proposer.batcher.submissions() == 0
            && proposer.confirmations.is_empty()
            && proposer.change.is_none()
            && proposer.handover.is_none()
            && proposer.carried == (decided_upto, self.released)
            && proposer.peers.iter().all(knows)
    }

    /// A round to everybody begins: how long until the next one, if that is longer than always.
    pub(super) fn note_rest(&mut self) -> Duration {
        let (rest, settings) = (self.settings.quiesce_heartbeat_interval, &self.settings);
        let may_rest = rest > settings.heartbeat_interval && settings.reads == Reads::Quorum;
        let idle = may_rest && self.proposer.as_deref().is_some_and(|proposer| self.is_idle(proposer));
        let Some(proposer) = self.proposer.as_deref_mut() else { return Duration::ZERO };
        proposer.quiet_rounds = if idle { proposer.quiet_rounds.saturating_add(1) } else { 0 };
        let rests = proposer.quiet_rounds > QUIET_ROUNDS;
        if proposer.resting && (!rests || rest < proposer.rest_told) {
            proposer.wake(self.now);
        }
        (proposer.resting, proposer.rest_told) = (rests, rest);
        if rests { rest } else { Duration::ZERO }
    }

    /// How long a peer of this leader may be silent.
    pub(super) fn silence_max(&self, proposer: &Proposer) -> Duration {
        let rest = if proposer.resting { proposer.rest_told } else { Duration::ZERO };
        self.settings.election_timeout + rest
    }

    /// Another `quiesce_heartbeat_interval` holds from the next beat on, which is due now.
    pub(super) fn rest_anew(&mut self) {
        let now = self.now;
        if let Some(proposer) = self.proposer.as_deref_mut().filter(|proposer| proposer.resting) {
            proposer.heartbeat_at = proposer.heartbeat_at.min(now);
        }
    }

    /// There is something to do again: the next beat comes as soon as always.
    pub(super) fn rouse_if_busy(&mut self) {
        let Some(proposer) = self.proposer.as_deref().filter(|proposer| proposer.resting) else { return };
        if self.is_idle(proposer) {
            return;
        }
        let soon = self.now + self.settings.heartbeat_interval;
        if let Some(proposer) = self.proposer.as_deref_mut() {
            proposer.wake(self.now);
            proposer.heartbeat_at = proposer.heartbeat_at.min(soon);
        }
    }

    /// Somebody doubts this leader: it beats at once if it rests.
    pub(super) fn rouse(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        if let Some(proposer) = self.proposer.as_deref_mut().filter(|proposer| proposer.resting) {
            proposer.wake(now);
            self.begin_round(true, effects);
        }
    }

    pub(super) fn on_lost(&mut self, peer: ReplicaId, since: Time, effects: &mut Vec<Effect>) {
        if self.election.leader == Some(peer) && !mutant!(rest_outlives_leader) {
            self.election.unrest(since);
        }
        if self.proposer.as_deref().is_none_or(|proposer| proposer.peer(peer).is_none()) {
            return;
        }
        self.rouse(effects);
        let (now, timeout) = (self.now, self.settings.election_timeout);
        let Some(lost) = self.proposer.as_deref_mut().and_then(|proposer| proposer.peer_mut(peer)) else { return };
        if !mutant!(rests_without_the_lost) {
            // Until it is heard again the group does not rest: nobody says a second time that it is lost.
            lost.acked = Beat(0);
        }
        // The rest hid its silence. It is asked now, and has half of a timeout left to be heard.
        let chance = now + timeout / 2;
        lost.heard_at = lost.heard_at.min(since.max(Time(chance.0.saturating_sub(timeout.as_nanos() as u64))));
    }
}

impl Proposer {
    /// The rest is over. Who was not asked for so long had no chance to be heard.
    fn wake(&mut self, now: Time) {
        (self.resting, self.quiet_rounds) = (false, 0);
        if !mutant!(rest_is_silence) {
            self.peers.iter_mut().for_each(|peer| peer.heard_at = now);
        }
    }
}
