//! The run of one seed: a heap of events ordered by simulated time, and three phases. Safety: the drawn faults, until
//! the operations are used up. Liveness: everything works again, at least for a majority, and every operation must end
//! within a bound. Audit: all nodes run, replicas become equal, and the history is checked.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId, ReplicaId as WireReplica};
use coppice_ordering::{Instance, ReplicaId};
use coppice_server::multicast::Letter;
use coppice_server::net::peer::Envelope;
use coppice_server::replica::{Effect, Input};

use super::account::Account;
use super::clients::{Client, key};
use super::doors::Line;
use super::faults::{Kind, SAFETY_MAX, Target};
use super::net::Net;
use super::node::{Clock, Node};
use super::oracle::Oracle;
use super::plan::{MS, Nanos, Plan, Purpose, random};
use super::queries::{Asked, News};
use super::store::Saved;
use super::trace::Trace;
use crate::check::random::Random;

/// Every operation ends so long after everything works again (reliability.md 4, liveness): 20 election timeouts, and
/// the client's longest patience with a node that died without a word.
const LIVENESS_TIMEOUTS: u32 = 20;
/// See [`LIVENESS_TIMEOUTS`].
const CLIENT_PATIENCE: Duration = Duration::from_secs(8);

/// Replicas are equal so long after all nodes run and nothing is asked any more.
const CONVERGENCE: Nanos = 20_000 * MS;

/// Steps of one run at most: beyond, something goes round in circles.
const STEPS_MAX: u64 = 3_000_000;

/// What a run found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which check.
    pub check: String,
    /// What is wrong.
    pub what: String,
    /// After how many steps.
    pub step: u64,
    /// When, in simulated nanoseconds.
    pub at: Nanos,
}

/// A run's result.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// Over all steps.
    pub hash: u64,
    /// Steps.
    pub steps: u64,
    /// Operations answered.
    pub answered: u64,
    /// Faults made.
    pub faults: u64,
    /// Processes that ended by them.
    pub crashes: u64,
    /// The trace's last lines, if it was wordy.
    pub last: Vec<String>,
    /// The history and the logs, if the trace was wordy.
    pub history: Vec<crate::check::event::Event<'static>>,
}

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// A message arrives at a node.
    Peer { from: usize, to: usize, envelope: Envelope },
    /// A replica's deadline.
    Tick { node: usize, life: u64, at: Nanos },
    /// A flush ends.
    Flushed { node: usize, life: u64 },
    /// A log came to rest.
    Idle { node: usize, life: u64 },
    /// A process starts.
    Start { node: usize, life: u64 },
    /// A checkpoint is durable.
    SnapshotWritten { node: usize, life: u64, group: PartitionId, saved: Saved },
    /// A node is asked for a snapshot.
    SnapshotAsked { from: usize, node: usize, life: u64, group: PartitionId, instance: Instance },
    /// A snapshot is durable at the node that asked.
    SnapshotArrived { node: usize, life: u64, group: PartitionId, saved: Saved },
    /// A snapshot did not come.
    SnapshotPatience { node: usize, life: u64, group: PartitionId },
    /// A connection attempt ends.
    Opened { line: u64, ok: bool },
    /// Bytes arrive at a node.
    ToNode { line: u64, bytes: Bytes },
    /// Bytes arrive at a client.
    ToClient { line: u64, bytes: Bytes },
    /// A client hears that its connection is gone.
    Lost { line: u64 },
    /// A client's deadline.
    ClientTick { client: usize, at: Nanos },
    /// A client submits more.
    Think { client: usize },
    /// A query arrives at a node.
    Query { node: usize, asker: (usize, usize, u32) },
    /// A query was not answered for long.
    QueryPatience { asker: (usize, usize, u32) },
    /// A client hears of its query.
    News { asker: (usize, usize, u32), news: News },
    /// A letter of the multicast arrives at a node.
    Letter { from: usize, to: usize, letter: Letter },
    /// A fault of the plan begins.
    Fault { number: usize },
    /// A cut ends.
    Mend { side: u32, one_way: bool },
    /// A slow or full disk is well again.
    DiskWell { node: usize },
}

