//! Leadership confirmation (protocol.md 7): which reads wait for what, at the leader and at followers.
//!
//! A read is confirmed by a heartbeat round begun after it arrived, or by a quorum of `Phase2b` in the leader's own
//! ballot for an instance proposed after it. Leases are decided by the composition, which has the clock.

use std::collections::VecDeque;

use crate::ids::{Ballot, HeartbeatRound, Instance, ReadToken, ReplicaId, Time};

/// Entries of [`Confirmations`]. Beyond, local reads share an entry, and questions of followers are dropped (they ask
/// again).
const READS_WAITING_MAX: usize = 1_024;

/// Who waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reader {
    /// `Input::Confirm`, all tokens up to this one.
    Local(ReadToken),
    /// `Input::AskPosition` at the leader itself, with the position of that moment.
    LocalPosition(ReadToken, Instance),
    /// `ReadPosition` of a follower, with the position of that moment.
    Remote { from: ReplicaId, incarnation: u64, ask: u64, position: Instance },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingRead {
    reader: Reader,
    /// Confirmed when this heartbeat round, or a later one, is acknowledged by a quorum.
    round: HeartbeatRound,
    /// Confirmed when an instance above this one is decided by votes in the own ballot.
    after: Instance,
}

/// Reads that wait at a leader, in order of arrival. Both conditions ascend along the queue, so it empties from the
/// front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Confirmations {
    waiting: VecDeque<PendingRead>,
    /// The newest round that a quorum acknowledged.
    pub acked: HeartbeatRound,
    /// The newest instance decided by votes in the own ballot.
    pub decided_own: Instance,
}

impl Confirmations {
    /// A read arrived when `begun` was the newest round and `proposed` the newest instance.
    pub fn push(&mut self, reader: Reader, begun: HeartbeatRound, proposed: Instance) {
        // Only a round begun after the read counts (hazards.md RD2), and only an instance proposed after it (RD3).
        let round = if mutant!(late_ack_counts) || mutant!(round_reused) { begun } else { begun.next() };
        let after = if mutant!(any_decision_confirms) { Instance(self.decided_own.0) } else { proposed };
        let full = self.waiting.len() >= READS_WAITING_MAX;
        if let Reader::Remote { from, incarnation, ask, .. } = reader {
            let same = |w: &PendingRead| {
                matches!(w.reader, Reader::Remote { from: f, incarnation: i, ask: a, .. }
                if (f, i, a) == (from, incarnation, ask))
            };
            // A question repeated is answered once.
            if full || self.waiting.iter().any(same) {
                return;
            }
            // A new question replaces the asker's old one, which it waits for no more.
            self.waiting.retain(|w| !matches!(w.reader, Reader::Remote { from: f, .. } if f == from));
        } else {
            // Tokens ascend, so one entry stands for all reads of a kind that wait for the same; when there are too
            // many, for those that wait for less too. Waiting for more than needed is safe, and so is a later position.
            let kind = std::mem::discriminant(&reader);
            let of_kind = |w: &PendingRead| std::mem::discriminant(&w.reader) == kind;
            let alike = self.waiting.back().is_some_and(|w| of_kind(w) && (w.round, w.after) == (round, after));
            if alike {
                self.waiting.pop_back();
            } else if full && let Some(at) = self.waiting.iter().rposition(of_kind) {
                self.waiting.remove(at);
            }
        }
        self.waiting.push_back(PendingRead { reader, round, after });
    }

    /// The oldest reader, if it is confirmed; `alone`: nobody else can lead when this is called, so all are.
    pub fn pop(&mut self, alone: bool) -> Option<Reader> {
        let (acked, decided_own) = (self.acked, self.decided_own);
        let confirmed =
            |w: &mut PendingRead| alone || acked >= w.round || decided_own > w.after || mutant!(read_unconfirmed);
        Some(self.waiting.pop_front_if(confirmed)?.reader)
    }

