//! Checkpoints: snapshots of partitions on disk, each a fresh sled directory that is written once and then only read.
//!
//! This is the only file that names sled. sled holds no votes and is trusted with nothing: what it writes is flushed by
//! us, read back in full, and covered by checksums of ours, chunk by chunk and file by file, which are checked before
//! sled sees a file again (`sums`). A checkpoint that fails any of it does not count: the older one does, else a
//! peer's.
//!
//! `checkpoints/p4/184000/` holds sled's files and `SUMS`. It is made as `184000.tmp` and renamed when everything in it
//! is durable and verified (hazards.md ST3, ST7), so a name without a suffix is a whole checkpoint. Two generations
//! are kept. A damaged one becomes `184000.bad` and goes when its successor is there.

pub mod background;
mod checksums;
pub mod commit_protocol;
pub mod manifest;
mod pace;
mod pairs;
mod read_back;
pub mod stream;
mod types;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coppice_client::wire::PartitionId;
pub use coppice_core::snapshot::{Blobs, Head};
use coppice_ordering::Instance;

use self::commit_protocol::{Act, Busy, GENERATIONS, Opening};
pub use self::manifest::Manifest;
pub use self::pace::Hurry;
use self::pace::Pace;
pub use self::pairs::Pairs;
use self::stream::Encoder;
pub use self::stream::{CHUNK_BYTES, Chunk, StreamError};
pub use self::types::{BadCheckpoint, CheckpointError, CheckpointOptions, Observer, Step};
use crate::files::flush_dir;

/// The manifest's key: after every chunk's, which are eight bytes.
const MANIFEST_KEY: [u8; 9] = [0xff; 9];

/// The checkpoints of a data directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    options: CheckpointOptions,
    /// Partitions for which one is being written.
    busy: Arc<Mutex<Busy>>,
    /// How much faster they are written than `checkpoint.rate`, the one under way too.
    pub hurry: Hurry,
}

/// A checkpoint that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// What it holds.
    pub manifest: Manifest,
    /// The log may be trimmed up to here: to the generation before it, which is kept, so that no peer is needed if the
    /// new one turns out to be damaged. To the new one itself, if that is to stand alone.
    pub trim_upto: Option<Instance>,
}

/// A checkpoint of which every chunk is written, and which does not count yet.
#[derive(Debug)]
pub struct Staging {
    writer: SnapshotWriter,
    manifest: Manifest,
}

impl Staging {
    /// Returns when it counts: only then may the log be trimmed. Takes as long as the rate makes it.
    ///
    /// # Errors
    /// [`CheckpointError`]; then there is no new checkpoint.
    pub fn finish(self) -> Result<Written, CheckpointError> {
        let trim_upto = self.writer.finish(&self.manifest)?;
        Ok(Written { manifest: self.manifest, trim_upto })
    }
}

/// What [`Checkpoints::load`] found.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest good one.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that are damaged; to be logged.
    pub bad: Vec<BadCheckpoint>,
}