impl Event {
    /// The process that it is for; no other one takes it.
    fn process(&self) -> Option<(usize, u64)> {
        match *self {
            Event::Tick { node, life, .. }
            | Event::Flushed { node, life }
            | Event::Idle { node, life }
            | Event::SnapshotWritten { node, life, .. }
            | Event::SnapshotArrived { node, life, .. }
            | Event::SnapshotPatience { node, life, .. } => Some((node, life)),
            _ => None,
        }
    }
}

struct Scheduled {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// One run.
pub struct World {
    pub plan: Plan,
    pub now: Nanos,
    queue: BinaryHeap<Reverse<Scheduled>>,
    events: u64,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub lines: BTreeMap<u64, Line>,
    pub next_line: u64,
    /// By client and index of the operation.
    pub queries: BTreeMap<(usize, usize), Asked>,
    /// Where each replica lives.
    pub places: BTreeMap<(PartitionId, ReplicaId), usize>,
    pub map: Arc<PartitionMap>,
    pub net: Net,
    pub oracle: Oracle,
    pub account: Account,
    pub trace: Trace,
    pub failure: Option<Failure>,
    /// No more faults; nodes that are to stay down have their bit set.
    pub healed: bool,
    pub stays_down: u32,
    pub random: Random,
    pub disk_random: Random,
    pub replica_random: Random,
    pub effects: Vec<Effect>,
    /// Processes that ended before everything was healed.
    pub crashes: u64,
    faults: u64,
}

/// Runs one seed's plan.
pub fn run(plan: Plan, trace: Trace) -> Outcome {
    let mut world = World::new(plan, trace);
    world.run();
    let answered = world.account.answered();
    let last = world.trace.last().map(str::to_owned).collect();
    let (hash, steps) = (world.trace.hash(), world.trace.steps());
    let history = if world.trace.is_wordy() { world.account.events(&world.oracle) } else { Vec::new() };
    let (faults, crashes) = (world.faults, world.crashes);
    Outcome { failure: world.failure, hash, steps, answered, faults, crashes, last, history }
}

impl World {
    fn new(plan: Plan, trace: Trace) -> World {
        let seed = plan.seed;
        let mut world_random = random(seed, Purpose::World, 0);
        let (map, places) = first_map(&plan, &mut world_random);
        let clock = |rate: &u32| Clock::new(world_random.next() % (3_600_000 * MS), *rate);
        let clocks: Vec<Clock> = plan.clock_rates.iter().map(clock).collect();
        let nodes = clocks.into_iter().enumerate().map(|(number, clock)| Node::new(&plan, number, clock)).collect();
        let clients = (0..plan.clients as usize).map(|number| Client::new(&plan, number)).collect();
        let net = Net::new(seed, plan.network.clone(), plan.nodes as usize);
        let account = Account::new(&map);
        let mut world = World {
            now: MS,
            queue: BinaryHeap::new(),
            events: 0,
            nodes,
            clients,
            lines: BTreeMap::new(),
            next_line: 1,
            queries: BTreeMap::new(),
            oracle: Oracle::new(plan.replicas, &places),
            places,
            map: Arc::new(map),
            net,
            account,
            trace,
            failure: None,
            healed: false,
            stays_down: 0,
            random: world_random,
            disk_random: random(seed, Purpose::Disk, 2),
            replica_random: random(seed, Purpose::Replicas, 0),
            effects: Vec::new(),
            crashes: 0,
            faults: 0,
            plan,
        };
        world.oracle.begin(world.births());
        world
    }

    fn births(&self) -> BTreeMap<PartitionId, coppice_server::machine::Machine> {
        let groups = (0..=self.plan.partitions).map(PartitionId);
        groups.map(|group| (group, self.born(group))).collect()
    }

