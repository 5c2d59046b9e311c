//! How each fault is made, and which node it means.

use coppice_client::wire::PartitionId;

use super::client::key;
use super::events::Event;
use super::node::Node;
use super::plan::fault::{Kind, Target};
use super::plan::{MS, Nanos};
use super::processes::places;
use super::store::Misread;
use super::world::World;

impl World {
    /// The node that is meant; the first, if it is a leader that nobody is.
    pub fn node_of(&self, target: Target) -> usize {
        let group = match target {
            Target::Node(node) => return node,
            Target::Newest => return self.nodes.len() - 1,
            target => self.group_of(target),
        };
        let leads = |node: &Node| node.group(group).is_some_and(|host| host.replica.is_leading());
        self.nodes.iter().position(leads).unwrap_or(0)
    }

    /// The group whose leader is meant; the directory, if a node is.
    pub fn group_of(&self, target: Target) -> PartitionId {
        match target {
            Target::Node(_) | Target::Newest => PartitionId::DIRECTORY,
            Target::Leader(group) => PartitionId(group),
            Target::Holder(at) => self.map.route(&key(at)).map_or(PartitionId::DIRECTORY, |entry| entry.partition),
        }
    }

    /// Makes the fault of this number.
    pub fn make(&mut self, number: usize, kind: Kind) {
        match kind {
            Kind::Crash { who, effects, down, again } => {
                let node = self.node_of(who);
                self.nodes[node].crash.cut_start = again;
                if self.nodes[node].up && effects == 0 {
                    self.crash(node, down);
                } else if self.nodes[node].up {
                    self.nodes[node].crash.doom = Some((effects, down));
                }
            }
            Kind::Stop { who, down } => self.stop(self.node_of(who), down),
            Kind::CrashAll { down } => {
                for node in 0..self.nodes.len() {
                    if self.nodes[node].up {
                        self.crash(node, down);
                    }
                }
            }
            Kind::Pause { who, length } => {
                let node = self.node_of(who);
                let each = &mut self.nodes[node];
                each.paused_until = each.paused_until.max(self.now + length);
            }
            Kind::Cut { side, alone, one_way, length } => {
                let side = alone.map_or(side, |alone| 1 << self.node_of(alone));
                self.net.cut(side, one_way, 1);
                self.schedule(self.now + length, Event::Mend { side, one_way });
            }
            Kind::Mute { who, length } => {
                let others = !(1 << self.node_of(who));
                self.net.cut(others, true, 1);
                self.schedule(self.now + length, Event::Mend { side: others, one_way: true });
            }
            Kind::Jump { who, by } => {
                // Leases rest on the rates of clocks.
                if self.plan.settings.reads == coppice_ordering::Reads::Quorum {
                    let (node, now) = (self.node_of(who), self.now);
                    self.nodes[node].clock.jump(now, by);
                    self.arm(node);
                }
            }
            Kind::Transfer { group, to } => {
                let (node, group) = (self.node_of(Target::Leader(group)), PartitionId(group));
                let Some(entry) = self.map.group(group) else { return };
                if let Some(info) = entry.replicas.get(to as usize % entry.replicas.len().max(1)) {
                    self.on_transfer_leader(node, group, info.node);
                }
            }
            Kind::SlowDisk { who, by, length } => {
                let node = self.node_of(who);
                self.nodes[node].flush_extra = by;
                self.schedule(self.now + length, Event::DiskWell { node });
            }
            Kind::FailFlush { who } => {
                let node = self.node_of(who);
                self.nodes[node].store.fail_flush();
            }
            Kind::IoError { who, after } => {
                let node = self.node_of(who);
                if self.nodes[node].up {
                    self.nodes[node].store.fail_at(after);
                }
            }
            Kind::CheckpointError { who, after } => {
                let node = self.node_of(who);
                self.nodes[node].store.fail_checkpoint(after);
            }
            Kind::ReadError { who, after, down } => {
                let node = self.node_of(who);
                if self.nodes[node].up {
                    self.nodes[node].store.fail_read(after);
                    self.crash_process(node, down);
                }
            }
            Kind::Split { .. } | Kind::Merge { .. } | Kind::Move { .. } => self.begin_change(number, &kind),
            Kind::Join | Kind::Drain { .. } | Kind::Undrain { .. } | Kind::Remove { .. } => {
                self.begin_change(number, &kind);
            }
            Kind::Replicas { count } => self.set_replicas(count),
            Kind::Wipe { node } => self.wipe(node),
            Kind::Rot { who, at, down } => {
                let node = self.node_of(who);
                if self.nodes[node].up && self.nodes[node].store.rot_checkpoint(at) {
                    self.coverage.note("fault: checkpoint rots");
                    self.nodes[node].damage.is_rotten = true;
                    self.crash(node, down);
                }
            }
            Kind::RotLog { who, at, down } => self.rot_log(self.node_of(who), at, down),
            Kind::Hold { group, mute, length } => self.hold(PartitionId(group), mute, length),
            Kind::Sever { who, one_way, length } => self.sever(who, one_way, length),
            Kind::Tune { group, batch_bytes_max, window, window_bytes_max } => {
                self.tune(PartitionId(group), batch_bytes_max, window, window_bytes_max);
            }
            Kind::Limits { sessions_max, expiry_instances } => self.set_limits(sessions_max, expiry_instances),
            Kind::Copy { who, after, down, others_restart } => self.copy(who, (after, down), others_restart),
            Kind::HangUp { who } => self.hang_up(self.node_of(who)),
            Kind::Absent { client, length } => self.send_away(client, length),
            Kind::Trigger { moment, crash, length } => self.set_trigger(moment, crash, length),
            Kind::FullDisk { who, bytes, length } => {
                let node = self.node_of(who);
                self.nodes[node].store.set_room(Some(bytes));
                self.schedule(self.now + length, Event::DiskWell { node });
            }
        }
    }

