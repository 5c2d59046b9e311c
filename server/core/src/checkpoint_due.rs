//! When a group writes a checkpoint: after so much log of its own; when a start of the node would have to replay too
//! much; when it keeps old log of others; on a full disk.
//!
//! The log of a node is shared by its groups, and goes from its oldest segment on: a group that writes little, the
//! directory above all, would keep all of it.

use coppice_client::wire::PartitionId;

/// Log that no group needs for itself may stay up to so many times what a group logs between two checkpoints. Beyond, a
/// group that keeps the oldest segment writes one out of turn.
const SPARE_MAX: u64 = 2;

/// A node may have to replay as much as its checkpoints hold, divided by this: reading these takes longer then, and
/// more checkpoints would take the disk from the log.
const REPLAY_SHARE: u64 = 4;

/// Checkpoints hurry so many times at most: beyond, they would take the processors from those who write.
const HURRY_MAX: u64 = 4;

/// What a start of the node would replay now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replays {
    /// Bytes of the log, of all groups.
    pub bytes: u64,
    /// The group with the most of it.
    pub largest: Option<PartitionId>,
    /// Bytes of the newest checkpoints of all groups.
    pub checkpoints: u64,
}

impl Replays {
    /// Of these groups: the bytes that each logged since its newest checkpoint, and those of that.
    pub fn of(groups: impl Iterator<Item = (PartitionId, u64, u64)>) -> Replays {
        let (mut all, mut most) = (Replays::default(), 0);
        for (group, bytes, checkpoint) in groups {
            (all.bytes, all.checkpoints) = (all.bytes + bytes, all.checkpoints + checkpoint);
            if bytes > most {
                (most, all.largest) = (bytes, Some(group));
            }
        }
        all
    }
}

/// Of the node's log and disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storage {
    /// `checkpoint.log_bytes`.
    pub log_bytes_setting: u64,
    pub replays: Replays,
    /// Of all segments.
    pub log_bytes: u64,
    /// What the groups need of that, each since the older of its two checkpoints.
    pub log_needed: u64,
    /// The disk is filled to the reserve.
    pub full: bool,
    /// What checkpoints may still take of the disk.
    pub room: u64,
}

impl Storage {
    /// What a start of the node may have to replay.
    fn replays_max(&self) -> u64 {
        self.log_bytes_setting.max(self.replays.checkpoints / REPLAY_SHARE)
    }

    /// How many times as fast as `checkpoint.rate` checkpoints are written: faster while the log runs away from them.
    pub fn hurry(&self) -> u64 {
        (self.replays.bytes / self.replays_max().max(1)).clamp(1, HURRY_MAX)
    }
}

/// Of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Bytes logged since its last checkpoint began.
    pub logged: u64,
    /// Replaying it takes longest of all groups of the node.
    pub replays_most: bool,
    /// Bytes of its last checkpoint; 0: unknown.
    pub checkpoint: u64,
    /// Bytes of its keys and values.
    pub data: u64,
    /// Its batches keep the oldest segment of the log.
    pub pins: bool,
    /// It took in a neighbour, and that is in memory only.
    pub owes: bool,
    /// Something was decided since its last checkpoint.
    pub advanced: bool,
    /// Its last checkpoint stands alone.
    pub alone: bool,
}

/// What is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A checkpoint; the one before it is kept, and the log above that.
    Second,
    /// A checkpoint, checked once more, that does without an older one: the log goes up to it.
    Alone,
}

