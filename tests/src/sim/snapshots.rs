//! Snapshots: written now and then, and fetched by a replica that is too far behind, that joins, or whose own state is
//! gone (ordering.md 1.6).

use coppice_client::wire::PartitionId;
use coppice_ordering::{Instance, ReplicaId};
use coppice_server::log::{Append, Entry};
use coppice_server::replica::Input;
use coppice_server::snapshot::{self, Loaded};

use super::control::own;
use super::events::Event;
use super::plan::{MS, Nanos};
use super::store::Saved;
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

impl World {
    /// Writes a checkpoint of a group if it is time for one, and nobody needs its log as it is.
    pub fn snapshot_if_due(&mut self, node: usize, group: PartitionId) {
        let every = self.plan.snapshot_instances;
        let each = &self.nodes[node];
        let Some(host) = each.hosts.get(&group) else { return };
        // What was taken in of a neighbour is here only, until it is in a checkpoint.
        let due = host.replica.executor().decided().ahead_of(host.snapshot_at) >= every || host.borders.is_owed();
        match (due, each.control.residents.is_needed(group)) {
            (true, false) => self.checkpoint_now(node, group),
            (true, true) => self.reached.note("checkpoint: waits for that of a child"),
            _ => {}
        }
    }

    /// Writes a checkpoint of a group, unless one is being written.
    pub fn checkpoint_now(&mut self, node: usize, group: PartitionId) {
        let Some(host) = self.nodes[node].hosts.get_mut(&group).filter(|host| !host.snapshotting) else { return };
        host.snapshotting = true;
        host.snapshot_at = host.replica.executor().decided();
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
        host.borders.saved(saved.instance, saved.applied.clone());
        let instance = saved.instance;
        if let Some(upto) = self.nodes[node].store.keep_checkpoint(group, saved) {
            self.reached.note("checkpoint: the log below an older one goes");
            let entry = Entry::Trimmed { group, upto };
            self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
        }
        self.step(node, group, Input::Checkpointed(instance));
        self.nodes[node].control.residents.saved(group);
    }

    /// A replica can only go on from a snapshot.
    pub fn need_snapshot(&mut self, node: usize, group: PartitionId, from: ReplicaId, instance: Instance) {
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        let Some(&source) = host.nodes.get(&from) else { return };
        if !std::mem::replace(&mut host.installing, true) {
            self.fetch(node, group, (source, instance), Wish::Install);
        }
    }

    /// Asks another node for a snapshot that reaches so far.
    pub fn fetch(&mut self, node: usize, group: PartitionId, (from, instance): (usize, Instance), wish: Wish) {
        let life = self.nodes[node].life;
        self.schedule(self.now + SNAPSHOT_PATIENCE, Event::SnapshotPatience { node, life, group, wish });
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
        let Some(host) = self.nodes[from].hosts.get(&group) else { return };
        if host.replica.executor().decided() < least {
            self.reached.note("snapshot: asked of one that is behind");
            return;
        }
        let saved = Saved::of(snapshot::take(&host.replica));
        self.check_snapshot(group, &saved);
        let took = self.net.delay() + self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        self.schedule(self.now + took, Event::SnapshotArrived { node, life, group, saved, wish });
    }

    /// A snapshot of another node is durable here.
    pub fn on_snapshot_arrived(&mut self, node: usize, group: PartitionId, saved: Saved, wish: Wish) {
        let loaded = match saved.load(self.plan.capacity(node)) {
            Ok(loaded) => loaded,
            Err(error) => return self.fail("snapshot", format!("an intact snapshot does not load: {error}")),
        };
        match wish {
            Wish::Install => self.install(node, group, saved, loaded),
            Wish::Join(me) => {
                if !self.nodes[node].control.residents.is_joining(group, me) {
                    return;
                }
                self.nodes[node].store.keep_checkpoint(group, saved);
                self.nodes[node].control.residents.end_join(group);
                self.joined(node, group, me, loaded);
            }
            Wish::Heal => {
                self.nodes[node].store.keep_checkpoint(group, saved);
                if let Some(start) = self.nodes[node].control.residents.healed(group, Some(loaded)) {
                    self.reached.note("start: goes on with a state from elsewhere");
                    self.start_replica(node, start);
                }
            }
        }
    }

    fn install(&mut self, node: usize, group: PartitionId, saved: Saved, loaded: Loaded) {
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        host.installing = false;
        if let (Some(held), Some(data)) = (host.replica.decided_range(), loaded.machine.shard()) {
            let control = &mut self.nodes[node].control;
            let kept = (data.range(), data.map_version());
            if !control.residents.may_install(own(node), &control.map, (group, &held), kept) {
                self.reached.note("snapshot: waits for what it gives away");
                return self.start_missing(node);
            }
        }
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        host.borders.saved(saved.instance, saved.applied.clone());
        let me = host.me;
        self.nodes[node].store.keep_checkpoint(group, saved);
        self.oracle.installed(group, me, loaded.instance);
        let Loaded { machine, instance, configuration, configured_at, promised } = loaded;
        if !mutant!(install_trims_nothing) {
            let entry = Entry::Trimmed { group, upto: instance };
            self.nodes[node].store.append(Append { entry, lsn: None, lazy: true });
        }
        let machine = Box::new(machine);
        self.reached.note("snapshot: installed");
        let host = self.nodes[node].hosts.get(&group);
        if host.is_some_and(|host| instance <= host.replica.paxos().decided_upto()) {
            self.reached.note("snapshot: installed below what is decided");
        }
        self.step(node, group, Input::Installed { machine, instance, configuration, configured_at, promised });
        self.leave_decided(node, group);
    }

    /// It took too long: another node is asked, or the same again.
    pub fn on_snapshot_patience(&mut self, node: usize, group: PartitionId, wish: Wish) {
        let each = &mut self.nodes[node];
        match wish {
            Wish::Install => {
                if let Some(host) = each.hosts.get_mut(&group) {
                    if host.installing {
                        self.reached.note("snapshot: does not come in time");
                    }
                    host.installing = false;
                }
            }
            Wish::Join(me) if each.control.residents.is_joining(group, me) => each.control.residents.end_join(group),
            Wish::Join(_) => {}
            Wish::Heal => _ = each.control.residents.healed(group, None),
        }
    }
}
