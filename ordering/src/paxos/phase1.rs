//! Taking a leadership: pre-vote, a durable round, Phase 1, the values found (protocol.md 1.1).

use crate::acceptor::PendingPromise;
use crate::election::PreVoting;
use crate::ids::{Ballot, Instance, ReplicaId, Round};
use crate::message::{AcceptedBatch, Phase1a, Phase1b, PreVote, PreVoteReply, Preempted, TransferLeader};
use crate::paxos::{LogRoom, Paxos, ROUND_MAX};
use crate::proposer::{FoundValues, Phase1, Proposer, Stage, adopt};
use crate::slots::Slot;
use crate::step::Effect;
use crate::window::Window;

/// A pre-vote is asked for again after `retransmit_min` divided by this, then after twice as long each time, up to
/// `heartbeat_interval`.
const FIRST_PAUSE_PARTS: u32 = 8;

/// Decided batches in one `Phase1b` at most: empty ones have no bytes, and each costs whoever reads it some room. Who
/// holds more tells what is undecided, and the candidate catches up first.
const ACCEPTED_DECIDED_MAX: usize = 1 << 16;

/// Candidate.
impl Paxos {
    /// The leader is lost: asks the voters whether they lost it too, or, without a vote, anybody for news.
    pub(super) fn on_election_timeout(&mut self, effects: &mut Vec<Effect>) {
        self.election.retry_later(self.now, &self.settings);
        self.follow_nobody(effects);
        let Some(position) = self.learner.quorum.position(self.id) else {
            self.poll_for_news(effects);
            return;
        };
        if self.log_room != LogRoom::Here && !mutant!(stands_without_room) {
            return;
        }
        let Some(ballot) = self.next_ballot() else {
            self.poll_for_news(effects);
            return;
        };
        if self.acceptor.lease_forbids(ballot, None, self.now) {
            self.election.timeout_at = self.acceptor.lease.until;
            return;
        }
        self.counters.pre_votes += 1;
        self.election.attempt += 1;
        let mut pre_voting = PreVoting {
            granted: Default::default(),
            retry_at: self.now,
            pause: (self.settings.retransmit_min / FIRST_PAUSE_PARTS).min(self.settings.heartbeat_interval),
        };
        pre_voting.granted.insert(position);
        self.election.pre_voting = Some(pre_voting);
        self.ask_pre_votes(effects);
        self.campaign_if_granted(effects);
    }

    /// Asks those for a pre-vote that have not granted it, if it is time.
    pub(super) fn ask_pre_votes(&mut self, effects: &mut Vec<Effect>) {
        let message = PreVote { attempt: self.election.attempt, decided_upto: self.learner.decided_upto };
        let Some(pre_voting) = self.election.pre_voting.as_mut().filter(|p| p.retry_at <= self.now) else { return };
        pre_voting.retry_at = self.now + pre_voting.pause;
        pre_voting.pause = (2 * pre_voting.pause).min(self.settings.heartbeat_interval);
        for (position, voter) in self.learner.quorum.voters().iter().enumerate() {
            if *voter != self.id && !pre_voting.granted.contains(position) {
                effects.push(Effect::Send { to: *voter, message: message.clone().into() });
            }
        }
    }

    pub(super) fn on_pre_vote(&mut self, from: ReplicaId, m: PreVote, effects: &mut Vec<Effect>) {
        let ballot = Ballot { round: Round(u64::MAX), replica: from };
        let behind = m.decided_upto < self.acceptor.slots.trimmed_upto()
            || self.learner.decided_upto.ahead_of(m.decided_upto) > self.settings.accept_ahead_max;
        let granted = self.proposer.is_none()
            && (self.log_room == LogRoom::Here || mutant!(stands_without_room))
            && self.election.leader_is_lost(self.now, &self.settings)
            && !self.acceptor.lease_forbids(ballot, None, self.now)
            && !behind;
        let message = PreVoteReply {
            attempt: m.attempt,
            granted,
            promised: self.acceptor.promised(),
            decided_upto: self.learner.decided_upto,
        };
        effects.push(Effect::Send { to: from, message: message.into() });
    }

