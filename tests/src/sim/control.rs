//! What a node does about its replicas and its map, as the server's `control` does: [`ReplicaManager`] decides, this
//! carries it out over the simulated disk and network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_client::map::{Entry as MapEntry, PartitionMap, Role};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::machine::{Machine, Mark};
use coppice_core::multicast::letter::leader_learned;
use coppice_core::replay::Entry;
use coppice_core::replica::{Effect, Input};
use coppice_core::replica_manager::{ReplicaManager, Wanted};
use coppice_core::snapshot::Loaded;
use coppice_ordering::{Instance, ReplicaId};
use coppice_server::log::Append;

use super::driver::Driver;
use super::events::Event;
use super::node::Node;
use super::plan::{MS, Nanos};
use super::processes::places;
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
        for (&group, host) in &mut each.hosts {
            host.nodes.extend(places(map, group));
        }
        self.learn_leaders(node);
        self.start_missing(node);
    }

    /// The map may name the node of a leader that a replica here follows already.
    fn learn_leaders(&mut self, node: usize) {
        let Node { hosts, leaders, .. } = &mut self.nodes[node];
        let mut learned = Vec::new();
        for (&group, host) in hosts {
            let place = host.replica.leader().and_then(|leader| host.nodes.get(&leader).copied());
            if let Some(place) = leader_learned(place, leaders.get(&group).copied()) {
                leaders.insert(group, place);
                learned.push(group);
            }
        }
        learned.into_iter().for_each(|group| self.on_new_leader(node, group));
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
        let host = self.nodes[node].hosts.get(&PartitionId::DIRECTORY);
        let Some(state) = host.and_then(|host| host.replica.decided_directory()) else { return };
        let map = Arc::new(state.map.clone());
        self.nodes[node].control.driver.state = Some(state);
        self.adopt(node, &map);
        self.drive(node);
    }

    /// What a node does twice a second.
    pub fn look_around(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.schedule(self.now + LOOK, Event::Look { node, life });
        let groups: Vec<PartitionId> = self.nodes[node].hosts.keys().copied().collect();
        groups.into_iter().for_each(|group| self.snapshot_if_due(node, group));
        self.ask_for_states(node);
        self.save_children(node);
        self.start_missing(node);
        self.keep_driving(node);
        let old = self.now.saturating_sub(super::doors::PART_WAIT);
        let parked = self.nodes[node].parked.len();
        self.nodes[node].parked.retain(|(since, _)| *since >= old);
        self.reached.add("query: nobody comes for a part", (parked - self.nodes[node].parked.len()) as u64);
        let each = &self.nodes[node];
        let directory = PartitionId::DIRECTORY;
        let lacks = !each.hosts.contains_key(&directory) || !each.leaders.contains_key(&directory);
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
    pub fn on_map_told(&mut self, node: usize, map: &Arc<PartitionMap>, leaders: Vec<(PartitionId, usize)>) {
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
        let forks = self.nodes[node].hosts.iter().any(|(&id, host)| id != group && host.replica.holds(&entry.low));
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
        let mut effects = Vec::new();
        each.hosts.remove(&group).into_iter().for_each(|mut host| host.replica.retire(&mut effects));
        each.leaders.remove(&group);
        each.control.deleting.insert(group);
        if mutant!(removal_unflushed) {
            self.on_removal_logged(node, group);
        }
        let each = &mut self.nodes[node];
        if group == PartitionId::DIRECTORY {
            each.control.driver.state = None;
            self.end_coordinating(node);
        }
        for effect in effects {
            if let Effect::Reply { origin, reply } = effect {
                self.reply(node, group, origin, reply);
            }
        }
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
    /// A batch that moved borders is decided.
    pub fn on_moved(&mut self, node: usize, group: PartitionId, mark: &Mark) {
        if Machine::seals(mark) {
            self.leave(node, group);
        }
        let Some(host) = self.nodes[node].hosts.get_mut(&group) else { return };
        host.borders.joined(Machine::joins(mark));
        if Machine::seals(mark) {
            self.reached.note("merge: a partition is sealed");
        }
        if !Machine::joins(mark).is_empty() {
            self.reached.note("merge: a neighbour is taken in");
        }
        let led = host.replica.is_leading();
        for fork in Machine::forks(mark) {
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

    /// If a partition is sealed, and that is decided, its neighbour gets its state.
    pub fn leave_decided(&mut self, node: usize, group: PartitionId) {
        let Some(host) = self.nodes[node].hosts.get(&group) else { return };
        if host.replica.executor().decided_view().shard().is_some_and(|shard| shard.sealed().is_some()) {
            self.leave(node, group);
        }
    }

    fn leave(&mut self, node: usize, group: PartitionId) {
        let Some(host) = self.nodes[node].hosts.get(&group) else { return };
        if let Some(left) = host.replica.executor().machine().shard().and_then(|shard| shard.inheritance()) {
            self.step(node, left.seal.heir, Input::Inherit(Box::new(left)));
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
            world.nodes[node].leaders.extend(leader.map(|leader| (PartitionId::DIRECTORY, leader)));
            let before = world.ordered();
            world.look_around(node);
            world.ordered() - before
        };
        // The next look, and the question.
        assert_eq!((ordered(Some(1)), ordered(None)), (1, 2));
    }
}
