//! What a node does beside its data path: forming a cluster, following the map, starting replicas, status, checkpoints.
//!
//! One task on a thread of its own. Shards tell it of rare events; it acts on them by closures that run on the shard's
//! thread between inputs. It never touches a replica itself.

mod admin;
mod bounds;
mod certificates;
mod coalesced;
mod digests;
mod effects;
mod forming;
mod groups;
mod growth;
mod listeners;
mod majority;
mod outbox;
mod rates;
mod snapshots;
mod status;
mod transfer;
mod tuning;
mod users;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use certificates::RETIRE_WITHIN;
use coppice_client::map::Addresses;
use coppice_client::wire::{AdminReply, AdminRequest, ClusterId, PartitionId, Status, StatusGet};
use coppice_core::controller::{self, Controller, FetchId, VerbId};
use coppice_core::settings::ClusterSettings;
use coppice_ordering::Time;
pub use forming::addresses;
pub use listeners::Listeners;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use self::coalesced::Coalesced;
use self::outbox::Outbox;
use self::rates::Rates;
use crate::admin_http;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::background::Checkpointer;
use crate::config::{Address, NODE_SETTINGS, NodeConfig};
use crate::datadir::DataDir;
use crate::log::{LogWriter, Space};
use crate::mailbox::Lane;
use crate::metrics::Warning;
use crate::net::rpc::{Answer, Asker, Question};
use crate::node::{StartError, StorageError};
use crate::shard::{Shard, ToShard};
use crate::shared::Shared;

/// What others tell the control task.
pub enum ToControl {
    /// For the controller.
    Input(controller::Input),
    /// A client asks for the status.
    Status {
        /// How.
        get: StatusGet,
        /// Where to.
        reply: oneshot::Sender<Arc<Status>>,
    },
    /// An operator's verb.
    Admin {
        /// Which.
        request: Box<AdminRequest>,
        /// Who asks; none: access control is off.
        by: Option<String>,
        /// Where to.
        reply: oneshot::Sender<AdminReply>,
    },
    /// Another node asks.
    Question {
        /// Who.
        asker: Box<Asker>,
        /// What.
        question: Box<Question>,
        /// Where to.
        reply: oneshot::Sender<Answer>,
    },
    /// A task of the control thread has something to do here, with everything at hand.
    Call(Box<dyn FnOnce(&mut Control) + Send>),
    /// Hand leaderships over, finish, stop.
    Stop,
}

/// The control task's own state.
pub struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) home: DataDir,
    pub(super) log: Option<LogWriter>,
    pub(super) checkpoints: Option<(Checkpoints, Arc<Checkpointer>)>,
    /// What decides.
    pub(super) controller: Controller,
    /// What it is yet to be told; a step never begins within another one.
    inputs: VecDeque<controller::Input>,
    is_stepping: bool,
    /// What the shards are told, in order.
    outbox: Outbox,
    /// Threads that fetch a snapshot and wait for the word whether it is wanted.
    offers: BTreeMap<FetchId, std::sync::mpsc::SyncSender<bool>>,
    /// Operators who wait, and the newest one's number.
    verbs: BTreeMap<VerbId, oneshot::Sender<AdminReply>>,
    newest_verb: VerbId,
    /// A replica's state is gone: the process must end.
    state_lost: Option<StorageError>,
    /// The cluster that `init` forms here, if it is asked for.
    pub(super) drawn: Option<ClusterId>,
    /// The nonce of the `init` that forms, or formed, the cluster here.
    pub(super) formed_for: Option<u64>,
    pub(super) settings: ClusterSettings,
    /// The directory, or a node that knows it, has told the settings since this process began.
    pub(super) told: bool,
    /// The same as the directory has them: those that differ from their defaults.
    pub(super) pairs: BTreeMap<String, String>,
    pub(super) addresses: Addresses,
    pub(super) started: Instant,
    /// Commands and instances decided when last looked at, for rates.
    rates: Rates,
    pub(super) flush: Arc<status::FlushTimes>,
    pub(super) failed: Arc<dyn Fn(String) + Send + Sync>,
    /// Whether the disk was filled to the reserve at the last look around.
    disk_was_full: bool,
    /// Connections that began with older certificates end since then.
    retiring_since: Option<std::time::Instant>,
    /// Instances that were decided here at the last look around.
    decided: u64,
    /// When the other nodes were asked last.
    surveyed: Option<Instant>,
    /// Questions that every node is asked, and who waits for their answers.
    statuses: Coalesced<Arc<Status>>,
    verdicts: Coalesced<AdminReply>,
    tunings: Coalesced<AdminReply>,
    majority: Coalesced<bool>,
    /// Tells the directory where this node serves now.
    announcing: Option<AbortHandle>,
}

