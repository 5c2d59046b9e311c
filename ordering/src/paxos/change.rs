//! Changing who replicates, who leads, and where a replica stands: membership change, leader transfer, snapshots
//! (protocol.md 1.5, 1.6, 8).

use crate::batch::Configuration;
use crate::ids::{Ballot, Instance, ReplicaId, Time};
use crate::message::{Message, TransferLeader};
use crate::paxos::Paxos;
use crate::proposer::{LeaderTransfer, Peer};
use crate::step::{ChangeError, Effect};

/// Membership.
impl Paxos {
    pub(super) fn on_change(&mut self, mut configuration: Configuration, effects: &mut Vec<Effect>) {
        let hint = self.election.leader;
        let old = &self.learner.configuration;
        let Some(proposer) = self.proposer.as_deref_mut().filter(|proposer| proposer.is_serving()) else {
            effects.push(Effect::ChangeRefused(ChangeError::NotLeader { hint }));
            return;
        };
        let busy = !proposer.change.is_none() || proposer.phase1.is_some();
        if busy || proposer.transfer.is_some() {
            effects.push(Effect::ChangeRefused(ChangeError::Busy));
            return;
        }
        configuration.leaving = old.members().filter(|member| !configuration.is_member(*member)).collect();
        if !configuration.is_sound() {
            effects.push(Effect::ChangeRefused(ChangeError::Invalid));
            return;
        }
        proposer.change.waiting = Some(configuration);
    }

    /// A decided configuration comes from a replica that has promised `promised`, and is about to be in force here:
    /// this replica promises no less (protocol.md 1.5, hazards.md PX20).
    ///
    /// The quorums of two configurations need not meet, so nothing else keeps the ballots under the new one above those
    /// under the old one. Between the ballot that proposed a configuration and the one that decided it others may have
    /// led, which did not know of it, and proposed something in its place and beyond. What they left beyond must lose
    /// against whatever is proposed under the new configuration, and their tickets must be lower (protocol.md 4.2).
    ///
    /// Whoever knows it to be decided has promised a ballot that decided it, or a higher one: the leader that counted
    /// the votes and the followers that heard so have accepted it in that ballot, a candidate that is told so is in a
    /// higher one than those who tell, and all others come here. So whoever stands under it is above.
    pub(super) fn promise_with(&mut self, promised: Ballot, effects: &mut Vec<Effect>) {
        if mutant!(rounds_begin_anew) {
            return;
        }
        self.election.saw(promised);
        if promised > self.acceptor.promised() {
            self.acceptor.promise(promised, effects);
        }
    }

    /// The configuration in force has changed. Whoever leads repeats Phase 1 under it, in the same ballot, for all that
    /// comes after: its acceptors may have promised nothing yet, or hold what somebody else proposed to them
    /// (protocol.md 1.1, hazards.md PX18).
    pub(super) fn after_configuration(&mut self, effects: &mut Vec<Effect>) {
        self.election.pre_voting = None;
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        if !self.learner.configuration.voters.contains(&self.id) {
            self.step_aside(effects);
        } else if mutant!(conf_one_phase1) || mutant!(conf_in_flight) {
            proposer.change.in_flight = false;
            proposer.set_peers(&self.learner.configuration, self.id, self.now);
        } else {
            self.begin_phase1(effects);
        }
    }

    /// The leader votes no more: it tells the others what is decided, asks one of them to lead, and follows.
    fn step_aside(&mut self, effects: &mut Vec<Effect>) {
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        // Nor does it read by what it was promised: whoever it asks is elected at once (hazards.md MV7).
        let keeps_lease = mutant!(lease_survives_move);
        if !keeps_lease {
            proposer.set_peers(&self.learner.configuration, self.id, self.now);
            proposer.lease_void = true;
        }
        let ballot = proposer.ballot;
        let transferee = self.learner.configuration.voters.iter().copied();
        let transferee = transferee.max_by_key(|id| proposer.peer(*id).map(|peer| peer.durable_upto));
        self.begin_round(true, effects);
        if let Some(to) = transferee {
            effects.push(Effect::Send { to, message: Message::TransferLeader(TransferLeader { ballot }) });
        }
        if !keeps_lease {
            self.stand_down(effects);
        }
    }

    /// Removed, and no longer needed (protocol.md 1.5, hazards.md PX19).
    pub(super) fn dismiss_if_safe(&mut self, effects: &mut Vec<Effect>) {
        let learner = &mut self.learner;
        let held = learner.held_upto >= learner.configured_at || mutant!(removed_deleted_early);
        if learner.configuration.leaving.contains(&self.id) && held && !learner.dismissed {
            learner.dismissed = true;
            effects.push(Effect::Dismissed { instance: learner.configured_at });
        }
    }
}

