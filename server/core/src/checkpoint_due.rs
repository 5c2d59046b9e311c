//! When a group writes a checkpoint: after so much log of its own; when it keeps old log of others; on a full disk.
//!
//! Pure. The log of a node is shared by its groups, and goes from its oldest segment on: a group that writes little,
//! the directory above all, would keep all of it.

/// Log that no group needs for itself may stay up to so many times what a group logs between two checkpoints. Beyond, a
/// group that keeps the oldest segment writes one out of turn.
const SPARE_MAX: u64 = 2;

/// Of the node's log and disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storage {
    /// `checkpoint.log_bytes`.
    pub log_bytes_setting: u64,
    /// Of all segments.
    pub log_bytes: u64,
    /// What the groups need of that, each since the older of its two checkpoints.
    pub log_needed: u64,
    /// The disk is filled to the reserve.
    pub full: bool,
    /// What checkpoints may still take of the disk.
    pub room: u64,
}

/// Of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Bytes logged since its last checkpoint began.
    pub logged: u64,
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
    let settled = needs.alone && !needs.advanced;
    // A second one of the same instance would be no other.
    if (makes_room || keeps_spare && !needs.advanced) && !settled {
        return Some(Due::Alone);
    }
    (needs.logged > measure || needs.owes || keeps_spare && !settled).then_some(Due::Second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORAGE: Storage =
        Storage { log_bytes_setting: 100, log_bytes: 300, log_needed: 100, full: false, room: 1_000 };

    #[test]
    fn a_group_writes_one_after_so_much_log_or_as_much_as_the_last_one_took() {
        let logged = |logged, checkpoint| due(Needs { logged, checkpoint, ..Needs::default() }, STORAGE);
        assert_eq!([logged(100, 0), logged(101, 0)], [None, Some(Due::Second)]);
        assert_eq!([logged(101, 200), logged(201, 200)], [None, Some(Due::Second)]);
        assert_eq!(due(Needs { owes: true, ..Needs::default() }, STORAGE), Some(Due::Second));
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
}
