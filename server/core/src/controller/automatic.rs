//! What the leader of the directory begins without being asked: leaders and replicas are spread by load, partitions are
//! split and merged (`rebalance`, `auto_split`, `auto_merge`); and the operator's `rebalance`, which is the same until
//! nothing is left to be spread.
//!
//! One change at a time, each some time after the one before it. What is remembered here ends with the leadership of
//! the directory: whoever leads it next watches the loads anew before it begins anything.

use std::collections::BTreeSet;
use std::time::Duration;

use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminReply, ChangeId, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape};
use coppice_ordering::Time;

use super::VerbId;
use super::step::ByGroup;
use crate::machine::directory::{Change, DirectoryState};
use crate::reshape::{Loads, Pace, Resting, Shift, Situation, Sizing, Step, View, even_leaders, merge, plan, split};
use crate::settings::{AutoSplit, ClusterSettings};

/// Between two steps that only make leaderships more even, and between those of an operator's `rebalance`.
const STEP_INTERVAL: Duration = Duration::from_secs(2);

/// A verb of nobody: its median is for a split that the cluster begins. Drivers count from 1.
pub(super) const AUTOMATIC: VerbId = 0;

/// What comes next.
pub(super) enum Next {
    /// A leader transfer.
    Transfer(Box<Step>),
    /// The same as an operator's verb.
    Ask(Box<ReshapeRequest>),
    /// A split, once its key is known.
    Cut { request: Box<ReshapeRequest>, partition: PartitionId, by_load: bool },
}

/// A change that was begun without being asked for, and why.
#[derive(Clone, Debug)]
pub(super) struct Announcement {
    pub what: String,
    pub reason: String,
}

/// A change that was announced, until it has ended.
#[derive(Debug)]
struct Begun {
    at: Time,
    /// Its end, if it is a leader transfer: this node leads.
    leader: Option<NodeId>,
    /// The directory has decided it.
    is_decided: bool,
    announcement: Announcement,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Automatic {
    pub pace: Pace,
    loads: Loads,
    /// An operator's `rebalance` that is under way.
    run: Option<ChangeId>,
    /// Nothing is begun before.
    next_at: Time,
    /// When the leader of a partition was last moved.
    led: ByGroup<Time>,
    /// When a replica of a partition was last moved.
    moved: ByGroup<Time>,
    /// When no key was found at which a partition could be split.
    uncut: ByGroup<Time>,
    /// The newest change of each partition.
    announced: ByGroup<Begun>,
}

impl Automatic {
    /// The directory is led elsewhere: what was watched here is over.
    pub fn forget(&mut self) {
        *self = Automatic { pace: self.pace, ..Automatic::default() };
    }

    /// Takes in what the nodes say.
    pub fn note(&mut self, now: Time, state: &DirectoryState, view: &View) {
        self.loads.note(now, state, view, &self.pace);
        let pace = self.pace;
        for lately in [&mut self.led, &mut self.moved, &mut self.uncut] {
            lately.retain(|_, at| now.since(*at) < pace.settle && !mutant!(balance_settles_nothing));
        }
        self.announced.retain(|&group, begun| {
            let is_done = begun.leader.is_some() && begun.leader == view.led(group).map(|led| led.leader);
            let was_decided = begun.is_decided;
            begun.is_decided = state.change_of(group).is_some();
            begun.is_decided || (!was_decided && !is_done && now.since(begun.at) < pace.between)
        });
    }

