//! Controllers of nodes: what they hear, and what they want, over the simulated disk and network. What a controller and
//! the workers of its node tell each other takes its time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::PartitionMap;
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::access::Users;
use coppice_core::controller::{ClusterState, Controller, Effect, Input, TransferOutcome};
use coppice_core::machine::directory::DirectoryCommand;
use coppice_core::replay::Entry;
use coppice_core::request::{Origin, Reply, Request};
use coppice_core::settings::ClusterSettings;
use coppice_core::worker::{self, Report};
use coppice_server::log::Append;

use super::events::{ControllerInput, Event, Mail};
use super::fingerprint;
use super::plan::{MS, Nanos};
use super::world::World;

/// Maps that a node keeps on its disk.
const MAPS_KEPT: usize = 2;

/// A leader that was asked to transfer may take so long; then a change goes on without.
const LEADER_TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

/// The directory has so long to decide what a controller asked for.
const DECIDED_WITHIN: Nanos = 2_000 * MS;

pub fn own(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

/// Inputs that tell of something rare.
enum Rare {
    Forked,
    Held,
    Fetched,
    View,
}

impl Rare {
    fn of(input: &Input) -> Option<Rare> {
        match input {
            Input::Report(Report::Forked { .. }) => Some(Rare::Forked),
            Input::Report(Report::Held { is_held: true, .. }) => Some(Rare::Held),
            Input::Fetched(..) => Some(Rare::Fetched),
            Input::View(_) => Some(Rare::View),
            _ => None,
        }
    }

    /// What was met, by what the controller wants then.
    fn met(self, effects: &[Effect], controller: &Controller) -> &'static str {
        let start = effects.iter().find_map(|effect| match effect {
            Effect::Start(start) => Some(start),
            _ => None,
        });
        match (self, start) {
            (Rare::Forked, Some(_)) => "split: a child begins",
            (Rare::Forked, None) => "split: executed again, and its child is known",
            (Rare::Held, _) => "join: waits for a split to be executed here",
            (Rare::Fetched, Some(start)) if start.is_new => "join: begins with a snapshot",
            (Rare::Fetched, Some(_)) => "start: goes on with a state from elsewhere",
            (Rare::Fetched, None) => "snapshot: a fetch has ended",
            (Rare::View, _) if controller.driven().is_none() => "change: who looked leads no more",
            (Rare::View, _) => "change: the leader of the directory looks",
        }
    }
}

impl World {
    /// Tells a node's controller something, and carries out what it wants. A step never begins within another one.
    pub fn tell(&mut self, node: usize, input: Input) {
        self.nodes[node].process.control.inputs.push_back(input);
        if std::mem::replace(&mut self.nodes[node].process.control.is_stepping, true) {
            return;
        }
        let boot = self.nodes[node].boot;
        while self.nodes[node].boot == boot
            && let Some(input) = self.nodes[node].process.control.inputs.pop_front()
        {
            self.step_controller(node, input);
        }
        if self.nodes[node].boot == boot {
            self.nodes[node].process.control.is_stepping = false;
            self.begin_write(node, false);
            self.arm_controller(node);
        }
    }

    fn step_controller(&mut self, node: usize, input: Input) {
        let (now, boot, asked) = (self.now, self.nodes[node].boot, fingerprint::show_told(&input));
        let rare = Rare::of(&input);
        let operates = matches!(input, Input::Report(Report::Led(PartitionId::DIRECTORY, _)) | Input::Tick);
        let mut effects = Vec::new();
        let local = self.nodes[node].clock.local(now);
        self.nodes[node].process.control.controller.step(local, input, &mut effects);
        if self.nodes[node].process.control.controller.driven().is_none() {
            self.nodes[node].process.control.moved.clear();
        }
        rare.into_iter()
            .for_each(|rare| self.coverage.note(rare.met(&effects, &self.nodes[node].process.control.controller)));
        let wanted: Vec<String> = effects.iter().map(fingerprint::show_wanted).collect();
        self.trace.step(now, &(node, &asked, &wanted), |line| {
            *line += &format!("n{node} {asked} => {}", wanted.join(", "));
        });
        for effect in effects {
            if self.nodes[node].boot != boot || !self.nodes[node].up || self.is_doomed(node) {
                return;
            }
            self.perform(node, effect);
        }
        if operates && self.nodes[node].boot == boot {
            self.operate_directory(node);
        }
    }

