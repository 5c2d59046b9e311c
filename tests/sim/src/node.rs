//! A node: its disk, its clock, its process with workers and controller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::failure_detector::LastHeard;
use coppice_core::request::Origin;
use coppice_core::worker::{self, Group, Input, Worker};
use coppice_ordering::{Instance, Lsn, Record, ReplicaId, Ticket, Time};

use super::control_thread::ControlThread;
use super::found::{Found, broken};
use super::incarnations::Incarnations;
use super::plan::{Nanos, Plan};
use super::store::Store;
use super::watermarks::Watermarks;

/// A clock that runs at its own rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    true_base: Nanos,
    local_base: Nanos,
    per_mille: u64,
}

impl Clock {
    /// A clock that shows `local` when true time is zero.
    pub fn new(local: Nanos, per_mille: u32) -> Clock {
        Clock { true_base: 0, local_base: local, per_mille: u64::from(per_mille) }
    }

    /// What it shows.
    pub fn local(&self, now: Nanos) -> Time {
        Time(self.local_base + (now - self.true_base) * self.per_mille / 1_000)
    }

    /// When it shows at least `local`.
    pub fn when(&self, local: Time) -> Nanos {
        let ahead = local.0.saturating_sub(self.local_base);
        self.true_base + (ahead.saturating_mul(1_000)).div_ceil(self.per_mille)
    }

    /// It jumps ahead.
    pub fn jump(&mut self, now: Nanos, by: Nanos) {
        let local = self.local(now).0 + by;
        *self = Clock { true_base: now, local_base: local, ..*self };
    }
}

/// What is remembered of a replica here, beside what its worker remembers.
pub struct ReplicaWatch {
    /// How far it was when it was last looked at.
    pub watermarks: Watermarks,
}

/// The node's number on the wire, as the simulator's.
pub fn place(node: NodeId) -> usize {
    node.0 as usize - 1
}

pub struct Node {
    /// Its disk.
    pub store: Store,
    /// The newest maps that it kept, on its disk too.
    pub kept_maps: VecDeque<Arc<PartitionMap>>,
    pub damage: Damage,
    /// Flushes take so much longer.
    pub flush_extra: Nanos,
    /// Counts its processes.
    pub boot: u64,
    /// Whether a process runs.
    pub up: bool,
    /// It is a process that waits to be told which node it is.
    pub is_new: bool,
    /// Which boot ids of the others it has met, and what they make of its own.
    pub incarnations: Incarnations,
    pub clock: Clock,
    /// It does nothing until then.
    pub paused_until: Nanos,
    pub crash: NextCrash,
    /// The earliest tick that is on its way.
    pub tick_at: Option<Nanos>,
    /// Numbers what it asks the directory for.
    pub newest_stream: u32,
    pub process: Process,
}

/// What was done to a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damage {
    /// It is gone for good.
    pub is_lost: bool,
    /// A checkpoint was damaged.
    pub is_rotten: bool,
    /// The log is damaged, and the node may not have found out yet.
    pub has_rotten_log: bool,
}

impl Damage {
    /// Whether anything on it can no longer be relied on.
    pub fn is_any(&self) -> bool {
        self.is_lost || self.is_rotten || self.has_rotten_log
    }
}

/// A crash that is to come.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextCrash {
    /// Effects that are still carried out before it, and how long the node is down then.
    pub doom: Option<(u32, Nanos)>,
    /// The next start is cut off after so many effects on the disk.
    pub cut_start: Option<u64>,
}

/// What a disk held of one replica.
#[derive(Debug, Default)]
pub struct FoundRecords {
    /// Of its newest good checkpoint.
    pub checkpoint: Instance,
    /// Of the state that this was rolled forward to.
    pub state: Instance,
    /// Above the checkpoint.
    pub records: Vec<(Lsn, Record)>,
}

