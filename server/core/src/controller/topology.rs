//! Growing and shrinking, as the leader of the directory sees to it: it looks at all nodes, asks [`crate::reshape`]
//! what is next, and has it done (protocol.md 1.5, 8). Whoever leads the directory next goes on from its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coppice_client::map::PartitionMap;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, MapVersion, NodeId, PartitionId, ReshapeRequest, Shape};
use coppice_ordering::Time;

use super::automatic::{AUTOMATIC, Announcement, Automatic, Next};
use super::step::ByGroup;
use super::{Controller, Effect, VerbId};
use crate::machine::directory::{DirectoryCommand, DirectoryReply, DirectoryState, Reshape};
use crate::question::Identified;
use crate::reshape::{
    Candidate, Enlistment, Pace, PendingDecisions, Step, Verdict, View, needs_directory, no_median, steps, verdict,
};

/// Between two looks while something is under way: a move is to be done soon after its learner has caught up.
const LOOK_BUSY: Duration = Duration::from_millis(50);

/// After that time, and the transfer's own, a transfer may be asked for again.
const TRANSFER_MEMORY: Duration = Duration::from_secs(20);

/// What is remembered between looks; nothing that safety rests on.
#[derive(Debug, Default)]
pub(super) struct Topology {
    /// The directory's decided state, if it runs here.
    directory: Option<Arc<DirectoryState>>,
    looks_at: Time,
    /// The nodes are being asked.
    is_looking: bool,
    /// When each group's leader was last asked to transfer its leadership.
    transfers: ByGroup<Time>,
    /// Changes of boundaries whose ticket is released: the directory does not know yet.
    released: BTreeSet<MapVersion>,
    /// Steps that the directory has yet to decide.
    deciding: PendingDecisions,
    /// Nodes that are being told their number.
    assigning: BTreeSet<NodeId>,
    /// Nodes that could not be told their number, and why.
    assign_errors: BTreeMap<NodeId, String>,
    /// Processes that have yet to say who they are.
    candidates: BTreeMap<VerbId, Candidate>,
    /// Splits at the median of this partition, until that is known.
    medians: BTreeMap<VerbId, (PartitionId, Box<ReshapeRequest>, Box<View>)>,
    automatic: Automatic,
}

impl Topology {
    pub(super) fn deadline(&self) -> Time {
        self.looks_at
    }

    /// The directory lives here no more.
    pub(super) fn forget(&mut self) {
        self.directory = None;
    }
}

fn joined(node: NodeId) -> DirectoryCommand {
    DirectoryCommand::Reshape(Reshape::Joined { node })
}

fn leads_no_more() -> AdminReply {
    AdminReply::Failed(AdminError::TimedOut("the directory has just got another leader: ask again".into()))
}

impl Controller {
    /// Whether this node leads the directory.
    pub fn drives(&self) -> bool {
        self.node.is_some() && self.leaders.get(&PartitionId::DIRECTORY).copied() == self.node
    }

    /// What the directory here holds, if this node leads it.
    pub fn driven(&self) -> Option<&Arc<DirectoryState>> {
        self.topology.directory.as_ref().filter(|_| self.drives())
    }

    /// Looks at all nodes, if this one leads the directory.
    pub(super) fn drive(&mut self) {
        self.topology.looks_at = self.now + self.topology.automatic.pace.look;
        if self.driven().is_none_or(|state| state.map.version.0 == 0) {
            return self.topology.automatic.forget();
        }
        if !std::mem::replace(&mut self.topology.is_looking, true) {
            self.effects.push(Effect::Survey);
        }
    }

    pub(super) fn on_directory(&mut self, state: Arc<DirectoryState>) {
        let before = self.topology.directory.replace(Arc::clone(&state));
        if let Some(before) = before.filter(|_| self.drives()) {
            self.tell_changes(&before, &state);
        }
        self.drive();
        self.adopt(&state.map, &state.settings, &state.users);
    }