/// Leader transfer.
impl Paxos {
    pub(super) fn on_transfer_leader(&mut self, to: ReplicaId, deadline: Time, effects: &mut Vec<Effect>) {
        let voter = to != self.id && self.learner.quorum.position(to).is_some();
        let Some(proposer) = self.proposer.as_deref_mut().filter(|proposer| proposer.is_serving() && voter) else {
            return effects.push(Effect::LeaderTransferFailed { to });
        };
        match &proposer.transfer {
            Some(transfer) if transfer.to == to => {}
            None if proposer.change.is_none() => {
                let round = proposer.heartbeats.newest.next();
                let asked = (round, self.learner.decided_upto);
                proposer.transfer = Some(LeaderTransfer { to, deadline, asked, paused_at: None, sent: false });
                self.begin_round(true, effects);
            }
            _ => effects.push(Effect::LeaderTransferFailed { to }),
        }
    }

    /// Asks a transferee that answers to lead, once nothing is in flight and the transferee holds everything; goes on
    /// leading if that takes too long.
    pub(super) fn advance_transfer(&mut self, effects: &mut Vec<Effect>) {
        let (now, decided_upto) = (self.now, self.learner.decided_upto);
        let Some(proposer) = self.proposer.as_deref_mut() else { return };
        let Some(transfer) = proposer.transfer.as_mut() else { return };
        let to = transfer.to;
        if transfer.ends_at(self.settings.election_timeout) <= now {
            proposer.transfer = None;
            effects.push(Effect::LeaderTransferFailed { to });
            self.propose_waiting(effects);
            return;
        }
        if transfer.paused_at.is_none() {
            let (round, decided) = transfer.asked;
            let answers = |peer: &&Peer| peer.id == to && peer.acked >= round;
            let transferee = proposer.peers.iter().find(|peer| answers(peer) || mutant!(transfer_unanswered));
            let Some(transferee) = transferee else { return };
            // What it lacked of that beyond a full window it fetches while the leader goes on. What came since does not
            // count: under load a transferee that is far away never has all of it.
            if transferee.durable_upto.0 + u64::from(self.settings.window) < decided.0 && !mutant!(transfer_unanswered)
            {
                transfer.asked = (proposer.heartbeats.newest.next(), decided_upto);
                return;
            }
            transfer.paused_at = Some(now);
        }
        if transfer.sent || !proposer.window.is_empty() || proposer.phase1.is_some() {
            return;
        }
        let ready = proposer.peers.iter().any(|peer| peer.id == to && peer.durable_upto >= decided_upto);
        if ready {
            transfer.sent = true;
            // The message may arrive at any time from now on (protocol.md 7).
            proposer.lease_void = !mutant!(lease_survives_transfer);
            let message = TransferLeader { ballot: proposer.ballot };
            effects.push(Effect::Send { to, message: message.into() });
        } else if proposer.announcement.due_at.is_none()
            && proposer.acked_by(&self.learner.quorum, self.id) >= proposer.heartbeats.newest
        {
            // Its acknowledgement tells what it holds.
            proposer.announcement.due_at = Some(now + self.settings.announce_delay);
        }
    }
}

/// Snapshots.
impl Paxos {
    pub(super) fn on_installed(
        &mut self,
        instance: Instance,
        (configuration, configured_at): (Configuration, Instance),
        promised: Ballot,
        effects: &mut Vec<Effect>,
    ) {
        if !self.may_install(instance, &configuration, promised) {
            self.counters.messages_refused += 1;
            return;
        }
        if instance <= self.learner.decided_upto {
            // Only the executor was behind: it waited in vain, and goes on from there (protocol.md 8).
            if !mutant!(install_moves_no_executor) {
                self.learner.executed(instance);
            }
            return;
        }
        self.stand_down(effects);
        self.promise_with(promised, effects);
        self.acceptor.install(instance);
        self.snapshot.upto = self.snapshot.upto.max(instance);
        self.learner.decided_upto = instance;
        if configured_at > self.learner.configured_at {
            self.learner.configure(configuration.clone(), configured_at);
            effects.push(Effect::ConfigurationDecided { instance: configured_at, configuration });
            self.election.pre_voting = None;
        }
        self.learner.executed(instance);
        self.learner.behind = self.learner.behind.take().filter(|behind| behind.upto > instance);
        if let Some(behind) = self.learner.behind.as_mut() {
            (behind.snapshot, behind.asked, behind.due) = (None, None, self.now);
        }
        // The executor's state is another one now: it hears again what stands above.
        for (instance, slot) in self.acceptor.slots.iter_from(instance.next()) {
            effects.push(Effect::Accepted { instance, ballot: slot.ballot, batch: slot.batch.clone() });
        }
        self.snapshot.forget = Some(self.acceptor.repeat_standing(effects));
    }
}
