//! Replicas as a worker hosts them: from when on, until when, who leads them, and which other nodes live.

use std::sync::Arc;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::{Config, Instance, ReplicaId, Settings, Time};

use super::{Effect, Group, Message, Note, Report, Worker, WorkerSettings};
use crate::failure_detector::LastHeard;
use crate::multicast::message::leader_learned;
use crate::replica::{self, Replica};
use crate::replica_manager::Start;

impl Worker {
    /// The settings that all groups share; none: no group is here, and there is nothing to watch.
    pub(super) fn settings(&self) -> Option<&Settings> {
        self.groups.values().next().map(|group| group.replica.paxos().settings())
    }

    /// Tells groups of lost nodes, once for all of them: some rest (protocol.md 1.3).
    pub(super) fn on_heard(&mut self, fresh: Vec<NodeId>, heard: Vec<(NodeId, LastHeard)>) {
        let (now, Some(settings)) = (self.now, self.settings().cloned()) else { return };
        // Behind a new connection the others doubt this node until they hear it.
        let mut lost: Vec<(NodeId, Time)> = fresh.into_iter().map(|node| (node, now)).collect();
        for (node, heard) in heard {
            lost.extend(self.failure_detector.look(node, heard, &settings, now).map(|since| (node, since)));
        }
        for (node, since) in lost.into_iter().filter(|_| !mutant!(lost_nodes_untold)) {
            self.tell(node, |peer| replica::Input::Lost { peer, since });
        }
    }

    /// Replicas here and those to come go by these.
    pub(super) fn apply_settings(&mut self, settings: Arc<WorkerSettings>) {
        self.groups.values_mut().for_each(|group| settings.apply(&mut group.replica));
        self.coordinator.apply_settings(settings.coordinator.clone());
        self.parked.set_wait(settings.responder_connect_timeout);
        self.cluster.settings = settings;
        self.apply_tuning();
    }

    /// A replica begins here, or goes on after a restart.
    pub(super) fn start(&mut self, start: Start, seed: u64, incarnation: u64) {
        let Start { group, me, create, recovered, machine, snapshot, campaign_first, .. } = start;
        let settings = if mutant!(settings_of_before) { Arc::default() } else { Arc::clone(&self.cluster.settings) };
        let (configuration, nodes) = (create.configuration(), create.nodes().collect());
        let config =
            Config { id: me, configuration, seed, incarnation, settings: settings.group.clone(), campaign_first };
        let logged_bytes = recovered.logged_bytes() as u64;
        let (executing, mut effects) = (settings.executing, Vec::new());
        let mut replica =
            Replica::recover(group, config, recovered, machine, snapshot, executing, self.now, &mut effects);
        settings.apply(&mut replica);
        if !replica.paxos().has_rounds_left() {
            self.effects.push(Effect::Note(group, Note::HasNoRounds(me, replica.paxos().promised())));
        }
        let mut hosted = Group::new(replica, nodes);
        hosted.replay = (snapshot, hosted.replica.executor().due());
        hosted.checkpoints.logged_bytes = logged_bytes;
        self.host(hosted, effects);
    }

    fn host(&mut self, mut group: Group, mut effects: Vec<replica::Effect>) {
        let id = group.replica.group();
        group.learn_places(&self.cluster.map);
        self.groups.insert(id, group);
        self.turn.stepped.push(id);
        self.carry_out(id, &mut effects);
        // What the checkpoint holds was decided before: no effect tells of it.
        self.tell_directory(id);
        self.send_if_sealed(id);
    }

    pub(super) fn drop_group(&mut self, id: PartitionId) {
        if let Some(group) = self.groups.remove(&id) {
            self.retire(id, group);
        }
        self.effects.push(Effect::Controller(Report::Dropped(id)));
    }

    pub(super) fn retire(&mut self, id: PartitionId, mut group: Group) {
        if id == PartitionId::DIRECTORY {
            self.end_coordinating();
        }
        self.effects.push(Effect::Controller(Report::Led(id, None)));
        let mut effects = Vec::new();
        group.replica.retire(&mut effects);
        for effect in effects {
            if let replica::Effect::Reply { origin, reply } = effect {
                self.reply(id, origin, reply);
            }
        }
    }

