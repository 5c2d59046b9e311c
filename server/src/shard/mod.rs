//! A shard thread: owns some of the node's replicas and the sockets that it was given, and steps the one from the
//! other.
//!
//! Each shard runs on a current-thread runtime of its own, so a message needs no hop between the thread that reads the
//! socket and the one that owns the replica: waking another thread costs about 25 us here, a fifth of a durable put.
//! What belongs to another shard, and what the log writer made durable, comes through the bounded mailbox.
//!
//! Inputs are stepped as they come; all their effects leave together at the end of the turn: one append to the log, one
//! write per link, one write per connection.

mod ahead;
mod control;
mod effects;
mod gathers;
mod gauges;
mod group;
mod lag;
mod look;
mod merges;
mod pilot;
mod queries;
mod room;
mod settling;
mod steps;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use coppice_client::channel::Parked;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{ClientId, NodeId, PartitionId, QueryRequest};
use coppice_core::failure_detector::FailureDetector;
use coppice_core::gather::Gathers;
use coppice_core::multicast::Letter;
use coppice_core::multicast::letter::leader_learned;
use coppice_core::replica::{Effect, Input, QueryPart, Samples};
use coppice_core::request::{Origin, Refusal, Reply, Request};
use coppice_core::wire::peer::Envelope;
use coppice_ordering::Time;
pub use group::{Group, GroupStatus};
pub use pilot::{Flushes, Tuned};
use tokio::runtime::LocalOptions;
use tokio::sync::{Notify, Semaphore};

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
    /// Messages for groups of this shard that arrived at another one.
    Peers {
        /// The node that sent them.
        node: NodeId,
        /// Them.
        envelopes: Vec<Envelope>,
    },
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
    /// A request for a group of this shard that arrived at another one.
    Request {
        /// Whose.
        group: PartitionId,
        /// Who waits.
        origin: Origin,
        /// For what.
        request: Request,
    },
    /// A query over several partitions that arrived at another shard than the coordinator's.
    Query {
        /// Who waits.
        origin: Origin,
        /// Which client that is.
        client: ClientId,
        /// For what.
        request: Box<QueryRequest>,
    },
    /// Letters between coordinator and partitions, for groups of this shard.
    Letters(Vec<Letter>),
    /// A query's part whose client is connected here.
    Part(Box<QueryPart>),
    /// The answer to one that was sent to another shard.
    Reply {
        /// Of which group.
        group: PartitionId,
        /// Who waits.
        origin: Origin,
        /// What came of it.
        reply: Reply,
    },
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
        self.wanted.set(true);
        self.bell.notify_one();
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
    pub(crate) groups: BTreeMap<PartitionId, Group>,
    pub(crate) connections: HashMap<u64, Rc<Connection>>,
    next_connection: u64,
    pub(crate) links: BTreeMap<NodeId, Rc<Link>>,
    log: Option<Log>,
    appends: Vec<Append>,
    queries: queries::Queries,
    gathers: Gathers,
    pilot: pilot::Pilot,
    look: look::Look,
    failure_detector: FailureDetector,
    /// Groups that got requests in this turn.
    touched: Vec<PartitionId>,
    /// Connections with something to write.
    dirty: Vec<u64>,
    pub(crate) map: Arc<PartitionMap>,
    effects: Vec<Effect>,
    samples: Samples,
    turn: Rc<Turn>,
    timer: Rc<Notify>,
    ahead: ahead::Ahead,
    pub(crate) metrics: metrics::Shard,
    /// Requests of the node itself, by stream.
    own: HashMap<u32, tokio::sync::oneshot::Sender<Reply>>,
    next_own: u32,
    /// When lags were last looked at.
    lags_at: Time,
    room: room::Room,
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
        let look = look::Look::new(shared.config.spin);
        Rc::new_cyclic(|this| {
            RefCell::new(Shard {
                index,
                shared,
                started,
                groups: BTreeMap::new(),
                connections: HashMap::new(),
                next_connection: 0,
                links: BTreeMap::new(),
                log: None,
                appends: Vec::new(),
                queries: queries::Queries::new(),
                gathers: Gathers::new(index),
                pilot: pilot::Pilot::new(),
                look,
                failure_detector: FailureDetector::default(),
                touched: Vec::new(),
                dirty: Vec::new(),
                map: Arc::default(),
                effects: Vec::new(),
                samples: Samples::default(),
                turn: Rc::new(Turn::default()),
                timer: Rc::new(Notify::new()),
                ahead: ahead::Ahead::default(),
                metrics,
                own: HashMap::new(),
                next_own: 0,
                lags_at: Time::ZERO,
                room: room::Room::default(),
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

    /// Uses this log from now on.
    pub fn set_log(&mut self, log: Log) {
        self.log = Some(log);
    }

    /// The shard that owns `group`.
    pub fn owner(&self, group: PartitionId) -> usize {
        group.0 as usize % self.shared.shards()
    }

    /// Tells the groups how far the log is durable for them.
    fn take_durable(&mut self) {
        let durable = self.shared.durable_upto(self.index).take();
        if !durable.is_empty() {
            self.look.flushed();
        }
        for (group, lsn) in durable {
            self.step(group, Input::Persisted(lsn));
        }
    }

    fn take(&mut self, input: ToShard) {
        match input {
            ToShard::Peers { node, envelopes } => self.on_peers(node, envelopes),
            ToShard::Client(stream) => self.add_client(stream),
            ToShard::Peer { node, life, stream, received, place } => {
                self.add_peer((node, life), stream, received, place);
            }
            ToShard::Request { group, origin, request } => self.request(group, origin, request),
            ToShard::Query { origin, client, request } => self.query(origin, client, *request),
            ToShard::Letters(letters) => self.on_letters(letters),
            ToShard::Part(part) => self.give_part(part),
            ToShard::Reply { group, origin, reply } => self.reply(group, origin, reply),
            ToShard::Call(call) => call(self),
        }
    }

    /// Steps one group and carries out what that asks for; sockets and log are written at the end of the turn.
    pub fn step(&mut self, id: PartitionId, input: Input) {
        let now = self.now();
        let room = self.log_room(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let mut effects = std::mem::take(&mut self.effects);
        if !group.replica.is_leading()
            || matches!(
                &input,
                Input::Request { request: Request::Read(..) | Request::Range(_) | Request::Readings(_), .. }
            )
        {
            self.pilot.other();
        }
        let executed = group.replica.executor().counters().executed_commands;
        group.replica.paxos_mut().set_log_room(room);
        group.replica.step(now, input, &mut effects);
        group.replica.take_samples(&mut self.samples);
        for batch in &self.samples.proposed {
            self.metrics.batch_proposed(batch.bytes, batch.commands);
        }
        self.samples.gate_waits.iter().for_each(|took| self.metrics.gate_waited(*took));
        self.samples.decided.iter().for_each(|decided| self.metrics.instance_decided(decided.took()));
        group.note_times(&self.samples.decided);
        let executed = group.replica.executor().counters().executed_commands > executed;
        let took = Duration::from_nanos(self.started.elapsed().as_nanos() as u64 - now.0);
        self.stepped += took;
        self.metrics.stage_busy(if executed { Stage::Execute } else { Stage::Order }, took);
        self.carry_out(id, &mut effects);
        self.effects = effects;
        self.turn.want();
    }

    /// Messages of another node; those for groups of another shard are passed on. A replica is heard on connections of
    /// the node that it lives on, and one that no map has named yet is not heard: nothing could be answered to it.
    pub fn on_peers(&mut self, node: NodeId, envelopes: Vec<Envelope>) {
        let mut elsewhere: BTreeMap<usize, Vec<Envelope>> = BTreeMap::new();
        for envelope in envelopes {
            let id = PartitionId(envelope.group);
            let owner = self.owner(id);
            if owner != self.index {
                elsewhere.entry(owner).or_default().push(envelope);
            } else if self.groups.get(&id).is_some_and(|group| group.hears(&envelope, node))
                && !self.loses(id, &envelope.message)
            {
                self.step(id, Input::Peer { from: envelope.from, message: envelope.message });
            }
        }
        for (owner, envelopes) in elsewhere {
            // A full mailbox loses them, as a network may.
            _ = self.shared.sender(owner).push(Lane::Consensus, ToShard::Peers { node, envelopes });
        }
    }

    /// A client's request, wherever its group lives.
    pub fn request(&mut self, id: PartitionId, origin: Origin, request: Request) {
        let owner = self.owner(id);
        if owner != self.index {
            let input = ToShard::Request { group: id, origin, request };
            if self.shared.sender(owner).push(Lane::Client, input).is_err() {
                self.metrics.busy(metrics::Queue::Mailbox);
                self.reply(id, origin, Reply::Refused(Refusal::Busy));
            }
            return;
        }
        if !self.groups.contains_key(&id) {
            return self.reply(id, origin, Reply::Refused(self.not_here(id)));
        }
        if self.refuses_for_room(id, &request) {
            return self.reply(id, origin, Reply::Refused(Refusal::Full));
        }
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
        self.step(id, Input::Request { origin, request });
    }

    /// No replica of `group` is here: one is about to start, or the client's map is older than ours.
    fn not_here(&self, group: PartitionId) -> Refusal {
        let own = self.shared.identity().map(|identity| identity.node);
        match self.map.group(group) {
            Some(entry) if own.is_some_and(|own| entry.replica_on(own).is_some()) => Refusal::NotLeader { hint: None },
            _ => Refusal::WrongPartition,
        }
    }

    fn add_client(&mut self, stream: Parked) {
        let Ok(stream) = stream.resume() else { return self.shared.connection_closed() };
        if self.shared.connections() > self.shared.config.limits.connections && !self.make_way() {
            self.shared.connection_closed();
            return crate::net::public::turn_away(&stream);
        }
        self.next_connection += 1;
        let id = Origin::connection(self.index, self.next_connection);
        let connection = Connection::new(id, stream, Arc::clone(&self.shared));
        self.connections.insert(id, Rc::clone(&connection));
        tokio::task::spawn_local(crate::net::public::serve(self.this(), connection));
    }

    /// The port is full: connections that have nothing in flight give way, if there are any.
    fn make_way(&self) -> bool {
        let idle = self.connections.values().filter_map(|connection| connection.candidate()).collect();
        let connections = self.shared.connections();
        let ungreeted = connections.saturating_sub(self.shared.clients().connections());
        let give_way = eviction::give_way((connections, ungreeted), idle);
        for connection in give_way.iter().filter_map(|id| self.connections.get(id)) {
            self.metrics.busy(metrics::Queue::Connections);
            connection.close();
        }
        !give_way.is_empty()
    }

    fn add_peer(&mut self, (node, life): (NodeId, u64), stream: Parked, received: BytesMut, place: Place) {
        let Ok(stream) = stream.resume() else { return };
        self.shared.heard(node, self.now(), true);
        self.shared.set_node_full(node, false);
        let serving = crate::net::peer_in::serve(self.this(), (node, life), stream, received);
        tokio::task::spawn_local(async move {
            tokio::select! {
                () = serving => {}
                () = place.taken() => {}
            }
        });
    }

    /// Uses this map from now on.
    pub fn set_map(&mut self, map: Arc<PartitionMap>) {
        for (id, group) in &mut self.groups {
            let Some(entry) = map.group(*id) else { continue };
            for info in &entry.replicas {
                group.nodes.insert(coppice_core::ids::replica(info.replica), info.node);
            }
        }
        self.map = map;
        let is_new = |group: &Group, id| leader_learned(group.leader_node(), self.shared.leader(id)).is_some();
        let learned = self.groups.iter().filter(|(id, group)| is_new(group, **id)).map(|(&id, _)| id);
        let learned: Vec<PartitionId> = learned.collect();
        learned.into_iter().for_each(|id| self.on_role(id));
    }

    /// Hosts this group no more.
    pub fn drop_group(&mut self, id: PartitionId) {
        let Some(mut group) = self.groups.remove(&id) else { return };
        let mut effects = Vec::new();
        group.replica.retire(&mut effects);
        for effect in effects {
            if let coppice_core::replica::Effect::Reply { origin, reply } = effect {
                self.reply(id, origin, reply);
            }
        }
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
        self.deliver_letters();
        self.ask_for_gathers();
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in touched.drain(..) {
            self.step(id, Input::TurnEnd);
        }
        // What is touched by that is looked at in the next turn, which is wanted then.
        touched.append(&mut self.touched);
        self.touched = touched;
        self.deliver_letters();
        if !self.appends.is_empty() {
            if self.appends.iter().any(|append| !append.lazy) {
                self.look.appended();
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
        let full = !self.has_room_here() && !mutant!(fullness_untold);
        self.links.values().for_each(|link| link.flush(durable, full, respond));
        if !self.dirty.is_empty() {
            self.look.answered();
        }
        let mut slice = Slice::of_turn();
        for id in std::mem::take(&mut self.dirty) {
            if let Some(connection) = self.connections.get(&id) {
                connection.flush(&mut slice);
                failpoint!("shard.replied");
            }
        }
        self.metrics.stage_busy(Stage::Respond, respond.elapsed());
        self.look_ahead();
        self.look_at_lags();
        self.look_for_room(self.now());
        self.metrics.turn();
        self.step_ends(begun);
        self.look.end_turn();
        self.timer.notify_one();
    }

    fn tick(&mut self) {
        let (now, begun) = (self.now(), self.step_begins());
        let due = |group: &Group| group.replica.deadline().is_some_and(|deadline| deadline <= now);
        let ids: Vec<PartitionId> = self.groups.iter().filter(|(_, group)| due(group)).map(|(&id, _)| id).collect();
        for id in ids {
            self.step(id, Input::Tick);
        }
        self.tick_queries(now);
        self.tick_gathers(now);
        self.watch(now);
        self.settle(now);
        self.step_ends(begun);
        self.turn.want();
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = self.now();
        let deadlines = self.groups.values().filter_map(|group| group.replica.deadline());
        deadlines
            .chain(self.queries.deadline())
            .chain(self.gathers.deadline())
            .chain(self.watch_at())
            .chain(self.settle_at())
            .min()
            .map(|deadline| deadline.since(now))
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
        tracing::error!("the system gives no event loop to a shard thread");
        std::process::exit(1);
    };
    let shard = Shard::new(index, shared, started);
    runtime.spawn_local(turns(Rc::clone(&shard)));
    runtime.spawn_local(timers(Rc::clone(&shard)));
    runtime.spawn_local(ahead::run_ahead(Rc::clone(&shard)));
    runtime.spawn_local(inputs(Rc::clone(&shard), receiver));
    if !shard.borrow().shared.config.spin.is_zero() {
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
