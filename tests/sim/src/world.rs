//! The run of one seed: a heap of events ordered by simulated time, and what each of them does (the phases are in
//! `phases`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use bytes::Bytes;
use coppice_check::random::Random;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId, ReplicaId as WireReplica};
use coppice_core::replica::Input;
use coppice_core::sessions::SessionLimits;
use coppice_core::worker::Effect;
use coppice_ordering::{Instance, ReplicaId};

use super::account::Account;
use super::clients::{Client, key};
use super::copies::Copies;
use super::doors::Line;
use super::events::{Event, Scheduled};
use super::faults::{Kind, Target};
use super::net::Net;
use super::node::{Clock, Node};
use super::oracle::Oracle;
use super::plan::{MS, Nanos, Plan, Purpose, random};
use super::positions::Positions;
use super::reached::Reached;
use super::settings::first_limits;
use super::store::CLUSTER;
use super::tickets::Tickets;
use super::trace::Trace;
use super::traps::Trap;

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
    /// Rare conditions, and how often they were met.
    pub reached: Reached,
    /// The trace's last lines, if it was wordy.
    pub last: Vec<String>,
    /// The history and the logs, if the trace was wordy.
    pub history: Vec<coppice_check::event::Event<'static>>,
}

/// One run.
pub struct World {
    pub plan: Plan,
    pub now: Nanos,
    pub(super) queue: BinaryHeap<Reverse<Scheduled>>,
    /// Events ordered so far, and those that happened.
    pub(super) events: u64,
    pub(super) happened: u64,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub lines: BTreeMap<u64, Line>,
    pub next_line: u64,
    /// The map that the cluster is made with.
    pub first_map: Arc<PartitionMap>,
    /// The newest decided map.
    pub map: Arc<PartitionMap>,
    /// Voters that each group is to have.
    pub replicas: usize,
    /// Nodes that were asked to go, at any time.
    pub leaving: BTreeSet<NodeId>,
    /// The bounds of session tables as the cluster's settings have them.
    pub limits: SessionLimits,
    pub net: Net,
    pub oracle: Oracle,
    pub copies: Copies,
    pub tickets: Tickets,
    pub traps: Vec<Trap>,
    pub account: Account,
    /// How far answers have seen.
    pub positions: Positions,
    pub trace: Trace,
    pub failure: Option<Failure>,
    /// No more faults; nodes that are to stay down have their bit set.
    pub healed: bool,
    pub stays_down: u32,
    pub random: Random,
    pub disk_random: Random,
    pub replica_random: Random,
    /// When nodes hear of settings.
    pub told_random: Random,
    /// Draws what a start reads in another place than it asked for.
    pub misread_random: Random,
    /// Draws when the acts of a checkpoint's life are done.
    pub acts_random: Random,
    /// Draws reads that fail.
    pub read_random: Random,
    pub effects: Vec<Effect>,
    /// Processes that ended before everything was healed.
    pub crashes: u64,
    /// Rare conditions, and how often they were met.
    pub reached: Reached,
    pub(super) faults: u64,
}

/// Runs one seed's plan.
pub fn run(plan: Plan, trace: Trace) -> Outcome {
    let mut world = World::new(plan, trace);
    world.run();
    let answered = world.account.answered();
    let last = world.trace.last().map(str::to_owned).collect();
    let (hash, steps) = (world.trace.hash(), world.trace.steps());
    let history = if world.trace.is_wordy() { world.account.events(&world.oracle) } else { Vec::new() };
    let (faults, crashes, reached) = (world.faults, world.crashes, world.reached);
    Outcome { failure: world.failure, hash, steps, answered, faults, crashes, reached, last, history }
}