    fn situation<'a>(
        &'a self,
        now: Time,
        (state, view): (&'a DirectoryState, &'a View),
        settings: &ClusterSettings,
    ) -> Situation<'a> {
        let replicas = settings.replicas as usize;
        Situation { state, view, loads: &self.loads, pace: &self.pace, replicas, now }
    }

    /// What to begin now, in a cluster where nothing is under way. `asked`: groups whose leader was asked to transfer
    /// lately.
    pub fn next(
        &mut self,
        now: Time,
        known: (&DirectoryState, &View),
        settings: &ClusterSettings,
        asked: &BTreeSet<PartitionId>,
    ) -> Option<(Next, Option<Announcement>)> {
        if now < self.next_at {
            return None;
        }
        let by_load = settings.rebalance || self.run.is_some();
        let found = self.sizing(now, known, settings).or_else(|| self.shift(now, known, settings, asked));
        if let Some((next, partition, announcement)) = found {
            let interval = if self.run.is_some() { STEP_INTERVAL.min(self.pace.between) } else { self.pace.between };
            self.next_at = now + interval;
            let leader = match &next {
                Next::Transfer(step) => step.next_leader(),
                _ => None,
            };
            let begun = Begun { at: now, leader, is_decided: false, announcement: announcement.clone() };
            self.announced.insert(partition, begun);
            return Some((next, Some(announcement)));
        }
        if self.run.is_some() && self.situation(now, known, settings).unknown().is_empty() && asked.is_empty() {
            self.run = None;
        }
        if by_load {
            return None;
        }
        self.next_at = now + STEP_INTERVAL;
        even_leaders(known.0, known.1).map(|step| (Next::Transfer(Box::new(step)), None))
    }

    fn sizing(
        &self,
        now: Time,
        known: (&DirectoryState, &View),
        settings: &ClusterSettings,
    ) -> Option<(Next, PartitionId, Announcement)> {
        let situation = self.situation(now, known, settings);
        let split_when = settings.auto_split;
        let cut = || split(&situation, split_when, &self.uncut.keys().copied().collect());
        let join = || settings.auto_merge.then(|| merge(&situation, split_when)).flatten();
        let found = if split_when == AutoSplit::Off { join() } else { cut().or_else(join) };
        let (sizing, reason) = found?;
        let version = known.0.map.version.0;
        Some(match sizing {
            Sizing::Split { partition, by_load } => {
                let request = asked(version, partition, Shape::Split { partition: Some(partition), at: None });
                let what = format!("{partition} is split");
                (Next::Cut { request, partition, by_load }, partition, Announcement { what, reason })
            }
            Sizing::Join { partition, to } => {
                let nodes: Vec<String> = to.iter().map(ToString::to_string).collect();
                let what = format!("{partition} moves to {}, to be merged", nodes.join(" "));
                let request = asked(version, partition, Shape::Move { partition, from: Vec::new(), to });
                (Next::Ask(request), partition, Announcement { what, reason })
            }
            Sizing::Merge { partition, into } => {
                let what = format!("{partition} is merged into {into}");
                let request = asked(version, partition, Shape::Merge { partition, into: Some(into) });
                (Next::Ask(request), partition, Announcement { what, reason })
            }
        })
    }

    fn shift(
        &mut self,
        now: Time,
        known: (&DirectoryState, &View),
        settings: &ClusterSettings,
        asked_lately: &BTreeSet<PartitionId>,
    ) -> Option<(Next, PartitionId, Announcement)> {
        if !settings.rebalance && self.run.is_none() {
            return None;
        }
        let mut resting = Resting { leaders: asked_lately.clone(), replicas: BTreeSet::new() };
        if self.run.is_none() {
            resting.leaders.extend(self.led.keys());
            resting.replicas.extend(self.moved.keys());
        }
        let proposal = plan(&self.situation(now, known, settings), &resting).into_iter().next()?;
        let announcement = Announcement { what: proposal.shift.to_string(), reason: proposal.reason };
        let partition = proposal.shift.partition();
        let next = match proposal.shift {
            Shift::Leader { partition, from, to } => {
                self.led.insert(partition, now);
                Next::Transfer(Box::new(Step::Transfer { leader: from, partition, to }))
            }
            Shift::Replica { partition, from, to } => {
                self.moved.insert(partition, now);
                let shape = Shape::Move { partition, from: vec![from], to: vec![to] };
                Next::Ask(asked(known.0.map.version.0, partition, shape))
            }
        };
        Some((next, partition, announcement))
    }

    /// What was asked for is not begun.
    pub fn withdraw(&mut self, change: ChangeId) {
        self.announced.retain(|partition, _| u64::from(partition.0) != change.0 & 0x7fff_ffff);
    }

    /// The change of a partition that was planned last.
    pub fn announced(&self, partition: PartitionId) -> Option<Announcement> {
        self.announced.get(&partition).map(|begun| begun.announcement.clone())
    }

    /// No key divides a partition: it is asked again after a while.
    pub fn not_cut(&mut self, now: Time, partition: PartitionId) {
        self.uncut.insert(partition, now);
        self.announced.remove(&partition);
    }

    /// An operator's `rebalance`: its plan, or how far it is.
    pub fn rebalance(
        &mut self,
        now: Time,
        known: (&DirectoryState, &View),
        settings: &ClusterSettings,
        request: &ReshapeRequest,
    ) -> AdminReply {
        let situation = self.situation(now, known, settings);
        let (unknown, proposals) = (situation.unknown(), plan(&situation, &Resting::default()));
        let state = known.0;
        let is_run = self.run == Some(request.change);
        let names: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        if !unknown.is_empty() && !is_run {
            let text = format!(
                "the load of {} is not known yet: ask again after {} s; the leader of the directory watches each \
                 partition for so long after an election, a split or a merge",
                names.join(" "),
                self.pace.watch.as_secs()
            );
            return AdminReply::Failed(AdminError::Refused(text));
        }
        let is_even = proposals.is_empty() && unknown.is_empty() && state.changes.is_empty();
        let begun = is_run || (is_even && !request.dry_run);
        let under_way = self.under_way(state);
        let steps = match () {
            () if is_even => vec!["leaders and replicas are spread over the nodes by load and bytes".to_owned()],
            () if is_run && !unknown.is_empty() => vec![format!("the load of {} is being watched", names.join(" "))],
            () if is_run && !under_way.is_empty() => under_way,
            () if is_run => vec![format!("{} still to be taken", steps_of(proposals.len()))],
            () => proposals.iter().map(ToString::to_string).collect(),
        };
        if !request.dry_run {
            self.run = (!is_even).then_some(request.change);
        }
        let left = u32::try_from(proposals.len()).unwrap_or(u32::MAX).max(u32::from(!is_even));
        let map_version = state.map.version;
        let (partition, node, cut) = (None, None, None);
        AdminReply::Reshaped(Reshaped { done: is_even, begun, steps, left, partition, node, cut, map_version })
    }

    /// The changes under way, a sentence each: what, and why if nobody asked.
    pub fn under_way(&self, state: &DirectoryState) -> Vec<String> {
        let changes = state.changes.values().filter(|change| !self.announced.keys().any(|id| is_of(change, *id)));
        let announced = self.announced.values().map(|begun| &begun.announcement);
        let announced = announced.map(|Announcement { what, reason }| format!("{what}: {reason}"));
        announced.chain(changes.map(|change| describe(state, change))).collect()
    }
}

