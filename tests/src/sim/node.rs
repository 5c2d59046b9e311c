//! A node: its replicas, its clock, its process. Steps replicas and carries out what they ask for, as a shard thread
//! does; a crash may fall between any two effects.

use std::collections::BTreeMap;

use coppice_btree::KeyRange;
use coppice_client::wire::{MapVersion, PartitionId};
use coppice_ordering::{Config, Configuration, Instance, Message, Record, RecoveredGroup, ReplicaId, Time, multicast};
use coppice_server::log::{Append, Entry, GroupReplay};
use coppice_server::machine::Machine;
use coppice_server::machine::directory::Directory;
use coppice_server::machine::shard::Shard;
use coppice_server::multicast::{Letter, Word};
use coppice_server::net::peer::Envelope;
use coppice_server::replica::{Effect, Input, Replica};
use coppice_server::sessions::SessionLimits;
use coppice_server::snapshot::{self, Loaded};

use super::plan::{MS, Nanos, Plan};
use super::queries::Desk;
use super::store::{Saved, Store, Written};
use super::world::{Event, World};

/// A log at rest gets its mark after this long, as `LogOptions::idle_mark_after`.
const IDLE: Nanos = 100 * MS;

/// A write on a full disk is tried again after this long.
const FULL_RETRY: Nanos = 20 * MS;

/// A snapshot that does not come is asked for again after this long.
const SNAPSHOT_PATIENCE: Nanos = 500 * MS;

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

/// A hosted replica and what the driver remembers of it.
pub struct Host {
    /// The pure part.
    pub replica: Replica,
    /// Which replica of the group it is.
    pub me: ReplicaId,
    snapshotting: bool,
    installing: bool,
    /// Where the last snapshot was begun.
    snapshot_at: Instance,
}

/// A node.
pub struct Node {
    /// Its disk.
    pub store: Store,
    /// Counts its processes.
    pub life: u64,
    /// Whether a process runs.
    pub up: bool,
    /// Its clock.
    pub clock: Clock,
    /// It does nothing until then.
    pub paused_until: Nanos,
    /// Effects that are still carried out before it crashes, and how long it is down then.
    pub doom: Option<(u32, Nanos)>,
    /// Its next start is cut off after so many effects on the disk.
    pub cut_start: Option<u64>,
    /// Its coordinator.
    pub desk: Desk,
    /// Its replicas.
    pub hosts: BTreeMap<PartitionId, Host>,
    /// Leaders as it knows them.
    pub leaders: BTreeMap<PartitionId, usize>,
    /// Flushes take so much longer.
    pub flush_extra: Nanos,
    /// The earliest tick that is on its way.
    tick_at: Option<Nanos>,
}

impl Node {
    /// A node with an empty disk.
    pub fn new(plan: &Plan, number: usize, clock: Clock) -> Node {
        Node {
            store: Store::new(plan, number),
            life: 0,
            up: false,
            clock,
            paused_until: 0,
            doom: None,
            cut_start: None,
            desk: Desk::new(),
            hosts: BTreeMap::new(),
            leaders: BTreeMap::new(),
            flush_extra: 0,
            tick_at: None,
        }
    }
}

