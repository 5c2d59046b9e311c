//! A checkpoint that has ended leaves memory behind: what changed nodes were copied from while it was read. Changes
//! free it on their way; here it goes where nothing changes any more, a little at a time, beside everything else.

use std::time::Duration;

use coppice_btree::Key;
use coppice_client::wire::PartitionId;
use coppice_ordering::Time;

use super::{Group, Shard};

/// Inner nodes of a tree that are looked at in one go: what they let go of is freed in less than a millisecond, which
/// is what a reply may wait for.
const NODES: usize = 32;

/// Between two goes. The 15,000 inner nodes of 12 M pairs take two or three seconds.
const PAUSE: Duration = Duration::from_millis(5);

/// How far it has come in a tree.
pub(crate) struct Settling {
    from: Key,
    at: Time,
}

impl Shard {
    /// A checkpoint of the group has ended, one way or the other.
    pub(crate) fn begin_settling(&mut self, group: PartitionId) {
        let at = self.now() + PAUSE;
        if let Some(group) = self.groups.get_mut(&group) {
            group.settling = Some(Settling { from: Key::default(), at });
            self.timer.notify_one();
        }
    }

    /// Goes on where it is time to.
    pub(super) fn settle(&mut self, now: Time) {
        for group in self.groups.values_mut() {
            let Some(Settling { from, .. }) = group.settling.take_if(|settling| settling.at <= now) else { continue };
            let next = group.replica.executor_mut().settle(&from, NODES);
            group.settling = next.map(|from| Settling { from, at: now + PAUSE });
        }
    }

    /// When it goes on.
    pub(super) fn settle_at(&self) -> Option<Time> {
        self.groups.values().filter_map(Group::settle_at).min()
    }
}

impl Group {
    fn settle_at(&self) -> Option<Time> {
        self.settling.as_ref().map(|settling| settling.at)
    }
}
