//! A node's disk: its log (the real one, over a disk that loses what was not flushed) and its checkpoints.
//!
//! A write to the log is carried out when its flush ends; a crash before that carries out a drawn part of it. So a
//! crash falls between any two effects on the disk, and sectors of the write may be there or not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use coppice_client::wire::ChangeId;
use coppice_ordering::Instance;
use coppice_server::checkpoint::stream::{Decoder, Encoder};
use coppice_server::checkpoint::{Chunk, Manifest};
use coppice_server::datadir::{ClusterId, Identity, NodeId};
use coppice_server::log::engine::{self, Found, Progress, prepare};
use coppice_server::log::{Append, Disk, Engine, Entry, FileEffect, FileName, Geometry, GroupId, LogError, Replay};
use coppice_server::snapshot::{self, Loaded, Taken};

use super::plan::Plan;
use crate::check::random::Random;

// The disk of the log's own tests; the simulator may use the same one, since nothing but tests knows it.
#[allow(missing_docs, dead_code, unreachable_pub)]
#[path = "../../../server/tests/log_common/sim_disk.rs"]
pub mod sim_disk;

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

    fn carry_out(&mut self, effect: &FileEffect) -> io::Result<()> {
        self.0.borrow_mut().carry_out(effect)
    }
}

/// A snapshot as it lies on disk, or travels.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Where it was taken.
    pub instance: Instance,
    /// Changes of borders that are in it.
    pub applied: Vec<ChangeId>,
    chunks: Vec<Chunk>,
    manifest: Vec<u8>,
}

impl Saved {
    /// Encodes a state, by the code that writes checkpoints.
    pub fn of(taken: Taken) -> Saved {
        let (instance, applied) = (taken.head.instance, taken.applied);
        let snapshot = taken.tree.snapshot();
        let mut encoder = Encoder::new(taken.head, &taken.blobs, snapshot.iter());
        let chunks = encoder.by_ref().collect();
        Saved { instance, applied, chunks, manifest: encoder.finish().encode() }
    }

    /// Reads it back, by the code that reads checkpoints: in words what is wrong with it.
    pub fn load(&self) -> Result<Loaded, String> {
        let manifest = Manifest::decode(&self.manifest).ok_or("the manifest is damaged")?;
        let mut decoder = Decoder::new(manifest.head.clone());
        let mut pairs = Vec::new();
        for chunk in &self.chunks {
            decoder.push(chunk.number, &chunk.bytes, chunk.crc).map_err(|error| error.to_string())?;
            while let Some(pair) = decoder.next_pair().map_err(|error| error.to_string())? {
                pairs.push(pair);
            }
        }
        let blobs = decoder.blobs().map_err(|error| error.to_string())?.ok_or("the blobs are not complete")?;
        decoder.finish(&manifest).map_err(|error| error.to_string())?;
        snapshot::restore(&manifest.head, &blobs, pairs.into_iter()).map_err(|error| error.to_string())
    }
}

impl Saved {
    /// All its bytes, to damage one: chunks with their checksums, then the manifest.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len() + 4).sum::<usize>() + self.manifest.len()
    }

    /// The same with one byte changed.
    pub fn flipped(&self, mut at: usize) -> Saved {
        let mut saved = self.clone();
        for chunk in &mut saved.chunks {
            if at < chunk.bytes.len() {
                let mut bytes = chunk.bytes.to_vec();
                bytes[at] ^= 0x40;
                chunk.bytes = bytes::Bytes::from(bytes);
                return saved;
            }
            at -= chunk.bytes.len();
            if at < 4 {
                chunk.crc ^= 0x40 << (8 * at);
                return saved;
            }
            at -= 4;
        }
        saved.manifest[at] ^= 0x40;
        saved
    }
}

/// What a start reads of a log.
struct Held {
    /// All entries, and which of them are carried copies.
    entries: Vec<(bool, Entry)>,
    /// So many at the end are of the last write, which nothing proves.
    unproven: usize,
}

impl Held {
    /// This is `whole`, or the same without a part of its last write, as a crash may tear it.
    fn is_torn(&self, whole: &Held) -> bool {
        self.entries.len() >= whole.proven() && whole.entries.starts_with(&self.entries)
    }

    /// A start makes of this what it makes of such a log. Not all entries need be there: what was written again may go
    /// where it stood first.
    fn replays_as(&self, whole: &Held) -> bool {
        let replayed = |entries: &[(bool, Entry)]| {
            let mut replay = Replay::default();
            entries.iter().for_each(|(carried, entry)| replay.apply(*carried, entry.clone()));
            replay
        };
        let found = replayed(&self.entries);
        (whole.proven()..=whole.entries.len()).rev().any(|upto| replayed(&whole.entries[..upto]) == found)
    }

