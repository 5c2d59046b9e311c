//! What decides for a node as a whole: which replicas live here, where they have their state from, and, where the
//! directory is led, what comes next in the cluster's topology.
//!
//! Pure: [`Controller::step`] takes the time and an input and returns effects; its driver is `coppice-server`'s control
//! task, or a simulated world. Workers report to it, and it tells them what to host; both are messages, which take
//! their time.

mod adoption;
mod automatic;
pub mod directory_routing;
mod fetches;
mod links;
mod readiness;
mod replicas;
pub mod routing;
mod step;
#[cfg(test)]
mod tests;
mod topology;
mod transfer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use adoption::ClusterState;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_ordering::Time;
pub use readiness::{HeardReplicas, reasons_against_readiness};
pub use step::{Effect, FetchId, Input, RecoveredReplica, VerbId};
pub use transfer::{Reached, TransferId, TransferOutcome};

use crate::access::Users;
use crate::bootstrap::first_directory;
use crate::incarnation::fence::Fence;
use crate::machine::Machine;
use crate::replica_manager::ReplicaManager;
use crate::settings::ClusterSettings;
use crate::worker::{self, Report, Splits};

/// How often it looks whether something is missing here.
const LOOK: Duration = Duration::from_millis(500);

/// The same while nothing was missing.
const LOOK_CALM: Duration = Duration::from_secs(1);

/// While a node waits for its first map it asks this often, so that a cluster is ready soon after `init`.
const LOOK_FIRST: Duration = Duration::from_millis(20);

/// See the module.
pub struct Controller {
    workers: usize,
    /// None: this process belongs to no cluster yet.
    node: Option<NodeId>,
    fence: Fence,
    map: Arc<PartitionMap>,
    known: adoption::Known,
    links: links::Links,
    /// Who leads each group, as its replica here knows.
    leaders: step::ByGroup<NodeId>,
    replica_manager: ReplicaManager,
    /// Replicas that go, until their checkpoints are deleted: no new one of their groups begins meanwhile.
    leaving: step::ByGroup<replicas::Removal>,
    /// Splits of the replicas here, as far as their workers have told, and as they were told in turn.
    splits: step::ByGroup<Splits>,
    fetches: fetches::Fetches,
    topology: topology::Topology,
    transfers: transfer::Transfers,
    looks_at: Time,
    now: Time,
    effects: Vec<Effect>,
}

impl Controller {
    /// Of a node with so many workers.
    pub fn new(workers: usize) -> Controller {
        Controller {
            workers,
            node: None,
            fence: Fence::default(),
            map: Arc::default(),
            known: adoption::Known::default(),
            links: links::Links::default(),
            leaders: Default::default(),
            replica_manager: ReplicaManager::default(),
            leaving: Default::default(),
            splits: Default::default(),
            fetches: fetches::Fetches::default(),
            topology: topology::Topology::default(),
            transfers: transfer::Transfers::default(),
            looks_at: Time::ZERO,
            now: Time::ZERO,
            effects: Vec::new(),
        }
    }

    /// The newest map that it was told.
    pub fn map(&self) -> &Arc<PartitionMap> {
        &self.map
    }

    /// What this node knows of what the directory holds.
    pub fn cluster_state(&self) -> ClusterState {
        self.known.state(&self.map)
    }

    /// The cluster's settings.
    pub fn settings(&self) -> &ClusterSettings {
        &self.known.settings
    }

    /// The replicas of this node.
    pub fn replicas(&self) -> &ReplicaManager {
        &self.replica_manager
    }

    /// What the other nodes make of this process.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// When [`Input::Tick`] is next wanted.
    pub fn deadline(&self) -> Time {
        let looks = self.looks_at.min(self.topology.deadline());
        [self.transfers.deadline(), self.fence.deadline()].into_iter().flatten().fold(looks, Time::min)
    }

