//! Nodes that stop in order, and leader transfers: a leadership goes to a node that is reached, and who stops waits for
//! that, but not for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_client::map::{ReplicaInfo, Role};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::controller::Input;
use coppice_core::{replica, worker};

use super::control::own;
use super::control_thread::Stop;
use super::plan::Nanos;
use super::world::World;

/// A node that stops waits so long at most for others to lead what it led.
const STOPPED_WITHIN: Duration = Duration::from_secs(1);

impl World {
    /// A leader is to transfer its leadership to the replica on another node.
    pub fn on_transfer_leader(&mut self, node: usize, partition: PartitionId, to: NodeId) {
        if !self.nodes[node].up || self.nodes[node].paused_until > self.now {
            return;
        }
        let (within, reached) = (self.plan.settings.election_timeout, self.reached(node));
        self.nodes[node].process.control.reached.insert(partition, reached.clone());
        self.tell(node, Input::Transfer { transfer: 0, partition, to, within, reached });
    }

    /// The nodes to which this one has a connection.
    fn reached(&self, node: usize) -> Vec<NodeId> {
        let others = (0..self.nodes.len()).filter(|&other| other != node && self.nodes[other].up);
        others.filter(|&other| self.net.hears(node, other) && self.net.hears(other, node)).map(own).collect()
    }

    /// A node is to stop, and to start again after a while.
    pub fn stop(&mut self, node: usize, down: Nanos) {
        let each = &self.nodes[node];
        if !each.up || each.paused_until > self.now || each.process.control.stop.is_some() {
            return;
        }
        let leading = each.groups().filter(|(_, host)| host.replica.is_leading());
        let led: Vec<_> = leading.map(|(group, host)| (group, host.replica.paxos().promised())).collect();
        let (until, nodes) = (each.clock.local(self.now) + STOPPED_WITHIN, self.reached(node));
        let to: BTreeMap<_, _> = led.iter().map(|&(group, _)| (group, nodes.clone())).collect();
        let led = led.into_iter().filter(|&(group, _)| self.has_successor(node, group, &nodes)).collect();
        let control = &mut self.nodes[node].process.control;
        control.reached.extend(to.clone());
        control.stop = Some(Stop { down, until, led });
        self.report_last(node, Input::Stop { within: STOPPED_WITHIN, led: to });
    }

    pub fn on_stopped(&mut self, node: usize) {
        let each = &mut self.nodes[node];
        let Some(Stop { down, until, led }) = each.process.control.stop.take() else { return };
        let is_early = each.clock.local(self.now) < until;
        self.coverage.note(if is_early { "stop: others lead" } else { "stop: the time is over" });
        let each = &self.nodes[node];
        let still = led.into_iter().find(|&(group, ballot)| {
            let replica = each.group(group).map(|host| &host.replica);
            let leads = replica.is_some_and(|replica| replica.is_leading() && replica.paxos().promised() == ballot);
            // One that is removed goes, whether it leads or not.
            leads && each.process.control.controller.replicas().running().contains_key(&group)
        });
        if let Some((group, _)) = still.filter(|_| is_early) {
            self.fail("stop", format!("n{node} stops while it leads {group}, which another node could lead"));
        } else if !self.faults.healed {
            self.crash_process(node, down);
        }
    }

    /// Whether one of these nodes votes in a group, by the map of this node.
    fn has_successor(&self, node: usize, group: PartitionId, reached: &[NodeId]) -> bool {
        let entry = self.nodes[node].process.control.controller.map().group(group);
        let votes = |info: &ReplicaInfo| info.role == Role::Voter && reached.contains(&info.node);
        entry.is_some_and(|entry| entry.replicas.iter().any(votes))
    }

    /// A leadership goes only to a node that was reached.
    pub fn check_transfer(&mut self, node: usize, input: &worker::Input) {
        let worker::Input::Replica(group, input) = input else { return };
        let replica::Input::TransferLeader { to, .. } = **input else { return };
        let control = &self.nodes[node].process.control;
        let entry = control.controller.map().group(*group);
        let info = entry.and_then(|entry| entry.replicas.iter().find(|info| info.replica.0 == to.0));
        let reached = control.reached.get(group);
        // A try that is repeated may be for a replica that has gone meanwhile.
        let is_reached = |info: &ReplicaInfo| reached.is_some_and(|reached| reached.contains(&info.node));
        if !info.is_none_or(is_reached) {
            self.fail("transfer", format!("n{node} transfers {group} to {to}, which it does not reach"));
        }
    }

    /// A node that was told to stop has done so in time.
    pub fn check_stops(&mut self) {
        let late = self.nodes.iter().position(|each| {
            let stop = each.process.control.stop.as_ref();
            let since_pause = self.now.saturating_sub(each.paused_until);
            let is_late = |stop: &Stop| stop.until + STOPPED_WITHIN < each.clock.local(self.now);
            each.up && since_pause > STOPPED_WITHIN.as_nanos() as Nanos && stop.is_some_and(is_late)
        });
        if let Some(node) = late {
            self.fail("stop", format!("n{node} was told to stop, and goes on"));
        }
    }
}