    pub(super) fn on_pre_vote_reply(&mut self, from: ReplicaId, m: PreVoteReply, effects: &mut Vec<Effect>) {
        self.election.saw(m.promised);
        self.learner.note_behind(m.decided_upto, from, self.now, self.settings.retransmit_min);
        if m.attempt != self.election.attempt || !m.granted {
            return;
        }
        let Some(position) = self.learner.quorum.position(from) else { return };
        let Some(pre_voting) = self.election.pre_voting.as_mut() else { return };
        pre_voting.granted.insert(position);
        self.campaign_if_granted(effects);
    }

    fn campaign_if_granted(&mut self, effects: &mut Vec<Effect>) {
        let granted = |p: &mut PreVoting| self.learner.quorum.is_reached_by(p.granted);
        if self.election.pre_voting.take_if(granted).is_some() {
            self.campaign(None, effects);
        }
    }

    /// None: a log of absurd rounds has left no round to stand in.
    fn next_ballot(&self) -> Option<Ballot> {
        let above = self.election.round_seen.max(self.acceptor.promised().round);
        (above < ROUND_MAX).then(|| Ballot { round: above.next(), replica: self.id })
    }

    /// The leader of `m.ballot` transfers its leadership to this replica.
    pub(super) fn on_asked_to_lead(&mut self, m: TransferLeader, effects: &mut Vec<Effect>) {
        let able = self.learner.quorum.position(self.id).is_some() && self.log_room == LogRoom::Here;
        if m.ballot < self.ballot() || self.proposer.is_some() || !able {
            return;
        }
        self.campaign(Some(m.ballot), effects);
    }

    /// Takes a new round. It is used when it is durable (hazards.md PX2): see `begin_if_durable`.
    fn campaign(&mut self, transfer_of: Option<Ballot>, effects: &mut Vec<Effect>) {
        assert!(self.proposer.is_none(), "a leader or candidate campaigns");
        let Some(ballot) = self.next_ballot() else { return };
        if self.acceptor.lease_forbids(ballot, transfer_of, self.now) {
            return;
        }
        self.counters.rounds_taken += 1;
        self.election.saw(ballot);
        self.election.stands();
        self.election.pre_voting = None;
        let lsn = self.acceptor.promise(ballot, effects);
        self.proposer = Some(Box::new(Proposer::new(ballot, lsn, transfer_of, self.learner.decided_upto)));
        self.follow_nobody(effects);
    }

    /// Begins Phase 1 once the round is durable.
    pub(super) fn begin_if_durable(&mut self, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        if proposer.has_begun() || !self.acceptor.is_durable(proposer.ballot_lsn) {
            return;
        }
        proposer.stage = Stage::Standing;
        proposer.heartbeats.next_at = self.now + self.settings.heartbeat_interval;
        self.begin_phase1(effects);
    }

    /// Phase 1 for all instances that are not known to be decided, under the newest decided configuration.
    pub(super) fn begin_phase1(&mut self, effects: &mut Vec<Effect>) {
        let from = self.learner.decided_upto.next();
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        proposer.set_peers(&self.learner.configuration, self.id, self.now);
        proposer.window = Window::starting_at(from);
        proposer.found.values.clear();
        proposer.change.in_flight = false;
        proposer.phase1 = Some(Phase1 {
            from,
            configured_at: self.learner.configured_at,
            answered: Default::default(),
            replies: Vec::new(),
            begun_at: self.now,
            retry_at: self.now + proposer.retransmission.round_trip.timeout(&self.settings),
            give_up_at: self.now + self.election.phase1_patience(&self.settings),
        });
        let message = Phase1a { ballot: proposer.ballot, from, transfer: proposer.transfer_of };
        let ballot = proposer.ballot;
        self.send_voters(message, effects);
        let own = self.phase1b(ballot, from);
        self.on_phase1b(self.id, own, effects);
    }