    fn run(&mut self) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in 0..self.clients.len() {
            self.schedule(self.now, Event::Think { client });
        }
        for number in 0..self.plan.faults.len() {
            let at = self.plan.faults[number].at + self.now;
            self.schedule(at, Event::Fault { number });
        }
        self.advance(SAFETY_MAX, |world| world.account.open() == 0 && world.clients.iter().all(Client::is_done));
        self.heal();
        let settled = self.plan.settings.election_timeout * LIVENESS_TIMEOUTS + CLIENT_PATIENCE;
        let slowest = self.plan.clock_rates.iter().min().map_or(1_000, |rate| u64::from(*rate));
        let bound = settled.as_nanos() as Nanos * 1_000 / slowest;
        self.advance(self.now + bound, |world| world.account.open() == 0);
        if self.failure.is_none() && self.account.open() > 0 {
            let waiting = self.account.waiting();
            self.fail("liveness", format!("after {bound} ns without a fault these still wait: {waiting}"));
        }
        self.audit();
    }

    fn audit(&mut self) {
        self.stays_down = 0;
        for node in 0..self.nodes.len() {
            if !self.nodes[node].up {
                self.start(node);
            }
        }
        for client in 0..self.clients.len().min(1) {
            self.read_everything(client);
        }
        self.advance(self.now + CONVERGENCE, |world| world.account.open() == 0 && world.is_even());
        if self.failure.is_none() && !self.is_even() {
            let uneven = self.uneven();
            self.fail("convergence", format!("replicas stay apart: {uneven}"));
        }
        if self.failure.is_none()
            && let Err((check, what)) = self.account.judge(&self.oracle)
        {
            self.fail(check, what);
        }
    }

    /// Lets things happen until `until`, or until `enough`.
    fn advance(&mut self, until: Nanos, enough: impl Fn(&World) -> bool) {
        while self.failure.is_none() && !enough(self) {
            let Some(Reverse(next)) = self.queue.peek() else { return };
            if next.at > until {
                break;
            }
            let Some(Reverse(Scheduled { at, event, .. })) = self.queue.pop() else { return };
            self.now = self.now.max(at);
            self.happen(event);
            if self.trace.steps() > STEPS_MAX {
                self.fail("livelock", format!("more than {STEPS_MAX} steps"));
            }
        }
    }

    /// Orders an event.
    pub fn schedule(&mut self, at: Nanos, event: Event) {
        self.events += 1;
        self.queue.push(Reverse(Scheduled { at, number: self.events, event }));
    }

