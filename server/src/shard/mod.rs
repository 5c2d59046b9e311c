//! A shard thread: owns a [`Worker`] and the sockets that it was given, feeds the one from the other, and carries out
//! what the worker wants. Beside that it tunes batches (`tuning`).
//!
//! Each shard runs on a current-thread runtime of its own, so a message needs no hop between the thread that reads the
//! socket and the one that owns the replica: waking another thread costs about 25 us here, a fifth of a durable put.
//! What belongs to another shard, and what the log writer made durable, comes through the bounded mailbox.
//!
//! Inputs are stepped as they come; all their effects leave together at the end of the turn: one append to the log, one
//! write per link, one write per connection.

mod control;
mod facts;
mod gauges;
mod look;
mod perform;
mod steps;
mod tuning;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::channel::Parked;
use coppice_client::wire::{ClientId, NodeId, PartitionId};
use coppice_core::cost::ClientBytes;
use coppice_core::replica::{self, QueryPart, Samples};
use coppice_core::request::{Refusal, Reply};
use coppice_core::worker::{self, Effect, Group, Input, Worker};
use coppice_ordering::Time;
pub use gauges::Observed;
use tokio::runtime::LocalOptions;
use tokio::sync::{Notify, Semaphore};
pub use tuning::{Flushes, Tuned};

use crate::checkpoint::background::Checkpointer;
use crate::log::{Append, Log};
use crate::mailbox::{Lane, Receiver};
use crate::metrics::{self, Stage};
use crate::net::eviction;
use crate::net::link::Link;
use crate::net::peer_in::Place;
use crate::net::public::Connection;
use crate::net::streams::Slice;
use crate::shared::Shared;

/// Inputs taken from the mailbox in one turn: more than a flush makes durable, few enough to look at the sockets again
/// within a fraction of a millisecond.
const TURN_INPUTS_MAX: usize = 256;

/// Or inputs, or messages of a peer, that take so long: each may be a step of a few milliseconds.
pub(crate) const TURN_TIME_MAX: Duration = Duration::from_millis(2);

/// What other threads send to a shard.
pub enum ToShard {
    /// Of another worker of this node.
    Worker(worker::Message),
    /// A query's part whose client is connected here.
    Part(Box<QueryPart>),
    /// A client connected.
    Client(Parked),
    /// A node connected, said who it is, and perhaps more already.
    Peer {
        /// Who.
        node: NodeId,
        /// Its life: when a newer one is let in, the connection is over.
        life: u64,
        /// Its connection.
        stream: Parked,
        /// What came behind the greeting.
        received: BytesMut,
        /// Its place among the node's connections.
        place: Place,
    },
    /// Something that the threads share has changed.
    Look,
    /// Control work: runs on the shard thread, between inputs.
    Call(Box<dyn FnOnce(&mut Shard) + Send>),
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

/// What a shard thread owns. One thread only ever touches it.
pub struct Shard {
    /// Number of this shard; a group belongs to shard `group % shards`.
    pub index: usize,
    pub(crate) shared: Arc<Shared>,
    started: Clock,
    pub(crate) worker: Worker,
    /// What it is told of the world.
    facts: facts::Facts,
    effects: Vec<Effect>,
    /// Effects of steps that effects of another one brought about.
    later: Vec<Effect>,
    is_performing: bool,
    /// What is published of each group.
    pub(crate) observed: BTreeMap<PartitionId, Observed>,
    pub(crate) connections: HashMap<u64, Rc<Connection>>,
    next_connection: u64,
    pub(crate) links: BTreeMap<NodeId, Rc<Link>>,
    log: Option<Log>,
    checkpointer: std::sync::Weak<Checkpointer>,
    appends: Vec<Append>,
    tuner: tuning::Tuner,
    idle: look::Look,
    /// Connections with something to write.
    dirty: Vec<u64>,
    samples: Samples,
    turn: Rc<Turn>,
    timer: Rc<Notify>,
    /// Rung at the end of a turn that leaves batches to run speculatively.
    speculation: Rc<Notify>,
    pub(crate) metrics: metrics::Shard,
    /// Requests of the node itself, by stream.
    own: HashMap<u32, tokio::sync::oneshot::Sender<Reply>>,
    next_own: u32,
    /// Time spent in steps so far: whoever measures a stage around them takes it off.
    stepped: Duration,
    steps: steps::Steps,
    /// Connections with much to do have their turn one after the other.
    pub(crate) slices: Rc<Semaphore>,
    this: std::rc::Weak<RefCell<Shard>>,
}

impl Shard {
    fn new(index: usize, shared: Arc<Shared>, started: Clock) -> Rc<RefCell<Shard>> {
        let metrics = shared.metrics.shard(index);
        let look = look::Look::new(shared.config.busy_poll);
        Rc::new_cyclic(|this| {
            RefCell::new(Shard {
                index,
                worker: Worker::new(index, shared.shards()),
                shared,
                started,
                facts: facts::Facts::default(),
                effects: Vec::new(),
                later: Vec::new(),
                is_performing: false,
                observed: BTreeMap::new(),
                connections: HashMap::new(),
                next_connection: 0,
                links: BTreeMap::new(),
                log: None,
                checkpointer: std::sync::Weak::new(),
                appends: Vec::new(),
                tuner: tuning::Tuner::new(),
                idle: look,
                dirty: Vec::new(),
                samples: Samples::default(),
                turn: Rc::new(Turn::default()),
                timer: Rc::new(Notify::new()),
                speculation: Rc::new(Notify::new()),
                metrics,
                own: HashMap::new(),
                next_own: 0,
                stepped: Duration::ZERO,
                steps: steps::Steps::new(),
                slices: Rc::new(Semaphore::new(1)),
                this: this.clone(),
            })
        })
    }

