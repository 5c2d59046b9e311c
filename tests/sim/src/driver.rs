//! Growing and shrinking while clients work: the leader of the directory looks at all nodes and has done what
//! [`coppice_core::reshape`] says, as the server's `control::growth` does; operators ask for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_client::map::{NodeState, PartitionMap};
use coppice_client::wire::{ChangeId, MapVersion, NodeId, NodeStatus, PartitionId, ReshapeRequest, Shape};
use coppice_core::ids::wire_replica;
use coppice_core::machine::directory::{DirectoryCommand, DirectoryState, Reshape};
use coppice_core::replica;
use coppice_core::request::{Origin, Request};
use coppice_core::reshape::{Deciding, Step, Verdict, View, balance, steps, verdict};
use coppice_core::status::{GroupReport, LocalReplica, LocalStatus};
use coppice_core::worker::{Group, Input};
use coppice_ordering::ReplicaId;

use super::clients::key;
use super::control::own;
use super::events::Event;
use super::faults::Kind;
use super::node::Node;
use super::plan::{MS, Nanos};
use super::workers::Mail;
use super::world::{World, addresses};

/// Between two looks while something is under way.
const LOOK_BUSY: Nanos = 50 * MS;
/// Between two looks at a cluster that is as it should be.
const LOOK_CALM: Nanos = 1_000 * MS;
/// A leader that was asked to hand over may take so long; then a change goes on without.
const HANDOVER_TIMEOUT: Nanos = 2_000 * MS;
/// After that time a handover may be asked for again.
const HANDOVER_MEMORY: Nanos = 20_000 * MS;
/// What the directory has not decided by then may be asked for again.
const DIRECTORY_TIMEOUT: Nanos = 2_000 * MS;
/// What an operator could not begin, because somebody was away, is tried again after this.
const OPERATOR_PATIENCE: Nanos = 400 * MS;
/// Partitions at most: operators split no further.
const PARTITIONS_MAX: usize = 10;

/// What the leader of the directory remembers between its looks; nothing that safety rests on.
#[derive(Default)]
pub struct Driver {
    /// The directory's decided state, if it runs here.
    pub state: Option<Arc<DirectoryState>>,
    /// When to look next.
    due: Option<Nanos>,
    looking: bool,
    /// When each group's leader was last asked to hand over.
    asked: BTreeMap<PartitionId, Nanos>,
    balanced: Nanos,
    /// Changes of borders whose ticket is released: the directory does not know yet.
    released: BTreeSet<MapVersion>,
    /// Steps that the directory has yet to decide, by the streams of their answers, and since when.
    deciding: Deciding,
    waiting: BTreeMap<u32, (Nanos, DirectoryCommand)>,
    next_stream: u32,
}

/// Looking, and acting.
impl World {
    fn drives(&self, node: usize) -> bool {
        self.nodes[node].leaders.get(&PartitionId::DIRECTORY) == Some(&own(node))
    }

    /// Has a node look at once, if it leads the directory.
    pub fn drive(&mut self, node: usize) {
        self.drive_after(node, 0);
    }

    /// Has a node look again and again, while it leads the directory: it may have begun to lead before it had the
    /// state.
    pub fn keep_driving(&mut self, node: usize) {
        if !self.drives(node) || self.nodes[node].control.driver.due.is_some() {
            return;
        }
        let host = self.nodes[node].group(PartitionId::DIRECTORY);
        let state = host.and_then(|host| host.replica.decided_directory());
        self.nodes[node].control.driver.state = state;
        self.drive(node);
    }

    fn drive_after(&mut self, node: usize, pause: Nanos) {
        let at = self.now + pause;
        let each = &mut self.nodes[node];
        if each.control.driver.due.is_none_or(|due| at < due) {
            each.control.driver.due = Some(at);
            let life = each.life;
            self.schedule(at, Event::Drive { node, life, at });
        }
    }

    /// It is time for a look.
    pub fn on_drive(&mut self, node: usize, at: Nanos) {
        let drives = self.drives(node);
        let driver = &mut self.nodes[node].control.driver;
        if driver.due != Some(at) {
            return;
        }
        driver.due = None;
        let Some(state) = driver.state.clone().filter(|_| drives) else { return };
        if state.map.version.0 == 0 {
            // What `init` does.
            let create = DirectoryCommand::Create { map: (*self.first_map).clone(), settings: BTreeMap::new() };
            self.decide(node, create);
            return self.drive_after(node, LOOK_CALM);
        }
        self.drive_after(node, LOOK_CALM);
        if !std::mem::replace(&mut self.nodes[node].control.driver.looking, true) {
            let view = Box::new(self.view(node, &state.map));
            let life = self.nodes[node].life;
            let delay = self.net.delay().min(300 * MS);
            self.schedule(self.now + delay, Event::View { node, life, view });
        }
    }

