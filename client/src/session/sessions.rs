//! The sessions that this client opened, and the numbers it used in each (protocol.md 6).
//!
//! [`SessionNumbers`] is the client's mirror of a row in the partition's session table: which numbers wait for an
//! answer, so that every pack can say what was acknowledged. Several partitions share a session after a split.

use std::collections::VecDeque;

use crate::time::Time;
use crate::wire::SessionId;

/// Unknown numbers kept unacknowledged per session, so that they can be resumed; the oldest is given up first.
const KEPT_MAX: usize = 16;

/// Names a session of [`Sessions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SessionKey(u32);

#[derive(Clone, Debug)]
struct SessionNumbers {
    id: SessionId,
    /// Numbers in ascending order; `true`: answered. The first one is not answered.
    numbers: VecDeque<(u64, bool)>,
    /// Numbers whose outcome is unknown to the caller, with the end of their keeping.
    kept: VecDeque<(u64, Time)>,
    /// The partition's table has dropped it.
    expired: bool,
}

/// All sessions of this client.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    sessions: Vec<SessionNumbers>,
    /// The last number used, in any session: numbers are the client's.
    last_number: u64,
}

impl Sessions {
    /// A session that was just opened, or the one of a token.
    pub fn insert(&mut self, id: SessionId) -> SessionKey {
        let known = self.sessions.iter().position(|session| session.id == id);
        // A session that nobody needs makes room: sessions expire seldom, so this stays short.
        let free = || self.sessions.iter().position(|session| session.expired && session.numbers.is_empty());
        let session = SessionNumbers { id, numbers: VecDeque::new(), kept: VecDeque::new(), expired: false };
        if let Some(at) = known {
            return SessionKey(at as u32);
        }
        match free() {
            Some(at) => {
                self.sessions[at] = session;
                SessionKey(at as u32)
            }
            None => {
                self.sessions.push(session);
                SessionKey((self.sessions.len() - 1) as u32)
            }
        }
    }

    pub fn id(&self, key: SessionKey) -> SessionId {
        self.sessions[key.0 as usize].id
    }

    pub fn is_expired(&self, key: SessionKey) -> bool {
        self.sessions[key.0 as usize].expired
    }

    pub fn expire(&mut self, key: SessionKey) {
        self.sessions[key.0 as usize].expired = true;
    }

    /// The lowest number that is not acknowledged: what a pack says before it is given further numbers.
    pub fn lowest_unacknowledged(&self, key: SessionKey) -> u64 {
        self.sessions[key.0 as usize].numbers.front().map_or(self.last_number + 1, |&(number, _)| number)
    }

    /// The number that [`Sessions::next_number`] would use.
    pub fn upcoming_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Uses the next number in this session.
    pub fn next_number(&mut self, key: SessionKey) -> u64 {
        self.last_number += 1;
        self.sessions[key.0 as usize].numbers.push_back((self.last_number, false));
        self.last_number
    }

    /// Takes a number of an earlier life of the client up again.
    pub fn resume_number(&mut self, key: SessionKey, number: u64) {
        // Never give a number twice in one session.
        self.last_number = self.last_number.max(number);
        let session = &mut self.sessions[key.0 as usize];
        session.kept.retain(|&(kept, _)| kept != number);
        match session.numbers.binary_search_by_key(&number, |&(number, _)| number) {
            Ok(at) => session.numbers[at].1 = false,
            Err(at) => session.numbers.insert(at, (number, false)),
        }
    }

    /// The caller has its answer: the number is acknowledged from the next pack on.
    pub fn done(&mut self, key: SessionKey, number: u64) {
        let numbers = &mut self.sessions[key.0 as usize].numbers;
        // Answers come mostly in order.
        if let Some(front) = numbers.front_mut().filter(|front| front.0 == number) {
            front.1 = true;
        } else if let Ok(at) = numbers.binary_search_by_key(&number, |&(number, _)| number) {
            numbers[at].1 = true;
        }
        while numbers.front().is_some_and(|&(_, done)| done) {
            numbers.pop_front();
        }
    }

    /// The caller was told that the outcome is unknown: the number stays unacknowledged for a while.
    pub fn keep(&mut self, key: SessionKey, number: u64, until: Time) {
        let kept = &mut self.sessions[key.0 as usize].kept;
        kept.push_back((number, until));
        if kept.len() > KEPT_MAX
            && let Some((oldest, _)) = kept.pop_front()
        {
            self.done(key, oldest);
        }
    }

    /// Gives up what was kept long enough.
    pub fn forget_kept(&mut self, now: Time) {
        for at in 0..self.sessions.len() {
            while let Some(&(number, until)) = self.sessions[at].kept.front()
                && until <= now
            {
                self.sessions[at].kept.pop_front();
                self.done(SessionKey(at as u32), number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PartitionId;

    #[test]
    fn the_lowest_unacknowledged_number_follows_the_answers() {
        let mut sessions = Sessions::default();
        let a = sessions.insert(SessionId { partition: PartitionId(1), instance: 5, index: 0 });
        let b = sessions.insert(SessionId { partition: PartitionId(2), instance: 5, index: 0 });
        assert_eq!(sessions.lowest_unacknowledged(a), 1);
        let numbers: Vec<u64> = [a, b, a, a].map(|session| sessions.next_number(session)).to_vec();
        assert_eq!(numbers, [1, 2, 3, 4]);
        sessions.done(a, 3);
        assert_eq!((sessions.lowest_unacknowledged(a), sessions.lowest_unacknowledged(b)), (1, 2));
        sessions.done(a, 1);
        assert_eq!(sessions.lowest_unacknowledged(a), 4);
        sessions.done(a, 4);
        sessions.done(b, 2);
        assert_eq!((sessions.lowest_unacknowledged(a), sessions.lowest_unacknowledged(b)), (5, 5));
    }

    #[test]
    fn an_unknown_number_is_kept_for_a_while_and_only_so_many() {
        let mut sessions = Sessions::default();
        let session = sessions.insert(SessionId::default());
        for _ in 0..KEPT_MAX as u64 + 1 {
            let number = sessions.next_number(session);
            sessions.keep(session, number, Time::from_millis(number));
        }
        assert_eq!(sessions.lowest_unacknowledged(session), 2);
        sessions.forget_kept(Time::from_millis(4));
        assert_eq!(sessions.lowest_unacknowledged(session), 5);
        sessions.resume_number(session, 5);
        sessions.forget_kept(Time::from_millis(1_000));
        assert_eq!(sessions.lowest_unacknowledged(session), 5);
        sessions.done(session, 5);
        assert_eq!(sessions.lowest_unacknowledged(session), KEPT_MAX as u64 + 2);
    }
}
