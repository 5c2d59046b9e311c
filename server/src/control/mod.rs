//! What a node does beside its data path: forming a cluster, following the map, starting replicas, status, checkpoints.
//!
//! One task on a thread of its own. Worker threads tell it of rare events; it acts on them by closures that run on the
//! worker thread between inputs. It never touches a replica itself.

mod admin;
mod bootstrap;
mod certificates;
mod check_replicas;
mod coalesced;
mod directory;
mod effects;
mod groups;
mod handle;
mod leader_transfer;
mod listeners;
mod live;
mod majority;
mod outbox;
mod raise;
mod rates;
mod recovery;
mod snapshots;
mod status;
mod survey;
mod topology;
mod tuning;
mod users;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use bootstrap::addresses;
use coppice_client::map::Addresses;
use coppice_client::wire::AdminReply;
use coppice_core::bootstrap::Bootstrap;
use coppice_core::controller::{self, Controller, FetchId, VerbId};
use coppice_core::survey::Schedule;
use coppice_ordering::Time;
pub use handle::{Event, Handle};
pub use listeners::Listeners;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use self::coalesced::Questions;
use self::outbox::Outbox;
use self::rates::{Rates, Sample};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::background::Checkpointer;
use crate::datadir::DataDir;
use crate::log::{LogWriter, Space};
use crate::messages::ToControl;
use crate::metrics::{History, Warning};
use crate::shared::RecoveryStep;
use crate::start_error::{StartError, StorageError};

/// What this node has on its disk, once it has an identity.
struct Storage {
    home: DataDir,
    log: Option<LogWriter>,
    checkpoints: Option<(Checkpoints, Arc<Checkpointer>)>,
    flush: Arc<status::FlushTimes>,
    /// Whether the disk was filled to the reserve when it was checked last.
    disk_was_full: bool,
}

impl Storage {
    /// The room on the log's disk.
    fn space(&self) -> Option<Space> {
        self.log.as_ref().map(|log| log.log().space())
    }
}

/// What the controller is yet to be told; a step never begins within another one.
#[derive(Default)]
struct Driver {
    inputs: VecDeque<controller::Input>,
    is_stepping: bool,
    /// Another node could lead nothing of what is led here.
    may_stop: bool,
    /// A replica's state is gone: the process must end.
    state_lost: Option<StorageError>,
}

/// Operators who wait, by the numbers of their verbs.
#[derive(Default)]
struct Verbs {
    waiting: BTreeMap<VerbId, oneshot::Sender<AdminReply>>,
    newest: VerbId,
    transfers: leader_transfer::Waiting,
}

/// Where this node serves, and the task that tells the directory so.
struct Announcement {
    addresses: Addresses,
    task: Option<AbortHandle>,
}

/// The control task's own state.
pub struct Control {
    shared: Arc<Handle>,
    /// What the worker threads are told, in order.
    outbox: Outbox,
    storage: Storage,
    controller: Controller,
    driver: Driver,
    /// Threads that fetch a snapshot and wait for the word whether it is wanted.
    offers: BTreeMap<FetchId, std::sync::mpsc::SyncSender<bool>>,
    verbs: Verbs,
    bootstrap: Bootstrap,
    announcement: Announcement,
    started: Instant,
    rates: Rates,
    /// The last minutes, for the page.
    history: History,
    certificates: certificates::Retirement,
    surveys: Schedule,
    questions: Questions,
    failed: Arc<dyn Fn(String) + Send + Sync>,
}

impl Control {
    /// A control task over this directory.
    fn new(start: Start, flush: Arc<status::FlushTimes>) -> Control {
        let Start { shared, home, addresses, started, failed } = start;
        let mailboxes = shared.workers.clone();
        Control {
            controller: Controller::new(mailboxes.count()),
            outbox: Outbox::new(mailboxes),
            storage: Storage { home, log: None, checkpoints: None, flush, disk_was_full: false },
            driver: Driver::default(),
            offers: BTreeMap::new(),
            verbs: Verbs::default(),
            bootstrap: Bootstrap::default(),
            announcement: Announcement { addresses, task: None },
            started,
            rates: Rates::default(),
            history: History::default(),
            certificates: certificates::Retirement::default(),
            surveys: Schedule::default(),
            questions: Questions::default(),
            failed,
            shared,
        }
    }
}

