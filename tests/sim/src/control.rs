//! What a node does about its replicas and its map, as the server's `control` does: [`ReplicaManager`] decides, this
//! carries it out over the simulated disk and network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_client::map::{Entry as MapEntry, PartitionMap, Role};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::machine::shard::Fork;
use coppice_core::replay::Entry;
use coppice_core::replica_manager::{ReplicaManager, Wanted};
use coppice_core::snapshot::Loaded;
use coppice_core::worker::Input;
use coppice_ordering::{Instance, ReplicaId};
use coppice_server::log::Append;

use super::driver::Driver;
use super::events::Event;
use super::plan::{MS, Nanos};
use super::snapshots::Wish;
use super::world::World;

/// A node looks around this often, as `control` does.
pub const LOOK: Nanos = 500 * MS;

/// Maps that a node keeps on its disk.
const MAPS_KEPT: usize = 2;

/// What the control task of a process remembers.
#[derive(Default)]
pub struct Control {
    /// Its replicas.
    pub replica_manager: ReplicaManager,
    /// The newest map that it knows.
    pub map: Arc<PartitionMap>,
    /// Groups whose checkpoints of a removed replica are being deleted.
    pub deleting: BTreeSet<PartitionId>,
    /// Whose turn it is to be asked for the first snapshot of a joining replica.
    pub turns: BTreeMap<PartitionId, usize>,
    /// When it last asked for a snapshot of each group.
    pub fetched: BTreeMap<PartitionId, Nanos>,
    /// What it does while it leads the directory.
    pub driver: Driver,
}

