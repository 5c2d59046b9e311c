//! A node: its replicas, its clock, its process. Steps replicas and carries out what they ask for, as a shard thread
//! does; a crash may fall between any two effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::failure_detector::{FailureDetector, Heard};
use coppice_core::gather::Gathers;
use coppice_core::multicast::{Letter, Word};
use coppice_core::replay::Entry;
use coppice_core::replica::{Effect, Input, QueryPart, Replica};
use coppice_core::sessions::SessionLimits;
use coppice_core::snapshot::SavedBorders;
use coppice_core::wire::peer::Envelope;
use coppice_ordering::{Instance, Lsn, Message, Record, ReplicaId, Time, multicast};
use coppice_server::log::Append;

use super::control::Control;
use super::copies::Lives;
use super::events::Event;
use super::marks::Marks;
use super::plan::{MS, Nanos, Plan};
use super::queries::Desk;
use super::store::{Store, Written};
use super::world::World;
use super::{damage, said};

/// A log at rest gets its mark after this long, as `LogOptions::idle_mark_after`.
const IDLE: Nanos = 100 * MS;

/// A write on a full disk is tried again after this long.
const FULL_RETRY: Nanos = 20 * MS;

/// A clock that runs at its own rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    true_base: Nanos,
    local_base: Nanos,
    per_mille: u64,
}

impl Clock {
    /// A clock that shows `local` when true time is zero.
    pub fn new(local: Nanos, per_mille: u32) -> Clock {
        Clock { true_base: 0, local_base: local, per_mille: u64::from(per_mille) }
    }

    /// What it shows.
    pub fn local(&self, now: Nanos) -> Time {
        Time(self.local_base + (now - self.true_base) * self.per_mille / 1_000)
    }

    /// When it shows at least `local`.
    fn when(&self, local: Time) -> Nanos {
        let ahead = local.0.saturating_sub(self.local_base);
        self.true_base + (ahead.saturating_mul(1_000)).div_ceil(self.per_mille)
    }

    /// It jumps ahead.
    pub fn jump(&mut self, now: Nanos, by: Nanos) {
        let local = self.local(now).0 + by;
        *self = Clock { true_base: now, local_base: local, ..*self };
    }
}

/// A hosted replica and what the driver remembers of it, as `shard::Group`.
pub struct Host {
    /// The pure part.
    pub replica: Replica,
    /// Which replica of the group it is.
    pub me: ReplicaId,
    /// Where the group's replicas are, as far as this node knows.
    pub nodes: BTreeMap<ReplicaId, usize>,
    /// A checkpoint is being written.
    pub snapshotting: bool,
    /// A snapshot is being fetched.
    pub installing: bool,
    /// Where the last snapshot was begun.
    pub snapshot_at: Instance,
    /// Changes of borders that are on the disk.
    pub borders: SavedBorders,
    /// How far it was when it was last looked at.
    pub marks: Marks,
}

/// A node.
pub struct Node {
    /// Its disk.
    pub store: Store,
    /// The newest maps that it kept, on its disk too.
    pub kept_maps: VecDeque<Arc<PartitionMap>>,
    /// Counts its processes.
    pub life: u64,
    /// Whether a process runs.
    pub up: bool,
    /// Its disk is gone for good.
    pub is_lost: bool,
    /// A checkpoint on its disk was damaged.
    pub is_rotten: bool,
    /// Its log is damaged, and it may not have found out yet.
    pub has_rotten_log: bool,
    /// It is a process that waits to be told which node it is.
    pub is_new: bool,
    /// Which lives of the others it has met, and what they make of its own.
    pub lives: Lives,
    /// Its clock.
    pub clock: Clock,
    /// It does nothing until then.
    pub paused_until: Nanos,
    /// Effects that are still carried out before it crashes, and how long it is down then.
    pub doom: Option<(u32, Nanos)>,
    /// Its next start is cut off after so many effects on the disk.
    pub cut_start: Option<u64>,
    /// Which replicas it has, the map, and what it does as the directory's leader.
    pub control: Control,
    /// Its coordinator.
    pub desk: Desk,
    /// Ranges over several partitions that it reads.
    pub gathers: Gathers,
    /// Its replicas.
    pub hosts: BTreeMap<PartitionId, Host>,
    /// Records that this process found on disk, of replicas that have not begun yet.
    pub found: BTreeMap<(PartitionId, ReplicaId), Vec<(Lsn, Record)>>,
    /// What it heard of the other nodes, and whether it has lost them.
    pub heard: BTreeMap<NodeId, Heard>,
    pub failure_detector: FailureDetector,
    /// Leaders as it knows them.
    pub leaders: BTreeMap<PartitionId, usize>,
    /// Parts whose clients are not connected yet.
    pub parked: VecDeque<(Nanos, Box<QueryPart>)>,
    /// The bounds of session tables, once its process has heard of them.
    pub limits: Option<SessionLimits>,
    /// Flushes take so much longer.
    pub flush_extra: Nanos,
    /// The earliest tick that is on its way.
    pub tick_at: Option<Nanos>,
}

