//! Operators: they ask for changes of the topology while clients work, begin processes that become nodes, and set what
//! each node hears of at a time of its own (protocol.md 6, operations.md 3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::{AdminReply, ChangeId, NodeId, NodeStatus, PartitionId, ReshapeRequest, Shape};
use coppice_core::controller;
use coppice_core::machine::directory::DirectoryState;
use coppice_core::question::Identified;
use coppice_core::reshape::View;
use coppice_core::status::{Capacity, LocalStatus};
use coppice_core::survey::Survey;
use coppice_core::worker::{Input, Load, TuningSettings, WorkerSettings};
use coppice_ordering::tuning::Limits;

use super::client::key;
use super::control::own;
use super::events::Event;
use super::node::Node;
use super::plan::fault::{Kind, Target};
use super::plan::{Balance, MS, Nanos};
use super::store::CLUSTER;
use super::world::{World, addresses, session_limits};

/// What an operator could not begin, because somebody was away, is tried again after this.
const OPERATOR_RETRY_INTERVAL: Nanos = 400 * MS;
/// Partitions at most: operators split no further.
const PARTITIONS_MAX: usize = 10;

/// A node hears of a setting at most so late.
const TOLD_MAX: Nanos = 1_000 * MS;

/// How busy a node that tunes finds its thread, its machine and its log.
const LOAD: Load = Load {
    interval: Duration::from_millis(500),
    thread: 0.5,
    machine: 0.6,
    flushes: 50,
    flushing: Duration::from_millis(20),
};

impl World {
    /// What a node hears from all that it reaches, itself included.
    pub fn view(&self, node: usize, map: &PartitionMap) -> View {
        let asked = Survey::<()>::new(map, NodeId(node as u32 + 1)).silent;
        let answers = |other: usize, each: &Node| {
            let is_asked = asked.contains(&NodeId(other as u32 + 1));
            let heard = || self.net.hears(node, other) && self.net.hears(other, node);
            let reached = other == node || (is_asked && heard());
            each.up && each.paused_until <= self.now && reached
        };
        let nodes = self.nodes.iter().enumerate().filter(|(other, each)| answers(*other, each));
        View::new(nodes.map(|(other, each)| (NodeId(other as u32 + 1), status(other, each))).collect())
    }

    /// A process becomes this node, if it has yet to.
    pub fn begin_as(&mut self, node: usize, map: Arc<PartitionMap>) {
        if std::mem::take(&mut self.nodes[node].damage.is_lost) {
            // The empty process is told that it is the node whose disk is lost.
            let clock = self.nodes[node].clock;
            let boot = self.nodes[node].boot;
            self.nodes[node] = Node { boot, ..Node::new(&self.plan, node, clock, None) };
        }
        let each = &mut self.nodes[node];
        if std::mem::take(&mut each.is_new) {
            each.kept_maps.push_back(map);
            self.start(node);
        }
    }

    /// What the process at this address says of itself.
    pub fn identify(&self, state: &DirectoryState, address: &str) -> Result<Box<Identified>, String> {
        // Numbers are given in order; here a node's number is its place, so those before it come first.
        let new = state.map.nodes.len();
        let addresses = addresses(new);
        if addresses.peer != address {
            return Err("it waits for its turn".into());
        }
        let known = self.nodes.get(new).filter(|each| !each.is_new);
        let identity = known.map(|_| (CLUSTER, own(new)));
        Ok(Box::new(Identified { identity, size: None, name: format!("n{new}"), addresses }))
    }

    /// Where a node would cut a partition into two halves.
    pub fn median(&self, node: usize, partition: PartitionId, by_load: bool) -> Option<Bytes> {
        let each = &self.nodes[node];
        each.process.workers[each.owner(partition)].median(partition, by_load)
    }

    /// What an operator hears.
    pub fn note_answer(&mut self, reply: &AdminReply) {
        self.coverage.note(match reply {
            AdminReply::Failed(_) => "operator: is refused",
            _ => "operator: asks for what is under way, or done",
        });
    }