    /// The only way in.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        std::mem::swap(&mut self.effects, effects);
        match input {
            Input::Tick => self.on_tick(),
            Input::Identity { node, kept, seeds } => self.on_identity(node, kept.as_deref(), &seeds),
            Input::Map(map) => self.use_if_newer(&map),
            Input::Adopt(state) => self.adopt(&state.map, &state.settings, &state.users),
            Input::Recovered(recovered) => self.restart(*recovered),
            Input::Restored { seeds, copy } => self.on_restored(seeds, copy),
            Input::LetIn(node) => self.change_fence(|fence| fence.let_in(node)),
            Input::IsCopy { by, text } => self.on_found_out(by, text),
            Input::Founded(directory) => {
                for (_, node, address) in &directory {
                    self.links.link(self.node, *node, address, &mut self.effects);
                }
                self.want(&first_directory(&directory));
            }
            Input::Report(report) => self.on_report(report),
            Input::CreateDurable(group, me) => self.replica_manager.create_is_durable(group, me),
            Input::RemovalDurable(group) => self.effects.push(Effect::DeleteCheckpoints(group)),
            Input::Offered { fetch, kept, version } => self.on_offered(fetch, &kept, version),
            Input::Fetched(fetch, loaded) => self.on_fetched(fetch, loaded),
            Input::Deleted(group) => {
                self.leaving.remove(&group);
                self.start_missing();
            }
            Input::View(view) => self.on_view(&view),
            Input::Decided(command, reply) => self.on_decided(&command, reply.as_ref()),
            Input::Assigned(node, outcome) => self.on_assigned(node, outcome),
            Input::LeadersTold(leaders) => self.on_leaders_told(leaders),
            Input::Transfer { transfer, partition, to, within, reached } => {
                let (transfers, mut context) = self.transfers();
                transfers.begin(transfer, (partition, to), within, &reached, &mut context);
            }
            Input::Stop { within, led } => {
                let longest = self.known.settings.leader_transfer_timeout;
                let (transfers, mut context) = self.transfers();
                transfers.stop(within, led, longest, &mut context);
            }
            Input::Verb { verb, request, view } => self.on_verb(verb, request, view),
            Input::Identified(verb, found) => self.on_identified(verb, found),
            Input::Median(verb, median) => self.on_median(verb, median),
        }
        self.forget_removed();
        self.release_parents();
        let (transfers, mut context) = self.transfers();
        transfers.go_on(&mut context);
        std::mem::swap(&mut self.effects, effects);
    }

    /// This process is that node, and kept this for its start. Its map comes later: the replicas here begin first.
    /// `init` numbered the first nodes in the order of the seeds.
    fn on_identity(&mut self, node: NodeId, kept: Option<&ClusterState>, seeds: &[String]) {
        self.begin(node);
        self.known.begin(kept, self.workers, &mut self.effects);
        for (other, seed) in (1..).map(NodeId).zip(seeds) {
            self.links.link(self.node, other, seed, &mut self.effects);
        }
    }

    /// Uses what another node or the directory here says, unless that is older. Settings and users come before the map:
    /// whoever meets a node that knows its map meets the users of that map.
    fn adopt(&mut self, map: &PartitionMap, settings: &BTreeMap<String, String>, users: &Users) {
        if !self.is_outdated(map) {
            self.known.adopt(settings, users, self.workers, &mut self.effects);
            self.use_if_newer(map);
        }
    }

    fn use_if_newer(&mut self, map: &PartitionMap) {
        if !self.is_outdated(map) && map.version != self.map.version {
            self.use_map(Arc::new(map.clone()));
        }
    }

    fn is_outdated(&self, map: &PartitionMap) -> bool {
        map.check().is_err() || map.version < self.map.version && !mutant!(older_map_counts)
    }

    fn on_tick(&mut self) {
        if self.looks_at <= self.now {
            self.look();
        }
        if self.topology.deadline() <= self.now {
            self.drive();
        }
        self.end_fence();
    }

    /// A replica here has learned who leads its group.
    fn on_leader(&mut self, group: PartitionId, leader: Option<NodeId>) {
        match leader {
            Some(leader) => _ = self.leaders.insert(group, leader),
            None => _ = self.leaders.remove(&group),
        }
        if group == PartitionId::DIRECTORY {
            self.drive();
        }
    }

    fn transfers(&mut self) -> (&mut transfer::Transfers, transfer::TransferContext<'_>) {
        let context = transfer::TransferContext {
            now: self.now,
            own: self.node,
            map: &self.map,
            leaders: &self.leaders,
            workers: self.workers,
            effects: &mut self.effects,
        };
        (&mut self.transfers, context)
    }

    fn on_report(&mut self, report: Report) {
        match report {
            Report::Led(group, leader) => self.on_leader(group, leader),
            Report::Directory(state) => self.on_directory(state),
            Report::NeedSnapshot { group, held, from, instance } => self.fetch_newer(group, held, from, instance),
            Report::Held { asked, group, is_held } => self.on_held(asked, group, is_held),
            Report::Forked { group, me, led, mark } => self.on_forked((group, me), led, Machine::forks(&mark)),
            Report::Dropped(group) => self.on_dropped(group),
            Report::Saved(group) => self.replica_manager.saved(group),
            Report::Dismissed(group) => self.remove(group),
            Report::Released(version) => self.on_released(version),
        }
    }

    /// Whether something is missing here: replicas that are to run, what children need, the map.
    fn look(&mut self) {
        self.ask_for_states();
        self.save_children();
        self.start_missing();
        // A replica of the directory that knows no leader may not know either where those are that took others' places:
        // it could not even answer their candidate (protocol.md 1.5).
        let follows = self.leaders.contains_key(&PartitionId::DIRECTORY);
        let is_told = follows && self.replica_manager.running().contains_key(&PartitionId::DIRECTORY);
        if self.node.is_some() && !is_told && !mutant!(directory_asks_nobody) {
            self.effects.push(Effect::AskForMap);
        }
        let wait = match self.map.version.0 {
            0 => LOOK_FIRST,
            _ if is_told && self.is_complete() => LOOK_CALM,
            _ => LOOK,
        };
        self.looks_at = self.now + wait;
    }

    /// For the worker of a group.
    fn tell_owner(&mut self, group: PartitionId, input: worker::Input) {
        self.effects.push(Effect::Worker(worker::owner(group, self.workers), input));
    }
}