pub fn own(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

/// Maps.
impl World {
    /// Uses a map if it is newer: replicas that it names for this node, and no others.
    pub fn adopt(&mut self, node: usize, map: &Arc<PartitionMap>) {
        let each = &mut self.nodes[node];
        if map.version <= each.control.map.version {
            return;
        }
        if let Err(error) = map.check() {
            return self.fail("I14 map", format!("n{node}: {error}"));
        }
        each.control.map = Arc::clone(map);
        if each.kept_maps.back().is_none_or(|kept| kept.version < map.version) {
            each.kept_maps.push_back(Arc::clone(map));
            if each.kept_maps.len() > MAPS_KEPT {
                each.kept_maps.pop_front();
            }
        }
        let life = each.life;
        for worker in 0..self.nodes[node].workers.len() {
            if self.nodes[node].life == life {
                self.input(node, worker, Input::Map(Arc::clone(map)));
            }
        }
        if self.nodes[node].life == life {
            self.start_missing(node);
        }
    }

    /// Removes replicas that the map does not name, and starts those that it names and that do not run.
    pub fn start_missing(&mut self, node: usize) {
        let map = Arc::clone(&self.nodes[node].control.map);
        for group in self.nodes[node].control.replica_manager.unnamed(own(node), &map) {
            self.remove_group(node, group);
        }
        if !self.nodes[node].control.replica_manager.lacks_any(own(node), &map) {
            return;
        }
        let life = self.nodes[node].life;
        for entry in map.groups() {
            if self.nodes[node].life != life {
                return;
            }
            match self.nodes[node].control.replica_manager.wanted(own(node), entry) {
                Wanted::Nothing => {}
                Wanted::Begin(start) => self.start_replica(node, *start),
                Wanted::Join(me) => self.join_group(node, entry, me),
            }
        }
    }

    /// The directory's replica here decided something.
    pub fn on_directory_changed(&mut self, node: usize) {
        let host = self.nodes[node].group(PartitionId::DIRECTORY);
        let Some(state) = host.and_then(|host| host.replica.decided_directory()) else { return };
        let map = Arc::new(state.map.clone());
        let life = self.nodes[node].life;
        self.nodes[node].control.driver.state = Some(state);
        self.adopt(node, &map);
        if self.nodes[node].life == life {
            self.drive(node);
        }
    }

    /// What a node does twice a second.
    pub fn look_around(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.schedule(self.now + LOOK, Event::Look { node, life });
        let groups: Vec<PartitionId> = self.nodes[node].groups().map(|(group, _)| group).collect();
        groups.into_iter().for_each(|group| self.snapshot_if_due(node, group));
        self.ask_for_states(node);
        self.save_children(node);
        self.start_missing(node);
        self.keep_driving(node);
        let each = &self.nodes[node];
        let directory = PartitionId::DIRECTORY;
        let lacks = each.group(directory).is_none() || !each.leaders.contains_key(&directory);
        if each.life == life && lacks {
            let from = self.random.below(self.nodes.len());
            let at = self.now + self.net.delay();
            self.reached.note("map: asked of another node");
            self.schedule(at, Event::MapAsked { from, node, life });
        }
    }

    /// Another node asks for the map.
    pub fn on_map_asked(&mut self, from: usize, node: usize, life: u64) {
        let each = &self.nodes[from];
        if from == node || !each.up || each.paused_until > self.now || !self.net.hears(from, node) {
            return;
        }
        let (map, leaders) = (Arc::clone(&each.control.map), each.leaders.clone().into_iter().collect());
        let at = self.now + self.net.delay();
        if self.net.hears(node, from) {
            self.schedule(at, Event::MapTold { node, life, map, leaders });
        }
    }

    /// The answer comes.
    pub fn on_map_told(&mut self, node: usize, map: &Arc<PartitionMap>, leaders: Vec<(PartitionId, NodeId)>) {
        for (group, leader) in leaders {
            let entry = self.nodes[node].control.map.group(group);
            if entry.is_some_and(|entry| entry.replica_on(own(node)).is_none()) {
                self.nodes[node].leaders.insert(group, leader);
            }
        }
        self.adopt(node, map);
    }
}

/// Replicas that come and go.
impl World {
    /// A replica of a group that is there already begins with a snapshot from one of its voters.
    fn join_group(&mut self, node: usize, entry: &MapEntry, me: ReplicaId) {
        let group = entry.partition;
        if self.nodes[node].control.deleting.contains(&group) {
            return;
        }
        let voters = entry.replicas.iter().filter(|info| info.role == Role::Voter && info.node != own(node));
        let sources: Vec<usize> = voters.map(|info| info.node.0 as usize - 1).collect();
        if sources.is_empty() || !self.nodes[node].control.replica_manager.begin_join(group, me) {
            return;
        }
        // The child will begin from the fork, where that has yet to come.
        let forks = self.nodes[node].groups().any(|(id, host)| id != group && host.replica.holds(&entry.low));
        let control = &mut self.nodes[node].control;
        if forks && control.replica_manager.may_be_forked(&control.map, group) {
            self.reached.note("join: waits for a split to be executed here");
            let control = &mut self.nodes[node].control;
            _ = control.replica_manager.end_join(group, me);
            return;
        }
        // One after the other: some are down, or gone from there by a newer map (seed 201186).
        let drawn = self.replica_random.below(sources.len());
        let turn = self.nodes[node].control.turns.entry(group).or_insert(drawn);
        *turn += 1;
        let from = sources[*turn % sources.len()];
        self.fetch(node, group, (from, Instance::ZERO), Wish::Join(me));
    }

    /// The first snapshot of a joining replica is here.
    pub fn joined(&mut self, node: usize, group: PartitionId, me: ReplicaId, loaded: Loaded) {
        let map = Arc::clone(&self.nodes[node].control.map);
        let start = self.nodes[node].control.replica_manager.joined(own(node), &map, (group, me), loaded);
        if let Some(start) = start {
            self.reached.note("join: begins with a snapshot");
            self.start_replica(node, start);
        }
    }

    fn ask_for_states(&mut self, node: usize) {
        let map = Arc::clone(&self.nodes[node].control.map);
        for group in self.nodes[node].control.replica_manager.unasked() {
            let asked = self.nodes[node].control.replica_manager.ask_for_state(own(node), &map, group, |_| true);
            if let Some((from, least)) = asked {
                self.fetch(node, group, (from.0 as usize - 1, least), Wish::Heal);
            }
        }
    }

    /// The replica here was removed from its group, and nobody needs it any more.
    pub fn remove_group(&mut self, node: usize, group: PartitionId) {
        let control = &mut self.nodes[node].control;
        let Some(replica) = control.replica_manager.remove(own(node), &control.map, group) else { return };
        self.reached.note("replica: removed from a node");
        let each = &mut self.nodes[node];
        each.store.append(Append { entry: Entry::Removed { group, replica }, lsn: None, lazy: false });
        each.watched.remove(&group);
        each.leaders.remove(&group);
        each.control.deleting.insert(group);
        if mutant!(removal_unflushed) {
            self.on_removal_logged(node, group);
        }
        let each = &mut self.nodes[node];
        if group == PartitionId::DIRECTORY {
            each.control.driver.state = None;
        }
        let owner = each.owner(group);
        self.input(node, owner, Input::Drop(group));
        self.begin_write(node, false);
    }

    /// The removal of a replica is durable: its checkpoints go.
    pub fn on_removal_logged(&mut self, node: usize, group: PartitionId) {
        let took = self.disk_random.below(self.plan.disk.snapshot_max as usize) as Nanos;
        let life = self.nodes[node].life;
        self.schedule(self.now + took, Event::Deleted { node, life, group });
    }

    /// The next of its checkpoints goes; the others later.
    pub fn on_deleted(&mut self, node: usize, group: PartitionId) {
        if self.nodes[node].store.delete_checkpoint(group) {
            self.nodes[node].control.deleting.remove(&group);
            return;
        }
        let took = self.acts_random.below(self.plan.disk.flush_max as usize + 1) as Nanos;
        let life = self.nodes[node].life;
        self.schedule(self.now + took, Event::Deleted { node, life, group });
    }
}

/// Moved borders.
impl World {
    /// A split is decided: its children begin.
    pub fn on_forked(&mut self, node: usize, group: PartitionId, led: bool, forks: &[Fork]) {
        let life = self.nodes[node].life;
        for fork in forks {
            if self.nodes[node].life != life {
                return;
            }
            match self.nodes[node].control.replica_manager.fork(own(node), group, led, fork) {
                Some(start) => {
                    self.reached.note("split: a child begins");
                    self.start_replica(node, start);
                    self.save_children(node);
                }
                None => self.reached.note("split: executed again, and its child is known"),
            }
        }
    }

    fn save_children(&mut self, node: usize) {
        for child in self.nodes[node].control.replica_manager.unsaved() {
            self.reached.note("checkpoint: the first one of a child");
            self.checkpoint_now(node, child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::super::trace::Trace;
    use super::*;

    /// A seed with leaders lost in the middle of moves: of the directory's three replicas one was away for good, one
    /// had taken another's place, and one lagged behind that, so it did not know where the candidate was whom it had to
    /// answer. It asked nobody, for it had a replica of the directory itself.
    #[test]
    fn a_replica_of_the_directory_that_knows_no_leader_asks_the_others_for_the_map() {
        let ordered = |leader: Option<usize>| {
            let mut world = World::new(Plan::of(0), Trace::silent());
            let directory = world.map.directory.as_ref().expect("it is there");
            let node = directory.replicas[0].node.0 as usize - 1;
            world.start(node);
            let leader = leader.map(|next| (node + next) % world.nodes.len());
            world.nodes[node].leaders.extend(leader.map(|leader| (PartitionId::DIRECTORY, own(leader))));
            let before = world.ordered();
            world.look_around(node);
            world.ordered() - before
        };
        // The next look, and the question.
        assert_eq!((ordered(Some(1)), ordered(None)), (1, 2));
    }
}