impl World {
    /// Steps one replica, ends its turn, and carries out what that asks for.
    pub fn step(&mut self, node: usize, group: PartitionId, input: Input) {
        let now = self.now;
        let local = self.nodes[node].clock.local(now);
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        let mut effects = std::mem::take(&mut self.effects);
        let words = self.trace.is_wordy().then(|| format!("{input:?}"));
        host.replica.step(local, input, &mut effects);
        host.replica.step(local, Input::TurnEnd, &mut effects);
        let decided = host.replica.executor().decided();
        let state = (node, group, decided, host.replica.executor().tip(), effects.len());
        self.trace.step(now, &state, |line| {
            let shown: Vec<String> = effects.iter().map(show).collect();
            let words = words.unwrap_or_default();
            *line += &format!("n{node}.{group} {words} => {} ; decided {decided}", shown.join(", "));
        });
        self.observe(node, group, &effects);
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
                let leader = self.nodes[node].hosts.get(&group).and_then(|host| host.replica.leader());
                let place = leader.and_then(|leader| self.places.get(&(group, leader))).copied();
                match place {
                    Some(place) => self.nodes[node].leaders.insert(group, place),
                    None => self.nodes[node].leaders.remove(&group),
                };
                match effect {
                    Effect::Leading { ballot } if group == PartitionId::DIRECTORY => {
                        self.begin_coordinating(node, ballot);
                    }
                    _ if group == PartitionId::DIRECTORY => self.end_coordinating(node),
                    _ => self.on_new_leader(node, group),
                }
            }
            Effect::Placed { ticket } => self.post(node, Letter { partition: group, word: Word::Placed(ticket) }),
            Effect::Part(part) => self.give_part(*part),
            Effect::Confirmed(token) => self.coordinate(node, multicast::Input::Confirmed(token)),
            Effect::NeedSnapshot { from, instance } => self.need_snapshot(node, group, from, instance),
            Effect::Configured { .. }
            | Effect::DirectoryChanged
            // No directory runs here yet, so no border moves.
            | Effect::Moved { .. }
            | Effect::Awaits(_)
            | Effect::Dismissed
            | Effect::HandoverFailed { .. } => {}
        }
    }

    fn send(&mut self, node: usize, group: PartitionId, to: ReplicaId, message: Message) {
        let Some(&place) = self.places.get(&(group, to)) else { return };
        let from = self.nodes[node].hosts[&group].me;
        let [first, copy] = self.net.send(node, place);
        for delay in [first, copy].into_iter().flatten() {
            let envelope = Envelope { group: group.0, to, from, message: message.clone() };
            self.schedule(self.now + delay, Event::Peer { from: node, to: place, envelope });
        }
    }

    /// A message of another node arrives.
    pub fn receive(&mut self, node: usize, envelope: Envelope) {
        let group = PartitionId(envelope.group);
        if self.nodes[node].hosts.get(&group).is_some_and(|host| host.me == envelope.to) {
            self.step(node, group, Input::Peer { from: envelope.from, message: envelope.message });
        }
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
            Written::Full => self.schedule(self.now + FULL_RETRY, Event::Flushed { node, life }),
            // Poisoned: the process stops, and is started again.
            Written::Failed => self.crash_process(node, 100 * MS),
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
        self.arm(node);
    }

    /// Orders the next tick.
    pub fn arm(&mut self, node: usize) {
        let now = self.now;
        let each = &mut self.nodes[node];
        let deadlines = each.hosts.values().filter_map(|host| host.replica.deadline()).chain(each.desk.deadline());
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

/// Snapshots: written now and then, and fetched by a replica that is too far behind.
impl World {
    fn snapshot_if_due(&mut self, node: usize, group: PartitionId) {
        let every = self.plan.snapshot_instances;
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        let decided = host.replica.executor().decided();
        if host.snapshotting || decided.ahead_of(host.snapshot_at) < every {
            return;
        }
        host.snapshotting = true;
        host.snapshot_at = decided;
        let saved = Saved::of(snapshot::take(&host.replica));
        self.check_snapshot(group, &saved);
        let took = self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        let life = self.nodes[node].life;
        self.schedule(self.now + took, Event::SnapshotWritten { node, life, group, saved });
    }

    /// A snapshot is durable: only now may batches be forgotten.
    pub fn on_snapshot_written(&mut self, node: usize, group: PartitionId, saved: Saved) {
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        host.snapshotting = false;
        let instance = saved.instance;
        if let Some(upto) = self.nodes[node].store.keep_checkpoint(group, saved) {
            let entry = Entry::Trimmed { group, upto };
            self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
        }
        self.step(node, group, Input::Checkpointed(instance));
    }

    fn need_snapshot(&mut self, node: usize, group: PartitionId, from: ReplicaId, instance: Instance) {
        let Some(&source) = self.places.get(&(group, from)) else { return };
        let life = self.nodes[node].life;
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        if std::mem::replace(&mut host.installing, true) {
            return;
        }
        self.schedule(self.now + SNAPSHOT_PATIENCE, Event::SnapshotPatience { node, life, group });
        let delay = self.net.delay();
        self.schedule(self.now + delay, Event::SnapshotAsked { from: source, node, life, group, instance });
    }

    /// Another node asks for a snapshot.
    pub fn on_snapshot_asked(&mut self, from: usize, node: usize, life: u64, group: PartitionId, least: Instance) {
        if !self.net.hears(node, from) || !self.net.hears(from, node) {
            return;
        }
        let Some(host) = self.nodes[from].hosts.get(&group) else { return };
        if host.replica.executor().decided() < least {
            return;
        }
        let saved = Saved::of(snapshot::take(&host.replica));
        self.check_snapshot(group, &saved);
        let took = self.net.delay() + self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        self.schedule(self.now + took, Event::SnapshotArrived { node, life, group, saved });
    }

    /// A snapshot of another node is durable here.
    pub fn on_snapshot_arrived(&mut self, node: usize, group: PartitionId, saved: Saved) {
        let loaded = match saved.load() {
            Ok(loaded) => loaded,
            Err(error) => return self.fail("snapshot", format!("an intact snapshot does not load: {error}")),
        };
        self.nodes[node].store.keep_checkpoint(group, saved);
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        host.installing = false;
        self.oracle.installed(node, group, loaded.instance);
        let Loaded { machine, instance, configuration, configured_at } = loaded;
        let machine = Box::new(machine);
        self.step(node, group, Input::Installed { machine, instance, configuration, configured_at });
    }

    /// It took too long: the next offer is taken.
    pub fn on_snapshot_patience(&mut self, node: usize, group: PartitionId) {
        if let Some(host) = self.nodes[node].hosts.get_mut(&group) {
            host.installing = false;
        }
    }
}

/// Ends and starts of processes.
impl World {
    /// The node's process or its power ends.
    pub fn crash(&mut self, node: usize, down: Nanos) {
        let power = self.plan.disk.power;
        self.end_process(node, power, down);
    }

    /// The process ends; what the kernel has in memory stays.
    pub fn crash_process(&mut self, node: usize, down: Nanos) {
        self.end_process(node, false, down);
    }

    fn end_process(&mut self, node: usize, power: bool, down: Nanos) {
        let now = self.now;
        self.trace.step(now, &(node, power, down), |line| *line += &format!("n{node} ends, power {power}, for {down}"));
        let random = &mut self.disk_random;
        let each = &mut self.nodes[node];
        each.store.crash(power, random);
        each.life += 1;
        self.crashes += u64::from(!self.healed);
        each.up = false;
        (each.doom, each.tick_at, each.paused_until) = (None, None, 0);
        each.hosts.clear();
        each.desk = Desk::new();
        each.leaders.clear();
        self.oracle.process_ended(node);
        self.lose_lines(node);
        let life = self.nodes[node].life;
        self.schedule(self.now + down, Event::Start { node, life });
    }

    /// A process starts, from what its disk holds.
    pub fn start(&mut self, node: usize) {
        let cut = self.nodes[node].cut_start.take();
        let replay = match self.nodes[node].store.open(cut) {
            Ok(Some(replay)) => replay,
            Ok(None) => {
                // Cut off on the way; the disk is as after a crash, and the next start goes on from there.
                return self.crash(node, 10 * MS);
            }
            Err(error) => return self.fail("recovery", format!("n{node} does not start: {error}")),
        };
        let now = self.now;
        self.trace.step(now, &(node, 1_u8), |line| *line += &format!("n{node} starts"));
        self.nodes[node].up = true;
        let mut groups = replay.groups;
        for group in self.groups_of(node) {
            let recovered = groups.remove(&group).unwrap_or_default();
            if let Err(error) = self.start_replica(node, group, recovered) {
                return self.fail("recovery", format!("n{node}.{group} does not start: {error}"));
            }
        }
        self.begin_write(node, false);
        self.arm(node);
    }

    /// Starts a replica as `control::groups` does: from its newest checkpoint and the log, or anew.
    fn start_replica(&mut self, node: usize, group: PartitionId, mut replay: GroupReplay) -> Result<(), String> {
        let me = self.replica_of(group, node);
        let first = me == ReplicaId(0) && replay.created.is_none();
        let (mut recovered, mut machine, snapshot) = match self.nodes[node].store.load_checkpoint(group) {
            Some(Loaded { machine, instance, configuration, configured_at }) => {
                (RecoveredGroup::from_snapshot(instance, configuration, configured_at), machine, instance)
            }
            None => (RecoveredGroup::new(), self.born(group), Instance::ZERO),
        };
        if replay.trimmed.is_some_and(|trimmed| trimmed > snapshot) {
            return Err(format!("trimmed up to {:?}, but the checkpoint is of {snapshot}", replay.trimmed));
        }
        if replay.created.is_none() {
            let birth = bytes::Bytes::new();
            self.nodes[node].store.created(Entry::Created { group, replica: me, birth });
        }
        let records: Vec<(coppice_ordering::Lsn, Record)> = replay.take_records().collect();
        if let Err((check, what)) = self.oracle.recovered(node, group, snapshot, &records) {
            self.fail(check, what);
        }
        for (lsn, record) in records {
            recovered.apply(lsn, record);
        }
        set_limits(&mut machine, &self.plan);
        let config = Config {
            id: me,
            configuration: Configuration::of_voters((0..self.plan.replicas).map(ReplicaId)),
            seed: self.replica_random.next(),
            incarnation: self.nodes[node].store.incarnation(),
            settings: self.plan.settings.clone(),
            campaign_first: first,
        };
        let local = self.nodes[node].clock.local(self.now);
        let mut effects = Vec::new();
        let speculation = self.plan.speculates(node);
        let mut replica =
            Replica::recover(group, config, recovered, machine, snapshot, speculation, local, &mut effects);
        replica.executor_mut().set_digest_interval(1);
        let host = Host { replica, me, snapshotting: false, installing: false, snapshot_at: snapshot };
        self.nodes[node].hosts.insert(group, host);
        self.observe(node, group, &effects);
        self.carry_out(node, group, &mut effects);
        Ok(())
    }

    /// The state that a group begins with.
    pub fn born(&self, group: PartitionId) -> Machine {
        let mut machine = match self.map.partitions.iter().find(|entry| entry.partition == group) {
            None => Machine::Directory(Directory::default()),
            Some(entry) => {
                let range = KeyRange { low: (&*entry.low).into(), high: entry.high.as_deref().map(Into::into) };
                Machine::Shard(Box::new(Shard::new(group, range, MapVersion(1))))
            }
        };
        set_limits(&mut machine, &self.plan);
        machine
    }
}

pub fn set_limits(machine: &mut Machine, plan: &Plan) {
    let limits = SessionLimits {
        expiry_instances: plan.expiry_instances,
        sessions_max: plan.sessions_max,
        ..SessionLimits::default()
    };
    if let Machine::Shard(shard) = machine {
        shard.set_session_limits(limits);
    }
}

/// An effect in a trace.
fn show(effect: &Effect) -> String {
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
