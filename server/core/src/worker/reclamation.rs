//! A checkpoint that has ended leaves memory behind: what changed nodes were copied from while it was read. Changes
//! free it on their way; here it goes where nothing changes any more, a little at a time, beside everything else.

use std::time::Duration;

use coppice_btree::Key;
use coppice_client::wire::PartitionId;
use coppice_ordering::Time;

use super::{Group, Worker};

/// Inner nodes of a tree that are looked at in one go; of those that let something go a few, since some 66 leaves may
/// be freed with each, while replies wait.
const NODES: usize = 32;

/// Between two goes. The 15,000 inner nodes of 12 M pairs take some seconds.
const PAUSE: Duration = Duration::from_millis(2);

/// Before the next walk, if a snapshot was in the way of this one: one of a query, or one that is being sent.
const PAUSE_SHARED: Duration = Duration::from_secs(1);

/// Walks at most. Somebody who reads all the time would have them go on for ever, and the next changes do it as well.
const WALKS_MAX: u32 = 60;

/// How far it has come in a tree.
pub(super) struct Reclamation {
    from: Key,
    at: Time,
    /// This walk met something that a snapshot shares.
    is_shared: bool,
    walks_left: u32,
}

impl Worker {
    /// A checkpoint of the group has ended, one way or the other.
    pub(super) fn begin_reclamation(&mut self, group: PartitionId) {
        let at = self.now + PAUSE;
        if let Some(group) = self.groups.get_mut(&group) {
            group.reclamation = Some(Reclamation { from: Key::default(), at, is_shared: false, walks_left: WALKS_MAX });
        }
    }

    /// Goes on where it is time to.
    pub(super) fn reclaim(&mut self, now: Time) {
        for group in self.groups.values_mut() {
            let Some(mut reclamation) = group.reclamation.take_if(|reclamation| reclamation.at <= now) else {
                continue;
            };
            let settled = group.replica.executor_mut().settle(&reclamation.from, NODES);
            reclamation.is_shared |= settled.is_shared;
            group.reclamation = reclamation.then(settled.next, now);
        }
    }
}

impl Reclamation {
    /// What comes next, if it does: the walk goes on from a key, or is through.
    fn then(self, next: Option<Key>, now: Time) -> Option<Reclamation> {
        match next {
            Some(from) => Some(Reclamation { from, at: now + PAUSE, ..self }),
            None if self.is_shared && self.walks_left > 1 => Some(Reclamation {
                from: Key::default(),
                at: now + PAUSE_SHARED,
                is_shared: false,
                walks_left: self.walks_left - 1,
            }),
            None => None,
        }
    }
}

impl Group {
    /// When it goes on.
    pub(super) fn reclaims_at(&self) -> Option<Time> {
        self.reclamation.as_ref().map(|reclamation| reclamation.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_met_a_snapshot_begins_anew_a_bounded_number_of_times() {
        let walk =
            |is_shared, walks_left| Reclamation { from: Key::from(*b"12345678"), at: Time(1), is_shared, walks_left };
        let goes_on = walk(true, 2).then(Some(Key::from(*b"22345678")), Time(5)).expect("there is more");
        assert_eq!((goes_on.from.as_slice(), goes_on.at), (&b"22345678"[..], Time(5) + PAUSE));
        assert!(goes_on.is_shared && goes_on.walks_left == 2);
        let anew = goes_on.then(None, Time(9)).expect("another walk");
        assert_eq!((anew.from.as_slice(), anew.at), (&b""[..], Time(9) + PAUSE_SHARED));
        assert!(!anew.is_shared && anew.walks_left == 1);
        assert!(walk(true, 1).then(None, Time(9)).is_none() && walk(false, 9).then(None, Time(9)).is_none());
    }
}
