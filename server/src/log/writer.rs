//! The log as the rest of a node sees it: options, handles, completions, errors.
//!
//! One writer thread per node: group commit over all groups, one write and one flush for everything that waits. A
//! second thread prepares segments, removes trimmed ones and watches the free space, so that commits never wait for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use coppice_core::incarnation::Identity;
use coppice_core::incarnation::claim::IncarnationClaim;
use coppice_core::replay::{Entry, ReadsLog, Replay};
use crossbeam::channel::{self, Receiver, SendTimeoutError, Sender, TrySendError};

use super::core::Geometry;
use super::disk::FileDisk;
use super::engine::{self, Found};
use super::ids::{Lsn, PartitionId};
use super::recovery::{Cut, Damage};
use super::segment::StartNonces;
use super::thread::{self, Shared, Submission, WriterThreads};

/// How the log is kept. Defaults are those of operations.md 3.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Sizes of segments.
    pub geometry: Geometry,
    /// `log.keep = "all"`: trimmed segments move to `old/` instead of going.
    pub keep_all: bool,
    /// `log.flush = "off"`: acknowledged writes survive a kill, but no power cut.
    pub unsafe_no_flush: bool,
    /// `log.disk_reserve`: below this much free space the log says that it is full, while votes can still be written.
    pub disk_reserve_bytes: u64,
    /// Entries that one flush serves hold at most this many bytes, or one submission more.
    pub write_bytes_max: usize,
    /// Submissions that wait at most; then [`Log::append`] blocks.
    pub queue_submissions_max: usize,
    /// After this long without work the log writes a mark, so that its last records are proven too.
    pub idle_mark_after: Duration,
    /// `busy_poll`: so long the writer looks for work before it sleeps, where that pays.
    pub busy_poll: Duration,
    /// Told, while a log is opened, how many of its bytes are read, and how many there are.
    pub read: ReadObserver,
}

/// What is told of a log that is read.
#[derive(Clone)]
pub struct ReadObserver(pub Arc<dyn Fn(u64, u64) + Send + Sync>);

impl std::fmt::Debug for ReadObserver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ReadObserver").finish_non_exhaustive()
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            geometry: Geometry::default(),
            keep_all: false,
            unsafe_no_flush: false,
            disk_reserve_bytes: 1 << 30,
            // 8 MiB: four of the largest batches; a flush of more takes longer than it saves.
            write_bytes_max: 8 << 20,
            queue_submissions_max: 4_096,
            idle_mark_after: Duration::from_millis(100),
            busy_poll: Duration::ZERO,
            read: ReadObserver(Arc::new(|_, _| ())),
        }
    }
}

/// One thing to make durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub entry: Entry,
    /// The number under which its group wants to hear of it; `None`: nobody waits.
    pub lsn: Option<Lsn>,
    /// Written with the next flush that something else causes, or when the log comes to rest.
    pub lazy: bool,
}

/// What one flush made durable.
#[derive(Debug)]
pub struct FlushReport<'a> {
    /// Every waiting (group, lsn), in the order of the appends.
    pub completions: &'a [(PartitionId, Lsn)],
    /// Everything up to this lsn of the node's log is durable.
    pub durable_lsn: u64,
    /// Records that shared the flush, those of the log itself not counted.
    pub records: usize,
    /// How long write and flush took.
    pub took: Duration,
    /// Time that the writer spent looking for work since the flush before (`busy_poll`).
    pub looked: Duration,
    /// Bytes of all segments in use.
    pub log_bytes: u64,
    /// The groups whose batches keep the oldest segment, if there are several segments: a checkpoint of each of them
    /// would let it go.
    pub pinned_by: &'a [PartitionId],
}

/// What the writer thread calls.
pub struct Hooks {
    /// After each flush, with everything that it made durable. Must not block for long: commits wait for it.
    pub flushed: Box<dyn FnMut(FlushReport<'_>) + Send>,
    /// Once, when a write or flush failed. The process must stop: nothing more becomes durable, and what the failed
    /// flush was about is unknown (hazards.md ST1).
    pub failed: Box<dyn FnOnce(LogFailure) + Send>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hooks")
    }
}

