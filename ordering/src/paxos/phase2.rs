//! What is in flight: proposing, accepting, voting, deciding (protocol.md 1.2 to 1.4). The hot path.

use std::time::Duration;

use crate::acceptor::Run;
use crate::batch::Batch;
use crate::batcher::CloseReason;
use crate::ids::{Instance, ReplicaId};
use crate::message::{Phase2a, Phase2b};
use crate::paxos::Paxos;
use crate::proposer::Proposer;
use crate::step::Effect;

/// Leader.
impl Paxos {
    /// Proposes as much as the window takes.
    pub(super) fn propose_waiting(&mut self, effects: &mut Vec<Effect>) {
        while let Some((batch, submissions)) = self.next_batch() {
            self.propose(batch, submissions, effects);
        }
    }

    /// What to propose next, and how many submissions it holds, if the window has room for it.
    fn next_batch(&mut self) -> Option<(Batch, u32)> {
        // Decided but unexecuted instances pile up: wait (papers.md A11).
        let lag = self.learner.decided_upto.ahead_of(self.learner.executed_upto);
        let lagging = lag >= self.settings.apply_lag_max;
        let proposer = self.proposer.as_deref_mut().filter(|p| p.may_propose())?;
        // A configuration is alone: nothing is proposed until it is decided (protocol.md 1.5, hazards.md PX9).
        if lagging || proposer.change.in_flight && !mutant!(conf_in_flight) {
            return None;
        }
        let (window, window_bytes_max) = (self.settings.window, self.settings.window_bytes_max);
        if let Some(found) = proposer.found.values.front() {
            if !proposer.window.has_room(found.len_bytes(), window, window_bytes_max) {
                return None;
            }
            return Some((proposer.found.values.pop_front()?, 0));
        }
        if !proposer.is_serving() || proposer.pauses() {
            return None;
        }
        if let Some(change) = proposer.change.waiting.take_if(|_| proposer.window.is_empty() || mutant!(conf_in_flight))
        {
            return Some((Batch::Configuration(change), 0));
        }
        if proposer.change.waiting.is_some() {
            return None;
        }
        let idle = proposer.window.len() < self.settings.eager_window as usize;
        let bytes = proposer.batcher.next_bytes(self.now, idle, &self.settings)?;
        if !proposer.window.has_room(bytes, window, window_bytes_max) {
            return None;
        }
        let ready = proposer.batcher.take(idle)?;
        match ready.closed {
            CloseReason::Full => self.counters.batches_closed_full += 1,
            CloseReason::Idle => self.counters.batches_closed_idle += 1,
            CloseReason::Due => self.counters.batches_closed_due += 1,
        }
        Some((Batch::Commands(ready.commands), ready.submissions))
    }

    /// Proposes `batch` in the next instance: the own flush and the sending run in parallel (protocol.md 1.3).
    fn propose(&mut self, batch: Batch, submissions: u32, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let (ballot, bytes) = (proposer.ballot, batch.len_bytes());
        proposer.change.in_flight |= batch.is_configuration();
        let instance = proposer.window.push(bytes, batch.count(), self.now);
        let (decided_upto, released) = (self.learner.decided_upto, self.released);
        proposer.announcement.carry((decided_upto, released));
        self.acceptor.accept(ballot, instance, batch.clone(), decided_upto, effects);
        if submissions > 0 {
            effects.push(Effect::Proposed { instance, submissions });
        }
        let message = Phase2a { ballot, instance, batch, decided_upto, released };
        for to in self.learner.configuration.members().filter(|to| *to != self.id) {
            effects.push(Effect::Send { to, message: message.clone().into() });
        }
        if mutant!(vote_before_flush) {
            self.vote_early(effects);
        }
    }

