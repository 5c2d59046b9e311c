//! What went wrong in a run so far, what waits for its moment, and the copies of disks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use coppice_client::map::PartitionMap;
use coppice_testkit::random::Random;

use super::known::Aside;
use super::plan::fault::{Kind, Moment};
use super::plan::{Nanos, Plan, Purpose, random};
use super::store::Store;

/// Faults of a run so far, and those that wait.
pub struct Faults {
    pub made: u64,
    /// Processes that ended before everything was healed.
    pub crashes: u64,
    /// No further fault is made.
    pub healed: bool,
    /// Nodes that do not come back before the audit, one bit each.
    pub stays_down: u32,
    pub triggers: Vec<Trigger>,
    pub copies: Copies,
}

impl Faults {
    /// None yet.
    pub fn new(plan: &Plan) -> Faults {
        let (triggers, copies) = (Vec::new(), Copies::new(plan));
        Faults { made: 0, crashes: 0, healed: false, stays_down: 0, triggers, copies }
    }
}

/// Waits for a moment of any group of the kind that it is about.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub moment: Moment,
    /// Links are cut for so long; or its process ends, and is down for so long.
    pub length: Nanos,
    pub crash: bool,
    pub until: Nanos,
}

/// A disk, and what else is on it.
pub struct Disk {
    pub store: Store,
    pub maps: VecDeque<Arc<PartitionMap>>,
    pub file: Option<Vec<u8>>,
    pub met: BTreeSet<(usize, u64)>,
}

/// A copy that was made.
pub struct DiskCopy {
    pub node: usize,
    /// The disk that is not in use: the copy, then the one that it was made of.
    pub other: Disk,
    pub aside: Aside,
    pub down: Nanos,
    /// Whether all other nodes start anew meanwhile.
    pub others_restart: bool,
}

/// The copies of disks of a run.
pub struct Copies {
    /// Whether any may be made: else nodes do not greet each other.
    pub drawn: bool,
    pub copied: Option<DiskCopy>,
    pub random: Random,
}

impl Copies {
    /// Of this plan.
    pub fn new(plan: &Plan) -> Copies {
        let drawn = plan.faults.iter().any(|fault| matches!(fault.kind, Kind::Copy { .. }));
        Copies { drawn, copied: None, random: random(plan.seed, Purpose::Copies, 0) }
    }
}