    /// The shard's own reference, for the tasks that it starts.
    pub fn this(&self) -> Rc<RefCell<Shard>> {
        self.this.upgrade().expect("a shard that runs is referred to by its thread")
    }

    /// Now, on the clock of this node.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Uses this log, and this writer of checkpoints, from now on.
    pub fn set_storage(&mut self, log: Log, checkpointer: std::sync::Weak<Checkpointer>) {
        (self.log, self.checkpointer) = (Some(log), checkpointer);
        self.facts.may_have_changed();
    }

    /// Tells the worker how far the log is durable for its groups.
    fn take_durable(&mut self) {
        let durable = self.shared.durable_upto(self.index).take();
        if !durable.is_empty() {
            self.idle.flushed();
        }
        for (group, lsn) in durable {
            self.input(Input::Persisted { group, lsn });
        }
    }

    fn take(&mut self, input: ToShard) {
        match input {
            ToShard::Worker(message) => self.input(Input::Worker(message)),
            ToShard::Part(part) => self.give_part(part),
            ToShard::Client(stream) => self.add_client(stream),
            ToShard::Peer { node, life, stream, received, place } => {
                self.add_peer((node, life), stream, received, place);
            }
            ToShard::Look => self.look(),
            ToShard::Call(call) => call(self),
        }
    }

    /// Something that the threads share has changed: the worker is told.
    pub fn look(&mut self) {
        self.facts.may_have_changed();
        self.turn.want();
        self.tell_facts();
    }

    /// Steps the worker and carries out what that asks for; sockets and log are written at the end of the turn.
    pub fn input(&mut self, input: Input) {
        self.turn.want();
        self.tell_facts();
        self.step(input);
    }

    /// Something for the replica of one group.
    pub fn input_of(&mut self, group: PartitionId, input: replica::Input) {
        self.input(Input::Replica(group, Box::new(input)));
    }

