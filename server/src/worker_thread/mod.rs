//! A worker thread: owns a [`Worker`] and the sockets that it was given, feeds the one from the other, and carries out
//! what the worker wants.
//!
//! Each worker thread runs on a current-thread runtime of its own, so a message needs no hop between the thread that
//! reads the socket and the one that owns the replica: waking another thread costs about 25 us here, a fifth of a
//! durable put. What belongs to another worker thread, and what the log writer made durable, comes through the bounded
//! mailbox.
//!
//! Inputs are stepped as they come; all their effects leave together at the end of the turn: one append to the log, one
//! write per link, one write per connection.

mod configure;
pub mod connection;
mod connections;
mod control_requests;
mod effects;
mod facts;
mod gauges;
mod idle;
mod load;
mod mailboxes;
mod peer_connection;
mod step_clock;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::channel::Parked;
use coppice_client::wire::{ClientId, NodeId, PartitionId};
use coppice_core::cost::ClientBytes;
use coppice_core::replica::{self, QueryPart};
use coppice_core::replica_manager::Start;
use coppice_core::request::{Refusal, Reply};
use coppice_core::worker::{self, Effect, Group, Input, Worker};
use coppice_ordering::Time;
pub use gauges::GroupMetrics;
pub(crate) use gauges::publish;
pub use load::Flushes;
pub(crate) use load::tell_load;
pub use mailboxes::Mailboxes;
use tokio::runtime::LocalOptions;
use tokio::sync::Notify;

use self::connection::Connection;
use crate::checkpoint::background::Checkpointer;
use crate::log::{Append, Log};
use crate::mailbox::{Priority, Receiver};
use crate::metrics::{self, Stage};
use crate::net::link::Link;
use crate::net::peer_slots::PeerSlot;
use crate::shared::Shared;

/// Within so long a connection that began with certificates that have been replaced is closed, whatever waits on it.
pub const RETIRE_WITHIN: Duration = Duration::from_secs(60);

/// Inputs taken from the mailbox in one turn: more than a flush makes durable, few enough to look at the sockets again
/// within a fraction of a millisecond.
const TURN_INPUTS_MAX: usize = 256;

/// Longest time that a turn spends on inputs; one input may take milliseconds.
pub(crate) const TURN_TIME_MAX: Duration = Duration::from_millis(2);

/// What other threads send to a worker thread.
pub enum ToWorker {
    /// Of another worker of this node.
    Worker(worker::Message),
    /// A query's part whose client is connected here.
    Part(Box<QueryPart>),
    /// A client connected.
    Client(Parked),
    /// A node connected, said who it is, and perhaps more already.
    Peer {
        node: NodeId,
        /// Its boot id: when a newer one is let in, the connection is over.
        boot_id: u64,
        /// Its connection.
        stream: Parked,
        /// What came behind the greeting.
        received: BytesMut,
        /// Its slot among the node's connections.
        slot: PeerSlot,
    },
    /// Something that the threads share has changed.
    Look,
    /// Control work: runs on the worker thread, between inputs.
    Call(Box<dyn FnOnce(&mut WorkerThread) + Send>),
}

/// The end of a turn that something waits for.
#[derive(Default)]
struct Turn {
    bell: Notify,
    wanted: Cell<bool>,
}

impl Turn {
    /// Something waits for the end of a turn.
    fn want(&self) {
        if !self.wanted.replace(true) {
            self.bell.notify_one();
        }
    }

    async fn wanted(&self) {
        self.bell.notified().await;
    }

    /// It ends now; what comes from here on waits for the next one.
    fn ends(&self) {
        self.wanted.set(false);
    }

    fn is_wanted(&self) -> bool {
        self.wanted.get()
    }
}

/// What the tasks of a worker thread wait for.
#[derive(Default)]
struct Bells {
    turn: Rc<Turn>,
    /// The worker's deadline may have changed.
    timer: Rc<Notify>,
    /// The worker wants to hear when everything else had its turn.
    yielded: Rc<Notify>,
}

/// Effects of the worker on their way to be carried out.
#[derive(Default)]
struct EffectQueue {
    ready: Vec<Effect>,
    /// Of steps that effects of another one brought about: records keep their order.
    later: Vec<Effect>,
    is_performing: bool,
}

