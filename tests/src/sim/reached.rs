//! Rare conditions by name, and how often a sweep met them (reliability.md E9, G24): a schedule that is never drawn
//! finds nothing.

use coppice_server::replica::Effect;
use coppice_server::request::Reply;

use super::faults::Kind;

/// All names, in the order of the counters.
pub const NAMES: [&str; 33] = [
    "fault: crash",
    "fault: all nodes crash",
    "fault: crash in recovery",
    "fault: pause",
    "fault: cut",
    "fault: cut one way",
    "fault: clock jumps",
    "fault: leader asked to hand over",
    "fault: slow disk",
    "fault: failed flush",
    "fault: I/O error",
    "fault: full disk",
    "fault: disk lost",
    "operator: split",
    "operator: merge",
    "operator: move",
    "operator: the same request again",
    "leader: begins to serve",
    "leader: serves no more",
    "leader: could not hand over",
    "configuration: decided",
    "configuration: a removed replica goes",
    "executor: takes back what it ran ahead",
    "executor: waits for a neighbour's state",
    "border: moved",
    "snapshot: a replica needs one",
    "snapshot: waits for what it gives away",
    "snapshot: installed",
    "ticket: placed is told",
    "query: a part leaves",
    "query: aborted",
    "query: cut by the coordinator",
    "reply: unsure",
];

/// How often each was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached([u64; NAMES.len()]);

impl Default for Reached {
    fn default() -> Self {
        Reached([0; NAMES.len()])
    }
}

impl Reached {
    /// Notes one by name. A name that is not on the list is a bug of the caller.
    pub fn note(&mut self, name: &str) {
        let at = NAMES.iter().position(|known| *known == name).expect("a name of the list");
        self.0[at] += 1;
    }

    /// A fault is made.
    pub fn fault(&mut self, kind: &Kind) {
        let again = |again: &Option<u64>| again.is_some();
        match kind {
            Kind::Crash { again: Some(_), .. } => self.note("fault: crash in recovery"),
            Kind::Crash { .. } => self.note("fault: crash"),
            Kind::CrashAll { .. } => self.note("fault: all nodes crash"),
            Kind::Pause { .. } => self.note("fault: pause"),
            Kind::Cut { one_way: true, .. } => self.note("fault: cut one way"),
            Kind::Cut { .. } => self.note("fault: cut"),
            Kind::Jump { .. } => self.note("fault: clock jumps"),
            Kind::Transfer { .. } => self.note("fault: leader asked to hand over"),
            Kind::SlowDisk { .. } => self.note("fault: slow disk"),
            Kind::FailFlush { .. } => self.note("fault: failed flush"),
            Kind::IoError { .. } => self.note("fault: I/O error"),
            Kind::FullDisk { .. } => self.note("fault: full disk"),
            Kind::Wipe { .. } => self.note("fault: disk lost"),
            Kind::Split { .. } => self.note("operator: split"),
            Kind::Merge { .. } => self.note("operator: merge"),
            Kind::Move { .. } => self.note("operator: move"),
        }
        if let Kind::Split { again: twice, .. } | Kind::Merge { again: twice, .. } | Kind::Move { again: twice, .. } =
            kind
            && again(twice)
        {
            self.note("operator: the same request again");
        }
    }

    /// A replica asks for this.
    pub fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Leading { .. } => self.note("leader: begins to serve"),
            Effect::Following { .. } => self.note("leader: serves no more"),
            Effect::HandoverFailed { .. } => self.note("leader: could not hand over"),
            Effect::Configured { .. } => self.note("configuration: decided"),
            Effect::Dismissed => self.note("configuration: a removed replica goes"),
            Effect::Awaits(_) => self.note("executor: waits for a neighbour's state"),
            Effect::Moved { .. } => self.note("border: moved"),
            Effect::NeedSnapshot { .. } => self.note("snapshot: a replica needs one"),
            Effect::Placed { .. } => self.note("ticket: placed is told"),
            Effect::Part(_) => self.note("query: a part leaves"),
            Effect::Reply { reply: Reply::Unsure { .. }, .. } => self.note("reply: unsure"),
            _ => {}
        }
    }

    /// So many more of one.
    pub fn add(&mut self, name: &str, count: u64) {
        (0..count).for_each(|_| self.note(name));
    }

    /// All of another run.
    pub fn merge(&mut self, other: &Reached) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Names with their counts, the rarest first.
    pub fn rarest(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = NAMES.into_iter().zip(self.0).collect();
        all.sort_by_key(|(name, count)| (*count, *name));
        all
    }
}