    /// Sends what is undecided again to those voters that have not voted for it: the oldest first, and twice as much
    /// each time as long as that does not help. Most often a way only got longer, and the whole window once more would
    /// be in front of everything else on a slow link (papers.md A14).
    pub(super) fn retransmit(&mut self, effects: &mut Vec<Effect>) {
        let (decided_upto, released) = (self.learner.decided_upto, self.released);
        let Some(timeout) = self.proposer.as_deref().map(|p| self.retransmit_timeout(p)) else { return };
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let mut left = proposer.retransmission.back_off();
        for (instance, since, flight) in proposer.window.undecided_mut() {
            if left == 0 {
                break;
            }
            if since + timeout > self.now {
                continue;
            }
            left -= 1;
            flight.sent_at = self.now;
            flight.resent = true;
            let Some(slot) = self.acceptor.slots.get(instance) else { continue };
            let message =
                Phase2a { ballot: proposer.ballot, instance, batch: slot.batch.clone(), decided_upto, released };
            for (position, voter) in self.learner.quorum.voters().iter().enumerate() {
                if *voter != self.id && !flight.votes.contains(position) {
                    self.counters.retransmissions += 1;
                    effects.push(Effect::Send { to: *voter, message: message.clone().into() });
                }
            }
        }
    }

    pub(super) fn retransmit_timeout(&self, proposer: &Proposer) -> Duration {
        proposer.retransmission.timeout(proposer.window.bytes(), &self.settings)
    }

    pub(super) fn on_phase2b(&mut self, from: ReplicaId, m: Phase2b, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.has_begun() && p.ballot == m.ballot) else {
            return;
        };
        if let Some(peer) = proposer.peer_mut(from) {
            peer.heard_at = self.now;
        }
        self.count_votes(from, (m.first, m.instance), effects);
    }

    /// `voter` has accepted a run of instances in the own ballot, durably.
    fn count_votes(&mut self, voter: ReplicaId, run: (Instance, Instance), effects: &mut Vec<Effect>) {
        // Learners and removed replicas are in no quorum (hazards.md PX10).
        let Some(position) = self.learner.quorum.position(voter) else { return };
        // A quorum decides with the leader's own vote or without: its disk may be the slow one (hazards.md ST11).
        let flushed = |instance| self.acceptor.slots.get(instance).is_none_or(|s| self.acceptor.is_durable(s.lsn));
        if mutant!(wait_own_flush) && !(run.0.0..=run.1.0).all(|number| flushed(Instance(number))) {
            return;
        }
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let (counters, now) = (&mut self.counters, self.now);
        let (confirmations, round_trip) = (&mut proposer.confirmations, &mut proposer.retransmission.round_trip);
        let (mut progress, mut at_once) = (false, false);
        proposer.window.vote(&self.learner.quorum, position, run, now, |instance, flight| {
            // A quorum of votes in the own ballot: it was led when this was proposed (protocol.md 7).
            confirmations.decided_own = confirmations.decided_own.max(instance);
            let latency = now - flight.proposed_at;
            if !flight.resent {
                round_trip.sample(latency);
                at_once = true;
            }
            counters.instances_decided += 1;
            counters.commands_decided += u64::from(flight.count);
            counters.bytes_decided += flight.bytes as u64;
            counters.instance_latency_ns += u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            counters.instance_latency_samples += 1;
            progress = true;
        });
        // What was sent twice tells nothing of the way (Karn): were the wait doubled no longer, a way that got longer
        // than the wait would carry everything twice from then on, and nothing would ever be measured.
        if at_once {
            proposer.retransmission.reset();
        }
        if progress {
            self.pop_decided(effects);
        }
    }

    /// Instances are decided in any order, and reported in log order (papers.md A6).
    fn pop_decided(&mut self, effects: &mut Vec<Effect>) {
        let before = self.learner.decided_upto;
        let mut configured = false;
        while let Some(instance) = self.proposer.as_deref_mut().and_then(|p| p.window.pop_decided()) {
            let slot = self.acceptor.slots.get(instance).expect("a proposed instance is accepted here");
            let bytes = slot.batch.len_bytes();
            configured |= self.learner.decide(&slot.batch, effects);
            self.acceptor.decided_bytes(bytes);
        }
        self.announce_decided(before, effects);
        if configured {
            self.after_configuration(effects);
        }
    }

    /// Tells the executor that more is decided than `before`.
    pub(super) fn announce_decided(&mut self, before: Instance, effects: &mut Vec<Effect>) {
        let upto = self.learner.decided_upto;
        if upto > before {
            effects.push(Effect::Decided { upto });
        }
        if self.learner.configured_at > before {
            // Whoever restarts must not fall back to a configuration whose replicas may be deleted by then.
            self.acceptor.note_configured(upto, effects);
        }
    }
}