/// Why the log stopped for good.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}; the process must stop, restart it")]
pub struct LogFailure {
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

/// Why a log does not open.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Something durable cannot be read: this node must not vote (`coppice node replace`).
    #[error(transparent)]
    Damage(#[from] Damage),
    /// The newest segments are gone: the log ends with an older start than the last one.
    #[error("the log ends with start {found} of this node, but start {known} happened: newer segments are missing")]
    Older {
        /// The incarnation that the newest segment names.
        found: u64,
        /// The incarnation that `node.toml` names.
        known: u64,
    },
    /// The system refused.
    #[error("the log cannot be opened: {0}")]
    Io(#[from] io::Error),
}

/// The log has stopped: closed, or failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has stopped")]
pub struct Stopped;

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free bytes of the file system, as this user may use them.
    pub free_bytes: u64,
    /// `log.disk_reserve`.
    pub reserve_bytes: u64,
    /// Nothing that grows may be proposed: answer `Full`. Clears by itself.
    pub full: bool,
}

/// Entries that are on their way to the disk.
#[derive(Debug)]
pub struct DurableWait(Receiver<()>);

impl DurableWait {
    /// Returns when they are durable. Blocks for a flush, or for as long as the disk is full: not for a worker thread.
    ///
    /// # Errors
    /// [`Stopped`]: the log ended, and they may be durable or not.
    pub fn wait(self) -> Result<(), Stopped> {
        if mutant!(removal_unflushed) {
            return Ok(());
        }
        self.0.recv().map_err(|_| Stopped)
    }
}

/// Whoever waits for the queue looks this often whether the disk is full.
const FULL_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A handle for the threads that append. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    submissions: Sender<Submission>,
    shared: Arc<Shared>,
}

impl Log {
    /// Puts `appends` into the queue, in order; they share a flush with everything else that waits. Blocks while the
    /// queue is full.
    ///
    /// # Errors
    /// [`Stopped`]: nothing of it will become durable.
    pub fn append(&self, appends: Vec<Append>) -> Result<(), Stopped> {
        self.check()?;
        self.submissions.send(Submission::Appends(appends)).map_err(|_| Stopped)
    }

    /// As [`Log::append`], for a worker thread. Blocks while the queue is full: a worker thread that waits here reads
    /// no socket, which is the answer to overload. Not while the disk is full as well: then gives back what found no
    /// place. Nothing is given back by a log that has stopped, and nothing of it becomes durable.
    #[must_use]
    pub fn append_if_room(&self, appends: Vec<Append>) -> Vec<Append> {
        let mut submission = Submission::Appends(appends);
        while self.check().is_ok() {
            let patience = if self.is_stuck() { Duration::ZERO } else { FULL_LOOK_INTERVAL };
            match self.submissions.send_timeout(submission, patience) {
                Err(SendTimeoutError::Timeout(Submission::Appends(appends))) if self.is_stuck() => return appends,
                Err(SendTimeoutError::Timeout(again)) => submission = again,
                Ok(()) | Err(SendTimeoutError::Disconnected(_)) => break,
            }
        }
        Vec::new()
    }

    /// As [`Log::append`], and tells when `appends` are durable: for what may happen only then, and is not the group's
    /// own replica's to do.
    ///
    /// # Errors
    /// [`Stopped`]: nothing of it will become durable.
    pub fn append_awaited(&self, appends: Vec<Append>) -> Result<DurableWait, Stopped> {
        self.check()?;
        let (done, awaited) = channel::bounded(1);
        self.submissions.send(Submission::DurableWait(appends, done)).map_err(|_| Stopped)?;
        Ok(DurableWait(awaited))
    }

