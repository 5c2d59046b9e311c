//! The two threads of an open log: the writer, and the keeper that prepares and removes segments meanwhile.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use coppice_core::replay::Entry;
use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};

use super::apply;
use super::core::{FileEffect, Preparation};
use super::disk::FileDisk;
use super::engine::{self, Engine, Failure, Progress, RewriteTarget, is_full, is_out_of_descriptors};
use super::ids::{Lsn, PartitionId};
use super::record::entry_bytes;
use super::segment::SegmentNumber;
use super::writer::{Append, FlushReport, Hooks, LogError, LogFailure, LogOptions};
use crate::busy_poll::{BusyPoll, Wait};

/// How often the keeper looks at the free space where there is little, and tries again to prepare a segment.
const KEEPER_INTERVAL: Duration = Duration::from_millis(200);

/// How often it looks where there is enough.
const CALM_KEEPER_INTERVAL: Duration = Duration::from_secs(1);

/// How often a write that found the disk full is tried again.
const FULL_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the handles and both threads see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) stopped: AtomicBool,
    /// Whoever waits for room must not wait any longer.
    pub(super) closing: AtomicBool,
    /// A write waits for room.
    pub(super) stuck: AtomicBool,
    pub(super) free_bytes: AtomicU64,
    pub(super) reserve_bytes: u64,
}

impl Shared {
    /// Whether the reserve is near.
    fn is_scarce(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) <= self.reserve_bytes.saturating_mul(2)
    }
}

#[derive(Debug)]
pub(super) enum Submission {
    Appends(Vec<Append>),
    /// Records, and whom to notify once they are durable.
    DurableWait(Vec<Append>, Sender<()>),
    Close,
}

enum Order {
    Prepare(Preparation),
    CarryOut(Vec<FileEffect>),
    /// Read what is to be carried of this segment.
    Read(RewriteTarget),
}

/// What the keeper has to say.
enum News {
    Prepared(SegmentNumber),
    /// To be carried.
    Read(Vec<(u64, Entry)>),
    Failed(Failure),
}

/// What [`spawn`] gives.
pub(super) struct WriterThreads {
    pub(super) submissions: Sender<Submission>,
    pub(super) shared: Arc<Shared>,
    /// To be joined after `Submission::Close`.
    pub(super) threads: Vec<JoinHandle<()>>,
}

/// Starts both threads.
pub(super) fn spawn(
    dir: &Path,
    engine: Engine<FileDisk>,
    options: LogOptions,
    hooks: Hooks,
) -> io::Result<WriterThreads> {
    let (submissions, inbox) = channel::bounded(options.queue_submissions_max.max(1));
    let (orders, order_inbox) = channel::unbounded();
    let (news, news_inbox) = channel::unbounded();
    let free_bytes = AtomicU64::new(free_bytes(dir)?);
    let shared = Shared { reserve_bytes: options.disk_reserve_bytes, free_bytes, ..Shared::default() };
    let shared = Arc::new(shared);
    let keeper = Keeper {
        dir: dir.to_owned(),
        disk: FileDisk::new(dir, options.unsafe_no_flush)?,
        orders: order_inbox,
        news,
        shared: Arc::clone(&shared),
        waiting: VecDeque::new(),
        unread: None,
        drops: VecDeque::new(),
    };
    let writer = Writer {
        dir: dir.to_owned(),
        engine,
        busy_poll: BusyPoll::new(options.busy_poll),
        looked: Duration::ZERO,
        options,
        hooks,
        inbox,
        orders,
        news: news_inbox,
        shared: Arc::clone(&shared),
        batch: Vec::new(),
        lazy: Vec::new(),
        completions: Vec::new(),
        awaited: Vec::new(),
        pinned_by: Vec::new(),
        closing: false,
    };
    let keeper = thread::Builder::new().name("log-keeper".into()).spawn(move || keeper.run())?;
    let writer = thread::Builder::new().name("log-writer".into()).spawn(move || writer.run())?;
    Ok(WriterThreads { submissions, shared, threads: vec![writer, keeper] })
}

struct Writer {
    dir: PathBuf,
    engine: Engine<FileDisk>,
    busy_poll: BusyPoll,
    /// Time spent looking since the last flush.
    looked: Duration,
    options: LogOptions,
    hooks: Hooks,
    inbox: Receiver<Submission>,
    orders: Sender<Order>,
    news: Receiver<News>,
    shared: Arc<Shared>,
    /// The appends of the write under way.
    batch: Vec<Append>,
    /// Appends that nobody waits for.
    lazy: Vec<Append>,
    completions: Vec<(PartitionId, Lsn)>,
    /// Who hears of the next flush.
    awaited: Vec<Sender<()>>,
    pinned_by: Vec<PartitionId>,
    closing: bool,
}