    /// Notes what went wrong; the first one counts.
    pub fn fail(&mut self, check: &str, what: String) {
        if self.failure.is_none() {
            let (step, at) = (self.trace.steps(), self.now);
            self.failure = Some(Failure { check: check.to_owned(), what, step, at });
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some((node, life)) = event.process() {
            let each = &self.nodes[node];
            if !each.up || each.life != life {
                return;
            }
            if each.paused_until > self.now {
                return self.schedule(each.paused_until, event);
            }
        }
        match event {
            Event::Peer { from, to, envelope } => {
                if self.nodes[to].paused_until > self.now {
                    let at = self.nodes[to].paused_until;
                    return self.schedule(at, Event::Peer { from, to, envelope });
                }
                if self.net.hears(to, from) {
                    self.receive(to, envelope);
                }
            }
            Event::Letter { from, to, letter } => {
                if self.nodes[to].paused_until > self.now {
                    let at = self.nodes[to].paused_until;
                    return self.schedule(at, Event::Letter { from, to, letter });
                }
                if from == to || self.net.hears(to, from) {
                    self.on_letter(to, letter);
                }
            }
            Event::Tick { node, at, .. } if self.is_wanted(node, at) => self.on_tick(node),
            Event::Tick { .. } => {}
            Event::Flushed { node, .. } => self.on_flushed(node),
            Event::Idle { node, .. } => self.begin_write(node, true),
            Event::Start { node, life } => {
                if !self.nodes[node].up && self.nodes[node].life == life && self.stays_down >> node & 1 == 0 {
                    self.start(node);
                }
            }
            Event::SnapshotWritten { node, group, saved, .. } => self.on_snapshot_written(node, group, saved),
            Event::SnapshotAsked { from, node, life, group, instance } => {
                self.on_snapshot_asked(from, node, life, group, instance);
            }
            Event::SnapshotArrived { node, group, saved, .. } => self.on_snapshot_arrived(node, group, saved),
            Event::SnapshotPatience { node, group, .. } => self.on_snapshot_patience(node, group),
            Event::ToNode { line, bytes } => {
                let node = self.lines.get(&line).map_or(0, |line| line.node);
                if self.nodes[node].paused_until > self.now {
                    let at = self.nodes[node].paused_until;
                    return self.schedule(at, Event::ToNode { line, bytes });
                }
                self.node_receives(line, &bytes);
            }
            other => self.happen_outside(other),
        }
    }

    /// What does not happen inside a node.
    fn happen_outside(&mut self, event: Event) {
        match event {
            Event::Opened { line, ok } => self.on_opened(line, ok),
            Event::ToClient { line, bytes } => self.client_receives(line, &bytes),
            Event::Lost { line } => self.on_lost(line),
            Event::ClientTick { client, at } => self.on_client_tick(client, at),
            Event::Think { client } => self.think(client),
            Event::Query { node, asker } => self.on_query(node, asker),
            Event::QueryPatience { asker } => self.on_query_patience(asker),
            Event::News { asker, news } => self.on_news(asker, news),
            Event::Fault { number } if !self.healed => {
                self.faults += 1;
                let kind = self.plan.faults[number].kind.clone();
                let (now, made) = (self.now, self.faults);
                self.trace.step(now, &made, |line| *line += &format!("fault {kind:?}"));
                self.account.fault(now, &kind);
                self.make(kind);
            }
            Event::Mend { side, one_way } if !self.healed => self.net.cut(side, one_way, -1),
            Event::DiskWell { node } => {
                self.nodes[node].flush_extra = 0;
                self.nodes[node].store.set_room(None);
            }
            _ => {}
        }
    }

    fn node_of(&self, target: Target) -> usize {
        match target {
            Target::Node(node) => node,
            Target::Leader(group) => {
                let group = PartitionId(group);
                let leads = |node: &Node| node.hosts.get(&group).is_some_and(|host| host.replica.is_leading());
                self.nodes.iter().position(leads).unwrap_or(0)
            }
        }
    }

    fn make(&mut self, kind: Kind) {
        match kind {
            Kind::Crash { who, effects, down, again } => {
                let node = self.node_of(who);
                self.nodes[node].cut_start = again;
                if self.nodes[node].up && effects == 0 {
                    self.crash(node, down);
                } else if self.nodes[node].up {
                    self.nodes[node].doom = Some((effects, down));
                }
            }
            Kind::CrashAll { down } => {
                for node in 0..self.nodes.len() {
                    if self.nodes[node].up {
                        self.crash(node, down);
                    }
                }
            }
            Kind::Pause { who, length } => {
                let node = self.node_of(who);
                self.nodes[node].paused_until = self.now + length;
            }
            Kind::Cut { side, alone, one_way, length } => {
                let side = alone.map_or(side, |alone| 1 << self.node_of(alone));
                self.net.cut(side, one_way, 1);
                self.schedule(self.now + length, Event::Mend { side, one_way });
            }
            Kind::Jump { who, by } => {
                if self.plan.settings.reads == coppice_ordering::Reads::Quorum {
                    let (node, now) = (self.node_of(who), self.now);
                    self.nodes[node].clock.jump(now, by);
                    self.arm(node);
                }
            }
            Kind::Transfer { group, to } => {
                let (node, group) = (self.node_of(Target::Leader(group)), PartitionId(group));
                let deadline = self.nodes[node].clock.local(self.now) + self.plan.settings.election_timeout;
                if self.nodes[node].up && self.nodes[node].paused_until <= self.now {
                    self.step(node, group, Input::Transfer { to: ReplicaId(to), deadline });
                }
            }
            Kind::SlowDisk { who, by, length } => {
                let node = self.node_of(who);
                self.nodes[node].flush_extra = by;
                self.schedule(self.now + length, Event::DiskWell { node });
            }
            Kind::FailFlush { who } => {
                let node = self.node_of(who);
                self.nodes[node].store.fail_flush();
            }
            Kind::IoError { who, after } => {
                let node = self.node_of(who);
                if self.nodes[node].up {
                    self.nodes[node].store.fail_at(after);
                }
            }
            Kind::FullDisk { who, bytes, length } => {
                let node = self.node_of(who);
                self.nodes[node].store.set_room(Some(bytes));
                self.schedule(self.now + length, Event::DiskWell { node });
            }
        }
    }

    /// Everything works from now on; perhaps a minority stays down until the audit.
    fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        if self.plan.minority_down {
            let minority = (self.plan.replicas as usize - 1) / 2;
            for _ in 0..minority {
                self.stays_down |= 1 << self.random.below(self.nodes.len());
            }
        }
        for node in 0..self.nodes.len() {
            let now = self.now;
            let each = &mut self.nodes[node];
            (each.paused_until, each.doom, each.flush_extra, each.cut_start) = (0, None, 0, None);
            each.store.set_room(None);
            each.store.spare();
            let life = each.life;
            match (self.nodes[node].up, self.stays_down >> node & 1 == 1) {
                (true, true) => self.crash(node, 0),
                (false, false) => self.schedule(now, Event::Start { node, life }),
                _ => {}
            }
            self.arm(node);
        }
    }

