//! Keeping a leadership: heartbeats, confirmations, leases, resigning (protocol.md 1.3, 7).

use std::time::Duration;

use crate::ids::{Instance, ReadToken, ReplicaId, Time};
use crate::message::{Heartbeat, HeartbeatAck, Message, ReadPosition, ReadPositionReply, TransferLeader};
use crate::paxos::{LogRoom, Paxos};
use crate::proposer::Stage;
use crate::reads::Reader;
use crate::settings::Reads;
use crate::step::Effect;

/// While a round for reads is out, the next one is begun after this: more at once would cost more than they shorten.
pub(super) const CONFIRM_INTERVAL: Duration = Duration::from_micros(200);

impl Paxos {
    /// Begins a heartbeat round: to everybody, or for reads to as many voters as a quorum needs.
    pub(super) fn begin_round(&mut self, everybody: bool, effects: &mut Vec<Effect>) {
        let held_upto = self.note_held();
        let quiesce = if everybody { self.note_quiescence() } else { Duration::ZERO };
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        self.counters.heartbeat_rounds += 1;
        let round = proposer.heartbeats.begin(self.now);
        proposer.heartbeats.reads_at = self.now + CONFIRM_INTERVAL;
        let (decided_upto, released) = (self.learner.decided_upto, self.released);
        let lease = if proposer.lease_void { Duration::ZERO } else { self.settings.lease_wanted() };
        let message = Heartbeat { ballot: proposer.ballot, round, decided_upto, held_upto, released, lease, quiesce };
        let send = |to| Effect::Send { to, message: Message::Heartbeat(message.clone()) };
        if !everybody {
            effects.extend(proposer.quickest_quorum(&self.learner.quorum, self.id).map(send));
            proposer.heartbeats.few_since.get_or_insert(self.now);
        } else {
            effects.extend(proposer.peers.iter().map(|peer| send(peer.id)));
            proposer.heartbeats.few_since = None;
            // Quiescent groups send heartbeats together: a node wakes once for all of them.
            let soon = self.now + self.settings.heartbeat_interval;
            proposer.heartbeats.next_at = if quiesce.is_zero() { soon } else { self.now.next_multiple(quiesce) };
            proposer.announcement.carry((decided_upto, released));
        }
    }

    /// The batch at `from` takes in a state that is not here yet; none: nothing is lacking. Who has the log alone does
    /// not hold what is decided from there on: those that were removed keep theirs until it has the state too, or a
    /// snapshot behind it (protocol.md 1.5, 8).
    pub fn set_lacking(&mut self, from: Option<Instance>) {
        self.lacks_from = from;
    }

    /// How much of what is decided is durable here, and can be executed.
    pub(super) fn holds_upto(&mut self) -> Instance {
        let durable = self.acceptor.durable_upto(self.learner.decided_upto);
        self.lacks_from.map_or(durable, |from| durable.min(Instance(from.0.saturating_sub(1))))
    }

    /// What a quorum of the newest configuration durably holds.
    fn note_held(&mut self) -> Instance {
        let own = self.holds_upto();
        let Some(proposer) = self.proposer.as_deref() else { return Instance::ZERO };
        let held = |id| if id == self.id { own } else { proposer.peer(id).map_or(Instance::ZERO, |p| p.durable_upto) };
        let held = self.learner.quorum.reached(held).unwrap_or_default().min(self.learner.decided_upto);
        self.learner.held_upto = self.learner.held_upto.max(held);
        self.learner.held_upto
    }

