//! What decides in one thread of a node: its replicas, the coordinator where its replica of the directory leads,
//! queries and their parts, and what there is room for.
//!
//! Pure: [`Worker::step`] takes the time and an input and returns effects; its driver owns the sockets, the log and the
//! clock (`coppice-server`), or a simulated world (`tests/sim`). Each group lives in one worker
//! ([`owner`]); what concerns another worker's group leaves as [`Effect::Worker`], and the driver carries it over.
//!
//! Inputs are stepped as they come; what is to share a batch, a heartbeat round or a frame leaves at
//! [`Input::TurnEnd`]. A worker never calls itself: multicast messages between its own groups wait in a queue.

mod checkpoints;
mod coordinator;
mod disk_admission;
mod facts;
mod group;
mod hosting;
mod lag;
mod moved;
mod multicast;
mod parts;
mod reclamation;
mod settings;
mod step;
mod tuning;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use checkpoints::{CheckpointOutcome, Storage};
pub use coordinator::CoordinatorHost;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{ClientId, ClusterId, NodeId, PartitionId};
use coppice_ordering::Time;
pub use disk_admission::Resources;
pub use group::{Checkpoints, Group, GroupStatus, ReplicaReadiness, Splits, Writing};
pub use lag::Lag;
use parts::ParkedParts;
pub use settings::WorkerSettings;
pub use step::{Effect, Input, Message, Note, QueryResult, Report};
pub use tuning::{GroupTuner, Load, TuningSettings};

use crate::checkpoint_due::Due;
use crate::collects::{Act, Collects};
use crate::failure_detector::FailureDetector;
use crate::multicast::{MulticastBody, MulticastMessage};
use crate::replica;
use crate::request::{Origin, Refusal, Reply, Request};

/// Lags are looked at this often at most: a look costs a few loads per replica.
const LAG_INTERVAL: Duration = Duration::from_millis(10);

/// Why a request is refused that another worker's queue has no place for.
const MAILBOX: &str = "the queue of a worker thread is full: limits.mailbox";

/// What a worker did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands that its replicas executed.
    pub executed_commands: u64,
    /// Steps that were not for a batch of a group that it leads, and reads.
    pub other_steps: u64,
    /// Multicast messages that it sent, also to itself.
    pub multicast_messages: u64,
    /// Checkpoints that it began.
    pub checkpoints: u64,
}

/// The worker in which the replica of `group` lives, on a node with so many.
pub fn owner(group: PartitionId, workers: usize) -> usize {
    group.0 as usize % workers
}

/// See the module.
pub struct Worker {
    index: usize,
    workers: usize,
    cluster: ClusterView,
    groups: BTreeMap<PartitionId, Group>,
    failure_detector: FailureDetector,
    storage: Option<Storage>,
    costs: tuning::CostEstimate,
    admission: disk_admission::DiskAdmission,
    coordinator: CoordinatorHost,
    collects: Collects,
    /// Multicast messages between groups of this worker.
    multicast: VecDeque<MulticastMessage>,
    parked: ParkedParts,
    turn: Turn,
    counters: Counters,
    now: Time,
    effects: Vec<Effect>,
}

/// What it knows of the world.
struct ClusterView {
    /// None: this process belongs to no cluster yet.
    node: Option<NodeId>,
    cluster: ClusterId,
    /// Its replicas may say something to others ([`crate::incarnation::fence`]).
    may_speak: bool,
    map: Arc<PartitionMap>,
    /// Who leads each group, as far as this node knows.
    leaders: BTreeMap<PartitionId, NodeId>,
    /// Nodes that answer on their connections.
    answering: BTreeSet<NodeId>,
    settings: Arc<WorkerSettings>,
}

impl Default for ClusterView {
    fn default() -> ClusterView {
        ClusterView {
            node: None,
            cluster: ClusterId::default(),
            may_speak: true,
            map: Arc::default(),
            leaders: BTreeMap::new(),
            answering: BTreeSet::new(),
            settings: Arc::default(),
        }
    }
}