/// What the control task begins with.
pub struct Start {
    pub shared: Arc<Handle>,
    /// The node's directory.
    pub home: DataDir,
    /// Where the node serves.
    pub addresses: Addresses,
    /// When the clock began that the control task has in common with the workers.
    pub started: Instant,
    /// Called when the log can make nothing durable.
    pub failed: Arc<dyn Fn(String) + Send + Sync>,
}

/// Runs the control task and the ports on this thread until the node stops. `opened` hears when everything durable is
/// read, or why it cannot be.
pub fn run(
    start: Start,
    listeners: Listeners,
    events: mpsc::UnboundedReceiver<Event>,
    opened: oneshot::Sender<Result<(), StartError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
    {
        Ok(runtime) => runtime,
        Err(error) => {
            _ = opened.send(Err(StartError::Thread(error)));
            return;
        }
    };
    runtime.block_on(async move {
        match open(start, listeners).await {
            Ok(control) => {
                _ = opened.send(Ok(()));
                control.run(events).await;
            }
            Err(error) => _ = opened.send(Err(error)),
        }
    });
}

/// Reads what the directory holds, on a thread of its own, while the ports say how far that is; then they serve.
async fn open(mut start: Start, listeners: Listeners) -> Result<Control, StartError> {
    let (shared, flush) = (Arc::clone(&start.shared), Arc::default());
    let listeners = listeners.open().map_err(StartError::Thread)?;
    let identity = start.home.identity();
    let in_storage = |error| StartError::Storage { node: identity.map(|identity| identity.node), error };
    let mut recovered = None;
    if identity.is_some() {
        let hooks = groups::hooks(&shared, &flush, &start.failed);
        let (sender, mut read) = oneshot::channel();
        let thread = std::thread::Builder::new().name("recovery".into());
        let spawned = thread.spawn(move || {
            let found = recovery::read(&mut start.home, &start.shared, hooks);
            _ = sender.send((start, found));
        });
        spawned.map_err(StartError::Thread)?;
        let ended = |_| StartError::Thread(std::io::Error::other("the recovery thread ended at once"));
        let (again, found) = listeners.refuse_until(&shared, &mut read).await.map_err(ended)?;
        (start, recovered) = (again, Some(found.map_err(in_storage)?));
    }
    let mut control = Control::new(start, flush);
    if let Some(recovered) = recovered {
        control.begin(recovered).map_err(in_storage)?;
    }
    listeners.serve(&shared);
    Ok(control)
}

/// How often the control task reconciles what it published and what is the case: rates, memory, disk, certificates.
const RECONCILE: Duration = Duration::from_millis(500);

/// The same while replicas execute their logs: whoever started the node waits for the end of that.
const RECONCILE_RECOVERING: Duration = Duration::from_millis(20);

/// The same while nothing is decided here.
const RECONCILE_CALM: Duration = Duration::from_secs(1);

