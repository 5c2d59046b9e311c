//! A node's disk: its log (the real one, over a disk that loses what was not flushed) and its checkpoints.
//!
//! A write to the log is carried out when its flush ends; a crash before that carries out a drawn part of it. So a
//! crash falls between any two effects on the disk, and sectors of the write may be there or not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use coppice_btree::Capacity;
use coppice_client::wire::PartitionId;
use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::IncarnationClaim;
use coppice_core::replay::{ReadsLog, Replay};
use coppice_core::roll_forward::{RollBounds, RollForward, RolledGroup, one_by_one};
use coppice_core::snapshot::LoadedSnapshot;
use coppice_ordering::{Instance, Lsn, Record};
use coppice_server::datadir::{ClusterId, NodeId};
use coppice_server::log::engine::{self, Found, Progress};
use coppice_server::log::segment::StartNonces;
use coppice_server::log::{Append, Disk, Engine, FileEffect, FileName, Geometry, LogError};
use coppice_testkit::random::Random;

use super::plan::{Plan, Purpose, random};

// The disk of the log's own tests; the simulator may use the same one, since nothing but tests knows it.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../server/tests/log_common/sim_disk.rs"]
pub mod sim_disk;

mod checkpoints;
mod damage;
mod saved;

use checkpoints::Checkpoints;
pub use checkpoints::{Refused, Stage};
pub use damage::Misread;
pub use saved::SavedSnapshot;
use sim_disk::{Crash, SimDisk};

/// Deterministic numbers for the disk.
#[derive(Debug)]
pub struct Draw(Random);

impl Draw {
    /// From a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(Random::new(seed))
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound as usize) as u64
    }
}

/// What a disk holds at a start.
pub struct Held {
    pub groups: Vec<(PartitionId, HeldGroup)>,
}

/// What it holds of one group that the log knows.
pub struct HeldGroup {
    /// All records that the log has above the checkpoint.
    pub records: Vec<(Lsn, Record)>,
    /// The newest checkpoint that is whole.
    pub checkpoint: Instance,
    /// How many newer ones are not.
    pub bad: usize,
    /// What the replica starts with: the checkpoint, rolled forward.
    pub rolled: RolledGroup,
}

/// So small that a start goes through many rounds, and keeps a few batches.
const ROLL_BOUNDS: RollBounds = RollBounds { read: 4 << 10, kept: 2 << 10 };

/// The cluster of every run.
pub const CLUSTER: ClusterId = ClusterId(0x51);

/// A disk that outlives the process that writes it.
#[derive(Clone, Debug, Default)]
pub struct Platter(Rc<RefCell<SimDisk>>);

impl Disk for Platter {
    fn list(&mut self) -> io::Result<Vec<FileName>> {
        self.0.borrow_mut().list()
    }

    fn read(&mut self, file: FileName, limit: usize) -> io::Result<Vec<u8>> {
        self.0.borrow_mut().read(file, limit)
    }

    fn apply(&mut self, effect: &FileEffect) -> io::Result<()> {
        self.0.borrow_mut().apply(effect)
    }
}

/// A node's disk and the process's hold on it.
#[derive(Debug)]
pub struct Store {
    disk: Platter,
    engine: Option<Engine<Platter>>,
    identity: Identity,
    geometry: Geometry,
    /// Submitted, not yet written.
    waiting: Vec<Append>,
    /// In the write under way.
    writing: Option<Vec<Append>>,
    /// The newest start cut a torn tail off.
    was_torn: bool,
    /// Of the trees that it is read into.
    capacity: Capacity,
    checkpoints: Checkpoints,
    /// Draws what of them a loss of power leaves.
    checkpoint_random: Random,
    /// Draws what each start draws.
    start_random: Random,
    /// What the newest start says of its log.
    claim: Option<IncarnationClaim>,
    /// The boot ids of all starts, oldest first.
    boots: Vec<u64>,
}

fn drawn(random: &mut Random) -> StartNonces {
    StartNonces { boot_id: random.next(), salt: random.next() }
}

/// How a write ended.
#[derive(Debug)]
pub enum WriteState {
    /// These entries are durable.
    Durable(Vec<Append>),
    /// The disk is full: the same again later.
    Full,
    /// The process must stop (hazards.md ST1).
    Failed,
}

impl Store {
    /// The disk of a new node: with an empty log.
    pub fn new(plan: &Plan, node: usize) -> Store {
        let identity = Identity { cluster: CLUSTER, node: NodeId(node as u32 + 1), incarnation: 1 };
        let bytes = plan.disk.segment_bytes;
        let geometry = Geometry { first_bytes: 20 << 10, segment_bytes: bytes, segments_ahead: 1 };
        let mut disk = Platter::default();
        let mut start_random = random(plan.seed, Purpose::Starts, node as u64);
        engine::create(&mut disk, identity, drawn(&mut start_random), geometry).expect("an empty disk takes a log");
        Store {
            disk,
            engine: None,
            identity,
            geometry,
            waiting: Vec::new(),
            writing: None,
            was_torn: false,
            capacity: plan.capacity(node),
            checkpoints: Checkpoints::default(),
            checkpoint_random: random(plan.seed, Purpose::Checkpoints, node as u64),
            start_random,
            claim: None,
            boots: Vec::new(),
        }
    }