    /// An operator sets other bounds.
    pub fn set_limits(&mut self, sessions_max: usize, expiry_instances: u64) {
        self.asked.limits = session_limits(sessions_max, expiry_instances);
        for node in 0..self.nodes.len() {
            self.tell_settings(node);
        }
    }

    /// The node that leads a group tunes it from now on, within these limits.
    pub fn tune(&mut self, group: PartitionId, batch_bytes_max: usize, window: u32, window_bytes_max: usize) {
        let node = self.node_of(Target::Leader(group.0));
        if !self.nodes[node].up || self.nodes[node].group(group).is_none() {
            return;
        }
        let mut settings = WorkerSettings::clone(&self.plan.worker_settings(node, Some(self.asked.limits)));
        // As on nodes, acceptors accept twice as far ahead as the widest window is.
        let window = window.min((settings.group.accept_ahead_max / 2) as u32);
        let limits = Limits {
            batch_bytes: (batch_bytes_max.div_ceil(2), batch_bytes_max),
            window: (window.div_ceil(2), window),
            window_bytes: (window_bytes_max.div_ceil(2), window_bytes_max),
            batch_delay_max: settings.group.batch_delay_max,
        };
        settings.tuning = TuningSettings { is_on: true, limits };
        let worker = self.nodes[node].owner(group);
        self.input(node, worker, Input::Settings(Arc::new(settings)));
        if self.nodes[node].up {
            self.input(node, worker, Input::Load(LOAD));
        }
    }

    /// This node hears of the settings, later.
    pub fn tell_settings(&mut self, node: usize) {
        let (boot, wait) = (self.nodes[node].boot, self.draws.told.below(TOLD_MAX as usize) as Nanos);
        self.schedule(self.now + wait, Event::Settings { node, boot });
    }

    /// This node hears of the settings, now.
    pub fn on_settings(&mut self, node: usize) {
        let settings = self.plan.worker_settings(node, Some(self.asked.limits));
        (0..self.nodes[node].process.workers.len())
            .for_each(|worker| self.input(node, worker, Input::Settings(Arc::clone(&settings))));
    }
}

/// Operators.
impl World {
    /// Number `number` of the plan: an operator asks for a change, perhaps twice.
    pub fn begin_change(&mut self, number: usize, kind: &Kind) {
        let again = match *kind {
            Kind::Split { again, .. } | Kind::Merge { again, .. } | Kind::Move { again, .. } => again,
            _ => None,
        };
        let Some(shape) = self.shape(kind) else { return };
        let change = ChangeId((self.plan.seed << 16) + number as u64 + 1);
        let request = Box::new(ReshapeRequest { change, shape, dry_run: false, force: false, within: None });
        if let Some(again) = again {
            self.schedule(self.now + again, Event::Operate { request: request.clone() });
        }
        self.operate(&request);
    }

    /// What is asked for, by the newest map.
    fn shape(&mut self, kind: &Kind) -> Option<Shape> {
        let partitions = &self.map.partitions;
        match *kind {
            Kind::Join => self.added(),
            Kind::Drain { node } => Some(Shape::DrainNode { node: self.may_go(node)? }),
            Kind::Remove { node } => Some(Shape::RemoveNode { node: self.may_go(node)? }),
            Kind::Undrain { node } => Some(Shape::UndrainNode { node: own(node) }),
            Kind::Split { key: at, .. } if partitions.len() < PARTITIONS_MAX => {
                Some(Shape::Split { partition: None, at: Some(key(at)) })
            }
            Kind::Merge { key: at, up, .. } => {
                let at = self.map.position(&key(at))?;
                let to = if up { at + 1 } else { at.checked_sub(1)? };
                let (gone, target) = (&partitions[at], partitions.get(to)?);
                let nodes = |entry: &coppice_client::map::Entry| {
                    entry.replicas.iter().map(|info| info.node).collect::<BTreeSet<NodeId>>()
                };
                Some(match nodes(gone) == nodes(target) {
                    true => Shape::Merge { partition: gone.partition, into: Some(target.partition) },
                    false => Shape::Move {
                        partition: gone.partition,
                        from: Vec::new(),
                        to: nodes(target).into_iter().collect(),
                    },
                })
            }
            Kind::Move { key: of, gone, to, .. } => {
                let entry = match of {
                    Some(of) => self.map.route(&key(of))?,
                    None => self.map.directory.as_ref()?,
                };
                let from = entry.replicas.get(gone as usize % entry.replicas.len().max(1))?.node;
                let member = |row: &&coppice_client::map::NodeInfo| {
                    row.state == NodeState::Member && entry.replica_on(row.id).is_none()
                };
                let others: Vec<NodeId> = self.map.nodes.iter().filter(member).map(|row| row.id).collect();
                let to = *others.get(to as usize % others.len().max(1)).filter(|_| to < u32::MAX).or(others.last())?;
                Some(Shape::Move { partition: entry.partition, from: vec![from], to: vec![to] })
            }
            _ => None,
        }
    }