    /// What has begun and ended from one state of the directory to the next.
    fn tell_changes(&mut self, before: &DirectoryState, state: &DirectoryState) {
        let begun = state.changes.iter().filter(|(id, _)| !before.changes.contains_key(id));
        self.effects.extend(begun.map(|(&id, change)| Effect::ChangeBegun(id, change.clone())));
        let ended = state.ended.iter().filter(|(id, _)| before.ended(*id).is_none());
        self.effects.extend(ended.map(|&(id, outcome)| Effect::ChangeEnded(id, outcome)));
    }

    /// The ticket of a change of boundaries is released.
    pub(super) fn on_released(&mut self, version: MapVersion) {
        if !mutant!(released_unheard) {
            self.topology.released.insert(version);
        }
        self.drive();
    }

    /// Does what is next.
    pub(super) fn on_view(&mut self, view: &View) {
        self.topology.is_looking = !self.drives() && mutant!(look_never_ends);
        let Some(state) = self.driven().cloned() else { return };
        let (now, longest) = (self.now, self.known.settings.leader_transfer_timeout);
        self.topology.transfers.retain(|_, asked| now.since(*asked) < TRANSFER_MEMORY + longest);
        self.topology.released.retain(|version| state.boundary(*version).is_some());
        let mut steps = steps(&state, view, self.known.settings.replicas as usize, &self.tried());
        let released = |&version: &MapVersion| Step::Decide(DirectoryCommand::Reshape(Reshape::Released { version }));
        steps.extend(self.topology.released.iter().map(released));
        let is_calm = steps.is_empty() && state.changes.is_empty() && self.topology.medians.is_empty();
        self.topology.automatic.note(now, &state, view);
        if is_calm {
            self.begin_automatic(&state, view);
        } else {
            self.topology.looks_at = now + LOOK_BUSY;
        }
        self.learn(&state.map, view);
        self.tell_map(&state, view);
        steps.into_iter().for_each(|step| self.take_step(step, &state));
    }

    /// What nobody asked for, where nothing else is to be done.
    fn begin_automatic(&mut self, state: &Arc<DirectoryState>, view: &View) {
        let Topology { automatic, transfers, .. } = &mut self.topology;
        let asked = transfers.keys().copied().collect();
        let Some((next, announcement)) = automatic.next(self.now, (state, view), &self.known.settings, &asked) else {
            return;
        };
        match next {
            Next::Transfer(step) => {
                self.announce(announcement);
                self.take_step(*step, state);
            }
            Next::Ask(request) => self.begin_asked(&request, state, view, announcement),
            Next::Cut { request, partition, by_load } => {
                let Some(leader) = view.led(partition).map(|led| led.leader) else { return };
                self.topology.medians.insert(AUTOMATIC, (partition, request, Box::new(view.clone())));
                self.effects.push(Effect::Median { verb: AUTOMATIC, partition, leader, by_load });
            }
        }
    }

    /// Begins what the cluster asks itself for, judged as an operator's request is.
    fn begin_asked(
        &mut self,
        request: &ReshapeRequest,
        state: &DirectoryState,
        view: &View,
        announcement: Option<Announcement>,
    ) {
        match verdict(state, view, self.known.settings.replicas as usize, request) {
            Ok(Verdict::Begin { command, .. }) => {
                self.announce(announcement);
                self.decide(*command);
            }
            _ => self.topology.automatic.withdraw(request.change),
        }
    }

    fn announce(&mut self, announcement: Option<Announcement>) {
        self.effects.extend(announcement.map(|Announcement { what, reason }| Effect::Announce { what, reason }));
    }

    /// The changes under way, a sentence each, if this node leads the directory.
    pub fn changes_under_way(&self) -> Vec<String> {
        self.driven().map(|state| self.topology.automatic.under_way(state)).unwrap_or_default()
    }

