//! Snapshots: written now and then, and fetched by a replica that is too far behind, that joins, or whose own state is
//! gone (protocol.md 1.6).

use coppice_client::wire::{MapVersion, NodeId, PartitionId};
use coppice_core::replay::Entry;
use coppice_core::replica::Input;
use coppice_core::snapshot::{self, Loaded};
use coppice_core::worker;
use coppice_ordering::{Instance, ReplicaId};
use coppice_server::log::Append;

use super::control::own;
use super::events::Event;
use super::node::place;
use super::plan::{MS, Nanos};
use super::store::{CLUSTER, Refused, Saved, Stage};
use super::world::World;

/// A snapshot that does not come is asked for again after this long.
const SNAPSHOT_PATIENCE: Nanos = 500 * MS;

/// What a snapshot is fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A replica that runs lacks what the others have forgotten.
    Install,
    /// This replica is to begin with it.
    Join(ReplicaId),
    /// A replica that ran before has lost its state.
    Heal,
}

/// A checkpoint that is being written.
#[derive(Clone, Debug)]
pub struct Writing {
    instance: Instance,
    /// The map version of its borders.
    borders: MapVersion,
    /// It came from another node; none: it is this one's own.
    wish: Option<Wish>,
}

impl World {
    /// Writes a checkpoint of a group if it is time for one, and nobody needs its log as it is.
    pub fn snapshot_if_due(&mut self, node: usize, group: PartitionId) {
        let every = self.plan.snapshot_instances;
        let each = &self.nodes[node];
        let (Some(host), Some(watched)) = (each.group(group), each.watched.get(&group)) else { return };
        // What was taken in of a neighbour is here only, until it is in a checkpoint.
        let due = host.replica.executor().decided().ahead_of(watched.snapshot_at) >= every || host.borders.is_owed();
        match (due, each.control.replica_manager.is_needed(group)) {
            (true, false) => self.checkpoint_now(node, group),
            (true, true) => self.reached.note("checkpoint: waits for that of a child"),
            _ => {}
        }
    }

    /// Writes a checkpoint of a group, unless one is being written.
    pub fn checkpoint_now(&mut self, node: usize, group: PartitionId) {
        let each = &mut self.nodes[node];
        let Some(host) = each.group_mut(group).filter(|host| !host.checkpoints.writing) else { return };
        host.checkpoints.writing = true;
        let (at, taken) = (host.replica.executor().decided(), snapshot::take(CLUSTER, &host.replica));
        each.watched.entry(group).and_modify(|watched| watched.snapshot_at = at);
        let saved = Saved::of(taken);
        self.check_snapshot(group, &saved);
        self.write_checkpoint(node, group, saved, None);
    }

    /// Begins to write a checkpoint: one of this node's, or a snapshot that has come, with what it was fetched for.
    fn write_checkpoint(&mut self, node: usize, group: PartitionId, saved: Saved, wish: Option<Wish>) {
        let took = self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        let writing = Writing { instance: saved.instance, borders: saved.borders, wish };
        match self.nodes[node].store.begin_checkpoint(group, saved) {
            Ok(checkpoint) => {
                let (life, at) = (self.nodes[node].life, self.now + took);
                self.schedule(at, Event::Checkpoint { node, life, group, checkpoint, writing });
            }
            Err(Refused::Present) => {
                self.reached.note("checkpoint: there is one of this instance");
                self.checkpoint_counts(node, group, writing, None);
            }
            Err(refused @ (Refused::Failed | Refused::Full)) => {
                let full = refused == Refused::Full;
                self.reached.note(if full { "checkpoint: the disk has no room" } else { "checkpoint: an act fails" });
                self.give_up(node, group, wish);
            }
            // The log keeps growing until there is one; a snapshot is asked for again. One to begin with may have come
            // twice.
            Err(Refused::Busy) => {
                self.reached.note("checkpoint: another one of the group is being written");
                if matches!(wish, None | Some(Wish::Install)) {
                    self.give_up(node, group, wish);
                }
            }
        }
    }