impl Writer {
    fn run(mut self) {
        if let Err(failure) = self.serve() {
            // Poisoned: nothing more is written, whatever the disk says from now on (ST1).
            self.shared.stopped.store(true, Ordering::Release);
            let failure = self.failure(failure);
            (self.hooks.failed)(failure);
        }
        self.shared.stopped.store(true, Ordering::Release);
    }

    fn serve(&mut self) -> Result<(), Failure> {
        while !self.closing {
            if self.gather() {
                self.commit()?;
            } else {
                self.rest()?;
            }
            self.hear_news()?;
        }
        self.rest()
    }

    /// Waits for appends and takes all that are there. False if there is nothing that must be written now.
    fn gather(&mut self) -> bool {
        let waits = Instant::now();
        self.look(waits);
        let rested = self.lazy.is_empty() && self.engine.core().is_marked();
        let first = if rested {
            self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            self.inbox.recv_timeout(self.options.idle_mark_after)
        };
        self.busy_poll.waited(Wait::Request, waits.elapsed());
        let mut bytes = 0;
        match first {
            Ok(submission) => self.take(submission, &mut bytes),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => self.closing = true,
        }
        while bytes < self.options.write_bytes_max
            && !self.closing
            && let Ok(submission) = self.inbox.try_recv()
        {
            self.take(submission, &mut bytes);
        }
        !self.batch.is_empty() || bytes >= self.options.write_bytes_max
    }

    /// Stays awake for a while, if something may come soon.
    fn look(&mut self, since: Instant) {
        let limit = self.busy_poll.limit(Wait::Request);
        if limit.is_zero() {
            return;
        }
        while self.inbox.is_empty() && since.elapsed() < limit {
            thread::yield_now();
        }
        self.looked += since.elapsed();
    }

    fn take(&mut self, submission: Submission, bytes: &mut usize) {
        match submission {
            Submission::Appends(appends) => self.take_appends(appends, bytes),
            Submission::DurableWait(appends, done) => {
                self.take_appends(appends, bytes);
                self.awaited.push(done);
            }
            Submission::Close => self.closing = true,
        }
    }

    fn take_appends(&mut self, appends: Vec<Append>, bytes: &mut usize) {
        for append in appends {
            *bytes += entry_bytes(&append.entry);
            let into = if append.lazy && self.batch.is_empty() { &mut self.lazy } else { &mut self.batch };
            into.push(append);
        }
    }

    /// One write, one flush, then the completions.
    fn commit(&mut self) -> Result<(), Failure> {
        // Lazy entries came before those of the batch, and a group's records keep their order.
        if !self.lazy.is_empty() {
            self.lazy.append(&mut self.batch);
            mem::swap(&mut self.lazy, &mut self.batch);
        }
        let start = Instant::now();
        self.engine.write(self.batch.iter().map(|append| &append.entry));
        self.apply()?;
        let took = start.elapsed();
        failpoint!("log.before_completions");
        let segments_changed = self.after_write();
        if segments_changed || self.engine.core().segments() > 1 {
            self.pinned_by = self.engine.core().oldest().map_or_else(Vec::new, |(_, groups)| groups);
        }
        let group = |append: &Append| Some((append.entry.group()?, append.lsn?));
        self.completions.extend(self.batch.iter().filter_map(group));
        (self.hooks.flushed)(FlushReport {
            completions: &self.completions,
            durable_lsn: self.engine.core().durable(),
            records: self.batch.len(),
            took,
            looked: mem::take(&mut self.looked),
            log_bytes: self.engine.core().bytes(),
            pinned_by: &self.pinned_by,
        });
        self.completions.clear();
        self.batch.clear();
        // Whoever waits no more has ended.
        self.awaited.drain(..).for_each(|done| _ = done.send(()));
        Ok(())
    }