    /// Asks those again that have not answered.
    pub(super) fn repeat_phase1a(&mut self, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let Some(phase1) = proposer.phase1.as_mut() else { return };
        phase1.retry_at = self.now + proposer.retransmission.round_trip.timeout(&self.settings);
        let message = Phase1a { ballot: proposer.ballot, from: phase1.from, transfer: proposer.transfer_of };
        for (position, voter) in self.learner.quorum.voters().iter().enumerate() {
            if *voter != self.id && !phase1.answered.contains(position) {
                effects.push(Effect::Send { to: *voter, message: message.clone().into() });
            }
        }
    }

    pub(super) fn on_phase1b(&mut self, from: ReplicaId, m: Phase1b, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.has_begun() && p.ballot == m.ballot) else {
            return;
        };
        if let Some(peer) = proposer.peer_mut(from) {
            peer.heard_at = self.now;
        }
        let Some(phase1) = proposer.phase1.as_mut().filter(|phase1| phase1.from == m.from) else { return };
        // Learners and removed replicas are in no quorum (hazards.md PX10).
        let Some(position) = self.learner.quorum.position(from) else { return };
        if !phase1.answered.insert(position) {
            return;
        }
        phase1.replies.push((from, m));
        if self.learner.quorum.is_reached_by(phase1.answered) || mutant!(noop_early) {
            let phase1 = proposer.phase1.take().expect("it was there");
            self.finish_phase1(phase1, effects);
        }
    }

    /// A quorum answered. First what it knows to be decided, then a value for everything else.
    fn finish_phase1(&mut self, phase1: Phase1, effects: &mut Vec<Effect>) {
        self.counters.phases1_completed += 1;
        if !mutant!(ignore_trimmed_upto) && !self.learn_from_phase1(&phase1, effects) {
            return;
        }
        if self.learner.configured_at != phase1.configured_at && !mutant!(conf_one_phase1) {
            // It learned a configuration: the instances after it are that one's quorum's to tell.
            self.after_configuration(effects);
            return;
        }
        let decided_upto = self.learner.decided_upto;
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let found = adopt(&phase1.replies, decided_upto);
        if proposer.is_serving() && !found.is_empty() {
            // Only under a new configuration: somebody else proposed there. Reads that were executed before this is
            // would miss it (protocol.md 7, hazards.md RD5), so it serves no more, and never again in this ballot:
            // what was begun in it, as tickets are, has one end.
            if !mutant!(serves_twice_in_a_ballot) {
                self.stand_down(effects);
                if self.learner.quorum.position(self.id).is_some() {
                    self.campaign(None, effects);
                }
                return;
            }
            self.stop_serving(effects);
        }
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        // A leader that repeated Phase 1 may be serving.
        proposer.stage = proposer.stage.max(Stage::Leading);
        self.election.elected();
        // The first guess at a round trip, flush included.
        proposer.retransmission.round_trip.sample(self.now - phase1.begun_at);
        proposer.found = FoundValues { upto: Instance(decided_upto.0 + found.len() as u64), values: found };
        proposer.window = Window::starting_at(decided_upto.next());
        self.begin_round(true, effects);
    }

    /// Takes the decided batches out of the replies. False if some are missing: then this replica must catch up, or
    /// install a snapshot, before it can lead (hazards.md PX6).
    fn learn_from_phase1(&mut self, phase1: &Phase1, effects: &mut Vec<Effect>) -> bool {
        let before = self.learner.decided_upto;
        for (_, reply) in &phase1.replies {
            let known = reply.accepted.iter().filter(|accepted| accepted.instance <= reply.decided_upto);
            for accepted in known {
                if accepted.instance == self.learner.decided_upto.next() {
                    self.learn(accepted.clone(), effects);
                }
            }
        }
        self.announce_decided(before, effects);
        let furthest = phase1.replies.iter().max_by_key(|(_, reply)| reply.decided_upto);
        let Some((who, reply)) = furthest.filter(|(_, r)| r.decided_upto > self.learner.decided_upto) else {
            return true;
        };
        self.stand_down(effects);
        self.learner.note_behind(reply.decided_upto, *who, self.now, std::time::Duration::ZERO);
        false
    }

    /// The next instance was decided elsewhere: keeps it, and records it unless an equal vote of that ballot or a later
    /// is on record. One of an earlier ballot will not do: a proposal between the two may still come late, and it is
    /// the ballot that tells that it was overwritten.
    pub(super) fn learn(&mut self, decided: AcceptedBatch, effects: &mut Vec<Effect>) -> bool {
        let AcceptedBatch { instance, ballot, batch } = decided;
        assert_eq!(instance, self.learner.decided_upto.next());
        self.counters.batches_learned += 1;
        let as_new = |vote: Ballot| vote >= ballot || mutant!(learned_under_an_old_vote);
        let held = self.acceptor.slots.get(instance).is_some_and(|slot| slot.batch == batch && as_new(slot.ballot));
        if !held {
            self.acceptor.learn(instance, ballot, batch.clone(), effects);
        }
        self.acceptor.decided_bytes(batch.len_bytes());
        self.learner.decide(&batch, effects)
    }

    pub(super) fn on_preempted(&mut self, m: Preempted, effects: &mut Vec<Effect>) {
        self.election.saw(m.ballot);
        if self.proposer.as_ref().is_some_and(|proposer| proposer.ballot < m.ballot) {
            self.stand_down(effects);
        }
    }

    /// Ends the candidacy or leadership.
    pub(super) fn stand_down(&mut self, effects: &mut Vec<Effect>) {
        if self.proposer.is_none() {
            return;
        }
        self.stop_serving(effects);
        self.proposer = None;
        self.election.draw(&self.settings);
        self.election.retry_later(self.now, &self.settings);
    }
}