impl Control {
    /// Runs until `Stop` is carried out.
    async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut next_reconcile = tokio::time::Instant::now();
        while !self.driver.may_stop {
            self.outbox.send();
            let deadline = self.started + Duration::from_nanos(self.controller.deadline().0);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next_reconcile) => {
                    let wait = self.reconcile();
                    next_reconcile = tokio::time::Instant::now() + wait;
                }
                () = tokio::time::sleep_until(deadline.into()) => self.tell(controller::Input::Tick),
                () = tokio::time::sleep(outbox::RETRY), if !self.outbox.is_empty() => {}
                event = events.recv() => match event {
                    None => break,
                    Some(Event::Message(message)) => self.take(message),
                    Some(Event::Call(call)) => call(&mut self),
                },
            }
        }
        self.close();
    }

    fn take(&mut self, message: ToControl) {
        match message {
            ToControl::Report(report) => self.tell(controller::Input::Report(report)),
            ToControl::Status { get, reply } => status::answer_status(self, get, reply),
            ToControl::Live { after, reply } => live::answer_live(self, after, reply),
            ToControl::Readiness(reply) => status::answer_readiness(self, reply),
            ToControl::Admin { request, by, reply } => majority::answer_operator(self, by, *request, reply),
            ToControl::Question { asker, question, reply } => self.answer_question(*asker, *question, reply),
            ToControl::Vetted(node, Ok(())) => self.tell(controller::Input::LetIn(node)),
            ToControl::Vetted(by, Err(text)) => self.tell(controller::Input::IsCopy { by, text }),
            ToControl::Stop => leader_transfer::begin_stop(&self.shared),
        }
    }

    /// Of all groups of one worker thread: those that it runs no more have nothing to execute either.
    fn note_samples(&mut self, thread: usize, samples: &[Sample]) {
        self.rates.note(Instant::now(), samples);
        let recovery = &self.shared.recovery;
        for group in recovery.replaying().into_iter().filter(|&group| self.shared.workers.owner(group) == thread) {
            let sample = samples.iter().find(|sample| sample.group == group);
            let (done, all) = sample.and_then(|sample| sample.replay).unwrap_or_default();
            recovery.note(RecoveryStep::Replay(group), done, all);
        }
        if let Some(took) = recovery.end() {
            tracing::info!(took_ms = took.as_millis() as u64, "recovered: every replica here has executed its log");
        }
    }

    /// Returns how long until the next time.
    fn reconcile(&mut self) -> Duration {
        self.rates.retain(|group| self.controller.replicas().running().contains_key(&group));
        status::sample_rates(self);
        self.publish_node();
        self.history.note(Instant::now(), &self.shared.metrics, crate::process::resident_bytes);
        self.check_memory();
        self.certificates.check(&self.shared, &self.outbox);
        snapshots::tell_storage(self);
        self.shared.show_held_back();
        let rests = self.rates.rest();
        status::survey_if_due(self, rests);
        match (self.shared.recovery.is_over(), rests) {
            (false, _) => RECONCILE_RECOVERING,
            (true, true) => RECONCILE_CALM,
            (true, false) => RECONCILE,
        }
    }

    /// The gauges of the node itself: disk, and the warnings that `status` shows.
    fn publish_node(&mut self) {
        let space = self.storage.space();
        if let Some(space) = space {
            self.shared.metrics.log().set_disk(self.storage.flush.log_bytes(), space.free_bytes);
            self.shared
                .metrics
                .log()
                .set_queue_depth(self.storage.log.as_ref().map_or(0, |log| log.log().waiting() as u64));
        }
        let metrics = &self.shared.metrics;
        let full = space.filter(|space| space.full);
        if let Some(Space { free_bytes, reserve_bytes, .. }) = full.filter(|_| !self.storage.disk_was_full) {
            tracing::warn!(
                free_bytes,
                reserve_bytes,
                "disk reserve reached: writes that grow are refused where a majority has no more room"
            );
        } else if full.is_none() && self.storage.disk_was_full {
            tracing::info!("the disk has room again");
        }
        self.storage.disk_was_full = full.is_some();
        let condition = status::condition(self);
        metrics.set_warning(Warning::DiskReserve, condition.disk_is_full);
        metrics.set_warning(Warning::MemoryLimit, condition.memory_is_full);
        metrics.set_warning(Warning::Insecure, condition.is_insecure);
        metrics.set_warning(Warning::FlushOff, condition.flush_is_off);
    }

    /// Above `memory.limit` growing writes are refused; it clears by itself (operations.md 3).
    fn check_memory(&self) {
        let limit = self.shared.config.memory_limit;
        let used = crate::process::resident_bytes();
        let full = limit > 0 && used > limit;
        if full && !self.shared.usage.memory_is_full() {
            tracing::warn!(used, limit, "memory limit reached: writes that grow are refused");
        } else if !full && self.shared.usage.memory_is_full() {
            tracing::info!(used, limit, "memory is below its limit again");
        }
        self.shared.usage.set_memory_used(used, limit);
    }

    /// Now, on the controller's clock.
    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells the controller something, and carries out what it wants.
    fn tell(&mut self, input: controller::Input) {
        self.driver.inputs.push_back(input);
        if std::mem::replace(&mut self.driver.is_stepping, true) {
            return;
        }
        let mut effects = Vec::new();
        while let Some(input) = self.driver.inputs.pop_front() {
            self.controller.step(self.now(), input, &mut effects);
            effects.drain(..).for_each(|effect| self.perform(effect));
        }
        self.driver.is_stepping = false;
    }

    fn close(&mut self) {
        drop(self.storage.checkpoints.take());
        if let Err(error) = self.shared.own.incarnations.save() {
            tracing::warn!(%error, "durable positions of other nodes could not be saved");
        }
        if let Some(log) = self.storage.log.take() {
            log.close();
        }
    }
}
