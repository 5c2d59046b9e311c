//! Coverage marks: rare conditions by name, and how often a sweep met them (hazards.md E9, G24). A schedule that is
//! never drawn finds nothing.

mod arrivals;

use coppice_core::request::Reply;
use coppice_core::worker::{Effect, Note, Report};

use crate::plan::fault::Kind;

/// All names, in the order of the counters.
pub const NAMES: [&str; 260] = [
    "fault: crash",
    "fault: a node stops in order",
    "fault: all nodes crash",
    "fault: crash in recovery",
    "fault: pause",
    "fault: cut",
    "fault: cut one way",
    "fault: clock jumps",
    "fault: leader asked to transfer",
    "fault: slow disk",
    "fault: failed flush",
    "fault: I/O error",
    "fault: I/O error of a checkpoint",
    "fault: full disk",
    "fault: disk lost",
    "fault: checkpoint rots",
    "fault: log rots",
    "fault: coordinator and leader do not hear each other",
    "fault: a disk is copied",
    "copy: made",
    "copy: put in the place of the disk",
    "copy: all others start anew before it does",
    "copy: found out",
    "copy: nobody can know, and it is taken away",
    "fence: a node that was not reached is not awaited",
    "fault: clients are hung up on",
    "fault: leader and its group do not hear each other",
    "fault: a client reaches no node",
    "trigger: a configuration has just been decided",
    "trigger: a boundary is moved, and that is not decided",
    "trigger: a ticket is executed, and that is not decided",
    "trigger: a map is executed, and that is not decided",
    "trigger: another one coordinates",
    "trigger: a batch is proposed, and nobody has it",
    "trigger: a boundary is moved, and clients do not hear what came of their writes",
    "start: a rotten log is refused",
    "start: a log that is not its own is refused",
    "frame: damaged and refused",
    "operator: split",
    "operator: merge",
    "operator: move",
    "operator: the same request again",
    "operator: other bounds of sessions",
    "tuning: other batches and window",
    "leader: begins to serve",
    "leader: serves no more",
    "leader: could not transfer",
    "configuration: decided",
    "configuration: a removed replica goes",
    "executor: takes back what it ran ahead",
    "executor: waits for a neighbour's state",
    "boundary: moved",
    "snapshot: a replica needs one",
    "snapshot: waits for what it gives away",
    "snapshot: installed",
    "ticket: placed is told",
    "query: a part leaves",
    "query: aborted",
    "query: cut by the coordinator",
    "reply: unsure",
    "pre-vote: asked of a leader",
    "pre-vote: asked by one behind the trim point",
    "pre-vote: refused",
    "pre-vote: tells of decisions",
    "phase 1: asked in an old ballot",
    "phase 1: asked again",
    "phase 1: asked by a successor",
    "phase 1: asked of a leader",
    "phase 1: asked below the trim point",
    "phase 1: asked by one that is behind",
    "phase 1: answered in an old ballot",
    "phase 1: answered after it was over",
    "phase 1: votes of several ballots",
    "phase 1: votes around a hole",
    "phase 1: tells of decisions",
    "phase 1: tells of a snapshot",
    "phase 1: finds a configuration",
    "phase 1: answered by no member",
    "phase 2: proposed in an old ballot",
    "phase 2: proposed where it is decided",
    "phase 2: proposed what was overwritten",
    "phase 2: proposed again",
    "phase 2: a later ballot overwrites",
    "phase 2: proposed above a gap",
    "phase 2: a hole is filled",
    "phase 2: a configuration is proposed",
    "phase 2: proposed to a leader of an old ballot",
    "phase 2: a vote for an old ballot",
    "phase 2: a vote for what is decided",
    "phase 2: a vote above a gap",
    "phase 2: a vote of no member",
    "preempted: by an unknown ballot",
    "preempted: a leader is told",
    "heartbeat: of an old leader",
    "heartbeat: a leader hears of another one",
    "heartbeat: tells of what is missing",
    "heartbeat: acknowledged in an old ballot",
    "heartbeat: acknowledged by no member",
    "catch-up: below the trim point",
    "catch-up: asked of one that knows no more",
    "catch-up: asked of a removed replica",
    "catch-up: offers a snapshot",
    "catch-up: no news",
    "catch-up: brings a configuration",
    "catch-up: comes to a leader",
    "position: asked of one that does not lead",
    "position: above what is decided here",
    "transfer: in an old ballot",
    "transfer: asked to lead",
    "ticket: the first one of a ballot",
    "ticket: a voided one",
    "ticket: of a change of boundaries",
    "ticket: shared by queries",
    "ticket: placed is told to none that coordinates",
    "ticket: placed is of an old coordinator's",
    "ticket: placed is of a later coordinator's",
    "query: complete",
    "query: refused by the coordinator",
    "ticket: a change of boundaries is released",
    "reply: busy",
    "reply: another partition's",
    "reply: the session is over",
    "reply: the disk is full",
    "reply: no leader is known",
    "reply: another one leads",
    "batch: closed because it is full",
    "batch: closed because the pipe is idle",
    "batch: closed because it is due",
    "batch: the queue is full",
    "phase 2: sent again",
    "phase 2: too far ahead",
    "election: a round is taken",
    "election: phase 1 is over",
    "leader: deaf, and resigns",
    "read: confirmed",
    "catch-up: asked",
    "catch-up: learned",
    "message: for a replica that is not here",
    "leader: transfers for want of room",
    "worker: tells another one of its node",
    "worker: a queue between workers is full",
    "start: a read may fail",
    "start: cut off in recovery",
    "snapshot: an older one is loaded",
    "log: finds no room, and waits",
    "log: a write failed, and the process ends",
    "crash: between two effects of a step",
    "crash: a write is under way",
    "crash: what was not flushed may be lost",
    "crash: the newest map is lost",
    "start: a replica waits for a state from elsewhere",
    "start: the log knows nothing of a snapshot",
    "join: waits for a split to be executed here",
    "join: begins with a snapshot",
    "snapshot: a fetch has ended",
    "change: the leader of the directory looks",
    "split: a child begins",
    "split: executed again, and its child is known",
    "replica: removed from a node",
    "map: asked of another node",
    "query: nobody comes for a part",
    "snapshot: asked of one that is behind",
    "start: goes on with a state from elsewhere",
    "snapshot: does not come in time",
    "client: a boundary lies between the keys of one call",
    "client: a call surely had no effect",
    "client: a lifetime is read",
    "client: a write is repeated after an unknown end",
    "client: an attempt to connect hangs",
    "client: a connection is lost under a call",
    "client: wants an answer no more",
    "query: its client wants no more parts",
    "query: a part waits for its client to connect",
    "ticket: for a partition that is not here",
    "multicast: sent on to who leads now",
    "query: a part finds its client",
    "checkpoint: there is one of this instance",
    "checkpoint: another one of the group is being written",
    "checkpoint: its files went meanwhile",
    "checkpoint: an act fails",
    "checkpoint: the disk has no room",
    "crash: between two acts of a checkpoint's boot",
    "operator: adds a node",
    "operator: drains a node",
    "operator: calls a node back",
    "operator: removes a node",
    "operator: another number of replicas",
    "node: is told its number",
    "node: has joined",
    "node: is called back",
    "node: is drained",
    "node: is to be removed",
    "node: is removed",
    "group: has more voters than it began with",
    "group: has fewer replicas than before",
    "operator: asks for what is under way, or done",
    "operator: is refused",
    "change: a leader is asked to transfer first",
    "change: a configuration is asked for",
    "change: who looked leads no more",
    "liveness: a node stays down",
    "audit: keys expire",
    "catch-up: asked by no member",
    "catch-up: brings what is known",
    "catch-up: tells of a later ballot",
    "checkpoint: the first one of a child",
    "checkpoint: the log below an older one goes",
    "checkpoint: waits for that of a child",
    "client: a write that was repeated is answered",
    "client: an end stays unknown",
    "election: a pre-vote is asked for",
    "executor: runs ahead in a turn of its own",
    "replica: reads what is decided, for nothing gets decided",
    "gate: a reply stands behind a ticket",
    "gate: a stale read does not wait",
    "heartbeat: asks for a lease",
    "heartbeat: of no member",
    "heartbeat: promises a lease",
    "merge: a neighbour is taken in",
    "phase 1: asked by no member",
    "phase 2: a batch of many commands",
    "phase 2: one vote for several instances",
    "phase 2: proposed by no member",
    "phase 2: proposed in a ballot that was not promised here",
    "position: asked of a leader",
    "pre-vote: asked by no member",
    "pre-vote: granted to one that leads already",
    "query: aborted, its coordinator is deposed",
    "query: aborted, not placed in time",
    "query: aborted, not released in time",
    "session: answered from the parent's log",
    "snapshot: installed below what is decided",
    "start: a log without its beginning",
    "start: a replica was removed",
    "start: a checkpoint is rolled forward",
    "start: a newer replica's checkpoint is loaded again",
    "start: executed batches stay in the log",
    "start: a torn tail is cut off",
    "start: is to lead first",
    "quiescence: a leader tells of it",
    "quiescence: a node is lost",
    "a node is told that another one's process ended",
    "client: a range across partitions is one moment without a ticket",
    "client: a range has what its reader holds",
    "client: a range has other pairs than its reader holds",
    "validation: unchanged",
    "validation: changed",
    "collect: one moment",
    "collect: comes to nothing",
    "collect: a replica refuses",
    "collect: waited for too long",
    "transfer: done",
    "transfer: somebody else leads",
    "transfer: not begun, or not in time",
    "stop: others lead",
    "stop: the time is over",
    "by itself: a leader moves",
    "by itself: a replica moves",
    "by itself: a split",
    "by itself: a merge",
];