fn steps_of(count: usize) -> String {
    if count == 1 { "1 step".into() } else { format!("{count} steps") }
}

fn is_of(change: &Change, partition: PartitionId) -> bool {
    change.groups().any(|group| group == partition)
}

/// Every change of the map raises its version, so the two name it for ever.
fn asked(version: u64, partition: PartitionId, shape: Shape) -> Box<ReshapeRequest> {
    let change = ChangeId(version << 32 | u64::from(partition.0) | 1 << 63);
    Box::new(ReshapeRequest { change, shape, dry_run: false, force: false, within: None })
}

/// What a change does, in words.
fn describe(state: &DirectoryState, change: &Change) -> String {
    match change {
        Change::Move(change) => {
            let entry = state.map.entry(change.partition);
            let nodes = |ids: &[coppice_client::wire::ReplicaId]| {
                let nodes = ids.iter().filter_map(|&id| entry.and_then(|entry| entry.node_of(id)));
                nodes.map(|node| node.to_string()).collect::<Vec<String>>().join(" ")
            };
            match (change.remove.is_empty(), change.add.is_empty()) {
                (true, _) => format!("{}: a replica on {} comes", change.partition, nodes(&change.add)),
                (_, true) => format!("{}: the replica on {} goes", change.partition, nodes(&change.remove)),
                _ => format!("{}: moves from {} to {}", change.partition, nodes(&change.remove), nodes(&change.add)),
            }
        }
        Change::Split(boundary) => {
            let [parent, child] = boundary.touched();
            format!("{parent}: is split; {child} begins")
        }
        Change::Merge(boundary) => {
            let [gone, target] = boundary.touched();
            format!("{gone}: is merged into {target}")
        }
    }
}