/// Acceptor.
impl Paxos {
    pub(super) fn on_phase2a(&mut self, m: Phase2a, effects: &mut Vec<Effect>) {
        if m.ballot.replica == self.id || !self.listen(m.ballot, effects) {
            return;
        }
        self.hear_decided(m.ballot, m.decided_upto, effects);
        self.consider(&m, effects);
        self.hear_released(m.released, effects);
    }

    fn consider(&mut self, m: &Phase2a, effects: &mut Vec<Effect>) {
        let decided_upto = self.learner.decided_upto;
        let slot = self.acceptor.slots.get(m.instance);
        if m.instance <= decided_upto {
            // It is decided, so this is the decided value, and what this replica durably holds is a vote for it: a
            // candidate is told of it as decided or trimmed, whatever the ballot.
            if let Some(slot) = slot {
                // Unless a later ballot decided it: this replica heard of that by catch-up only and has promised
                // nothing, so a leader that was overwritten still finds its ear here, but no vote.
                if slot.batch != m.batch && !mutant!(overwritten_is_heard) {
                    let absurd = slot.ballot <= m.ballot;
                    self.counters.messages_refused += u64::from(absurd);
                    return;
                }
                if !self.acceptor.is_durable(slot.lsn) {
                    return;
                }
            }
            self.send_votes(Run { ballot: m.ballot, first: m.instance, last: m.instance }, effects);
            return;
        }
        if let Some(slot) = slot.filter(|slot| slot.ballot == m.ballot) {
            if slot.batch != m.batch {
                self.counters.messages_refused += 1;
                return;
            }
            if let Some(run) = self.acceptor.repeat_vote(m.ballot, m.instance, slot.lsn) {
                self.send_votes(run, effects);
            }
            return;
        }
        let replaced = slot.map_or(0, |slot| slot.batch.len_bytes());
        let bytes = self.acceptor.undecided_bytes() - replaced + m.batch.len_bytes();
        let ahead = m.instance.ahead_of(decided_upto);
        let too_far = ahead > self.settings.accept_ahead_max || bytes > self.settings.accept_ahead_bytes_max;
        // The next one is always taken: nothing goes on without it.
        if too_far && ahead > 1 {
            self.counters.accepts_ahead_ignored += 1;
            return;
        }
        self.acceptor.accept(m.ballot, m.instance, m.batch.clone(), decided_upto, effects);
        if mutant!(vote_before_flush) {
            self.vote_early(effects);
        }
    }

    /// The run is durable: votes leave, or count at once if this replica leads.
    pub(super) fn send_votes(&mut self, run: Run, effects: &mut Vec<Effect>) {
        let to = run.ballot.replica;
        if to != self.id {
            let message = Phase2b { ballot: run.ballot, first: run.first, instance: run.last };
            effects.push(Effect::Send { to, message: message.into() });
        } else if self.proposer.as_ref().is_some_and(|proposer| proposer.ballot == run.ballot) {
            self.count_votes(self.id, (run.first, run.last), effects);
        }
    }

    fn vote_early(&mut self, effects: &mut Vec<Effect>) {
        let mut runs = Vec::new();
        self.acceptor.take_votes_early(&mut runs);
        for run in runs {
            self.send_votes(run, effects);
        }
    }
}
