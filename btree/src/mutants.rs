//! Planted bugs (hazards.md 6). With the feature `mutants`, one protection can be switched off by name, once per
//! process; without it the checks are constants and vanish.

/// The mutants of this crate, by name.
pub const NAMES: &[&str] = &[
    "undo_insert",
    "undo_delete",
    "undo_put",
    "undo_forward",
    "update_undo_forgets",
    "cow_in_place",
    "range_no_snapshot",
    "hint_unverified",
    "prefix_unverified",
];

/// A cell through which the mutant `range_no_snapshot` shows cursors the moving tree.
#[cfg(feature = "mutants")]
#[derive(Clone, Default)]
pub(crate) struct Live(std::sync::Arc<std::sync::Mutex<Option<crate::snapshot::Snapshot>>>);

#[cfg(feature = "mutants")]
impl Live {
    pub(crate) fn set(&self, now: &crate::snapshot::Snapshot) {
        *self.0.lock().expect("no panic while the cell is locked") = Some(now.clone());
    }

    pub(crate) fn get(&self) -> Option<crate::snapshot::Snapshot> {
        self.0.lock().expect("no panic while the cell is locked").clone()
    }
}