    pub(super) fn on_map(&mut self, map: Arc<PartitionMap>) {
        self.groups.values_mut().for_each(|group| group.learn_places(&map));
        self.cluster.map = map;
        let is_new =
            |group: &Group, id| leader_learned(group.leader_node(), self.cluster.leaders.get(id).copied()).is_some();
        let learned = self.groups.iter().filter(|(id, group)| is_new(group, *id)).map(|(&id, _)| id);
        let learned: Vec<PartitionId> = learned.collect();
        learned.into_iter().for_each(|id| self.on_role(id));
    }

    /// The replica here leads, or follows somebody else.
    pub(super) fn on_role(&mut self, id: PartitionId) {
        let leader = self.groups.get(&id).and_then(|group| group.leader_node());
        self.effects.push(Effect::Leader(id, leader));
        self.on_leader(id, leader);
        let coordinates = self.owner(PartitionId::DIRECTORY);
        if coordinates != self.index {
            self.effects.push(Effect::Worker(coordinates, Message::Led(id)));
        }
        self.effects.push(Effect::Controller(Report::Led(id, leader)));
    }

    /// Who leads `group` is known, or not known any more.
    pub(super) fn on_leader(&mut self, group: PartitionId, leader: Option<NodeId>) {
        match leader {
            Some(leader) => _ = self.cluster.leaders.insert(group, leader),
            None => _ = self.cluster.leaders.remove(&group),
        }
        self.resend(group);
    }

    pub(super) fn tell_directory(&mut self, id: PartitionId) {
        let Some(group) = self.groups.get(&id) else { return };
        if let Some(state) = group.replica.decided_directory() {
            self.effects.push(Effect::Controller(Report::Directory(state)));
        }
    }

    pub(super) fn on_need_snapshot(&mut self, id: PartitionId, from: ReplicaId, instance: Instance) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(&from) = group.nodes.get(&from) else { return };
        if !std::mem::replace(&mut group.installing, true) {
            let held = group.replica.decided_range().unwrap_or_default();
            self.effects.push(Effect::Controller(Report::NeedSnapshot { group: id, held, from, instance }));
        }
    }

    /// Tells each group of its replica on `node`.
    pub(super) fn tell(&mut self, node: NodeId, input: impl Fn(ReplicaId) -> replica::Input) {
        let all =
            self.groups.iter().flat_map(|(&id, group)| group.nodes.iter().map(move |(&peer, &at)| (id, peer, at)));
        let there: Vec<_> = all.filter(|(_, _, at)| *at == node).map(|(id, peer, _)| (id, peer)).collect();
        for (id, peer) in there {
            self.step_group(id, input(peer));
        }
    }
}

/// A replica of this group begins, the first of so many.
#[cfg(test)]
pub(super) fn begins(group: PartitionId, voters: u32) -> super::Input {
    use coppice_client::map::{Entry, ReplicaInfo, Role};
    use coppice_client::wire;

    let info = |id| ReplicaInfo { replica: wire::ReplicaId(id), node: NodeId(id), role: Role::Voter };
    let entry = Entry { partition: group, replicas: (1..=voters).map(info).collect(), ..Entry::default() };
    let create = crate::replica_manager::CreateRequest::of(&entry);
    let start = Box::new(Start::founding(group, ReplicaId(1), create, true));
    super::Input::Start { start, seed: 1, incarnation: 1 }
}

/// A worker with the only replica of this group, which leads.
#[cfg(test)]
pub(super) fn leads_alone(group: PartitionId) -> Worker {
    let (mut worker, mut effects) = (Worker::new(0, 1), Vec::new());
    worker.step(Time::ZERO, begins(group, 1), &mut effects);
    while !worker.groups[&group].replica.is_leading() {
        let is_durable = |effect: &Effect| match effect {
            Effect::Persist { group, lsn, .. } => Some(super::Input::Persisted { group: *group, lsn: *lsn }),
            _ => None,
        };
        let durable = effects.drain(..).filter_map(|effect| is_durable(&effect)).last();
        let at = worker.deadline().unwrap_or_default().max(worker.now);
        worker.step(at, durable.unwrap_or(super::Input::Tick), &mut effects);
    }
    worker
}