    /// By what loads are watched and changes begun without being asked for: a simulated world has little time.
    pub fn set_pace(&mut self, pace: Pace) {
        self.topology.automatic.pace = pace;
    }

    /// Who leads groups that have no replica here.
    fn learn(&mut self, map: &PartitionMap, view: &View) {
        let here = |group| self.replica_manager.running().contains_key(&group);
        let leaders: Vec<(PartitionId, NodeId)> = view.leaders_elsewhere(map, here).collect();
        if !leaders.is_empty() && !mutant!(leaders_elsewhere_unlearned) {
            self.effects.push(Effect::Leaders(leaders));
        }
    }

    /// Another node's word for who leads counts for groups of which no replica is here.
    pub(super) fn on_leaders_told(&mut self, mut leaders: Vec<(PartitionId, NodeId)>) {
        let own = self.node.unwrap_or_default();
        leaders.retain(|(group, _)| self.map.group(*group).is_some_and(|entry| entry.replica_on(own).is_none()));
        if !leaders.is_empty() {
            self.effects.push(Effect::Leaders(leaders));
        }
    }

    /// Nodes that do not host the directory hear of a new map at once; they ask for it from time to time too.
    fn tell_map(&mut self, state: &Arc<DirectoryState>, view: &View) {
        let map = &state.map;
        let is_behind = |node: NodeId| view.node(node).is_some_and(|local| local.map_version < map.version.0);
        let behind = map.nodes.iter().filter(|row| is_behind(row.id) && !row.addresses.peer.is_empty());
        let behind: Vec<NodeId> = behind.map(|row| row.id).collect();
        if !behind.is_empty() {
            self.effects.push(Effect::Tell(behind, Arc::clone(state)));
        }
    }

    /// Groups whose leader was asked to transfer its leadership, and did not in time.
    fn tried(&self) -> BTreeSet<PartitionId> {
        let late = |asked: &Time| self.now.since(*asked) >= self.known.settings.leader_transfer_timeout;
        self.topology.transfers.iter().filter(|(_, asked)| late(asked)).map(|(&group, _)| group).collect()
    }

    fn take_step(&mut self, step: Step, state: &Arc<DirectoryState>) {
        match step {
            Step::Decide(command) => self.decide(command),
            Step::Configure { leader, partition, expected, configuration } => {
                self.effects.push(Effect::Configure { leader, partition, expected, configuration });
            }
            Step::Transfer { leader, partition, to } => {
                if self.topology.transfers.contains_key(&partition) {
                    return;
                }
                self.topology.transfers.insert(partition, self.now);
                self.effects.push(Effect::TransferLeader { leader, partition, to });
            }
            Step::Assign { node } => {
                let is_deciding = self.topology.deciding.contains(&joined(node));
                if (!is_deciding && self.topology.assigning.insert(node)) || mutant!(assigned_at_every_look) {
                    self.effects.push(Effect::Assign(node, Arc::clone(state)));
                }
            }
        }
    }

    pub(super) fn on_decided(&mut self, command: &DirectoryCommand, reply: Option<&DirectoryReply>) {
        self.topology.deciding.end(command);
        if reply.is_some_and(|reply| !matches!(reply, DirectoryReply::Refused(_))) {
            self.drive();
        }
    }

    /// Once a process has its number, the directory hears of it.
    pub(super) fn on_assigned(&mut self, node: NodeId, outcome: Result<(), String>) {
        self.topology.assigning.remove(&node);
        match outcome {
            Err(text) => _ = self.topology.assign_errors.insert(node, text),
            Ok(()) => {
                self.topology.assign_errors.remove(&node);
                self.decide(joined(node));
            }
        }
    }

    fn decide(&mut self, command: DirectoryCommand) {
        if self.topology.deciding.begin(&command) {
            self.effects.push(Effect::Decide(Box::new(command)));
        }
    }