    /// What a node hears from all that it reaches, itself included. Who was removed has no address any more.
    fn view(&self, node: usize, map: &PartitionMap) -> View {
        let answers = |other: usize, each: &Node| {
            let row = map.node(NodeId(other as u32 + 1));
            let asked = row.is_some_and(|row| !row.addresses.peer.is_empty());
            let heard = || self.net.hears(node, other) && self.net.hears(other, node);
            let reached = other == node || (asked && heard());
            each.up && each.paused_until <= self.now && reached
        };
        let nodes = self.nodes.iter().enumerate().filter(|(other, each)| answers(*other, each));
        View::new(nodes.map(|(other, each)| (NodeId(other as u32 + 1), status(other, each))).collect())
    }

    /// What the others said has come.
    pub fn on_view(&mut self, node: usize, view: &View) {
        let (now, drives) = (self.now, self.drives(node));
        let driver = &mut self.nodes[node].control.driver;
        driver.looking = false;
        if !drives {
            self.reached.note("change: who looked leads no more");
        }
        let driver = &mut self.nodes[node].control.driver;
        let Some(state) = driver.state.clone().filter(|_| drives) else { return };
        let late = driver.waiting.extract_if(.., |_, (asked, _)| now - *asked >= DIRECTORY_TIMEOUT);
        late.for_each(|(_, (_, command))| driver.deciding.end(&command));
        driver.asked.retain(|_, asked| now - *asked < HANDOVER_MEMORY);
        driver.released.retain(|version| state.border(*version).is_some());
        let slow = |group: PartitionId| driver.asked.get(&group).is_some_and(|&asked| now - asked >= HANDOVER_TIMEOUT);
        let tried = state.changes.iter().filter(|(_, change)| change.groups().any(slow)).map(|(&id, _)| id).collect();
        let mut steps = steps(&state, view, self.replicas, &tried);
        let released = driver.released.iter();
        steps.extend(released.map(|&version| Step::Decide(DirectoryCommand::Reshape(Reshape::Released { version }))));
        let pending = !steps.is_empty() || !state.changes.is_empty();
        let balances = !pending && now - driver.balanced >= HANDOVER_TIMEOUT;
        if balances {
            driver.balanced = now;
            steps.extend(balance(&state, view));
        }
        self.trace.step(now, &(node, steps.len()), |line| *line += &format!("n{node} looks => {steps:?}"));
        let each = &mut self.nodes[node];
        let elsewhere = view.leaders_elsewhere(&state.map, |group| each.group(group).is_some());
        let elsewhere: Vec<(PartitionId, NodeId)> = elsewhere.into_iter().collect();
        for (group, leader) in elsewhere {
            if self.nodes[node].leaders.insert(group, leader) != Some(leader) {
                (0..self.plan.workers as usize).for_each(|worker| self.mail(node, worker, Mail::Look));
            }
        }
        self.push_map(node, &state.map, view);
        let life = self.nodes[node].life;
        for step in steps {
            if self.nodes[node].life == life {
                self.take_step(node, step, &state);
            }
        }
        if pending && self.nodes[node].life == life {
            self.drive_after(node, LOOK_BUSY);
        }
    }

    /// Nodes that do not host the directory hear of a new map at once.
    fn push_map(&mut self, node: usize, map: &PartitionMap, view: &View) {
        let behind = |row: &&coppice_client::map::NodeInfo| {
            view.node(row.id).is_some_and(|local| local.map_version < map.version.0)
        };
        for row in map.nodes.iter().filter(behind) {
            let to = row.id.0 as usize - 1;
            let (life, map) = (self.nodes[to].life, Arc::new(map.clone()));
            let [first, _] = self.net.send(node, to);
            if let Some(delay) = first {
                self.schedule(self.now + delay, Event::MapTold { node: to, life, map, leaders: Vec::new() });
            }
        }
    }

