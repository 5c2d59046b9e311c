//! Following: who leads, what it says is decided, and getting what is missing (protocol.md 1.4, 1.5, 7).

use std::time::Duration;

use crate::ids::{Ballot, Instance, ReplicaId, Ticket};
use crate::message::{
    AcceptedBatch, CatchUp, CatchUpReply, Heartbeat, HeartbeatAck, Message, ReadPosition, ReadPositionReply,
};
use crate::paxos::Paxos;
use crate::reads::PositionQuestion;
use crate::settings::QUIESCE_MAX;
use crate::step::Effect;

/// A snapshot may take its time; after so many election timeouts another source is tried.
const SNAPSHOT_RETRY_ELECTION_TIMEOUTS: u32 = 10;

/// The leader.
impl Paxos {
    /// Takes notice of the leader of `ballot`; false, with an answer, if a higher ballot is known.
    pub(super) fn listen(&mut self, ballot: Ballot, effects: &mut Vec<Effect>) -> bool {
        if ballot < self.ballot() {
            self.preempt(ballot.replica, ballot, effects);
            return false;
        }
        if ballot > self.election.leader_ballot || self.election.leader.is_none() {
            self.stand_down(effects);
            self.election.saw(ballot);
            self.election.leader_ballot = ballot;
            self.election.leader = Some(ballot.replica);
            self.election.draw(&self.settings);
            self.election.elected();
            effects.push(Effect::Following { leader: Some(ballot.replica), ballot });
        }
        self.election.heard(self.now);
        true
    }

    /// Forgets the leader.
    pub(super) fn follow_nobody(&mut self, effects: &mut Vec<Effect>) {
        if self.election.leader.take().is_some() {
            effects.push(Effect::Following { leader: None, ballot: self.ballot() });
        }
    }

    /// The process of `peer` has ended. Its followers hear of it at about the same time, so that whoever asks first for
    /// their pre-votes gets them (protocol.md 1.3); one that is the only one to think so gets none.
    pub(super) fn on_gone(&mut self, peer: ReplicaId) {
        if self.proposer.is_none() && self.election.leader == Some(peer) {
            self.election.gone(self.now, &self.settings);
        }
    }

    pub(super) fn on_heartbeat(&mut self, m: Heartbeat, effects: &mut Vec<Effect>) {
        if m.ballot.replica == self.id || !self.listen(m.ballot, effects) {
            return;
        }
        self.election.quiesces(m.quiesce.min(QUIESCE_MAX));
        self.hear_decided(m.ballot, m.decided_upto, effects);
        self.hear_released(m.released, effects);
        self.learner.held_upto = self.learner.held_upto.max(m.held_upto);
        // Whatever a leader asks for, nobody is kept from electing another one for longer than this.
        let wanted = m.lease.min(self.settings.election_timeout);
        let lease = self.acceptor.grant_lease(m.ballot, wanted, self.now, effects);
        let durable_upto = self.holds_upto();
        let released = self.released;
        let message = HeartbeatAck { ballot: m.ballot, round: m.round, durable_upto, lease, released };
        effects.push(Effect::Send { to: m.ballot.replica, message: message.into() });
    }

    /// The leader of `ballot` has decided `upto`: true of the batches accepted in that ballot, and of no other
    /// (protocol.md
    /// 1.4, hazards.md PX7).
    pub(super) fn hear_decided(&mut self, ballot: Ballot, upto: Instance, effects: &mut Vec<Effect>) {
        let before = self.learner.decided_upto;
        self.learner.heard = self.learner.heard.max((ballot, upto));
        let configured = self.decide_heard(effects);
        self.announce_decided(before, effects);
        if configured {
            self.after_configuration(effects);
        }
        // What is missing may be on its way, unless it is too much for that.
        let missing = upto.ahead_of(self.learner.decided_upto);
        let grace = if self.may_be_on_their_way(missing) { self.settings.retransmit_min } else { Duration::ZERO };
        self.learner.note_behind(upto, ballot.replica, self.now, grace);
    }

    /// Decides what is next as long as the newest leader heard said so, and true of what is held.
    fn decide_heard(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (ballot, upto) = self.learner.heard;
        let mut configured = false;
        while self.learner.decided_upto < upto {
            let Some(slot) = self.acceptor.slots.get(self.learner.decided_upto.next()) else { break };
            if slot.ballot != ballot && !mutant!(decided_by_number) {
                break;
            }
            let bytes = slot.batch.len_bytes();
            configured |= self.learner.decide(&slot.batch, effects);
            self.acceptor.decided_bytes(bytes);
        }
        configured
    }

