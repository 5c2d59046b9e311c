//! The workers of a node beside each other: what each has yet to hear of the world, and what they tell each other,
//! which takes its time.

use std::collections::BTreeSet;

use coppice_client::wire::{ClientId, NodeId, PartitionId};
use coppice_core::checkpoint_due::{self, Replays};
use coppice_core::replica::QueryPart;
use coppice_core::worker::{Input, Message, Resources, Storage};
use coppice_ordering::ReplicaId;

use super::control::own;
use super::events::{Event, Mail};
use super::plan::{MS, Nanos};
use super::processes::places;
use super::store::CLUSTER;
use super::world::World;

/// A worker is told of the log this often.
const STORAGE_INTERVAL: Nanos = 20 * MS;

/// What an instance takes of the log, about: checkpoints are drawn in instances.
const INSTANCE_BYTES: u64 = 256;

impl World {
    /// Nodes that answer a node, as it can know: of the directory's replicas also from their silence.
    pub fn answering(&self, node: usize) -> BTreeSet<NodeId> {
        let directory = self.nodes[node].group(PartitionId::DIRECTORY);
        let silent = directory.into_iter().flat_map(|directory| directory.replica.paxos().silent_peers());
        let at = |peer: ReplicaId| places(&self.map, PartitionId::DIRECTORY).find(|(replica, _)| *replica == peer);
        let silent: BTreeSet<NodeId> = silent.filter_map(at).map(|(_, at)| own(at)).collect();
        let answers = |at: usize| self.nodes[at].up && !self.net.is_silent(node, at, self.now);
        let all = (0..self.nodes.len()).filter(|&at| at == node || answers(at) && !silent.contains(&own(at)));
        all.map(own).collect()
    }

    /// What a worker has yet to hear of the world.
    pub fn facts(&self, node: usize, worker: usize) -> Vec<Input> {
        let each = &self.nodes[node];
        let mut facts = vec![Input::Identity(own(node), CLUSTER), Input::MaySpeak(each.process.control.may_speak)];
        let others = (0..self.nodes.len()).filter(|&other| other != node);
        let answers = |other: usize| self.nodes[other].up && !self.net.is_silent(node, other, self.now);
        let room = Resources {
            log_is_stuck: each.process.log_is_stuck,
            disk_is_full: each.store.is_full(),
            full_nodes: each.process.full_nodes.clone(),
            ..Resources::default()
        };
        let answers = others.map(|other| (own(other), answers(other)));
        facts.extend(each.process.workers[worker].news(answers, Some(&each.process.control.leaders), room));
        facts
    }

    /// Something comes to a worker from its own node, after a while; each queue keeps its order.
    pub fn mail(&mut self, node: usize, worker: usize, mail: Mail) {
        let is_for_clients = match &mail {
            Mail::Message(message) => message.is_for_clients(),
            Mail::Look | Mail::Control(_) | Mail::Start(_) => false,
            Mail::Packs(_) => true,
        };
        let after = self.net.between_threads();
        let boot = self.nodes[node].boot;
        let last = self.nodes[node].process.mailed.entry((worker, is_for_clients)).or_default();
        *last = (self.now + after).max(*last);
        let at = *last;
        self.schedule(at, Event::Mail { node, boot, worker, mail });
    }

    /// It is there; a queue that is full has lost it.
    pub fn on_mail(&mut self, node: usize, worker: usize, mail: Mail) {
        match mail {
            Mail::Message(message) if !message.must_arrive() && self.net.overflows() => {
                self.coverage.note("worker: a queue between workers is full");
                // Whoever sent it hears so at once; here it is the one that holds the connection, or any other.
                let from = match &message {
                    Message::Request { origin, .. } | Message::Query { origin, .. } => origin.worker(),
                    _ => None,
                };
                let Some(from) = from else { return };
                self.input(node, from, Input::Undelivered(message));
            }
            Mail::Message(message) => {
                if let Message::Multicast(multicast) = &message {
                    let leading = self.nodes[node].process.workers[worker].coordinator().leading();
                    multicast.iter().for_each(|message| self.coverage.multicast(&message.body, leading));
                }
                self.coverage.note("worker: tells another one of its node");
                self.input(node, worker, Input::Worker(message));
            }
            Mail::Start(start) => self.host_replica(node, *start),
            Mail::Control(input) => self.on_control(node, worker, input),
            Mail::Look => self.input(node, worker, Input::TurnEnd),
            Mail::Packs(connection) => self.hand_on((worker, connection)),
        }
    }

    /// What the controller tells a worker.
    fn on_control(&mut self, node: usize, worker: usize, input: Input) {
        match &input {
            Input::Drop(group) => _ = self.nodes[node].process.watched.remove(group),
            Input::Snapshot(group, Some(loaded)) => self.before_install(node, *group, loaded),
            Input::Snapshot(_, None) => self.coverage.note("snapshot: does not come in time"),
            _ => {}
        }
        self.input(node, worker, input);
    }

    /// Tells a worker of the log and the disk, now and then.
    pub fn tell_storage(&mut self, node: usize, worker: usize) {
        let now = self.now;
        let each = &mut self.nodes[node];
        let due = each.process.storage_at.entry(worker).or_insert(now);
        if *due > now {
            return;
        }
        *due = now + STORAGE_INTERVAL;
        if each.process.workers[worker].groups().values().any(|group| group.checkpoints.splits.await_children()) {
            self.coverage.note("checkpoint: waits for that of a child");
        }
        let groups = self.nodes[node].process.workers.iter().flat_map(|worker| worker.groups());
        let replays = groups.map(|(&group, hosted)| (group, hosted.checkpoints.logged_bytes, hosted.checkpoints.bytes));
        let sizes = checkpoint_due::Storage {
            log_bytes_setting: self.plan.server.snapshot_instances.saturating_mul(INSTANCE_BYTES),
            replays: Replays::of(replays),
            full: self.nodes[node].store.is_full(),
            room: u64::MAX,
            ..checkpoint_due::Storage::default()
        };
        self.input(node, worker, Input::Storage(Storage { sizes, pins: Vec::new() }));
    }

    /// A part for a client: it may be connected, to any worker.
    pub fn give_part(&mut self, node: usize, worker: usize, part: Box<QueryPart>) {
        match self.lines.newest(node, part.partition_query.client) {
            Some(line) => self.stream_part(line, *part),
            None => {
                self.coverage.note("query: a part waits for its client to connect");
                self.input(node, worker, Input::Unclaimed(part));
            }
        }
    }

    /// A client said hello to a worker: parts may wait for it.
    pub fn greeted(&mut self, node: usize, worker: usize, client: ClientId) {
        let before = self.nodes[node].process.workers[worker].parked();
        self.input(node, worker, Input::Greeted(client));
        let found = before.saturating_sub(self.nodes[node].process.workers[worker].parked());
        self.coverage.add("query: a part finds its client", found as u64);
    }
}