impl Checkpoints {
    /// The checkpoints in `dir`. What interrupted writes left there is removed.
    ///
    /// # Errors
    /// The system's.
    pub fn open(dir: &Path, options: CheckpointOptions) -> io::Result<Checkpoints> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let checkpoints = Checkpoints { dir: dir.to_owned(), options, busy: Arc::default(), hurry: Hurry::default() };
        for partition in checkpoints.partitions()? {
            for act in commit_protocol::opening() {
                match act {
                    Opening::Clear => checkpoints.clear(partition)?,
                    Opening::FlushDir => flush_dir(&checkpoints.of(partition))?,
                }
            }
        }
        Ok(checkpoints)
    }

    fn clear(&self, partition: PartitionId) -> io::Result<()> {
        for entry in fs::read_dir(self.of(partition))? {
            let path = entry?.path();
            if has_name(&path, commit_protocol::is_leftover) {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// The checkpoints in `dir`, which must be there, to be looked at: nothing is removed.
    ///
    /// # Errors
    /// The system's.
    pub fn existing(dir: &Path, options: CheckpointOptions) -> io::Result<Checkpoints> {
        fs::read_dir(dir)?;
        Ok(Checkpoints { dir: dir.to_owned(), options, busy: Arc::default(), hurry: Hurry::default() })
    }

    /// Reads all of one checkpoint back, as a start would, and gives what it says of itself. Changes nothing.
    ///
    /// # Errors
    /// [`CheckpointError::Bad`] with the damaged place; the system's.
    pub fn inspect(&self, partition: PartitionId, instance: Instance) -> Result<Manifest, CheckpointError> {
        let checkpoint = Checkpoint::open(&self.path(partition, instance), partition, instance, &self.options)?;
        let (_, mut pairs) = checkpoint.contents()?;
        pairs.by_ref().for_each(drop);
        pairs.finish()?;
        Ok(checkpoint.manifest)
    }

    /// The partitions that have a directory here, with or without a checkpoint.
    ///
    /// # Errors
    /// The system's.
    pub fn partitions(&self) -> io::Result<Vec<PartitionId>> {
        let mut partitions = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix('p')?.parse().ok());
            partitions.extend(number.map(PartitionId));
        }
        partitions.sort();
        Ok(partitions)
    }

    /// The newest checkpoint of `partition` that is whole. Reads every file of it, and of damaged newer ones.
    ///
    /// # Errors
    /// The system's. A damaged checkpoint is no error; it is set aside.
    pub fn load(&self, partition: PartitionId) -> Result<Loaded, CheckpointError> {
        let mut loaded = Loaded::default();
        failpoint!(io "checkpoint.before_load")
            .map_err(|error| CheckpointError::Io { path: self.of(partition), error })?;
        for instance in self.instances(partition)?.into_iter().rev() {
            let path = self.path(partition, instance);
            match Checkpoint::open(&path, partition, instance, &self.options) {
                Ok(checkpoint) => {
                    loaded.checkpoint = Some(checkpoint);
                    break;
                }
                Err(CheckpointError::Bad(bad)) => {
                    loaded.bad.push(bad);
                    let aside = path.with_file_name(commit_protocol::bad_name(instance));
                    _ = fs::remove_dir_all(&aside);
                    fs::rename(&path, &aside).map_err(|error| CheckpointError::Io { path, error })?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(loaded)
    }

    /// Compares the files of one checkpoint with our checksums: what [`Checkpoints::load`] does first.
    ///
    /// # Errors
    /// [`CheckpointError::Bad`] with the damaged place; the system's.
    pub fn check(&self, partition: PartitionId, instance: Instance) -> Result<(), CheckpointError> {
        check_files(&self.path(partition, instance))
    }

    /// Writes the snapshot with these pairs, which ascend by key. It does not count before [`Staging::finish`]; the
    /// pairs are not needed for that. Takes as long as the rate makes it: for a thread of its own ([`background`]).
    ///
    /// # Errors
    /// [`CheckpointError`]; then there is no new checkpoint.
    pub fn write<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        head: Head,
        blobs: &Blobs,
        pairs: impl Iterator<Item = (K, V)>,
        observer: Observer,
    ) -> Result<Staging, CheckpointError> {
        let mut writer = SnapshotWriter::begin(self, head.clone(), observer, Pace::new(self, self.options.rate_bytes))?;
        let mut encoder = Encoder::new(head, blobs, pairs);
        for chunk in encoder.by_ref() {
            writer.push(&chunk)?;
        }
        Ok(Staging { writer, manifest: encoder.finish() })
    }

    /// Has the checkpoint at this instance stand alone: all of it is checked once more, and older ones go.
    ///
    /// # Errors
    /// [`CheckpointError::Bad`] with the damaged place, and then nothing goes; the system's.
    pub fn keep_only(&self, partition: PartitionId, instance: Instance) -> Result<Written, CheckpointError> {
        let checkpoint = Checkpoint::open(&self.path(partition, instance), partition, instance, &self.options)?;
        self.prune(partition, 1)?;
        Ok(Written { manifest: checkpoint.manifest, trim_upto: Some(instance) })
    }

    /// Begins a checkpoint whose chunks come from elsewhere: [`SnapshotWriter::push`] each, then
    /// [`SnapshotWriter::finish`]. Dropped before that, it leaves nothing that counts. Whoever sends them keeps to a
    /// rate of his own, so this one hurries: a replica is missing meanwhile.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn receive(&self, head: Head, observer: Observer) -> Result<SnapshotWriter, CheckpointError> {
        let rate_bytes = self.options.rate_bytes.saturating_mul(pace::STORE_BYTES);
        SnapshotWriter::begin(self, head, observer, Pace::new(self, rate_bytes))
    }

    /// Removes all checkpoints of a partition that is no longer here.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, partition: PartitionId) -> io::Result<()> {
        failpoint!(io "checkpoint.before_delete")?;
        match fs::remove_dir_all(self.of(partition)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => flush_dir(&self.dir),
        }
    }

    /// The instances of the checkpoints of `partition`, ascending; whether they are whole is not known.
    ///
    /// # Errors
    /// The system's.
    pub fn instances(&self, partition: PartitionId) -> Result<Vec<Instance>, CheckpointError> {
        let dir = self.of(partition);
        let at = |error| CheckpointError::Io { path: dir.clone(), error };
        let mut instances = Vec::new();
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(instances),
            entries => entries.map_err(at)?,
        };
        for entry in entries {
            let name = entry.map_err(at)?.file_name();
            instances.extend(name.to_str().and_then(commit_protocol::instance_of));
        }
        instances.sort();
        Ok(instances)
    }

    fn of(&self, partition: PartitionId) -> PathBuf {
        self.dir.join(partition.to_string())
    }

    fn path(&self, partition: PartitionId, instance: Instance) -> PathBuf {
        self.of(partition).join(commit_protocol::name(instance))
    }

    /// Keeps so many of the newest generations, and names the oldest of these, if there are as many.
    fn prune(&self, partition: PartitionId, keep: usize) -> Result<Option<Instance>, CheckpointError> {
        let dir = self.of(partition);
        let at = |error| CheckpointError::Io { path: dir.clone(), error };
        let instances = self.instances(partition)?;
        for instance in commit_protocol::too_old(&instances, keep) {
            let (path, aside) = (self.path(partition, instance), dir.join(commit_protocol::aside_name(instance)));
            fs::rename(&path, &aside).and_then(|()| failpoint!(io "checkpoint.old_aside")).map_err(at)?;
            fs::remove_dir_all(&aside).map_err(at)?;
            failpoint!("checkpoint.old_gone");
        }
        for entry in fs::read_dir(&dir).map_err(at)? {
            let path = entry.map_err(at)?.path();
            if has_name(&path, commit_protocol::is_bad) {
                fs::remove_dir_all(path).map_err(at)?;
            }
        }
        Ok(commit_protocol::oldest_kept(&instances, keep))
    }
}