/// The feature level from which on every node knows updates, looks, moves and guarded commands.
const UPDATES: u32 = 2;

/// What is remembered within a turn, and from one to the next.
#[derive(Default)]
struct Turn {
    /// Groups that got requests.
    touched: Vec<PartitionId>,
    /// Groups that were stepped in the last step, each perhaps more than once.
    stepped: Vec<PartitionId>,
    /// The group that ran speculatively last: they take turns.
    speculated: Option<PartitionId>,
    /// When lags were last looked at.
    lags_at: Time,
    replica_effects: Vec<replica::Effect>,
}

impl Worker {
    /// A worker without groups, the `index`-th of `workers`.
    pub fn new(index: usize, workers: usize) -> Worker {
        Worker {
            index,
            workers,
            cluster: ClusterView::default(),
            groups: BTreeMap::new(),
            failure_detector: FailureDetector::default(),
            storage: None,
            costs: tuning::CostEstimate::default(),
            admission: disk_admission::DiskAdmission::default(),
            coordinator: CoordinatorHost::default(),
            collects: Collects::new(index as u16),
            multicast: VecDeque::new(),
            parked: ParkedParts::default(),
            turn: Turn::default(),
            counters: Counters::default(),
            now: Time::ZERO,
            effects: Vec::new(),
        }
    }

    /// The worker of `group`.
    fn owner(&self, group: PartitionId) -> usize {
        owner(group, self.workers)
    }

    /// Its replicas.
    pub fn groups(&self) -> &BTreeMap<PartitionId, Group> {
        &self.groups
    }

    /// The key that cuts a partition here into two halves.
    ///
    /// `by_load`: of its newest writes, where there were enough to tell; none: one key has too many of them.
    pub fn median(&self, partition: PartitionId, by_load: bool) -> Option<Bytes> {
        let data = self.groups.get(&partition)?.replica.executor().machine().partition()?;
        if by_load && let Some(median) = data.changes().median() {
            return median.filter(|at| data.range().low[..] < at[..] && data.range().contains(at));
        }
        data.tree().median().map(|key| Bytes::copy_from_slice(&key))
    }