    /// A part of a node's log changes.
    pub fn rot_log(&mut self, node: usize, at: u64, down: Option<Nanos>) {
        let each = &self.nodes[node];
        if !each.up || self.nodes.iter().any(|node| node.damage.is_lost || node.damage.has_rotten_log) {
            return;
        }
        if let Some(down) = down {
            self.crash(node, down);
        }
        if self.nodes[node].store.rot_log(at) {
            self.coverage.note("fault: log rots");
            self.nodes[node].damage.has_rotten_log = true;
        }
    }

    /// A node refuses to start from its log, as it has to: its operator takes the disk for lost.
    pub fn refuse_rot(&mut self, node: usize) {
        self.coverage.note("start: a rotten log is refused");
        self.nodes[node].damage.has_rotten_log = false;
        self.wipe(node);
    }

    /// A read of the start that is coming may fail; the process ends then, and its operator starts it again.
    pub fn fails_to_read(&mut self, node: usize) {
        let random = &mut self.draws.reads;
        if !self.faults.healed && random.below(100) < self.plan.disk.read_errors as usize {
            self.coverage.note("start: a read may fail");
            self.nodes[node].store.fail_read(random.below(16) as u64);
        }
    }

    /// A start is given a block or a file of its log that is another's or an old one, and so refuses, as it has to: its
    /// operator tries again. False: it does not come to that.
    pub fn misreads(&mut self, node: usize) -> bool {
        let random = &mut self.draws.misread;
        let each = &self.nodes[node];
        if self.faults.healed || each.damage.has_rotten_log || random.below(100) >= self.plan.disk.misread as usize {
            return false;
        }
        let (other, at) = (random.below(self.nodes.len()), random.next());
        match each.store.misread(&self.nodes[other].store, at) {
            Misread::Unseen => false,
            Misread::Refused => {
                self.coverage.note("start: a log that is not its own is refused");
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
        self.coverage.note("fault: coordinator and leader do not hear each other");
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
        let lines = self.lines.open.iter().filter(|(_, line)| line.node == node && line.node_open);
        let lines: Vec<_> = lines.map(|(&number, _)| number).collect();
        lines.into_iter().for_each(|number| self.cut_line(number));
    }
}