/// Where the thread's records and checkpoints go.
#[derive(Default)]
struct Storage {
    log: Option<Log>,
    checkpointer: std::sync::Weak<Checkpointer>,
    /// For the end of the turn.
    appends: Vec<Append>,
}

/// Requests of the node itself, by stream.
#[derive(Default)]
struct OwnRequests {
    waiting: HashMap<u32, tokio::sync::oneshot::Sender<Reply>>,
    newest: u32,
}

/// What a worker thread owns. One thread only ever touches it.
pub struct WorkerThread {
    /// Number of this worker thread; a group belongs to worker thread `group % count`.
    pub index: usize,
    pub(crate) shared: Arc<Shared>,
    mailboxes: Mailboxes,
    pub(crate) worker: Worker,
    /// What it is told of the world.
    facts: facts::Facts,
    /// What the other nodes hear of the room here.
    is_full: bool,
    effects: EffectQueue,
    pub(crate) connections: connections::Connections,
    pub(crate) links: BTreeMap<NodeId, Rc<Link>>,
    storage: Storage,
    idle: idle::IdleWaits,
    bells: Bells,
    own: OwnRequests,
    pub(crate) clock: step_clock::StepClock,
    pub(crate) metrics: gauges::ThreadMetrics,
    this: std::rc::Weak<RefCell<WorkerThread>>,
}

impl WorkerThread {
    fn new(index: usize, shared: Arc<Shared>, mailboxes: Mailboxes, started: Clock) -> Rc<RefCell<WorkerThread>> {
        let metrics = shared.metrics.worker(index);
        let idle = idle::IdleWaits::new(shared.config.busy_poll);
        Rc::new_cyclic(|this| {
            RefCell::new(WorkerThread {
                index,
                worker: Worker::new(index, mailboxes.count()),
                shared,
                mailboxes,
                facts: facts::Facts::default(),
                is_full: false,
                effects: EffectQueue::default(),
                connections: connections::Connections::default(),
                links: BTreeMap::new(),
                storage: Storage::default(),
                idle,
                bells: Bells::default(),
                own: OwnRequests::default(),
                clock: step_clock::StepClock::new(started, metrics.clone()),
                metrics: gauges::ThreadMetrics::new(metrics),
                this: this.clone(),
            })
        })
    }

    /// The worker thread's own reference, for the tasks that it starts.
    pub fn this(&self) -> Rc<RefCell<WorkerThread>> {
        self.this.upgrade().expect("a thread that runs is referred to by its thread")
    }

    /// Now, on the clock of this node.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Uses this log, and this writer of checkpoints, from now on.
    pub fn set_storage(&mut self, log: Log, checkpointer: std::sync::Weak<Checkpointer>) {
        (self.storage.log, self.storage.checkpointer) = (Some(log), checkpointer);
        self.facts.may_have_changed();
    }

    /// Tells the worker how far the log is durable for its groups.
    fn take_durable(&mut self) {
        let durable = self.mailboxes.take_durable(self.index);
        if !durable.is_empty() {
            self.idle.flushed();
        }
        for (group, lsn) in durable {
            self.input(Input::Persisted { group, lsn });
        }
    }

    fn take(&mut self, input: ToWorker) {
        match input {
            ToWorker::Worker(message) => self.input(Input::Worker(message)),
            ToWorker::Part(part) => self.give_part(part),
            ToWorker::Client(stream) => self.add_client(stream),
            ToWorker::Peer { node, boot_id, stream, received, slot } => {
                self.add_peer((node, boot_id), stream, received, slot);
            }
            ToWorker::Look => self.look(),
            ToWorker::Call(call) => call(self),
        }
    }

    /// Something that the threads share has changed: the worker is told.
    pub fn look(&mut self) {
        self.facts.may_have_changed();
        self.bells.turn.want();
        self.tell_facts();
    }

    /// Steps the worker and carries out what that asks for; sockets and log are written at the end of the turn.
    pub fn input(&mut self, input: Input) {
        self.bells.turn.want();
        self.tell_facts();
        self.step(input);
    }

    /// Something for the replica of one group.
    pub fn input_of(&mut self, group: PartitionId, input: replica::Input) {
        self.input(Input::Replica(group, Box::new(input)));
    }