impl World {
    /// The cluster of a plan, before anything happened.
    pub fn new(plan: Plan, trace: Trace) -> World {
        let seed = plan.seed;
        let mut world_random = random(seed, Purpose::World, 0);
        let map = Arc::new(first_map(&plan, &mut world_random));
        let clock = |rate: &u32| Clock::new(world_random.next() % (3_600_000 * MS), *rate);
        let clocks: Vec<Clock> = plan.clock_rates.iter().map(clock).collect();
        let nodes = clocks.into_iter().enumerate();
        let nodes = nodes.map(|(number, clock)| Node::new(&plan, number, clock, Some(Arc::clone(&map)))).collect();
        let clients = (0..plan.clients as usize).map(|number| Client::new(&plan, number)).collect();
        let net = Net::new(seed, plan.network.clone(), plan.nodes as usize);
        let mut world = World {
            now: MS,
            queue: BinaryHeap::new(),
            events: 0,
            happened: 0,
            nodes,
            clients,
            lines: BTreeMap::new(),
            next_line: 1,
            oracle: Oracle::default(),
            copies: Copies::new(&plan),
            tickets: Tickets::default(),
            traps: Vec::new(),
            first_map: Arc::clone(&map),
            map,
            replicas: plan.replicas as usize,
            leaving: BTreeSet::new(),
            limits: first_limits(&plan),
            net,
            account: Account::default(),
            positions: Positions::default(),
            trace,
            failure: None,
            healed: false,
            stays_down: 0,
            random: world_random,
            disk_random: random(seed, Purpose::Disk, 2),
            replica_random: random(seed, Purpose::Replicas, 0),
            told_random: random(seed, Purpose::Told, 0),
            misread_random: random(seed, Purpose::Misread, 1),
            acts_random: random(seed, Purpose::Acts, 0),
            read_random: random(seed, Purpose::ReadErrors, 0),
            effects: Vec::new(),
            crashes: 0,
            reached: Reached::default(),
            faults: 0,
            plan,
        };
        for group in 0..=world.plan.partitions {
            let machine = world.first_state(PartitionId(group));
            let voters = (0..world.plan.replicas).map(ReplicaId);
            world.oracle.begin(PartitionId(group), machine, voters.collect());
        }
        world
    }

