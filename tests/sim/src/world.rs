//! The run of one seed: a heap of events ordered by simulated time, and what each of them does (the phases are in
//! `phases`).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use coppice_client::map::{Addresses, Entry, NodeInfo, NodeState, PartitionMap, ReplicaInfo, Role};
use coppice_client::wire::{MapVersion, NodeId, PartitionId, ReplicaId as WireReplica};
use coppice_core::replica::Input;
use coppice_core::sessions::SessionLimits;
use coppice_ordering::{Instance, ReplicaId};
use coppice_testkit::random::Random;

use super::account::Account;
use super::client::{Client, key};
use super::coverage::Coverage;
use super::events::{Agenda, Event};
use super::faults::Faults;
use super::found::Found;
use super::lines::Lines;
use super::net::Net;
use super::node::{Clock, Node};
use super::oracle::Oracle;
use super::plan::{MS, Nanos, Plan, Purpose, random};
use super::store::CLUSTER;
use super::trace::Trace;

/// What a run found.
#[derive(Clone, Debug)]
pub struct Failure {
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
    pub steps: u64,
    /// Operations answered.
    pub answered: u64,
    /// Faults made.
    pub faults: u64,
    /// Processes that ended by them.
    pub crashes: u64,
    /// Rare conditions, and how often they were met.
    pub coverage: Coverage,
    /// The trace's last lines, if it was wordy.
    pub last: Vec<String>,
    /// The history and the logs, if the trace was wordy.
    pub history: Vec<coppice_check::event::Event<'static>>,
}

/// One run.
pub struct World {
    pub plan: Plan,
    pub now: Nanos,
    pub agenda: Agenda,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub lines: Lines,
    /// The newest decided map.
    pub map: Arc<PartitionMap>,
    pub asked: Intent,
    pub net: Net,
    pub oracle: Oracle,
    pub account: Account,
    pub trace: Trace,
    pub failure: Option<Failure>,
    pub draws: Draws,
    /// Rare conditions, and how often they were met.
    pub coverage: Coverage,
    pub faults: Faults,
}

/// What the cluster's operators have asked for.
pub struct Intent {
    /// The map that the cluster is made with.
    pub first_map: Arc<PartitionMap>,
    /// Voters that each group is to have.
    pub replicas: usize,
    /// Nodes that were asked to go, at any time.
    pub leaving: BTreeSet<NodeId>,
    /// The bounds of session tables.
    pub limits: SessionLimits,
}

/// Generators of what is drawn while a run goes on, one for each purpose.
pub struct Draws {
    pub world: Random,
    pub disk: Random,
    pub replicas: Random,
    /// When nodes hear of settings.
    pub told: Random,
    /// What a start reads in another place than it asked for.
    pub misread: Random,
    /// When the acts of a checkpoint's life are done.
    pub acts: Random,
    /// Reads that fail.
    pub reads: Random,
}

impl Draws {
    fn new(seed: u64, world: Random) -> Draws {
        Draws {
            world,
            disk: random(seed, Purpose::Disk, 2),
            replicas: random(seed, Purpose::Replicas, 0),
            told: random(seed, Purpose::Told, 0),
            misread: random(seed, Purpose::Misread, 1),
            acts: random(seed, Purpose::Acts, 0),
            reads: random(seed, Purpose::ReadErrors, 0),
        }
    }
}

