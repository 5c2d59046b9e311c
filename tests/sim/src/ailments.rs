//! Faults that need more than a switch: logs that rot, tickets that hang between two partitions, clients that are hung
//! up on.

use coppice_client::wire::PartitionId;

use super::events::Event;
use super::faults::Target;
use super::plan::{MS, Nanos};
use super::processes::places;
use super::store::Misread;
use super::world::World;

impl World {
    /// A part of a node's log changes.
    pub fn rot_log(&mut self, node: usize, at: u64, down: Option<Nanos>) {
        let each = &self.nodes[node];
        if !each.up || self.nodes.iter().any(|node| node.is_lost || node.has_rotten_log) {
            return;
        }
        if let Some(down) = down {
            self.crash(node, down);
        }
        if self.nodes[node].store.rot_log(at) {
            self.reached.note("fault: log rots");
            self.nodes[node].has_rotten_log = true;
        }
    }

    /// A node refuses to start from its log, as it has to: its operator takes the disk for lost.
    pub fn refuse_rot(&mut self, node: usize) {
        self.reached.note("start: a rotten log is refused");
        self.nodes[node].has_rotten_log = false;
        self.wipe(node);
    }

    /// A read of the start that is coming may fail; the process ends then, and its operator starts it again.
    pub fn fails_to_read(&mut self, node: usize) {
        let random = &mut self.read_random;
        if !self.healed && random.below(100) < self.plan.disk.read_errors as usize {
            self.reached.note("start: a read may fail");
            self.nodes[node].store.fail_read(random.below(16) as u64);
        }
    }

    /// A start is given a block or a file of its log that is another's or an old one, and so refuses, as it has to: its
    /// operator tries again. False: it does not come to that.
    pub fn misreads(&mut self, node: usize) -> bool {
        let random = &mut self.misread_random;
        let each = &self.nodes[node];
        if self.healed || each.has_rotten_log || random.below(100) >= self.plan.disk.misread as usize {
            return false;
        }
        let (other, at) = (random.below(self.nodes.len()), random.next());
        match each.store.misread(&self.nodes[other].store, at) {
            Misread::Unseen => false,
            Misread::Refused => {
                self.reached.note("start: a log that is not its own is refused");
                self.crash(node, 10 * MS);
                true
            }
            Misread::Believed(what) => {
                self.fail("recovery", format!("n{node} believes what is not its log: {what}"));
                true
            }
        }
    }

    /// The coordinator and the leader of a partition do not hear each other, in one direction.
    pub fn hold(&mut self, group: PartitionId, mute: bool, length: Nanos) {
        let coordinator = self.node_of(Target::Leader(PartitionId::DIRECTORY.0));
        let leads = |group: u32| self.node_of(Target::Leader(group));
        // If one node is both, another partition's leader has its turn.
        let others = self.map.partitions.iter().map(|entry| entry.partition.0);
        let found = [group.0].into_iter().chain(others).map(leads).find(|leader| *leader != coordinator);
        let Some(leader) = found else { return };
        self.reached.note("fault: coordinator and leader do not hear each other");
        let (to, from) = if mute { (coordinator, leader) } else { (leader, coordinator) };
        self.net.cut_pair(to, from, 1);
        self.schedule(self.now + length.max(MS), Event::MendPair { to, from });
    }

    /// The leader of a group and its other replicas do not hear each other, or only the leader does not.
    pub fn sever(&mut self, who: Target, one_way: bool, length: Nanos) {
        let (group, leader) = (self.group_of(who), self.node_of(who));
        let others: Vec<usize> =
            places(&self.map, group).map(|(_, node)| node).filter(|node| *node != leader).collect();
        let at = self.now + length;
        for other in others {
            let back = (other, leader);
            for (to, from) in [(leader, other), back].into_iter().filter(|pair| *pair != back || !one_way) {
                self.net.cut_pair(to, from, 1);
                self.schedule(at, Event::MendPair { to, from });
            }
        }
    }

    /// All connections of clients to a node break; its process goes on.
    pub fn hang_up(&mut self, node: usize) {
        let lines = self.lines.iter().filter(|(_, line)| line.node == node && line.node_open);
        let lines: Vec<u64> = lines.map(|(&number, _)| number).collect();
        lines.into_iter().for_each(|number| self.cut_line(number));
    }
}