/// Acceptor.
impl Paxos {
    pub(super) fn on_phase1a(&mut self, from: ReplicaId, m: Phase1a, effects: &mut Vec<Effect>) {
        self.election.saw(m.ballot);
        let promised = self.acceptor.promised();
        // Nor a ballot whose successor leads already: it could win nothing.
        if m.ballot < self.ballot() || m.ballot.replica != from {
            self.preempt(from, m.ballot, effects);
            return;
        }
        if m.ballot > promised {
            if self.acceptor.lease_forbids(m.ballot, m.transfer, self.now) {
                return;
            }
            self.election.stands();
            self.stand_down(effects);
            self.acceptor.promise(m.ballot, effects);
            // The candidate gets an election timeout before this replica stands against it.
            self.election.retry_later(self.now, &self.settings);
        }
        self.acceptor.pending_promise = Some(PendingPromise { to: from, from: m.from });
        self.answer_promise(effects);
    }

    /// Answers the newest `Phase1a` once the promise is durable, and never before (protocol.md 1.3).
    pub(super) fn answer_promise(&mut self, effects: &mut Vec<Effect>) {
        let early = mutant!(vote_before_flush);
        let durable = self.acceptor.promise_is_durable() || early;
        let Some(pending) = self.acceptor.pending_promise.take_if(|_| durable) else { return };
        let message = self.phase1b(self.acceptor.promised(), pending.from);
        effects.push(Effect::Send { to: pending.to, message: message.into() });
    }

    /// What this acceptor reports from `from` on.
    fn phase1b(&self, ballot: Ballot, from: Instance) -> Phase1b {
        let decided_upto = self.learner.decided_upto;
        let slots = &self.acceptor.slots;
        // Decided batches only as far as they fit together; all of the undecided ones.
        let decided: Vec<_> = slots.iter_from(from).take_while(|(instance, _)| *instance <= decided_upto).collect();
        let bytes: usize = decided.iter().map(|(_, slot)| slot.batch.len_bytes()).sum();
        let too_many = bytes > self.settings.phase1b_bytes_max || decided.len() > ACCEPTED_DECIDED_MAX;
        let skipped = if too_many { decided.len() } else { 0 };
        let report = |(instance, slot): (Instance, &Slot)| AcceptedBatch {
            instance,
            ballot: if mutant!(one_ballot_field) { self.acceptor.promised() } else { slot.ballot },
            batch: slot.batch.clone(),
        };
        Phase1b {
            ballot,
            from,
            accepted: slots.iter_from(from).skip(skipped).map(report).collect(),
            decided_upto,
            trimmed_upto: slots.trimmed_upto(),
        }
    }
}