/// Runs one seed's plan.
pub fn run(plan: Plan, trace: Trace) -> Outcome {
    let mut world = World::new(plan, trace);
    world.run();
    let answered = world.account.answered();
    let last = world.trace.last().map(str::to_owned).collect();
    let (hash, steps) = (world.trace.hash(), world.trace.steps());
    let history = if world.trace.is_wordy() { world.account.events(&world.oracle) } else { Vec::new() };
    let (faults, crashes, coverage) = (world.faults.made, world.faults.crashes, world.coverage);
    Outcome { failure: world.failure, hash, steps, answered, faults, crashes, coverage, last, history }
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
        let clients = (0..plan.workload.clients as usize).map(|number| Client::new(&plan, number)).collect();
        let net = Net::new(seed, plan.network.clone(), plan.nodes as usize);
        let mut world = World {
            now: MS,
            agenda: Agenda::default(),
            nodes,
            clients,
            lines: Lines::default(),
            asked: Intent {
                first_map: Arc::clone(&map),
                replicas: plan.replicas as usize,
                leaving: BTreeSet::new(),
                limits: first_limits(&plan),
            },
            map,
            net,
            oracle: Oracle::default(),
            account: Account::default(),
            trace,
            failure: None,
            draws: Draws::new(seed, world_random),
            coverage: Coverage::default(),
            faults: Faults::new(&plan),
            plan,
        };
        for group in 0..=world.plan.partitions {
            let machine = world.first_state(PartitionId(group));
            let voters = (0..world.plan.replicas).map(ReplicaId);
            world.oracle.begin(PartitionId(group), machine, voters.collect());
        }
        world
    }

    /// Orders an event.
    pub fn schedule(&mut self, at: Nanos, event: Event) {
        self.agenda.push(at, event);
    }

    /// Notes what went wrong; the first one counts.
    pub fn fail(&mut self, check: &str, what: String) {
        if self.failure.is_none() {
            let (step, at) = (self.trace.steps(), self.now);
            self.failure = Some(Failure { check: check.to_owned(), what, step, at });
        }
    }

    /// Notes what an oracle found wrong.
    pub fn expect(&mut self, found: Found) {
        if let Err((check, what)) = found {
            self.fail(check, what);
        }
    }

    pub(super) fn happen(&mut self, event: Event) {
        self.net.now = self.now;
        if let Some((node, boot)) = event.process() {
            let each = &self.nodes[node];
            if !each.up || each.boot != boot {
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
            Event::Start { node, boot } => {
                let each = &self.nodes[node];
                if !each.up && each.boot == boot && each.may_start() && self.faults.stays_down >> node & 1 == 0 {
                    if self.waits_for_the_others(node) {
                        return self.schedule(self.now + 100 * MS, Event::Start { node, boot });
                    }
                    self.start(node);
                }
            }
            Event::Checkpoint { node, group, checkpoint, writing, .. } => {
                self.on_checkpoint(node, group, checkpoint, writing);
            }
            Event::SnapshotAsked { from, node, boot, fetch, group, least } => {
                self.on_snapshot_asked(from, (node, boot, fetch), group, least);
            }
            Event::SnapshotArrived { node, fetch, group, saved, .. } => {
                self.on_snapshot_arrived(node, fetch, group, saved);
            }
            Event::SnapshotTimeout { node, fetch, group, .. } => self.on_snapshot_timeout(node, fetch, group),
            Event::Deleted { node, group, .. } => self.on_deleted(node, group),
            Event::Settings { node, .. } => self.on_settings(node),
            Event::Greets { node, to, .. } => self.on_greets(node, to),
            Event::PutBack { node } => self.on_put_back(node),
            Event::ControlTick { node, at, .. } => self.on_control_tick(node, at),
            Event::Control { node, input, .. } => self.tell(node, input.0),
            Event::Undecided { node, stream, .. } => self.on_undecided(node, stream),
            Event::MapAsked { from, node, boot } => self.on_map_asked(from, node, boot),
            Event::MapTold { node, state, leaders, .. } => self.on_map_told(node, state, leaders),
            Event::ToNode { line, bytes } => {
                let (node, late) = self.lines.open.get(&line).map_or((0, 0), |line| (line.node, line.late_until));
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
            Event::Gone { node, boot, gone } => self.on_gone(node, boot, gone),
            Event::ClientTick { client, at } => self.on_client_tick(client, at),
            Event::Think { client } => self.think(client),
            Event::Configure { node, partition, expected, configuration } => {
                let expected = Instance(expected);
                self.step(node, partition, Input::Change { expected, configuration });
            }
            Event::TransferLeader { node, partition, to } => self.on_transfer_leader(node, partition, to),
            Event::Assign { node, map, by } => self.on_assign(node, map, by),
            Event::Operate { request } => self.operate(&request),
            Event::Fault { number } if !self.faults.healed => {
                self.faults.made += 1;
                let kind = self.plan.faults[number].kind.clone();
                let (now, made) = (self.now, self.faults.made);
                self.trace.step(now, &made, |line| *line += &format!("fault {kind:?}"));
                self.account.fault(now, &kind);
                self.coverage.fault(&kind);
                self.make(number, kind);
            }
            Event::Mend { side, one_way } if !self.faults.healed => self.net.cut(side, one_way, -1),
            Event::MendPair { to, from } if !self.faults.healed => self.net.cut_pair(to, from, -1),
            Event::DiskWell { node } => {
                self.nodes[node].flush_extra = 0;
                self.nodes[node].store.set_room(None);
            }
            _ => {}
        }
    }
}

/// The bounds of session tables in a run of `plan`, until somebody sets others.
fn first_limits(plan: &Plan) -> SessionLimits {
    session_limits(plan.server.sessions_max, plan.server.expiry_instances)
}

/// The bounds of session tables with these two set.
pub fn session_limits(sessions_max: usize, expiry_instances: u64) -> SessionLimits {
    let usual = SessionLimits::default();
    // Where sessions end early, they end for their answers too.
    let table_bytes_max = if expiry_instances < 1_000_000 { 2 << 10 } else { usual.table_bytes_max };
    SessionLimits { expiry_instances, sessions_max, table_bytes_max, ..usual }
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
        let bound = |at: u32| key((u64::from(plan.workload.keys) * u64::from(at) / u64::from(plan.partitions)) as u32);
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
