//! Kinds of faults, each with what was drawn for it.

use serde::{Deserialize, Serialize};

use super::{MS, Nanos};

/// Faults are drawn for so much simulated time; the safety phase is never longer.
pub const SAFETY_MAX: Nanos = 20_000 * MS;

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

/// What a leader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// It decides a configuration with a new voter: they two hear nobody else, and nobody hears them (PX18).
    Configured,
    /// It executes a split, a seal or a join ahead of its decision (SP8, MV12).
    Boundary,
    /// The same, but what breaks are the connections of its clients, which ask again elsewhere and behind the boundary
    /// (MV5, SE8).
    Retried,
    /// It executes a ticket ahead of its decision (SP5, TK9).
    Ticket,
    /// The directory's leader executes a change of the map ahead of its decision (MV13).
    Map,
    /// A replica of the directory begins to lead: nodes without one do not hear it, and go on with the leader before it
    /// (TK5).
    Coordinates,
    /// It proposes commands: its process ends before it holds them itself, and one follower gets them late, which hears
    /// of that node alone until then (PX4, PX7).
    Proposes,
}