    /// Whether the node ends before this effect.
    pub fn is_doomed(&mut self, node: usize) -> bool {
        match &mut self.nodes[node].crash.doom {
            Some((0, down)) => {
                let down = *down;
                self.coverage.note("crash: between two effects of a step");
                self.crash(node, down);
                true
            }
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    /// What `init` does, where the directory has a leader and holds nothing; then what `config set` does, until it
    /// holds the settings that are asked for.
    pub fn operate_directory(&mut self, node: usize) {
        let Some(state) = self.nodes[node].process.control.controller.driven().cloned() else { return };
        let settings = self.settings();
        if state.map.version.0 == 0 {
            return self.decide(node, DirectoryCommand::Create { map: (*self.asked.first_map).clone(), settings });
        }
        for (key, value) in settings.into_iter().filter(|(key, value)| state.settings.get(key) != Some(value)) {
            self.decide(node, DirectoryCommand::Set { key, value });
        }
    }

    /// The cluster's settings, as they are asked for.
    fn settings(&self) -> BTreeMap<String, String> {
        let (replicas, leader_transfer_timeout) = (self.asked.replicas as u32, LEADER_TRANSFER_TIMEOUT);
        let (election_timeout, heartbeat_interval) = (self.plan.settings.election_timeout, Duration::from_millis(1));
        let settings = ClusterSettings {
            replicas,
            leader_transfer_timeout,
            election_timeout,
            heartbeat_interval,
            ..Default::default()
        };
        let pair = |key: &str| Some((key.to_owned(), settings.get(key)?));
        let known = ["replicas", "leader_transfer_timeout", "election_timeout", "heartbeat_interval"];
        // Whoever heals switches off what the cluster begins by itself.
        let healed = |value: &str| if self.faults.healed { "off".to_owned() } else { value.to_owned() };
        let balance = self.plan.balance.settings.iter().map(|(key, value)| (key.clone(), healed(value)));
        known.into_iter().filter_map(pair).chain(balance).collect()
    }

    /// What a node whose newest map is this one kept for its start.
    pub fn kept_state(&self, map: &PartitionMap) -> ClusterState {
        ClusterState { map: map.clone(), settings: self.settings(), users: Users::default() }
    }

    /// Something for a controller, from a thread of its node; what a thread says stays in order.
    pub fn report(&mut self, node: usize, thread: usize, input: Input) {
        let after = self.net.between_threads();
        let boot = self.nodes[node].boot;
        let last = self.nodes[node].process.control.reported.entry(thread).or_default();
        *last = (self.now + after).max(*last);
        let at = *last;
        self.schedule(at, Event::Control { node, boot, input: ControllerInput(input) });
    }

    /// The controller hears this behind everything that its workers have said so far: whoever asks them first does.
    pub fn report_last(&mut self, node: usize, input: Input) {
        let each = &self.nodes[node];
        let at = each.process.control.reported.values().copied().fold(self.now, Nanos::max);
        let boot = each.boot;
        self.schedule(at, Event::Control { node, boot, input: ControllerInput(input) });
    }

    /// Orders the controller's next tick.
    pub fn arm_controller(&mut self, node: usize) {
        let now = self.now;
        let each = &mut self.nodes[node];
        let at = each.clock.when(each.process.control.controller.deadline()).max(now);
        if each.up && each.process.control.tick_at.is_none_or(|before| at < before) {
            each.process.control.tick_at = Some(at);
            let boot = each.boot;
            self.schedule(at, Event::ControlTick { node, boot, at });
        }
    }

    /// It is time.
    pub fn on_control_tick(&mut self, node: usize, at: Nanos) {
        if self.nodes[node].process.control.tick_at == Some(at) {
            self.nodes[node].process.control.tick_at = None;
            self.tell(node, Input::Tick);
            if self.nodes[node].up {
                self.arm_controller(node);
            }
        }
    }
}

/// What a controller wants.
impl World {
    fn perform(&mut self, node: usize, effect: Effect) {
        match effect {
            // Workers go by the plan's settings, which come to them at drawn times.
            Effect::Worker(_, worker::Input::Settings(_)) => {}
            Effect::Worker(worker, input) => {
                if matches!(input, worker::Input::CheckpointNow(_)) {
                    self.coverage.note("checkpoint: the first one of a child");
                }
                self.check_transfer(node, &input);
                self.mail(node, worker, Mail::Control(input));
            }
            Effect::MaySpeak(may) => self.nodes[node].process.control.may_speak = may,
            Effect::Unreached(_) => self.on_unreached(node),
            Effect::WriteCopyMark { by, text } => self.on_found_out(node, by, &text),
            Effect::Log(entry) => self.log(node, *entry),
            Effect::Start(start) => {
                let owner = self.nodes[node].owner(start.group);
                self.mail(node, owner, Mail::Start(start));
            }
            Effect::StateLost(group, lost) => {
                let what = format!("n{node}.{group}: trimmed up to {}, and no checkpoint reaches that far", lost.0);
                self.fail("recovery", what);
            }
            Effect::Removed(group, _) => {
                self.coverage.note("replica: removed from a node");
                self.nodes[node].process.control.leaders.remove(&group);
            }
            Effect::DeleteCheckpoints(group) => self.delete_checkpoints(node, group),
            Effect::Map(map) => self.use_map(node, &map),
            // The network knows where nodes are; there are no users, and all settings are known.
            Effect::Link(..) | Effect::Unlink(_) | Effect::Access { .. } => {}
            Effect::SettingsUnknown | Effect::FeatureLevel(_) => {}
            Effect::ChangeBegun(..) | Effect::ChangeEnded(..) => {}
            Effect::AskForMap => {
                let (from, boot) = (self.draws.world.below(self.nodes.len()), self.nodes[node].boot);
                let at = self.now + self.net.delay();
                self.coverage.note("map: asked of another node");
                self.schedule(at, Event::MapAsked { from, node, boot });
            }
            Effect::Fetch { fetch, group, from, least } => self.fetch(node, fetch, group, from, least),
            Effect::Admit(fetch, may) => self.on_admitted(node, fetch, may),
            Effect::Survey => {
                let view = self.nodes[node].process.control.controller.driven().cloned();
                let view = Box::new(view.map(|state| self.view(node, &state.map)).unwrap_or_default());
                let (boot, delay) = (self.nodes[node].boot, self.net.delay().min(300 * MS));
                self.schedule(
                    self.now + delay,
                    Event::Control { node, boot, input: ControllerInput(Input::View(view)) },
                );
            }
            Effect::Leaders(leaders) => {
                for (group, leader) in leaders {
                    if self.nodes[node].process.control.leaders.insert(group, leader) != Some(leader) {
                        (0..self.plan.server.workers as usize).for_each(|worker| self.mail(node, worker, Mail::Look));
                    }
                }
            }
            Effect::Tell(nodes, state) => {
                let state = Arc::new(ClusterState::from(&*state));
                for to in nodes.into_iter().map(|to| to.0 as usize - 1) {
                    let (boot, state) = (self.nodes[to].boot, Arc::clone(&state));
                    if let Some(delay) = self.net.send(node, to)[0] {
                        let event = Event::MapTold { node: to, boot, state, leaders: Vec::new() };
                        self.schedule(self.now + delay, event);
                    }
                }
            }
            Effect::Decide(command) => {
                let each = &mut self.nodes[node];
                each.newest_stream += 1;
                let stream = each.newest_stream;
                each.process.control.deciding.insert(stream, (*command).clone());
                let boot = each.boot;
                self.schedule(self.now + DECIDED_WITHIN, Event::Undecided { node, boot, stream });
                self.ask_directory(node, *command, stream);
            }
            Effect::Configure { leader, partition, expected, configuration } => {
                let to = leader.0 as usize - 1;
                self.coverage.note("change: a configuration is asked for");
                let delay = if to == node { Some(0) } else { self.net.send(node, to)[0] };
                if let Some(delay) = delay {
                    let event = Event::Configure { node: to, partition, expected, configuration };
                    self.schedule(self.now + delay, event);
                }
            }
            Effect::TransferLeader { leader, partition, to } => {
                self.coverage.note("change: a leader is asked to transfer first");
                let leader = leader.0 as usize - 1;
                let delay = if leader == node { Some(0) } else { self.net.send(node, leader)[0] };
                if let Some(delay) = delay {
                    self.schedule(self.now + delay, Event::TransferLeader { node: leader, partition, to });
                }
            }
            Effect::TransferEnded(_, outcome) => self.coverage.note(match outcome {
                TransferOutcome::Done(_) => "transfer: done",
                TransferOutcome::NotLeader => "transfer: somebody else leads",
                TransferOutcome::Failed(_) => "transfer: not begun, or not in time",
            }),
            Effect::Stopped => self.on_stopped(node),
            Effect::Assign(new, state) => {
                let (map, to) = (Arc::new(state.map.clone()), new.0 as usize - 1);
                match self.net.send(node, to)[0] {
                    Some(delay) => self.schedule(self.now + delay, Event::Assign { node: to, map, by: node }),
                    None => self.on_assigned(node, new, Err("it does not answer".into())),
                }
            }
            Effect::Median { verb, partition, leader, by_load } => {
                let median = self.median(leader.0 as usize - 1, partition, by_load);
                self.tell(node, Input::Median(verb, median));
            }
            Effect::Announce { what, .. } => self.on_announced(node, &what),
            Effect::Answer(_, reply) => self.note_answer(&reply),
            Effect::Begin(_, command, _) => self.decide(node, *command),
            Effect::Identify { verb, address } => {
                let state = self.nodes[node].process.control.controller.driven();
                let found = state.ok_or_else(String::new).and_then(|state| self.identify(state, &address));
                self.tell(node, Input::Identified(verb, found));
            }
        }
    }

    /// A node uses this map, and keeps it for its next start.
    fn use_map(&mut self, node: usize, map: &Arc<PartitionMap>) {
        let kept = &mut self.nodes[node].kept_maps;
        if kept.back().is_none_or(|newest| newest.version < map.version) {
            kept.push_back(Arc::clone(map));
            if kept.len() > MAPS_KEPT {
                kept.pop_front();
            }
        }
    }

    /// Another node asks for the map.
    pub fn on_map_asked(&mut self, from: usize, node: usize, boot: u64) {
        let each = &self.nodes[from];
        if from == node || !each.up || each.paused_until > self.now || !self.net.hears(from, node) {
            return;
        }
        let state = Arc::new(each.process.control.controller.cluster_state());
        let leaders = each.process.control.leaders.clone().into_iter().collect();
        let at = self.now + self.net.delay();
        if self.net.hears(node, from) {
            self.schedule(at, Event::MapTold { node, boot, state, leaders });
        }
    }

    /// The answer comes.
    pub fn on_map_told(&mut self, node: usize, state: Arc<ClusterState>, leaders: Vec<(PartitionId, NodeId)>) {
        self.tell(node, Input::LeadersTold(leaders));
        self.tell(node, Input::Adopt(state));
    }

    /// The controller's entry goes into the log.
    fn log(&mut self, node: usize, entry: Entry) {
        if matches!(entry, Entry::Trimmed { .. }) {
            self.coverage.note("start: the log knows nothing of a snapshot");
        }
        let lazy = Input::once_durable(&entry).is_none();
        self.nodes[node].store.append(Append { entry, lsn: None, lazy });
    }

    /// The checkpoints of a replica that was removed go.
    fn delete_checkpoints(&mut self, node: usize, group: PartitionId) {
        let took = self.draws.disk.below(self.plan.disk.snapshot_max as usize) as Nanos;
        let boot = self.nodes[node].boot;
        self.nodes[node].process.control.deleting.insert(group);
        self.schedule(self.now + took, Event::Deleted { node, boot, group });
    }

    /// The next of its checkpoints goes; the others later.
    pub fn on_deleted(&mut self, node: usize, group: PartitionId) {
        if self.nodes[node].store.delete_checkpoint(group) {
            self.nodes[node].process.control.deleting.remove(&group);
            return self.tell(node, Input::Deleted(group));
        }
        let took = self.draws.acts.below(self.plan.disk.flush_max as usize + 1) as Nanos;
        let boot = self.nodes[node].boot;
        self.schedule(self.now + took, Event::Deleted { node, boot, group });
    }

    /// A process is told its number: durable, then it begins.
    pub fn on_assign(&mut self, node: usize, map: Arc<PartitionMap>, by: usize) {
        self.begin_as(node, map);
        self.on_assigned(by, own(node), Ok(()));
    }

    /// Whoever told a process its number hears what came of it.
    fn on_assigned(&mut self, by: usize, new: NodeId, outcome: Result<(), String>) {
        let (boot, delay) = (self.nodes[by].boot, self.net.delay());
        let input = ControllerInput(Input::Assigned(new, outcome));
        self.schedule(self.now + delay, Event::Control { node: by, boot, input });
    }

    /// Has the directory decide something, if this node leads it.
    pub fn decide(&mut self, node: usize, command: DirectoryCommand) {
        self.ask_directory(node, command, 0);
    }

    fn ask_directory(&mut self, node: usize, command: DirectoryCommand, stream: u32) {
        let request = Request::Directory(Box::new(command));
        let (group, origin) = (PartitionId::DIRECTORY, Origin::Node { worker: 0, number: stream });
        self.mail(node, 0, Mail::Control(worker::Input::Request { group, origin, request }));
    }

    /// The directory has answered the node itself.
    pub fn on_own_reply(&mut self, node: usize, stream: u32, reply: &Reply) {
        if let Some(command) = self.nodes[node].process.control.deciding.remove(&stream) {
            let reply = if let Reply::Directory(reply) = reply { Some(reply.clone()) } else { None };
            self.report(node, 0, Input::Decided(Box::new(command), reply));
        }
    }

    /// It has not answered in time.
    pub fn on_undecided(&mut self, node: usize, stream: u32) {
        if let Some(command) = self.nodes[node].process.control.deciding.remove(&stream) {
            self.tell(node, Input::Decided(Box::new(command), None));
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_core::worker::Report;

    use super::super::plan::Plan;
    use super::super::trace::Trace;
    use super::*;

    /// A seed with leaders lost in the middle of moves: of the directory's three replicas one was away for good, one
    /// had taken another's place, and one lagged behind that, so it did not know where the candidate was whom it had to
    /// answer. It asked nobody, for it had a replica of the directory itself.
    #[test]
    fn a_replica_of_the_directory_that_knows_no_leader_asks_the_others_for_the_map() {
        let asks = |leader: Option<usize>| {
            let mut world = World::new(Plan::of(0), Trace::silent());
            let directory = world.map.directory.as_ref().expect("it is there");
            let node = directory.replicas[0].node.0 as usize - 1;
            world.start(node);
            let leader = leader.map(|next| own((node + next) % world.nodes.len()));
            world.tell(node, Input::Report(Report::Led(PartitionId::DIRECTORY, leader)));
            let before = world.coverage.count("map: asked of another node");
            world.now += 2_000 * MS;
            world.tell(node, Input::Tick);
            world.coverage.count("map: asked of another node") - before
        };
        assert_eq!((asks(Some(1)), asks(None)), (0, 1));
    }
}