    /// Events that are ordered and have not happened.
    pub fn ordered(&self) -> usize {
        self.queue.len()
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

    pub(super) fn happen(&mut self, event: Event) {
        self.net.now = self.now;
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
                    return self.schedule(self.nodes[to].paused_until, Event::Peer { from, to, envelope });
                }
                if self.net.hears(to, from) {
                    self.receive(to, from, envelope);
                }
            }
            Event::MulticastMessage { from, to, message } => {
                if self.nodes[to].paused_until > self.now {
                    return self.schedule(self.nodes[to].paused_until, Event::MulticastMessage { from, to, message });
                }
                if self.net.hears(to, from) {
                    self.on_multicast(to, from, message);
                }
            }
            Event::Tick { node, at, .. } if self.is_wanted(node, at) => self.on_tick(node),
            Event::Tick { .. } => {}
            Event::Mail { node, worker, mail, .. } => self.on_mail(node, worker, mail),
            Event::Flushed { node, .. } => self.on_flushed(node),
            Event::Idle { node, .. } => self.begin_write(node, true),
            Event::Start { node, life } => {
                let each = &self.nodes[node];
                if !each.up && each.life == life && each.may_start() && self.stays_down >> node & 1 == 0 {
                    if self.waits_for_witnesses(node) {
                        return self.schedule(self.now + 100 * MS, Event::Start { node, life });
                    }
                    self.start(node);
                }
            }
            Event::Checkpoint { node, group, checkpoint, writing, .. } => {
                self.on_checkpoint(node, group, checkpoint, writing);
            }
            Event::SnapshotAsked { from, node, life, fetch, group, least } => {
                self.on_snapshot_asked(from, (node, life, fetch), group, least);
            }
            Event::SnapshotArrived { node, fetch, group, saved, .. } => {
                self.on_snapshot_arrived(node, fetch, group, saved);
            }
            Event::SnapshotPatience { node, fetch, group, .. } => self.on_snapshot_patience(node, fetch, group),
            Event::Deleted { node, group, .. } => self.on_deleted(node, group),
            Event::Settings { node, .. } => self.on_settings(node),
            Event::Greets { node, to, .. } => self.on_greets(node, to),
            Event::Vetted { node, .. } => self.on_vetted(node),
            Event::PutBack { node } => self.on_put_back(node),
            Event::ControlTick { node, at, .. } => self.on_control_tick(node, at),
            Event::Told { node, input, .. } => self.tell(node, input.0),
            Event::Undecided { node, stream, .. } => self.on_undecided(node, stream),
            Event::MapAsked { from, node, life } => self.on_map_asked(from, node, life),
            Event::MapTold { node, map, leaders, .. } => self.on_map_told(node, &map, leaders),
            Event::ToNode { line, bytes } => {
                let (node, late) = self.lines.get(&line).map_or((0, 0), |line| (line.node, line.late_until));
                let at = self.nodes[node].paused_until.max(late);
                if at > self.now {
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
            Event::Gone { node, life, gone } => self.on_gone(node, life, gone),
            Event::ClientTick { client, at } => self.on_client_tick(client, at),
            Event::Think { client } => self.think(client),
            Event::Configure { node, partition, expected, configuration } => {
                let expected = Instance(expected);
                self.step(node, partition, Input::Change { expected, configuration });
            }
            Event::TransferLeader { node, partition, to } => self.on_transfer_leader(node, partition, to),
            Event::Assign { node, map, by } => self.on_assign(node, map, by),
            Event::Command { node, command } => self.decide(node, command),
            Event::Operate { request } => self.operate(&request),
            Event::Fault { number } if !self.healed => {
                self.faults += 1;
                let kind = self.plan.faults[number].kind.clone();
                let (now, made) = (self.now, self.faults);
                self.trace.step(now, &made, |line| *line += &format!("fault {kind:?}"));
                self.account.fault(now, &kind);
                self.reached.fault(&kind);
                self.make(number, kind);
            }
            Event::Mend { side, one_way } if !self.healed => self.net.cut(side, one_way, -1),
            Event::MendPair { to, from } if !self.healed => self.net.cut_pair(to, from, -1),
            Event::DiskWell { node } => {
                self.nodes[node].flush_extra = 0;
                self.nodes[node].store.set_room(None);
            }
            _ => {}
        }
    }

    pub(super) fn node_of(&self, target: Target) -> usize {
        let group = match target {
            Target::Node(node) => return node,
            Target::Newest => return self.nodes.len() - 1,
            target => self.group_of(target),
        };
        let leads = |node: &Node| node.group(group).is_some_and(|host| host.replica.is_leading());
        self.nodes.iter().position(leads).unwrap_or(0)
    }

    /// The group whose leader is meant; the directory, if a node is.
    pub(super) fn group_of(&self, target: Target) -> PartitionId {
        match target {
            Target::Node(_) | Target::Newest => PartitionId::DIRECTORY,
            Target::Leader(group) => PartitionId(group),
            Target::Holder(at) => self.map.route(&key(at)).map_or(PartitionId::DIRECTORY, |entry| entry.partition),
        }
    }

