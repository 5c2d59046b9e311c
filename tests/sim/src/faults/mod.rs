//! What goes wrong, as a list that is drawn before the run: shrinking takes items out of it.

mod apply;
pub mod scenarios;
pub mod triggers;

use coppice_testkit::random::Random;
use serde::{Deserialize, Serialize};

use crate::copies::Copies;
use crate::members::{join, leave, resize};
use crate::plan::{MS, Nanos, Plan, Purpose, random};
use scenarios::{belated, hold, isolate, rot, rot_log, sever, there_and_back, trigger, upset, wipe};
use triggers::{Moment, Trigger};

/// Faults are drawn for so much simulated time; the safety phase is never longer.
pub const SAFETY_MAX: Nanos = 20_000 * MS;

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins.
    pub at: Nanos,
    /// What it is.
    pub kind: Kind,
}

/// Who is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    Node(usize),
    /// The node that leads this group then.
    Leader(u32),
    /// The node that leads the partition of this key then.
    Holder(u32),
    /// The process that was started last.
    Newest,
}

/// A kind of fault with what was drawn for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A node ends between two of its effects, so many from now, and starts again.
    Crash {
        who: Target,
        /// Effects that are still carried out.
        effects: u32,
        /// How long it is down.
        down: Nanos,
        /// Its start is cut off after so many effects on its disk, once.
        again: Option<u64>,
    },
    /// A node stops in order: others lead what it led, as far as they can, and it is started again.
    Stop {
        who: Target,
        /// How long it is down.
        down: Nanos,
    },
    /// All nodes end at once.
    CrashAll {
        /// How long they are down.
        down: Nanos,
    },
    /// A node stands still.
    Pause { who: Target, length: Nanos },
    /// Links are cut.
    Cut {
        /// One side of the cut: a node of the first side and one of the other do not hear each other.
        side: u32,
        /// A node that stands alone, beside `side`.
        alone: Option<Target>,
        /// Whether the first side is still heard by the other.
        one_way: bool,
        length: Nanos,
    },
    /// A node is heard by nobody, and hears all.
    Mute { who: Target, length: Nanos },
    /// A node's clock jumps ahead.
    Jump { who: Target, by: Nanos },
    /// A leader is asked to transfer its leadership.
    Transfer {
        group: u32,
        /// To the voter of this number, counted from the lowest.
        to: u32,
    },
    /// Flushes of a node take longer.
    SlowDisk {
        who: Target,
        /// How much longer each.
        by: Nanos,
        length: Nanos,
    },
    /// The next flush of a node fails, and the one after it would not.
    FailFlush { who: Target },
    /// The disk of a node fails at the so manieth effect from now on; its process stops.
    IoError {
        who: Target,
        /// Effects that succeed before.
        after: u64,
    },
    /// The so manieth act on a node's checkpoints from now on fails; its process goes on.
    CheckpointError {
        who: Target,
        /// Acts that succeed before.
        after: u64,
    },
    /// A node's process ends, and the so manieth read of its next start fails: it ends again.
    ReadError {
        who: Target,
        /// Reads that succeed before.
        after: u64,
        /// How long it is down.
        down: Nanos,
    },
    /// A partition is cut at a key.
    Split {
        /// Number of the key.
        key: u32,
        /// The same request comes again after so long.
        again: Option<Nanos>,
    },
    /// The partition of a key is merged into a neighbour, after a move beside it if it is elsewhere.
    Merge {
        /// Number of the key.
        key: u32,
        /// Into the neighbour behind it.
        up: bool,
        /// The same request comes again after so long.
        again: Option<Nanos>,
    },
    /// A replica moves to a node that has none of its group.
    Move {
        /// The directory, or else the partition of this key.
        key: Option<u32>,
        /// Which of its replicas goes, counted from the lowest.
        gone: u32,
        /// Which of the other nodes gets one, counted from the lowest.
        to: u32,
        /// The same request comes again after so long.
        again: Option<Nanos>,
    },
    /// Another process is started, and becomes a node.
    Join,
    /// A node is to hold nothing any more.
    Drain { node: usize },
    /// A drained node may hold something again.
    Undrain { node: usize },
    /// A node is to be one no more.
    Remove { node: usize },
    /// Each group is to have so many voters.
    Replicas { count: u32 },
    /// One group gets a replica more, or loses one.
    Resize {
        /// The directory, or else the partition of this key.
        key: Option<u32>,
        /// One more.
        up: bool,
        /// Draws where.
        pick: u32,
    },
    /// A node's disk is lost; another process takes its place, as a new node.
    Wipe { node: usize },
    /// A byte of the newest checkpoint that a node has of one of its groups changes, if it has an older one too; then
    /// its process ends, and starts again.
    Rot {
        who: Target,
        /// Which group, and which byte.
        at: u64,
        /// How long it is down.
        down: Nanos,
    },
    /// A part of a node's log changes that it has flushed, and that a later mark proves: a flipped bit, a sector of
    /// zeros, or a block of it at another place. The node finds it when it starts.
    RotLog {
        who: Target,
        /// Draws what, and where.
        at: u64,
        /// Its process ends at once, and is down for so long; else it goes on.
        down: Option<Nanos>,
    },
    /// The leader of a partition does not hear the coordinator, or is not heard by it: tickets are placed elsewhere and
    /// not there.
    Hold {
        group: u32,
        /// The coordinator does not hear the leader, rather than the leader the coordinator.
        mute: bool,
        length: Nanos,
    },
    /// The leader of a group and its other replicas do not hear each other; everybody else does.
    Sever {
        /// The node that leads it.
        who: Target,
        /// Only the leader does not hear.
        one_way: bool,
        length: Nanos,
    },
    /// A node's process ends, its disk is copied, and it goes on; later the copy takes the place of the disk, until
    /// somebody says so.
    Copy {
        who: Target,
        /// The node goes on for so long at least.
        after: Nanos,
        /// It is down for so long each time.
        down: Nanos,
        /// All other nodes start anew before the copy does.
        others_restart: bool,
    },
    /// All connections of clients to a node break.
    HangUp { who: Target },
    /// An operator sets other bounds of the session tables.
    Limits {
        /// Sessions per partition.
        sessions_max: usize,
        /// A session that ordered nothing for so many instances ends.
        expiry_instances: u64,
    },
    /// Tuning of a leader sets other batches and another window for its group.
    Tune {
        group: u32,
        /// A batch closes at this size.
        batch_bytes_max: usize,
        /// Undecided instances.
        window: u32,
        /// Undecided bytes.
        window_bytes_max: usize,
    },
    /// A client reaches no node.
    Absent { client: usize, length: Nanos },
    /// The next leader for whom this moment comes is cut off, or ends.
    Trigger {
        moment: Moment,
        /// Its process ends, rather than its links.
        crash: bool,
        length: Nanos,
    },
    /// A node's disk has room for so many bytes more.
    FullDisk { who: Target, bytes: u64, length: Nanos },
}