impl Node {
    /// A node with an empty disk, that may know a map.
    pub fn new(plan: &Plan, number: usize, clock: Clock, map: Option<Arc<PartitionMap>>) -> Node {
        Node {
            store: Store::new(plan, number),
            is_new: map.is_none(),
            kept_maps: map.into_iter().collect(),
            life: 0,
            up: false,
            is_lost: false,
            is_rotten: false,
            has_rotten_log: false,
            lives: Lives::default(),
            clock,
            paused_until: 0,
            doom: None,
            cut_start: None,
            control: Control::default(),
            desk: Desk::new(plan.coordinator()),
            gathers: Gathers::new(0),
            hosts: BTreeMap::new(),
            found: BTreeMap::new(),
            heard: BTreeMap::new(),
            failure_detector: FailureDetector::default(),
            leaders: BTreeMap::new(),
            parked: VecDeque::new(),
            limits: None,
            flush_extra: 0,
            tick_at: None,
        }
    }

    /// What its process knew is gone; what is on its disk stays.
    pub fn forget(&mut self) {
        self.hosts.clear();
        self.heard.clear();
        self.failure_detector = FailureDetector::default();
        self.found.clear();
        self.parked.clear();
        (self.desk, self.control) = (Desk::new(self.desk.settings.clone()), Control::default());
        self.gathers = Gathers::new(0);
        self.leaders.clear();
        self.limits = None;
        self.lives.forget();
    }

    /// Whether a process can be started on it.
    pub fn may_start(&self) -> bool {
        !self.is_lost && !self.is_new
    }
}

impl World {
    /// Steps one replica, ends its turn, and carries out what that asks for.
    pub fn step(&mut self, node: usize, group: PartitionId, input: Input) {
        let now = self.now;
        let local = self.nodes[node].clock.local(now);
        let signs = self.nodes[node].hosts.get(&group).and_then(|host| self.signs(host));
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        let mut effects = std::mem::take(&mut self.effects);
        let words = self.trace.is_wordy().then(|| format!("{input:?}"));
        let rollbacks = host.replica.executor().counters().rollbacks;
        let asked = said::input(&input);
        host.replica.step(local, input, &mut effects);
        host.replica.step(local, Input::TurnEnd, &mut effects);
        if host.replica.has_ahead() {
            self.reached.note("executor: runs ahead in a turn of its own");
            host.replica.step(local, Input::RunAhead, &mut effects);
        }
        if host.replica.is_out_of_patience() {
            self.reached.note("replica: reads what is decided, for nothing gets decided");
        }
        if self.is_silent(node) {
            effects.retain(|effect| !matches!(effect, Effect::Send { .. }));
        }
        let host = &self.nodes[node].hosts[&group];
        let rollbacks = host.replica.executor().counters().rollbacks - rollbacks;
        self.reached.add("executor: takes back what it ran ahead", rollbacks);
        effects.iter().for_each(|effect| self.reached.effect(effect));
        let decided = host.replica.executor().decided();
        let state = (node, group, decided, host.replica.executor().tip(), asked, said::effects(&effects));
        self.trace.step(now, &state, |line| {
            let shown: Vec<String> = effects.iter().map(show).collect();
            let words = words.unwrap_or_default();
            *line += &format!("n{node}.{group} {words} => {} ; decided {decided}", shown.join(", "));
        });
        self.observe(node, group, &effects);
        self.spring(node, group, signs, &effects);
        self.carry_out(node, group, &mut effects);
        self.effects = effects;
        self.begin_write(node, false);
        self.arm(node);
        self.snapshot_if_due(node, group);
    }

    /// Carries out effects, in a drawn order if the plan says so; the records of one log keep theirs.
    pub fn carry_out(&mut self, node: usize, group: PartitionId, effects: &mut Vec<Effect>) {
        if self.plan.shuffle && effects.len() > 1 {
            let cut = self.random.below(effects.len());
            // Turning the list round keeps the records' order only if it splits none of them off.
            let persists = |effect: &Effect| matches!(effect, Effect::Persist { .. });
            if !effects[..cut].iter().any(persists) || !effects[cut..].iter().any(persists) {
                effects.rotate_left(cut);
            }
        }
        let life = self.nodes[node].life;
        for effect in effects.drain(..) {
            if self.nodes[node].life != life || !self.nodes[node].up {
                continue;
            }
            if let Some((left, down)) = &mut self.nodes[node].doom {
                if *left == 0 {
                    let down = *down;
                    self.reached.note("crash: between two effects of a step");
                    self.crash(node, down);
                    continue;
                }
                *left -= 1;
            }
            self.carry_out_one(node, group, effect);
        }
    }