    fn make(&mut self, number: usize, kind: Kind) {
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
                let each = &mut self.nodes[node];
                each.paused_until = each.paused_until.max(self.now + length);
            }
            Kind::Cut { side, alone, one_way, length } => {
                let side = alone.map_or(side, |alone| 1 << self.node_of(alone));
                self.net.cut(side, one_way, 1);
                self.schedule(self.now + length, Event::Mend { side, one_way });
            }
            Kind::Mute { who, length } => {
                let others = !(1 << self.node_of(who));
                self.net.cut(others, true, 1);
                self.schedule(self.now + length, Event::Mend { side: others, one_way: true });
            }
            Kind::Jump { who, by } => {
                // Leases rest on the rates of clocks.
                if self.plan.settings.reads == coppice_ordering::Reads::Quorum {
                    let (node, now) = (self.node_of(who), self.now);
                    self.nodes[node].clock.jump(now, by);
                    self.arm(node);
                }
            }
            Kind::Transfer { group, to } => {
                let (node, group) = (self.node_of(Target::Leader(group)), PartitionId(group));
                let Some(entry) = self.map.group(group) else { return };
                if let Some(info) = entry.replicas.get(to as usize % entry.replicas.len().max(1)) {
                    self.on_transfer_leader(node, group, info.node);
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
            Kind::CheckpointError { who, after } => {
                let node = self.node_of(who);
                self.nodes[node].store.fail_checkpoint(after);
            }
            Kind::ReadError { who, after, down } => {
                let node = self.node_of(who);
                if self.nodes[node].up {
                    self.nodes[node].store.fail_read(after);
                    self.crash_process(node, down);
                }
            }
            Kind::Split { .. } | Kind::Merge { .. } | Kind::Move { .. } => self.begin_change(number, &kind),
            Kind::Join | Kind::Drain { .. } | Kind::Undrain { .. } | Kind::Remove { .. } | Kind::Resize { .. } => {
                self.begin_change(number, &kind);
            }
            Kind::Replicas { count } => self.set_replicas(count),
            Kind::Wipe { node } => self.wipe(node),
            Kind::Rot { who, at, down } => {
                let node = self.node_of(who);
                if self.nodes[node].up && self.nodes[node].store.rot_checkpoint(at) {
                    self.reached.note("fault: checkpoint rots");
                    self.nodes[node].is_rotten = true;
                    self.crash(node, down);
                }
            }
            Kind::RotLog { who, at, down } => self.rot_log(self.node_of(who), at, down),
            Kind::Hold { group, mute, length } => self.hold(PartitionId(group), mute, length),
            Kind::Sever { who, one_way, length } => self.sever(who, one_way, length),
            Kind::Tune { group, batch_bytes_max, window, window_bytes_max } => {
                self.tune(PartitionId(group), batch_bytes_max, window, window_bytes_max);
            }
            Kind::Limits { sessions_max, expiry_instances } => self.set_limits(sessions_max, expiry_instances),
            Kind::Copy { who, after, down, others_restart } => self.copy(who, (after, down), others_restart),
            Kind::HangUp { who } => self.hang_up(self.node_of(who)),
            Kind::Absent { client, length } => self.send_away(client, length),
            Kind::Trap { moment, crash, length } => self.set_trap(moment, crash, length),
            Kind::FullDisk { who, bytes, length } => {
                let node = self.node_of(who);
                self.nodes[node].store.set_room(Some(bytes));
                self.schedule(self.now + length, Event::DiskWell { node });
            }
        }
    }
}

/// Partitions over the keys in use, replicas over the nodes.
fn first_map(plan: &Plan, random: &mut Random) -> PartitionMap {
    let mut entries = Vec::new();
    for group in 0..=plan.partitions {
        let first = random.below(plan.nodes as usize);
        let replicas = (0..plan.replicas).map(|replica| {
            let node = (first + replica as usize) % plan.nodes as usize;
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
    let directory = Some(entries.remove(0));
    PartitionMap {
        cluster: CLUSTER,
        version: MapVersion(1),
        nodes: (0..plan.nodes as usize).map(node_info).collect(),
        directory,
        partitions: entries,
        ending: Vec::new(),
    }
}

fn node_info(node: usize) -> NodeInfo {
    NodeInfo {
        id: NodeId(node as u32 + 1),
        name: format!("n{node}"),
        addresses: addresses(node),
        state: NodeState::Member,
    }
}

/// Where a node is reached.
pub fn addresses(node: usize) -> Addresses {
    Addresses { native: format!("n{node}:7400"), peer: format!("n{node}:7401"), ..Addresses::default() }
}