    fn step(&mut self, input: Input) {
        self.tell_fence();
        let now = self.now();
        let before = self.worker.counters();
        let mut effects = std::mem::take(&mut self.effects.ready);
        self.worker.step(now, input, &mut effects);
        let did = self.worker.counters();
        let took = self.clock.stepped_since(now);
        let executed = did.executed_commands > before.executed_commands;
        self.metrics.worker.stage_busy(if executed { Stage::Execute } else { Stage::Order }, took);
        if did.multicast_messages > before.multicast_messages {
            self.metrics.worker.multicast_messages(did.multicast_messages - before.multicast_messages);
        }
        self.metrics.note_samples(&mut self.worker);
        // Whoever only lets everything else have its turn leaves nothing for the end of one.
        if !self.worker.stepped().is_empty() || !matches!(effects[..], [] | [Effect::Yield]) {
            self.bells.turn.want();
        }
        if self.effects.is_performing {
            // What an effect brings about comes behind the other effects of its step: records keep their order.
            return self.effects.later.append(&mut effects);
        }
        self.effects.is_performing = true;
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.perform(effect);
            }
            std::mem::swap(&mut effects, &mut self.effects.later);
        }
        self.effects.is_performing = false;
        self.effects.ready = effects;
    }

    fn add_client(&mut self, stream: Parked) {
        let Ok(stream) = stream.resume() else { return self.shared.usage.connection_closed() };
        if self.shared.usage.connections() > self.shared.config.limits.connections && !self.make_way() {
            self.shared.usage.connection_closed();
            return connection::turn_away(&stream, self.shared.config.limits.connections);
        }
        let id = self.connections.next_id();
        let connection = Connection::new((self.index, id), stream, Arc::clone(&self.shared));
        self.connections.insert(Rc::clone(&connection));
        crate::task::spawn(connection::serve(self.this(), connection));
    }

    /// The port is full: connections that have nothing in flight give way, if there are any.
    fn make_way(&self) -> bool {
        let connections = self.shared.usage.connections().saturating_sub(self.shared.metrics.resp().connections());
        let ungreeted = connections.saturating_sub(self.shared.clients().connections());
        let closed = self.connections.make_way(connections, ungreeted);
        (0..closed).for_each(|_| self.metrics.worker.rejected(metrics::Queue::Connections));
        closed > 0
    }

    fn add_peer(&mut self, (node, boot_id): (NodeId, u64), stream: Parked, received: BytesMut, slot: PeerSlot) {
        let Ok(stream) = stream.resume() else { return };
        self.shared.peers.heard(node, self.now(), true);
        self.shared.peers.set_full(node, false);
        let serving = peer_connection::serve(self.this(), (node, boot_id), stream, received);
        crate::task::spawn(async move {
            tokio::select! {
                () = serving => {}
                () = slot.taken() => {}
            }
        });
    }

    /// A replica lives here from now on.
    pub(crate) fn start(&mut self, start: Start, incarnation: u64, metrics: metrics::Partition) {
        self.metrics.groups.insert(start.group, GroupMetrics::new(metrics));
        self.input(Input::Start { start: Box::new(start), seed: crate::random::draw(), incarnation });
    }

    /// Hosts this group no more.
    pub fn drop_group(&mut self, id: PartitionId) {
        self.input(Input::Drop(id));
        self.metrics.groups.remove(&id);
        self.shared.cluster.set_leader(id, None);
    }

    fn end_turn(&mut self) {
        let begun = self.clock.begins();
        self.bells.turn.ends();
        self.tell_facts();
        self.step(Input::TurnEnd);
        if !self.storage.appends.is_empty() {
            if self.storage.appends.iter().any(|append| !append.lazy) {
                self.idle.appended();
            }
            let appends = std::mem::take(&mut self.storage.appends);
            if let Some(log) = &self.storage.log {
                // Blocks while the writer's queue is full: a worker thread that waits here reads no socket. Not while
                // the disk is: what finds no place then waits for a later turn.
                self.storage.appends = log.append_if_room(appends);
            }
            failpoint!("worker.appended");
        }
        let respond = Clock::now();
        let durable = self.shared.durable_lsn();
        self.links.values().for_each(|link| link.flush(durable, self.is_full, respond));
        if self.connections.flush() {
            self.idle.answered();
        }
        self.metrics.worker.stage_busy(Stage::Respond, respond.elapsed());
        self.metrics.worker.set_tickets_in_flight(self.worker.coordinator().tickets_in_flight() as u64);
        self.metrics.worker.turn();
        self.clock.ends(begun);
        self.idle.end_turn();
        self.facts.may_have_changed();
        self.bells.timer.notify_one();
    }

    fn tick(&mut self) {
        let begun = self.clock.begins();
        self.input(Input::Tick);
        self.clock.ends(begun);
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = self.now();
        self.worker.deadline().map(|deadline| deadline.since(now))
    }

    /// Everything else had its turn. If another one is wanted, there is more to do.
    fn yielded(&mut self) {
        let (begun, is_busy) = (self.clock.begins(), self.bells.turn.is_wanted());
        self.input(Input::Yielded { is_busy });
        let took = self.clock.ends(begun);
        self.idle.ran(took);
    }
}

