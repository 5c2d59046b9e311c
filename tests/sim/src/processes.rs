//! Ends and starts of processes: what a crash takes, what a start makes of the disk, and how the other nodes hear of
//! it.

use std::sync::Arc;

use coppice_btree::KeyRange;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{MapVersion, PartitionId};
use coppice_core::controller::{self, RecoveredReplica};
use coppice_core::failure_detector::LastHeard;
use coppice_core::machine::Machine;
use coppice_core::machine::directory::Directory;
use coppice_core::machine::partition::Partition;
use coppice_core::replica_manager::Start;
use coppice_core::roll_forward::RolledGroup;
use coppice_core::worker::Input;

use super::control::own;
use super::events::Event;
use super::node::{FoundRecords, ReplicaWatch};
use super::plan::{MS, Nanos};
use super::store::{Held, HeldGroup};
use super::watermarks::Watermarks;
use super::world::World;

/// A node tries to connect again so long after a connection ended.
const REFUSED_AFTER: Nanos = 5 * MS;

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
        if self.nodes[node].store.is_writing() {
            self.coverage.note("crash: a write is under way");
        }
        if power {
            self.coverage.note("crash: what was not flushed may be lost");
        }
        let random = &mut self.draws.disk;
        let each = &mut self.nodes[node];
        each.store.crash(power, random);
        // The newest map may not have reached the disk; the one before it has.
        if power && each.kept_maps.len() > 1 && random.below(4) == 0 {
            self.coverage.note("crash: the newest map is lost");
            each.kept_maps.pop_back();
        }
        each.boot += 1;
        each.groups().for_each(|(_, host)| self.coverage.ends(host.replica.paxos().counters()));
        self.faults.crashes += u64::from(!self.faults.healed);
        each.up = false;
        (each.crash.doom, each.tick_at, each.paused_until) = (None, None, 0);
        each.forget(&self.plan, node);
        self.oracle.process_ended(node);
        self.lose_lines(node);
        if !power {
            self.close_links(node);
        }
        let boot = self.nodes[node].boot;
        self.schedule(self.now + down, Event::Start { node, boot });
    }

    /// A process starts, from what its disk holds.
    pub fn start(&mut self, node: usize) {
        let cut = self.nodes[node].crash.cut_start.take();
        if self.misreads(node) {
            return;
        }
        self.fails_to_read(node);
        let Held { groups } = match self.nodes[node].store.open(cut) {
            Ok(Some(held)) => held,
            Ok(None) => {
                self.coverage.note("start: cut off in recovery");
                // Cut off on the way; the disk is as after a crash, and the next start goes on from there.
                return self.crash(node, 10 * MS);
            }
            Err(_) if self.nodes[node].damage.has_rotten_log => return self.refuse_rot(node),
            Err(error) => return self.fail("recovery", format!("n{node} does not start: {error}")),
        };
        if self.nodes[node].store.was_torn() {
            self.coverage.note("start: a torn tail is cut off");
        }
        let now = self.now;
        self.trace.step(now, &(node, 1_u8), |line| *line += &format!("n{node} starts"));
        // The step in which the process before it ended may have written there once more.
        self.nodes[node].forget(&self.plan, node);
        self.nodes[node].up = true;
        self.begin_greeting(node);
        let boot = self.nodes[node].boot;
        let kept = self.nodes[node].kept_maps.back().cloned();
        let state = kept.as_ref().map(|map| Arc::new(self.kept_state(map)));
        let identity = controller::Input::Identity { node: own(node), kept: state, seeds: Vec::new() };
        self.tell(node, identity);
        for (group, held) in groups {
            if let Err(error) = self.restart(node, group, held) {
                return self.fail("recovery", format!("n{node}.{group} does not start: {error}"));
            }
        }
        if self.nodes[node].boot == boot
            && let Some(map) = kept
        {
            self.tell(node, controller::Input::Map(map));
        }
        if self.nodes[node].boot == boot {
            self.begin_write(node, false);
            self.arm(node);
            self.tell_settings(node);
            self.arm_controller(node);
            self.restored(node);
        }
    }

    /// A group that the log knows.
    fn restart(
        &mut self,
        node: usize,
        group: PartitionId,
        HeldGroup { records, checkpoint, bad, rolled }: HeldGroup,
    ) -> Result<(), String> {
        let RolledGroup { replay, loaded, reload } = rolled;
        if replay.state() > checkpoint {
            self.coverage.note("start: a checkpoint is rolled forward");
        }
        if replay.evicted_upto() > checkpoint {
            self.coverage.note("start: executed batches stay in the log");
        }
        if reload.is_some() {
            self.coverage.note("start: a newer replica's checkpoint is loaded again");
        }
        let recovered = RecoveredReplica::new(group, replay, loaded).ok_or("its create request is unknown")?;
        if recovered.loaded.is_some() && bad > 0 {
            self.coverage.note("snapshot: an older one is loaded");
        }
        if recovered.replay.trimmed.is_some() {
            self.coverage.note("start: a log without its beginning");
        }
        if recovered.removed.is_some() {
            self.coverage.note("start: a replica was removed");
        }
        let me = recovered.created.as_ref().map(|(me, _)| *me);
        if let Some(me) = me {
            self.oracle.lives(node, group, me);
            let found = FoundRecords { checkpoint, state: recovered.replay.state(), records };
            self.nodes[node].process.found.insert((group, me), found);
        }
        self.tell(node, controller::Input::Recovered(Box::new(recovered)));
        let awaited = self.nodes[node].process.control.controller.replicas().awaiting_snapshot();
        if let Some(me) = me.filter(|_| awaited.contains_key(&group)) {
            self.coverage.note("start: a replica waits for a state from elsewhere");
            if self.nodes[node].damage.is_rotten {
                self.oracle.state_lost(group, me);
            }
        }
        Ok(())
    }

    /// A worker hosts a replica.
    pub fn host_replica(&mut self, node: usize, mut start: Start) {
        let (now, group, me, snapshot) = (self.now, start.group, start.me, start.snapshot);
        self.trace.step(now, &(node, group, snapshot.0), |line| {
            *line += &format!("n{node}.{group} starts as {} from {snapshot}", start.me);
        });
        if let Machine::Partition(partition) = &mut start.machine
            && partition.tree().is_empty()
        {
            partition.set_capacity_per_node(self.plan.capacity(node));
        }
        let found = self.nodes[node].process.found.remove(&(group, me));
        let FoundRecords { checkpoint, state, records } = found.unwrap_or_default();
        // Another state than that of the checkpoint, rolled forward, is on the disk.
        let durable = if snapshot == state { checkpoint } else { snapshot };
        if let Err((check, what)) = self.oracle.recovered(node, (group, me), durable, &records) {
            self.fail(check, what);
        }
        let found = self.oracle.check_start(node, group, snapshot, start.machine.digest());
        self.expect(found);
        if start.campaign_first {
            self.coverage.note("start: is to lead first");
        }
        let (seed, incarnation) = (self.draws.replicas.next(), self.nodes[node].store.incarnation());
        let each = &mut self.nodes[node];
        each.process.watched.insert(group, ReplicaWatch { watermarks: Watermarks::beginning(snapshot) });
        let owner = each.owner(group);
        self.input(node, owner, Input::Start { start: Box::new(start), seed, incarnation });
    }

    /// The state that a group of the first map begins with; the directory holds nothing until its first leader creates
    /// that map in it.
    pub fn first_state(&self, group: PartitionId) -> Machine {
        match self.map.partitions.iter().find(|entry| entry.partition == group) {
            None => Machine::Directory(Directory::default()),
            Some(entry) => {
                let range = KeyRange { low: (&*entry.low).into(), high: entry.high.as_deref().map(Into::into) };
                Machine::Partition(Box::new(Partition::new(group, range, MapVersion(1))))
            }
        }
    }

    /// A worker lets the other nodes hear that its node lives, and hears of them.
    pub fn detect_failures(&mut self, node: usize, worker: usize) {
        let boot = self.nodes[node].boot;
        for other in 0..self.nodes.len() {
            let listens = self.nodes[other].up && self.net.hears(other, node) && other != node;
            if listens {
                let at = self.nodes[other].clock.local(self.now);
                self.nodes[other].process.heard.insert(own(node), LastHeard { at, connection: boot });
            }
        }
        let heard = self.nodes[node].process.heard.iter().map(|(&node, &heard)| (node, heard)).collect();
        self.input(node, worker, Input::Heard { fresh: Vec::new(), heard });
    }

    /// The process of a node ended and its machine did not: it closes the connections to the others, and refuses those
    /// that they try to make anew.
    pub fn close_links(&mut self, gone: usize) {
        for node in (0..self.nodes.len()).filter(|node| *node != gone) {
            if self.nodes[node].up && self.net.hears(node, gone) && self.net.hears(gone, node) {
                let (boot, after) = (self.nodes[node].boot, REFUSED_AFTER + self.net.delay());
                self.schedule(self.now + after, Event::Gone { node, boot, gone });
            }
        }
    }

    /// The groups of a node are told that the process of another one has ended, if it has not begun anew meanwhile.
    pub fn on_gone(&mut self, node: usize, boot: u64, gone: usize) {
        if self.nodes[node].boot == boot && self.nodes[node].up && !self.nodes[gone].up {
            self.coverage.note("a node is told that another one's process ended");
            self.tell_workers(node, || Input::Gone(own(gone)));
        }
    }

    fn tell_workers(&mut self, node: usize, input: impl Fn() -> Input) {
        let boot = self.nodes[node].boot;
        for worker in 0..self.nodes[node].process.workers.len() {
            if self.nodes[node].boot == boot {
                self.input(node, worker, input());
            }
        }
    }
}

/// Where a map says that a group's replicas are.
pub fn places(
    map: &PartitionMap,
    group: PartitionId,
) -> impl Iterator<Item = (coppice_ordering::ReplicaId, usize)> + '_ {
    let replicas = map.group(group).into_iter().flat_map(|entry| &entry.replicas);
    replicas.map(|info| (coppice_ordering::ReplicaId(info.replica.0), info.node.0 as usize - 1))
}