    /// Groups with a replica on a node.
    pub fn groups_of(&self, node: usize) -> Vec<PartitionId> {
        self.places.iter().filter(|(_, place)| **place == node).map(|((group, _), _)| *group).collect()
    }

    /// The replica of a group on a node.
    pub fn replica_of(&self, group: PartitionId, node: usize) -> ReplicaId {
        let here = self.places.iter().find(|((of, _), place)| *of == group && **place == node);
        here.map_or(ReplicaId(0), |((_, replica), _)| *replica)
    }

    /// All replicas have decided all that any of them has.
    fn is_even(&self) -> bool {
        self.uneven().is_empty()
    }

    fn uneven(&self) -> String {
        let mut uneven = String::new();
        for group in (0..=self.plan.partitions).map(PartitionId) {
            let hosts = self.nodes.iter().enumerate().filter_map(|(node, each)| Some((node, each.hosts.get(&group)?)));
            let decided: Vec<(usize, Instance)> =
                hosts.map(|(node, host)| (node, host.replica.executor().decided())).collect();
            let known = self.oracle.decided(group);
            if decided.len() < self.plan.replicas as usize || decided.iter().any(|(_, upto)| upto.0 != known) {
                uneven += &format!("{group}: {known} decided, {decided:?}; ");
            }
        }
        uneven
    }
}

/// Partitions over the keys in use, replicas over the nodes.
fn first_map(plan: &Plan, random: &mut Random) -> (PartitionMap, BTreeMap<(PartitionId, ReplicaId), usize>) {
    let mut places = BTreeMap::new();
    let mut entries = Vec::new();
    for group in 0..=plan.partitions {
        let first = random.below(plan.nodes as usize);
        let replicas = (0..plan.replicas).map(|replica| {
            let node = (first + replica as usize) % plan.nodes as usize;
            places.insert((PartitionId(group), ReplicaId(replica)), node);
            ReplicaInfo { replica: WireReplica(replica), node: NodeId(node as u32 + 1), role: Role::Voter }
        });
        let replicas = replicas.collect();
        let bound = |at: u32| key((u64::from(plan.keys) * u64::from(at) / u64::from(plan.partitions)) as u32);
        let (low, high) = match group {
            0 => (Bytes::new(), None),
            _ => (
                if group == 1 { Bytes::new() } else { bound(group - 1) },
                (group < plan.partitions).then(|| bound(group)),
            ),
        };
        entries.push(Entry { partition: PartitionId(group), low, high, version: MapVersion(1), replicas });
    }
    let node = |number: u32| NodeInfo {
        id: NodeId(number + 1),
        name: format!("n{number}"),
        addresses: Addresses { native: format!("n{number}:7400"), ..Addresses::default() },
        state: NodeState::Member,
    };
    let directory = Some(entries.remove(0));
    let map = PartitionMap {
        version: MapVersion(1),
        nodes: (0..plan.nodes).map(node).collect(),
        directory,
        partitions: entries,
        ending: Vec::new(),
    };
    (map, places)
}