    fn proven(&self) -> usize {
        self.entries.len() - self.unproven
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries, of them {} unproven", self.entries.len(), self.unproven)
    }
}

/// The block of a file with this number, if both are there.
fn block(disk: &SimDisk, name: FileName, number: usize) -> Option<Vec<u8>> {
    let bytes = disk.file_names().contains(&name).then(|| disk.bytes(name))?;
    bytes.chunks_exact(BLOCK_BYTES).nth(number).map(<[u8]>::to_vec)
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
    /// Newest last; two generations.
    checkpoints: BTreeMap<GroupId, Vec<Saved>>,
}

/// Places that are tried for one that matters.
const ROT_TRIES: usize = 8;

/// What a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// What a file system writes at once.
const BLOCK_BYTES: usize = 4_096;

/// What changed bytes of a disk did.
#[derive(Debug, Default)]
pub struct Rot {
    /// Bytes that were changed, one at a time.
    pub flips: usize,
    /// Times that a start refused.
    pub refused: usize,
    /// Times that it did not, and made something else of it.
    pub wrong: Vec<String>,
}

/// What a start makes of a log of which it is given one block that is another's.
#[derive(Debug)]
pub enum Misread {
    /// The same as without, or as of a last write that was torn: nothing tells these apart.
    Unseen,
    /// It says that something is missing.
    Refused,
    /// In words: it takes something for its log that is not.
    Believed(String),
}

/// How a write ended.
#[derive(Debug)]
pub enum Written {
    /// These entries are durable.
    Durable(Vec<Append>),
    /// The disk is full: the same again later.
    Full,
    /// The process must stop (reliability.md ST1).
    Failed,
}

impl Store {
    /// The disk of a new node: with an empty log.
    pub fn new(plan: &Plan, node: usize) -> Store {
        let identity = Identity { cluster: CLUSTER, node: NodeId(node as u32 + 1), incarnation: 1 };
        let bytes = plan.segment_bytes;
        let geometry = Geometry { first_bytes: 20 << 10, segment_bytes: bytes, segments_ahead: 1 };
        let mut disk = Platter::default();
        engine::create(&mut disk, identity, geometry).expect("an empty disk takes a log");
        Store {
            disk,
            engine: None,
            identity,
            geometry,
            waiting: Vec::new(),
            writing: None,
            was_torn: false,
            checkpoints: BTreeMap::new(),
        }
    }

    /// This start's incarnation.
    pub fn incarnation(&self) -> u64 {
        self.identity.incarnation
    }

