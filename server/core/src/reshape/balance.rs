//! Where leaders and replicas should be instead: spread over the nodes by load and bytes.
//!
//! Pure, and one planner for all: the operator's plan, the cluster by itself (`rebalance = auto`), and leaderships that
//! are evened by their number. Each step takes weight from a node to one that has less, and only if they then still
//! differ by a margin the same way around: so the sum of the squares of all weights falls with each step, a plan has
//! an end, and what was carried out is not turned back before the load has changed by twice the margin. Where none of
//! the nodes that could relieve a leader has a replica, one of them gets it first.

use std::collections::{BTreeMap, BTreeSet};

use coppice_client::map::{Entry, NodeState, Role};
use coppice_client::wire::{NodeId, PartitionId, ReplicaId};
use coppice_ordering::Time;

use super::load::{Load, Loads, Pace};
use super::plan::CAUGHT_UP_INSTANCES;
use super::{LeaderReport, Step, View};
use crate::machine::directory::DirectoryState;
use crate::settings::units::{GIB, KIB, MIB};

/// Of the mean of all nodes: a difference that is smaller is left alone. Loads change by some percent from look to
/// look.
const LEADER_MARGIN: f64 = 0.1;

/// The same of replicas: each move sends a whole partition over the network.
const REPLICA_MARGIN: f64 = 0.15;

/// Bytes per node that count as little as none: a node's disk and memory have room for many times as much.
const BYTES_LEAST: f64 = (64 * MIB) as f64;

/// Steps of one plan: more than an operator reads.
const STEPS_MAX: usize = 64;

/// What is planned by.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    pub state: &'a DirectoryState,
    pub view: &'a View,
    pub loads: &'a Loads,
    pub pace: &'a Pace,
    /// The cluster's setting.
    pub replicas: usize,
    pub now: Time,
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// Its leadership goes.
    Leader { partition: PartitionId, from: NodeId, to: NodeId },
    /// One of its replicas goes.
    Replica { partition: PartitionId, from: NodeId, to: NodeId },
}

impl Shift {
    /// Of which partition.
    pub fn partition(&self) -> PartitionId {
        match *self {
            Shift::Leader { partition, .. } | Shift::Replica { partition, .. } => partition,
        }
    }
}

impl std::fmt::Display for Shift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shift::Leader { partition, from, to } => write!(f, "{partition}: the leader moves from {from} to {to}"),
            Shift::Replica { partition, from, to } => write!(f, "{partition}: a replica moves from {from} to {to}"),
        }
    }
}

/// Partitions that stay where they are, because they have just moved.
#[derive(Clone, Debug, Default)]
pub struct Resting {
    /// Their leaders.
    pub leaders: BTreeSet<PartitionId>,
    /// Their replicas.
    pub replicas: BTreeSet<PartitionId>,
}

/// A step, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub shift: Shift,
    pub reason: String,
}

impl std::fmt::Display for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.shift, self.reason)
    }
}

impl Situation<'_> {
    /// Partitions whose load is not known: nothing is planned until it is.
    pub fn unknown(&self) -> Vec<PartitionId> {
        let partitions = self.state.map.partitions.iter().map(|entry| entry.partition);
        partitions.filter(|&id| self.load(id).is_none()).collect()
    }

    pub(super) fn load(&self, partition: PartitionId) -> Option<Load> {
        self.loads.get(partition, self.pace)
    }

    /// Members that answer.
    pub(super) fn members(&self) -> Vec<NodeId> {
        members(self.state).filter(|&node| self.view.is_up(node)).collect()
    }

    /// Whether a partition is whole and at rest: no change touches it, and each of its replicas votes, on a member that
    /// answers.
    pub(super) fn is_at_rest(&self, entry: &Entry) -> bool {
        let under_way = self.state.change_of(entry.partition).is_some() && !mutant!(balance_forgets_what_is_under_way);
        let mut replicas = entry.replicas.iter();
        let voters = |led: LeaderReport<'_>| led.report.learners.is_empty() || mutant!(balance_counts_learners);
        !under_way
            && replicas.all(|info| is_voter(info.role) && self.view.is_up(info.node))
            && self.view.led(entry.partition).is_some_and(voters)
    }
}

fn is_voter(role: Role) -> bool {
    role == Role::Voter || mutant!(balance_counts_learners)
}

fn members(state: &DirectoryState) -> impl Iterator<Item = NodeId> + '_ {
    state.map.nodes.iter().filter(|row| row.state == NodeState::Member).map(|row| row.id)
}