    /// As [`Log::append`], but gives the entries back when the queue is full or the log has stopped.
    pub fn try_append(&self, appends: Vec<Append>) -> Result<(), Vec<Append>> {
        if self.check().is_err() {
            return Err(appends);
        }
        match self.submissions.try_send(Submission::Appends(appends)) {
            Err(TrySendError::Full(Submission::Appends(appends)))
            | Err(TrySendError::Disconnected(Submission::Appends(appends))) => Err(appends),
            _ => Ok(()),
        }
    }

    /// Submissions that wait for the writer.
    pub fn waiting(&self) -> usize {
        self.submissions.len()
    }

    /// How much room there is; asked before anything is proposed (hazards.md ST10). Costs three loads.
    pub fn space(&self) -> Space {
        let free_bytes = self.shared.free_bytes.load(Ordering::Relaxed);
        let reserve_bytes = self.shared.reserve_bytes;
        let full = free_bytes < reserve_bytes || self.shared.stuck.load(Ordering::Relaxed);
        Space { free_bytes, reserve_bytes, full }
    }

    /// Whether a write waits for room, and everything behind it. Clears by itself.
    pub fn is_stuck(&self) -> bool {
        self.shared.stuck.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), Stopped> {
        if self.shared.stopped.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }
}

/// A log that is open: its threads, and what it held.
#[derive(Debug)]
pub struct LogWriter {
    log: Log,
    threads: Vec<JoinHandle<()>>,
}

/// The random numbers of a start.
fn draw() -> StartNonces {
    StartNonces { boot_id: crate::random::draw(), salt: crate::random::draw() }
}

/// What opening a log gives.
#[derive(Debug)]
pub struct OpenLog<R = Replay> {
    /// The running log.
    pub writer: LogWriter,
    /// Everything durable in it.
    pub replay: R,
    /// This node with the incarnation of this start, which the log now holds.
    pub identity: Identity,
    /// What this start tells others of its log.
    pub claim: IncarnationClaim,
    /// A torn tail that was cut, to be logged.
    pub cut: Option<Cut>,
}

impl LogWriter {
    /// Makes an empty log in `dir` for a node that is just getting its identity. What an interrupted attempt left there
    /// is removed.
    ///
    /// # Errors
    /// The system's.
    pub fn create(dir: &Path, identity: Identity) -> Result<(), LogError> {
        Ok(engine::create(&mut FileDisk::new(dir, false)?, identity, draw(), Geometry::default())?)
    }

    /// Opens the log in `dir`, whose node was `known` when it last started: reads everything into `replay`, opens a
    /// segment for this start, and starts the threads. Takes time in proportion to the log.
    ///
    /// # Errors
    /// [`LogError`]; after `Damage` and `Older` the node must not vote.
    pub fn open<R: ReadsLog>(
        dir: &Path,
        known: Identity,
        mut replay: R,
        options: LogOptions,
        hooks: Hooks,
    ) -> Result<OpenLog<R>, LogError> {
        let mut disk = FileDisk::new(dir, options.unsafe_no_flush)?;
        disk.observe_reads(options.read.clone())?;
        let found = Found::read(&mut disk, known, &mut |carried, entry| replay.apply(carried, entry))?;
        let (identity, cut) = (found.identity, found.cut.clone());
        let engine = found.open(disk, draw(), options.geometry, options.keep_all)?;
        let (boot_id, past_boot_ids) = engine.core().boot_ids();
        let claim = IncarnationClaim::new(identity.incarnation, boot_id, past_boot_ids, engine.core().durable());
        let WriterThreads { submissions, shared, threads } = thread::spawn(dir, engine, options, hooks)?;
        Ok(OpenLog { writer: LogWriter { log: Log { submissions, shared }, threads }, replay, identity, claim, cut })
    }

    /// A handle to append with.
    pub fn log(&self) -> Log {
        self.log.clone()
    }

    /// Writes everything that waits, then a mark, and ends the threads. Later appends get [`Stopped`].
    pub fn close(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.log.shared.closing.store(true, Ordering::Relaxed);
        _ = self.log.submissions.send(Submission::Close);
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.shut_down();
    }
}