    /// Reads the log and opens it, by the real recovery. `None`: the power failed on the way (`cut`), or the disk did:
    /// the process ends and is started again.
    ///
    /// # Errors
    /// In words: the log says that it lost something.
    pub fn open(&mut self, cut: Option<u64>) -> Result<Option<Replay>, String> {
        {
            let mut disk = self.disk.0.borrow_mut();
            disk.cut_at = cut.map(|effects| disk.effects + effects);
        }
        let mut replay = Replay::default();
        let found = Found::read(&mut self.disk.clone(), self.identity, &mut |carried, entry| {
            replay.apply(carried, entry);
        });
        let found = match found {
            Ok(found) => found,
            Err(LogError::Io(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let identity = found.identity;
        self.was_torn = found.cut.is_some();
        let opened = found.open(self.disk.clone(), self.geometry, false);
        self.disk.0.borrow_mut().cut_at = None;
        let Ok(engine) = opened else { return Ok(None) };
        self.engine = Some(engine);
        self.identity = identity;
        Ok(Some(replay))
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
    pub fn finish(&mut self) -> Written {
        let Some(engine) = &mut self.engine else { return Written::Failed };
        match engine.proceed() {
            Err(_) => Written::Failed,
            Ok(Progress::Full) => Written::Full,
            Ok(Progress::Durable) => {
                let durable = self.writing.take().unwrap_or_default();
                if self.keep() { Written::Durable(durable) } else { Written::Failed }
            }
        }
    }

    /// What the keeper thread does between writes. False: the disk failed.
    fn keep(&mut self) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        for effect in engine.take_drops() {
            if self.disk.carry_out(&effect).is_err() {
                return false;
            }
        }
        if self.disk.0.borrow().budget.is_some() {
            // Nothing is prepared on a disk that is about to be full; the newest segment grows.
            return true;
        }
        while let Some((number, bytes)) = engine.to_prepare() {
            if prepare(number, bytes).iter().any(|effect| self.disk.carry_out(effect).is_err()) {
                return false;
            }
            engine.prepared(number, bytes);
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

    /// Nothing of the disk fails any more.
    pub fn spare(&mut self) {
        let mut disk = self.disk.0.borrow_mut();
        (disk.fail_flushes, disk.cut_at) = (0, None);
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

    /// A checkpoint is durable. Names the older generation, up to which the log may be trimmed.
    pub fn keep_checkpoint(&mut self, group: GroupId, saved: Saved) -> Option<Instance> {
        let generations = self.checkpoints.entry(group).or_default();
        if generations.iter().all(|other| other.instance != saved.instance) {
            generations.push(saved);
        }
        generations.sort_by_key(|saved| saved.instance);
        if generations.len() > 2 {
            generations.remove(0);
        }
        let older = generations.len().checked_sub(2)?;
        Some(generations[older].instance)
    }

    /// The newest checkpoint of a group that is whole.
    pub fn load_checkpoint(&self, group: GroupId) -> Option<Loaded> {
        self.checkpoints.get(&group)?.iter().rev().find_map(|saved| saved.load().ok())
    }

    /// Whether the newest checkpoint of a group cannot be read.
    pub fn newest_is_damaged(&self, group: GroupId) -> bool {
        self.checkpoints.get(&group).and_then(|all| all.last()).is_some_and(|saved| saved.load().is_err())
    }

    /// Changes a byte of the newest checkpoint of a group that has an older one, which is whole. False: there is none.
    pub fn rot_checkpoint(&mut self, at: u64) -> bool {
        let whole = |generations: &&mut Vec<Saved>| generations.len() == 2 && generations[0].load().is_ok();
        let mut groups: Vec<&mut Vec<Saved>> = self.checkpoints.values_mut().filter(whole).collect();
        if groups.is_empty() {
            return false;
        }
        let number = at as usize % groups.len();
        let newest = &mut groups[number][1];
        *newest = newest.flipped((at >> 16) as usize % newest.bytes());
        true
    }

    /// Damages a part of the log that was flushed, and that a later mark proves, so that a start finds it. False: there
    /// was nothing of the kind where it was looked for.
    pub fn rot_log(&mut self, at: u64) -> bool {
        let mut random = Random::of(at, 0x107);
        let Ok(whole) = self.read(self.disk.clone()) else { return false };
        let names = self.disk.0.borrow().file_names();
        for _ in 0..ROT_TRIES {
            let name = names[random.below(names.len())];
            let before = self.disk.0.borrow().bytes(name).to_vec();
            if before.is_empty() {
                continue;
            }
            let mut after = before.clone();
            let place = random.below(before.len());
            let block = |at: usize, bytes: usize| at - at % bytes..(at - at % bytes + bytes).min(before.len());
            match random.below(3) {
                0 => after[place] ^= 1 << random.below(8),
                1 => after[block(place, SECTOR_BYTES)].fill(0),
                _ => {
                    // A write that went to another place, and is missing in its own.
                    let (to, from) = (block(place, BLOCK_BYTES), block(random.below(before.len()), BLOCK_BYTES));
                    let bytes = to.len().min(from.len());
                    after[to.start..to.start + bytes].copy_from_slice(&before[from.start..from.start + bytes]);
                }
            }
            self.disk.0.borrow_mut().damage(name, |bytes| bytes.copy_from_slice(&after));
            // A last write that is damaged may have been torn: nothing tells, and the atlas spares it.
            if !self.read(self.disk.clone()).is_ok_and(|found| found.is_torn(&whole)) {
                return true;
            }
            self.disk.0.borrow_mut().damage(name, |bytes| bytes.copy_from_slice(&before));
        }
        false
    }

    /// What the next start makes of the log if it is given one block that is not what was asked for: another of the
    /// same log, or the one of `other`'s in that place.
    pub fn misread(&self, other: &Store, at: u64) -> Misread {
        let mut random = Random::of(at, 0x108);
        let (mut disk, other) = (self.disk.0.borrow().clone(), other.disk.0.borrow());
        let Ok(whole) = self.read(disk.clone()) else { return Misread::Unseen };
        let mut place = || {
            let names = disk.file_names();
            let name = names[random.below(names.len())];
            (name, random.below((disk.bytes(name).len() / BLOCK_BYTES).max(1)))
        };
        let ((name, to), (from, at)) = (place(), place());
        let given = match random.below(2) {
            0 => block(&disk, from, at),
            _ => block(&other, name, to),
        };
        let Some(given) = given.filter(|_| block(&disk, name, to).is_some()) else { return Misread::Unseen };
        disk.damage(name, |bytes| bytes[to * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&given));
        match self.read(disk) {
            Err(_) => Misread::Refused,
            Ok(found) if found.is_torn(&whole) || found.replays_as(&whole) => Misread::Unseen,
            Ok(found) => Misread::Believed(format!("block {to} of {name}: {} of {whole}", found.entries.len())),
        }
    }

    /// All that a log holds.
    fn read(&self, mut disk: impl Disk) -> Result<Held, LogError> {
        let mut entries = Vec::new();
        let found = Found::read(&mut disk, self.identity, &mut |carried, entry| entries.push((carried, entry)))?;
        Ok(Held { entries, unproven: found.unproven() })
    }

    /// Changes every `step`th byte of the log and of the checkpoints in turn, and reads them as a start does.
    pub fn rot(&mut self, step: usize) -> Rot {
        let mut rot = Rot::default();
        let whole = match self.read(self.disk.clone()) {
            Ok(whole) => whole,
            Err(error) => {
                rot.wrong.push(format!("the log as it is: {error}"));
                return rot;
            }
        };
        let names = self.disk.0.borrow().file_names();
        for name in names {
            let length = self.disk.0.borrow().bytes(name).len();
            for at in (0..length).step_by(step) {
                let flip = || self.disk.0.borrow_mut().damage(name, |bytes| bytes[at] ^= 1 << (at % 8));
                flip();
                let found = self.read(self.disk.clone());
                flip();
                match found {
                    Err(LogError::Damage(_)) => rot.refused += 1,
                    Err(error) => rot.wrong.push(format!("{name} byte {at}: {error}")),
                    Ok(found) if found.is_torn(&whole) => {}
                    Ok(found) => rot.wrong.push(format!("{name} byte {at}: {} of {whole}", found.entries.len())),
                }
                rot.flips += 1;
            }
        }
        for (group, saved) in
            self.checkpoints.iter().flat_map(|(group, all)| all.iter().map(move |saved| (group, saved)))
        {
            for at in (0..saved.bytes()).step_by(step) {
                rot.flips += 1;
                match saved.flipped(at).load() {
                    Err(_) => rot.refused += 1,
                    Ok(_) => rot
                        .wrong
                        .push(format!("{group}: a checkpoint of {} loads with byte {at} changed", saved.instance)),
                }
            }
        }
        rot
    }

    /// The checkpoints of a replica that was removed go.
    pub fn delete_checkpoints(&mut self, group: GroupId) {
        self.checkpoints.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_btree::{Op, Undo};

    use super::*;

    /// reliability.md G8: one flipped byte at every offset of a checkpoint.
    #[test]
    fn a_checkpoint_with_any_byte_changed_is_refused() {
        let mut tree = coppice_btree::Tree::new();
        let mut undo = Undo::default();
        for number in 0..600 {
            let (key, value) = (format!("k{number:04}"), format!("value {number}"));
            tree.execute(Op::Put { key: key.as_bytes(), value: value.as_bytes() }, &mut undo);
        }
        let configuration = coppice_ordering::Configuration::of_voters([coppice_ordering::ReplicaId(0)]);
        let plain = "plain data";
        type Changes = (
            Vec<coppice_client::wire::ChangeId>,
            Option<coppice_server::machine::shard::Seal>,
            coppice_server::sessions::SessionLimits,
        );
        let blobs = coppice_server::checkpoint::Blobs {
            configuration: postcard::to_stdvec(&(configuration, Instance(3), coppice_ordering::Ballot::ZERO))
                .expect(plain)
                .into(),
            sessions: postcard::to_stdvec(&coppice_server::sessions::Sessions::default().export()).expect(plain).into(),
            changes: postcard::to_stdvec(&Changes::default()).expect(plain).into(),
            ..Default::default()
        };
        let head = coppice_server::checkpoint::Head {
            partition: GroupId(2),
            instance: Instance(70),
            low: Bytes::from_static(b"k"),
            ..Default::default()
        };
        let saved = Saved::of(Taken { head, blobs, applied: Vec::new(), tree });
        assert!(saved.load().is_ok() && saved.bytes() > 8_192, "{:?} {}", saved.load().map(|_| ()), saved.bytes());
        for at in 0..saved.bytes() {
            assert!(saved.flipped(at).load().is_err(), "byte {at} was changed and nothing noticed");
        }
    }
}