/// Whether the group writes a checkpoint now.
pub fn due(needs: Needs, storage: Storage) -> Option<Due> {
    let measure = storage.log_bytes_setting.max(needs.checkpoint);
    let spare = storage.log_bytes.saturating_sub(storage.log_needed);
    let keeps_spare = needs.pins && spare > measure.saturating_mul(SPARE_MAX);
    // Old log goes, or what was deleted since the last one.
    let gives_room = needs.pins || needs.data.saturating_mul(2) < needs.checkpoint;
    let makes_room = storage.full && gives_room && needs.data < storage.room;
    let shortens =
        needs.replays_most && storage.replays.bytes > storage.replays_max() && !mutant!(replays_without_bound);
    let settled = needs.alone && !needs.advanced;
    // A second one of the same instance would be no other.
    if (makes_room || keeps_spare && !needs.advanced) && !settled {
        return Some(Due::Alone);
    }
    (needs.logged > measure || shortens || needs.owes || keeps_spare && !settled).then_some(Due::Second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Replays = Replays { bytes: 0, largest: None, checkpoints: 0 };
    const STORAGE: Storage =
        Storage { log_bytes_setting: 100, replays: NOTHING, log_bytes: 300, log_needed: 100, full: false, room: 1_000 };

    #[test]
    fn a_group_writes_one_after_so_much_log_or_as_much_as_the_last_one_took() {
        let logged = |logged, checkpoint| due(Needs { logged, checkpoint, ..Needs::default() }, STORAGE);
        assert_eq!([logged(100, 0), logged(101, 0)], [None, Some(Due::Second)]);
        assert_eq!([logged(101, 200), logged(201, 200)], [None, Some(Due::Second)]);
        assert_eq!(due(Needs { owes: true, ..Needs::default() }, STORAGE), Some(Due::Second));
    }

    #[test]
    fn checkpoints_hurry_while_a_start_would_replay_more_than_its_bound() {
        let hurry = |bytes, checkpoints| {
            let replays = Replays { bytes, checkpoints, ..NOTHING };
            Storage { replays, ..STORAGE }.hurry()
        };
        assert_eq!([0, 100, 199, 200, 350, 9_000].map(|bytes| hurry(bytes, 0)), [1, 1, 1, 2, 3, 4]);
        assert_eq!(hurry(600, 1_200), 2, "a quarter of the checkpoints is the bound");
    }

    #[test]
    fn what_a_node_replays_is_bounded_by_the_group_that_has_most_of_it() {
        let of = |first, second, checkpoint| {
            let [p1, p2] = [1, 2].map(PartitionId);
            let replays = Replays::of([(p1, first, checkpoint), (p2, second, 0)].into_iter());
            let storage = Storage { replays, ..STORAGE };
            [(p1, first), (p2, second)].map(|(group, logged)| {
                let replays_most = replays.largest == Some(group);
                due(Needs { logged, replays_most, ..Needs::default() }, storage).is_some()
            })
        };
        assert_eq!([of(60, 40, 0), of(60, 41, 0), of(50, 60, 0)], [[false, false], [true, false], [false, true]]);
        // Reading large checkpoints takes its time too.
        assert_eq!([of(60, 60, 480), of(60, 61, 480)], [[false, false], [false, true]]);
        assert_eq!(Replays::of([].into_iter()), NOTHING);
    }

    #[test]
    fn a_group_that_logs_little_does_not_keep_the_log_of_others() {
        let slow = Needs { logged: 1, pins: true, advanced: true, ..Needs::default() };
        let grown = Storage { log_bytes: 301, ..STORAGE };
        assert_eq!([due(slow, STORAGE), due(slow, grown)], [None, Some(Due::Second)]);
        assert_eq!(due(Needs { pins: false, ..slow }, grown), None);
        // What the others need stays anyway.
        assert_eq!(due(slow, Storage { log_needed: 101, ..grown }), None);
        // What is dear to write is written more rarely.
        assert_eq!(due(Needs { checkpoint: 101, ..slow }, grown), None);
        // There will be no second one, so the first does without.
        let idle = Needs { advanced: false, ..slow };
        assert_eq!(due(idle, grown), Some(Due::Alone));
        assert_eq!(due(Needs { alone: true, ..idle }, grown), None);
    }

    #[test]
    fn on_a_full_disk_deletes_make_room() {
        let full = Storage { full: true, ..STORAGE };
        let deleted = Needs { logged: 1, checkpoint: 100, data: 49, advanced: true, ..Needs::default() };
        assert_eq!([due(deleted, STORAGE), due(deleted, full)], [None, Some(Due::Alone)]);
        assert_eq!(due(Needs { data: 50, ..deleted }, full), None, "little would be won");
        assert_eq!(due(Needs { data: 50, pins: true, ..deleted }, full), Some(Due::Alone));
        assert_eq!(due(Needs { data: 2_000, pins: true, ..deleted }, full), None, "it would not fit");
        assert_eq!(due(Needs { alone: true, advanced: false, ..deleted }, full), None, "it has been done");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn planted_bugs_are_caught() {
        let test = "checkpoint_due::tests::what_a_node_replays_is_bounded_by_the_group_that_has_most_of_it";
        planted::assert_caught("replays_without_bound", test);
    }
}