/// What a node's process knows, and a crash forgets.
pub struct Process {
    pub control: ControlThread,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// When each worker is told of the log next.
    pub storage_at: BTreeMap<usize, Nanos>,
    /// When the last message of a queue between workers arrives.
    pub mailed: BTreeMap<(usize, bool), Nanos>,
    /// What is remembered of its replicas.
    pub watched: BTreeMap<PartitionId, ReplicaWatch>,
    /// The others hear that it has no room.
    pub is_full: bool,
    /// Other nodes that said last that they have no room.
    pub full_nodes: BTreeSet<NodeId>,
    /// Who answered when each query came.
    pub answering: BTreeMap<Origin, BTreeSet<NodeId>>,
    /// Its log waits for room.
    pub log_is_stuck: bool,
    /// What it found on disk of replicas that have not begun yet.
    pub found: BTreeMap<(PartitionId, ReplicaId), FoundRecords>,
    /// What it heard of the other nodes.
    pub heard: BTreeMap<NodeId, LastHeard>,
}

impl Process {
    fn new(plan: &Plan, node: usize) -> Process {
        Process {
            control: ControlThread::new(plan),
            workers: workers(plan, node),
            storage_at: BTreeMap::new(),
            mailed: BTreeMap::new(),
            watched: BTreeMap::new(),
            is_full: false,
            full_nodes: BTreeSet::new(),
            answering: BTreeMap::new(),
            log_is_stuck: false,
            found: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }
}

impl Node {
    /// A node with an empty disk, that may know a map.
    pub fn new(plan: &Plan, number: usize, clock: Clock, map: Option<Arc<PartitionMap>>) -> Node {
        Node {
            store: Store::new(plan, number),
            is_new: map.is_none(),
            kept_maps: map.into_iter().collect(),
            damage: Damage::default(),
            flush_extra: 0,
            boot: 0,
            up: false,
            incarnations: Incarnations::default(),
            clock,
            paused_until: 0,
            crash: NextCrash::default(),
            tick_at: None,
            newest_stream: 0,
            process: Process::new(plan, number),
        }
    }

    /// What its process knew is gone; what is on its disk stays.
    pub fn forget(&mut self, plan: &Plan, number: usize) {
        self.process = Process::new(plan, number);
        self.incarnations.forget();
    }

    /// The worker of a group.
    pub fn owner(&self, group: PartitionId) -> usize {
        worker::owner(group, self.process.workers.len())
    }

    /// A replica here.
    pub fn group(&self, group: PartitionId) -> Option<&Group> {
        self.process.workers[self.owner(group)].groups().get(&group)
    }

    /// All replicas here.
    pub fn groups(&self) -> impl Iterator<Item = (PartitionId, &Group)> {
        self.process.workers.iter().flat_map(|worker| worker.groups().iter().map(|(&id, group)| (id, group)))
    }

    /// Holds the watermarks of a replica against those before the step; `released` is the highest that a coordinator
    /// told.
    pub fn check_step(&mut self, group: PartitionId, released: Option<Ticket>) -> Found {
        let owner = self.owner(group);
        let Process { workers, watched, .. } = &mut self.process;
        let (Some(host), Some(watched)) = (workers[owner].groups().get(&group), watched.get_mut(&group)) else {
            return Ok(());
        };
        watched.watermarks.advance(host, released)
    }

    /// I4: the log on a disk forgets nothing that no durable state of that node holds. (What is in memory may go
    /// earlier: whoever lacks it gets a snapshot.)
    pub fn check_trim(&self, group: PartitionId, upto: Instance) -> Found {
        let Some(watched) = self.process.watched.get(&group) else { return Ok(()) };
        let saved = self.store.newest_checkpoint(group).unwrap_or_default().max(watched.watermarks.began());
        if upto > saved {
            return broken("I4 trimmed above its snapshot", format!("{group}: the log to {upto}, {saved} is durable"));
        }
        Ok(())
    }

    /// Whether a process can be started on it.
    pub fn may_start(&self) -> bool {
        !self.damage.is_lost && !self.is_new
    }
}

fn workers(plan: &Plan, node: usize) -> Vec<Worker> {
    let count = plan.server.workers as usize;
    let worker = |index| {
        let mut worker = Worker::new(index, count);
        worker.step(Time::ZERO, Input::Settings(plan.worker_settings(node, None)), &mut Vec::new());
        worker.watch_coordinator();
        worker
    };
    (0..count).map(worker).collect()
}