    pub(super) fn on_heartbeat_ack(&mut self, from: ReplicaId, m: HeartbeatAck, effects: &mut Vec<Effect>) {
        let now = self.now;
        let rate = 100 + self.settings.clock_rate_bound_percent;
        let lease_max = self.settings.election_timeout;
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.has_begun() && p.ballot == m.ballot) else {
            return;
        };
        if m.round > proposer.heartbeats.newest {
            return;
        }
        let begun_at = proposer.heartbeats.begun_at(m.round);
        let Some(peer) = proposer.peer_mut(from) else { return };
        peer.heard_at = now;
        peer.acked = peer.acked.max(m.round);
        if let Some(begun_at) = begun_at {
            peer.nearest.sample(now, now - begun_at);
        }
        peer.durable_upto = peer.durable_upto.max(m.durable_upto);
        let released = m.released;
        if let Some(begun_at) = begun_at.filter(|_| !m.lease.is_zero()) {
            // The promise counts from the arrival, the leader from sending; less what the clocks may run apart.
            let promised = m.lease.min(lease_max);
            let lease = if mutant!(lease_no_margin) { promised } else { promised * 100 / rate };
            peer.lease_until = peer.lease_until.max(begun_at + lease);
        }
        if !mutant!(leader_deaf_to_watermarks) {
            self.hear_released(released, effects);
        }
    }

    /// Whether nobody else can lead now: a lease says so, or there is no other voter.
    fn leads_alone(&self) -> bool {
        let Some(proposer) = self.proposer.as_deref().filter(|p| p.may_propose() && p.is_serving()) else {
            return false;
        };
        let quorum = &self.learner.quorum;
        let lease = self.settings.reads == Reads::Lease && !proposer.lease_void;
        quorum.voters() == [self.id] || lease && proposer.lease_until(quorum, self.id) > self.now
    }

    pub(super) fn on_confirm(&mut self, token: ReadToken, effects: &mut Vec<Effect>) {
        match self.proposer.as_deref_mut().filter(|proposer| proposer.is_serving()) {
            Some(proposer) => {
                let proposed = proposer.window.next().previous();
                proposer.confirmations.push(Reader::Local(token), proposer.heartbeats.newest, proposed);
            }
            None => effects.push(Effect::Unconfirmed { upto: token }),
        }
    }

    pub(super) fn on_ask_position(&mut self, token: ReadToken, effects: &mut Vec<Effect>) {
        let position = self.learner.decided_upto;
        match self.proposer.as_deref_mut().filter(|proposer| proposer.is_serving()) {
            Some(proposer) => {
                let proposed = proposer.window.next().previous();
                proposer.confirmations.push(
                    Reader::LocalPosition(token, position),
                    proposer.heartbeats.newest,
                    proposed,
                );
            }
            None => {
                self.asks.waiting = self.asks.waiting.max(Some(token));
                self.ask_leader(effects);
            }
        }
    }

    /// A follower asks how far it must have decided. Its question is a round by itself: it left behind the reads that
    /// it is for, when the follower had promised no ballot above this one. Where the two are a quorum, no other leader
    /// can have decided anything before those reads came.
    pub(super) fn on_read_position(&mut self, from: ReplicaId, m: ReadPosition, effects: &mut Vec<Effect>) {
        let (me, now, position) = (self.id, self.now, self.learner.decided_upto);
        let ReadPosition { incarnation, ask, .. } = m;
        let Some(proposer) = self.proposer.as_deref_mut().filter(|proposer| proposer.is_serving()) else { return };
        if m.ballot <= proposer.ballot || mutant!(question_of_another_ballot) {
            if let Some(peer) = proposer.peer_mut(from) {
                peer.heard_at = now;
            }
            let both = |id| id == me || id == from;
            if proposer.may_propose() && self.learner.quorum.reached(both) == Some(true) {
                self.counters.confirmations += 1;
                let message = ReadPositionReply { incarnation, ask, position, ballot: proposer.ballot };
                return effects.push(Effect::Send { to: from, message: message.into() });
            }
        }
        let reader = Reader::Remote { from, incarnation, ask, position };
        proposer.confirmations.push(reader, proposer.heartbeats.newest, proposer.window.next().previous());
    }

    /// Answers the reads that are confirmed, and begins a round for those that are not.
    pub(super) fn confirm_reads(&mut self, effects: &mut Vec<Effect>) {
        let alone = self.leads_alone();
        let (me, now) = (self.id, self.now);
        // Under a new configuration nothing is confirmed before its quorum answered Phase 1 (protocol.md 1.1).
        let serving = |p: &&mut Box<crate::proposer::Proposer>| p.is_serving() && p.may_propose();
        let Some(proposer) = self.proposer.as_mut().filter(serving) else { return };
        if proposer.confirmations.is_empty() {
            return;
        }
        let acked = proposer.acked_by(&self.learner.quorum, me);
        proposer.confirmations.acked = proposer.confirmations.acked.max(acked);
        let mut upto = None;
        while let Some(reader) = proposer.confirmations.pop(alone) {
            self.counters.confirmations += 1;
            match reader {
                Reader::Local(token) => upto = Some(token),
                Reader::LocalPosition(token, instance) => effects.push(Effect::Position { upto: token, instance }),
                Reader::Remote { from, incarnation, ask, position } => {
                    let message = ReadPositionReply { incarnation, ask, position, ballot: proposer.ballot };
                    effects.push(Effect::Send { to: from, message: message.into() });
                }
            }
        }
        if let Some(upto) = upto {
            effects.push(Effect::Confirmed { upto });
        }
        let proposed = proposer.window.next().previous();
        let idle = acked >= proposer.heartbeats.newest;
        proposer.heartbeats.note_acked(acked);
        if proposer.everybody_at().is_some_and(|at| at <= now) {
            self.begin_round(true, effects);
        } else if proposer.confirmations.wants_round(proposer.heartbeats.newest, proposed)
            && (idle || proposer.heartbeats.reads_at <= now)
        {
            self.begin_round(false, effects);
        }
    }

    /// Serves once everything found in Phase 1 is decided and executed (protocol.md 7, hazards.md RD5).
    pub(super) fn serve_if_ready(&mut self, effects: &mut Vec<Effect>) {
        let executed_upto = self.learner.executed_upto;
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.may_propose() && !p.is_serving()) else {
            return;
        };
        let ready = proposer.found.values.is_empty() && executed_upto >= proposer.found.upto;
        if !ready && !mutant!(read_before_takeover) {
            return;
        }
        proposer.stage = Stage::Serving;
        self.counters.leaderships += 1;
        effects.push(Effect::Leading { ballot: proposer.ballot, from: proposer.found.upto.next() });
        if let Some(token) = self.asks.take_all() {
            self.on_ask_position(token, effects);
        }
        self.propose_waiting(effects);
    }

    /// Serves no more: reads are to be redirected, what was queued and not proposed never will be.
    pub(super) fn stop_serving(&mut self, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        if !proposer.is_serving() {
            return;
        }
        proposer.stage = Stage::Leading;
        let mut unconfirmed = None;
        for reader in proposer.confirmations.drain() {
            match reader {
                Reader::Local(token) => unconfirmed = Some(token),
                Reader::LocalPosition(token, _) => self.asks.waiting = self.asks.waiting.max(Some(token)),
                Reader::Remote { .. } => {}
            }
        }
        if let Some(upto) = unconfirmed {
            effects.push(Effect::Unconfirmed { upto });
        }
        let submissions = std::mem::take(&mut proposer.batcher).submissions();
        if submissions > 0 {
            effects.push(Effect::Refused { submissions });
        }
        if proposer.change.waiting.take().is_some() {
            let hint = None;
            effects.push(Effect::ChangeRefused(crate::step::ChangeError::NotLeader { hint }));
        }
        self.election.leader = None;
        effects.push(Effect::Following { leader: None, ballot: self.ballot() });
    }

    /// A leader that heard no quorum for an election timeout must not stay: it may be heard, and so keep the others
    /// from electing one that works (protocol.md 1.3, hazards.md PX13).
    pub(super) fn resign_if_deaf(&mut self, effects: &mut Vec<Effect>) {
        if self.deaf_at().is_some_and(|at| at <= self.now) {
            self.counters.resignations += 1;
            self.ask_the_unheard(effects);
            self.stand_down(effects);
        }
    }

    /// One that hears nobody may be heard: it asks a voter of those to lead that it does not hear, who would find out a
    /// timeout later. None that it hears: where both are cut off from the others, that one could win nothing.
    fn ask_the_unheard(&mut self, effects: &mut Vec<Effect>) {
        let silent: Vec<ReplicaId> = self.silent_peers().collect();
        let serving = self.proposer.as_deref().filter(|proposer| proposer.is_serving());
        let Some(proposer) = serving.filter(|_| !mutant!(deaf_leader_is_mute)) else { return };
        let voters = self.learner.quorum.voters().iter().copied().filter(|voter| silent.contains(voter));
        let transferee = voters.max_by_key(|id| proposer.peer(*id).map(|peer| peer.durable_upto));
        if let Some(to) = transferee {
            effects.push(Effect::Send { to, message: TransferLeader { ballot: proposer.ballot }.into() });
        }
    }

    /// When this leader resigns if it hears nothing more.
    pub(super) fn deaf_at(&self) -> Option<Time> {
        let proposer = self.proposer.as_deref().filter(|proposer| proposer.is_elected())?;
        if self.log_room == LogRoom::Nowhere || mutant!(deaf_leader_stays) {
            return None;
        }
        let heard_at = proposer.quorum_heard_at(&self.learner.quorum, self.id);
        Some(heard_at + self.silence_max(proposer))
    }

    /// What no `Phase2a` will carry soon goes out alone, a little later (papers.md D3: under load none does).
    pub(super) fn arm_announcement(&mut self) {
        let current = (self.learner.decided_upto, self.released);
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.is_elected() && p.window.is_empty()) else {
            return;
        };
        if !proposer.announcement.is_carried(current)
            && proposer.announcement.due_at.is_none()
            && !proposer.peers.is_empty()
        {
            proposer.announcement.due_at = Some(self.now + self.settings.announce_delay);
        }
    }
}