    /// An operator's change of the topology: begun, or how far it is.
    pub(super) fn on_verb(&mut self, verb: VerbId, request: Box<ReshapeRequest>, view: Box<View>) {
        let Some(state) = self.driven().cloned() else { return self.answer(verb, leads_no_more()) };
        if request.shape == Shape::Rebalance {
            let reply = match needs_directory(&state, &view) {
                Ok(()) => {
                    let (automatic, settings) = (&mut self.topology.automatic, &self.known.settings);
                    automatic.rebalance(self.now, (&state, &view), settings, &request)
                }
                Err(error) => AdminReply::Failed(error),
            };
            return self.answer(verb, reply);
        }
        let effect = match verdict(&state, &view, self.known.settings.replicas as usize, &request) {
            Err(error) => Effect::Answer(verb, Box::new(AdminReply::Failed(error))),
            Ok(Verdict::Progress(mut progress)) => {
                let error = progress.node.and_then(|node| self.topology.assign_errors.get(&node));
                progress.steps.extend(error.cloned());
                self.drive();
                Effect::Answer(verb, Box::new(AdminReply::Reshaped(progress)))
            }
            Ok(Verdict::Begin { plan, .. }) if request.dry_run => {
                Effect::Answer(verb, Box::new(AdminReply::Reshaped(plan)))
            }
            Ok(Verdict::Begin { command, plan }) => Effect::Begin(verb, command, Box::new(plan)),
            Ok(Verdict::Median { partition, leader }) => {
                self.topology.medians.insert(verb, (partition, request, view));
                Effect::Median { verb, partition, leader, by_load: false }
            }
            Ok(Verdict::Enlist { address, replaces, plan }) => {
                let candidate = Candidate { address: address.clone(), replaces, registers: !request.dry_run, plan };
                self.topology.candidates.insert(verb, candidate);
                Effect::Identify { verb, address }
            }
        };
        self.effects.push(effect);
    }

    /// A split at the median goes on.
    pub(super) fn on_median(&mut self, verb: VerbId, median: Option<Bytes>) {
        let Some((partition, request, view)) = self.topology.medians.remove(&verb) else { return };
        match median {
            None if verb == AUTOMATIC => self.topology.automatic.not_cut(self.now, partition),
            Some(at) if verb == AUTOMATIC => {
                let Some(state) = self.driven().cloned() else { return };
                let shape = Shape::Split { partition: Some(partition), at: Some(at) };
                let announcement = self.topology.automatic.announced(partition);
                self.begin_asked(&ReshapeRequest { shape, ..*request }, &state, &view, announcement);
            }
            Some(at) => {
                let shape = Shape::Split { partition: Some(partition), at: Some(at) };
                self.on_verb(verb, Box::new(ReshapeRequest { shape, ..*request }), view);
            }
            None => self.answer(verb, AdminReply::Failed(no_median())),
        }
    }

    /// A process that is to become a node has said who it is.
    pub(super) fn on_identified(&mut self, verb: VerbId, found: Result<Box<Identified>, String>) {
        let Some(candidate) = self.topology.candidates.remove(&verb) else { return };
        let Some(state) = self.driven() else { return self.answer(verb, leads_no_more()) };
        let enlistment = match found {
            Ok(applicant) => candidate.judge(state, *applicant),
            Err(text) => Enlistment::Refused(text),
        };
        match enlistment {
            Enlistment::Refused(text) => self.answer(verb, AdminReply::Failed(AdminError::Refused(text))),
            Enlistment::Answer(answer) => self.answer(verb, AdminReply::Reshaped(*answer)),
            Enlistment::Register(register) => {
                let command = Box::new(DirectoryCommand::Reshape(register));
                self.effects.push(Effect::Begin(verb, command, Box::new(candidate.plan)));
            }
        }
    }

    fn answer(&mut self, verb: VerbId, reply: AdminReply) {
        self.effects.push(Effect::Answer(verb, Box::new(reply)));
    }
}