/// Names of the kinds, in the order of their generators.
pub const KINDS: [&str; 33] = [
    "crash",
    "crash-all",
    "pause",
    "cut",
    "jump",
    "transfer",
    "slow-disk",
    "fail-flush",
    "io-error",
    "full-disk",
    "split",
    "merge",
    "move",
    "wipe",
    "isolate",
    "upset",
    "rot",
    "rot-log",
    "hold",
    "hang-up",
    "sever",
    "limits",
    "absent",
    "trigger",
    "return",
    "tune",
    "belated",
    "join",
    "leave",
    "resize",
    "checkpoint-error",
    "copy",
    "stop",
];

/// Draws all faults of a plan, in order of time.
pub fn schedule(plan: &Plan) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, name) in KINDS.iter().enumerate() {
        let mut random = random(plan.seed, Purpose::Faults, 16 + number as u64);
        if random.below(2) == 0 {
            continue;
        }
        // Nodes greet each other only where there are copies, so most runs have none. Of a single voter's copy nobody
        // can know.
        if *name == "copy" && (plan.replicas < 3 || random.below(4) > 0) {
            continue;
        }
        let rare = match *name {
            "crash-all" | "isolate" | "upset" | "rot" | "sever" | "limits" | "belated" => 8,
            "trigger" | "return" | "copy" => 2,
            "join" | "leave" | "resize" => 4,
            _ => 1,
        };
        let every = MS * (100 << random.below(6)) * rare;
        let mut at = 0;
        if *name == "wipe" {
            faults.extend(wipe(plan, every, &mut random));
            continue;
        }
        if *name == "rot" {
            faults.extend(rot(plan, every, &mut random));
            continue;
        }
        if *name == "rot-log" {
            faults.extend(rot_log(plan, every, &mut random));
            continue;
        }
        loop {
            at += every / 4 + random.below(every as usize * 3 / 2) as Nanos;
            if at > SAFETY_MAX {
                break;
            }
            match *name {
                "isolate" => faults.extend(isolate(plan, at, &mut random)),
                "upset" => faults.extend(upset(plan, at, &mut random)),
                "hold" => faults.extend(hold(plan, at, &mut random)),
                "sever" => faults.extend(sever(plan, at, &mut random)),
                "trigger" => faults.extend(trigger(plan, at, &mut random)),
                "belated" => faults.extend(belated(plan, at, &mut random)),
                "join" => faults.extend(join(plan, at, &mut random)),
                "leave" => faults.extend(leave(plan, at, &mut random)),
                "resize" => faults.push(Fault { at, kind: resize(plan, &mut random) }),
                "return" => faults.extend(there_and_back(plan, at, &mut random)),
                _ => faults.push(Fault { at, kind: draw(plan, number, &mut random) }),
            }
        }
    }
    // One disk of each group may be damaged or forget something, not two.
    let damage: [fn(&Kind) -> bool; 4] = [
        |kind| matches!(kind, Kind::Copy { .. }),
        |kind| matches!(kind, Kind::Wipe { .. }),
        |kind| matches!(kind, Kind::RotLog { .. }),
        |kind| matches!(kind, Kind::Rot { .. }),
    ];
    if let Some(first) = damage.iter().position(|is| faults.iter().any(|fault| is(&fault.kind))) {
        faults.retain(|fault| !damage[first + 1..].iter().any(|is| is(&fault.kind)));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

pub(super) fn target(plan: &Plan, random: &mut Random) -> Target {
    match random.below(2) {
        0 => Target::Leader(random.below(plan.partitions as usize + 1) as u32),
        _ => Target::Node(random.below(plan.nodes as usize)),
    }
}

/// Mostly short, sometimes long.
pub(super) fn length(random: &mut Random, longest: Nanos) -> Nanos {
    let most = longest >> random.below(6);
    MS + random.below(most as usize) as Nanos
}

fn draw(plan: &Plan, number: usize, random: &mut Random) -> Kind {
    let who = target(plan, random);
    match number {
        0 => {
            let effects = if random.below(2) == 0 { 0 } else { random.below(30) as u32 };
            let again = (random.below(5) == 0).then(|| random.below(8) as u64);
            Kind::Crash { who, effects, down: length(random, 5_000 * MS), again }
        }
        1 => Kind::CrashAll { down: length(random, 2_000 * MS) },
        2 => Kind::Pause { who, length: length(random, 4_000 * MS) },
        3 => {
            let alone = (random.below(2) == 0).then_some(who);
            let side = if alone.is_some() { 0 } else { 1 + random.below((1 << plan.nodes) - 1) as u32 };
            let (one_way, length) = (random.below(3) == 0, length(random, 6_000 * MS));
            match alone {
                Some(who) if one_way && length % 2 == 0 => Kind::Mute { who, length },
                _ => Kind::Cut { side, alone, one_way, length },
            }
        }
        4 => Kind::Jump { who, by: length(random, 10_000 * MS) },
        5 => Kind::Transfer {
            group: random.below(plan.partitions as usize + 1) as u32,
            to: random.below(plan.replicas as usize) as u32,
        },
        6 => Kind::SlowDisk { who, by: length(random, 1_000 * MS), length: length(random, 4_000 * MS) },
        7 => Kind::FailFlush { who },
        8 => Kind::IoError { who, after: random.below(20) as u64 },
        10..=12 => change(plan, number, random),
        19 => Kind::HangUp { who },
        21 => Kind::Limits {
            sessions_max: [100_000, plan.workload.clients as usize + random.below(3)][random.below(2)],
            expiry_instances: [1_000_000, 20 + random.below(400) as u64][random.below(2)],
        },
        22 => Kind::Absent { client: random.below(plan.workload.clients as usize), length: length(random, 3_000 * MS) },
        25 => Kind::Tune {
            group: random.below(plan.partitions as usize + 1) as u32,
            batch_bytes_max: 1 << (4 + random.below(18)),
            window: 1 << random.below(8),
            window_bytes_max: 1 << (6 + random.below(21)),
        },
        31 => Kind::Copy {
            who,
            after: length(random, 3_000 * MS),
            down: length(random, 1_000 * MS),
            others_restart: random.below(2) == 0,
        },
        32 => Kind::Stop { who, down: length(random, 2_000 * MS) },
        30 => Kind::CheckpointError { who, after: random.below(12) as u64 },
        _ => Kind::FullDisk { who, bytes: random.below(60_000) as u64, length: length(random, 3_000 * MS) },
    }
}

pub(super) fn change(plan: &Plan, number: usize, random: &mut Random) -> Kind {
    let key = random.below(plan.workload.keys as usize) as u32;
    let again = (random.below(3) == 0).then(|| length(random, 3_000 * MS));
    match number {
        10 => Kind::Split { key, again },
        11 => Kind::Merge { key, up: random.below(2) == 0, again },
        _ => {
            let (gone, to) = (random.below(plan.replicas as usize) as u32, random.below(plan.nodes as usize) as u32);
            Kind::Move { key: (random.below(5) > 0).then_some(key), gone, to, again }
        }
    }
}