fn has_name(path: &Path, is: fn(&str) -> bool) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is)
}

fn check_files(path: &Path) -> Result<(), CheckpointError> {
    let checked = checksums::check(path).map_err(|error| CheckpointError::Io { path: path.to_owned(), error })?;
    checked.map_err(|checksums::BadFile { file, offset, reason }| {
        BadCheckpoint { path: path.join(file), offset, reason: reason.to_owned() }.into()
    })
}

/// How long the lock of a store may stay taken by an owner that is gone, and how often we look.
const LOCK_LINGERS: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// Opens the store at `path`. Its lock may outlive its last owner for a moment: sled's threads drop their handle late,
/// and a child process that is being started holds a copy of every descriptor until it runs. So a taken lock is waited
/// for, [`LOCK_LINGERS`] at most.
fn open_store(path: &Path, options: &CheckpointOptions) -> Result<sled::Db, sled::Error> {
    let start = std::time::Instant::now();
    loop {
        match config(path, options).open() {
            Err(sled::Error::Io(error)) if lock_taken(&error) && start.elapsed() < LOCK_LINGERS => {
                std::thread::sleep(LOCK_LOOK);
            }
            opened => return opened,
        }
    }
}

/// Sled wraps the error of its lock into one of kind `Other`, of which only the text tells.
fn lock_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.to_string().starts_with("could not acquire lock")
}