    /// The next act of a checkpoint's life; a node that is about to crash may do so before it.
    pub fn on_checkpoint(&mut self, node: usize, group: PartitionId, checkpoint: u64, writing: Writing) {
        match &mut self.nodes[node].doom {
            Some((0, down)) => {
                let down = *down;
                self.reached.note("crash: between two acts of a checkpoint's life");
                return self.crash(node, down);
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        match self.nodes[node].store.proceed(checkpoint) {
            Stage::Going => {
                let took = self.acts_random.below(self.plan.disk.flush_max as usize + 1) as Nanos;
                let (life, at) = (self.nodes[node].life, self.now + took);
                self.schedule(at, Event::Checkpoint { node, life, group, checkpoint, writing });
            }
            Stage::Done(older) => self.checkpoint_counts(node, group, writing, older),
            Stage::GivenUp => {
                self.reached.note("checkpoint: its files went meanwhile");
                self.give_up(node, group, writing.wish);
            }
            Stage::Failed => {
                self.reached.note("checkpoint: an act fails");
                self.give_up(node, group, writing.wish);
            }
        }
    }

    /// Nothing came of a checkpoint, or of a snapshot.
    fn give_up(&mut self, node: usize, group: PartitionId, wish: Option<Wish>) {
        let each = &mut self.nodes[node];
        match wish {
            None => each.group_mut(group).into_iter().for_each(|host| host.checkpoints.writing = false),
            Some(Wish::Install) => each.group_mut(group).into_iter().for_each(|host| host.installing = false),
            Some(Wish::Join(me)) => _ = each.control.replica_manager.end_join(group, me),
            Some(Wish::Heal) => _ = each.control.replica_manager.healed(group, None),
        }
    }

    fn checkpoint_counts(&mut self, node: usize, group: PartitionId, writing: Writing, older: Option<Instance>) {
        let Some(wish) = writing.wish else { return self.on_snapshot_written(node, group, writing, older) };
        match self.nodes[node].store.load_checkpoint(group) {
            (Some(loaded), _) => self.on_snapshot_kept(node, group, loaded, wish),
            // The replica was removed meanwhile, and its checkpoints with it (seed 543).
            (None, _) if wish == Wish::Install && self.nodes[node].group(group).is_none() => {
                self.reached.note("checkpoint: its files went meanwhile");
            }
            (None, _) => self.fail("snapshot", format!("n{node}.{group}: what was just kept is damaged ({wish:?})")),
        }
    }

    /// A checkpoint is durable: only now may batches be forgotten.
    fn on_snapshot_written(&mut self, node: usize, group: PartitionId, writing: Writing, older: Option<Instance>) {
        let Some(host) = self.nodes[node].group_mut(group) else { return };
        host.checkpoints.writing = false;
        let instance = writing.instance;
        host.borders.saved(writing.borders);
        if let Some(upto) = older {
            self.reached.note("checkpoint: the log below an older one goes");
            let entry = Entry::Trimmed { group, upto };
            self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
        }
        self.step(node, group, Input::Checkpointed(instance));
        let owner = self.nodes[node].owner(group);
        self.input(node, owner, worker::Input::Settle(group));
        self.nodes[node].control.replica_manager.saved(group);
    }

    /// A replica can only go on from a snapshot.
    pub fn need_snapshot(&mut self, node: usize, group: PartitionId, from: NodeId, instance: Instance) {
        self.fetch(node, group, (place(from), instance), Wish::Install);
    }

    /// Asks another node for a snapshot that reaches so far.
    pub fn fetch(&mut self, node: usize, group: PartitionId, (from, instance): (usize, Instance), wish: Wish) {
        let (life, since) = (self.nodes[node].life, self.now);
        self.nodes[node].control.fetched.insert(group, since);
        self.schedule(self.now + SNAPSHOT_PATIENCE, Event::SnapshotPatience { node, life, group, wish, since });
        let delay = self.net.delay();
        self.schedule(self.now + delay, Event::SnapshotAsked { from, node, life, group, instance, wish });
    }

    /// Another node asks for a snapshot.
    pub fn on_snapshot_asked(
        &mut self,
        from: usize,
        (node, life): (usize, u64),
        (group, least): (PartitionId, Instance),
        wish: Wish,
    ) {
        if !self.net.hears(node, from) || !self.net.hears(from, node) {
            return;
        }
        let Some(host) = self.nodes[from].group(group) else { return };
        if host.replica.executor().decided() < least {
            self.reached.note("snapshot: asked of one that is behind");
            return;
        }
        let saved = Saved::of(snapshot::take(CLUSTER, &host.replica));
        self.check_snapshot(group, &saved);
        let took = self.net.delay() + self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        self.schedule(self.now + took, Event::SnapshotArrived { node, life, group, saved, wish });
    }

    /// A snapshot of another node is here; it is kept as a checkpoint before anything is made of it.
    pub fn on_snapshot_arrived(&mut self, node: usize, group: PartitionId, saved: Saved, wish: Wish) {
        let loaded = match saved.load(self.plan.capacity(node)) {
            Ok(loaded) => loaded,
            Err(error) => return self.fail("snapshot", format!("an intact snapshot does not load: {error}")),
        };
        let wanted = match wish {
            Wish::Install => self.admits(node, group, &loaded),
            Wish::Join(me) => self.nodes[node].control.replica_manager.is_joining(group, me),
            Wish::Heal => true,
        };
        if wanted {
            self.write_checkpoint(node, group, saved, Some(wish));
        }
    }

    /// Whether a snapshot may take the place of a replica here, by what it does not hold any more.
    fn admits(&mut self, node: usize, group: PartitionId, loaded: &Loaded) -> bool {
        let Some(host) = self.nodes[node].group_mut(group) else { return false };
        if let (Some(held), Some(data)) = (host.replica.decided_range(), loaded.machine.shard()) {
            let control = &mut self.nodes[node].control;
            let kept = (data.range(), data.map_version());
            if !control.replica_manager.may_install(own(node), &control.map, (group, &held), kept) {
                self.reached.note("snapshot: waits for what it gives away");
                self.give_up(node, group, Some(Wish::Install));
                self.start_missing(node);
                return false;
            }
        }
        true
    }

    /// A snapshot of another node is durable here.
    fn on_snapshot_kept(&mut self, node: usize, group: PartitionId, loaded: Loaded, wish: Wish) {
        match wish {
            Wish::Install => self.install(node, group, loaded),
            Wish::Join(me) => self.joined(node, group, me, loaded),
            Wish::Heal => {
                if let Some(start) = self.nodes[node].control.replica_manager.healed(group, Some(loaded)) {
                    self.reached.note("start: goes on with a state from elsewhere");
                    self.start_replica(node, start);
                }
            }
        }
    }

    fn install(&mut self, node: usize, group: PartitionId, loaded: Loaded) {
        let Some(host) = self.nodes[node].group_mut(group) else { return };
        host.installing = false;
        if let Some(data) = loaded.machine.shard() {
            host.borders.saved(data.map_version());
        }
        let me = host.me;
        self.oracle.installed(group, me, loaded.instance);
        let Loaded { machine, instance, configuration, configured_at, promised } = loaded;
        if !mutant!(install_trims_nothing) {
            let entry = Entry::Trimmed { group, upto: instance };
            self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
        }
        let machine = Box::new(machine);
        self.reached.note("snapshot: installed");
        let host = self.nodes[node].group(group);
        if host.is_some_and(|host| instance <= host.replica.paxos().decided_upto()) {
            self.reached.note("snapshot: installed below what is decided");
        }
        self.step(node, group, Input::Installed { machine, instance, configuration, configured_at, promised });
        let owner = self.nodes[node].owner(group);
        self.input(node, owner, worker::Input::HandOn(group));
    }

    /// It took too long: another node is asked, or the same again.
    pub fn on_snapshot_patience(&mut self, node: usize, group: PartitionId, wish: Wish, since: Nanos) {
        if self.nodes[node].control.fetched.get(&group) != Some(&since) {
            // It was asked for once more: that has a patience of its own (seed 138).
            return;
        }
        if self.nodes[node].store.is_checkpointing(group) {
            // It may be here, and on its way to the disk.
            let (life, at) = (self.nodes[node].life, self.now + SNAPSHOT_PATIENCE);
            return self.schedule(at, Event::SnapshotPatience { node, life, group, wish, since });
        }
        let each = &mut self.nodes[node];
        match wish {
            Wish::Install => {
                if let Some(host) = each.group_mut(group) {
                    if host.installing {
                        self.reached.note("snapshot: does not come in time");
                    }
                    host.installing = false;
                }
            }
            Wish::Join(me) => _ = each.control.replica_manager.end_join(group, me),
            Wish::Heal => _ = each.control.replica_manager.healed(group, None),
        }
    }
}