/// How often each was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; NAMES.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([0; NAMES.len()])
    }
}

impl Coverage {
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
            Kind::Stop { .. } => self.note("fault: a node stops in order"),
            Kind::CrashAll { .. } => self.note("fault: all nodes crash"),
            Kind::Pause { .. } => self.note("fault: pause"),
            Kind::Cut { one_way: true, .. } | Kind::Mute { .. } => self.note("fault: cut one way"),
            Kind::Cut { .. } => self.note("fault: cut"),
            Kind::Jump { .. } => self.note("fault: clock jumps"),
            Kind::Transfer { .. } => self.note("fault: leader asked to transfer"),
            Kind::SlowDisk { .. } => self.note("fault: slow disk"),
            Kind::FailFlush { .. } => self.note("fault: failed flush"),
            Kind::IoError { .. } => self.note("fault: I/O error"),
            Kind::ReadError { .. } => self.note("start: a read may fail"),
            Kind::CheckpointError { .. } => self.note("fault: I/O error of a checkpoint"),
            Kind::FullDisk { .. } => self.note("fault: full disk"),
            Kind::Wipe { .. } => self.note("fault: disk lost"),
            Kind::Copy { .. } => self.note("fault: a disk is copied"),
            Kind::HangUp { .. } => self.note("fault: clients are hung up on"),
            Kind::Sever { .. } => self.note("fault: leader and its group do not hear each other"),
            Kind::Absent { .. } => self.note("fault: a client reaches no node"),
            // Noted where there is something that rots, and who does not hear whom.
            Kind::Rot { .. } | Kind::RotLog { .. } | Kind::Hold { .. } | Kind::Trigger { .. } => {}
            Kind::Split { .. } => self.note("operator: split"),
            Kind::Merge { .. } => self.note("operator: merge"),
            Kind::Move { .. } => self.note("operator: move"),
            Kind::Join => self.note("operator: adds a node"),
            Kind::Drain { .. } => self.note("operator: drains a node"),
            Kind::Undrain { .. } => self.note("operator: calls a node back"),
            Kind::Remove { .. } => self.note("operator: removes a node"),
            Kind::Replicas { .. } => self.note("operator: another number of replicas"),
            Kind::Limits { .. } => self.note("operator: other bounds of sessions"),
            Kind::Tune { .. } => self.note("tuning: other batches and window"),
        }
        if let Kind::Split { again: twice, .. } | Kind::Merge { again: twice, .. } | Kind::Move { again: twice, .. } =
            kind
            && again(twice)
        {
            self.note("operator: the same request again");
        }
    }

    /// A worker wants this.
    pub fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Note(_, Note::Leads(_)) => self.note("leader: begins to serve"),
            Effect::Note(_, Note::Follows(..)) => self.note("leader: serves no more"),
            Effect::Note(_, Note::TransferFailed(_)) => self.note("leader: could not transfer"),
            Effect::Note(_, Note::TransferWhenFull(_)) => self.note("leader: transfers for want of room"),
            Effect::Note(_, Note::Configured(..)) => self.note("configuration: decided"),
            Effect::Note(_, Note::Awaits(_)) => self.note("executor: waits for a neighbour's state"),
            Effect::Note(_, Note::Moved) => self.note("boundary: moved"),
            Effect::Note(_, Note::Placed(_)) => self.note("ticket: placed is told"),
            Effect::Controller(Report::Dismissed(_)) => self.note("configuration: a removed replica goes"),
            Effect::Controller(Report::NeedSnapshot { .. }) => self.note("snapshot: a replica needs one"),
            Effect::Part(_) => self.note("query: a part leaves"),
            Effect::Reply { reply: Reply::Unsure { .. }, .. } => self.note("reply: unsure"),
            _ => {}
        }
    }

    /// So many more of one.
    pub fn add(&mut self, name: &str, count: u64) {
        let at = NAMES.iter().position(|known| *known == name).expect("a name of the list");
        self.0[at] += count;
    }

    /// How often one was met.
    pub fn count(&self, name: &str) -> u64 {
        NAMES.iter().position(|known| *known == name).map_or(0, |at| self.0[at])
    }

    /// All of another run.
    pub fn merge(&mut self, other: &Coverage) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Names with their counts, the rarest first.
    pub fn rarest(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = NAMES.into_iter().zip(self.0).collect();
        all.sort_by_key(|(name, count)| (*count, *name));
        all
    }
}