    fn carry_out_one(&mut self, node: usize, group: PartitionId, effect: Effect) {
        match effect {
            Effect::Persist { lsn, record } => {
                let lazy = record.is_lazy();
                let entry = Entry::Group { group, record };
                self.nodes[node].store.append(Append { entry, lsn: Some(lsn), lazy });
            }
            Effect::Send { to, message } => self.send(node, group, to, message),
            Effect::Reply { origin, reply } => self.reply(node, group, origin, reply),
            Effect::Leading { .. } | Effect::Following { .. } => {
                let host = self.nodes[node].hosts.get(&group);
                let place = host.and_then(|host| host.nodes.get(&host.replica.leader()?)).copied();
                match place {
                    Some(place) => self.nodes[node].leaders.insert(group, place),
                    None => self.nodes[node].leaders.remove(&group),
                };
                match effect {
                    Effect::Leading { ballot } if group == PartitionId::DIRECTORY => {
                        self.begin_coordinating(node, ballot);
                        self.drive(node);
                    }
                    _ if group == PartitionId::DIRECTORY => self.end_coordinating(node),
                    _ => self.on_new_leader(node, group),
                }
            }
            Effect::Placed { ticket } => self.post(node, Letter::new(group, Word::Placed(ticket))),
            Effect::Part(part) => self.give_part(node, part),
            Effect::Confirmed(token) => self.coordinate(node, multicast::Input::Confirmed(token)),
            Effect::NeedSnapshot { from, instance } => self.need_snapshot(node, group, from, instance),
            Effect::DirectoryChanged => {
                self.on_directory_changed(node);
                self.on_decided_map(node);
            }
            Effect::Moved { mark } => self.on_moved(node, group, &mark),
            Effect::Awaits(awaited) => self.leave_decided(node, awaited.partition),
            Effect::Dismissed => self.remove_group(node, group),
            Effect::Configured { .. } | Effect::HandoverFailed { .. } => {}
        }
    }

    fn send(&mut self, node: usize, group: PartitionId, to: ReplicaId, message: Message) {
        let Some(host) = self.nodes[node].hosts.get(&group) else { return };
        let Some(&place) = host.nodes.get(&to) else { return };
        let from = host.me;
        if !self.may_say(node, place) {
            return;
        }
        let [first, copy] = self.net.send(node, place);
        if let Some(random) = self.net.damages() {
            // The connection ends there, and what was on it is lost.
            let frame = damage::of_message(&Envelope { group: group.0, to, from, message });
            let refused = damage::refused(&frame, random);
            self.reached.note("frame: damaged and refused");
            return refused.unwrap_or_else(|what| self.fail("damaged frame", what));
        }
        for delay in [first, copy].into_iter().flatten() {
            let envelope = Envelope { group: group.0, to, from, message: message.clone() };
            self.schedule(self.now + delay, Event::Peer { from: node, to: place, envelope });
        }
    }

    /// A message of another node arrives.
    pub fn receive(&mut self, node: usize, envelope: Envelope) {
        let group = PartitionId(envelope.group);
        let host = self.nodes[node].hosts.get(&group).filter(|host| host.me == envelope.to);
        let Some(host) = host else { return self.reached.note("message: for a replica that is not here") };
        self.reached.message(host.replica.paxos(), envelope.from, &envelope.message);
        self.step(node, group, Input::Peer { from: envelope.from, message: envelope.message });
    }

    /// Puts what waits into the log's next write, if none is under way.
    pub fn begin_write(&mut self, node: usize, idle: bool) {
        if !self.nodes[node].up || !self.nodes[node].store.begin(idle) {
            return;
        }
        let disk = &self.plan.disk;
        let (min, spread) = (disk.flush_min, disk.flush_max - disk.flush_min);
        let took = min + self.disk_random.below(spread as usize + 1) as Nanos + self.nodes[node].flush_extra;
        let life = self.nodes[node].life;
        self.schedule(self.now + took, Event::Flushed { node, life });
    }