/// Pins this thread to a core, if there is one for it.
pub fn pin(index: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(index % cores.len().max(1)) {
        core_affinity::set_for_current(*core);
    }
}

/// Runs a worker thread on this thread until `stop` rings.
pub fn run(
    index: usize,
    (shared, mailboxes): (Arc<Shared>, Mailboxes),
    receiver: Receiver<ToWorker>,
    started: Clock,
    stop: Arc<Notify>,
) {
    // Not a `LocalSet`: the root task that polls one is woken through the system's event queue.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else {
        tracing::error!("no event loop for a worker thread");
        std::process::exit(1);
    };
    let thread = WorkerThread::new(index, shared, mailboxes, started);
    runtime.spawn_local(turns(Rc::clone(&thread)));
    runtime.spawn_local(timers(Rc::clone(&thread)));
    runtime.spawn_local(yields(Rc::clone(&thread)));
    runtime.spawn_local(inputs(Rc::clone(&thread), receiver));
    if !thread.borrow().shared.config.busy_poll.is_zero() {
        runtime.spawn_local(idle::poll(Rc::clone(&thread)));
    }
    runtime.block_on(stop.notified());
}

/// Ends turns: woken by the first input of a turn, it runs after the tasks that were ready with it.
async fn turns(thread: Rc<RefCell<WorkerThread>>) {
    let turn = Rc::clone(&thread.borrow().bells.turn);
    loop {
        turn.wanted().await;
        thread.borrow_mut().end_turn();
    }
}

/// Gives everything else its turn when the worker asks for that.
async fn yields(thread: Rc<RefCell<WorkerThread>>) {
    let bell = Rc::clone(&thread.borrow().bells.yielded);
    loop {
        bell.notified().await;
        // The event loop looks at its sockets and tasks take what they have; then those run that other threads woke.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        thread.borrow_mut().yielded();
    }
}

/// An idle worker thread turns at least this often, so that `/livez` sees it alive.
const IDLE_TURN: Duration = Duration::from_millis(500);

async fn timers(thread: Rc<RefCell<WorkerThread>>) {
    let timer = Rc::clone(&thread.borrow().bells.timer);
    loop {
        let wait = thread.borrow().next_deadline().unwrap_or(IDLE_TURN).min(IDLE_TURN);
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => thread.borrow_mut().tick(),
            () = timer.notified() => {}
        }
    }
}

async fn inputs(thread: Rc<RefCell<WorkerThread>>, receiver: Receiver<ToWorker>) {
    loop {
        let (mut taken, mut begun) = (0, thread.borrow().clock.begins());
        loop {
            thread.borrow_mut().take_durable();
            let Some(input) = receiver.pop() else { break };
            thread.borrow_mut().take(input);
            taken += 1;
            if taken == TURN_INPUTS_MAX || begun.elapsed() > TURN_TIME_MAX {
                thread.borrow().clock.ends(begun);
                tokio::task::yield_now().await;
                (taken, begun) = (0, thread.borrow().clock.begins());
            }
        }
        if taken > 0 {
            thread.borrow().clock.ends(begun);
        }
        receiver.wait().await;
    }
}