impl Control {
    /// A control task over this directory; [`run`] runs it.
    pub fn new(
        shared: Arc<Shared>,
        home: DataDir,
        addresses: Addresses,
        failed: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Control {
        let shards = shared.shards();
        Control {
            outbox: Outbox::new(shards),
            controller: Controller::new(shards),
            inputs: VecDeque::new(),
            is_stepping: false,
            offers: BTreeMap::new(),
            verbs: BTreeMap::new(),
            newest_verb: 0,
            state_lost: None,
            shared,
            home,
            log: None,
            checkpoints: None,
            drawn: None,
            formed_for: None,
            settings: ClusterSettings::default(),
            told: false,
            pairs: BTreeMap::new(),
            addresses,
            started: Instant::now(),
            rates: Rates::default(),
            flush: Arc::default(),
            disk_was_full: false,
            retiring_since: None,
            failed,
            decided: 0,
            surveyed: None,
            statuses: Coalesced::default(),
            verdicts: Coalesced::default(),
            tunings: Coalesced::default(),
            majority: Coalesced::default(),
            announcing: None,
        }
    }
}

/// Runs the control task and the doors on this thread until the node stops. `opened` hears when everything durable is
/// recovered, or why it cannot be.
pub fn run(
    mut control: Control,
    listeners: Listeners,
    messages: mpsc::UnboundedReceiver<ToControl>,
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
        if let Err(error) = control.open_log() {
            let node = control.home.identity().map(|identity| identity.node);
            _ = opened.send(Err(StartError::Storage { node, error }));
            return;
        }
        let shared = Arc::clone(&control.shared);
        if let Err(error) = listeners.serve(&shared) {
            _ = opened.send(Err(StartError::Thread(error)));
            return;
        }
        _ = opened.send(Ok(()));
        control.run(messages).await;
    });
}

/// What admin HTTP may ask of the node.
pub fn admin_http(shared: &Arc<Shared>) -> admin_http::Admin {
    let (for_status, for_readiness, for_config) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
    let for_access = Arc::clone(shared);
    admin_http::Admin {
        metrics: shared.metrics.clone(),
        access: Arc::new(move || for_access.access()),
        status: Arc::new(move || {
            let (sender, receiver) = oneshot::channel();
            for_status.tell_control(ToControl::Status { get: StatusGet { local: false }, reply: sender });
            Box::pin(
                async move { receiver.await.map(|status| crate::cli::status::to_json(&status)).unwrap_or_default() },
            )
        }),
        readiness: admin_http::ask(move || readiness(&for_readiness)),
        config: admin_http::ask(move || {
            let rows =
                NODE_SETTINGS.iter().map(|setting| (setting.key.to_owned(), setting.show(&for_config.config).into()));
            serde_json::Value::Object(rows.collect())
        }),
        hosts: hosts(&shared.config),
    }
}

/// The names by which this node is listened to, or others are told to dial it.
fn hosts(config: &NodeConfig) -> admin_http::Hosts {
    let (listen, advertise) = (&config.listen, &config.advertise);
    let listens = [Some(&listen.native), Some(&listen.peer), listen.admin.as_ref()];
    let advertised = [advertise.native.as_ref(), advertise.peer.as_ref(), advertise.admin.as_ref()];
    admin_http::Hosts::new(listens.into_iter().chain(advertised).flatten().map(Address::host))
}

/// Why the node is not ready; empty if it is.
fn readiness(shared: &Shared) -> Vec<String> {
    let Some(identity) = shared.identity() else { return vec!["waiting for init".into()] };
    let map = shared.map();
    if map.version.0 == 0 {
        return vec!["the partition map is not known yet".into()];
    }
    if shared.is_draining() {
        return vec!["the node is stopping".into()];
    }
    let hosted = map.groups();
    let hosted = hosted.filter(|entry| entry.replica_on(identity.node).is_some());
    let leaderless = hosted.filter(|entry| shared.leader(entry.partition).is_none());
    leaderless.map(|entry| format!("{} has no leader that this node knows", entry.partition)).collect()
}

/// How often the control task looks around: rates, memory, disk, certificates.
const LOOK: Duration = Duration::from_millis(500);

/// The same while nothing is decided here.
const LOOK_CALM: Duration = Duration::from_secs(1);