    fn step(&mut self, input: Input) {
        self.look_at_vetting();
        let now = self.now();
        let before = self.worker.counters();
        let mut effects = std::mem::take(&mut self.effects);
        self.worker.step(now, input, &mut effects);
        let did = self.worker.counters();
        let took = Duration::from_nanos(self.started.elapsed().as_nanos() as u64 - now.0);
        self.stepped += took;
        let executed = did.executed_commands > before.executed_commands;
        self.metrics.stage_busy(if executed { Stage::Execute } else { Stage::Order }, took);
        if did.multicast_messages > before.multicast_messages {
            self.metrics.multicast_messages(did.multicast_messages - before.multicast_messages);
        }
        self.note_samples();
        if !self.worker.stepped().is_empty() || !effects.is_empty() {
            self.turn.want();
        }
        if self.is_performing {
            // What an effect brings about comes behind the other effects of its step: records keep their order.
            return self.later.append(&mut effects);
        }
        self.is_performing = true;
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.perform(effect);
            }
            std::mem::swap(&mut effects, &mut self.later);
        }
        self.is_performing = false;
        self.effects = effects;
    }

    fn add_client(&mut self, stream: Parked) {
        let Ok(stream) = stream.resume() else { return self.shared.connection_closed() };
        if self.shared.connections() > self.shared.config.limits.connections && !self.make_way() {
            self.shared.connection_closed();
            return crate::net::public::turn_away(&stream);
        }
        self.next_connection += 1;
        let id = self.next_connection;
        let connection = Connection::new((self.index, id), stream, Arc::clone(&self.shared));
        self.connections.insert(id, Rc::clone(&connection));
        crate::task::spawn(crate::net::public::serve(self.this(), connection));
    }

    /// The port is full: connections that have nothing in flight give way, if there are any.
    fn make_way(&self) -> bool {
        let idle = self.connections.values().filter_map(|connection| connection.candidate()).collect();
        let connections = self.shared.connections();
        let ungreeted = connections.saturating_sub(self.shared.clients().connections());
        let give_way = eviction::give_way((connections, ungreeted), idle);
        for connection in give_way.iter().filter_map(|id| self.connections.get(id)) {
            self.metrics.rejected(metrics::Queue::Connections);
            connection.close();
        }
        !give_way.is_empty()
    }

    fn add_peer(&mut self, (node, life): (NodeId, u64), stream: Parked, received: BytesMut, place: Place) {
        let Ok(stream) = stream.resume() else { return };
        self.shared.heard(node, self.now(), true);
        self.shared.set_node_full(node, false);
        let serving = crate::net::peer_in::serve(self.this(), (node, life), stream, received);
        crate::task::spawn(async move {
            tokio::select! {
                () = serving => {}
                () = place.taken() => {}
            }
        });
    }

    /// Hosts a replica from now on; `effects` are those of its start.
    pub fn host(&mut self, group: Group, effects: Vec<replica::Effect>, metrics: metrics::Partition) {
        self.observed.insert(group.replica.group(), Observed::new(metrics));
        self.input(Input::Host(Box::new(group), effects));
    }

    /// Hosts this group no more.
    pub fn drop_group(&mut self, id: PartitionId) {
        self.input(Input::Drop(id));
        self.observed.remove(&id);
    }

    /// A socket was read and its frames handed on since `begun`, when `stepped` had been spent in steps.
    pub(crate) fn received(&self, begun: Clock, stepped: Duration) {
        let (steps, took) = (self.stepped.saturating_sub(stepped), self.step_ends(begun));
        self.metrics.stage_busy(Stage::Receive, took.saturating_sub(steps));
    }

    /// The time spent in steps so far.
    pub(crate) fn stepped(&self) -> Duration {
        self.stepped
    }

    fn end_turn(&mut self) {
        let begun = self.step_begins();
        self.turn.ends();
        self.tell_facts();
        self.step(Input::TurnEnd);
        if !self.appends.is_empty() {
            if self.appends.iter().any(|append| !append.lazy) {
                self.idle.appended();
            }
            let appends = std::mem::take(&mut self.appends);
            if let Some(log) = &self.log {
                // Blocks while the writer's queue is full: a shard that waits here reads no socket. Not while the disk
                // is: what finds no place then waits for a later turn.
                self.appends = log.append_if_room(appends);
            }
            failpoint!("shard.appended");
        }
        let respond = Clock::now();
        let durable = self.shared.durable_lsn();
        let full = !self.worker.resources().is_here() && !mutant!(fullness_untold);
        self.links.values().for_each(|link| link.flush(durable, full, respond));
        if !self.dirty.is_empty() {
            self.idle.answered();
        }
        let mut slice = Slice::of_turn();
        for id in std::mem::take(&mut self.dirty) {
            if let Some(connection) = self.connections.get(&id) {
                connection.flush(&mut slice);
                failpoint!("shard.replied");
            }
        }
        self.metrics.stage_busy(Stage::Respond, respond.elapsed());
        if self.worker.may_speculate() {
            self.speculation.notify_one();
        }
        self.metrics.set_tickets_in_flight(self.worker.coordinator().tickets_in_flight() as u64);
        self.metrics.turn();
        self.step_ends(begun);
        self.idle.end_turn();
        self.facts.may_have_changed();
        self.timer.notify_one();
    }

    fn tick(&mut self) {
        let begun = self.step_begins();
        self.input(Input::Tick);
        self.step_ends(begun);
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = self.now();
        self.worker.deadline().map(|deadline| deadline.since(now))
    }

    /// Runs what one group has to run speculatively.
    fn speculate(&mut self) {
        let begun = self.step_begins();
        self.input(Input::Speculate);
        let took = self.step_ends(begun);
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

/// Runs a shard on this thread until `stop` rings.
pub fn run(index: usize, shared: Arc<Shared>, receiver: Receiver<ToShard>, started: Clock, stop: Arc<Notify>) {
    // Not a `LocalSet`: the root task that polls one is woken through the system's event queue.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else {
        tracing::error!("no event loop for a worker thread");
        std::process::exit(1);
    };
    let shard = Shard::new(index, shared, started);
    runtime.spawn_local(turns(Rc::clone(&shard)));
    runtime.spawn_local(timers(Rc::clone(&shard)));
    runtime.spawn_local(speculate(Rc::clone(&shard)));
    runtime.spawn_local(inputs(Rc::clone(&shard), receiver));
    if !shard.borrow().shared.config.busy_poll.is_zero() {
        runtime.spawn_local(look::look(Rc::clone(&shard)));
    }
    runtime.block_on(stop.notified());
}