    /// The log comes to rest: what nobody waited for is written, and a mark proves the last records.
    fn rest(&mut self) -> Result<(), Failure> {
        if !self.lazy.is_empty() || !self.batch.is_empty() {
            self.commit()?;
        }
        if self.engine.mark() {
            self.apply()?;
            self.after_write();
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), Failure> {
        while self.engine.proceed()? == Progress::Full {
            // The reserve is used up. Votes wait, nothing is proposed, and room brings everything back (ST10).
            self.shared.stuck.store(true, Ordering::Relaxed);
            self.engine.release_pool();
            self.pass_on_drops();
            if self.shared.closing.load(Ordering::Relaxed) {
                let effect = FileEffect::FlushDir;
                return Err(Failure { effect, error: io::ErrorKind::StorageFull.into() });
            }
            thread::sleep(FULL_RETRY_INTERVAL);
        }
        self.shared.stuck.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Passes on what the keeper has to do.
    fn after_write(&mut self) -> bool {
        if self.shared.is_scarce() {
            self.engine.release_pool();
        }
        let dropped = self.pass_on_drops();
        while let Some(preparation) = self.engine.to_prepare() {
            _ = self.orders.send(Order::Prepare(preparation));
        }
        if let Some(rewrite) = self.engine.rewrite_target() {
            _ = self.orders.send(Order::Read(rewrite));
        }
        dropped
    }

    /// Has the keeper free what nobody needs. False if there was nothing.
    fn pass_on_drops(&mut self) -> bool {
        let drops = self.engine.take_drops();
        let dropped = !drops.is_empty();
        if dropped {
            _ = self.orders.send(Order::CarryOut(drops));
        }
        dropped
    }

    fn hear_news(&mut self) -> Result<(), Failure> {
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Prepared(number) => self.engine.prepared(number),
                News::Read(batches) => self.engine.rewrite(Some(batches)),
                News::Failed(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    fn failure(&self, failure: Failure) -> LogFailure {
        let path = failure.effect.file().map_or(self.dir.clone(), |file| self.dir.join(file.to_string()));
        LogFailure { path, error: failure.error }
    }
}

struct Keeper {
    dir: PathBuf,
    disk: FileDisk,
    orders: Receiver<Order>,
    news: Sender<News>,
    shared: Arc<Shared>,
    /// Segments that are still to be prepared.
    waiting: VecDeque<Preparation>,
    /// A segment of which something is to be carried, and that could not be read so far.
    unread: Option<RewriteTarget>,
    /// What is to be freed.
    drops: VecDeque<FileEffect>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            match self.orders.recv_timeout(self.interval()) {
                Ok(Order::Prepare(preparation)) => self.waiting.push_back(preparation),
                Ok(Order::CarryOut(effects)) => self.drops.extend(effects),
                Ok(Order::Read(rewrite)) => self.unread = Some(rewrite),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.free();
            self.prepare();
            self.read();
            if let Ok(free_bytes) = free_bytes(&self.dir) {
                self.shared.free_bytes.store(free_bytes, Ordering::Relaxed);
            }
        }
    }

    fn interval(&self) -> Duration {
        let calm = self.waiting.is_empty() && self.drops.is_empty() && !self.shared.is_scarce();
        if calm { CALM_KEEPER_INTERVAL } else { KEEPER_INTERVAL }
    }

    /// Frees what nobody needs. Without a descriptor to do it with it is tried again later.
    fn free(&mut self) {
        while let Some(effect) = self.drops.pop_front() {
            match carry_out(apply::trim, &mut self.disk, &effect) {
                Ok(()) => {}
                Err(failure) if is_out_of_descriptors(&failure.error) => return self.drops.push_front(effect),
                Err(failure) => _ = self.news.send(News::Failed(failure)),
            }
        }
    }

    /// Reads what is to be carried. A disk that cannot read now is asked again; a segment that is damaged stays where
    /// it is, and the next start names the place.
    fn read(&mut self) {
        let Some(rewrite) = &self.unread else { return };
        match engine::read_batches(&mut self.disk, rewrite) {
            Ok(batches) => _ = self.news.send(News::Read(batches)),
            Err(LogError::Io(error)) => return tracing::warn!(%error, "a segment of the log cannot be read now"),
            Err(error) => tracing::error!(%error, "a segment of the log is damaged; replace this node"),
        }
        self.unread = None;
    }

    /// Prepares what was ordered. On a full disk, or without a descriptor, it is tried again later, behind the drops
    /// that make room, while the newest segment grows.
    fn prepare(&mut self) {
        while let Some(preparation) = self.waiting.front() {
            let number = preparation.number;
            let way = if preparation.reuses.is_some() { apply::reuse } else { apply::make };
            let done = preparation.effects().iter().try_for_each(|effect| carry_out(way, &mut self.disk, effect));
            if done.as_ref().is_err_and(|failure| is_full(&failure.error)) {
                return;
            }
            self.waiting.pop_front();
            let news = done.map_or_else(News::Failed, |()| News::Prepared(number));
            _ = self.news.send(news);
        }
    }
}

fn carry_out(
    way: impl Fn(&mut FileDisk, &FileEffect) -> io::Result<()>,
    disk: &mut FileDisk,
    effect: &FileEffect,
) -> Result<(), Failure> {
    way(disk, effect).map_err(|error| Failure { effect: effect.clone(), error })
}

/// Bytes of the file system that holds `dir` that this user may still fill.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(dir)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}