fn config(path: &Path, options: &CheckpointOptions) -> sled::Config {
    // No flusher thread: we flush. No compression: the log is not compressed either, and chunks stay what they are.
    sled::Config::new().path(path).cache_capacity(options.cache_bytes).flush_every_ms(None).use_compression(false)
}

fn store_error(path: &Path) -> impl Fn(sled::Error) -> CheckpointError + '_ {
    |error| CheckpointError::Store { path: path.to_owned(), error: error.to_string() }
}

/// A checkpoint that is being written, chunk by chunk, in key order.
pub struct SnapshotWriter {
    checkpoints: Checkpoints,
    head: Head,
    /// Where it is written.
    staging: PathBuf,
    db: Option<sled::Db>,
    next: u64,
    pace: Pace,
    observer: Observer,
    /// The observer stopped it: what is there stays, as after a crash.
    stopped: bool,
}

impl std::fmt::Debug for SnapshotWriter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SnapshotWriter").field("staging", &self.staging).finish_non_exhaustive()
    }
}

impl SnapshotWriter {
    fn begin(checkpoints: &Checkpoints, head: Head, observer: Observer, pace: Pace) -> Result<Self, CheckpointError> {
        checkpoints.options.belongs(&head)?;
        let (partition, instance) = (head.partition, head.instance);
        let dir = checkpoints.of(partition);
        let at = |error| CheckpointError::Io { path: dir.clone(), error };
        if checkpoints.path(partition, instance).exists() {
            let flush = || if commit_protocol::flushes_present() { flush_dir(&dir) } else { Ok(()) };
            failpoint!(io "checkpoint.present").and_then(|()| flush()).map_err(at)?;
            return Err(CheckpointError::Present(partition, instance));
        }
        pace.check_space()?;
        if !checkpoints.busy.lock().unwrap_or_else(PoisonError::into_inner).begin(partition) {
            return Err(CheckpointError::Busy(partition));
        }
        let staging = dir.join(commit_protocol::staging_name(instance));
        let checkpoints = checkpoints.clone();
        let mut writer =
            SnapshotWriter { checkpoints, head, staging, db: None, next: 0, pace, observer, stopped: false };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(at)?;
        flush_dir(&writer.checkpoints.dir).map_err(at)?;
        if writer.staging.exists() {
            fs::remove_dir_all(&writer.staging).map_err(at)?;
        }
        DirBuilder::new().mode(0o700).create(&writer.staging).map_err(at)?;
        let db = open_store(&writer.staging, &writer.checkpoints.options);
        writer.db = Some(db.map_err(store_error(&writer.staging))?);
        failpoint!(io "checkpoint.begun").map_err(at)?;
        writer.step(Step::Begun)?;
        Ok(writer)
    }