    pub(super) fn hear_released(&mut self, released: Option<Ticket>, effects: &mut Vec<Effect>) {
        if released > self.released {
            self.released = released;
            effects.extend(released.map(|watermark| Effect::Released { watermark }));
        }
    }
}

/// Catching up.
impl Paxos {
    /// Asks for what is missing, if it is time.
    pub(super) fn catch_up(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        if self.proposer.is_some() {
            return;
        }
        let lag = self.learner.decided_upto.ahead_of(self.learner.executed_upto);
        let Some(behind) = self.learner.behind.as_mut().filter(|behind| behind.due <= now) else { return };
        if lag > 2 * self.settings.apply_lag_max {
            // The executor first: what it has not taken yet piles up here (papers.md A11).
            behind.due = now + self.settings.heartbeat_interval;
            return;
        }
        if behind.asked.is_some() || behind.snapshot.take().is_some() {
            // Silence: somebody else, more and more patiently, for an answer may take its time on a slow link.
            behind.attempts += 1;
            behind.silences = (behind.silences + 1).min(6);
        }
        behind.due = now + self.settings.heartbeat_interval * (1 << behind.silences);
        let attempts = behind.attempts;
        let source = self.learner.source(self.id, self.election.leader, attempts);
        if let Some(behind) = self.learner.behind.as_mut() {
            behind.asked = source;
        }
        self.ask_for_decided(source, effects);
    }

    /// Without a vote and without a leader: asks one after the other whether there is news. So a new voter whose group
    /// has gone learns that it is one (protocol.md 1.5).
    pub(super) fn poll_for_news(&mut self, effects: &mut Vec<Effect>) {
        self.election.attempt += 1;
        // Twice, because every other attempt goes to an informant.
        let source = self.learner.source(self.id, None, (self.election.attempt as u32) << 1);
        self.ask_for_decided(source, effects);
    }

    fn ask_for_decided(&mut self, source: Option<ReplicaId>, effects: &mut Vec<Effect>) {
        let Some(to) = source else { return };
        self.counters.catch_ups += 1;
        let message = CatchUp { from: self.learner.decided_upto.next(), bytes_max: self.settings.catch_up_bytes_max };
        effects.push(Effect::Send { to, message: message.into() });
    }

    /// Any replica answers, a removed one too (protocol.md 1.5).
    pub(super) fn on_catch_up(&mut self, from: ReplicaId, m: CatchUp, effects: &mut Vec<Effect>) {
        let slots = &self.acceptor.slots;
        let mut decided = Vec::new();
        let mut bytes = 0;
        let bytes_max = m.bytes_max.min(self.settings.catch_up_bytes_max) as usize;
        if m.from > slots.trimmed_upto() {
            let known = slots.iter_from(m.from).take(CATCH_UP_BATCHES_MAX).zip(m.from.0..);
            let known = known.take_while(|((i, slot), at)| i.0 == *at && self.learner.knows_decided(*i, slot.ballot));
            for ((instance, slot), _) in known {
                bytes += slot.batch.len_bytes();
                if bytes > bytes_max && !decided.is_empty() {
                    break;
                }
                decided.push(AcceptedBatch { instance, ballot: slot.ballot, batch: slot.batch.clone() });
            }
        }
        let message = CatchUpReply {
            decided,
            decided_upto: self.learner.decided_upto,
            trimmed_upto: slots.trimmed_upto(),
            held_upto: self.learner.held_upto,
            promised: self.acceptor.promised(),
        };
        effects.push(Effect::Send { to: from, message: message.into() });
    }

    pub(super) fn on_catch_up_reply(&mut self, from: ReplicaId, m: CatchUpReply, effects: &mut Vec<Effect>) {
        // A candidate or leader learns from Phase 1 and its own votes, and from nothing else: what was decided in
        // another ballot confirms nothing about its own (hazards.md RD11).
        if self.proposer.is_some() {
            if mutant!(foreign_decision_confirms) {
                self.confirm_by_foreign(&m);
            }
            return;
        }
        self.learner.held_upto = self.learner.held_upto.max(m.held_upto);
        let before = self.learner.decided_upto;
        let mut configured = false;
        let source_upto = m.decided.last().map_or(m.decided_upto, |last| last.instance.max(m.decided_upto));
        for decided in m.decided {
            if decided.instance == self.learner.decided_upto.next() {
                if decided.batch.is_configuration() {
                    self.promise_with(m.promised, effects);
                }
                configured |= self.learn(decided, effects);
            }
        }
        configured |= self.decide_heard(effects);
        self.announce_decided(before, effects);
        if configured {
            self.after_configuration(effects);
        }
        self.learner.note_behind(m.decided_upto, from, self.now, Duration::ZERO);
        let progress = self.learner.decided_upto > before;
        self.after_catch_up_reply(from, (source_upto, m.trimmed_upto), progress, effects);
    }