    fn take_step(&mut self, node: usize, step: Step, state: &DirectoryState) {
        match step {
            Step::Decide(command) => {
                let (now, driver) = (self.now, &mut self.nodes[node].control.driver);
                if driver.deciding.begin(&command) {
                    driver.next_stream += 1;
                    let stream = driver.next_stream;
                    driver.waiting.insert(stream, (now, command.clone()));
                    self.ask_directory(node, command, stream);
                }
            }
            Step::Configure { leader, partition, expected, configuration } => {
                let to = leader.0 as usize - 1;
                self.reached.note("change: a configuration is asked for");
                let delay = if to == node { Some(0) } else { self.net.send(node, to)[0] };
                if let Some(delay) = delay {
                    let event = Event::Configure { node: to, partition, expected, configuration };
                    self.schedule(self.now + delay, event);
                }
            }
            Step::Transfer { leader, partition, to } => {
                let (now, driver) = (self.now, &mut self.nodes[node].control.driver);
                if driver.asked.contains_key(&partition) {
                    return;
                }
                driver.asked.insert(partition, now);
                self.reached.note("change: a leader is asked to hand over first");
                let leader = leader.0 as usize - 1;
                let delay = if leader == node { Some(0) } else { self.net.send(node, leader)[0] };
                if let Some(delay) = delay {
                    self.schedule(now + delay, Event::HandOver { node: leader, partition, to });
                }
            }
            Step::Assign { node: new } => {
                let (map, new) = (Arc::new(state.map.clone()), new.0 as usize - 1);
                if let Some(delay) = self.net.send(node, new)[0] {
                    self.schedule(self.now + delay, Event::Assign { node: new, map, by: node });
                }
            }
        }
    }

    /// A process is told its number: durable, then it begins, and the directory hears of it.
    pub fn on_assign(&mut self, node: usize, map: Arc<PartitionMap>, by: usize) {
        if std::mem::take(&mut self.nodes[node].is_lost) {
            // The empty process is told that it is the node whose disk is lost.
            let clock = self.nodes[node].clock;
            let life = self.nodes[node].life;
            self.nodes[node] = Node { life, ..Node::new(&self.plan, node, clock, None) };
        }
        let each = &mut self.nodes[node];
        if std::mem::take(&mut each.is_new) {
            each.kept_maps.push_back(map);
            self.start(node);
        }
        let own = NodeId(node as u32 + 1);
        let delay = self.net.delay();
        let command = DirectoryCommand::Reshape(Reshape::Joined { node: own });
        self.schedule(self.now + delay, Event::Command { node: by, command });
    }

    /// Has the directory decide something, if this node leads it.
    pub fn decide(&mut self, node: usize, command: DirectoryCommand) {
        self.ask_directory(node, command, 0);
    }

    fn ask_directory(&mut self, node: usize, command: DirectoryCommand, stream: u32) {
        let request = Request::Directory(Box::new(command));
        let (group, origin) = (PartitionId::DIRECTORY, Origin::own(0, stream));
        self.input(node, 0, Input::Request { group, origin, request });
    }

    /// The directory has answered the node itself.
    pub fn on_own_reply(&mut self, node: usize, stream: u32) {
        let driver = &mut self.nodes[node].control.driver;
        if let Some((_, command)) = driver.waiting.remove(&stream) {
            driver.deciding.end(&command);
        }
    }

    /// A leader is to hand over to the replica on another node.
    pub fn on_hand_over(&mut self, node: usize, partition: PartitionId, to: NodeId) {
        let each = &self.nodes[node];
        let entry = each.control.map.group(partition);
        let to = entry.and_then(|entry| entry.replica_on(to)).map(|info| ReplicaId(info.replica.0));
        if let (Some(to), true, true) = (to, each.up, each.paused_until <= self.now) {
            let deadline = each.clock.local(self.now) + self.plan.settings.election_timeout;
            self.step(node, partition, replica::Input::Transfer { to, deadline });
        }
    }