    /// The number of the chunk that comes next: a sender goes on here after an interruption.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes the next chunk in; sleeps as the rate demands.
    ///
    /// # Errors
    /// [`CheckpointError::Stream`]: this chunk was not taken, and may be sent again. Others end the checkpoint.
    pub fn push(&mut self, chunk: &Chunk) -> Result<(), CheckpointError> {
        let Chunk { number, bytes, crc } = chunk;
        if *number != self.next {
            return Err(StreamError::Order { found: *number, expected: self.next }.into());
        }
        if stream::chunk_crc(&self.head, *number, bytes) != *crc {
            return Err(StreamError::Checksum { number: *number }.into());
        }
        let mut value = Vec::with_capacity(bytes.len() + 4);
        value.extend_from_slice(bytes);
        value.extend_from_slice(&crc.to_le_bytes());
        let db = self.db.as_ref().expect("open until finish");
        let at = |error| CheckpointError::Io { path: self.staging.clone(), error };
        failpoint!(io "checkpoint.chunk").map_err(at)?;
        db.insert(number.to_be_bytes(), value).map_err(store_error(&self.staging))?;
        self.next += 1;
        if self.pace.wrote(bytes.len() as u64) {
            // Little by little: one flush of everything would hold up the log's on the same device.
            db.flush().map_err(store_error(&self.staging))?;
            let flushed = File::open(self.staging.join("db")).and_then(|file| file.sync_data());
            flushed.and_then(|()| failpoint!(io "checkpoint.part_flushed")).map_err(at)?;
            self.pace.check_space()?;
        }
        self.step(Step::Chunk(*number))
    }

    /// All chunks are in. Returns when the checkpoint counts: durable, and read back with every checksum and the
    /// digest. Gives the instance of the older generation that is kept.
    ///
    /// # Errors
    /// [`CheckpointError`]; the checkpoint does not count then, unless only the removal of older ones failed.
    pub fn finish(mut self, manifest: &Manifest) -> Result<Option<Instance>, CheckpointError> {
        let staging = self.staging.clone();
        let at = |error| CheckpointError::Io { path: staging.clone(), error };
        let db = self.db.take().expect("open until finish");
        db.insert(MANIFEST_KEY, manifest.encode()).map_err(store_error(&staging))?;
        db.flush().map_err(store_error(&staging))?;
        drop(db);
        failpoint!(io "checkpoint.written").map_err(at)?;
        self.step(Step::Written)?;
        read_back::read_back(&mut self, manifest)?;
        failpoint!(io "checkpoint.read_back").map_err(at)?;
        self.step(Step::ReadBack)?;
        self.settle().map_err(at)?.write(&staging).map_err(at)?;
        failpoint!(io "checkpoint.summed").map_err(at)?;
        self.step(Step::Summed)?;
        let mut older = None;
        for act in commit_protocol::acts() {
            match act {
                Act::Flush => checksums::flush_all(&staging).map_err(at)?,
                Act::Rename => {
                    failpoint!(io "checkpoint.before_rename").map_err(at)?;
                    let path = self.checkpoints.path(self.head.partition, self.head.instance);
                    fs::rename(&staging, path).and_then(|()| failpoint!(io "checkpoint.renamed")).map_err(at)?;
                }
                Act::FlushDir => {
                    flush_dir(&self.checkpoints.of(self.head.partition)).map_err(at)?;
                    failpoint!("checkpoint.durable");
                }
                Act::Prune => older = self.checkpoints.prune(self.head.partition, GENERATIONS)?,
            }
            self.step(Step::after(act))?;
        }
        Ok(older)
    }

    /// The checksums of the files, once opening leaves them unchanged. The first opening writes sled's index;
    /// later ones write the padding of its last segment again, with the same bytes.
    fn settle(&self) -> io::Result<checksums::Checksums> {
        let mut sums = checksums::Checksums::of(&self.staging)?;
        for _ in 0..4 {
            drop(open_store(&self.staging, &self.checkpoints.options).map_err(io::Error::other)?);
            let before = std::mem::replace(&mut sums, checksums::Checksums::of(&self.staging)?);
            if before == sums {
                return Ok(sums);
            }
        }
        Err(io::Error::other("sled changes the files whenever it opens them"))
    }