    /// The flush of a node's write ends.
    pub fn on_flushed(&mut self, node: usize) {
        let life = self.nodes[node].life;
        match self.nodes[node].store.finish() {
            Written::Durable(appends) => {
                let mut groups: BTreeMap<PartitionId, coppice_ordering::Lsn> = BTreeMap::new();
                for append in &appends {
                    self.oracle.durable(node, &append.entry);
                    match append.entry {
                        Entry::Removed { group, .. } => self.on_removal_logged(node, PartitionId(group.0)),
                        Entry::Trimmed { group, upto } => self.check_trim(node, PartitionId(group.0), upto),
                        Entry::Created { group, replica, .. } => {
                            self.nodes[node].control.replica_manager.birth_is_durable(group, replica);
                        }
                        _ => {}
                    }
                    if let (Some(group), Some(lsn)) = (append.entry.group(), append.lsn) {
                        groups.insert(group, lsn);
                    }
                }
                for (group, lsn) in groups {
                    if self.nodes[node].life == life && self.nodes[node].up {
                        self.step(node, group, Input::Persisted(lsn));
                    }
                }
                if self.nodes[node].life == life {
                    self.begin_write(node, false);
                    self.schedule(self.now + IDLE, Event::Idle { node, life });
                }
            }
            Written::Full => {
                self.reached.note("log: finds no room, and waits");
                self.schedule(self.now + FULL_RETRY, Event::Flushed { node, life });
            }
            // Poisoned: the process stops, and is started again.
            Written::Failed => {
                self.reached.note("log: a write failed, and the process ends");
                self.crash_process(node, 100 * MS);
            }
        }
    }

    /// Steps the replicas whose deadline has passed.
    pub fn on_tick(&mut self, node: usize) {
        self.nodes[node].tick_at = None;
        let local = self.nodes[node].clock.local(self.now);
        let due = |host: &Host| host.replica.deadline().is_some_and(|deadline| deadline <= local);
        let hosts = self.nodes[node].hosts.iter();
        let groups: Vec<PartitionId> = hosts.filter(|(_, host)| due(host)).map(|(&group, _)| group).collect();
        let life = self.nodes[node].life;
        for group in groups {
            if self.nodes[node].life == life && self.nodes[node].up {
                self.step(node, group, Input::Tick);
            }
        }
        let due = self.nodes[node].desk.deadline().is_some_and(|deadline| deadline <= local);
        if due && self.nodes[node].life == life && self.nodes[node].up {
            self.coordinate(node, multicast::Input::Tick);
        }
        let due = self.nodes[node].gathers.deadline().is_some_and(|deadline| deadline <= local);
        if due && self.nodes[node].life == life && self.nodes[node].up {
            self.tick_gathers(node);
        }
        self.arm(node);
    }

    /// Orders the next tick.
    pub fn arm(&mut self, node: usize) {
        let now = self.now;
        let each = &mut self.nodes[node];
        let deadlines = each.hosts.values().filter_map(|host| host.replica.deadline());
        let deadlines = deadlines.chain(each.desk.deadline()).chain(each.gathers.deadline());
        let Some(deadline) = deadlines.min() else { return };
        let at = each.clock.when(deadline).max(now);
        if each.up && each.tick_at.is_none_or(|before| at < before) {
            each.tick_at = Some(at);
            let life = each.life;
            self.schedule(at, Event::Tick { node, life, at });
        }
    }

    /// Whether this tick is the one that was ordered last.
    pub fn is_wanted(&self, node: usize, at: Nanos) -> bool {
        self.nodes[node].tick_at == Some(at)
    }
}

/// An effect in a trace.
pub fn show(effect: &Effect) -> String {
    match effect {
        Effect::Persist { lsn, record } => format!("persist {lsn} {record:?}"),
        Effect::Send { to, message } => format!("send {to} {message:?}"),
        Effect::Reply { origin, .. } => format!("reply {origin:?}"),
        Effect::Leading { ballot } => format!("lead {ballot}"),
        Effect::Following { leader, ballot } => format!("follow {leader:?} {ballot}"),
        Effect::DirectoryChanged => "directory changed".into(),
        Effect::Moved { .. } => "moved a border".into(),
        Effect::Awaits(awaited) => format!("awaits {awaited:?}"),
        Effect::NeedSnapshot { from, instance } => format!("need snapshot {instance} from {from}"),
        Effect::Configured { instance, configuration } => format!("configured {instance} {configuration}"),
        Effect::Dismissed => "dismissed".into(),
        Effect::HandoverFailed { to } => format!("handover to {to} failed"),
        Effect::Placed { ticket } => format!("placed {ticket}"),
        Effect::Part(part) => format!("part of {}", part.ticket),
        Effect::Confirmed(token) => format!("confirmed {token:?}"),
    }
}