/// Ends turns: woken by the first input of a turn, it runs after the tasks that were ready with it.
async fn turns(shard: Rc<RefCell<Shard>>) {
    let turn = Rc::clone(&shard.borrow().turn);
    loop {
        turn.wanted().await;
        shard.borrow_mut().end_turn();
    }
}

/// Runs batches ahead of their decision (papers.md D7) after turns that leave some, when what they are ordered by is on
/// its way and while nothing else is to be done: whoever is busy gains nothing by it, and keeps what has come waiting.
async fn speculate(shard: Rc<RefCell<Shard>>) {
    let bell = Rc::clone(&shard.borrow().speculation);
    loop {
        bell.notified().await;
        // The event loop looks at its sockets and tasks take what they have; then those run that other threads woke.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let mut shard = shard.borrow_mut();
        // If a turn is wanted, its end rings again; so does that of the turn which a run wants. What is decided does
        // not wait for a worker that has nothing else to do.
        if !shard.turn.is_wanted() || shard.worker.is_behind() {
            shard.speculate();
        }
    }
}

/// An idle shard turns at least this often, so that `/livez` sees it alive.
const IDLE_TURN: Duration = Duration::from_millis(500);

async fn timers(shard: Rc<RefCell<Shard>>) {
    let timer = Rc::clone(&shard.borrow().timer);
    loop {
        let wait = shard.borrow().next_deadline().unwrap_or(IDLE_TURN).min(IDLE_TURN);
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => shard.borrow_mut().tick(),
            () = timer.notified() => {}
        }
    }
}

async fn inputs(shard: Rc<RefCell<Shard>>, receiver: Receiver<ToShard>) {
    loop {
        let (mut taken, mut begun) = (0, shard.borrow().step_begins());
        loop {
            shard.borrow_mut().take_durable();
            let Some(input) = receiver.pop() else { break };
            shard.borrow_mut().take(input);
            taken += 1;
            if taken == TURN_INPUTS_MAX || begun.elapsed() > TURN_TIME_MAX {
                shard.borrow().step_ends(begun);
                tokio::task::yield_now().await;
                (taken, begun) = (0, shard.borrow().step_begins());
            }
        }
        if taken > 0 {
            shard.borrow().step_ends(begun);
        }
        receiver.wait().await;
    }
}
