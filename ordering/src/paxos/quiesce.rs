//! Groups with nothing to do are quiescent (protocol.md 1.3): their leaders send heartbeats seldom, and say so. That
//! nodes live is known from elsewhere meanwhile, and once for all groups: whoever drives a group tells it of nodes that
//! are lost.

use std::time::Duration;

use crate::ids::{HeartbeatRound, ReplicaId, Time};
use crate::paxos::Paxos;
use crate::proposer::{Peer, Proposer};
use crate::settings::Reads;
use crate::step::Effect;

/// An acknowledgement may take so many rounds: over a long way, the newest is always under way.
const ACKED_WITHIN: u64 = 4;

impl Paxos {
    /// Whether everything is done, and known to all replicas.
    fn is_idle(&self, proposer: &Proposer) -> bool {
        let decided_upto = self.learner.decided_upto;
        let newest = proposer.heartbeats.newest;
        let knows = |peer: &Peer| peer.durable_upto >= decided_upto && peer.acked.0 + ACKED_WITHIN >= newest.0;
        proposer.is_serving()
            && proposer.may_propose()
            && proposer.window.is_empty()
            && proposer.batcher.submissions() == 0
            && proposer.confirmations.is_empty()
            && proposer.change.waiting.is_none()
            && proposer.transfer.is_none()
            && proposer.announcement.is_carried((decided_upto, self.released))
            && proposer.peers.iter().all(knows)
    }

    /// A round to everybody begins: how long until the next one, if that is longer than usual.
    pub(super) fn note_quiescence(&mut self) -> Duration {
        let (interval, settings) = (self.settings.quiesce_heartbeat_interval, &self.settings);
        let may_quiesce = interval > settings.heartbeat_interval && settings.reads == Reads::Quorum;
        let idle = may_quiesce && self.proposer.as_deref().is_some_and(|proposer| self.is_idle(proposer));
        let Some(proposer) = self.proposer.as_deref_mut() else { return Duration::ZERO };
        proposer.note_round(self.now, idle, interval).unwrap_or_default()
    }

    /// How long a peer of this leader may be silent.
    pub(super) fn silence_max(&self, proposer: &Proposer) -> Duration {
        self.settings.election_timeout + proposer.heartbeats.quiescent_for()
    }

    /// Another `quiesce_heartbeat_interval` holds from the next round on, which is due now.
    pub(super) fn apply_quiesce_interval(&mut self) {
        let now = self.now;
        if let Some(proposer) = self.quiescent_proposer() {
            proposer.heartbeats.next_at = proposer.heartbeats.next_at.min(now);
        }
    }

    /// There is something to do again: the next round comes as soon as usual.
    pub(super) fn wake_if_busy(&mut self) {
        let quiescent = self.proposer.as_deref().filter(|proposer| proposer.heartbeats.is_quiescent());
        if quiescent.is_none_or(|proposer| self.is_idle(proposer)) {
            return;
        }
        let (now, soon) = (self.now, self.now + self.settings.heartbeat_interval);
        if let Some(proposer) = self.quiescent_proposer() {
            proposer.wake(now);
            proposer.heartbeats.next_at = proposer.heartbeats.next_at.min(soon);
        }
    }

    /// Somebody doubts this leader: it sends heartbeats at once if it is quiescent.
    pub(super) fn wake(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        if let Some(proposer) = self.quiescent_proposer() {
            proposer.wake(now);
            self.begin_round(true, effects);
        }
    }

    fn quiescent_proposer(&mut self) -> Option<&mut Proposer> {
        self.proposer.as_deref_mut().filter(|proposer| proposer.heartbeats.is_quiescent())
    }

    pub(super) fn on_lost(&mut self, peer: ReplicaId, since: Time, effects: &mut Vec<Effect>) {
        if self.election.leader == Some(peer) && !mutant!(quiescence_outlives_leader) {
            self.election.wake(since);
        }
        if self.proposer.as_deref().is_none_or(|proposer| proposer.peer(peer).is_none()) {
            return;
        }
        self.wake(effects);
        let (now, timeout) = (self.now, self.settings.election_timeout);
        let Some(lost) = self.proposer.as_deref_mut().and_then(|proposer| proposer.peer_mut(peer)) else { return };
        if !mutant!(quiesces_without_the_lost) {
            // Until it is heard again the group is not quiescent: nobody says a second time that it is lost.
            lost.acked = HeartbeatRound(0);
        }
        // Quiescence hid its silence. It is asked now, and has half of a timeout left to be heard.
        let chance = now + timeout / 2;
        lost.heard_at = lost.heard_at.min(since.max(Time(chance.0.saturating_sub(timeout.as_nanos() as u64))));
    }
}