    /// Whether somebody waits for a round that is not begun, and for no proposed instance either.
    pub fn wants_round(&self, begun: HeartbeatRound, proposed: Instance) -> bool {
        self.waiting.front().is_some_and(|w| w.after >= proposed)
            && self.waiting.back().is_some_and(|w| w.round > begun)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes everybody out, unconfirmed.
    pub fn drain(&mut self) -> impl Iterator<Item = Reader> + '_ {
        self.waiting.drain(..).map(|w| w.reader)
    }

    pub fn assert_invariants(&self) {
        assert!(self.waiting.len() <= READS_WAITING_MAX + 2);
        let pairs = self.waiting.iter().zip(self.waiting.iter().skip(1));
        assert!(pairs.clone().all(|(a, b)| a.round <= b.round && a.after <= b.after), "{:?}", self.waiting);
    }
}

/// One question to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PositionQuestion {
    pub ask: u64,
    /// The reads that its answer answers.
    pub upto: ReadToken,
    /// The leadership that was asked; another one is asked again.
    pub ballot: Ballot,
    pub retry_at: Time,
}

/// Reads of this replica that wait for a position of the leader's. At most one question is out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PositionQuestions {
    /// The newest read that no question covers yet.
    pub waiting: Option<ReadToken>,
    pub asked: Option<PositionQuestion>,
    pub last_ask: u64,
}

impl PositionQuestions {
    /// The newest read that waits, whether it was asked for or not; forgets all of them.
    pub fn take_all(&mut self) -> Option<ReadToken> {
        let asked = self.asked.take().map(|asked| asked.upto);
        self.waiting.take().max(asked)
    }

    /// An answer arrived: the reads that it answers.
    pub fn answered(&mut self, ask: u64) -> Option<ReadToken> {
        let asked = self.asked.take_if(|asked| asked.ask == ask)?;
        Some(asked.upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(confirmations: &mut Confirmations) -> Vec<Reader> {
        std::iter::from_fn(|| confirmations.pop(false)).collect()
    }

    #[test]
    fn a_read_waits_for_a_round_or_an_instance_that_came_after_it() {
        let mut confirmations = Confirmations::default();
        confirmations.push(Reader::Local(ReadToken(1)), HeartbeatRound(4), Instance(10));
        confirmations.push(Reader::Local(ReadToken(2)), HeartbeatRound(4), Instance(10));
        confirmations.push(Reader::Local(ReadToken(3)), HeartbeatRound(5), Instance(11));
        (confirmations.acked, confirmations.decided_own) = (HeartbeatRound(4), Instance(10));
        assert_eq!(drain(&mut confirmations), []);
        confirmations.decided_own = Instance(11);
        assert_eq!(drain(&mut confirmations), [Reader::Local(ReadToken(2))]);
        confirmations.acked = HeartbeatRound(6);
        assert_eq!(drain(&mut confirmations), [Reader::Local(ReadToken(3))]);
    }

    #[test]
    fn waiting_reads_are_bounded_and_none_is_forgotten() {
        let mut confirmations = Confirmations::default();
        for k in 1..10_000 {
            confirmations.push(Reader::Local(ReadToken(k)), HeartbeatRound(k), Instance(k));
            confirmations.push(Reader::LocalPosition(ReadToken(k), Instance(k)), HeartbeatRound(k), Instance(k));
            let remote = Reader::Remote { from: ReplicaId(9), incarnation: 1, ask: k, position: Instance(k) };
            confirmations.push(remote, HeartbeatRound(k), Instance(k));
            confirmations.assert_invariants();
        }
        confirmations.acked = HeartbeatRound(10_000);
        let readers = drain(&mut confirmations);
        assert!(readers.contains(&Reader::Local(ReadToken(9_999))));
        assert!(readers.contains(&Reader::LocalPosition(ReadToken(9_999), Instance(9_999))));
    }
}
