//! Faults of a run so far, and those that wait.

use super::copies::Copies;
use super::plan::fault::Moment;
use super::plan::{Nanos, Plan};

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