    /// A record of a group took so many bytes of the log.
    pub fn logged(&mut self, group: PartitionId, bytes: u64) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.checkpoints.logged_bytes += bytes;
        }
    }

    /// Exchanges `samples` for what a group measured since this was asked last.
    pub fn take_samples(&mut self, group: PartitionId, samples: &mut replica::Samples) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.replica.take_samples(samples);
        }
    }

    /// Groups that the last step stepped, each perhaps more than once.
    pub fn stepped(&self) -> &[PartitionId] {
        &self.turn.stepped
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The coordinator, to look at.
    pub fn coordinator(&self) -> &CoordinatorHost {
        &self.coordinator
    }

    /// Tells what the coordinator wants from now on: [`Note::Coordinated`].
    pub fn watch_coordinator(&mut self) {
        self.coordinator.watch();
    }

    /// Parts that wait for their clients.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The node that a refusal of `group` points to.
    pub fn hint(&self, group: PartitionId, refusal: &Refusal) -> Option<NodeId> {
        let Refusal::NotLeader { hint } = refusal else { return None };
        let hosted = self.groups.get(&group);
        let named = hosted.and_then(|hosted| hosted.nodes.get(&(*hint)?).copied());
        named.or_else(|| self.cluster.leaders.get(&group).copied())
    }

    /// When [`Input::Tick`] is next wanted.
    pub fn deadline(&self) -> Option<Time> {
        let groups = self.groups.values().filter_map(|group| group.replica.deadline());
        let reclamation = self.groups.values().filter_map(Group::reclaims_at);
        let watch = self.settings().and_then(|settings| self.failure_detector.deadline(settings));
        groups.chain(reclamation).chain(watch).chain(self.coordinator.deadline()).chain(self.collects.deadline()).min()
    }

    /// The only way in.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        self.turn.stepped.clear();
        std::mem::swap(&mut self.effects, effects);
        match input {
            Input::Tick => self.on_tick(),
            Input::TurnEnd => self.on_turn_end(),
            Input::Yielded { is_busy } => self.on_yielded(is_busy),
            Input::Persisted { group, lsn } => self.step_group(group, replica::Input::Persisted(lsn)),
            Input::Peers { node, envelopes } => self.on_peers(node, envelopes),
            Input::Multicast { node, messages } => self.on_multicast(node, messages),
            Input::Request { group, origin, request } => self.on_request(group, origin, request),
            Input::Query { origin, client, request } => self.on_query(origin, client, request),
            Input::Collect { origin, range } => {
                let mut acts = Vec::new();
                self.collects.begin(now, origin, range, &mut acts);
                self.act_on_collects(acts);
            }
            Input::Unclaimed(part) => self.parked.park(now, part),
            Input::Greeted(client) => self.on_greeted(client),
            Input::Worker(message) => self.on_message(message),
            Input::Undelivered(message) => self.on_undelivered(message),
            Input::Start { start, seed, incarnation } => self.start(*start, seed, incarnation),
            Input::Drop(group) => self.drop_group(group),
            Input::Replica(group, input) => self.step_group(group, *input),
            Input::Map(map) => self.on_map(map),
            Input::Settings(settings) => self.apply_settings(settings),
            Input::Leader(group, leader) => self.on_leader(group, leader),
            Input::Answers(node, true) => _ = self.cluster.answering.insert(node),
            Input::Answers(node, false) => _ = self.cluster.answering.remove(&node),
            Input::Resources(resources) => self.on_resources(resources),
            Input::Identity(node, cluster) => (self.cluster.node, self.cluster.cluster) = (Some(node), cluster),
            Input::MaySpeak(may) => self.cluster.may_speak = may,
            Input::Heard { fresh, heard } => self.on_heard(fresh, heard),
            Input::Gone(node) => self.tell(node, |peer| replica::Input::Gone { peer }),
            Input::Storage(storage) => self.on_storage(storage),
            Input::Load(load) => self.on_load(&load),
            Input::CheckpointNow(group) => self.checkpoint(group, Due::Second),
            Input::Checkpointed { group, number, written } => self.on_checkpointed(group, number, written),
            Input::ChildrenSaved { group, splits } => self.on_children_saved(group, splits),
            Input::Snapshot(group, loaded) => self.on_snapshot(group, loaded),
            Input::Holds { asked, group, low } => {
                let is_held = self.groups.iter().any(|(&id, hosted)| id != group && hosted.replica.holds(&low));
                self.effects.push(Effect::Controller(Report::Held { asked, group, is_held }));
            }
        }
        std::mem::swap(&mut self.effects, effects);
    }

    /// Steps one group and carries out what that asks for.
    fn step_group(&mut self, id: PartitionId, input: replica::Input) {
        let room = self.log_room(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let reads =
            |request: &Request| matches!(request, Request::Read(..) | Request::Range(_) | Request::CollectParts(_));
        let is_read = matches!(&input, replica::Input::Request { request, .. } if reads(request));
        self.counters.other_steps += u64::from(is_read || !group.replica.is_leading());
        let mut effects = std::mem::take(&mut self.turn.replica_effects);
        let executed = group.replica.executor().counters().executed_commands;
        group.replica.paxos_mut().set_log_room(room);
        group.replica.step(self.now, input, &mut effects);
        let executed = group.replica.executor().counters().executed_commands - executed;
        self.counters.executed_commands += executed;
        self.turn.stepped.push(id);
        self.carry_out(id, &mut effects);
        self.turn.replica_effects = effects;
    }

    /// Carries out `effects` of the group `id`, in order; leaves the vector empty.
    fn carry_out(&mut self, id: PartitionId, effects: &mut Vec<replica::Effect>) {
        use replica::Effect as ReplicaEffect;
        let moved = effects.iter().any(|effect| matches!(effect, ReplicaEffect::Moved { .. }));
        for effect in effects.drain(..) {
            match effect {
                ReplicaEffect::Persist { lsn, record } => self.effects.push(Effect::Persist { group: id, lsn, record }),
                ReplicaEffect::Send { to, message } => {
                    let Some(group) = self.groups.get(&id).filter(|_| self.cluster.may_speak || mutant!(mute_speaks))
                    else {
                        continue;
                    };
                    let Some(&node) = group.nodes.get(&to) else { continue };
                    let envelope = crate::wire::peer::Envelope { group: id.0, to, from: group.me, message };
                    self.effects.push(Effect::Send(node, envelope));
                }
                ReplicaEffect::Reply { origin, reply } => self.reply(id, origin, reply),
                ReplicaEffect::Leading { ballot } => {
                    self.effects.push(Effect::Note(id, Note::Leads(ballot)));
                    self.on_role(id);
                    if id == PartitionId::DIRECTORY {
                        self.begin_coordinating(ballot);
                    }
                    failpoint!("worker.leads");
                }
                ReplicaEffect::Following { leader, ballot } => {
                    if self.cluster.node.is_some() && self.cluster.leaders.get(&id).copied() == self.cluster.node {
                        self.effects.push(Effect::Note(id, Note::LeadsNoMore(ballot)));
                    }
                    self.effects.push(Effect::Note(id, Note::Follows(leader, ballot)));
                    self.on_role(id);
                    if id == PartitionId::DIRECTORY {
                        self.end_coordinating();
                    }
                    failpoint!("worker.follows");
                }
                ReplicaEffect::Moved { mark } => {
                    self.effects.push(Effect::Note(id, Note::Moved));
                    self.on_moved(id, mark);
                }
                ReplicaEffect::Awaits(awaited) => {
                    self.effects.push(Effect::Note(id, Note::Awaits(awaited.partition)));
                    self.request_sealed_state(awaited.partition);
                }
                ReplicaEffect::DirectoryChanged => {
                    self.tell_directory(id);
                    self.on_decided_map();
                }
                ReplicaEffect::Placed { ticket } => {
                    self.effects.push(Effect::Note(id, Note::Placed(ticket)));
                    self.send_multicast(MulticastMessage::new(id, MulticastBody::Placed(ticket)));
                }
                ReplicaEffect::Part(part) => self.effects.push(Effect::Part(part)),
                ReplicaEffect::Confirmed(token) => {
                    self.coordinate(coppice_ordering::multicast::Input::Confirmed(token))
                }
                ReplicaEffect::NeedSnapshot { from, instance } => self.on_need_snapshot(id, from, instance),
                ReplicaEffect::Configured { instance, configuration } => {
                    self.effects.push(Effect::Note(id, Note::Configured(instance, configuration)));
                }
                ReplicaEffect::Dismissed => self.effects.push(Effect::Controller(Report::Dismissed(id))),
                ReplicaEffect::TransferFailed { to } => self.effects.push(Effect::Note(id, Note::TransferFailed(to))),
            }
        }
        if moved {
            // What was taken in is in memory only until a checkpoint holds it; now all splits of this step are counted.
            self.checkpoint_if_due(id);
        }
    }

    fn on_tick(&mut self) {
        let now = self.now;
        let due = |group: &Group| group.replica.deadline().is_some_and(|deadline| deadline <= now);
        let ids: Vec<PartitionId> = self.groups.iter().filter(|(_, group)| due(group)).map(|(&id, _)| id).collect();
        for id in ids {
            self.step_group(id, replica::Input::Tick);
        }
        self.parked.expire(now);
        if self.coordinator.deadline().is_some_and(|deadline| deadline <= now) {
            self.coordinate(coppice_ordering::multicast::Input::Tick);
        }
        let mut acts = Vec::new();
        self.collects.expire(now, &mut acts);
        self.act_on_collects(acts);
        self.reclaim(now);
        let settings = self.groups.values().next().map(|group| group.replica.paxos().settings());
        if settings.is_some_and(|settings| self.failure_detector.is_due(settings, now)) {
            self.effects.push(Effect::Watch);
        }
    }

    fn on_turn_end(&mut self) {
        self.deliver_multicast();
        self.ask_for_collects();
        let mut touched = std::mem::take(&mut self.turn.touched);
        touched.sort_unstable();
        touched.dedup();
        for id in touched.drain(..) {
            self.step_group(id, replica::Input::TurnEnd);
        }
        // Groups touched here are stepped at the next turn's end, which the driver brings about after any step.
        touched.append(&mut self.turn.touched);
        self.turn.touched = touched;
        self.deliver_multicast();
        if self.now.since(self.turn.lags_at) >= LAG_INTERVAL {
            self.turn.lags_at = self.now;
            let now = self.now;
            self.groups.values_mut().for_each(|group| group.look_at_lags(now));
        }
        self.transfer_when_full();
        if self.groups.values().any(|group| group.replica.may_speculate()) {
            self.effects.push(Effect::Yield);
        }
    }

    /// Runs what one group has to run ahead of its decision (papers.md D7), while nothing else is to be done: whoever
    /// is busy gains nothing by it, and keeps what has come waiting. What is decided does not wait for that.
    fn on_yielded(&mut self, is_busy: bool) {
        if is_busy && !self.groups.values().any(|group| group.replica.is_behind()) {
            return;
        }
        let waiting = || self.groups.iter().filter(|(_, group)| group.replica.may_speculate()).map(|(&id, _)| id);
        let next = waiting().find(|&id| self.turn.speculated.is_none_or(|last| id > last)).or_else(|| waiting().next());
        if let Some(id) = next {
            self.turn.speculated = Some(id);
            self.step_group(id, replica::Input::Speculate);
        }
    }

    /// Messages of another node; those for groups of another worker are passed on. A replica is heard on connections of
    /// the node that it lives on, and one that no map has named yet is not heard: nothing could be answered to it.
    fn on_peers(&mut self, node: NodeId, envelopes: Vec<crate::wire::peer::Envelope>) {
        let mut elsewhere: BTreeMap<usize, Vec<crate::wire::peer::Envelope>> = BTreeMap::new();
        for envelope in envelopes {
            let id = PartitionId(envelope.group);
            let owner = self.owner(id);
            if owner != self.index {
                elsewhere.entry(owner).or_default().push(envelope);
            } else if self.groups.get(&id).is_some_and(|group| group.hears(&envelope, node))
                && !self.loses(id, &envelope.message)
            {
                self.step_group(id, replica::Input::Peer { from: envelope.from, message: envelope.message });
            }
        }
        for (owner, envelopes) in elsewhere.into_iter().filter(|_| !mutant!(messages_end_at_worker)) {
            self.effects.push(Effect::Worker(owner, Message::Peers { node, envelopes }));
        }
    }

    /// A client's request, wherever its group lives.
    fn on_request(&mut self, id: PartitionId, origin: Origin, request: Request) {
        let owner = self.owner(id);
        if owner != self.index {
            if mutant!(requests_end_at_worker) {
                return;
            }
            return self.effects.push(Effect::Worker(owner, Message::Request { group: id, origin, request }));
        }
        if !self.groups.contains_key(&id) {
            return self.reply(id, origin, Reply::Refused(self.not_here(id)));
        }
        if matches!(request, Request::Pack { known: false, .. }) && self.cluster.settings.feature_level < UPDATES {
            return self.reply(id, origin, Reply::Refused(Refusal::FeatureLevel));
        }
        if let Some(why) = self.refuses_growth(id, &request) {
            return self.reply(id, origin, Reply::Refused(Refusal::Full(why)));
        }
        if self.turn.touched.last() != Some(&id) {
            self.turn.touched.push(id);
        }
        self.step_group(id, replica::Input::Request { origin, request });
    }

    /// No replica of `group` is here: one is about to start, or the client's map is older than ours.
    fn not_here(&self, group: PartitionId) -> Refusal {
        match self.cluster.map.group(group) {
            Some(entry) if self.cluster.node.is_some_and(|own| entry.replica_on(own).is_some()) => {
                Refusal::NotLeader { hint: None }
            }
            _ => Refusal::WrongPartition,
        }
    }

    /// Parts wait for a client where their partitions are.
    fn on_greeted(&mut self, client: ClientId) {
        for other in (0..self.workers).filter(|&other| other != self.index) {
            self.effects.push(Effect::Worker(other, Message::Greeted(client)));
        }
        self.effects.extend(self.parked.unpark(client).map(Effect::Part));
    }

    /// Another worker of this node sent something.
    fn on_message(&mut self, message: Message) {
        match message {
            Message::Peers { node, envelopes } => self.on_peers(node, envelopes),
            Message::Multicast(multicast) => {
                self.multicast.extend(multicast);
                self.deliver_multicast();
            }
            Message::Request { group, origin, request } => self.on_request(group, origin, request),
            Message::Query { origin, client, request } => self.on_query(origin, client, request),
            Message::Reply { group, origin, reply } => self.reply(group, origin, reply),
            Message::Greeted(client) => self.effects.extend(self.parked.unpark(client).map(Effect::Part)),
            Message::Led(group) => self.resend(group),
            Message::SendSealed(partition) => self.send_if_sealed(partition),
            Message::Absorb(left) => self.absorb(*left),
        }
    }

    /// The queue of another worker is full (`limits.mailbox`): whoever waits for an answer is told; messages are lost
    /// as a network may lose them.
    fn on_undelivered(&mut self, message: Message) {
        match message {
            Message::Request { group, origin, .. } => self.reply(group, origin, Reply::Refused(Refusal::Busy(MAILBOX))),
            Message::Query { origin, .. } => {
                self.reply(PartitionId::DIRECTORY, origin, Reply::Refused(Refusal::Busy(MAILBOX)));
            }
            // A client that hears nothing repeats, or asks for its part again; the others say it again.
            Message::Reply { .. }
            | Message::Greeted(_)
            | Message::Peers { .. }
            | Message::Multicast(_)
            | Message::Led(_)
            | Message::SendSealed(_)
            | Message::Absorb(_) => {}
        }
    }

    /// Answers a request, here or through the worker that holds its connection.
    fn reply(&mut self, id: PartitionId, origin: Origin, reply: Reply) {
        let Some(owner) = origin.worker() else { return };
        if owner != self.index {
            if mutant!(answers_end_at_worker) {
                return;
            }
            return self.effects.push(Effect::Worker(owner, Message::Reply { group: id, origin, reply }));
        }
        if let Origin::Collect { number: request, .. } = origin {
            let mut acts = Vec::new();
            self.collects.on_reply(request, id, reply, &mut acts);
            // Validations leave at the end of the turn, and so does what is read once more.
            return self.act_on_collects(acts);
        }
        self.effects.push(Effect::Reply { group: id, origin, reply });
    }

    /// Reads what collects wait for, and asks whether what was read is still what it was.
    fn ask_for_collects(&mut self) {
        let mut acts = Vec::new();
        self.collects.read(self.now, &mut acts);
        self.act_on_collects(acts);
        let mut acts = Vec::new();
        self.collects.validate(self.now, &mut acts);
        self.act_on_collects(acts);
    }

    /// Whoever is asked here may answer at once, and so ends up in `reply`, which asks for nothing.
    fn act_on_collects(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Ask { partition, origin, request } => self.on_request(partition, origin, request),
                Act::Answer { partition, origin, reply } => self.reply(partition, origin, reply),
            }
        }
    }
}