/// The steps that spread leaders and replicas, those that are carried out first in front. Nothing, while the load of
/// any partition is unknown.
pub fn plan(situation: &Situation<'_>, resting: &Resting) -> Vec<Proposal> {
    if !situation.unknown().is_empty() {
        return Vec::new();
    }
    let mut spread = Spread::by_load(situation);
    let mut proposals = Vec::new();
    while proposals.len() < STEPS_MAX
        && let Some(shift) = spread.next(resting)
    {
        let reason = spread.reason(&shift);
        spread.apply(&shift);
        proposals.push(Proposal { shift, reason });
    }
    proposals
}

/// One transfer that makes the numbers of leaderships more even, if any does. The directory's stays where it is:
/// queries across partitions would wait for its next leader.
pub fn even_leaders(state: &DirectoryState, view: &View) -> Option<Step> {
    let spread = Spread::new(state, view, &|_| Some((1.0, 0.0, Load::default())), (0.0, f64::INFINITY));
    match spread.leader(&Resting::default())? {
        Shift::Leader { partition, from, to } => Some(Step::Transfer { leader: from, partition, to }),
        Shift::Replica { .. } => None,
    }
}

/// A partition with its weights.
#[derive(Clone, Debug)]
struct Placed {
    partition: PartitionId,
    leader: NodeId,
    nodes: Vec<NodeId>,
    /// Nodes of voters that have caught up.
    may_lead: BTreeSet<NodeId>,
    /// Its replicas may move: all are there, and as many as there should be.
    may_move: bool,
    /// Weight of its leader.
    lead: f64,
    /// Weight of each of its replicas.
    hold: f64,
    load: Load,
}

/// Which node has how much.
#[derive(Clone, Debug)]
struct Spread {
    placed: Vec<Placed>,
    leads: BTreeMap<NodeId, f64>,
    holds: BTreeMap<NodeId, f64>,
    /// Nodes that take further replicas.
    takers: Vec<NodeId>,
    lead_margin: f64,
    hold_margin: f64,
}

/// Weight of a leader and of a replica, and the load that they come from.
type Weights = (f64, f64, Load);

impl Spread {
    fn by_load(situation: &Situation<'_>) -> Spread {
        let Situation { state, view, pace, replicas, .. } = *situation;
        let count = members(state).count().max(1) as f64;
        let loads = || state.map.partitions.iter().filter_map(|entry| Some((entry, situation.load(entry.partition)?)));
        let per_node = |of: fn(&Load) -> f64| {
            loads().map(|(entry, load)| of(&load) * entry.replicas.len() as f64).sum::<f64>() / count
        };
        let replicas_each = loads().map(|(entry, _)| entry.replicas.len() as f64).sum::<f64>() / count;
        let bytes_each = per_node(|load| load.bytes as f64).max(BYTES_LEAST);
        let operations_each = per_node(|load| load.operations).max(pace.operations_least * replicas as f64);
        // A replica's weight is its part of what a node has on average, of each kind.
        let weigh = |partition| {
            let load = situation.load(partition)?;
            let hold = 1.0 / replicas_each + load.bytes as f64 / bytes_each + load.operations / operations_each;
            Some((load.operations + pace.operations_least, hold, load))
        };
        let mut spread = Spread::new(state, view, &weigh, (LEADER_MARGIN, REPLICA_MARGIN));
        for placed in &mut spread.placed {
            let whole = state.map.entry(placed.partition).is_some_and(|entry| situation.is_at_rest(entry));
            placed.may_move = whole && placed.nodes.len() == replicas;
        }
        // Who is away comes back, as a rule, with its replicas.
        if members(state).any(|node| !view.is_up(node)) {
            spread.takers.clear();
        }
        spread
    }

    /// `margins`: of leaders and replicas, as parts of the mean.
    fn new(
        state: &DirectoryState,
        view: &View,
        weigh: &dyn Fn(PartitionId) -> Option<Weights>,
        margins: (f64, f64),
    ) -> Spread {
        let mut spread = Spread {
            placed: Vec::new(),
            leads: members(state).map(|node| (node, 0.0)).collect(),
            holds: members(state).map(|node| (node, 0.0)).collect(),
            takers: members(state).filter(|&node| view.node(node).is_some_and(|local| !local.is_full())).collect(),
            lead_margin: 0.0,
            hold_margin: 0.0,
        };
        for entry in &state.map.partitions {
            let (Some(led), Some((lead, hold, load))) = (view.led(entry.partition), weigh(entry.partition)) else {
                continue;
            };
            let nodes: Vec<NodeId> = entry.replicas.iter().map(|info| info.node).collect();
            *spread.leads.entry(led.leader).or_default() += lead;
            nodes.iter().for_each(|&node| *spread.holds.entry(node).or_default() += hold);
            let changes = state.change_of(entry.partition).is_some() && !mutant!(balance_forgets_what_is_under_way);
            let may_lead = if changes { BTreeSet::new() } else { candidates(state, view, entry, led) };
            let (partition, leader) = (entry.partition, led.leader);
            spread.placed.push(Placed { partition, leader, nodes, may_lead, may_move: false, lead, hold, load });
        }
        let mean = |weights: &BTreeMap<NodeId, f64>| weights.values().sum::<f64>() / weights.len().max(1) as f64;
        if !mutant!(balance_without_margin) {
            (spread.lead_margin, spread.hold_margin) =
                (margins.0 * mean(&spread.leads), margins.1 * mean(&spread.holds));
        }
        spread
    }

