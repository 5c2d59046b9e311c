//! Reads go on where nothing is decided any more: disks of a majority are full, or very slow (protocol.md 7).
//!
//! A read is executed as last executed and leaves when what was last executed is decided. Behind a write that finds no
//! majority it would wait for as long as that does, although nobody was told of the write. So once nothing has been
//! decided for [`STALL_TIMEOUT`] while something waits, reads are executed on the decided state. They are held to the
//! rest as ever: leadership confirmed by a round begun after they came, or a position told by such a leader, and the
//! gate for the tickets before them.
//!
//! That is linearizable. A write whose outcome was told before the read came is decided and executed at the leader that
//! the round confirms: it told it itself, or an earlier leader did, and then Phase 1 found it and the leader served
//! nothing before it had executed it. Nobody decides an instance of a ballot before its leader does, so no read that
//! was answered elsewhere saw more either; and a later leader has answered nobody before the round was confirmed.

use std::time::Duration;

use coppice_ordering::{Instance, Time};

use super::{Effect, Replica};
use crate::machine::Machine;
use crate::request::Refusal;

/// So long a read waits for what it saw to be decided: a hundred flushes of a slow disk, and well below any client's
/// deadline.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Since when nothing is decided, and what is read meanwhile.
#[derive(Default)]
pub(super) struct StalledReads {
    /// What was executed behind this decided instance has waited for its decision since then.
    waits: Option<(Instance, Time)>,
    /// The state of that instance, once that has lasted for [`STALL_TIMEOUT`].
    decided: Option<Machine>,
}

impl StalledReads {
    /// When a tick is next wanted.
    pub fn ends(&self) -> Option<Time> {
        let (_, since) = self.waits.filter(|_| self.decided.is_none())?;
        Some(since + STALL_TIMEOUT)
    }

    /// The state to read, if it is that of `decided` and not that of what was last executed.
    pub fn state(&self, decided: Instance) -> Option<&Machine> {
        let (at, _) = self.waits?;
        self.decided.as_ref().filter(|_| at == decided)
    }
}

impl Replica {
    /// Whether reads are answered from the decided state, because nothing was decided for long.
    pub fn reads_are_stalled(&self) -> bool {
        self.stalled_reads.state(self.executor.decided()).is_some()
    }

    /// Looks at the end of a step whether what waits for its decision still moves.
    pub(super) fn check_stalled_reads(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let decided = self.executor.decided();
        if self.executor.last_executed() == decided {
            self.stalled_reads = StalledReads::default();
            return;
        }
        let since = match self.stalled_reads.waits {
            Some((at, since)) if at == decided => since,
            _ => {
                self.stalled_reads = StalledReads { waits: Some((decided, now)), decided: None };
                now
            }
        };
        if self.stalled_reads.decided.is_some() || now < since + STALL_TIMEOUT {
            return;
        }
        let state = match mutant!(patient_sees_tip) {
            true => self.executor.machine().view(),
            false => self.executor.decided_view(),
        };
        self.stalled_reads.decided = Some(state);
        self.read_again_from(decided.next(), effects);
        // Asked again, they are answered.
        self.outputs.refuse_reads_from(decided.next(), Refusal::Busy("what the replica read is not decided"), effects);
    }
}