    /// The leader of the directory begins a change that no operator asked for.
    ///
    /// What it has moved it leaves where it is for a while, by its own clock.
    pub fn on_announced(&mut self, node: usize, what: &str) {
        let (mark, moves) = match what {
            _ if what.contains("leader") => ("by itself: a leader moves", true),
            _ if what.contains("replica") => ("by itself: a replica moves", true),
            _ if what.contains("split") => ("by itself: a split", false),
            _ => ("by itself: a merge", false),
        };
        self.coverage.note(mark);
        let name = what.split(':').next().unwrap_or_default();
        let settles = Balance::PACE.settle.as_nanos() as Nanos;
        let at = self.nodes[node].clock.local(self.now).0;
        let moved = &mut self.nodes[node].process.control.moved;
        if moves
            && let Some(before) = moved.insert((name.to_owned(), mark), at)
            && at < before + settles
        {
            let after = Duration::from_nanos(at - before);
            self.fail("balance", format!("n{node}: {what}, {after:?} after it has moved"));
        }
    }

    /// An operator's verb reaches the leader of the directory, which judges and begins it.
    pub fn operate(&mut self, request: &ReshapeRequest) {
        if self.faults.healed && !matches!(request.shape, Shape::ReplaceNode { .. } | Shape::AddNode { .. }) {
            return;
        }
        let leads = |node: &Node| {
            node.group(PartitionId::DIRECTORY).is_some_and(|host| host.replica.is_leading())
                && node.paused_until <= self.now
        };
        let leader = self.nodes.iter().position(leads);
        let state = leader.and_then(|leader| self.nodes[leader].process.control.controller.driven().cloned());
        if let (Some(leader), Some(state)) = (leader, state) {
            let view = Box::new(self.view(leader, &state.map));
            let verb = &mut self.nodes[leader].process.control.newest_verb;
            *verb += 1;
            let verb = *verb;
            self.tell(leader, controller::Input::Verb { verb, request: Box::new(request.clone()), view });
        }
        // Whoever adds or replaces a node does not give up.
        let replaced = |old: NodeId| state_of(&self.map, old).is_none_or(|state| state == NodeState::Removed);
        let goes_on = match &request.shape {
            Shape::ReplaceNode { old, .. } => !replaced(*old),
            Shape::AddNode { address } => !self.is_enlisted(address),
            _ => false,
        };
        if goes_on {
            self.schedule(self.now + OPERATOR_RETRY_INTERVAL, Event::Operate { request: Box::new(request.clone()) });
        }
    }

    /// A node loses its disk, and its process for good; another process is started in its place.
    pub fn wipe(&mut self, node: usize) {
        if self.nodes.iter().any(|node| node.damage.is_lost) {
            return;
        }
        if self.nodes[node].up {
            self.crash(node, 0);
        }
        self.nodes[node].damage.is_lost = true;
        self.oracle.disk_lost(node);
        let rates = &self.plan.clock_rates;
        let new = self.spawn(rates[node % rates.len()]);
        let change = ChangeId(self.plan.seed << 16);
        let shape = Shape::ReplaceNode { old: NodeId(node as u32 + 1), address: addresses(new).peer };
        let request = Box::new(ReshapeRequest { change, shape, dry_run: false, force: false, within: None });
        self.schedule(self.now + OPERATOR_RETRY_INTERVAL, Event::Operate { request });
    }
}

