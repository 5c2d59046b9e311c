//! A partition that takes in its neighbour waits for the state which that leaves, at the same place of the log on every
//! replica (protocol.md 8). Most often the state is here long before.

use std::time::Duration;

use coppice_ordering::{Input as Order, Instance, ReplicaId, Time};

use super::{Effect, Replica};
use crate::machine::Answer;
use crate::machine::partition::AbsorbedState;

/// Between two questions for what is awaited: the neighbour's replica on this node may still be starting.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// When the neighbour's replica here cannot tell for so long, another replica's snapshot takes the place of the batch.
const SNAPSHOT_AFTER: Duration = Duration::from_secs(2);

/// A batch that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    at: Instance,
    since: Time,
    pub(super) again: Time,
    /// Replicas asked for a snapshot so far.
    asked: usize,
}

impl Replica {
    /// A neighbour's state is here: what waited for it runs.
    pub(super) fn on_absorb(&mut self, now: Time, left: AbsorbedState, effects: &mut Vec<Effect>) {
        let waited = self.executor.awaits().is_some();
        let mut answers = std::mem::take(&mut self.answers);
        self.executor.absorb(left, &mut answers);
        self.answers = answers;
        self.keep_answers();
        self.keep_parts();
        if waited && self.executor.awaits().is_none() {
            self.run_decided(now, effects);
        }
    }

    /// Executes what is decided and has not run yet, because something was awaited.
    pub(super) fn run_decided(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let upto = self.paxos.decided_upto();
        if self.executor.decided() < upto {
            let executed = self.on_decided(upto, effects);
            self.order(now, Order::Executed(executed), effects);
        }
    }

    /// The executor takes only so much ahead of the decisions: after a restart, or behind a batch that waited, it has
    /// to be given again what it had no room for. Without that it would stand still, and reads would be of the past.
    pub(super) fn refill(&mut self, upto: Instance, answers: &mut Vec<Answer>) {
        while self.executor.decided() < upto
            && self.executor.awaits().is_none()
            && !self.executor.has_worked_enough()
            && !mutant!(executor_stands_still)
        {
            let from = self.executor.decided();
            let room = (from.0 + 1..=upto.0).map(Instance).take(self.executor.ahead_max());
            for instance in room {
                let Some(batch) = self.paxos.batch(instance).cloned() else { break };
                // Decided, so nothing is rolled back.
                _ = self.executor.accepted(instance, batch, answers);
            }
            self.executor.decided_upto(upto, answers);
            if self.executor.decided() == from {
                return;
            }
        }
    }

    /// Asks for what the next batch needs, again and again.
    pub(super) fn note_stall(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let awaits = self.executor.awaits();
        self.paxos.set_lacking(awaits.map(|(at, _)| at).filter(|_| !mutant!(log_is_enough)));
        let Some((at, awaited)) = awaits else {
            self.stall = None;
            return;
        };
        let known = self.stall.filter(|stall| stall.at == at);
        let mut stall = known.unwrap_or(Stall { at, since: now, again: now, asked: 0 });
        if stall.again <= now {
            stall.again = now + ASK_INTERVAL;
            effects.push(Effect::Awaits(awaited));
            if self.executor.is_stalled() && now.since(stall.since) >= SNAPSHOT_AFTER {
                effects.extend(self.next_source(stall.asked).map(|from| Effect::NeedSnapshot { from, instance: at }));
                stall.asked += 1;
            }
        }
        self.stall = Some(stall);
    }

    /// The other voters in turn, those that leave, and whoever leads: the configuration that is known here may be of
    /// long ago, since what is decided behind the batch is learned only so far ahead of it. All its voters may be gone.
    fn next_source(&self, asked: usize) -> Option<ReplicaId> {
        let (configuration, _) = self.paxos.configuration();
        let later = |id: &ReplicaId| !configuration.voters.contains(id) && !mutant!(stalled_asks_old_voters);
        let members = configuration.voters.iter().chain(&configuration.leaving).copied();
        let others = members.chain(self.leadership.leader.filter(later));
        let others: Vec<ReplicaId> = others.filter(|id| *id != self.me).collect();
        others.get(turn(asked, others.len())).copied()
    }
}

/// Whose turn it is among `count`, at question number `asked`. While one of them is asked the next questions go
/// nowhere: in turns, all that go out could be those to one that cannot answer. Multiples of the golden ratio keep no
/// step with anything.
pub(super) fn turn(asked: usize, count: usize) -> usize {
    if mutant!(stall_asks_in_step) {
        return asked % count.max(1);
    }
    let part = (asked as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((part * count as u64) >> 32) as usize
}
