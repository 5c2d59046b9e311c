//! Planted bugs (hazards.md 6). With the feature `mutants`, one protection can be switched off by name, once per
//! process; without it the checks are constants and vanish.

/// The mutants of this crate, by name.
pub const NAMES: &[&str] =
    &["undo_insert", "undo_delete", "undo_put", "undo_forward", "cow_in_place", "range_no_snapshot", "way_unverified"];

#[cfg(feature = "mutants")]
static ACTIVE: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Switches the mutant `name` on, for the rest of the process. Names of other crates' mutants have no effect here.
///
/// # Panics
/// If another mutant is already active.
#[cfg(feature = "mutants")]
pub fn activate(name: &str) {
    let active = ACTIVE.get_or_init(|| name.to_owned());
    assert_eq!(active, name, "one mutant per process");
}

/// Whether `name` is active: by [`activate`], or by `COPPICE_MUTANT` in the environment.
#[cfg(feature = "mutants")]
pub fn active(name: &str) -> bool {
    ACTIVE.get_or_init(|| std::env::var("COPPICE_MUTANT").unwrap_or_default()) == name
}

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

macro_rules! mutant {
    ($name:ident) => {{
        #[cfg(feature = "mutants")]
        let active = crate::mutants::active(stringify!($name));
        #[cfg(not(feature = "mutants"))]
        let active = false;
        active
    }};
}
