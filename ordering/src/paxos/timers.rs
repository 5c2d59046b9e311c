//! What is due when. Nothing here decides; it calls those who do.

use crate::ids::Time;
use crate::message::Message;
use crate::paxos::Paxos;
use crate::step::Effect;

impl Paxos {
    /// When `step(.., Input::Tick, ..)` is next wanted. `None`: not before another input. A moment that has passed
    /// means now.
    pub fn deadline(&self) -> Option<Time> {
        let mut due: Option<Time> = None;
        let mut at = |time: Option<Time>| due = [due, time].into_iter().flatten().min();
        at(self.learner.behind.as_ref().filter(|_| self.proposer.is_none()).map(|behind| behind.due));
        at(self.asks.asked.as_ref().filter(|_| self.election.leader.is_some()).map(|asked| asked.retry_at));
        let Some(proposer) = self.proposer.as_deref() else {
            at(Some(self.election.timeout_at));
            at(self.election.pre_voting.as_ref().map(|pre_voting| pre_voting.retry_at));
            return due;
        };
        if let Some(phase1) = &proposer.phase1 {
            at(Some(phase1.retry_at.min(phase1.give_up_at)));
        }
        at(proposer.transfer.as_ref().map(|transfer| transfer.ends_at(self.settings.election_timeout)));
        at(self.deaf_at().filter(|at| *at < Time(u64::MAX)));
        if proposer.is_elected() {
            at(Some(proposer.heartbeats.next_at).filter(|_| !proposer.peers.is_empty()));
            at(proposer.announcement.due_at);
        }
        if proposer.is_serving() && proposer.may_propose() {
            let proposed = proposer.window.next().previous();
            at(Some(proposer.heartbeats.reads_at)
                .filter(|_| proposer.confirmations.wants_round(proposer.heartbeats.newest, proposed)));
            at(proposer.everybody_at());
            // One that is due and still here waits for the window, not for time.
            at(proposer.batcher.due_at(&self.settings).filter(|due| *due > self.now));
        }
        at(self.retransmit_at());
        due
    }

    pub(super) fn on_tick(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        let Some(proposer) = self.proposer.as_deref_mut() else {
            if self.election.timeout_at <= now {
                self.on_election_timeout(effects);
            }
            self.ask_pre_votes(effects);
            return;
        };
        if let Some(phase1) = &proposer.phase1 {
            if phase1.give_up_at <= now {
                self.stand_down(effects);
                return;
            }
            if phase1.retry_at <= now {
                self.repeat_phase1a(effects);
            }
        }
        self.resign_if_deaf(effects);
        if self.retransmit_at().is_some_and(|at| at <= now) {
            self.retransmit(effects);
        }
        let Some(proposer) = self.proposer.as_deref_mut().filter(|p| p.is_elected()) else { return };
        if proposer.heartbeats.next_at <= now || proposer.announcement.due_at.is_some_and(|at| at <= now) {
            self.begin_round(true, effects);
        }
    }

    /// When the oldest undecided instance is sent again.
    fn retransmit_at(&self) -> Option<Time> {
        let proposer = self.proposer.as_deref()?;
        let since = proposer.window.oldest_since()?;
        (self.learner.quorum.voters().len() > 1).then(|| since + self.retransmit_timeout(proposer))
    }

    /// Sends to every voter but this replica.
    pub(super) fn send_voters<M: Into<Message>>(&self, message: M, effects: &mut Vec<Effect>) {
        let message = message.into();
        for voter in self.learner.quorum.voters() {
            if *voter != self.id {
                effects.push(Effect::Send { to: *voter, message: message.clone() });
            }
        }
    }
}