impl Control {
    /// Runs until `Stop`.
    pub async fn run(mut self, mut messages: mpsc::UnboundedReceiver<ToControl>) {
        let mut next_look = tokio::time::Instant::now();
        loop {
            self.outbox.send(&self.shared);
            let deadline = self.started + Duration::from_nanos(self.controller.deadline().0);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next_look) => {
                    let wait = self.look_around();
                    next_look = tokio::time::Instant::now() + wait;
                }
                () = tokio::time::sleep_until(deadline.into()) => self.tell(controller::Input::Tick),
                () = tokio::time::sleep(outbox::RETRY), if !self.outbox.is_empty() => {}
                message = messages.recv() => match message {
                    None | Some(ToControl::Stop) => break,
                    Some(message) => self.take(message),
                },
            }
        }
        self.stop().await;
    }

    fn take(&mut self, message: ToControl) {
        match message {
            ToControl::Input(input) => self.tell(input),
            ToControl::Status { get, reply } => self.answer_status(get, reply),
            ToControl::Admin { request, by, reply } => self.answer_operator(by, *request, reply),
            ToControl::Question { asker, question, reply } => self.answer_question(*asker, *question, reply),
            ToControl::Call(call) => call(self),
            ToControl::Stop => {}
        }
    }

    /// Returns how long until the next look.
    fn look_around(&mut self) -> Duration {
        self.rates.retain(|group| self.controller.replicas().running().contains_key(&group));
        self.sample_rates();
        self.publish_node();
        self.check_memory();
        self.look_at_certificates();
        self.tell_storage();
        self.shared.show_held_back();
        let decided = self.rates.instances();
        let rests = std::mem::replace(&mut self.decided, decided) == decided;
        self.survey_if_due(rests);
        if rests { LOOK_CALM } else { LOOK }
    }

    /// The gauges of the node itself: disk, and the warnings that `status` shows.
    fn publish_node(&mut self) {
        let space = self.log.as_ref().map(|log| log.log().space());
        if let Some(space) = space {
            self.shared.metrics.log().set_disk(self.flush.log_bytes(), space.free_bytes);
            self.shared.metrics.log().set_queue_depth(self.log.as_ref().map_or(0, |log| log.log().waiting() as u64));
        }
        let config = &self.shared.config;
        let metrics = &self.shared.metrics;
        let full = space.filter(|space| space.full);
        if let Some(Space { free_bytes, reserve_bytes, .. }) = full.filter(|_| !self.disk_was_full) {
            tracing::warn!(
                free_bytes,
                reserve_bytes,
                "disk reserve reached: writes that grow are refused where a majority has no more room"
            );
        } else if full.is_none() && self.disk_was_full {
            tracing::info!("the disk has room again");
        }
        self.disk_was_full = full.is_some();
        metrics.set_warning(Warning::DiskReserve, self.disk_was_full);
        metrics.set_warning(Warning::MemoryLimit, self.shared.memory_is_full());
        metrics.set_warning(Warning::Insecure, config.insecure && self.shared.tls().is_none());
        metrics.set_warning(Warning::FlushOff, config.log.flush == crate::config::Flush::Off);
    }

    /// Above `memory.limit` growing writes are refused; it clears by itself (operations.md 3).
    fn check_memory(&self) {
        let limit = self.shared.config.memory_limit;
        let used = status::resident_bytes();
        let full = limit > 0 && used > limit;
        if full && !self.shared.memory_is_full() {
            tracing::warn!(used, limit, "memory limit reached: writes that grow are refused");
        }
        self.shared.set_memory_used(used, limit);
    }

    /// Now, on the controller's clock.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells the controller something, and carries out what it wants.
    pub(super) fn tell(&mut self, input: controller::Input) {
        self.inputs.push_back(input);
        if std::mem::replace(&mut self.is_stepping, true) {
            return;
        }
        let mut effects = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.controller.step(self.now(), input, &mut effects);
            effects.drain(..).for_each(|effect| self.perform(effect));
        }
        self.is_stepping = false;
    }

    /// Runs `call` on the thread of the shard that owns `group`.
    pub(super) fn on_shard(&self, group: PartitionId, call: impl FnOnce(&mut Shard) + Send + 'static) {
        self.on_shard_index(group.0 as usize % self.shared.shards(), call);
    }

    /// Runs `call` on the thread of this shard, behind everything that it was told before.
    pub(super) fn on_shard_index(&self, shard: usize, call: impl FnOnce(&mut Shard) + Send + 'static) {
        self.outbox.put(&self.shared, shard, ToShard::Call(Box::new(call)));
    }

    /// Runs `call` here after this pause.
    fn later(&self, pause: Duration, call: impl FnOnce(&mut Control) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        crate::task::spawn(async move {
            tokio::time::sleep(pause).await;
            shared.tell_control(ToControl::Call(Box::new(call)));
        });
    }

    async fn stop(&mut self) {
        self.shared.drain();
        self.transfer_all().await;
        drop(self.checkpoints.take());
        if let Err(error) = self.shared.witnesses.save() {
            tracing::warn!(%error, "durable positions of other nodes could not be saved");
        }
        if let Some(log) = self.log.take() {
            log.close();
        }
    }
}

/// A call for a shard's thread.
pub(crate) type Call = Box<dyn FnOnce(&mut Shard) + Send>;

/// Puts a call into a shard's mailbox; control work is rare, so a full mailbox is simply waited for.
pub(crate) fn push_call(shared: &Arc<Shared>, shard: usize, call: Call) {
    let mut input = ToShard::Call(call);
    for _ in 0..1_000 {
        match shared.sender(shard).push(Lane::Consensus, input) {
            Ok(()) => return,
            Err(back) => input = back,
        }
        std::thread::yield_now();
    }
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        let mut input = input;
        while let Err(back) = shared.sender(shard).push(Lane::Consensus, input) {
            input = back;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Asks the shard that owns `group` something and waits for the answer; `None` if the shard does not answer in time.
pub(super) async fn ask_shard<T: Send + 'static>(
    shared: &Arc<Shared>,
    shard: usize,
    timeout: Duration,
    ask: impl FnOnce(&mut Shard) -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    push_call(
        shared,
        shard,
        Box::new(move |shard| {
            _ = sender.send(ask(shard));
        }),
    );
    tokio::time::timeout(timeout, receiver).await.ok()?.ok()
}