    fn next(&self, resting: &Resting) -> Option<Shift> {
        let leader = self.leader(resting).or_else(|| self.two_leaders(resting));
        leader.or_else(|| self.replica(resting)).or_else(|| self.successor(resting))
    }

    /// The transfer that helps most.
    fn leader(&self, resting: &Resting) -> Option<Shift> {
        let mut best = Best::default();
        for placed in self.placed.iter().filter(|placed| !resting.leaders.contains(&placed.partition)) {
            let (partition, from) = (placed.partition, placed.leader);
            for &to in placed.may_lead.iter().filter(|&&to| to != from) {
                let gain = gain(&self.leads, (from, to), placed.lead, self.lead_margin);
                best.offer(gain, Shift::Leader { partition, from, to });
            }
        }
        best.shift
    }

    /// The first of two transfers that help together: a node gives a leadership to a third one, and takes one over from
    /// a node that leads more. The first alone makes nothing so uneven that it would be turned back.
    fn two_leaders(&self, resting: &Resting) -> Option<Shift> {
        let leads = |node: NodeId| self.leads.get(&node).copied().unwrap_or(0.0);
        let awake = |placed: &&Placed| !resting.leaders.contains(&placed.partition);
        let mut best = Best::default();
        for taken in self.placed.iter().filter(awake) {
            let most = taken.leader;
            for given in self.placed.iter().filter(|placed| taken.may_lead.contains(&placed.leader)).filter(awake) {
                let from = given.leader;
                let left = leads(most) - (leads(from) - given.lead) - taken.lead;
                if from == most || left < self.lead_margin {
                    continue;
                }
                for &to in given.may_lead.iter().filter(|&&to| to != from && to != most) {
                    let first = leads(from) - leads(to) - given.lead;
                    let gain = taken.lead * left + given.lead * first;
                    if first > -self.lead_margin && gain >= taken.lead * self.lead_margin / 2.0 {
                        best.offer(gain, Shift::Leader { partition: given.partition, from, to });
                    }
                }
            }
        }
        best.shift
    }

    /// The move that helps most, of a follower if any does.
    fn replica(&self, resting: &Resting) -> Option<Shift> {
        let (mut followers, mut leaders) = (Best::default(), Best::default());
        for placed in self.movable(resting) {
            let partition = placed.partition;
            for &from in &placed.nodes {
                let best = if from == placed.leader { &mut leaders } else { &mut followers };
                for &to in self.takers.iter().filter(|to| !placed.nodes.contains(to)) {
                    let gain = gain(&self.holds, (from, to), placed.hold, self.hold_margin);
                    best.offer(gain, Shift::Replica { partition, from, to });
                }
            }
        }
        followers.shift.or(leaders.shift)
    }

    /// The move of a follower to a node that helps most as the next leader; no node has then so much more that the
    /// replica would move back.
    fn successor(&self, resting: &Resting) -> Option<Shift> {
        let mut best = Best::default();
        let holds = |node: NodeId| self.holds.get(&node).copied().unwrap_or(0.0);
        let movable = self.movable(resting).filter(|placed| !resting.leaders.contains(&placed.partition));
        for placed in movable {
            let partition = placed.partition;
            let followers = || placed.nodes.iter().copied().filter(|&node| node != placed.leader);
            let Some(from) = followers().max_by(|&one, &other| holds(one).total_cmp(&holds(other))) else { continue };
            for &to in self.takers.iter().filter(|to| !placed.nodes.contains(to)) {
                if holds(to) + placed.hold - holds(from) < self.hold_margin {
                    let gain = gain(&self.leads, (placed.leader, to), placed.lead, self.lead_margin);
                    best.offer(gain, Shift::Replica { partition, from, to });
                }
            }
        }
        best.shift
    }

    fn movable<'a>(&'a self, resting: &'a Resting) -> impl Iterator<Item = &'a Placed> {
        self.placed.iter().filter(|placed| placed.may_move && !resting.replicas.contains(&placed.partition))
    }