    fn step(&mut self, step: Step) -> Result<(), CheckpointError> {
        self.stopped = !(self.observer)(step);
        if self.stopped { Err(CheckpointError::Stopped) } else { Ok(()) }
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        drop(self.db.take());
        if !self.stopped && self.staging.exists() {
            // Its space is wanted; what cannot be removed now is removed by the next start.
            _ = fs::remove_dir_all(&self.staging);
        }
        self.checkpoints.busy.lock().unwrap_or_else(PoisonError::into_inner).end(self.head.partition);
    }
}

/// A whole checkpoint, open for reading.
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    db: sled::Db,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("manifest", &self.manifest)
            .finish_non_exhaustive()
    }
}

impl Checkpoint {
    fn open(
        path: &Path,
        partition: PartitionId,
        instance: Instance,
        options: &CheckpointOptions,
    ) -> Result<Checkpoint, CheckpointError> {
        check_files(path)?;
        let mut checkpoint = Checkpoint::read_store(path, options)?;
        // The position is part of the checksummed content, never only a name (hazards.md ST4).
        if mutant!(position_apart) {
            checkpoint.manifest.head.instance = instance;
        }
        if (checkpoint.manifest.head.partition, checkpoint.manifest.head.instance) != (partition, instance) {
            let reason = "this is the checkpoint of another partition or instance".to_owned();
            return Err(BadCheckpoint { path: path.to_owned(), offset: 0, reason }.into());
        }
        if let Err(error) = options.belongs(&checkpoint.manifest.head) {
            let reason = error.to_string();
            return Err(BadCheckpoint { path: path.to_owned(), offset: 0, reason }.into());
        }
        Ok(checkpoint)
    }

    /// Opens what sled holds, without our checksums of its files.
    fn read_store(path: &Path, options: &CheckpointOptions) -> Result<Checkpoint, CheckpointError> {
        let db = open_store(path, options).map_err(store_error(path))?;
        let manifest = db.get(MANIFEST_KEY).map_err(store_error(path))?;
        let manifest = manifest.and_then(|bytes| Manifest::decode(&bytes)).ok_or_else(|| BadCheckpoint {
            path: path.to_owned(),
            offset: 0,
            reason: "its manifest is missing or damaged".to_owned(),
        })?;
        Ok(Checkpoint { path: path.to_owned(), manifest, db })
    }

    /// Where and when it was taken, and what it holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its chunks as they are stored, to send to a peer from chunk `from` on; the manifest ends them.
    pub fn chunks(&self, from: u64) -> SnapshotReader {
        SnapshotReader { path: self.path.clone(), iter: self.db.range(from.to_be_bytes()..u64::MAX.to_be_bytes()) }
    }

    /// Its blobs, and its pairs in key order.
    ///
    /// # Errors
    /// [`CheckpointError::Stream`], [`CheckpointError::Store`].
    pub fn contents(&self) -> Result<(Blobs, Pairs), CheckpointError> {
        Pairs::behind_blobs(self.chunks(0), self.manifest.clone())
    }
}

/// The chunks of a checkpoint, in order.
pub struct SnapshotReader {
    path: PathBuf,
    iter: sled::Iter,
}

impl std::fmt::Debug for SnapshotReader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SnapshotReader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Iterator for SnapshotReader {
    type Item = Result<Chunk, CheckpointError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = match self.iter.next()? {
            Ok(pair) => pair,
            Err(error) => return Some(Err(store_error(&self.path)(error))),
        };
        let number = key.first_chunk::<8>().map(|number| u64::from_be_bytes(*number));
        let chunk = number.zip(value.split_last_chunk::<4>()).map(|(number, (bytes, crc))| Chunk {
            number,
            bytes: bytes::Bytes::copy_from_slice(bytes),
            crc: u32::from_le_bytes(*crc),
        });
        Some(chunk.ok_or(StreamError::Incomplete.into()))
    }
}