    /// A copy of the disk, while no process uses it; none: one does.
    pub fn copy(&self, seed: u64) -> Option<Store> {
        if self.engine.is_some() || !self.waiting.is_empty() {
            return None;
        }
        let node = u64::from(self.identity.node.0);
        Some(Store {
            disk: Platter(Rc::new(RefCell::new(self.disk.0.borrow().clone()))),
            engine: None,
            waiting: Vec::new(),
            writing: None,
            checkpoints: self.checkpoints.clone(),
            checkpoint_random: self.checkpoint_random.clone(),
            // Its starts draw other boot ids.
            start_random: random(seed, Purpose::Starts, 1_000 + node),
            boots: self.boots.clone(),
            ..*self
        })
    }

    /// What a process says of its log; none: it has not opened it.
    pub fn claim(&self) -> Option<IncarnationClaim> {
        self.claim
    }

    /// The boot ids of all starts that opened this disk, or the one that it is a copy of.
    pub fn boots(&self) -> &[u64] {
        &self.boots
    }

    /// How far its log is durable.
    pub fn durable_lsn(&self) -> u64 {
        self.engine.as_ref().map_or(0, |engine| engine.core().durable())
    }

    /// This start's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.identity.incarnation
    }

    /// Reads the checkpoints and the log and opens it, by the real recovery. `None`: the power failed on the way
    /// (`cut`), or the disk did: the process ends and is started again.
    ///
    /// # Errors
    /// In words: the log says that it lost something.
    pub fn open(&mut self, cut: Option<u64>) -> Result<Option<Held>, String> {
        {
            let mut disk = self.disk.0.borrow_mut();
            disk.cut_at = cut.map(|effects| disk.effects + effects);
        }
        self.checkpoints.open();
        let groups = self.checkpoints.groups().into_iter();
        let loaded: BTreeMap<_, _> = groups.map(|group| (group, self.load_checkpoint(group))).collect();
        let bad: BTreeMap<_, _> = loaded.iter().map(|(&group, (_, bad))| (group, *bad)).collect();
        let loaded = loaded.into_iter().filter_map(|(group, (loaded, _))| Some((group, loaded?)));
        let loaded: BTreeMap<_, _> = loaded.collect();
        let checkpoints: BTreeMap<_, _> = loaded.iter().map(|(&group, loaded)| (group, loaded.instance)).collect();
        let mut replay = Replay::above(checkpoints.clone());
        let mut rolled = RollForward::new(loaded, ROLL_BOUNDS, one_by_one);
        let found = Found::read(&mut self.disk.clone(), self.identity, &mut |carried, entry| {
            replay.apply(carried, entry.clone());
            rolled.apply(carried, entry);
        });
        self.disk.0.borrow_mut().fail_read = None;
        let found = match found {
            Ok(found) => found,
            Err(LogError::Io(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let identity = found.identity;
        self.was_torn = found.cut.is_some();
        let opened = found.open(self.disk.clone(), drawn(&mut self.start_random), self.geometry, false);
        self.disk.0.borrow_mut().cut_at = None;
        let Ok(engine) = opened else { return Ok(None) };
        let (boot, past) = engine.core().boot_ids();
        self.claim = Some(IncarnationClaim::new(identity.incarnation, boot, past, engine.core().durable()));
        self.boots.push(boot);
        self.engine = Some(engine);
        self.identity = identity;
        let mut groups = Vec::new();
        for (group, mut rolled) in rolled.finish() {
            if let Some(instance) = rolled.reload {
                let again = self.load_checkpoint(group).0;
                rolled.loaded = again.filter(|loaded| loaded.instance == instance);
            }
            let records = replay.groups.get_mut(&group).map(|group| group.take_records().collect());
            let (records, checkpoint) = (records.unwrap_or_default(), checkpoints.get(&group).copied());
            let (checkpoint, bad) = (checkpoint.unwrap_or_default(), bad.get(&group).copied().unwrap_or_default());
            groups.push((group, HeldGroup { records, checkpoint, bad, rolled }));
        }
        Ok(Some(Held { groups }))
    }

    /// Whether the newest start cut a torn tail off.
    pub fn was_torn(&self) -> bool {
        self.was_torn
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Queues entries.
    pub fn append(&mut self, append: Append) {
        self.waiting.push(append);
    }

    /// Begins a write if there is something to write and none is under way. `idle`: lazy entries and the mark too.
    pub fn begin(&mut self, idle: bool) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        if self.writing.is_some() {
            return false;
        }
        let due = self.waiting.iter().any(|append| !append.lazy) || (idle && !self.waiting.is_empty());
        if due {
            let batch = std::mem::take(&mut self.waiting);
            engine.write(batch.iter().map(|append| &append.entry));
            self.writing = Some(batch);
            return true;
        }
        if idle && engine.mark() {
            self.writing = Some(Vec::new());
            return true;
        }
        false
    }

    /// The flush of the write under way ends.
    pub fn finish(&mut self) -> WriteState {
        let Some(engine) = &mut self.engine else { return WriteState::Failed };
        match engine.proceed() {
            Err(_) => WriteState::Failed,
            Ok(Progress::Full) => WriteState::Full,
            Ok(Progress::Durable) => {
                let durable = self.writing.take().unwrap_or_default();
                if self.keep() { WriteState::Durable(durable) } else { WriteState::Failed }
            }
        }
    }

    /// What the keeper thread does between writes. False: the disk failed.
    fn keep(&mut self) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        for effect in engine.take_drops() {
            if self.disk.apply(&effect).is_err() {
                return false;
            }
        }
        if self.disk.0.borrow().budget.is_some() {
            // Nothing is prepared on a disk that is about to be full; the newest segment grows.
            return true;
        }
        while let Some(preparation) = engine.to_prepare() {
            if preparation.effects().iter().any(|effect| self.disk.apply(effect).is_err()) {
                return false;
            }
            engine.prepared(preparation.number);
        }
        if let Some(crowded) = engine.rewrite_target() {
            // A disk that cannot read now is asked again after the next write.
            engine.rewrite(engine::read_batches(&mut self.disk, &crowded).ok());
        }
        true
    }

    /// The process ends: a write under way is cut off somewhere. `power`: what was not flushed may be lost.
    pub fn crash(&mut self, power: bool, random: &mut Random) {
        if self.writing.take().is_some()
            && let Some(engine) = &mut self.engine
        {
            let cut = self.disk.0.borrow().effects + random.below(3) as u64;
            self.disk.0.borrow_mut().cut_at = Some(cut);
            _ = engine.proceed();
        }
        self.engine = None;
        self.waiting.clear();
        self.checkpoints.crash(power, &mut self.checkpoint_random);
        let how = match power {
            true if random.below(3) == 0 => Crash::AllLost,
            true => Crash::Drawn(random.next()),
            false => Crash::Process,
        };
        let mut disk = self.disk.0.borrow_mut();
        (disk.cut_at, disk.budget) = (None, None);
        *disk = std::mem::take(&mut *disk).crash(how);
    }

    /// The next flush fails; the one after it would not.
    pub fn fail_flush(&mut self) {
        self.disk.0.borrow_mut().fail_flushes = 1;
    }

    /// The disk fails after so many more effects.
    pub fn fail_at(&mut self, after: u64) {
        let mut disk = self.disk.0.borrow_mut();
        disk.cut_at = Some(disk.effects + after);
    }

    /// After so many more reads one fails.
    pub fn fail_read(&mut self, after: u64) {
        self.disk.0.borrow_mut().fail_read = Some(after);
    }

    /// The act after so many more of checkpoints fails.
    pub fn fail_checkpoint(&mut self, after: u64) {
        self.checkpoints.fail_at = Some(after);
    }

    /// Nothing of the disk fails any more.
    pub fn spare(&mut self) {
        self.checkpoints.fail_at = None;
        let mut disk = self.disk.0.borrow_mut();
        (disk.fail_flushes, disk.cut_at, disk.fail_read) = (0, None, None);
    }

    /// Room for so many bytes more; none: enough.
    pub fn set_room(&mut self, bytes: Option<u64>) {
        let mut disk = self.disk.0.borrow_mut();
        let used: usize = disk.file_names().iter().map(|name| disk.bytes(*name).len()).sum();
        disk.budget = bytes.map(|bytes| used as u64 + bytes);
    }

    /// Whether growing commands are refused.
    pub fn is_full(&self) -> bool {
        self.disk.0.borrow().budget.is_some()
    }

    /// Begins a checkpoint, and names it.
    pub fn begin_checkpoint(&mut self, group: PartitionId, saved: SavedSnapshot) -> Result<u64, Refused> {
        let disk = self.disk.0.borrow();
        let used = || disk.file_names().iter().map(|name| disk.bytes(*name).len()).sum::<usize>() as u64;
        let room = disk.budget.map(|budget| budget.saturating_sub(used()));
        self.checkpoints.begin(group, saved, room)
    }

    /// Does the next act of a checkpoint's life.
    pub fn proceed(&mut self, checkpoint: u64) -> Stage {
        self.checkpoints.proceed(checkpoint)
    }

    /// Whether a checkpoint of the group is being written.
    pub fn is_checkpointing(&self, group: PartitionId) -> bool {
        self.checkpoints.is_writing(group)
    }

    /// Up to where the newest checkpoint of a group reaches that a loss of power would leave.
    pub fn newest_checkpoint(&self, group: PartitionId) -> Option<Instance> {
        self.checkpoints.newest_durable(group)
    }

    /// The newest checkpoint of a group that is whole, and how many newer ones are not.
    pub fn load_checkpoint(&mut self, group: PartitionId) -> (Option<LoadedSnapshot>, usize) {
        let capacity = self.capacity;
        self.checkpoints.load(group, |saved| saved.load(capacity).ok())
    }

    /// The checkpoints of a replica that was removed go, one after the other; true: all are gone.
    pub fn delete_checkpoint(&mut self, group: PartitionId) -> bool {
        self.checkpoints.remove(group)
    }
}