    fn after_catch_up_reply(
        &mut self,
        from: ReplicaId,
        (source_upto, trimmed_upto): (Instance, Instance),
        progress: bool,
        effects: &mut Vec<Effect>,
    ) {
        let decided_upto = self.learner.decided_upto;
        let Some(behind) = self.learner.behind.as_mut() else {
            if progress && self.election.leader.is_none() && self.learner.quorum.position(self.id).is_some() {
                // A candidate that had to catch up first stands again.
                self.election.timeout_at = self.election.timeout_at.min(self.now + self.settings.retransmit_min);
            }
            return;
        };
        if behind.snapshot.is_some() || behind.asked.is_some_and(|asked| asked != from) {
            return;
        }
        behind.asked = None;
        behind.silences = 0;
        if progress {
            // The rest at once, from the same one if it has it; not from the leader if others may.
            let other = source_upto < behind.upto || self.election.leader == Some(from);
            behind.attempts += u32::from(other);
            behind.due = self.now;
        } else if trimmed_upto > decided_upto {
            behind.snapshot = Some((from, trimmed_upto));
            behind.due = self.now + SNAPSHOT_RETRY_ELECTION_TIMEOUTS * self.settings.election_timeout;
            self.counters.snapshots_needed += 1;
            effects.push(Effect::NeedSnapshot { from, instance: trimmed_upto });
        } else if source_upto <= decided_upto && (self.election.leader == Some(from) || behind.informant == from) {
            // Whoever would know says that there is no more. Something else may have been said, and was not true.
            self.learner.behind = None;
        } else {
            behind.attempts += 1;
            behind.due = self.now + self.settings.retransmit_min;
        }
    }

    fn confirm_by_foreign(&mut self, m: &CatchUpReply) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        proposer.confirmations.decided_own = proposer.confirmations.decided_own.max(m.decided_upto);
    }
}

/// Batches of one `CatchUpReply`: bounds replies of empty batches.
const CATCH_UP_BATCHES_MAX: usize = 4_096;

/// Positions for reads at this replica.
impl Paxos {
    /// Asks the leader for a confirmed position if reads wait for one: one question at a time, again when nothing comes
    /// and when the ballot changes (protocol.md 7).
    pub(super) fn ask_leader(&mut self, effects: &mut Vec<Effect>) {
        let Some(leader) = self.election.leader.filter(|leader| *leader != self.id) else { return };
        let ballot = self.election.leader_ballot;
        let retry_at = self.now + self.settings.heartbeat_interval;
        if let Some(asked) = self.asks.asked.as_mut() {
            if asked.ballot == ballot && asked.retry_at > self.now {
                return;
            }
            (asked.ballot, asked.retry_at) = (ballot, retry_at);
        } else if let Some(upto) = self.asks.waiting.take() {
            self.asks.last_ask += 1;
            self.asks.asked = Some(PositionQuestion { ask: self.asks.last_ask, upto, ballot, retry_at });
        } else {
            return;
        }
        let message = ReadPosition { incarnation: self.incarnation, ask: self.asks.last_ask, ballot: self.ballot() };
        effects.push(Effect::Send { to: leader, message: Message::ReadPosition(message) });
    }

    pub(super) fn on_read_position_reply(&mut self, m: ReadPositionReply, effects: &mut Vec<Effect>) {
        // An answer to an earlier run of this process is older than the reads that wait now.
        if m.incarnation != self.incarnation && !mutant!(late_position_counts) {
            return;
        }
        if m.ballot == self.ballot() && m.ballot.replica != self.id {
            self.hear_decided(m.ballot, m.position, effects);
        }
        if let Some(upto) = self.asks.answered(m.ask) {
            effects.push(Effect::Position { upto, instance: m.position });
        }
    }
}