    /// The ticket of a change of borders is released.
    pub fn on_released_change(&mut self, node: usize, version: MapVersion) {
        self.nodes[node].control.driver.released.insert(version);
        self.drive(node);
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
            Kind::Resize { key, up, pick } => self.resized(key, up, pick),
            Kind::Split { key: at, .. } if partitions.len() < PARTITIONS_MAX => {
                Some(Shape::Split { partition: None, at: Some(key(at)) })
            }
            Kind::Merge { key: at, up, .. } => {
                let at = self.map.position(&key(at))?;
                let to = if up { at + 1 } else { at.checked_sub(1)? };
                let (gone, heir) = (&partitions[at], partitions.get(to)?);
                let nodes = |entry: &coppice_client::map::Entry| {
                    entry.replicas.iter().map(|info| info.node).collect::<BTreeSet<NodeId>>()
                };
                Some(match nodes(gone) == nodes(heir) {
                    true => Shape::Merge { partition: gone.partition, into: Some(heir.partition) },
                    false => Shape::Move {
                        partition: gone.partition,
                        from: Vec::new(),
                        to: nodes(heir).into_iter().collect(),
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

    /// An operator's verb reaches the leader of the directory, which judges and begins it.
    pub fn operate(&mut self, request: &ReshapeRequest) {
        if self.healed && !matches!(request.shape, Shape::ReplaceNode { .. } | Shape::AddNode { .. }) {
            return;
        }
        let leads = |node: &Node| {
            node.group(PartitionId::DIRECTORY).is_some_and(|host| host.replica.is_leading())
                && node.paused_until <= self.now
        };
        let leader = self.nodes.iter().position(leads);
        let state = leader.and_then(|leader| self.nodes[leader].control.driver.state.clone());
        if let (Some(leader), Some(state)) = (leader, state) {
            let view = self.view(leader, &state.map);
            match verdict(&state, &view, self.replicas, request) {
                Ok(Verdict::Begin { command, .. }) => self.decide(leader, *command),
                Ok(Verdict::Enlist { address, replaces, .. }) => {
                    // Numbers are given in order; here a node's number is its place, so those before it come first.
                    let new = state.map.nodes.len();
                    let addresses = addresses(new);
                    if addresses.peer == address {
                        let register = Reshape::Register { name: format!("n{new}"), addresses, replaces };
                        self.decide(leader, DirectoryCommand::Reshape(register));
                    }
                }
                Ok(Verdict::Progress(_)) => self.reached.note("operator: asks for what is under way, or done"),
                Err(_) => self.reached.note("operator: is refused"),
            }
            self.drive(leader);
        }
        // Whoever adds or replaces a node does not give up.
        let replaced = |old: NodeId| state_of(&self.map, old).is_none_or(|state| state == NodeState::Removed);
        let goes_on = match &request.shape {
            Shape::ReplaceNode { old, .. } => !replaced(*old),
            Shape::AddNode { address } => !self.is_enlisted(address),
            _ => false,
        };
        if goes_on {
            self.schedule(self.now + OPERATOR_PATIENCE, Event::Operate { request: Box::new(request.clone()) });
        }
    }

    /// A node loses its disk, and its process for good; another process is started in its place.
    pub fn wipe(&mut self, node: usize) {
        if self.nodes.iter().any(|node| node.is_lost) {
            return;
        }
        if self.nodes[node].up {
            self.crash(node, 0);
        }
        self.nodes[node].is_lost = true;
        self.oracle.disk_lost(node);
        let rates = &self.plan.clock_rates;
        let new = self.spawn(rates[node % rates.len()]);
        let change = ChangeId(self.plan.seed << 16);
        let shape = Shape::ReplaceNode { old: NodeId(node as u32 + 1), address: addresses(new).peer };
        let request = Box::new(ReshapeRequest { change, shape, dry_run: false, force: false, within: None });
        self.schedule(self.now + OPERATOR_PATIENCE, Event::Operate { request });
    }
}

fn state_of(map: &PartitionMap, node: NodeId) -> Option<NodeState> {
    map.node(node).map(|row| row.state)
}

/// What a node says of itself.
fn status(node: usize, each: &Node) -> LocalStatus {
    LocalStatus {
        node: NodeStatus {
            id: NodeId(node as u32 + 1),
            up: true,
            disk_full: each.store.is_full(),
            ..NodeStatus::default()
        },
        map_version: each.control.map.version.0,
        replicas: each.groups().map(|(group, host)| (group, replica_status(host))).collect(),
        warnings: Vec::new(),
        full: each.store.is_full().then(|| "its disk is full".to_owned()),
    }
}

fn replica_status(host: &Group) -> LocalReplica {
    let (paxos, executor) = (host.replica.paxos(), host.replica.executor());
    let leader = host.replica.leader().and_then(|leader| host.nodes.get(&leader));
    LocalReplica {
        replica: wire_replica(host.me),
        saved: host.borders.version(),
        leads: host.replica.is_leading(),
        leader: leader.copied(),
        ballot: (paxos.ballot().round.0, wire_replica(paxos.ballot().replica)),
        decided_upto: executor.decided().0,
        trimmed_upto: paxos.trimmed_upto().0,
        keys: executor.machine().shard().map_or(0, |shard| shard.tree().len()),
        group: GroupReport::of(paxos),
        ..LocalReplica::default()
    }
}
