//! How many sessions a partition keeps, of what size, and for how long.

use serde::{Deserialize, Serialize};

use super::mix;

/// A session's `last_used` moves once it is behind by one of so many parts of the expiry, so that a busy session rarely
/// changes its place in the order of use: it ends too early by 0.1 % of the expiry at most.
const USE_STEPS: u64 = 1_000;

/// And by this many instances at most.
const USE_STEP_MAX: u64 = 1_024;

/// Bounds of a session table. Sessions end by them, so they are replicated state themselves: they change by an entry of
/// the log (protocol.md 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionLimits {
    /// A session that ordered nothing for this many instances ends.
    pub expiry_instances: u64,
    /// Sessions per partition; opening one more ends the one that was used least recently.
    pub sessions_max: usize,
    /// Bytes of unacknowledged answers per session; beyond, the oldest answers are forgotten (never executed again).
    pub bytes_max: usize,
    /// The same of all sessions together; beyond, opening one ends those that were used least recently. A client that
    /// went without a word leaves its last answer behind, and that may hold a large value.
    pub table_bytes_max: usize,
}

impl SessionLimits {
    /// A use moves `last_used` once that is so far behind.
    pub(super) fn use_step(&self) -> u64 {
        (self.expiry_instances / USE_STEPS).min(USE_STEP_MAX)
    }

    /// A digest: equal limits have equal digests.
    pub fn digest(&self) -> u64 {
        let sizes = [self.sessions_max as u64, self.bytes_max as u64, self.table_bytes_max as u64];
        sizes.into_iter().fold(self.expiry_instances, mix)
    }
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            expiry_instances: 1_000_000,
            sessions_max: 100_000,
            bytes_max: 2 << 20,
            table_bytes_max: 64 << 20,
        }
    }
}

/// When a use counts as one. Planted: where the step began that it falls in, whatever the expiry.
pub(super) fn used_at(instance: u64) -> u64 {
    if mutant!(used_in_steps) { instance - instance % USE_STEP_MAX } else { instance }
}
