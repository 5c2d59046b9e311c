//! The bounds of the session table, by which sessions end, are replicated state (protocol.md 6): whoever leads puts
//! those of the cluster's settings into the log. A node learns of a setting at a time of its own, the log has one place
//! for it.

use std::time::Duration;

use coppice_ordering::Time;

use super::Replica;
use super::step::Effect;
use crate::machine::entry;
use crate::request::Origin;
use crate::sessions::SessionLimits;

/// Reads that one replica holds at most. Beyond: `Busy`.
pub const READS_MAX: usize = 16_384;

/// Answers that the gate holds at most before requests are refused.
pub const GATE_MAX: usize = 16_384;

/// Bytes of answers to packs that the gate holds at most before requests are refused.
pub const GATE_BYTES_MAX: usize = 64 << 20;

/// What was proposed and is not executed is proposed again after this; twice in the log it does no harm.
const LIMITS_INTERVAL: Duration = Duration::from_secs(1);

/// What this node knows of the cluster's bounds.
#[derive(Default)]
pub(super) struct Limits {
    /// Unknown until the directory has told.
    wanted: Option<SessionLimits>,
    /// They were proposed, and are proposed again at this time.
    again: Option<Time>,
}

impl Limits {
    /// When a tick is next wanted.
    pub fn again(&self) -> Option<Time> {
        self.again
    }
}

impl Replica {
    /// These are the cluster's bounds of a session table, as far as this node knows. From the next step on.
    pub fn set_session_limits(&mut self, limits: SessionLimits) {
        self.proposals.limits.wanted = Some(limits);
        #[cfg(feature = "mutants")]
        if let crate::machine::Machine::Partition(partition) = self.executor.machine_mut()
            && mutant!(limits_unlogged)
        {
            partition.set_session_limits(limits);
        }
    }

    /// Proposes them where this replica leads and its state has others.
    pub(super) fn propose_limits(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let partition = self
            .executor
            .machine()
            .partition()
            .filter(|partition| self.leadership.is_own && partition.sealed().is_none());
        let current = partition.map(|partition| partition.session_limits());
        let Some(wanted) =
            self.proposals.limits.wanted.filter(|wanted| current.is_some_and(|current| current != *wanted))
        else {
            self.proposals.limits.again = None;
            return;
        };
        if self.proposals.limits.again.is_none_or(|again| again <= now) {
            self.proposals.limits.again = Some(now + LIMITS_INTERVAL);
            self.submit(now, Origin::Nobody, entry::limits(&wanted), (1, 1), effects);
        }
    }
}