fn state_of(map: &PartitionMap, node: NodeId) -> Option<NodeState> {
    map.node(node).map(|row| row.state)
}

/// What a node says of itself.
fn status(node: usize, each: &Node) -> LocalStatus {
    let capacity = Capacity {
        replicas: each.process.control.controller.replicas().running().len(),
        replicas_max: usize::MAX,
        disk_is_full: each.store.is_full(),
        memory_is_full: false,
    };
    LocalStatus {
        node: NodeStatus {
            id: NodeId(node as u32 + 1),
            up: true,
            disk_full: each.store.is_full(),
            ..NodeStatus::default()
        },
        map_version: each.process.control.controller.map().version.0,
        replicas: each.groups().map(|(group, host)| (group, host.status().told())).collect(),
        warnings: Vec::new(),
        full: capacity.full(),
        changes: each.process.control.controller.changes_under_way(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Workload};
    use crate::trace::Trace;

    #[test]
    fn a_split_that_does_not_say_where_is_one_at_the_median() {
        let mut world = World::new(Plan { partitions: 1, faults: Vec::new(), ..Plan::of(0) }, Trace::silent());
        let shape = Shape::Split { partition: None, at: None };
        let request = ReshapeRequest { change: ChangeId(1), shape, dry_run: false, force: false, within: None };
        world.schedule(1_000 * MS, Event::Operate { request: Box::new(request) });
        world.run();
        assert!(world.failure.is_none());
        assert_eq!(world.map.partitions.len(), 2);
    }

    /// Six nodes, four partitions, and keys next to each other that are asked for most, elsewhere every two seconds.
    #[test]
    fn a_cluster_follows_a_hot_spot_that_moves_and_moves_nothing_to_and_fro() {
        let base = Plan::of(0);
        let settings = [("rebalance", "auto"), ("auto_split", "load"), ("auto_merge", "on")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (clients, in_flight, operations, keys) = (12, 3, 9_000, 400);
        let workload =
            Workload { clients, in_flight, operations, keys, think: 10 * MS, impatient: 0, ..base.workload.clone() };
        let mut world = World::new(
            Plan {
                partitions: 4,
                replicas: 3,
                nodes: 6,
                workload,
                balance: Balance { settings, hot_for: 2_000 * MS },
                clock_rates: vec![1_000; 6],
                faults: Vec::new(),
                ..base
            },
            Trace::silent(),
        );
        world.run();
        assert!(world.failure.is_none());
        let met = |what| world.coverage.count(&format!("by itself: {what}"));
        let [leaders, replicas, splits] = ["a leader moves", "a replica moves", "a split"].map(met);
        assert!(leaders > 0 && replicas > 0 && splits > 0, "{leaders} {replicas} {splits}");
        assert!(leaders + replicas + splits < 40, "{leaders} {replicas} {splits}");
    }

    #[test]
    fn cold_neighbours_are_merged_while_each_node_has_one_to_lead() {
        let base = Plan::of(0);
        let settings = vec![("auto_merge".to_owned(), "on".to_owned())];
        let workload = Workload {
            clients: 1,
            in_flight: 1,
            operations: 60,
            think: 400 * MS,
            impatient: 0,
            ..base.workload.clone()
        };
        let mut world = World::new(
            Plan {
                partitions: 5,
                replicas: 3,
                nodes: 3,
                workload,
                balance: Balance { settings, hot_for: 0 },
                clock_rates: vec![1_000; 3],
                faults: Vec::new(),
                ..base
            },
            Trace::silent(),
        );
        world.run();
        assert!(world.failure.is_none());
        assert_eq!(world.map.partitions.len(), 3);
    }
}