    /// As it is afterwards.
    fn apply(&mut self, shift: &Shift) {
        let Some(placed) = self.placed.iter_mut().find(|placed| placed.partition == shift.partition()) else { return };
        let mut lead = |from: NodeId, to: NodeId, weight: f64| {
            *self.leads.entry(from).or_default() -= weight;
            *self.leads.entry(to).or_default() += weight;
        };
        match *shift {
            Shift::Leader { from, to, .. } => {
                lead(from, to, placed.lead);
                placed.leader = to;
            }
            Shift::Replica { from, to, .. } => {
                *self.holds.entry(from).or_default() -= placed.hold;
                *self.holds.entry(to).or_default() += placed.hold;
                placed.nodes.retain(|&node| node != from);
                placed.may_lead.remove(&from);
                if placed.leader == from {
                    // The first that stays takes over, as the move does it.
                    let next = placed.nodes.iter().copied().find(|node| placed.may_lead.contains(node)).unwrap_or(to);
                    lead(from, next, placed.lead);
                    placed.leader = next;
                }
                placed.nodes.push(to);
                placed.may_lead.insert(to);
            }
        }
    }

    /// Why, in figures of before the step.
    fn reason(&self, shift: &Shift) -> String {
        let of = |partition| self.placed.iter().find(|placed| placed.partition == partition);
        match *shift {
            Shift::Leader { partition, from, to } => {
                let led = |node: NodeId| self.placed.iter().filter(move |placed| placed.leader == node);
                let [(here, most), (there, least)] = [from, to].map(|node| (led(node).count(), operations(led(node))));
                let own = operations(of(partition));
                format!("{from} leads {here} with {most} op/s, {to} {there} with {least}; {partition} has {own}")
            }
            Shift::Replica { partition, from, to } => {
                let holds = |node: NodeId| {
                    let here = || self.placed.iter().filter(|placed| placed.nodes.contains(&node));
                    let bytes = here().map(|placed| placed.load.bytes).sum();
                    format!("{} replicas, {}, {} op/s", here().count(), about(bytes), operations(here()))
                };
                let bytes = of(partition).map_or(0, |placed| placed.load.bytes);
                let own = format!("{}, {} op/s", about(bytes), operations(of(partition)));
                format!("{from} has {}; {to} {}; {partition} {own}", holds(from), holds(to))
            }
        }
    }

    /// What falls with each step: of replicas, and of leaders.
    #[cfg(test)]
    fn scores(&self) -> (f64, f64) {
        let squares = |weights: &BTreeMap<NodeId, f64>| weights.values().map(|weight| weight * weight).sum();
        (squares(&self.holds), squares(&self.leads))
    }
}

/// Operations per second of all these.
fn operations<'a>(placed: impl IntoIterator<Item = &'a Placed>) -> u64 {
    placed.into_iter().map(|placed| placed.load.operations).sum::<f64>().round() as u64
}

/// The step that helps most; of equal ones the first.
#[derive(Default)]
struct Best {
    gain: f64,
    shift: Option<Shift>,
}

impl Best {
    fn offer(&mut self, gain: f64, shift: Shift) {
        if gain > self.gain {
            *self = Best { gain, shift: Some(shift) };
        }
    }
}

/// By half of how much the sum of squares falls if `weight` goes from one node to another; 0: by too little.
fn gain(weights: &BTreeMap<NodeId, f64>, (from, to): (NodeId, NodeId), weight: f64, margin: f64) -> f64 {
    let of = |node| weights.get(&node).copied().unwrap_or(0.0);
    let left = of(from) - of(to) - weight;
    if left > 0.0 && left >= margin { weight * left } else { 0.0 }
}

/// Nodes that may lead a partition: of voters that have caught up, with room for what they will write.
fn candidates(state: &DirectoryState, view: &View, entry: &Entry, led: LeaderReport<'_>) -> BTreeSet<NodeId> {
    let member = |node: NodeId| state.map.node(node).is_some_and(|row| row.state == NodeState::Member);
    let follows = |replica: ReplicaId| {
        let durable = led.report.durable.iter().find(|(id, _)| *id == replica);
        durable.is_some_and(|&(_, upto)| upto + CAUGHT_UP_INSTANCES >= led.report.decided_upto)
    };
    let has_room = |node: NodeId| view.node(node).is_some_and(|local| !local.node.disk_full);
    let voters = entry.replicas.iter().filter(|info| is_voter(info.role) && member(info.node) && has_room(info.node));
    voters.filter(|info| follows(info.replica)).map(|info| info.node).collect()
}

/// A size for people.
pub(super) fn about(bytes: u64) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    let unit = units.iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{:.1} {name}", bytes as f64 / *unit as f64))
}

#[cfg(test)]
mod tests;
